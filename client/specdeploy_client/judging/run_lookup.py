"""Where a RunSummary holds what, and how its ratios are said in words."""

from collections.abc import Collection

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
from specdeploy_client.comparison.stats import RatioInterval, pairs_needed

# These say that the two arms cannot be compared, not that the latencies of one of them are wrong.
_COMPARISON_ONLY = frozenset(
    {VoidCode.ERRORS, VoidCode.TOO_FEW_PAIRS, VoidCode.TOO_FEW_TOKENS, VoidCode.LENGTHS_DIFFER}
)
# And these say it of the other arm only.
_OF_OTHER_ARM = {Arm.OFF: VoidCode.NOTHING_DRAFTED, Arm.ON: VoidCode.OFF_ARM_DRAFTED}


def find_comparison(
    summary: RunSummary, segment: str, load: Load, metric: MetricName, percentile: Percentile = Percentile.P50
) -> Comparison | None:
    """The comparison of one metric in one cell, or None when that cell was not measured."""
    return next(
        (
            c
            for c in summary.comparisons
            if (c.segment, c.load, c.metric, c.percentile) == (segment, load, metric, percentile)
        ),
        None,
    )


def find_cell(summary: RunSummary, segment: str, load: Load, arm: Arm) -> CellSummary | None:
    """One arm of one cell, or None when it was not measured."""
    return next((c for c in summary.cells if (c.segment, c.load, c.arm) == (segment, load, arm)), None)


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


def describe_voids(reasons: Collection[VoidReason]) -> str:
    """`the measurement is void: too few pairs: 5, at least 8 are needed`."""
    return "the measurement is void: " + "; ".join(map(str, reasons))


def describe_queue(summary: RunSummary, concurrency: int) -> str:
    """Why a level says nothing of speculation: requests may wait for others, and both arms then measure that queue."""
    limit = summary.concurrency_limit or "it does not say why"
    return (
        f"{concurrency} requests may queue: the server decodes {summary.effective_concurrency} of full length at once "
        f"({limit}). Raise that limit or lower traffic.expected_concurrency"
    )


def describe_ratio(comparison: Comparison, max_ratio: float = 1.0) -> str:
    """`e2e on/off 0.62 [0.58, 0.67] over 40 pairs` and, unless it is 1, the limit it is held against.

    The median is not named, other percentiles are: `ttft p99 on/off ...`.
    """
    name = comparison.metric.value
    if comparison.percentile is not Percentile.P50:
        name = f"{name} {comparison.percentile}"
    if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return f"{name} on/off not measured"
    limit = "" if max_ratio == 1.0 else f", limit {max_ratio:g}"
    return (
        f"{name} on/off {comparison.ratio:.2f} "
        f"[{comparison.ci_low:.2f}, {comparison.ci_high:.2f}] over {comparison.num_pairs} pairs{limit}"
    )


def describe_pairs_needed(comparison: Comparison, limit: float) -> str:
    """`; about 320 pairs would decide`, or nothing where no affordable number would.

    Counted for `limit`, which need not be the one that the run was measured for.
    """
    if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return ""
    interval = RatioInterval(comparison.ratio, comparison.ci_low, comparison.ci_high, comparison.num_pairs)
    needed = pairs_needed(interval, limit)
    return "" if needed is None else f"; about {needed} pairs would decide"
