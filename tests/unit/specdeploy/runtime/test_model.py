"""The decoder against transformers' own models, and rows of one pass against each other."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.errors import CheckpointError
from specdeploy.runtime.attention import Span
from specdeploy.runtime.model import MTP_PREFIXES, SUPPORTED_ARCHITECTURES, DecoderModel

TOKENS = [5, 17, 200, 31, 8, 99, 120, 7, 64, 300, 12, 13]


def reference_logits(folder: Path, token_ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # transformers warns about its own deprecations
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


def load(folder: Path, dtype: torch.dtype = torch.float32, max_seq_len: int = 64) -> DecoderModel:
    return DecoderModel(folder, dtype=dtype, device=torch.device("cpu"), max_seq_len=max_seq_len)


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True}),
        ("llama", {"rope_parameters": LLAMA3_ROPE}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_logits_equal_transformers(tmp_path: Path, architecture: str, overrides: dict[str, Any]) -> None:
    folder = make_checkpoint(tmp_path, architecture=architecture, **overrides)
    model = load(folder)
    cache = model.new_cache(3)
    first = model.forward(TOKENS[:7], [Span(0, 7, 1, 0)], range(7), cache).logits
    second = model.forward(TOKENS[7:], [Span(0, 5, 1, 7)], range(5), cache).logits
    torch.testing.assert_close(torch.cat((first, second)), reference_logits(folder, TOKENS), atol=2e-4, rtol=1e-4)


def test_rows_at_different_lengths_share_a_pass_without_touching_each_other(target: DecoderModel) -> None:
    alone, together = target.new_cache(4), target.new_cache(4)
    expected = [
        target.forward(TOKENS[:9], [Span(0, 9, 0, 0)], [8], alone).logits,
        target.forward(TOKENS[3:5], [Span(0, 2, 2, 0)], [1], alone).logits,
        target.forward(TOKENS[5:11], [Span(0, 6, 3, 0)], [5], alone).logits,
    ]
    tokens = TOKENS[:9] + TOKENS[3:5] + TOKENS[5:11]
    spans = [Span(0, 9, 3, 0), Span(9, 11, 1, 0), Span(11, 17, 0, 0)]
    actual = target.forward(tokens, spans, [8, 10, 16], together).logits
    torch.testing.assert_close(actual, torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_no_logits_wanted_gives_an_empty_table(target: DecoderModel) -> None:
    assert target.forward(TOKENS[:3], [Span(0, 3, 0, 0)], [], target.new_cache(1)).logits.shape == (
        0,
        target.vocab_size,
    )


def test_bfloat16_agrees_roughly(target_folder: Path, target: DecoderModel) -> None:
    low = load(target_folder, torch.bfloat16)
    exact = target.forward(TOKENS, [Span(0, 12, 0, 0)], range(12), target.new_cache(1)).logits
    rounded = low.forward(TOKENS, [Span(0, 12, 0, 0)], range(12), low.new_cache(1)).logits
    assert torch.cosine_similarity(exact, rounded.float(), dim=1).min() > 0.99


def test_every_supported_architecture_is_tested_here() -> None:
    assert set(SUPPORTED_ARCHITECTURES) - set(MTP_PREFIXES) == {  # those with MTP layers: drafters/test_mtp.py
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    }


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, architecture="gemma")
    with pytest.raises(CheckpointError, match=r"GemmaForCausalLM is not supported.*LlamaForCausalLM"):
        load(folder)


def test_context_beyond_the_checkpoint_is_refused(target_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"max_position_embeddings: 512 is below serving.max_seq_len 1024"):
        load(target_folder, max_seq_len=1024)


def test_yarn_extends_the_context_and_equals_transformers(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    folder = make_checkpoint(tmp_path, rope_parameters=rope, max_positions=16)
    model = load(folder, max_seq_len=64)
    logits = model.forward(TOKENS * 2, [Span(0, 24, 0, 0)], range(24), model.new_cache(1)).logits
    torch.testing.assert_close(logits, reference_logits(folder, TOKENS * 2), atol=2e-4, rtol=1e-4)
    with pytest.raises(CheckpointError, match="max_position_embeddings: 64 is below"):
        load(folder, max_seq_len=65)


def test_sliding_window_below_the_context_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, architecture="mistral", sliding_window=32)
    with pytest.raises(CheckpointError, match="sliding_window: 32"):
        load(folder)
    load(folder, max_seq_len=32)


def test_length_dependent_rope_is_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    folder = make_checkpoint(tmp_path, rope_parameters=rope)
    with pytest.raises(CheckpointError, match="rope_type dynamic"):
        load(folder)


def test_missing_surplus_and_broken_tensors_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_checkpoint(tmp_path)
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if name != "model.norm.weight"}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is missing"):
        load(folder)
    save_file(weights | {"model.layers.0.extra.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.extra\.weight"):
        load(folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load(folder)
