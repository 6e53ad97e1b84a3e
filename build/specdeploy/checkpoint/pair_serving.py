"""Findings about running a pair: context, parallelism, quantisation, cost, and which lane can serve it at all."""

from collections.abc import Iterator

from specdeploy.checkpoint.lane_fit import PairShape, fit_lanes, is_unknown
from specdeploy.checkpoint.pair_findings import finding
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, LaneFit, PairFinding, Severity
from specdeploy.contract import Lane, Method

_BILLION = 1e9


def find_short_contexts(
    target: CheckpointInfo, draft: CheckpointInfo | None, max_seq_len: int | None, lane: Lane | None
) -> Iterator[PairFinding]:
    """Trained positions against the longest request. The torch lane refuses what other lanes run into."""
    if max_seq_len is None:
        # Without a limit of its own the deployment would serve what the target was trained for.
        if (
            draft is None
            or target.max_positions is None
            or (draft.max_positions or target.max_positions) >= (target.max_positions)
        ):
            return
        detail = f"draft was trained for {draft.max_positions} positions, the target for {target.max_positions}"
        remedy = f"Serve with max_seq_len {draft.max_positions}, or switch speculation off for longer requests"
        yield finding("context-short", Severity.WARNING, f"draft {draft.reference}", detail, remedy)
        return
    severity = Severity.FAILURE if lane is Lane.TORCH else Severity.WARNING
    for role, info in (("target", target), ("draft", draft)):
        if info is not None and info.max_positions is not None and info.max_positions < max_seq_len:
            detail = f"serving.max_seq_len {max_seq_len} exceeds the {info.max_positions} positions it was trained for"
            remedy = f"Write serving.max_seq_len {info.max_positions} or less"
            if role == "draft" and lane is not Lane.TORCH:
                remedy += ", or switch speculation off for longer requests"
            yield finding("context-short", severity, f"{role} {info.reference}", detail, remedy)


def find_parallelism_problems(
    target: CheckpointInfo, draft: CheckpointInfo | None, tensor_parallel: int
) -> Iterator[PairFinding]:
    """Attention heads and vocabulary rows over `tensor_parallel` GPUs; KV heads may also be repeated."""
    for role, info in (("target", target), ("draft", draft)):
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
    remedy = "Choose a tensor parallelism that divides them; a small draft can run with less than its target"
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
    """Parameters that one step reads: the active ones, without an embedding table of which it takes single rows.

    A tied table is read whole, as lm_head. None = the files do not say.
    """
    sizes = info.vocabulary
    if info.num_active_parameters is None:
        return None
    if sizes.lm_head_rows is None or sizes.embedding_rows is None or info.hidden_size is None:
        return info.num_active_parameters
    return max(0, info.num_active_parameters - sizes.embedding_rows * info.hidden_size)


def draft_cost_ratio(target: CheckpointInfo, draft: CheckpointInfo | None) -> float | None:
    """Parameters one draft step reads / active parameters one target step reads; None = the files do not say.

    A head that borrows the target's lm_head reads it at every draft step too.
    """
    target_parameters = step_parameters(target)
    if draft is None or not target_parameters or (parameters := step_parameters(draft)) is None:
        return None
    head = draft.head
    if head is not None and not head.has_own_lm_head and target.hidden_size is not None:
        sizes = target.vocabulary
        rows = sizes.lm_head_rows or sizes.embedding_rows or sizes.config_vocab_size or 0
        parameters += rows * target.hidden_size
    return parameters / target_parameters


def find_cost(
    target: CheckpointInfo, draft: CheckpointInfo, ratio: float | None, max_ratio: float
) -> Iterator[PairFinding]:
    """A draft above `max_ratio` of the target's active parameters: no-go for a mixture of experts, a risk else."""
    if ratio is None or ratio <= max_ratio:
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
