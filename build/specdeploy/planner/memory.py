"""How many tokens the key/value caches of a deployment may hold: bytes of one GPU, counted line by line.

    memory of the GPU
      - weights of every engine on it
      - activations of every engine on it
      - runtime reserve of every engine on it
      - what `kv_cache_fraction` keeps free
      = key/value caches, shared out in tokens

Every GPU is counted, and the one that allows the fewest tokens decides: a draft on one rank of its target makes that
rank the full one. Nothing here was measured on a GPU. Weights and caches follow from shapes; activations and the
reserve are estimates whose assumption stands in their line.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdeploy.contract import EngineModel, MemoryBudget, MemoryLine
from specdeploy.planner.hardware import Hardware
from specdeploy.planner.model_memory import (
    LoadedModel,
    StepSizes,
    activations_line,
    kv_bytes_per_token,
    weights_line,
)
from specdeploy.units import BYTES_PER_GIB, format_bytes

# Paged caches are handed out in blocks of this many tokens (`trtllm-build --tokens_per_block`, default 32).
TOKENS_PER_BLOCK = 32
# Assumption, per engine and GPU: CUDA context, loaded kernels, NCCL buffers, workspaces and decoder state.
RUNTIME_RESERVE_BYTES = 2 * BYTES_PER_GIB


@dataclass(frozen=True, slots=True)
class _Share:
    """What one engine needs on one GPU."""

    model: EngineModel
    lines: tuple[MemoryLine, ...]
    kv_bytes_per_token: int

    @property
    def fixed_bytes(self) -> int:
        return sum(line.num_bytes for line in self.lines)


@dataclass(frozen=True, slots=True)
class _GpuBudget:
    """One GPU counted: room is what its engines leave, kv the part of it that caches may use."""

    gpu_id: int
    shares: tuple[_Share, ...]
    room_bytes: int
    kv_bytes: int
    kv_tokens: Mapping[EngineModel, int]

    @property
    def fewest_tokens(self) -> int:
        return min(self.kv_tokens.values(), default=0)


def budget_memory(
    hardware: Hardware,
    models: Sequence[LoadedModel],
    *,
    kv_cache_fraction: float,
    max_num_tokens: int,
    max_seq_len: int,
    max_rows: int,
    is_draft_pair: bool,
    max_draft_tokens: int = 0,
) -> MemoryBudget:
    """Tokens for every engine's key/value cache, from the GPU that allows the fewest.

    `is_draft_pair`: target and draft hold the same tokens, so both get the same number; otherwise several engines share
    the bytes equally. `max_draft_tokens` are the tokens one step may verify besides the target's own (nodes of a tree):
    they add rows of logits. Token counts are whole blocks of 32. Lines plus `kv_bytes` give the GPU's memory exactly;
    `kv_bytes` <= 0 means that it does not fit, which callers refuse with the lines. Raises `CheckpointError` when the
    files do not say what a formula needs.
    """
    step = StepSizes(max_num_tokens, max_rows * (1 + max_draft_tokens))
    ranks = budget_ranks(hardware, models, step, kv_cache_fraction, max_seq_len, is_draft_pair=is_draft_pair)
    return fullest_rank(ranks, max_seq_len, is_draft_pair=is_draft_pair)


def budget_ranks(
    hardware: Hardware,
    models: Sequence[LoadedModel],
    step: StepSizes,
    kv_cache_fraction: float,
    max_seq_len: int,
    *,
    is_draft_pair: bool,
) -> tuple[MemoryBudget, ...]:
    """Every GPU by itself, in order, with the tokens that it alone would allow the engines on it."""
    alone = [model for model in models if model.model is EngineModel.TARGET] or list(models)
    tokens_alone = {
        gpu_id: _count_gpu(hardware, gpu_id, alone, step, kv_cache_fraction, is_draft_pair=False).fewest_tokens
        for gpu_id in _gpu_ids(alone)
    }
    return tuple(
        _rank_budget(
            hardware,
            _count_gpu(hardware, gpu_id, models, step, kv_cache_fraction, is_draft_pair=is_draft_pair),
            kv_cache_fraction,
            max_seq_len,
            tokens_alone.get(gpu_id, 0),
        )
        for gpu_id in _gpu_ids(models)
    )


def fullest_rank(ranks: Sequence[MemoryBudget], max_seq_len: int, *, is_draft_pair: bool) -> MemoryBudget:
    """The rank that allows the fewest tokens, with what the engines may cache on all of theirs."""
    fullest = min(ranks, key=lambda rank: (min(rank.kv_tokens.values()), rank.kv_bytes))
    kv_tokens: dict[EngineModel, int] = {}
    per_token: dict[EngineModel, int] = {}
    for rank in ranks:
        per_token |= rank.kv_bytes_per_token
        for model, tokens in rank.kv_tokens.items():
            kv_tokens[model] = min(tokens, kv_tokens.get(model, tokens))
    if is_draft_pair:
        kv_tokens = dict.fromkeys(kv_tokens, min(kv_tokens.values()))
    with_target = [rank for rank in ranks if EngineModel.TARGET in rank.kv_tokens] or list(ranks)
    return fullest.model_copy(
        update={
            "kv_bytes_per_token": per_token,
            "kv_tokens": kv_tokens,
            "max_sequences": min(kv_tokens.values()) // max_seq_len,
            "max_sequences_without_draft": min(rank.max_sequences_without_draft for rank in with_target),
        }
    )


def describe_budget(budget: MemoryBudget) -> list[str]:
    """The budget as aligned lines of text: what is taken, what is left, and how many tokens that makes."""
    rows = [(f"memory of {budget.gpu}", budget.num_bytes, "")]
    rows += [(f"- {line.subject}", line.num_bytes, line.formula) for line in budget.lines]
    rows.append(("= key/value caches", budget.kv_bytes, "" if budget.kv_bytes > 0 else "DOES NOT FIT"))
    width = max(len(subject) for subject, _, _ in rows)
    lines = [
        f"{subject:<{width}}  {_signed(num_bytes):>10}  {formula}".rstrip() for subject, num_bytes, formula in rows
    ]
    lines += [
        f"{model}: {tokens} tokens x {budget.kv_bytes_per_token[model]} B = "
        f"{format_bytes(tokens * budget.kv_bytes_per_token[model])}"
        for model, tokens in budget.kv_tokens.items()
    ]
    lines.append(
        f"full-length requests at once: {budget.max_sequences} "
        f"({budget.max_sequences_without_draft} with the target alone)"
    )
    return lines


def largest_item(lines: Sequence[MemoryLine]) -> str:
    """The line that takes most, for people."""
    line = max((line for line in lines if line.subject not in ("kept free", "left")), key=lambda line: line.num_bytes)
    return f"{line.subject}, {format_bytes(line.num_bytes)}"


# --- one GPU --------------------------------------------------------------------------------------------------------


def _gpu_ids(models: Sequence[LoadedModel]) -> list[int]:
    return sorted({gpu_id for model in models for gpu_id in model.ranks})


def _rank_budget(
    hardware: Hardware, counted: _GpuBudget, kv_cache_fraction: float, max_seq_len: int, tokens_alone: int
) -> MemoryBudget:
    kept_free = MemoryLine(
        subject="kept free",
        formula=f"(1 - kv_cache_fraction {kv_cache_fraction:g}) x {counted.room_bytes} left",
        num_bytes=counted.room_bytes - counted.kv_bytes,
    )
    return MemoryBudget(
        gpu=f"{hardware.name} (GPU {counted.gpu_id})",
        num_bytes=hardware.memory_bytes,
        lines=(*(line for share in counted.shares for line in share.lines), kept_free),
        kv_bytes=counted.kv_bytes,
        kv_bytes_per_token={share.model: share.kv_bytes_per_token for share in counted.shares},
        kv_tokens=dict(counted.kv_tokens),
        max_sequences=counted.fewest_tokens // max_seq_len,
        max_sequences_without_draft=tokens_alone // max_seq_len,
    )


def _count_gpu(
    hardware: Hardware,
    gpu_id: int,
    models: Sequence[LoadedModel],
    step: StepSizes,
    kv_cache_fraction: float,
    *,
    is_draft_pair: bool,
) -> _GpuBudget:
    shares = tuple(_share(model, gpu_id, step) for model in models if gpu_id in model.ranks)
    room = hardware.memory_bytes - sum(share.fixed_bytes for share in shares)
    kv_bytes = math.floor(room * kv_cache_fraction) if room > 0 else room
    if is_draft_pair:
        per_token = sum(share.kv_bytes_per_token for share in shares)
        tokens = {share.model: _whole_blocks(kv_bytes, per_token) for share in shares}
    else:
        tokens = {share.model: _whole_blocks(kv_bytes // len(shares), share.kv_bytes_per_token) for share in shares}
    return _GpuBudget(gpu_id, shares, room, kv_bytes, tokens)


def _share(model: LoadedModel, gpu_id: int, step: StepSizes) -> _Share:
    lines = (
        weights_line(model, gpu_id),
        activations_line(model, step),
        MemoryLine(
            subject=f"runtime of {model.model}",
            formula="assumed: CUDA context, kernels, NCCL, workspaces, decoder state",
            num_bytes=RUNTIME_RESERVE_BYTES,
        ),
        *model.reserves,
    )
    return _Share(model.model, lines, kv_bytes_per_token(model))


def _whole_blocks(num_bytes: int, bytes_per_token: int) -> int:
    """Tokens that fit, rounded down to whole blocks of the paged cache."""
    if num_bytes <= 0 or bytes_per_token <= 0:
        return 0
    return num_bytes // bytes_per_token // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK


def _signed(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes >= 0 else f"-{format_bytes(-num_bytes)}"
