"""How far predictions are from what was published: relative errors, signs, crossovers, best K."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, log2
from statistics import median

from cells import Cell

# Around 1 a measured ratio says nothing about its sign: two runs of one server differ by about as much.
UNDECIDED = 0.02


@dataclass(frozen=True, slots=True)
class Prediction:
    """A cell beside what was predicted for it, in the cell's metric."""

    cell: Cell
    predicted: float

    @property
    def error(self) -> float:
        """(predicted - published) / published."""
        return self.predicted / self.cell.value - 1


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where speculation stops being faster, by concurrency; None = not at any published one."""

    name: str
    published: float | None
    predicted: float | None
    highest: float

    @property
    def doublings(self) -> float:
        """Distance in doublings of the concurrency; one that was not found counts from the highest published one."""
        if self.published is None and self.predicted is None:
            return 0.0
        return abs(log2((self.predicted or self.highest) / (self.published or self.highest)))


@dataclass(frozen=True, slots=True)
class BestLength:
    """The fastest of the published K."""

    name: str
    published: int
    predicted: int
    lengths: tuple[int, ...]

    @property
    def distance(self) -> int:
        """In places among the published K."""
        return abs(self.lengths.index(self.predicted) - self.lengths.index(self.published))


@dataclass(frozen=True, slots=True)
class SeriesScore:
    """One series. Errors are absolute and relative. Held-out cells with a published speed-up or slow-down: `num_signs`,
    of them `num_slowdowns` slow-downs, of those `num_slowdowns_found` predicted as such."""

    series: str
    title: str
    kind: str
    num_fit: int
    num_held_out: int
    fit_median: float
    held_out_median: float
    held_out_worst: float
    num_signs: int
    num_slowdowns: int
    num_slowdowns_found: int
    sign_errors: tuple[str, ...]
    crossovers: tuple[Crossover, ...] = ()
    best_lengths: tuple[BestLength, ...] = ()


def median_error(predictions: Sequence[Prediction]) -> float:
    """Median of the absolute relative errors; nan without any."""
    return median(abs(one.error) for one in predictions) if predictions else float("nan")


def worst_error(predictions: Sequence[Prediction]) -> float:
    """Largest absolute relative error; nan without any."""
    return max((abs(one.error) for one in predictions), default=float("nan"))


def is_sign_error(published: float, predicted: float) -> bool:
    """Published as faster but predicted as slower, or the other way round. Ratios off/on, above 1 = faster."""
    return abs(published - 1) > UNDECIDED and (published > 1) != (predicted > 1)


def crossing(ratios: Sequence[tuple[float, float]]) -> float | None:
    """First concurrency at which a ratio off/on falls to 1, between two points on a logarithmic axis.

    `ratios`: (concurrency, ratio), concurrency rising.
    """
    before: tuple[float, float] | None = None
    for concurrency, ratio in ratios:
        if ratio <= 1:
            if before is None:
                return concurrency
            share = (before[1] - 1) / (before[1] - ratio)
            return before[0] * exp(share * log(concurrency / before[0]))
        before = (concurrency, ratio)
    return None


def interpolated(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """y at x on straight lines in log x; None outside the points. Points (x, y) with x rising."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * log(x / x0) / log(x1 / x0)
    return None
