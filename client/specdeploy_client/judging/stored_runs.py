"""Two stored runs beside each other: what changed between them, and which on/off ratios did. Pure.

Only ratios are judged. A ratio is measured inside one run, both arms on one machine at one time, so it may be held
against the ratio of another run; milliseconds of two runs are of two machines, or of one on two days. They are shown
side by side and never decide anything.

Whether a ratio changed: for ratios a (before) and b (after) with intervals [la, ua] and [lb, ub] of independent runs,
the interval of b/a is, on the log scale,

    ln(b/a) - sqrt((ln b - ln lb)^2 + (ln ua - ln a)^2)   to   ln(b/a) + sqrt((ln ub - ln b)^2 + (ln a - ln la)^2)

(variance estimates recovered from the limits: Zou and Donner, Statistics in Medicine 27, 2008, section 2). It has the
confidence of the two intervals and does not assume that they are symmetric. Intervals that overlap a little can still
differ.
"""

from dataclasses import dataclass
from math import exp, hypot, log
from typing import Literal

from specdeploy.run_contract import (
    Arm,
    CellSummary,
    Comparison,
    Crossover,
    Load,
    MetricName,
    Percentile,
    RunSummary,
    Slo,
)
from specdeploy_client.judging.run_lookup import find_cell, find_comparison

Difference = Literal["lower", "higher", "none shown", "not comparable"]

# Of RunSummary.environment.
_MACHINE_KEY = "client machine"  # a run without it tells nothing of its machine
_WORK_KEYS = {"workload": "other prompts were asked", "answers": "answers had other limits"}


@dataclass(frozen=True, slots=True)
class Change:
    """One fact that differs; None where a run does not have it."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class RatioChange:
    """on/off of one percentile of one metric of one cell in both runs; None where it was not measured.

    `change` is after / before with its interval, None where either run has no interval. Below 1: speculation gains more
    than it did.
    """

    segment: str
    load: Load
    metric: MetricName
    percentile: Percentile
    before: Comparison | None
    after: Comparison | None
    change: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @property
    def difference(self) -> Difference:
        """Whether the change exceeds the intervals of both runs, and to which side."""
        if self.ci_low is None or self.ci_high is None:
            return "not comparable"
        if self.ci_high < 1.0:
            return "lower"
        return "higher" if self.ci_low > 1.0 else "none shown"

    @property
    def is_reversed(self) -> bool:
        """Faster in one run and slower in the other, both beyond doubt."""
        if self.difference == "not comparable":
            return False
        outcomes = {comparison.outcome for comparison in (self.before, self.after) if comparison is not None}
        return outcomes == {"faster", "slower"}


@dataclass(frozen=True, slots=True)
class CellPair:
    """One arm of one cell in both runs, for looking at; None where it was not measured."""

    segment: str
    load: Load
    arm: Arm
    before: CellSummary | None
    after: CellSummary | None


@dataclass(frozen=True, slots=True)
class CrossoverPair:
    """The crossover of one segment and metric in both runs."""

    segment: str
    metric: MetricName
    before: Crossover | None
    after: Crossover | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Everything `compare` shows of two runs.

    `changes` are facts of the deployment and the measurement that differ, `cautions` what makes the ratios less
    comparable than they look.
    """

    before: RunSummary
    after: RunSummary
    changes: tuple[Change, ...]
    cautions: tuple[str, ...]
    ratios: tuple[RatioChange, ...]
    cells: tuple[CellPair, ...]
    crossovers: tuple[CrossoverPair, ...]

    @property
    def exceeding(self) -> tuple[RatioChange, ...]:
        """The ratios whose change exceeds the intervals of both runs."""
        return tuple(ratio for ratio in self.ratios if ratio.difference in ("lower", "higher"))


def compare_runs(before: RunSummary, after: RunSummary) -> RunComparison:
    """Two runs of the same deployment or of different ones."""
    keys = dict.fromkeys((c.segment, c.load, c.metric, c.percentile) for c in (*before.comparisons, *after.comparisons))
    arms = dict.fromkeys((c.segment, c.load, c.arm) for c in (*before.cells, *after.cells))
    crossings = dict.fromkeys((c.segment, c.metric) for c in (*before.crossovers, *after.crossovers))
    return RunComparison(
        before=before,
        after=after,
        changes=_changes(before, after),
        cautions=_cautions(before, after),
        ratios=tuple(_ratio_change(before, after, key) for key in keys),
        cells=tuple(CellPair(*key, find_cell(before, *key), find_cell(after, *key)) for key in arms),
        crossovers=tuple(
            CrossoverPair(*key, _find_crossover(before, *key), _find_crossover(after, *key)) for key in crossings
        ),
    )


