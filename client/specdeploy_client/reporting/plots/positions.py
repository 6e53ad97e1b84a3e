"""Acceptance by position in the draft: how deep drafting is worth it."""

from collections.abc import Sequence

from markupsafe import Markup

from specdeploy.charts.svg import Point, circle, group, line, polyline, rect, svg, text

WIDTH, HEIGHT = 276, 206
_LEFT, _RIGHT, _TOP, _BOTTOM = 32.0, 272.0, 10.0, 164.0


def conditional(marginal: Sequence[float]) -> list[float | None]:
    """P(position i accepted | all before it were): rate i / rate i - 1, None where nothing got that far."""
    before = [1.0, *marginal]
    return [rate / earlier if earlier > 0 else None for rate, earlier in zip(marginal, before, strict=False)]


def positions_plot(segment: str, marginal: Sequence[float]) -> Markup:
    """Bars: drafts accepted up to position i / drafts. Line: of those that got to i, how many went on."""
    if not marginal:
        return Markup('<p class="empty">Not measurable: the server does not count by position.</p>')
    slot = (_RIGHT - _LEFT) / len(marginal)
    width = min(slot * 0.62, 44)
    parts = [
        part
        for tick in (0.0, 0.25, 0.5, 0.75, 1.0)
        for part in (
            line(_LEFT, _y(tick), _RIGHT, _y(tick), "grid"),
            text(_LEFT - 7, _y(tick) + 4, f"{100 * tick:.0f}", anchor="end"),
        )
    ]
    points: list[Point] = []
    for number, (rate, further) in enumerate(zip(marginal, conditional(marginal), strict=True)):
        middle = _LEFT + slot * (number + 0.5)
        tip = f"{segment}, position {number + 1}: {100 * rate:.1f} % of drafts are accepted up to here"
        parts.append(group([rect(middle - width / 2, _y(rate), width, _BOTTOM - _y(rate), "accepted", 2)], tip))
        if width >= 24 or number % 2 == 0:
            parts.append(text(middle, _BOTTOM - 6 if rate > 0.12 else _y(rate) - 5, f"{100 * rate:.0f}", "bar-label"))
        parts.append(text(middle, _BOTTOM + 17, str(number + 1)))
        if further is not None:
            points.append((middle, _y(further)))
    parts.append(polyline(points, "conditional"))
    parts += [circle(*point, 3.2, "conditional-dot") for point in points]
    parts.append(text((_LEFT + _RIGHT) / 2, _BOTTOM + 37, "position in the draft", "tick title"))
    return svg(WIDTH, HEIGHT, f"{segment}: acceptance by position in the draft", parts)


def _y(rate: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * min(rate, 1.0)
