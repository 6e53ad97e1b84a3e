"""Inline SVG plots for the report. Colours come from CSS classes, so that plots follow the page's theme.

Series differ by marker shape and dash as well as by colour.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from markupsafe import Markup, escape

from specdeploy.run_contract import Arm, Load, MetricName, RunSummary
from specdeploy_client.gate import find_cell, find_comparison, metric_percentiles


def _by_value(load: Load) -> float:
    return load.value


_MARKERS = ("circle", "square", "diamond", "triangle")


@dataclass(frozen=True, slots=True)
class _Axes:
    """A plot area in SVG units and the value range of its vertical axis."""

    left: float
    top: float
    width: float
    height: float
    low: float
    high: float

    def y(self, value: float) -> float:
        """Vertical position of `value`."""
        return self.top + self.height * (1 - (value - self.low) / (self.high - self.low))

    def x(self, index: int, count: int, offset: float = 0.0) -> float:
        """Horizontal centre of category `index` of `count`, moved by `offset`."""
        return self.left + self.width * (index + 0.5) / count + offset


def ratio_plot(summary: RunSummary) -> Markup:
    """e2e on/off by concurrency with its interval; one series per segment, a line at 1.0."""
    measured = [c for c in summary.comparisons if c.metric is MetricName.E2E and c.ratio is not None]
    if not measured:
        return Markup('<p class="empty">No cell has a valid comparison to plot.</p>')
    levels = sorted({c.load for c in summary.comparisons}, key=_by_value)
    segments = list(dict.fromkeys(c.segment for c in summary.comparisons))
    bounds = [value for c in measured for value in (c.ci_low, c.ci_high) if value is not None]
    ticks = _ticks(min(*bounds, 0.95), max(*bounds, 1.05))
    axes = _Axes(left=52, top=38, width=750, height=240, low=ticks[0], high=ticks[-1])
    parts = [
        (
            f'<rect class="gain" x="{axes.left}" y="{axes.y(1.0):.1f}" width="{axes.width}" '
            f'height="{axes.y(axes.low) - axes.y(1.0):.1f}"/>'
        ),
        *_grid(axes, ticks, "{:.2f}".format),
        *_categories(axes, [f"{level.value:g}" for level in levels], _axis_title(levels)),
        f'<line class="one" x1="{axes.left}" x2="{axes.left + axes.width}" y1="{axes.y(1):.1f}" y2="{axes.y(1):.1f}"/>',
        _text(axes.left + axes.width + 10, axes.y(1.0) - 8, "slower with speculation", "note", "start"),
        _text(axes.left + axes.width + 10, axes.y(1.0) + 17, "faster with speculation", "note", "start"),
        *_legend(axes, [(f"s{i}", _MARKERS[i % 4], segment) for i, segment in enumerate(segments)]),
    ]
    for number, segment in enumerate(segments):
        offset = 22.0 * (number - (len(segments) - 1) / 2)
        for index, level in enumerate(levels):
            comparison = find_comparison(summary, segment, level, MetricName.E2E)
            x = axes.x(index, len(levels), offset)
            if comparison is None:
                continue
            if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
                parts.append(_text(x, axes.y(axes.low) - 6, "void", "note", "middle"))
                continue
            high = comparison.ci_high
            y_low, y_high = axes.y(comparison.ci_low), axes.y(high)
            tip = f"{segment}, {level}: {comparison.ratio:.2f} [{comparison.ci_low:.2f}, {high:.2f}]"
            parts.append(
                f'<g class="s{number % 6}"><title>{escape(tip)}</title>'
                f'<path class="interval" d="M{x:.1f} {y_low:.1f}V{y_high:.1f}M{x - 5:.1f} {y_low:.1f}h10'
                f'M{x - 5:.1f} {y_high:.1f}h10"/>{_marker(_MARKERS[number % 4], x, axes.y(comparison.ratio))}</g>'
            )
    return _svg(980, 330, f"e2e on/off ratio by concurrency, {', '.join(segments)}", parts)


def medians_plot(summary: RunSummary, metric: MetricName) -> Markup:
    """p50 of one metric by concurrency, off beside on; one panel per segment on a common scale."""
    segments = list(dict.fromkeys(cell.segment for cell in summary.cells))
    levels = sorted({cell.load for cell in summary.cells}, key=_by_value)

    def median(segment: str, level: Load, arm: Arm) -> float | None:
        cell = find_cell(summary, segment, level, arm)
        return None if cell is None else metric_percentiles(cell, metric).p50

    values = [v for s in segments for level in levels for arm in (Arm.OFF, Arm.ON) if (v := median(s, level, arm))]
    if not values:
        return Markup('<p class="empty">No cell has enough requests for a median.</p>')
    ticks = _ticks(0, max(values))
    width = 980 / max(len(segments), 2)
    parts: list[str] = []
    for number, segment in enumerate(segments):
        axes = _Axes(52 + number * width, 40, width - 76, 170, ticks[0], ticks[-1])
        parts += [
            _text(axes.left, 26, segment, "panel", "start"),
            *_grid(axes, ticks, "{:,.0f}".format),
            *_categories(axes, [f"{level.value:g}" for level in levels], _axis_title(levels)),
        ]
        for arm, marker in ((Arm.OFF, "circle"), (Arm.ON, "square")):
            points = [
                (axes.x(index, len(levels)), axes.y(value), value, level)
                for index, level in enumerate(levels)
                if (value := median(segment, level, arm)) is not None
            ]
            parts.append(_line_with_markers(points, arm, marker, f"{segment}, {arm}"))
    name = "e2e" if metric is MetricName.E2E else metric.value.upper()
    return _svg(980, 256, f"p50 of {name} in milliseconds by concurrency, off and on", parts)


def _axis_title(levels: Sequence[Load]) -> str:
    return "requests/s" if levels[0].concurrency is None else "concurrency"


def _line_with_markers(points: Sequence[tuple[float, float, float, Load]], arm: Arm, marker: str, label: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
    markers = "".join(
        f"<g><title>{escape(f'{label}, {level}: {value:,.0f} ms')}</title>{_marker(marker, x, y)}</g>"
        for x, y, value, level in points
    )
    return f'<g class="arm-{arm}"><polyline points="{path}"/>{markers}</g>'


def _grid(axes: _Axes, ticks: Sequence[float], label: Callable[[float], str]) -> list[str]:
    parts: list[str] = []
    for tick in ticks:
        y = axes.y(tick)
        parts.append(f'<line class="grid" x1="{axes.left}" x2="{axes.left + axes.width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(axes.left - 8, y + 4, label(tick), "tick", "end"))
    return parts


def _categories(axes: _Axes, names: Sequence[str], title: str) -> list[str]:
    bottom = axes.top + axes.height
    marks = [_text(axes.x(i, len(names)), bottom + 18, name, "tick", "middle") for i, name in enumerate(names)]
    return [*marks, _text(axes.left + axes.width / 2, bottom + 36, title, "tick", "middle")]


def _legend(axes: _Axes, entries: Sequence[tuple[str, str, str]]) -> list[str]:
    parts: list[str] = []
    x = axes.left + 4
    for css_class, marker, name in entries:
        parts.append(f'<g class="{css_class}">{_marker(marker, x, 14)}</g>')
        parts.append(_text(x + 10, 18, name, "key", "start"))
        x += 36 + 7.5 * len(name)
    return parts


def _marker(shape: str, x: float, y: float) -> str:
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
    if shape == "square":
        return f'<rect x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"/>'
    if shape == "diamond":
        return f'<path class="dot" d="M{x:.1f} {y - 6.5:.1f}l6.5 6.5l-6.5 6.5l-6.5 -6.5z"/>'
    return f'<path class="dot" d="M{x:.1f} {y - 6:.1f}l6 10.5h-12z"/>'


def _text(x: float, y: float, text: str, css_class: str, anchor: str) -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> Markup:
    return Markup(  # noqa: S704 - every text in `parts` went through escape()
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _ticks(low: float, high: float) -> list[float]:
    """Four to seven round values that enclose [low, high]."""
    if high <= low:
        high = low + 1
    step = 10 ** floor(log10((high - low) / 4))
    for factor in (1, 2, 2.5, 5, 10):
        first, last = floor(low / (step * factor)), ceil(high / (step * factor))
        if last - first <= 6:
            return [round(number * step * factor, 10) for number in range(first, last + 1)]
    return [low, high]
