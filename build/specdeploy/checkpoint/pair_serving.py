"""Findings about running a pair: context, parallelism, quantisation, cost, and which lane can serve it at all."""

import math
from collections.abc import Iterator

from specdeploy.checkpoint.lane_fit import PairShape, fit_lanes, is_unknown
from specdeploy.checkpoint.pair_embeddings import borrows_embedding
from specdeploy.checkpoint.pair_findings import finding
from specdeploy.checkpoint_contract import (
    CheckpointInfo,
    CheckpointKind,
    LaneFit,
    PairFinding,
    RopeScaling,
    Severity,
)
from specdeploy.contract import Lane, Method

_BILLION = 1e9
# Rotary embeddings that carry a model beyond its first training length, by a factor stated beside that length.
_STRETCHING_ROPE_TYPES = frozenset({"yarn", "linear", "llama3"})


def context_limit(max_positions: int | None, rope: RopeScaling | None) -> int | None:
    """Positions a checkpoint can use: what it states, or more where its rotary embedding is stretched further."""
    if rope is None or rope.type not in _STRETCHING_ROPE_TYPES:
        return max_positions
    if rope.factor is None or rope.original_max_positions is None or not math.isfinite(rope.factor):
        return max_positions
    return max(max_positions or 0, int(rope.original_max_positions * rope.factor)) or None


def find_short_contexts(
    target: CheckpointInfo, draft: CheckpointInfo | None, max_seq_len: int | None, lane: Lane | None
) -> Iterator[PairFinding]:
    """Usable positions against the longest request. The torch lane refuses what other lanes run into, and stops
    drafting where the draft ends."""
    if max_seq_len is None:
        # Without a limit of its own the deployment would serve what the target was trained for.
        ours = context_limit(target.max_positions, target.rope)
        theirs = None if draft is None else context_limit(draft.max_positions, draft.rope)
        if draft is None or ours is None or theirs is None or theirs >= ours:
            return
        detail = f"draft was trained for {theirs} positions, the target for {ours}"
        remedy = f"Serve with max_seq_len {theirs}, or switch speculation off for longer requests"
        yield finding("context-short", Severity.WARNING, f"draft {draft.reference}", detail, remedy)
        return
    for role, info in (("target", target), ("draft", draft)):
        is_torch_target = role == "target" and lane is Lane.TORCH
        limit = None if info is None else context_limit(info.max_positions, info.rope)
        if info is not None and limit is not None and limit < max_seq_len:
            detail = f"serving.max_seq_len {max_seq_len} exceeds the {limit} positions it was trained for"
            remedy = f"Write serving.max_seq_len {limit} or less"
            if role == "draft" and lane is Lane.TORCH:
                detail += "; longer rows are decoded undrafted"
            elif role == "draft":
                remedy += ", or switch speculation off for longer requests"
            severity = Severity.FAILURE if is_torch_target else Severity.WARNING
            yield finding("context-short", severity, f"{role} {info.reference}", detail, remedy)


def find_parallelism_problems(
    target: CheckpointInfo, draft: CheckpointInfo | None, target_gpus: int, draft_gpus: int | None = None
) -> Iterator[PairFinding]:
    """Attention heads and vocabulary rows over the GPUs of each (None = as many); KV heads may also be repeated."""
    for role, info, tensor_parallel in (("target", target, target_gpus), ("draft", draft, draft_gpus or target_gpus)):
        if info is None or tensor_parallel == 1:
            continue
        subject = f"{role} {info.reference}"
        heads, kv_heads = info.num_heads, info.num_kv_heads
        if heads is not None and heads % tensor_parallel:
            yield _not_divisible(subject, f"{heads} attention heads", tensor_parallel)
        if kv_heads is not None and kv_heads % tensor_parallel and tensor_parallel % kv_heads:
            yield _not_divisible(subject, f"{kv_heads} KV heads", tensor_parallel)
        sizes = info.vocabulary
        rows = sizes.lm_head_rows or sizes.embedding_rows or sizes.config_vocab_size
        if rows is not None and rows % tensor_parallel:
            detail = f"{rows} vocabulary rows do not divide by {tensor_parallel}"
            remedy = "Choose a number of GPUs that divides them, or check that the engine masks padded ids"
            yield finding("tensor-parallel-padding", Severity.WARNING, subject, detail, remedy)


