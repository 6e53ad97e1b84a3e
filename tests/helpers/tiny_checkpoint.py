"""Tiny random checkpoints in the Hugging Face layout, made on the fly."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|user|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|bot|>' }}{% endif %}"
)
CORPUS = [
    "def total(items):\n    return sum(item.price for item in items)\n",
    "The river rose in the night and the bridge was closed until the morning.",
    "A short answer is often better than a long one.",
]
EOS_ID = 0


def make_tokenizer(vocab_size: int = 320) -> Tokenizer:
    """A byte-level BPE tokenizer: every byte has a token, so any text round-trips."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>", "<|user|>", "<|bot|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def make_checkpoint(
    folder: Path,
    *,
    architecture: str = "llama",
    seed: int = 0,
    num_layers: int = 2,
    hidden_size: int = 32,
    max_positions: int = 512,
    **overrides: Any,
) -> Path:
    """A random model of `architecture` with the tokenizer above, saved under `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = make_tokenizer()
    settings: dict[str, object] = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden_size // 4,
        "max_position_embeddings": max_positions,
        "initializer_range": 0.3,  # large enough that random models have opinions, and loops to draft from
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": None,
        **overrides,
    }
    config = AutoConfig.for_model(architecture, **settings)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers warns about its own deprecations
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        model.generation_config.eos_token_id = EOS_ID
        model.generation_config.pad_token_id = EOS_ID
        model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder
