"""One segment at one concurrency: the K that decodes fastest there, and what it does to latencies in a closed loop.

K is chosen in closed form: of all K the one with the smallest step(rows, K) / tokens(K), time per token of a row that
decodes all the time. Latencies come from a simulation of clients that wait for their answer, once without speculation
and three times with that K: at the expected acceptance and at its two bounds. All four see the same requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specdeploy.contract import DraftLenRange, SegmentPlan
from specdeploy.planner.acceptance import AcceptanceModel
from specdeploy.planner.mean_step import mean_step_time
from specdeploy.planner.plan_inputs import PlanInputs, SegmentInputs
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.settings import SimulationSettings
from specdeploy.planner.simulator.simulation import simulate
from specdeploy.planner.step_times import StepLoad
from specdeploy.planner_contract import Estimate, LevelPrediction

SWEEP = (1, 2, 4, 8, 16, 32, 64)  # always predicted: gains are not monotonic, so the middle counts
_SAME_TPOT = 0.02  # less than any calibration can tell apart
# A smaller gain of e2e is not drafted for: it would come and go between levels with the luck of a simulation.
MIN_GAIN = 0.02
_SEED_OF_LENGTHS = 0x6C656E


def levels_of(expected_concurrency: int, max_rows: int) -> tuple[int, ...]:
    """The sweep, the expected concurrency, and on from 64 by doubling up to `max_rows` and that itself."""
    levels = {*SWEEP, expected_concurrency}
    level = 2 * SWEEP[-1]
    while level < max_rows:
        levels.add(level)
        level *= 2
    if max_rows > SWEEP[-1]:
        levels.add(max_rows)
    return tuple(sorted(levels))


@dataclass(frozen=True, slots=True)
class StaticStep:
    """A step in which every row drafts `draft_len` tokens: `seconds` of it, `tokens` that a row gains by it."""

    draft_len: int
    seconds: float
    tokens: float

    @property
    def tpot_s(self) -> float:
        """Time per token of a row that decodes without interruption."""
        return self.seconds / self.tokens


def static_step(
    inputs: PlanInputs, segment: SegmentInputs, rows: int, draft_len: int, model: AcceptanceModel | None = None
) -> StaticStep:
    """The step in the middle of answers: each row has cached its prompt and half of its output."""
    kv_tokens = rows * (segment.mean_input + segment.mean_output / 2)
    if draft_len == 0:
        return StaticStep(0, inputs.times.time(StepLoad(rows)).seconds(kv_tokens), 1.0)
    model = model or segment.model()
    drafted = rows * model.mean_draft_tokens(draft_len)
    step = mean_step_time(inputs.times, StepLoad(rows, 0, draft_len), drafted)
    return StaticStep(draft_len, step.seconds(kv_tokens), model.mean_tokens(draft_len))


@dataclass(frozen=True, slots=True)
class StaticChoice:
    """K by K in closed form: `plain` without drafts, `drafted` with every K that can be predicted; `problem` says why
    others, or all, cannot."""

    plain: StaticStep
    drafted: tuple[StaticStep, ...]
    problem: str | None

    @property
    def best(self) -> StaticStep | None:
        """The fastest K of at least 1."""
        return min(self.drafted, key=lambda step: step.tpot_s, default=None)


def static_choice(inputs: PlanInputs, segment: SegmentInputs, rows: int) -> StaticChoice:
    """Every K the deployment allows at `rows` requests decoding."""
    model = segment.model()
    drafted, problem = [], inputs.times.range_problem(rows, 0)
    for draft_len in inputs.draft_lens if problem is None else ():
        why_not = inputs.times.range_problem(rows, draft_len) or model.problem(draft_len)
        if why_not is None:
            drafted.append(static_step(inputs, segment, rows, draft_len, model))
        problem = problem or why_not
    return StaticChoice(static_step(inputs, segment, rows, 0), tuple(drafted), problem)


# --- closed loop ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Medians in seconds of `concurrency` clients in the steady state; `tpot_s` None where no output has two tokens.
    `throughput` in output tokens per second, by Little's law."""

    ttft_s: float
    tpot_s: float | None
    e2e_s: float
    throughput: float


