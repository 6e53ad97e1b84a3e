"""Runs side by side: which drafting method pays, and why, from what a step costs and what it brings. Pure.

What is counted begins after the first token: the step that gives it reads the prompt and verifies no draft.

    a   accepted draft tokens per step
    r   time of a step with speculation / time of a plain step: drafting and verifying together
    r / (1 + a)   time per token with speculation / time per plain token: 1 + a tokens come out of a step
    r - 1         break-even: drafting pays while a is above it
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import Arm, Comparison, Load, MetricName, RunSummary
from specdeploy.units import ns_to_ms
from specdeploy_client.comparison.pairing import pair_rows
from specdeploy_client.comparison.wording import describe_voids, format_range
from specdeploy_client.judging.run_lookup import find_cell, find_comparison
from specdeploy_client.records.table import ArmColumns, CellKey, RecordTable

Outcome = Literal["pays", "does not pay", "not decided"]
_NO_COST = 0.005  # shown as 0.00


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What one run left. `table` is None where it left no records."""

    summary: RunSummary
    table: RecordTable | None = None


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What steps cost and bring in one cell. Times are medians over requests, in ms."""

    plain_step_ms: float
    step_ms: float
    accepted_per_step: float
    plain_ttft_ms: float
    ttft_ms: float

    @property
    def step_ratio(self) -> float:
        """r: a step with speculation / a plain one."""
        return self.step_ms / self.plain_step_ms

    @property
    def break_even(self) -> float:
        """r - 1: accepted tokens per step that pay for the longer step, at least 0."""
        return max(self.step_ratio - 1, 0.0)

    @property
    def tokens_per_step(self) -> float:
        """1 + a."""
        return 1 + self.accepted_per_step


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method in one cell. `name` tells runs apart; `acceptance_per_position` is marginal."""

    name: str
    run: RunSummary
    segment: str
    load: Load
    comparison: Comparison | None
    acceptance_rate: float | None
    costs: StepCosts | None
    acceptance_per_position: tuple[float, ...]

    @property
    def outcome(self) -> Outcome:
        """What the e2e interval says."""
        if self.comparison is None or self.run.is_queued(self.load.concurrency):
            return "not decided"
        outcomes: dict[str, Outcome] = {"faster": "pays", "slower": "does not pay"}
        return outcomes.get(self.comparison.outcome, "not decided")

    @property
    def reason(self) -> str:
        """Why, in numbers."""
        if self.run.is_queued(self.load.concurrency):
            return f"the server decodes {self.run.effective_concurrency} requests at once, the rest waits"
        if self.comparison is None:
            return "speculation on and off were not both measured"
        if self.comparison.void_reasons:
            return describe_voids(self.comparison.void_reasons)
        low, high = self.comparison.ci_low, self.comparison.ci_high
        if self.outcome != "not decided" or low is None or high is None:
            return describe_costs(self.costs, self.outcome)
        return f"the interval {format_range(low, high)} contains 1; {describe_costs(self.costs, self.outcome)}"

    @property
    def sentence(self) -> str:
        """Outcome and reason."""
        return f"{self.outcome}: {self.reason}"


def compare_methods(runs: Sequence[MeasuredRun]) -> tuple[MethodRow, ...]:
    """A row per run and cell, the rows of a cell below each other.

    Cells that every run measured; all cells where there is no such cell. In the order of the first run.
    """
    measured = [_measured_cells(run.summary) for run in runs]
    every = dict.fromkeys(key for keys in measured for key in keys)
    shared = [key for key in every if all(key in keys for keys in measured)] or list(every)
    names = run_names([run.summary for run in runs])
    return tuple(
        _row(name, run, key)
        for key in shared
        for name, run, keys in zip(names, runs, measured, strict=True)
        if key in keys
    )


