"""Medusa heads: K stacks of residual blocks, each with its own LM head, that guess tokens 1..K ahead at once.

Tensors, whoever wrote them (h = head, l = block, H hidden, V vocabulary):

    original      {h}.{l}.linear.weight [H, H], {h}.{l}.linear.bias [H], {h}.{last}.weight [V, H]
    whole model   the same under medusa_head. (as saved with the target)
    vLLM          blocks.{h}.layers.{l}.weight, lm_heads.{h}.weight (or lm_head.weight for all)
    ModelOpt      medusa_heads.{h}.medusa_layers.{l}.linear.weight, medusa_heads.{h}.lm_head.weight
"""

import re
from collections.abc import Mapping
from typing import Any

from specdeploy.checkpoint.json_text import FETCH_AGAIN, ObjectReader
from specdeploy.checkpoint.safetensors_header import TensorEntry
from specdeploy.checkpoint_contract import HeadFacts, HeadLayout, TensorOrigin
from specdeploy.errors import CheckpointError

_MAX_HEADS = 10_000
_BLOCK = re.compile(
    r"(?:medusa_heads?\.)?(?P<head>\d{1,9})\.(?:medusa_layers\.)?(?P<layer>\d{1,9})\.linear\.(?P<what>weight|bias)$"
    r"|blocks\.(?P<head2>\d{1,9})\.layers\.(?P<layer2>\d{1,9})\.(?P<what2>weight|bias)$"
)
_LM_HEAD = re.compile(
    r"(?:medusa_heads?\.)?(?P<head>\d{1,9})\.(?:\d{1,9}|lm_head)\.weight$|lm_heads\.(?P<head2>\d{1,9})\.weight$"
)
SHARED_LM_HEAD = "lm_head.weight"


def canonical_medusa_name(name: str) -> str | None:
    """`{h}.{l}.linear.weight`, `{h}.{l}.linear.bias` or `{h}.lm_head.weight`, whoever spelled it.

    None for a tensor that is of no one head: `SHARED_LM_HEAD`, or no part of Medusa at all.
    """
    if match := _BLOCK.match(name):
        head, layer = int(match["head"] or match["head2"]), int(match["layer"] or match["layer2"])
        return f"{head}.{layer}.linear.{match['what'] or match['what2']}"
    if match := _LM_HEAD.match(name):
        return f"{int(match['head'] or match['head2'])}.lm_head.weight"
    return None


def is_medusa_head(config: Mapping[str, Any], tensors: Mapping[str, TensorEntry]) -> bool:
    """Whether the folder holds Medusa heads and not (also) a decoder."""
    if any(".layers.0.self_attn." in f".{name}" for name in tensors):
        return False
    declared = (
        any(key in config for key in ("medusa_num_heads", "num_medusa_heads")) or config.get("model_type") == "medusa"
    )
    return declared or (bool(tensors) and all(_BLOCK.match(name) or _LM_HEAD.match(name) for name in tensors))


def read_medusa_facts(config: ObjectReader, tensors: Mapping[str, TensorEntry]) -> HeadFacts:
    """Heads and blocks by shape, compared with what config.json says; wrong values are left in `config.problems`.

    Raises `CheckpointError` for a weight without elements.
    """
    blocks: dict[tuple[int, int], TensorEntry] = {}
    lm_heads: dict[int, TensorEntry] = {}
    unexpected: list[str] = []
    for name, entry in tensors.items():
        if match := _BLOCK.match(name):
            key = (int(match["head"] or match["head2"]), int(match["layer"] or match["layer2"]))
            if (match["what"] or match["what2"]) == "weight":
                blocks[key] = entry
        elif match := _LM_HEAD.match(name):
            lm_heads[int(match["head"] or match["head2"])] = entry
        elif name != SHARED_LM_HEAD:
            unexpected.append(name)
    for entry in (*blocks.values(), *lm_heads.values()):
        if 0 in entry.shape:
            raise CheckpointError(
                f"{entry.path}: {entry.name}: shape {list(entry.shape)} has no elements. {FETCH_AGAIN}"
            )
    num_heads = config.size("medusa_num_heads", "num_medusa_heads", "num_heads", maximum=_MAX_HEADS)
    num_layers = config.size(
        "medusa_num_layers", "num_medusa_layers", "num_hidden_layers", minimum=0, maximum=_MAX_HEADS
    )
    found_heads = len({head for head, _ in blocks} | lm_heads.keys())
    found_layers = max((layer + 1 for _, layer in blocks), default=None)
    hidden = next((entry.shape[-1] for entry in [*lm_heads.values(), *blocks.values()] if entry.shape), None)
    rows = {entry.shape[0] for entry in lm_heads.values() if len(entry.shape) == 2}
    return HeadFacts(
        layout=HeadLayout.MODELOPT if any("medusa_layers" in name for name in tensors) else HeadLayout.MEDUSA,
        generation="medusa",
        declared_generation="medusa" if num_heads is not None or config.content.get("model_type") == "medusa" else None,
        num_heads=found_heads or num_heads,
        num_layers=found_layers if found_layers is not None else num_layers,
        hidden_size=hidden or config.size("hidden_size"),
        target_hidden_size=hidden or config.size("hidden_size"),
        target_vocab_size=next(iter(rows)) if len(rows) == 1 else config.size("vocab_size"),
        has_own_lm_head=bool(lm_heads) or SHARED_LM_HEAD in tensors,
        tensors=_origins(num_heads or found_heads, num_layers, blocks, lm_heads, SHARED_LM_HEAD in tensors),
        unexpected_tensors=tuple(sorted(unexpected)),
    )


def _origins(
    num_heads: int,
    num_layers: int | None,
    blocks: Mapping[tuple[int, int], TensorEntry],
    lm_heads: Mapping[int, TensorEntry],
    has_shared_lm_head: bool,
) -> dict[str, TensorOrigin]:
    """Every block and LM head that config.json promises (at most 64 of each), and whether it is there."""
    layers = num_layers if num_layers is not None else max((layer + 1 for _, layer in blocks), default=1)
    origins: dict[str, TensorOrigin] = {}
    for head in range(min(num_heads, 64)):
        for layer in range(min(layers, 64)):
            is_there = (head, layer) in blocks
            origins[f"{head}.{layer}.linear.weight"] = TensorOrigin.IN_HEAD if is_there else TensorOrigin.MISSING
        is_there = has_shared_lm_head or head in lm_heads
        origins[f"{head}.lm_head.weight"] = TensorOrigin.IN_HEAD if is_there else TensorOrigin.BORROWED_FROM_TARGET
    return origins