def _not_divisible(subject: str, what: str, tensor_parallel: int) -> PairFinding:
    detail = f"{what} do not divide by {tensor_parallel} GPUs"
    remedy = "Choose a tensor parallelism that divides them; a small draft can run with less than its target "
    remedy += "(tensorrt_llm.draft_tensor_parallel)"
    return finding("tensor-parallel", Severity.FAILURE, subject, detail, remedy)


def find_quantization(target: CheckpointInfo, draft: CheckpointInfo, lane: Lane | None) -> Iterator[PairFinding]:
    """The draft's precision is its own; where the target's differs, releases disagree on what the draft gets."""
    detail = (
        f"draft: {describe_precision(draft)}, KV {draft.kv_dtype or 'not stated'}; "
        f"target: {describe_precision(target)}, KV {target.kv_dtype or 'not stated'}"
    )
    inherits = target.quantization is not None and draft.quantization is None and lane is not Lane.TORCH
    severity = Severity.WARNING if inherits else Severity.INFO
    remedy = "Nothing to do: the draft's precision is that of its own checkpoint"
    if inherits:
        remedy = "Write the draft's quantisation out in the engine's config (none), and check acceptance after launch"
    yield finding("draft-quantization", severity, f"draft {draft.reference}", detail, remedy)


def describe_precision(info: CheckpointInfo) -> str:
    """`bfloat16, not quantised` or `fp8 8 bit (quantization_config), else bfloat16`."""
    dtype = info.dtype or ", ".join(info.stored_dtypes) or "dtype not stated"
    if info.quantization is None:
        return f"{dtype}, not quantised"
    bits = f" {info.quantization.bits} bit" if info.quantization.bits else ""
    return f"{info.quantization.method}{bits} ({info.quantization.source}), else {dtype}"


def step_parameters(info: CheckpointInfo) -> int | None:
    """Parameters of its own that one step reads: the active ones, without a table of which it takes single rows.

    The matrix that gives the logits is read whole and counts once, whether it is an lm_head or a tied embedding. None =
    the files do not say.
    """
    active, hidden = info.num_active_parameters, info.hidden_size
    if active is None or hidden is None:
        return active
    is_tied, is_head = bool(info.tie_word_embeddings), info.head is not None
    embedding_rows, lm_head_rows = info.vocabulary.embedding_rows or 0, info.vocabulary.lm_head_rows or 0
    if info.parameters_from == "config" and not is_head:
        # The count by config.json holds two tables unless they are tied, whatever is stored.
        return active if is_tied else max(0, active - (info.vocabulary.config_vocab_size or 0) * hidden)
    # A head's embedding never gives its logits: it has an lm_head of its own or borrows the target's.
    if embedding_rows and (is_head or (lm_head_rows and not is_tied)):
        active -= embedding_rows * hidden
    # With tied embeddings a stored lm_head is not among the active parameters.
    if lm_head_rows and is_tied and (is_head or not embedding_rows):
        active += lm_head_rows * hidden
    return max(0, active)


def draft_cost_ratio(
    target: CheckpointInfo, draft: CheckpointInfo | None, *, num_kept: int | None = None
) -> float | None:
    """Parameters one draft step reads / active parameters one target step reads; None = the files do not say.

    A draft that borrows the target's lm_head reads it at every draft step too: `num_kept` rows of it where its own
    vocabulary is reduced.
    """
    target_parameters = step_parameters(target)
    if draft is None or not target_parameters or (parameters := step_parameters(draft)) is None:
        return None
    if _borrows_lm_head(draft) and target.hidden_size is not None:
        sizes = target.vocabulary
        rows = num_kept or sizes.lm_head_rows or sizes.embedding_rows or sizes.config_vocab_size or 0
        parameters += rows * target.hidden_size
    return parameters / target_parameters