def run_names(summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    """The method of each run, with its dtype where dtypes differ and its deployment where that is not enough."""
    names = [summary.method or "unknown method" for summary in summaries]
    if len({summary.dtype for summary in summaries}) > 1:
        names = [f"{name}, {summary.dtype or 'unknown dtype'}" for name, summary in zip(names, summaries, strict=True)]
    repeated = {name for name, count in Counter(names).items() if count > 1}
    return tuple(
        f"{name}, {summary.deployment}" if name in repeated else name
        for name, summary in zip(names, summaries, strict=True)
    )


def measure_steps(off: ArmColumns, on: ArmColumns) -> StepCosts | None:
    """Costs and gains of a step from the pairs of one cell; None where the records do not tell.

    Time of a step of one request: (e2e - ttft) / (steps - 1), with `num_steps` as the server counted them. Accepted
    tokens per step: over all requests together.
    """
    off_rows, on_rows = pair_rows(off, on)
    plain_ns, step_ns = _step_ns(off)[off_rows], _step_ns(on)[on_rows]
    accepted, steps = on.num_accepted_tokens[on_rows], on.num_steps[on_rows]
    known = np.isfinite(plain_ns) & np.isfinite(step_ns) & (accepted >= 0)
    if not known.any() or np.median(plain_ns[known]) <= 0:
        return None
    return StepCosts(
        plain_step_ms=_median_ms(plain_ns[known]),
        step_ms=_median_ms(step_ns[known]),
        accepted_per_step=int(accepted[known].sum()) / int((steps[known] - 1).sum()),
        plain_ttft_ms=_median_ms(off.ttft_ns[off_rows][known]),
        ttft_ms=_median_ms(on.ttft_ns[on_rows][known]),
    )


def describe_costs(costs: StepCosts | None, outcome: Outcome) -> str:
    """The arithmetic in words, as the reason of `outcome`; says so where steps alone do not explain it."""
    if costs is None:
        return "what a step costs is not known: no records, or no step counts in them"
    pays_by_steps = costs.accepted_per_step > costs.break_even
    step = f"a step takes {costs.step_ratio:.2f} times a plain one"
    needed = f"{costs.break_even:.2f} would be enough" if pays_by_steps else f"it would need {costs.break_even:.2f}"
    if costs.break_even < _NO_COST:
        step, needed = "a step takes no longer than a plain one", "any accepted token is a gain"
    said = f"accepts {costs.accepted_per_step:.2f} tokens per step; {step}, so {needed}"
    if outcome == "does not pay" and pays_by_steps and costs.ttft_ms > costs.plain_ttft_ms:
        return f"{said}, but the first token comes after {costs.ttft_ms:.0f} ms instead of {costs.plain_ttft_ms:.0f}"
    if outcome != "not decided" and pays_by_steps != (outcome == "pays"):
        return f"{said}; steps alone do not explain the result"
    return said


def _measured_cells(summary: RunSummary) -> list[CellKey]:
    return list(dict.fromkeys((cell.segment, cell.load) for cell in summary.cells if cell.arm is Arm.ON))


def _row(name: str, run: MeasuredRun, key: CellKey) -> MethodRow:
    cell = find_cell(run.summary, *key, Arm.ON)
    acceptance = None if cell is None else cell.acceptance
    arms = {} if run.table is None else run.table.cells.get(key, {})
    costs = measure_steps(arms[Arm.OFF], arms[Arm.ON]) if Arm.OFF in arms and Arm.ON in arms else None
    return MethodRow(
        name=name,
        run=run.summary,
        segment=key[0],
        load=key[1],
        comparison=find_comparison(run.summary, *key, MetricName.E2E),
        acceptance_rate=None if acceptance is None else acceptance.acceptance_rate,
        costs=costs,
        acceptance_per_position=marginal_acceptance(run.summary, *key),
    )


def marginal_acceptance(summary: RunSummary, segment: str, load: Load | None = None) -> tuple[float, ...]:
    """Per position i of a draft: drafts accepted up to i / drafts, in one cell or over all cells of a segment.

    From the increase of the server's counters over the cells, else from what the answers told. Empty where neither
    counts by position.
    """
    drafts, accepted = 0, np.zeros(0)
    for cell in summary.conditions:
        if cell.segment == segment and load in (None, cell.load) and cell.num_drafts and cell.accepted_per_pos:
            drafts += cell.num_drafts
            accepted = _add_padded(accepted, np.asarray(cell.accepted_per_pos, dtype=np.float64))
    if drafts:
        return tuple((accepted / drafts).tolist())
    for told in summary.cells:
        if told.segment == segment and told.arm is Arm.ON and load in (None, told.load) and told.acceptance:
            steps, rates = told.acceptance.num_steps, told.acceptance.rate_per_pos
            if steps and rates:
                drafts += steps
                accepted = _add_padded(accepted, np.asarray(rates, dtype=np.float64) * steps)
    return tuple((accepted / drafts).tolist()) if drafts else ()


def _add_padded(left: npt.NDArray[np.float64], right: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sum of two vectors of which the shorter one ends in zeros that are not written down."""
    total = np.zeros(max(len(left), len(right)))
    total[: len(left)] += left
    total[: len(right)] += right
    return total


def _step_ns(columns: ArmColumns) -> npt.NDArray[np.float64]:
    """Mean time of a step after the first token [n]; NaN where steps are not counted or there is only one."""
    steps = np.where(columns.num_steps >= 2, columns.num_steps - 1.0, np.nan)
    return np.asarray((columns.e2e_ns - columns.ttft_ns) / steps, dtype=np.float64)


def _median_ms(values_ns: npt.NDArray[np.float64]) -> float:
    return ns_to_ms(float(np.median(values_ns)))
