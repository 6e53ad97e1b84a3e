"""Runs side by side: which drafting method pays, and why, from what a step costs and what it brings. Pure.

What is counted begins after the first token: the step that gives it reads the prompt and verifies no draft.

    a   accepted draft tokens per step
    r   time of a step with speculation / time of a plain step: drafting and verifying together
    r / (1 + a)   time per token with speculation / time per plain token: 1 + a tokens come out of a step
    r - 1         break-even: drafting pays while a is above it
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from specdeploy.run_contract import Arm, Comparison, Load, MetricName, RequestRecord, RunSummary
from specdeploy.units import ns_to_ms
from specdeploy_client.compare import CellKey, Pair, group_cells, pair_by_prompt
from specdeploy_client.gate import find_cell, find_comparison
from specdeploy_client.metrics import e2e_ns, ttft_ns
from specdeploy_client.server_facts import SegmentCounters

Outcome = Literal["pays", "does not pay", "not decided"]
_NO_COST = 0.005  # shown as 0.00


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """What one run left. `records` are empty and `counters` None where it left none."""

    summary: RunSummary
    records: tuple[RequestRecord, ...] = ()
    counters: Mapping[str, SegmentCounters] | None = None


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
    """One method in one cell. `name` tells runs apart.

    `acceptance_per_position` is marginal, and over all cells of the segment: the server counts by segment only.
    """

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
            return "the measurement is void: " + "; ".join(map(str, self.comparison.void_reasons))
        if self.outcome != "not decided":
            return describe_costs(self.costs, self.outcome)
        interval = f"the interval {self.comparison.ci_low:.2f}-{self.comparison.ci_high:.2f} contains 1"
        return f"{interval}; {describe_costs(self.costs, self.outcome)}"

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


def measure_steps(pairs: Sequence[Pair]) -> StepCosts | None:
    """Costs and gains of a step from (off, on) pairs of one cell; None where the records do not tell.

    Time of a step of one request: (e2e - ttft) / (steps - 1), with `num_steps` as the server counted them. Accepted
    tokens per step: over all requests together.
    """
    plain, drafting, first_tokens = [], [], []
    num_steps, num_accepted = 0, 0
    for off, on in pairs:
        plain_ns, step_ns, accepted = _step_ns(off), _step_ns(on), on.num_accepted_tokens
        plain_ttft, ttft = ttft_ns(off), ttft_ns(on)
        if plain_ns is None or step_ns is None or accepted is None or plain_ttft is None or ttft is None:
            continue
        plain.append(plain_ns)
        drafting.append(step_ns)
        first_tokens.append((plain_ttft, ttft))
        num_steps += (on.num_steps or 1) - 1
        num_accepted += accepted
    if not plain or not num_steps or median(plain) <= 0:
        return None
    return StepCosts(
        plain_step_ms=ns_to_ms(median(plain)),
        step_ms=ns_to_ms(median(drafting)),
        accepted_per_step=num_accepted / num_steps,
        plain_ttft_ms=ns_to_ms(median(value for value, _ in first_tokens)),
        ttft_ms=ns_to_ms(median(value for _, value in first_tokens)),
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
    arms = group_cells(run.records).get(key, {})
    pairs = pair_by_prompt(arms.get(Arm.OFF, ()), arms.get(Arm.ON, ()), same_block=True)
    return MethodRow(
        name=name,
        run=run.summary,
        segment=key[0],
        load=key[1],
        comparison=find_comparison(run.summary, *key, MetricName.E2E),
        acceptance_rate=None if acceptance is None else acceptance.acceptance_rate,
        costs=measure_steps(pairs),
        acceptance_per_position=marginal_acceptance((run.counters or {}).get(key[0])),
    )


def _step_ns(record: RequestRecord) -> float | None:
    """Mean time of a step after the first token; None where steps are not counted or there is only one."""
    ttft, e2e = ttft_ns(record), e2e_ns(record)
    if record.num_steps is None or record.num_steps < 2 or ttft is None or e2e is None:
        return None
    return (e2e - ttft) / (record.num_steps - 1)


def marginal_acceptance(counters: SegmentCounters | None) -> tuple[float, ...]:
    """Per position i of a draft: drafts accepted up to i / drafts. Empty before the first draft."""
    if counters is None or not counters.num_drafts:
        return ()
    return tuple(accepted / counters.num_drafts for accepted in counters.accepted_per_pos)
