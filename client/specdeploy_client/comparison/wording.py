"""How a ratio and its interval are written, everywhere: in the terminal, on the page, in findings of the gate."""

from collections.abc import Collection, Iterable

from specdeploy.run_contract import Comparison, Percentile, VoidReason

DASH = "\N{EN DASH}"


def format_interval(ratio: float | None, low: float | None, high: float | None) -> str:
    """`0.62 [0.58, 0.67]`, or a dash where one of the three is missing."""
    if ratio is None or low is None or high is None:
        return DASH
    return f"{ratio:.2f} {format_range(low, high)}"


def format_range(low: float, high: float) -> str:
    """`[0.58, 0.67]`."""
    return f"[{low:.2f}, {high:.2f}]"


def format_comparison(comparison: Comparison | None) -> str:
    """`0.62 [0.58, 0.67]`, `void`, or a dash where there is no ratio."""
    if comparison is None:
        return DASH
    if comparison.void_reasons:
        return "void"
    return format_interval(comparison.ratio, comparison.ci_low, comparison.ci_high)


def format_confidence(comparisons: Iterable[Comparison]) -> str:
    """`99 %`: the confidence that the intervals have; `95 % and 99 %` where they differ, nothing where none has one."""
    confidences = sorted({c.confidence for c in comparisons if c.ratio is not None})
    return " and ".join(f"{100 * confidence:.4g} %" for confidence in confidences)


def describe_intervals(comparisons: Iterable[Comparison]) -> str:
    """`99 % interval`, or just `interval` where there is none."""
    return f"{format_confidence(comparisons)} interval".lstrip()


def describe_ratio(comparison: Comparison, max_ratio: float = 1.0) -> str:
    """`e2e on/off 0.62 [0.58, 0.67] at 99 % over 40 pairs` and, unless it is 1, the limit it is held against.

    The median is not named, other percentiles are: `ttft p99 on/off ...`.
    """
    name = comparison.metric.value
    if comparison.percentile is not Percentile.P50:
        name = f"{name} {comparison.percentile}"
    if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return f"{name} on/off not measured"
    interval = format_interval(comparison.ratio, comparison.ci_low, comparison.ci_high)
    limit = "" if max_ratio == 1.0 else f", limit {max_ratio:g}"
    return f"{name} on/off {interval} at {format_confidence([comparison])} over {comparison.num_pairs} pairs{limit}"


def describe_voids(reasons: Collection[VoidReason]) -> str:
    """`the measurement is void: too few pairs: 5, at least 8 are needed`."""
    return "the measurement is void: " + "; ".join(map(str, reasons))
