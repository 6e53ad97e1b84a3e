"""Measured comparisons as panels and rows of ratios."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from specdeploy.charts.ratio_panel import Crossing, Queue, RatioPoint, forest_row, ratio_panel
from specdeploy.run_contract import Comparison, Crossover, Load, RunSummary
from specdeploy_client.comparison.wording import format_comparison, format_confidence


def ratio_bounds(comparisons: Iterable[Comparison]) -> list[float]:
    """The ratios and interval ends of valid comparisons: what panels that share a scale must enclose."""
    return [
        value
        for c in comparisons
        if c.outcome != "void"
        for value in (c.ratio, c.ci_low, c.ci_high)
        if value is not None and value > 0
    ]


def ratio_plot(
    summary: RunSummary,
    comparisons: Sequence[Comparison],
    crossover: Crossover | None,
    bounds: Sequence[float],
    name: str,
) -> Markup:
    """One panel: the comparisons of one segment, metric and percentile by load. `name` is unique on the page."""
    if not comparisons:
        return Markup('<p class="empty">Speculation on and off were not both measured.</p>')
    first = min(comparisons, key=lambda c: c.load.value)
    return ratio_panel(
        [_point(comparison) for comparison in comparisons],
        bounds,
        label=f"{first.segment}: {first.metric} {first.percentile} on/off by load",
        axis_title=axis_title(first.load),
        name=name,
        expected=None if first.concurrency is None else summary.expected_concurrency,
        crossing=_crossing(crossover),
        queue=_queue(summary, comparisons),
    )


def forest_plot(comparison: Comparison, scale_bounds: Sequence[float]) -> Markup:
    """One interval on a line, for a row of words: the mark at 1 is "no difference"."""
    return forest_row(_point(comparison), scale_bounds)


def axis_title(load: Load) -> str:
    """What the levels of such loads count."""
    return "requests at once" if load.request_rate is None else "requests per second"


def describe(comparison: Comparison) -> str:
    """A comparison in one line, for tips and screen readers."""
    head = f"{comparison.segment}, {comparison.load}, {comparison.metric} {comparison.percentile} on/off"
    if comparison.void_reasons:
        return f"{head}: void, {'; '.join(map(str, comparison.void_reasons))}"
    if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return f"{head}: not measurable"
    interval = f"{format_comparison(comparison)} at {format_confidence([comparison])}"
    return f"{head}: {interval}, {comparison.outcome}, {comparison.num_pairs} pairs"


def _point(comparison: Comparison) -> RatioPoint:
    interval = None
    if comparison.outcome != "void" and comparison.ratio and comparison.ci_low and comparison.ci_high:
        interval = (comparison.ratio, comparison.ci_low, comparison.ci_high)
    return RatioPoint(comparison.load.value, interval, comparison.outcome, describe(comparison))


def _queue(summary: RunSummary, comparisons: Sequence[Comparison]) -> Queue | None:
    limit = summary.effective_concurrency
    if limit is None or not any(summary.is_queued(c.concurrency) for c in comparisons):
        return None
    return Queue(limit, f"the server decodes {limit} requests at once, the rest waits")


def _crossing(crossover: Crossover | None) -> Crossing | None:
    if crossover is None or crossover.kind != "crosses" or crossover.concurrency is None:
        return None
    tip = f"{crossover.segment}, {crossover.metric}: crossover at {crossover} requests at once"
    return Crossing(crossover.concurrency, crossover.ci_low, crossover.ci_high, tip)
