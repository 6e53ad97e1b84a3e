"""What `config.json` of a checkpoint says, as far as serving needs it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdeploy.checkpoint.json_text import load_json_object
from specdeploy.errors import CheckpointError

# The runtime keeps its own table of what it can run (it imports nothing of this package); a test compares the two.
SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "MiMoForCausalLM",
)
# Those whose MTP layers it can draft with.
MTP_ARCHITECTURES = ("MiMoForCausalLM",)

_REQUIRED_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class ArchitectureFacts:
    """Shapes of a decoder-only transformer. `vocab_size` counts embedding rows, padding rows included."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool


def inspect_architecture(folder: Path) -> ArchitectureFacts:
    """Read `folder/config.json`. Raises `CheckpointError` with everything that is wrong with it."""
    path = folder / "config.json"
    if not path.exists() and not path.is_symlink():
        raise CheckpointError(f"{path}: missing. A checkpoint folder holds config.json, weights, tokenizer.json")
    config = load_json_object(path)
    problems = _problems(config)
    if problems:
        raise CheckpointError("\n".join(f"{path}: {problem}" for problem in problems))
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    return ArchitectureFacts(
        architecture=config["architectures"][0],
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocab_size=int(config["vocab_size"]),
        max_position_embeddings=int(config["max_position_embeddings"]),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


# `Any` is what JSON gives: every value is checked here before it is used.
def _problems(config: dict[str, Any]) -> list[str]:
    problems = []
    supported = f"Supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        problems.append(f"architectures: must name exactly one, found {architectures!r}. {supported}")
    elif architectures[0] not in SUPPORTED_ARCHITECTURES:
        problems.append(f"architectures: {architectures[0]} is not supported. {supported}")
    for key in _REQUIRED_SIZES:
        value = config.get(key)
        if not _is_size(value):
            problems.append(f"{key}: must be a positive whole number, found {value!r}. Fetch the checkpoint again")
    for key in ("num_key_value_heads", "head_dim"):
        value = config.get(key)
        if value is not None and not _is_size(value):
            problems.append(f"{key}: must be a positive whole number or absent, found {value!r}")
    if config.get("quantization_config") is not None:
        problems.append("quantization_config: quantised weights are not supported. Use the unquantised checkpoint")
    return problems


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
