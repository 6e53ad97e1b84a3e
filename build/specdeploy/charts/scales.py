"""From values to positions, and which values deserve a tick."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log2, log10

_RATIO_TICKS = (
    *(0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    *(1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0),
)
MIN_RATIO, MAX_RATIO = _RATIO_TICKS[0], _RATIO_TICKS[-1]  # what lies beyond is drawn at the border
_MAX_DECADES = 12


@dataclass(frozen=True, slots=True)
class LogScale:
    """Equal distances are equal ratios. `low` and `high` > 0 lie at positions `start` and `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of `value`; beyond the ends it is the end."""
        share = (log2(min(max(value, self.low), self.high)) - log2(self.low)) / (log2(self.high) - log2(self.low))
        return self.start + (self.end - self.start) * share


def level_scale(levels: Iterable[float], start: float, end: float, padding: float = 0.35) -> LogScale:
    """The log2 axis of load levels, with `padding` octaves beside the outermost; one level alone is in the middle."""
    values = sorted(levels)
    pad = 2**padding
    return LogScale(values[0] / pad, values[-1] * pad, start, end)


def ratio_scale(values: Iterable[float], start: float, end: float, headroom: float = 1.0) -> LogScale:
    """An axis of on/off ratios that encloses `values` and 1, no narrower than 0.8 to 1.25.

    `headroom`: a factor of room beyond the outermost values.
    """
    known = list(values)
    bounds = [0.8, 1.25, *(value * headroom for value in known), *(value / headroom for value in known)]
    low = max((tick for tick in _RATIO_TICKS if tick <= min(bounds)), default=MIN_RATIO)
    high = min((tick for tick in _RATIO_TICKS if tick >= max(bounds)), default=MAX_RATIO)
    return LogScale(low, high, start, end)


def ratio_ticks(scale: LogScale, min_gap: float) -> list[float]:
    """Ticks of a ratio axis at least `min_gap` apart; 1 is always among them."""
    inside = [tick for tick in _RATIO_TICKS if scale.low <= tick <= scale.high]
    kept = [1.0]
    for tick in sorted(inside, key=lambda tick: abs(log2(tick))):
        if all(abs(scale.at(tick) - scale.at(other)) >= min_gap for other in kept):
            kept.append(tick)
    return sorted(kept)


def duration_scale(values: Iterable[float], start: float, end: float) -> LogScale:
    """A log axis that encloses `values` > 0 between round values (1, 2, 5 times a power of ten)."""
    known = list(values)
    ticks = _one_two_five(min(known), max(known))
    return LogScale(ticks[0], ticks[-1], start, end)


def duration_ticks(scale: LogScale, min_gap: float) -> list[float]:
    """Round values within the scale, at least `min_gap` apart; powers of ten win over their halves and fifths."""
    kept: list[float] = []
    for tick in sorted(_one_two_five(scale.low, scale.high), key=lambda tick: log10(tick) % 1 > 1e-9):
        if scale.low <= tick <= scale.high and all(abs(scale.at(tick) - scale.at(other)) >= min_gap for other in kept):
            kept.append(tick)
    return sorted(kept)


def labelled(positions: Sequence[float], min_gap: float) -> list[bool]:
    """Which of the ascending `positions` get a label, so that neighbours keep `min_gap`; the last one always does."""
    shown = [False] * len(positions)
    last = float("inf")
    for index in range(len(positions) - 1, -1, -1):
        if last - positions[index] >= min_gap:
            shown[index], last = True, positions[index]
    return shown


def narrowest_gap(positions: Sequence[float], default: float) -> float:
    """The smallest distance between neighbours of the ascending `positions`, at most `default`."""
    return min([default, *(later - earlier for earlier, later in pairwise(positions))])


def _one_two_five(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from the last at or below `low` to the first at or above `high`."""
    first, last = floor(log10(low)), ceil(log10(high))
    last = min(last, first + _MAX_DECADES)
    every = [factor * 10.0**power for power in range(first, last + 1) for factor in (1, 2, 5)]
    below = [tick for tick in every if tick <= low * (1 + 1e-9)]
    above = [tick for tick in every if tick >= high * (1 - 1e-9) and tick > below[-1]]
    return [below[-1], *(tick for tick in every if below[-1] < tick < above[0]), above[0]]
