"""What to try where speculation does not surely pay, in the order of effort: measure what is unknown, a shorter draft,
n-grams, fewer bits, a lower load, another size of draft. Each with its number where there is one."""

from collections.abc import Iterator, Sequence

from specdeploy.contract import Lane, Method
from specdeploy.planner.draft_size import describe_draft_size
from specdeploy.planner.levels import static_choice, static_step
from specdeploy.planner.plan_inputs import PlanInputs, SegmentInputs
from specdeploy.planner.reasons import show
from specdeploy.planner.step_times import StepLoad, StepTimes
from specdeploy.planner_contract import AcceptanceOrigin, LevelPrediction, PlanVerdict

_FROM_TEXT = (Method.NGRAM, Method.SUFFIX)
# Published n-gram figures are of short drafts; this K is what the number is given for.
_LOOKUP_DRAFT_LEN = 3


def alternatives(
    inputs: PlanInputs,
    segment: SegmentInputs,
    levels: Sequence[LevelPrediction],
    verdict: PlanVerdict,
    planned_by_config: int,
) -> Iterator[str]:
    """Nothing for a go or for a segment that the deployment excludes."""
    if verdict is PlanVerdict.GO or segment.off_by_config is not None:
        return
    level = next(one for one in levels if one.concurrency == inputs.expected_concurrency)
    if verdict is PlanVerdict.MEASURE_FIRST:
        yield _measurement(inputs, segment, level)
    rows = inputs.num_rows(level.concurrency)
    yield from _shorter(inputs, segment, level, planned_by_config, rows)
    yield from _from_text(inputs, segment, rows)
    yield from _fewer_bits(inputs, segment, rows)
    yield from _lower_load(inputs, levels)
    yield from _other_size(inputs)


def _measurement(inputs: PlanInputs, segment: SegmentInputs, level: LevelPrediction) -> str:
    name = inputs.config.name
    if level.range_problem is not None and inputs.config.lane is Lane.TORCH:
        return f"measure step times up to there: specdeploy calibrate {name}"
    if level.range_problem is not None:
        return (
            f"measure a run there (make bench DEPLOYMENT={name}), then: specdeploy calibrate {name} --run "
            f"artifacts/{name}"
        )
    if segment.acceptance.origin is AcceptanceOrigin.UNKNOWN:
        return f"measure the acceptance on your prompts: specdeploy profile {name}, then plan again"
    return f"measure both on the machine that serves: make smoke DEPLOYMENT={name}"


def _shorter(
    inputs: PlanInputs, segment: SegmentInputs, level: LevelPrediction, planned: int, rows: int
) -> Iterator[str]:
    best = static_choice(inputs, segment, rows).best
    if best is None or not 0 < best.draft_len < planned or segment.model().problem(planned) is not None:
        return
    plain = static_step(inputs, segment, rows, 0)
    now = static_step(inputs, segment, rows, planned)
    yield (
        f"a shorter draft: K {best.draft_len} takes {best.tpot_s / plain.tpot_s:.2f} of the plain time per token at "
        f"{level.concurrency} at once, the deployment's K {planned} {now.tpot_s / plain.tpot_s:.2f}"
    )


def _from_text(inputs: PlanInputs, segment: SegmentInputs, rows: int) -> Iterator[str]:
    if inputs.lookup_times is None or inputs.config.speculation.method in _FROM_TEXT:
        return
    kv_tokens = rows * (segment.mean_input + segment.mean_output / 2)
    times = inputs.lookup_times
    draft_len = min(_LOOKUP_DRAFT_LEN, inputs.max_draft_len)
    about = _about(inputs.times, rows, 0) or _about(times, rows, draft_len)
    cost = times.time(StepLoad(rows, rows * draft_len, draft_len)).seconds(kv_tokens)
    plain = times.time(StepLoad(rows)).seconds(kv_tokens)
    yield (
        f"n-grams from the text: no draft to run or hold; a step with K {draft_len} costs "
        f"{about}{cost / plain:.2f}x, so it pays from {about}{cost / plain:.2f} tokens per step on (published: chat "
        "1.4, text that repeats 1.7 to 3.4)"
    )


def _fewer_bits(inputs: PlanInputs, segment: SegmentInputs, rows: int) -> Iterator[str]:
    if inputs.fp8_times is None:
        return
    kv_tokens = rows * (segment.mean_input + segment.mean_output / 2)
    fp8 = inputs.fp8_times.time(StepLoad(rows)).seconds(kv_tokens)
    now = inputs.times.time(StepLoad(rows)).seconds(kv_tokens)
    if fp8 < now:
        about = _about(inputs.times, rows, 0)
        yield f"fp8 weights instead: a plain step takes {about}{fp8 / now:.2f} of today's, whatever the acceptance"


def _about(times: StepTimes, rows: int, draft_len: int) -> str:
    """The mark of what is not calibrated."""
    return "" if times.range_problem(rows, draft_len) is None else "~"


def _lower_load(inputs: PlanInputs, levels: Sequence[LevelPrediction]) -> Iterator[str]:
    """The highest level below the expected one whose whole interval gains."""
    gaining = [
        level
        for level in levels
        if level.concurrency < inputs.expected_concurrency
        and level.is_promised
        and level.e2e_ratio is not None
        and level.e2e_ratio.high < 1
    ]
    if gaining and gaining[-1].e2e_ratio is not None:
        level = gaining[-1]
        yield (
            f"fewer requests on each server: at {level.concurrency} at once e2e is {show(gaining[-1].e2e_ratio)} of "
            f"plain (K {level.best_static_draft_len})"
        )


def _other_size(inputs: PlanInputs) -> Iterator[str]:
    target = inputs.target.num_active_parameters or inputs.target.num_parameters
    if inputs.config.speculation.method is not Method.DRAFT_MODEL or not target or inputs.draft is None:
        return
    if (advice := describe_draft_size(target, inputs.draft.num_parameters)) is not None:
        yield advice
