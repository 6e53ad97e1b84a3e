"""on/off ratio against the load of one segment, its interval as a band, and where it crosses 1."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from specdeploy.run_contract import Comparison, Crossover, Load, RunSummary
from specdeploy_client.comparison.wording import format_comparison, format_confidence
from specdeploy_client.reporting.plots.scales import LogScale, labelled, level_scale, ratio_scale, ratio_ticks
from specdeploy_client.reporting.plots.svg import (
    Point,
    circle,
    clip_path,
    group,
    line,
    polygon,
    polyline,
    rect,
    svg,
    text,
)

WIDTH, HEIGHT = 440, 274
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 428.0, 12.0, 218.0
_FOREST_WIDTH, _FOREST_HEIGHT = 132, 16


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
    ordered = sorted(comparisons, key=lambda c: c.load.value)
    if not ordered:
        return Markup('<p class="empty">Speculation on and off were not both measured.</p>')
    is_closed = ordered[0].concurrency is not None
    expected = [float(summary.expected_concurrency)] if is_closed else []
    x = level_scale([*(c.load.value for c in ordered), *expected], _LEFT, _RIGHT)
    y = ratio_scale(bounds, _BOTTOM, _TOP, headroom=1.2)
    parts = [
        *_halves(y, name),
        *_queued(summary, ordered, x),
        *_ratio_grid(y),
        *level_axis(x, [c.load for c in ordered], _BOTTOM, summary.expected_concurrency if is_closed else None),
        *_band(_valid_runs(ordered), x, y, name),
        line(_LEFT, y.at(1), _RIGHT, y.at(1), "one"),
        *_crossing(crossover, x, y),
        *(_point(c, x, y) for c in ordered),
        text(_LEFT + 6, _TOP + 13, "slower with speculation", "note slower", "start"),
        text(_LEFT + 6, _BOTTOM - 7, "faster with speculation", "note faster", "start"),
    ]
    first = ordered[0]
    return svg(WIDTH, HEIGHT, f"{first.segment}: {first.metric} {first.percentile} on/off by load", parts)


def forest_plot(comparison: Comparison, scale_bounds: Sequence[float]) -> Markup:
    """One interval on a line, for a row of words: the mark at 1 is "no difference"."""
    x = ratio_scale(scale_bounds, 5, _FOREST_WIDTH - 5)
    middle = _FOREST_HEIGHT / 2
    parts = [line(5, middle, _FOREST_WIDTH - 5, middle, "grid"), line(x.at(1), 1, x.at(1), _FOREST_HEIGHT - 1, "one")]
    if comparison.outcome != "void" and comparison.ratio and comparison.ci_low and comparison.ci_high:
        tone = comparison.outcome
        low, high = x.at(comparison.ci_low), x.at(comparison.ci_high)
        parts += [
            rect(low, middle - 2.5, max(high - low, 1), 5, f"interval {tone}", 2.5),
            circle(x.at(comparison.ratio), middle, 4.5, f"dot {tone}"),
        ]
    return svg(_FOREST_WIDTH, _FOREST_HEIGHT, describe(comparison), parts, "forest")


def describe(comparison: Comparison) -> str:
    """A comparison in one line, for tips and screen readers."""
    head = f"{comparison.segment}, {comparison.load}, {comparison.metric} {comparison.percentile} on/off"
    if comparison.void_reasons:
        return f"{head}: void, {'; '.join(map(str, comparison.void_reasons))}"
    if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return f"{head}: not measurable"
    interval = f"{format_comparison(comparison)} at {format_confidence([comparison])}"
    return f"{head}: {interval}, {comparison.outcome}, {comparison.num_pairs} pairs"


def level_axis(x: LogScale, loads: Sequence[Load], bottom: float, expected: int | None) -> list[str]:
    """The measured levels below a panel and the expected one marked; log2, whatever the levels are."""
    values = sorted({load.value for load in loads})
    positions = [x.at(value) for value in values]
    parts = [
        part
        for value, at, is_shown in zip(values, positions, labelled(positions, 20), strict=True)
        for part in (
            line(at, bottom, at, bottom + 4, "axis"),
            text(at, bottom + 17, f"{value:g}") if is_shown else "",
        )
    ]
    title = "requests at once" if loads[0].request_rate is None else "requests per second"
    parts.append(text((x.start + x.end) / 2, bottom + (35 if expected is None else 51), title, "tick title"))
    if expected is not None:
        at = x.at(expected)
        anchor = "start" if at < x.start + 40 else "end" if at > x.end - 40 else "middle"
        mark = polygon([(at, bottom + 21), (at - 4, bottom + 27), (at + 4, bottom + 27)], "expected")
        parts.append(group([mark, text(at, bottom + 36, "expected", "tick strong", anchor)], f"expected: {expected}"))
    return parts


def _halves(y: LogScale, name: str) -> list[str]:
    middle, width = y.at(1), _RIGHT - _LEFT
    return [
        clip_path(f"{name}-slower", _LEFT, _TOP, width, middle - _TOP),
        clip_path(f"{name}-faster", _LEFT, middle, width, _BOTTOM - middle),
        rect(_LEFT, middle, width, _BOTTOM - middle, "gain"),
    ]


def _queued(summary: RunSummary, comparisons: Sequence[Comparison], x: LogScale) -> list[str]:
    """Shades the levels at which requests wait for each other: both arms then measure that queue."""
    limit = summary.effective_concurrency
    if limit is None or not any(summary.is_queued(c.concurrency) for c in comparisons):
        return []
    lowest = min(c.load.value for c in comparisons if summary.is_queued(c.concurrency))
    start = x.at((limit * lowest) ** 0.5)
    tip = f"the server decodes {limit} requests at once, the rest waits"
    label = text(_RIGHT - 6, _TOP + 13, "queued", "note", "end")
    return [group([rect(start, _TOP, _RIGHT - start, _BOTTOM - _TOP, "queue-area"), label], tip)]


def _ratio_grid(y: LogScale) -> list[str]:
    return [
        part
        for tick in ratio_ticks(y, 17)
        for part in (
            line(_LEFT, y.at(tick), _RIGHT, y.at(tick), "grid"),
            text(_LEFT - 7, y.at(tick) + 4, f"{tick:g}", "tick strong" if tick == 1 else "tick", "end"),
        )
    ]


def _valid_runs(ordered: Sequence[Comparison]) -> list[list[Comparison]]:
    """Neighbouring valid levels: a band must not run across a void one."""
    runs: list[list[Comparison]] = [[]]
    for comparison in ordered:
        if comparison.outcome == "void" or comparison.ratio is None:
            runs.append([])
        else:
            runs[-1].append(comparison)
    return [run for run in runs if run]


def _band(runs: Sequence[Sequence[Comparison]], x: LogScale, y: LogScale, name: str) -> list[str]:
    parts: list[str] = []
    for run in runs:
        upper: list[Point] = [(x.at(c.load.value), y.at(c.ci_high or 1)) for c in run]
        lower: list[Point] = [(x.at(c.load.value), y.at(c.ci_low or 1)) for c in run]
        outline = [*upper, *reversed(lower)]
        parts += [polygon(outline, f"band {side}", f"{name}-{side}") for side in ("slower", "faster")]
        parts.append(polyline([(x.at(c.load.value), y.at(c.ratio or 1)) for c in run], "trend"))
    return parts


def _point(comparison: Comparison, x: LogScale, y: LogScale) -> str:
    at = x.at(comparison.load.value)
    if comparison.outcome == "void" or not (comparison.ratio and comparison.ci_low and comparison.ci_high):
        cross = line(at - 5, y.at(1) - 5, at + 5, y.at(1) + 5, "void-mark") + line(
            at - 5, y.at(1) + 5, at + 5, y.at(1) - 5, "void-mark"
        )
        return group([cross, text(at, y.at(1) - 10, "void", "note")], describe(comparison))
    low, high = y.at(comparison.ci_low), y.at(comparison.ci_high)
    tone = comparison.outcome
    return group(
        [
            line(at, low, at, high, f"whisker {tone}"),
            line(at - 4, low, at + 4, low, f"whisker {tone}"),
            line(at - 4, high, at + 4, high, f"whisker {tone}"),
            circle(at, y.at(comparison.ratio), 4.5, f"dot {tone}"),
        ],
        describe(comparison),
    )


def _crossing(crossover: Crossover | None, x: LogScale, y: LogScale) -> list[str]:
    """The crossover as a vertical mark through the line at 1, its interval as a shaded column."""
    if crossover is None or crossover.kind != "crosses" or crossover.concurrency is None:
        return []
    at = x.at(crossover.concurrency)
    low = x.start if crossover.ci_low is None else x.at(crossover.ci_low)
    high = x.end if crossover.ci_high is None else x.at(crossover.ci_high)
    side = -1 if at > (x.start + x.end) / 2 else 1  # where there is room for the words
    words = f"crossover {crossover.concurrency:.1f}"
    label = text(at + 6 * side, _BOTTOM - 27, words, "crossing-label", "end" if side < 0 else "start")
    tip = f"{crossover.segment}, {crossover.metric}: crossover at {crossover} requests at once"
    return [
        group(
            [
                rect(low, _TOP, high - low, _BOTTOM - _TOP, "crossing-area"),
                line(at, _TOP, at, _BOTTOM, "crossing"),
                label,
                polygon([(at, y.at(1) - 7), (at + 7, y.at(1)), (at, y.at(1) + 7), (at - 7, y.at(1))], "crossing-mark"),
            ],
            tip,
        )
    ]