def simulate_level(
    inputs: PlanInputs, segment: SegmentInputs, concurrency: int, draft_len: int, model: AcceptanceModel | None = None
) -> ClosedLoop | None:
    """`concurrency` clients that send again when they are answered; every row drafts `draft_len` tokens. None where no
    request of the steady state is served: none fits the memory."""
    traffic = _closed_traffic(inputs, segment, concurrency)
    forever = DraftLenRange(min_in_flight=1, max_in_flight=None, draft_len=draft_len)
    settings = SimulationSettings(
        max_rows=inputs.config.serving.max_rows,
        prefill_chunk=inputs.prefill_chunk,
        kv_tokens=inputs.kv_tokens(has_draft=draft_len > 0),
        concurrency=concurrency,
        seed=inputs.random_seed,
        max_queue=None,
    )
    plan = SegmentPlan(segment=segment.segment, ranges=(forever,))
    result = simulate(traffic, inputs.times, (model or segment.model(),), (plan,), settings)
    steady = np.zeros(traffic.num_requests, np.bool_)
    steady[concurrency : traffic.num_requests - concurrency] = True
    steady &= result.is_served
    if not steady.any():
        return None
    tpot = result.tpot_s[steady]
    tpot = tpot[~np.isnan(tpot)]
    e2e = result.e2e_s[steady]
    return ClosedLoop(
        ttft_s=float(np.median(result.ttft_s[steady])),
        tpot_s=float(np.median(tpot)) if len(tpot) else None,
        e2e_s=float(np.median(e2e)),
        throughput=float(concurrency * traffic.output_tokens[steady].mean() / e2e.mean()),
    )


def _closed_traffic(inputs: PlanInputs, segment: SegmentInputs, concurrency: int) -> SimulatedTraffic:
    """Requests drawn from the segment's lengths, the same for every arm and K.

    The first request of each client is cut short at random, as if it had begun before: else answers of equal length
    would end together for ever, and all prompts would wait for each other.
    """
    rng = np.random.default_rng((inputs.random_seed, _SEED_OF_LENGTHS, concurrency))
    num_requests = inputs.effort.per_client * concurrency + inputs.effort.steady
    picked = rng.integers(0, len(segment.input_tokens), size=num_requests)
    output_tokens = segment.output_tokens[picked]
    cut = np.ceil(output_tokens[:concurrency] * rng.random(concurrency)).astype(np.int64)
    output_tokens[:concurrency] = np.maximum(1, cut)
    return SimulatedTraffic(
        arrival_s=None,
        input_tokens=segment.input_tokens[picked],
        output_tokens=output_tokens,
        segment=np.zeros(len(picked), dtype=np.int64),
        segment_names=(segment.segment,),
    )


# --- the level ------------------------------------------------------------------------------------------------------


def choose_draft_lens(inputs: PlanInputs, segment: SegmentInputs, levels: Sequence[int]) -> dict[int, StaticStep | str]:
    """Level -> the K to predict there, or why none can be.

    From high load to low, a K within `_SAME_TPOT` of the best is good enough where the level above has it: K then falls
    with the load wherever the costs allow it, and ranges stay few.
    """
    chosen: dict[int, StaticStep | str] = {}
    above: int | None = None
    for level in sorted(levels, reverse=True):
        choice = static_choice(inputs, segment, inputs.num_rows(level))
        if choice.best is None:
            chosen[level] = choice.problem or "nothing can be drafted here"
            continue
        good = [step for step in choice.drafted if step.tpot_s <= choice.best.tpot_s * (1 + _SAME_TPOT)]
        step = next((step for step in good if step.draft_len == above), good[0])
        chosen[level], above = step, step.draft_len
    return chosen


