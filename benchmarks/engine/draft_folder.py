"""A plain Hugging Face folder out of a draft that borrows the target's embeddings, for tools that cannot borrow."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_EMBEDDING = "model.embed_tokens.weight"
_NOT_STANDARD = ("d2t", "t2d", "lm_head.weight")


def write_plain_draft(draft: Path, target: Path, output: Path) -> None:
    """`output` becomes `draft` with the target's embeddings, tied to a head over the whole vocabulary.

    A trimmed head is left out: transformers has no place for one. Raises FileNotFoundError when either is not there.
    """
    tensors = _load_tensors(draft)
    for name in _NOT_STANDARD:
        tensors.pop(name, None)
    if _EMBEDDING not in tensors:
        tensors[_EMBEDDING] = _load_tensors(target)[_EMBEDDING].to(next(iter(tensors.values())).dtype)
    config = plain_config(json.loads((draft / "config.json").read_text()), tensors[_EMBEDDING])
    output.mkdir(parents=True, exist_ok=True)
    save_file(tensors, output / "model.safetensors", metadata={"format": "pt"})
    (output / "config.json").write_text(json.dumps(config, indent=2))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (target / name).is_file():
            shutil.copyfile(target / name, output / name)


def plain_config(config: dict[str, Any], embedding: torch.Tensor) -> dict[str, Any]:
    """The draft's config for `embedding` [V, H]: full vocabulary, tied head. Raises ValueError for another width."""
    if config["hidden_size"] != embedding.shape[1]:
        raise ValueError(f"the draft is {config['hidden_size']} wide, the target's embeddings {embedding.shape[1]}")
    known = {key: value for key, value in config.items() if key != "draft_vocab_size"}
    return {**known, "vocab_size": embedding.shape[0], "tie_word_embeddings": True}


def _load_tensors(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder}: no *.safetensors file")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}
