"""What is made of the measured seconds: ratios with their intervals, and how they stand against a goal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

_TOO_FEW_FOR_AN_INTERVAL = 3


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of one arm over the median of another on the same prompts, with a 95 % paired bootstrap interval.

    `low` and `high` are None below three pairs: an interval would say nothing.
    """

    value: float
    low: float | None
    high: float | None
    num_pairs: int

    def text(self) -> str:
        """As a table shows it."""
        if self.low is None or self.high is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Goal:
    """What a ratio should reach (`wanted`) and must reach (`needed`). `is_floor`: larger is better."""

    wanted: float
    needed: float | None = None
    is_floor: bool = True

    def verdict(self, value: float) -> str:
        """`reached`, `short of the goal` (but past what is needed) or `missed`."""
        if self._holds(value, self.wanted):
            return "reached"
        if self.needed is not None and self._holds(value, self.needed):
            return "short of the goal"
        return "missed"

    def text(self) -> str:
        """As a table shows it."""
        sign = ">=" if self.is_floor else "<="
        needed = "" if self.needed is None else f", needed {sign} {self.needed:g}"
        return f"{sign} {self.wanted:g}{needed}"

    def _holds(self, value: float, bound: float) -> bool:
        return value >= bound if self.is_floor else value <= bound


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Counts over some requests, as `RequestStats` has them for one."""

    num_output_tokens: int
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None where nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def tokens_per_step(self) -> float | None:
        """Output tokens per target forward that emitted any; None where steps were not seen."""
        return self.num_output_tokens / self.num_steps if self.num_steps else None


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Ratio of the medians of two arms, pair i being the same prompt. Raises ValueError for lists that do not pair."""
    if not numerator or len(numerator) != len(denominator):
        raise ValueError(f"{len(numerator)} and {len(denominator)} measurements are no pairs")
    above, below = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    value = float(np.median(above) / np.median(below))
    if len(above) < _TOO_FEW_FOR_AN_INTERVAL:
        return Ratio(value, None, None, len(above))
    if np.ptp(above) == 0 and np.ptp(below) == 0:
        return Ratio(value, value, value, len(above))
    interval = stats.bootstrap(
        (above, below),
        lambda a, b, axis: np.median(a, axis=axis) / np.median(b, axis=axis),
        paired=True,
        vectorized=True,
        method="percentile",  # BCa needs a jackknife that a median of few pairs has not
        rng=0,
    ).confidence_interval
    return Ratio(value, float(interval.low), float(interval.high), len(above))


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with a final line break."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def optional(value: float | None, digits: int = 2) -> str:
    """A number for a table, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"
