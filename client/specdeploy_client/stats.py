"""Intervals and tests on measured samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import bootstrap, fisher_exact

CONFIDENCE = 0.95
MIN_PAIRS = 8
_NUM_RESAMPLES = 9999


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """A ratio of medians with its confidence interval."""

    ratio: float
    low: float
    high: float


def ratio_of_medians(numerator: Sequence[float], denominator: Sequence[float], seed: int) -> RatioInterval:
    """median(numerator) / median(denominator) with a paired percentile bootstrap interval (95 %).

    Element i of both sequences belongs to the same prompt in the same block; pairs are resampled together (Efron and
    Tibshirani 1993, section 8.5), so differences between prompts do not widen the interval. The same `seed` gives the
    same interval. Raises `ValueError` for fewer than `MIN_PAIRS` pairs.
    """
    if len(numerator) < MIN_PAIRS or len(numerator) != len(denominator):
        raise ValueError(f"at least {MIN_PAIRS} pairs are needed, got {len(numerator)} and {len(denominator)}")
    result = bootstrap(
        (np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)),
        _median_ratio,
        paired=True,
        vectorized=True,
        n_resamples=_NUM_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return RatioInterval(
        ratio=float(np.median(numerator) / np.median(denominator)),
        low=float(result.confidence_interval.low),
        high=float(result.confidence_interval.high),
    )


def excess_rate_p_value(num_hits: int, num_trials: int, floor_hits: int, floor_trials: int) -> float:
    """One-sided Fisher exact p that a rate is higher than a floor rate, given hits and trials of both."""
    table = [[num_hits, num_trials - num_hits], [floor_hits, floor_trials - floor_hits]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def _median_ratio(
    numerator: npt.NDArray[np.float64], denominator: npt.NDArray[np.float64], axis: int = -1
) -> npt.NDArray[np.float64]:
    ratio: npt.NDArray[np.float64] = np.median(numerator, axis=axis) / np.median(denominator, axis=axis)
    return ratio
