"""on/off ratio against the load of one segment, its interval as a band, and where it crosses 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from specdeploy.charts.scales import LogScale, labelled, level_scale, ratio_scale, ratio_ticks
from specdeploy.charts.svg import Point, circle, clip_path, group, line, polygon, polyline, rect, svg, text

WIDTH, HEIGHT = 440, 274
LEFT, RIGHT, TOP, BOTTOM = 44.0, 428.0, 12.0, 218.0
_FOREST_WIDTH, _FOREST_HEIGHT = 132, 16


@dataclass(frozen=True, slots=True)
class RatioPoint:
    """One ratio with its interval. `tip` says it in words; `gap` is what stands at a level without a ratio.
    `is_indicative`: drawn hollow and dashed, because nothing is decided by it."""

    level: float
    interval: tuple[float, float, float] | None  # ratio, low, high, all > 0
    outcome: Literal["faster", "slower", "undecided", "void"]
    tip: str
    gap: str = "void"
    is_indicative: bool = False

    @property
    def css_class(self) -> str:
        return f"{self.outcome} indicative" if self.is_indicative else self.outcome


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the ratio crosses 1; an end that is None lies beyond the panel."""

    level: float
    low: float | None
    high: float | None
    tip: str


@dataclass(frozen=True, slots=True)
class Queue:
    """Levels above `limit` wait for each other."""

    limit: float
    tip: str


def ratio_panel(
    points: Sequence[RatioPoint],
    bounds: Sequence[float],
    *,
    label: str,
    axis_title: str,
    name: str,
    expected: int | None = None,
    crossing: Crossing | None = None,
    queue: Queue | None = None,
) -> Markup:
    """One panel, `points` in any order; `bounds` are ratios that its scale encloses. `name` is unique on the page."""
    ordered = sorted(points, key=lambda point: point.level)
    x = level_scale([*(p.level for p in ordered), *([] if expected is None else [float(expected)])], LEFT, RIGHT)
    y = ratio_scale(bounds, BOTTOM, TOP, headroom=1.2)
    parts = [
        *_halves(y, name),
        *_queued(ordered, queue, x),
        *_ratio_grid(y),
        *level_axis(x, [p.level for p in ordered], BOTTOM, axis_title, expected),
        *_band(_runs(ordered), x, y, name),
        line(LEFT, y.at(1), RIGHT, y.at(1), "one"),
        *_crossing(crossing, x, y),
        *(_mark(point, x, y) for point in ordered),
        text(LEFT + 6, TOP + 13, "slower with speculation", "note slower", "start"),
        text(LEFT + 6, BOTTOM - 7, "faster with speculation", "note faster", "start"),
    ]
    return svg(WIDTH, HEIGHT, label, parts)


def forest_row(point: RatioPoint, bounds: Sequence[float]) -> Markup:
    """One interval on a line, for a row of words: the mark at 1 is "no difference"."""
    x = ratio_scale(bounds, 5, _FOREST_WIDTH - 5)
    middle = _FOREST_HEIGHT / 2
    parts = [line(5, middle, _FOREST_WIDTH - 5, middle, "grid"), line(x.at(1), 1, x.at(1), _FOREST_HEIGHT - 1, "one")]
    if point.interval is not None:
        ratio, low, high = (x.at(value) for value in point.interval)
        parts += [
            rect(low, middle - 2.5, max(high - low, 1), 5, f"interval {point.css_class}", 2.5),
            circle(ratio, middle, 4.5, f"dot {point.css_class}"),
        ]
    return svg(_FOREST_WIDTH, _FOREST_HEIGHT, point.tip, parts, "forest")


def level_axis(
    x: LogScale, levels: Sequence[float], bottom: float, title: str, expected: int | None = None
) -> list[str]:
    """The levels below a panel and the expected one marked; log2, whatever the levels are."""
    values = sorted(set(levels))
    positions = [x.at(value) for value in values]
    parts = [
        part
        for value, at, is_shown in zip(values, positions, labelled(positions, 20), strict=True)
        for part in (
            line(at, bottom, at, bottom + 4, "axis"),
            text(at, bottom + 17, f"{value:g}") if is_shown else "",
        )
    ]
    parts.append(text((x.start + x.end) / 2, bottom + (35 if expected is None else 51), title, "tick title"))
    if expected is not None:
        at = x.at(expected)
        anchor = "start" if at < x.start + 40 else "end" if at > x.end - 40 else "middle"
        mark = polygon([(at, bottom + 21), (at - 4, bottom + 27), (at + 4, bottom + 27)], "expected")
        parts.append(group([mark, text(at, bottom + 36, "expected", "tick strong", anchor)], f"expected: {expected}"))
    return parts


