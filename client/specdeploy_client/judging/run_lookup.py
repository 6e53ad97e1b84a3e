"""Where a RunSummary holds what."""

import weakref
from collections.abc import Collection
from dataclasses import dataclass

from specdeploy.run_contract import (
    Arm,
    CellSummary,
    Comparison,
    Load,
    MetricName,
    Percentile,
    Percentiles,
    RunSummary,
    VoidCode,
    VoidReason,
)

# These say that the two arms cannot be compared, not that the latencies of one of them are wrong.
_COMPARISON_ONLY = frozenset(
    {VoidCode.ERRORS, VoidCode.TOO_FEW_PAIRS, VoidCode.TOO_FEW_TOKENS, VoidCode.LENGTHS_DIFFER}
)
# And these say it of the other arm only.
_OF_OTHER_ARM = {Arm.OFF: VoidCode.NOTHING_DRAFTED, Arm.ON: VoidCode.OFF_ARM_DRAFTED}


@dataclass(frozen=True, slots=True)
class _Index:
    """The cells and comparisons of one summary by what they are asked for; the first of two of the same key."""

    cells: dict[tuple[str, Load, Arm], CellSummary]
    comparisons: dict[tuple[str, Load, MetricName, Percentile], Comparison]

    @classmethod
    def of(cls, summary: RunSummary) -> "_Index":
        """One pass over the summary."""
        return cls(
            cells={(c.segment, c.load, c.arm): c for c in reversed(summary.cells)},
            comparisons={(c.segment, c.load, c.metric, c.percentile): c for c in reversed(summary.comparisons)},
        )


# By the identity of summaries that are alive: they hold dicts, so they are no keys themselves, and what is kept on a
# model of pydantic would be copied, stale, by `model_copy`.
_INDEXES: dict[int, _Index] = {}


def find_comparison(
    summary: RunSummary, segment: str, load: Load, metric: MetricName, percentile: Percentile = Percentile.P50
) -> Comparison | None:
    """The comparison of one metric in one cell, or None when that cell was not measured."""
    return _index_of(summary).comparisons.get((segment, load, metric, percentile))


def find_cell(summary: RunSummary, segment: str, load: Load, arm: Arm) -> CellSummary | None:
    """One arm of one cell, or None when it was not measured."""
    return _index_of(summary).cells.get((segment, load, arm))


def measured_arms(summary: RunSummary, segment: str | None = None, load: Load | None = None) -> tuple[Arm, ...]:
    """Which of off and on were measured: anywhere, of one segment, or of one of its cells."""
    found = {cell.arm for cell in summary.cells if segment in (None, cell.segment) and load in (None, cell.load)}
    return tuple(arm for arm in (Arm.OFF, Arm.ON) if arm in found)


def metric_percentiles(cell: CellSummary, metric: MetricName) -> Percentiles:
    """The percentiles of one metric of a cell."""
    return {MetricName.TTFT: cell.ttft_ms, MetricName.TPOT: cell.tpot_ms, MetricName.E2E: cell.e2e_ms}[metric]


def decision_loads(summary: RunSummary, segment: str) -> tuple[Load, ...]:
    """The loads a segment is judged at: the expected concurrency, or every rate of an open loop.

    An open loop has no concurrency of its own, so what was measured at a rate is judged at that rate.
    """
    expected = Load(summary.expected_concurrency)
    loads = measured_loads(summary, segment)
    rates = tuple(load for load in loads if load.request_rate is not None)
    return rates if rates and expected not in loads else (expected,)


def measured_loads(summary: RunSummary, segment: str) -> tuple[Load, ...]:
    """Every load at which the segment was measured, closed loops before open ones, each kind in ascending order."""
    loads = {cell.load for cell in summary.cells if cell.segment == segment}
    return tuple(sorted(loads, key=lambda load: (load.request_rate is not None, load.value)))


def measured_segments(summary: RunSummary) -> tuple[str, ...]:
    """Every segment with a cell or a comparison, in the order they appear."""
    compared = (comparison.segment for comparison in summary.comparisons)
    return tuple(dict.fromkeys((*(cell.segment for cell in summary.cells), *compared)))


def arm_voids(summary: RunSummary, segment: str, load: Load, arm: Arm) -> tuple[VoidReason, ...]:
    """Why the latencies of one arm of one cell are not to be trusted, by what its comparisons say."""
    excused: Collection[VoidCode] = {*_COMPARISON_ONLY, *([_OF_OTHER_ARM[arm]] if arm in _OF_OTHER_ARM else [])}
    reasons = (
        reason
        for comparison in summary.comparisons
        if (comparison.segment, comparison.load) == (segment, load)
        for reason in comparison.void_reasons
        if reason.code not in excused
    )
    return tuple(dict.fromkeys(reasons))


def describe_queue(summary: RunSummary, concurrency: int) -> str:
    """Why a level says nothing of speculation: requests may wait for others, and both arms then measure that queue."""
    limit = summary.concurrency_limit or "it does not say why"
    return (
        f"{concurrency} requests may queue: the server decodes {summary.effective_concurrency} of full length at once "
        f"({limit}). Raise that limit or lower traffic.expected_concurrency"
    )


def _index_of(summary: RunSummary) -> _Index:
    found = _INDEXES.get(id(summary))
    if found is None:
        found = _INDEXES[id(summary)] = _Index.of(summary)
        weakref.finalize(summary, _INDEXES.pop, id(summary), None)
    return found
