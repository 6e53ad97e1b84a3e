"""Intervals and tests on measured samples.

scipy is imported where it is needed: it takes a second to load, which no command that only reads files should wait for.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# One comparison of a run without a difference lies outside its interval once in a hundred times. A verdict looks at a
# handful of comparisons, so that at 0.95 more than one run in twenty would raise a false alarm.
CONFIDENCE = 0.99
MIN_PAIRS = 8
MAX_PAIRS_NEEDED = 1_000_000  # beyond it no run is long enough to ask for

# Resamples that lie beyond each end of an interval: fewer make its ends depend on the seed.
_TAIL_RESAMPLES = 25
# From this many pairs beyond the quantile on, bootstrap samples are drawn by their ranks alone; see `_draw_by_rank`.
_MIN_TAIL_FOR_RANKS = 25
_CHUNK_ELEMENTS = 2_000_000
# How many degrees of freedom the belief weighs that pairs of one block are as different as pairs of different blocks.
_PRIOR_BLOCKS = 5

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """A ratio of two percentiles with its confidence interval, from `num_pairs` pairs."""

    ratio: float
    low: float
    high: float
    num_pairs: int

    def excludes(self, limit: float) -> bool:
        """Whether the whole interval lies on one side of `limit`."""
        return self.high < limit or self.low > limit


def ratio_of_percentiles(
    off: npt.ArrayLike,
    on: npt.ArrayLike,
    quantile: float,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    *,
    blocks: Ints | None = None,
) -> RatioInterval:
    """quantile(on) / quantile(off) of positive values [n] with a paired percentile bootstrap interval.

    Element i of both belongs to the same request; pairs are resampled together (Efron and Tibshirani 1993, sections 8.5
    and 13.3), so differences between prompts do not widen the interval. `blocks` [n] says which pairs were measured
    close together: where pairs of a block resemble each other, the interval is widened by `block_widening`.
    The same `seed` gives the same interval. Raises `ValueError` for fewer than `MIN_PAIRS` pairs.
    """
    off, on = np.asarray(off, dtype=np.float64), np.asarray(on, dtype=np.float64)
    draws = bootstrap_log_ratios(
        off, on, quantile, confidence, num_resamples(confidence), np.random.default_rng(seed), blocks=blocks
    )
    estimate = log_ratio(off, on, quantile)
    low, high = interval_ends(draws, confidence)
    return RatioInterval(
        ratio=math.exp(estimate),
        low=math.exp(min(estimate, low)),
        high=math.exp(max(estimate, high)),
        num_pairs=len(on),
    )


def log_ratio(off: Floats, on: Floats, quantile: float) -> float:
    """log(quantile(on) / quantile(off)), quantiles by linear interpolation of the logarithms."""
    return float(np.quantile(np.log(on), quantile) - np.quantile(np.log(off), quantile))


def num_resamples(confidence: float) -> int:
    """Bootstrap samples that put `_TAIL_RESAMPLES` beyond each end of an interval."""
    return round(_TAIL_RESAMPLES / ((1 - confidence) / 2))


def interval_ends(draws: Floats, confidence: float) -> tuple[float, float]:
    """The two values between which the share `confidence` of `draws` lies, equally much left out on both sides.

    Draws themselves, not interpolated, so that infinite ones are allowed.
    """
    tail = (1 - confidence) / 2
    low = np.quantile(draws, tail, method="inverted_cdf")
    return float(low), float(np.quantile(draws, 1 - tail, method="inverted_cdf"))


def bootstrap_log_ratios(
    off: Floats,
    on: Floats,
    quantile: float,
    confidence: float,
    num_draws: int,
    rng: np.random.Generator,
    *,
    blocks: Ints | None = None,
) -> Floats:
    """`log_ratio` of `num_draws` bootstrap samples of the pairs, spread for `blocks` as an interval of `confidence` is.

    Raises `ValueError` for fewer than `MIN_PAIRS` pairs.
    """
    if len(on) < MIN_PAIRS or len(on) != len(off):
        raise ValueError(f"at least {MIN_PAIRS} pairs are needed, got {len(off)} and {len(on)}")
    log_off, log_on = np.log(off), np.log(on)
    has_tail = len(on) * min(quantile, 1 - quantile) >= _MIN_TAIL_FOR_RANKS
    draw = _draw_by_rank if has_tail else _draw_pairs
    draws = draw(log_off, log_on, quantile, num_draws, rng)
    widening = 1.0 if blocks is None else block_widening(log_off, log_on, quantile, blocks, confidence)
    estimate = log_ratio(off, on, quantile)
    return estimate + (draws - estimate) * widening


def median_of_ratios(off: Floats, on: Floats) -> float:
    """Median over pairs of their own on/off ratios: what a typical request gains."""
    return float(np.median(on / off))


def pairs_needed(interval: RatioInterval, limit: float = 1.0) -> int | None:
    """Pairs after which an interval that contains `limit` is expected not to any more.

    Its ends come nearer with the square root of the number of pairs: n * (log(ratio / end) / log(ratio / limit))^2 for
    the end beyond the limit. None where it does not contain the limit, or where no affordable number would do.
    """
    if interval.excludes(limit):
        return None
    distance = math.log(interval.ratio / limit)
    reach = math.log(interval.high / interval.ratio) if distance < 0 else math.log(interval.ratio / interval.low)
    needed = math.inf if distance == 0 else interval.num_pairs * (reach / distance) ** 2
    return None if needed > MAX_PAIRS_NEEDED else max(math.ceil(needed), interval.num_pairs + 1)


def block_widening(log_off: Floats, log_on: Floats, quantile: float, blocks: Ints, confidence: float) -> float:
    """By what an interval grows because pairs of one block resemble each other; at least 1.

    A pair moves the ratio of two percentiles when it lies below one of them and above the other: its influence is
    [off <= quantile of off] - [on <= quantile of on]. The variance of the mean of these taken by whole blocks, over
    that taken by single pairs, is the design effect (Kish 1965, chapter 5). From a handful of blocks it is a rough
    estimate: it is moderated towards 1 with the weight of `_PRIOR_BLOCKS` and used with Student's t of all these
    degrees of freedom (the moderated variance of Smyth 2004, section 3, with a fixed prior).
    """
    influence = (log_off <= np.quantile(log_off, quantile)).astype(np.float64)
    influence -= log_on <= np.quantile(log_on, quantile)
    influence -= influence.mean()
    by_pair = float(np.square(influence).sum())
    _, block_of_pair = np.unique(blocks, return_inverse=True)
    num_blocks = int(block_of_pair.max()) + 1
    if num_blocks < 2 or by_pair == 0 or num_blocks == len(blocks):
        return 1.0
    by_block = float(np.square(np.bincount(block_of_pair, weights=influence)).sum()) * num_blocks / (num_blocks - 1)
    freedom = num_blocks - 1 + _PRIOR_BLOCKS
    effect = (_PRIOR_BLOCKS + (num_blocks - 1) * by_block / by_pair) / freedom
    return max(1.0, math.sqrt(effect) * _student_over_normal((1 - confidence) / 2, freedom))


def excess_rate_p_value(num_hits: int, num_trials: int, floor_hits: int, floor_trials: int) -> float:
    """One-sided Fisher exact p that a rate is higher than a floor rate, given hits and trials of both."""
    from scipy.stats import fisher_exact

    table = [[num_hits, num_trials - num_hits], [floor_hits, floor_trials - floor_hits]]
    return float(fisher_exact(table, alternative="greater").pvalue)


def _student_over_normal(tail: float, freedom: int) -> float:
    """By what Student's t of `freedom` degrees lies further out than the normal quantile that leaves out `tail`."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(freedom, tail) / ndtri(tail))