def _halves(y: LogScale, name: str) -> list[str]:
    middle, width = y.at(1), RIGHT - LEFT
    return [
        clip_path(f"{name}-slower", LEFT, TOP, width, middle - TOP),
        clip_path(f"{name}-faster", LEFT, middle, width, BOTTOM - middle),
        rect(LEFT, middle, width, BOTTOM - middle, "gain"),
    ]


def _queued(ordered: Sequence[RatioPoint], queue: Queue | None, x: LogScale) -> list[str]:
    """Shades the levels at which requests wait for each other: both arms then measure that queue."""
    above = [] if queue is None else [point.level for point in ordered if point.level > queue.limit]
    if queue is None or not above:
        return []
    start = x.at((max(queue.limit, 1) * above[0]) ** 0.5)
    label = text(RIGHT - 6, TOP + 13, "queued", "note", "end")
    return [group([rect(start, TOP, RIGHT - start, BOTTOM - TOP, "queue-area"), label], queue.tip)]


def _ratio_grid(y: LogScale) -> list[str]:
    return [
        part
        for tick in ratio_ticks(y, 17)
        for part in (
            line(LEFT, y.at(tick), RIGHT, y.at(tick), "grid"),
            text(LEFT - 7, y.at(tick) + 4, f"{tick:g}", "tick strong" if tick == 1 else "tick", "end"),
        )
    ]


def _runs(ordered: Sequence[RatioPoint]) -> list[list[tuple[float, tuple[float, float, float]]]]:
    """Neighbouring levels with a ratio: a band must not run across a level without one."""
    runs: list[list[tuple[float, tuple[float, float, float]]]] = [[]]
    for point in ordered:
        if point.interval is None:
            runs.append([])
        else:
            runs[-1].append((point.level, point.interval))
    return [run for run in runs if run]


def _band(
    runs: Sequence[Sequence[tuple[float, tuple[float, float, float]]]], x: LogScale, y: LogScale, name: str
) -> list[str]:
    parts: list[str] = []
    for run in runs:
        upper: list[Point] = [(x.at(level), y.at(high)) for level, (_, _, high) in run]
        lower: list[Point] = [(x.at(level), y.at(low)) for level, (_, low, _) in run]
        outline = [*upper, *reversed(lower)]
        parts += [polygon(outline, f"band {side}", f"{name}-{side}") for side in ("slower", "faster")]
        parts.append(polyline([(x.at(level), y.at(ratio)) for level, (ratio, _, _) in run], "trend"))
    return parts


def _mark(point: RatioPoint, x: LogScale, y: LogScale) -> str:
    at = x.at(point.level)
    if point.interval is None:
        cross = line(at - 5, y.at(1) - 5, at + 5, y.at(1) + 5, "void-mark") + line(
            at - 5, y.at(1) + 5, at + 5, y.at(1) - 5, "void-mark"
        )
        return group([cross, text(at, y.at(1) - 10, point.gap, "note")], point.tip)
    ratio, low, high = (y.at(value) for value in point.interval)
    tone = point.css_class
    return group(
        [
            line(at, low, at, high, f"whisker {tone}"),
            line(at - 4, low, at + 4, low, f"whisker {tone}"),
            line(at - 4, high, at + 4, high, f"whisker {tone}"),
            circle(at, ratio, 4.5, f"dot {tone}"),
        ],
        point.tip,
    )


def _crossing(crossing: Crossing | None, x: LogScale, y: LogScale) -> list[str]:
    """The crossover as a vertical mark through the line at 1, its interval as a shaded column."""
    if crossing is None:
        return []
    at = x.at(crossing.level)
    low = x.start if crossing.low is None else x.at(crossing.low)
    high = x.end if crossing.high is None else x.at(crossing.high)
    side = -1 if at > (x.start + x.end) / 2 else 1  # where there is room for the words
    words = f"crossover {crossing.level:.1f}"
    label = text(at + 6 * side, BOTTOM - 27, words, "crossing-label", "end" if side < 0 else "start")
    mark = [(at, y.at(1) - 7), (at + 7, y.at(1)), (at, y.at(1) + 7), (at - 7, y.at(1))]
    area = rect(low, TOP, high - low, BOTTOM - TOP, "crossing-area")
    return [group([area, line(at, TOP, at, BOTTOM, "crossing"), label, polygon(mark, "crossing-mark")], crossing.tip)]
