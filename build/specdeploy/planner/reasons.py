"""Why a segment is a go, a no-go or to be measured first: the rule that decides and its numbers, in sentences.

The deciding number is the ratio of e2e medians at the expected concurrency with its interval (acceptance from its lower
to its upper bound, widened by the model's own error): go where the whole interval is below 1, no-go where all of it is
at or above 1. What no ratio can say comes before: memory that does not hold the pair, a draft too heavy for a mixture
of experts, a load outside the calibrated range, an acceptance that nobody measured.
"""

from dataclasses import dataclass

from specdeploy.planner.crossover import describe_crossover
from specdeploy.planner.levels import MIN_GAIN, static_step
from specdeploy.planner.moe import experts_touched, random_tokens
from specdeploy.planner.plan_inputs import PlanInputs, SegmentInputs
from specdeploy.planner.traffic_kind import MIN_OUTPUT_TOKENS, TimeAlone
from specdeploy.planner_contract import (
    AcceptanceOrigin,
    Estimate,
    LevelPrediction,
    PlanMemory,
    PlanVerdict,
    PredictedCrossover,
    TrafficKind,
)
from specdeploy.run_contract import MetricName
from specdeploy.units import format_bytes

# Of the TTFT medians, as configs/gates/default.yaml has it: a release would fail above it.
MAX_TTFT_RATIO = 1.25
# A delay below a tenth of a second is not noticed (R. B. Miller 1968; J. Nielsen 1993).
NOTICED_TTFT_S = 0.1


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reasons, the deciding one first. `blocks`: no load is drafted for, because of `reasons[0]`."""

    verdict: PlanVerdict
    reasons: tuple[str, ...]
    blocks: bool = False


def find_block(inputs: PlanInputs, segment: SegmentInputs) -> Judgement | None:
    """What forbids drafting at any load, whatever the ratios say."""
    if segment.off_by_config is not None:
        return Judgement(PlanVerdict.NO_GO, (f"off by the deployment: {segment.off_by_config}",), blocks=True)
    if (memory := inputs.memory) is not None and not inputs.fits:
        lines = sorted(memory.budget.lines, key=lambda line: -line.num_bytes)
        largest = memory.misfit or (lines[0].subject if lines else "the caches")
        reason = (
            f"does not fit: {largest} on a device of {format_bytes(memory.budget.num_bytes)}; "
            f"{memory.num_requests_without_draft} requests of {memory.request_tokens} tokens fit without a draft"
        )
        return Judgement(PlanVerdict.NO_GO, (reason,), blocks=True)
    ratio = inputs.draft_cost_ratio
    if inputs.target.moe is not None and ratio is not None and ratio > inputs.max_draft_cost_ratio:
        reason = (
            f"a draft step reads {ratio:.2f} of the parameters that a token of this mixture of experts uses, more than "
            f"{inputs.max_draft_cost_ratio:g} (--max-draft-cost-ratio): such pairs lose 25 to 45 % in practice"
        )
        return Judgement(PlanVerdict.NO_GO, (reason,), blocks=True)
    return None


def judge(
    inputs: PlanInputs,
    segment: SegmentInputs,
    level: LevelPrediction,
    alone: TimeAlone,
    crossover: PredictedCrossover | None = None,
    planned_by_config: int = 0,
) -> Judgement:
    """The verdict at `level`, the expected concurrency. `planned_by_config` is the K that the deployment's own ranges
    give there: drafting beyond the crossover without a switch-off is a no-go."""
    if (block := find_block(inputs, segment)) is not None:
        return block
    ratio = level.e2e_ratio
    if ratio is None or not level.is_promised:
        return Judgement(PlanVerdict.MEASURE_FIRST, (_no_verdict(inputs, level), *_amdahl(alone)))
    verdict, reasons = _by_ratio(inputs, segment, level, ratio, alone)
    crossing = None if crossover is None or crossover.is_indicative else crossover.concurrency
    if (
        crossover is not None
        and crossing is not None
        and level.concurrency > crossing
        and planned_by_config > 0
        and verdict is PlanVerdict.MEASURE_FIRST
    ):
        verdict = PlanVerdict.NO_GO
        reasons.insert(
            0,
            f"{level.concurrency} at once lies beyond the crossover {describe_crossover(crossover)} and the deployment "
            f"drafts there (K {planned_by_config}): write the plan's draft_len_by_in_flight",
        )
    return Judgement(verdict, tuple(reasons))


def _no_verdict(inputs: PlanInputs, level: LevelPrediction) -> str:
    """What is missing, and what to expect of the measurement where that can be said."""
    missing = f"no verdict: {level.range_problem}"
    if level.e2e_ratio is None or inputs.borrowed is None:
        return f"{missing}; no calibration can be borrowed for it either"
    return (
        f"{missing}; with {inputs.borrowed.source} e2e would be about {show(level.e2e_ratio)} of plain with "
        f"K {level.best_static_draft_len} at {level.concurrency} at once (indicative)"
    )


def _by_ratio(
    inputs: PlanInputs, segment: SegmentInputs, level: LevelPrediction, ratio: Estimate, alone: TimeAlone
) -> tuple[PlanVerdict, list[str]]:
    what = (
        f"e2e with K {level.best_static_draft_len} at {level.concurrency} at once is {show(ratio)} of plain: "
        f"{step_in_words(inputs, segment, level)}"
    )
    reasons = [what]
    if (experts := experts_in_words(inputs, level)) is not None:
        reasons.append(experts)
    if ratio.low >= 1:
        return PlanVerdict.NO_GO, [off_cause(level, alone), *reasons]
    verdict = PlanVerdict.GO if ratio.high < 1 else PlanVerdict.MEASURE_FIRST
    if verdict is PlanVerdict.MEASURE_FIRST:
        reasons[0] = f"{what}; the interval contains 1"
        reasons += _amdahl(alone)
    if segment.acceptance.origin is AcceptanceOrigin.UNKNOWN:
        verdict = PlanVerdict.MEASURE_FIRST
        reasons.insert(0, f"nobody measured the acceptance of this pair here; taken: {segment.acceptance.source}")
    elif (note := segment.model().note(level.best_static_draft_len)) is not None:
        if verdict is PlanVerdict.GO:
            verdict = PlanVerdict.MEASURE_FIRST
            reasons.insert(0, note)
        else:
            reasons.append(note)
    if (text := ttft_in_words(level)) is not None:
        is_noticed = (level.on_ttft_s or 0.0) - (level.off_ttft_s or 0.0) > NOTICED_TTFT_S
        is_sure = level.ttft_ratio is not None and level.ttft_ratio.low > MAX_TTFT_RATIO
        if is_sure and is_noticed and not _has_ttft_objective(inputs, segment) and verdict is PlanVerdict.GO:
            verdict = PlanVerdict.MEASURE_FIRST
            reasons.insert(0, text)
        else:
            reasons.append(text)
    return verdict, reasons


def ttft_in_words(level: LevelPrediction) -> str | None:
    """What drafting does to the first token, where a release would be asked about it."""
    ratio, off_s, on_s = level.ttft_ratio, level.off_ttft_s, level.on_ttft_s
    if ratio is None or off_s is None or on_s is None or ratio.value <= MAX_TTFT_RATIO:
        return None
    return (
        f"TTFT grows from {off_s * 1000:.0f} to {on_s * 1000:.0f} ms, {show(ratio)} of plain (longer steps, and a "
        f"draft with a cache reads the prompt too); the default gate refuses above {MAX_TTFT_RATIO:g}"
    )


def _has_ttft_objective(inputs: PlanInputs, segment: SegmentInputs) -> bool:
    """Then that decides, not the ratio."""
    return any(slo.segment == segment.segment and slo.metric is MetricName.TTFT for slo in inputs.config.slos)


def off_cause(level: LevelPrediction, alone: TimeAlone) -> str:
    """Why nothing is drafted at a level whose ratio is not below 1."""
    if alone.kind is TrafficKind.SHORT_OUTPUT:
        return f"short outputs (below {MIN_OUTPUT_TOKENS:g} tokens): {alone.describe()}"
    if alone.kind is TrafficKind.PREFILL_BOUND:
        return f"prefill-bound: {alone.describe()}"
    if level.e2e_ratio is None or not level.is_promised:
        return level.range_problem or "not predicted"
    word = "loses" if level.e2e_ratio.value >= 1 else f"gains less than {MIN_GAIN:.0%}"
    ratio = f"e2e {level.e2e_ratio.value:.2f} of plain with K {level.best_static_draft_len}"
    return f"{word} at {level.concurrency} at once: {ratio}"


def _amdahl(alone: TimeAlone) -> list[str]:
    if alone.kind is TrafficKind.DECODE_BOUND:
        return []
    return [f"{alone.kind.value}: {alone.describe()}"]


def step_in_words(inputs: PlanInputs, segment: SegmentInputs, level: LevelPrediction) -> str:
    """`a step costs 1.42x and gives 2.31 tokens`: what the ratio comes from."""
    rows = inputs.num_rows(level.concurrency)
    on = static_step(inputs, segment, rows, level.best_static_draft_len)
    off = static_step(inputs, segment, rows, 0)
    return f"a step costs {on.seconds / off.seconds:.2f}x and gives {on.tokens:.2f} tokens"


def show(ratio: Estimate) -> str:
    """`0.62 [0.53, 0.73]`."""
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def context_reasons(inputs: PlanInputs, level: LevelPrediction) -> list[str]:
    """What explains the step's cost: the roofline, the rows, the memory."""
    reasons = [roofline_in_words(inputs, level)]
    rows = inputs.num_rows(level.concurrency)
    if level.is_queued:
        reasons.append(f"{level.concurrency} at once queue: {rows} are decoded together")
    if (memory := inputs.memory) is not None and inputs.fits and memory.num_requests < inputs.config.serving.max_rows:
        reasons += [
            f"memory holds {memory.num_requests} of serving.max_rows {inputs.config.serving.max_rows} requests of "
            f"{memory.request_tokens} tokens" + (f" ({costs})" if (costs := memory_costs(memory)) else "")
        ]
    return reasons


