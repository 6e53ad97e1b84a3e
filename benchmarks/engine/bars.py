"""A bar plot as one standalone SVG file: groups of bars with intervals, and lines at given heights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil

_COLOURS = ("#3b6fb6", "#d9822b", "#4b9e6a", "#a2559c", "#8a8d29", "#c0504d", "#5b5b5b", "#2aa3a3")
_LEFT, _TOP, _HEIGHT, _BAR, _GAP = 48.0, 56.0, 220.0, 18.0, 26.0
_KEY_WIDTH = 170.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One value and its interval; None for the interval where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


def bar_plot(title: str, groups: Mapping[str, Mapping[str, Bar]], lines: Sequence[tuple[float, str]] = ()) -> str:
    """SVG text. `groups`: name of a group -> name of a series -> its bar; `lines`: heights with their labels.

    Raises ValueError without any bar.
    """
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    if not names:
        raise ValueError("there is no bar to plot")
    group_width = _BAR * len(names) + _GAP
    width = max(_LEFT + group_width * len(groups) + 130, 480.0)
    keys_per_line = max(1, int((width - _LEFT) // _KEY_WIDTH))
    top = _TOP + 16 * (ceil(len(names) / keys_per_line) - 1)
    tallest = max(bar.high or bar.value for bars in groups.values() for bar in bars.values())
    highest = ceil(max(tallest, *(height for height, _ in lines), 1.0) * 2) / 2

    def y(value: float) -> float:
        return top + _HEIGHT * (1 - value / highest)

    parts = [_text(_LEFT, 20, title, "title")]
    for index, name in enumerate(names):
        line, column = divmod(index, keys_per_line)
        parts += _key(_LEFT + _KEY_WIDTH * column, 34 + 16.0 * line, index, name)
    parts += _grid(width, highest, y)
    for height, label in lines:
        parts.append(f'<path class="line" d="M{_LEFT} {y(height):.1f}H{width - 120:.1f}"/>')
        parts.append(_text(width - 116, y(height) + 4, label, "small"))
    for number, (group, bars) in enumerate(groups.items()):
        x = _LEFT + _GAP / 2 + number * group_width
        parts.append(_text(x + _BAR * len(names) / 2, top + _HEIGHT + 18, group, "middle"))
        for index, name in enumerate(names):
            if name in bars:
                parts.append(_bar(x + index * _BAR, bars[name], index, f"{group}, {name}", y))
    return _document(width, top + _HEIGHT + 32, title, parts)


def _bar(x: float, bar: Bar, index: int, label: str, y: Callable[[float], float]) -> str:
    tip = f"{label}: {bar.value:.2f}"
    interval = ""
    if bar.low is not None and bar.high is not None:
        tip += f" ({bar.low:.2f}-{bar.high:.2f})"
        interval = f'<path class="interval" d="M{x + _BAR / 2 - 1:.1f} {y(bar.low):.1f}V{y(bar.high):.1f}"/>'
    height = y(0) - y(bar.value)
    return (
        f"<g><title>{escape(tip)}</title>"
        f'<rect x="{x:.1f}" y="{y(bar.value):.1f}" width="{_BAR - 2:.1f}" height="{height:.1f}" '
        f'fill="{_COLOURS[index % len(_COLOURS)]}"/>{interval}</g>'
    )


def _key(x: float, y: float, index: int, name: str) -> list[str]:
    colour = _COLOURS[index % len(_COLOURS)]
    return [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="10" height="10" fill="{colour}"/>',
        _text(x + 15, y + 9, name, "small"),
    ]


def _grid(width: float, highest: float, y: Callable[[float], float]) -> list[str]:
    step = 0.5 if highest <= 4 else 1.0
    parts = []
    for index in range(int(highest / step) + 1):
        value = index * step
        parts.append(f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{width - 120:.1f}"/>')
        parts.append(_text(_LEFT - 6, y(value) + 4, f"{value:g}", "end"))
    return parts


def _text(x: float, y: float, text: str, css_class: str) -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _document(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    style = (
        "svg{background:#fff;color:#222}text{font:12px sans-serif;fill:currentColor}"
        ".title{font-size:14px;font-weight:600}.small{font-size:11px}.middle{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#8884;stroke-width:1}"
        ".line{stroke:currentColor;stroke-dasharray:5 4}.interval{stroke:currentColor;stroke-width:1.5}"
        "@media(prefers-color-scheme:dark){svg{background:#16181c;color:#ddd}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(title)}"><style>{style}</style>{"".join(parts)}</svg>\n'
    )