def _draw_pairs(log_off: Floats, log_on: Floats, quantile: float, num_draws: int, rng: np.random.Generator) -> Floats:
    """Bootstrap samples by drawing pairs, a chunk at a time to bound the memory."""
    num_pairs = len(log_on)
    step = max(1, _CHUNK_ELEMENTS // num_pairs)
    chunks: list[Floats] = []
    for first in range(0, num_draws, step):
        drawn = rng.integers(num_pairs, size=(min(step, num_draws - first), num_pairs), dtype=np.int32)
        chunks.append(_quantile_rows(log_on[drawn], quantile) - _quantile_rows(log_off[drawn], quantile))
    return np.concatenate(chunks)


def _quantile_rows(values: Floats, quantile: float) -> Floats:
    """np.quantile over the last axis, without its copies; reorders `values`."""
    position = quantile * (values.shape[1] - 1)
    below = math.floor(position)
    above = min(below + 1, values.shape[1] - 1)
    values.partition((below, above), axis=1)
    result: Floats = values[:, below] + (values[:, above] - values[:, below]) * (position - below)
    return result


def _draw_by_rank(log_off: Floats, log_on: Floats, quantile: float, num_draws: int, rng: np.random.Generator) -> Floats:
    """Bootstrap samples without drawing pairs; the cost does not grow with their number.

    The quantile of a sample moves up by as many ranks as the sample lacks values below the true quantile (the
    representation of Bahadur 1966). How many values lie below it in both arms is multinomial over the four cases "below
    it in off, in on, in both, in none", which keeps the pairs together.
    """
    num_pairs = len(log_on)
    below_off, below_on = log_off <= np.quantile(log_off, quantile), log_on <= np.quantile(log_on, quantile)
    shares = np.bincount(below_off + 2 * below_on.astype(np.int64), minlength=4) / num_pairs
    counts = rng.multinomial(num_pairs, shares, size=num_draws)

    def draw(values: Floats, num_below: Ints, share_below: float) -> Floats:
        ranks = quantile * (num_pairs - 1) + share_below * num_pairs - num_below
        return np.interp(ranks, np.arange(num_pairs), np.sort(values))

    on = draw(log_on, counts[:, 2] + counts[:, 3], shares[2] + shares[3])
    off = draw(log_off, counts[:, 1] + counts[:, 3], shares[1] + shares[3])
    return on - off