def memory_costs(memory: PlanMemory) -> str:
    """`2050 without speculation: the draft costs 136, the plain instance beside 1108`; empty where nothing is lost."""
    draft, plain = memory.draft_costs_requests, memory.plain_costs_requests
    parts = [f"the draft costs {draft}"] if draft else []
    parts += [f"the plain instance beside {plain}"] if plain else []
    return f"{memory.num_requests_without_draft} without speculation: {', '.join(parts)}" if parts else ""


def roofline_in_words(inputs: PlanInputs, level: LevelPrediction) -> str:
    """Verified tokens of a step against the ridge."""
    ridge = inputs.times.ridge_tokens
    side = "beyond" if level.is_compute_bound else "below"
    meaning = "verifying costs arithmetic" if level.is_compute_bound else "verifying waits for memory, nearly free"
    return f"a step verifies {level.verified_tokens} tokens, {side} the roofline's ridge of {ridge:.0f}: {meaning}"


def experts_in_words(inputs: PlanInputs, level: LevelPrediction) -> str | None:
    """Experts that a step reads in each layer, without and with drafts (see `planner.moe`). None for a dense target."""
    moe = inputs.target.moe
    if moe is None:
        return None
    rows = inputs.num_rows(level.concurrency)
    plain, verified = (
        experts_touched(moe.num_experts, moe.num_experts_per_token, random_tokens(rows, tokens))
        for tokens in (1, level.verified_tokens / rows)
    )
    return (
        f"verifying wakes more experts, each is read: {rows} plain tokens touch {plain:.0f} of {moe.num_experts} in "
        f"a layer, {level.verified_tokens} verified ones {verified:.0f}"
    )
