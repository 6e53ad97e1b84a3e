"""Predicted against published step times and speed-ups, as one standalone SVG file with logarithmic axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

_COLOURS = (
    "#3b6fb6", "#d9822b", "#4b9e6a", "#a2559c", "#8a8d29", "#c0504d",
    "#5b5b5b", "#2aa3a3", "#7a5cc4", "#b8860b", "#2f7d32", "#d1478f",
)  # fmt: skip
_LEFT, _TOP, _SIDE, _KEY = 70.0, 48.0, 420.0, 16.0


@dataclass(frozen=True, slots=True)
class Point:
    """One cell."""

    published: float
    predicted: float
    is_held_out: bool
    label: str


def scatter_plot(title: str, unit: str, series: Sequence[tuple[str, Sequence[Point]]]) -> str:
    """SVG text: held-out points filled, fitted ones hollow; the diagonal is exact, the dotted lines are 15% off.

    Raises ValueError without any point.
    """
    values = [value for _, points in series for point in points for value in (point.published, point.predicted)]
    if not values:
        raise ValueError("there is no point to plot")
    low, high = log10(min(values)) - 0.05, log10(max(values)) + 0.05

    def place(value: float) -> float:
        return (log10(value) - low) / (high - low) * _SIDE

    parts = [_text(_LEFT, 22, title, "title"), *_axes(low, high, unit)]
    for factor, kind in ((1.0, "line"), (1.15, "dots"), (1 / 1.15, "dots")):
        parts.append(_diagonal(low, high, factor, kind))
    for index, (name, points) in enumerate(series):
        for point in sorted(points, key=lambda one: one.is_held_out):
            x, y = _LEFT + place(point.published), _TOP + _SIDE - place(point.predicted)
            parts.append(_mark(index, x, y, point.is_held_out, point.label))
        y = _TOP + 8 + _KEY * index
        parts.append(_mark(index, _LEFT + _SIDE + 18, y, True, name))
        parts.append(_text(_LEFT + _SIDE + 28, y + 4, name, "small"))
    y = _TOP + 8 + _KEY * (len(series) + 0.6)
    parts.append(_text(_LEFT + _SIDE + 14, y + 4, "filled: held out; hollow: fitted to", "small"))
    parts.append(_text(_LEFT + _SIDE + 14, y + 4 + _KEY, "dotted: 15% off", "small"))
    width, height = _LEFT + _SIDE + 330, _TOP + max(_SIDE + 48, _KEY * (len(series) + 3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img"><title>{escape(title)}</title>'
        "<style>text{font:12px sans-serif;fill:#333}.title{font-size:15px;font-weight:600}.small{font-size:11px}"
        ".middle{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#ddd}.line{stroke:#333}"
        ".dots{stroke:#999;stroke-dasharray:2 3}</style>"
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _mark(index: int, x: float, y: float, is_filled: bool, label: str) -> str:
    """Circles, then squares: a second round of the colours."""
    colour = _COLOURS[index % len(_COLOURS)]
    paint = f'fill="{colour if is_filled else "none"}" stroke="{colour}"><title>{escape(label)}</title>'
    if index < len(_COLOURS):
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" {paint}</circle>'
    return f'<rect x="{x - 2.8:.1f}" y="{y - 2.8:.1f}" width="5.6" height="5.6" {paint}</rect>'


def _axes(low: float, high: float, unit: str) -> list[str]:
    parts = []
    digits = (1, 2, 5) if high - low > 1 else (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    ticks = [digit * 10.0**power for power in range(floor(low), ceil(high) + 1) for digit in digits]
    for tick in ticks:
        at = (log10(tick) - low) / (high - low) * _SIDE
        if not 0 <= at <= _SIDE:
            continue
        x, y = _LEFT + at, _TOP + _SIDE - at
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}v{_SIDE}M{_LEFT} {y:.1f}h{_SIDE}"/>')
        parts.append(_text(x, _TOP + _SIDE + 16, f"{tick:g}", "small middle"))
        parts.append(_text(_LEFT - 6, y + 4, f"{tick:g}", "small end"))
    parts.append(_text(_LEFT + _SIDE / 2, _TOP + _SIDE + 36, f"published, {unit}", "middle"))
    middle = _TOP + _SIDE / 2
    parts.append(
        f'<text class="middle" transform="rotate(-90 18 {middle})" x="18" y="{middle}">predicted, {escape(unit)}</text>'
    )
    return parts


def _diagonal(low: float, high: float, factor: float, kind: str) -> str:
    shift = log10(factor)
    first, last = max(low, low - shift), min(high, high - shift)

    def at(value: float) -> float:
        return (value - low) / (high - low) * _SIDE

    return (
        f'<path class="{kind}" d="M{_LEFT + at(first):.1f} {_TOP + _SIDE - at(first + shift):.1f}'
        f'L{_LEFT + at(last):.1f} {_TOP + _SIDE - at(last + shift):.1f}"/>'
    )


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
