"""Latency percentiles of one metric and segment by load: the off arm beside the on arm, p50 to p99."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from specdeploy.charts.ratio_panel import level_axis
from specdeploy.charts.scales import (
    LogScale,
    duration_scale,
    duration_ticks,
    level_scale,
    narrowest_gap,
)
from specdeploy.charts.svg import circle, group, line, polyline, square, svg, text
from specdeploy.run_contract import Arm, Load, Percentiles
from specdeploy_client.reporting.plots.ratios import axis_title

WIDTH, HEIGHT = 276, 226
_LEFT, _RIGHT, _TOP, _BOTTOM = 42.0, 272.0, 10.0, 184.0
_MAX_OFFSET = 7.0


@dataclass(frozen=True, slots=True)
class LatencySeries:
    """One metric of one segment: its percentiles in ms by load, for both arms."""

    segment: str
    metric: str
    off: Mapping[Load, Percentiles]
    on: Mapping[Load, Percentiles]

    @property
    def loads(self) -> list[Load]:
        """Loads at which one of the arms has a median, in order."""
        known = {load for arm in (self.off, self.on) for load, values in arm.items() if values.p50}
        return sorted(known, key=lambda load: load.value)


def latency_plot(series: LatencySeries) -> Markup:
    """A dot at p50, a thick bar to p90 and a thin one to p99, as far as the samples support them; log scale."""
    loads = series.loads
    if not loads:
        return Markup('<p class="empty">Too few requests for a median.{}</p>').format(_means(series))
    x = level_scale([load.value for load in loads], _LEFT, _RIGHT)
    known = [v for arm in (series.off, series.on) for load in loads if load in arm for v in _supported(arm[load])]
    y = duration_scale(known, _BOTTOM, _TOP)
    places = [x.at(load.value) for load in loads]
    offset = min(_MAX_OFFSET, narrowest_gap(places, 60.0) / 4)
    parts = [
        part
        for tick in duration_ticks(y, 19)
        for part in (
            line(_LEFT, y.at(tick), _RIGHT, y.at(tick), "grid"),
            text(_LEFT - 7, y.at(tick) + 4, format_tick(tick), anchor="end"),
        )
    ]
    parts += level_axis(x, [load.value for load in loads], _BOTTOM, axis_title(loads[0]))
    for arm, values, shift in ((Arm.OFF, series.off, -offset), (Arm.ON, series.on, offset)):
        parts += _arm(series, arm, {load: values[load] for load in loads if load in values}, shift, x, y)
    return svg(WIDTH, HEIGHT, f"{series.segment}: {series.metric} in ms by load, off and on, p50 to p99", parts)


def _means(series: LatencySeries) -> str:
    """` Mean at concurrency 1: 1,771 off, 1,619 on.` for every load, or nothing where there is none."""
    arms = ((Arm.OFF, series.off), (Arm.ON, series.on))
    said = ""
    for load in sorted({*series.off, *series.on}, key=lambda load: load.value):
        means = [
            f"{format_ms(mean)} {arm}"
            for arm, values in arms
            if load in values and (mean := values[load].mean) is not None
        ]
        said += f" Mean at {load}: {', '.join(means)}." if means else ""
    return said


def format_tick(value: float) -> str:
    """A round value, short enough for an axis: 0.5, 200, 5,000, 20k."""
    return f"{value / 1000:,g}k" if value >= 10_000 else f"{value:,g}"


def format_ms(value: float | None) -> str:
    """Milliseconds with three digits that matter; an en dash for what the sample does not support."""
    if value is None:
        return "\N{EN DASH}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _arm(
    series: LatencySeries, arm: Arm, values: Mapping[Load, Percentiles], shift: float, x: LogScale, y: LogScale
) -> list[str]:
    medians = [(x.at(load.value) + shift, y.at(v.p50)) for load, v in values.items() if v.p50]
    parts = [polyline(medians, f"medians {arm}")] if len(medians) > 1 else []
    for load, percentiles in values.items():
        if not percentiles.p50:
            continue
        at, median = x.at(load.value) + shift, y.at(percentiles.p50)
        marks: list[str] = []
        for far, css_class in ((percentiles.p99, "tail"), (percentiles.p90, "body")):
            if far:
                marks.append(line(at, median, at, y.at(far), f"{css_class} {arm}"))
                marks.append(line(at - 4, y.at(far), at + 4, y.at(far), f"end {arm}"))
        marks.append(circle(at, median, 4, f"dot {arm}") if arm is Arm.OFF else square(at, median, 3.7, f"dot {arm}"))
        listed = ", ".join(
            f"{name} {format_ms(value)}"
            for name, value in zip(("p50", "p90", "p95", "p99"), _all(percentiles), strict=True)
            if value is not None
        )
        parts.append(group(marks, f"{series.segment}, {load}, {series.metric}, speculation {arm}: {listed} ms"))
    return parts


def _all(percentiles: Percentiles) -> Sequence[float | None]:
    return (percentiles.p50, percentiles.p90, percentiles.p95, percentiles.p99)


def _supported(percentiles: Percentiles) -> list[float]:
    return [value for value in (percentiles.p50, percentiles.p90, percentiles.p99) if value]
