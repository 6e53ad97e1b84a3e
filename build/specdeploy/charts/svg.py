"""The parts that every plot is made of. All texts pass through here and are escaped here."""

from collections.abc import Sequence

from markupsafe import Markup, escape

Point = tuple[float, float]


def svg(width: float, height: float, label: str, parts: Sequence[str], css_class: str = "plot") -> Markup:
    """One plot; `label` is what a screen reader says of it."""
    return Markup(  # noqa: S704 - every text in `parts` went through escape()
        f'<svg class="{css_class}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, content: str, css_class: str = "tick", anchor: str = "middle") -> str:
    """A text whose `anchor` (start, middle, end) is at (x, y)."""
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css_class: str) -> str:
    """A straight line."""
    return f'<line class="{css_class}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def rect(x: float, y: float, width: float, height: float, css_class: str, radius: float = 0) -> str:
    """A rectangle; never narrower or lower than nothing."""
    size = f'width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f'<rect class="{css_class}" x="{x:.1f}" y="{y:.1f}" {size} rx="{radius:g}"/>'


def polyline(points: Sequence[Point], css_class: str) -> str:
    """Points joined by straight lines."""
    return f'<polyline class="{css_class}" points="{_join(points)}"/>'


def polygon(points: Sequence[Point], css_class: str, clip: str | None = None) -> str:
    """A closed area, cut to the clip path `clip` if given."""
    clipped = "" if clip is None else f' clip-path="url(#{clip})"'
    return f'<polygon class="{css_class}" points="{_join(points)}"{clipped}/>'


def clip_path(name: str, x: float, y: float, width: float, height: float) -> str:
    """A rectangle that areas can be cut to. `name` must be unique on the page."""
    return f'<clipPath id="{escape(name)}">{rect(x, y, width, height, "clip")}</clipPath>'


def circle(x: float, y: float, radius: float, css_class: str) -> str:
    """A round marker: the off arm, or a ratio."""
    return f'<circle class="{css_class}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def square(x: float, y: float, half: float, css_class: str) -> str:
    """A square marker around (x, y): the on arm."""
    return rect(x - half, y - half, 2 * half, 2 * half, css_class, 1)


def group(parts: Sequence[str], tip: str, css_class: str = "mark") -> str:
    """Parts that show `tip` when pointed at."""
    return f'<g class="{css_class}"><title>{escape(tip)}</title>{"".join(parts)}</g>'


def _join(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