def _ratio_change(
    before_run: RunSummary, after_run: RunSummary, key: tuple[str, Load, MetricName, Percentile]
) -> RatioChange:
    before, after = find_comparison(before_run, *key), find_comparison(after_run, *key)
    a, b = _interval(before), _interval(after)
    # Where requests queue, both arms measure that queue, and its length is not the speculation's.
    is_queued = any(run.is_queued(key[1].concurrency) for run in (before_run, after_run))
    if a is None or b is None or is_queued:
        return RatioChange(*key, before=before, after=after)
    (low_a, ratio_a, high_a), (low_b, ratio_b, high_b) = a, b
    change = log(ratio_b / ratio_a)
    below = hypot(log(ratio_b / low_b), log(high_a / ratio_a))
    above = hypot(log(high_b / ratio_b), log(ratio_a / low_a))
    return RatioChange(
        *key,
        before=before,
        after=after,
        change=exp(change),
        ci_low=exp(change - below),
        ci_high=exp(change + above),
    )


def _interval(comparison: Comparison | None) -> tuple[float, float, float] | None:
    """(low, ratio, high) of a comparison that is not void, or None."""
    if comparison is None or comparison.void_reasons:
        return None
    low, ratio, high = comparison.ci_low, comparison.ratio, comparison.ci_high
    if low is None or ratio is None or high is None or min(low, ratio, high) <= 0:
        return None
    return low, ratio, high


def _find_crossover(summary: RunSummary, segment: str, metric: MetricName) -> Crossover | None:
    return next((c for c in summary.crossovers if (c.segment, c.metric) == (segment, metric)), None)


def _changes(before: RunSummary, after: RunSummary) -> tuple[Change, ...]:
    """Every fact of the two runs that differs, the deployment's first."""
    left, right = _facts(before), _facts(after)
    names = dict.fromkeys((*left, *right))
    return tuple(Change(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name))


def _facts(summary: RunSummary) -> dict[str, str]:
    """What a run says of itself, in words; unknown facts are left out."""
    facts: dict[str, object] = {
        "deployment": summary.deployment,
        "build": summary.build_id,
        "lane": summary.lane,
        "method": summary.method,
        "max_draft_len": summary.max_draft_len,
        "dtype": summary.dtype,
        "server threads": summary.server_threads,
        "effective concurrency": summary.effective_concurrency,
        "concurrency limit": summary.concurrency_limit,
        "switch": summary.switch,
        "load": summary.load_kind,
        "budget": summary.budget,
        "random seed": summary.random_seed,
        "expected concurrency": summary.expected_concurrency,
        "objectives": ", ".join(map(_describe_slo, summary.slos)) or None,
        "interrupted": summary.interrupted,
    }
    facts |= {
        f"planned K of {planned.segment}": planned.draft_len or f"0 ({planned.off_reason or 'no reason given'})"
        for planned in summary.planned
    }
    facts |= dict(summary.environment)
    return {name: str(value) for name, value in facts.items() if value is not None}


def _describe_slo(slo: Slo) -> str:
    return f"{slo.segment} {slo.metric} {slo.percentile} <= {slo.max_ms:g} ms"


def _cautions(before: RunSummary, after: RunSummary) -> tuple[str, ...]:
    cautions = [
        f"the run {word} ended early: {summary.interrupted}"
        for word, summary in (("before", before), ("after", after))
        if summary.interrupted is not None
    ]
    if before.load_kind != after.load_kind:
        cautions.append(f"the load was another: {before.load_kind} before, {after.load_kind} after")
    for key, what in _WORK_KEYS.items():
        asked = [summary.environment.get(key, "not known") for summary in (before, after)]
        if asked[0] != asked[1]:
            cautions.append(f"{what}: {asked[0]} before, {asked[1]} after")
    cautions += [
        caution for word, summary in (("before", before), ("after", after)) if (caution := _queued(summary, word))
    ]
    if before.switch != after.switch:
        cautions.append(f"the arms were told apart differently: {before.switch} before, {after.switch} after")
    if len({comparison.confidence for comparison in (*before.comparisons, *after.comparisons)}) > 1:
        cautions.append("the intervals have different confidences: the interval of a change has the lower one")
    machines = [summary.environment.get(_MACHINE_KEY) for summary in (before, after)]
    if machines[0] != machines[1] or None in machines:
        cautions.append("the machines differ or are not known: milliseconds are not comparable, ratios are")
    if not before.comparisons or not after.comparisons:
        cautions.append("one of the runs has no ratios (one arm only): nothing can be judged")
    return tuple(cautions)


def _queued(summary: RunSummary, word: str) -> str | None:
    levels = sorted({c.concurrency for c in summary.comparisons if c.concurrency and summary.is_queued(c.concurrency)})
    if not levels:
        return None
    return (
        f"ratios at concurrency {', '.join(map(str, levels))} are not comparable: the server of the run {word} decodes "
        f"{summary.effective_concurrency} requests at once, others queue"
    )