def predict_levels(inputs: PlanInputs, segment: SegmentInputs, levels: Sequence[int]) -> tuple[LevelPrediction, ...]:
    """What the best K does at each of `levels`, rising. Where nothing is promised the ratios are indicative, from the
    borrowed step times, or None; K is 0 there."""
    chosen = choose_draft_lens(inputs, segment, levels)
    problems = {level: choice for level, choice in chosen.items() if isinstance(choice, str)}
    borrowed = inputs.as_borrowed()
    lent = choose_draft_lens(borrowed, segment, list(problems)) if borrowed is not None else {}
    predicted = []
    for level in sorted(chosen):
        if level not in problems or borrowed is None or isinstance(lent[level], str):
            predicted.append(_predict_with(inputs, segment, level, chosen[level]))
        else:
            found = _predict_with(borrowed, segment, level, lent[level])
            predicted.append(found.model_copy(update={"draft_len": 0, "range_problem": problems[level]}))
    return tuple(predicted)


def predict_level(inputs: PlanInputs, segment: SegmentInputs, concurrency: int) -> LevelPrediction:
    """What the best K does at `concurrency`, asked for alone."""
    return predict_levels(inputs, segment, [concurrency])[0]


def _predict_with(
    inputs: PlanInputs, segment: SegmentInputs, concurrency: int, chosen: StaticStep | str
) -> LevelPrediction:
    """The level with the K of `chosen`, or unpredicted for the reason it gives. `draft_len` is that K where e2e gains
    by it, else 0; why is said when all levels are seen."""
    rows, model = inputs.num_rows(concurrency), segment.model()
    if isinstance(chosen, str):
        return _unpredicted(inputs, concurrency, rows, chosen)
    draft_len = chosen.draft_len
    off = simulate_level(inputs, segment, concurrency, 0, model)
    # The highest acceptance gives the lowest ratio.
    arms = [
        simulate_level(inputs, segment, concurrency, draft_len, model.at(bound)) for bound in ("value", "high", "low")
    ]
    on = [arm for arm in arms if arm is not None]
    if off is None or len(on) < len(arms):
        return _unpredicted(inputs, concurrency, rows, "no request fits the key/value memory")
    error = inputs.model_error
    e2e = ratio_of([arm.e2e_s for arm in on], off.e2e_s, error)
    verified = rows * (1 + inputs.num_nodes(draft_len))
    return LevelPrediction(
        concurrency=concurrency,
        draft_len=draft_len if e2e.value < 1 - MIN_GAIN else 0,
        best_static_draft_len=draft_len,
        tpot_ratio=_tpot_ratio(on, off, error),
        e2e_ratio=e2e,
        ttft_ratio=ratio_of([arm.ttft_s for arm in on], off.ttft_s, error),
        off_ttft_s=off.ttft_s,
        on_ttft_s=on[0].ttft_s,
        off_tpot_s=off.tpot_s,
        on_tpot_s=on[0].tpot_s,
        off_throughput=off.throughput,
        on_throughput=on[0].throughput,
        tokens_per_step=chosen.tokens,
        verified_tokens=verified,
        is_compute_bound=verified > inputs.times.ridge_tokens,
        is_queued=concurrency > rows,
    )


def _tpot_ratio(arms: Sequence[ClosedLoop], off: ClosedLoop, error: float) -> Estimate | None:
    times = [arm.tpot_s for arm in arms if arm.tpot_s is not None]
    if off.tpot_s is None or len(times) < len(arms):
        return None
    return ratio_of(times, off.tpot_s, error)


def ratio_of(on: Sequence[float], off: float, error: float) -> Estimate:
    """on / off at the expected acceptance, its upper and its lower bound, widened by the model's relative `error`."""
    ratios = [time / off if off > 0 else 1.0 for time in on]
    return Estimate(value=ratios[0], low=min(ratios) * (1 - min(error, 1.0)), high=max(ratios) * (1 + error))


def _unpredicted(inputs: PlanInputs, concurrency: int, rows: int, problem: str) -> LevelPrediction:
    """A level outside what the cost model or the acceptance was seen at: no number is promised."""
    return LevelPrediction(
        concurrency=concurrency,
        draft_len=0,
        best_static_draft_len=0,
        tpot_ratio=None,
        e2e_ratio=None,
        ttft_ratio=None,
        off_tpot_s=None,
        on_tpot_s=None,
        off_throughput=None,
        on_throughput=None,
        tokens_per_step=1.0,
        verified_tokens=rows,
        is_compute_bound=rows > inputs.times.ridge_tokens,
        is_queued=concurrency > rows,
        range_problem=problem,
    )