def _borrows_lm_head(draft: CheckpointInfo) -> bool:
    if draft.head is not None:
        return not draft.head.has_own_lm_head
    return borrows_embedding(draft) and bool(draft.tie_word_embeddings) and draft.vocabulary.lm_head_rows is None


def find_cost(
    target: CheckpointInfo, draft: CheckpointInfo, ratio: float | None, max_ratio: float
) -> Iterator[PairFinding]:
    """A draft above `max_ratio` of the target's active parameters: no-go for a mixture of experts, a risk else.

    Without a ratio nobody knows, which is a finding too.
    """
    if ratio is None:
        unsaid = [role for role, info in (("target", target), ("draft", draft)) if not step_parameters(info)]
        detail = f"the cost of a draft step could not be judged: active parameters of {' and '.join(unsaid)} unknown"
        remedy = "Compare the active parameters on the model cards, and measure the speed-up after launch"
        yield finding("draft-cost-unknown", Severity.WARNING, f"draft {draft.reference}", detail, remedy)
        return
    if ratio <= max_ratio:
        return
    ours = step_parameters(target) or 0
    theirs = round(ratio * ours)
    total = f" of {_billions(target.num_parameters)}" if target.moe is not None and target.num_parameters else ""
    is_moe = target.moe is not None
    detail = (
        f"{'no-go: ' if is_moe else ''}the {_billions(theirs)} parameters that a draft step reads are {ratio:.2f} of "
        f"the {_billions(ours)}{total} that the target reads per token; the limit is {max_ratio:g}"
    )
    remedy = "Use a draft below the limit, an EAGLE-3 head, or n-gram drafts"
    severity = Severity.FAILURE if is_moe else Severity.WARNING
    yield finding("draft-too-costly", severity, f"draft {draft.reference}", detail, remedy)


def _billions(count: int | None) -> str:
    count = count or 0
    return f"{count / _BILLION:.3g}B" if count >= _BILLION / 10 else f"{count / 1e6:.3g}M"


def find_facts_missing(target: CheckpointInfo, draft: CheckpointInfo | None) -> Iterator[PairFinding]:
    """What no known key states, so that a rule could not be applied."""
    for role, info in (("target", target), ("draft", draft)):
        if info is not None and info.not_found:
            detail = f"not found: {'; '.join(info.not_found)}"
            remedy = "Compare with the model card where it matters"
            yield finding("facts-missing", Severity.INFO, f"{role} {info.reference}", detail, remedy)


def judge_lanes(
    target: CheckpointInfo, draft: CheckpointInfo | None, method: Method, lane: Lane | None, *, is_trimmed: bool
) -> tuple[tuple[LaneFit, ...], tuple[PairFinding, ...]]:
    """Every lane's answer, and a finding where the lane in question (or, without one, every lane) says no."""
    trimmed_model = is_trimmed and draft is not None and draft.kind is CheckpointKind.CAUSAL_LM
    fits = fit_lanes(PairShape(target, draft, has_trimmed_draft_model=trimmed_model), method)
    asked = [fit for fit in fits if lane is None or fit.lane is lane]
    if any(fit.can_serve for fit in asked):
        return fits, ()
    unknown = any(is_unknown(fit) for fit in asked)
    detail = "; ".join(f"{fit.lane}: {fit.reason}" for fit in asked)
    usable = [f"{fit.lane} ({fit.versions})" for fit in fits if fit.can_serve]
    remedy = f"Use {' or '.join(usable)}" if usable else "Choose another method or another draft"
    code, severity = ("lane-unknown", Severity.WARNING) if unknown else ("lane-cannot-serve", Severity.FAILURE)
    return fits, (finding(code, severity, f"method {method}", detail, remedy),)
