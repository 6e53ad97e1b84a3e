"""Whether two parts of a cell differ by more than chance: what some reasons against a comparison rest on."""

import math

import numpy as np
import numpy.typing as npt

from specdeploy_client.comparison.pairing import pair_rows
from specdeploy_client.records.table import ArmColumns

SURE = 0.001  # p value below which a shift of times is no chance
RARE = 0.01  # the same for differences that are asked for in other ways
_SWAPS = 400
_MAX_SWAPPED_PAIRS = 5_000

Floats = npt.NDArray[np.float64]


def is_slower(part: Floats, rest: Floats, ratio: float) -> bool:
    """Whether values of `part` [n] are larger than those of `rest` [m]: medians by `ratio`, and no chance.

    One-sided test of Mann and Whitney; NaN is left out.
    """
    part, rest = part[np.isfinite(part)], rest[np.isfinite(rest)]
    if not part.size or not rest.size or np.median(part) <= ratio * np.median(rest):
        return False
    from scipy.stats import mannwhitneyu  # takes a second to load, and seldom comes this far

    return bool(mannwhitneyu(part, rest, alternative="greater").pvalue < SURE)


def spread_difference(left: Floats, right: Floats) -> float:
    """Distance of two samples [n] of one size, over the mean of the left one: mean |i-th smallest - i-th smallest|."""
    return float(np.abs(np.sort(left) - np.sort(right)).mean() / left.mean())


def is_spread_difference_rare(left: Floats, right: Floats) -> bool:
    """Whether swapping the two values of pairs [n] at random seldom gives a `spread_difference` as large as theirs.

    Without a systematic difference the swap changes nothing (a permutation test for pairs). Of many pairs an even
    choice is looked at.
    """
    step = -(-len(left) // _MAX_SWAPPED_PAIRS)
    left, right = left[::step], right[::step]
    observed = spread_difference(left, right)
    rng = np.random.default_rng(0)  # a fixed seed: the same records are void for ever or never
    is_swapped = rng.random((_SWAPS, len(left))) < 0.5
    swapped = (
        spread_difference(np.where(row, right, left), np.where(row, left, right)) >= observed for row in is_swapped
    )
    return (1 + sum(swapped)) / (1 + _SWAPS) < RARE


def second_arm_ttft_ratio(off: ArmColumns, on: ArmColumns) -> tuple[float, float, float]:
    """TTFT of a prompt in the arm that sent it second / in the arm that sent it first, and its interval.

    What the arms themselves differ by cancels out: of on/off ratios (logarithms) where off came first, and where on
    did, half the difference is what coming second brings. The interval is (0, inf) where too few ran in one order.
    """
    off_rows, on_rows = pair_rows(off, on)
    ratios = np.log(on.ttft_ns[on_rows]) - np.log(off.ttft_ns[off_rows])
    is_usable = np.isfinite(ratios)
    is_off_first = off.send_ns[off_rows] < on.send_ns[on_rows]
    off_first, on_first = ratios[is_usable & is_off_first], ratios[is_usable & ~is_off_first]
    if not off_first.size or not on_first.size:
        return 1.0, 0.0, math.inf
    off_low, off_high = median_interval(off_first)
    on_low, on_high = median_interval(on_first)
    effect = float(np.median(off_first) - np.median(on_first)) / 2
    return math.exp(effect), math.exp((off_low - on_high) / 2), math.exp((off_high - on_low) / 2)


def median_interval(values: Floats) -> tuple[float, float]:
    """Two of the values [n] between which the median lies, missed on either side with a chance of `RARE` / 4 at most.

    How many values lie below the median is binomial, whatever they are distributed like (Conover 1999, section 3.2).
    Without enough values: (-inf, inf).
    """
    from scipy.stats import binom  # takes a second to load: only where it is needed

    rank = int(binom.ppf(RARE / 4, len(values), 0.5)) - 1  # the largest with P(fewer or as many below) under RARE / 4
    if rank < 0:
        return -math.inf, math.inf
    ordered = np.sort(values)
    return float(ordered[rank]), float(ordered[-1 - rank])


def first_quarter_ratio(arm: ArmColumns, ratio: float) -> float | None:
    """How many times as long the first quarter of the answers took as the last half; None below `ratio` or by chance.

    Per token where that is known for most, so that lengths play no part.
    """
    answered = _in_order(arm)
    has_tpot = len(answered) > 0 and np.isfinite(answered.tpot_ns).mean() > 0.5
    values = answered.tpot_ns if has_tpot else answered.e2e_ns
    first, last = values[: len(values) // 4], values[len(values) // 2 :]
    return float(np.nanmedian(first) / np.nanmedian(last)) if is_slower(first, last, ratio) else None


def first_round_ttft_ns(arm: ArmColumns, concurrency: int) -> tuple[float, float] | None:
    """Median TTFT of the first round of workers, and that of the first rounds of later blocks. None with fewer than 3.

    First rounds are compared with first rounds because all of them queue alike: everybody asks at once.
    """
    answered = _in_order(arm)
    medians: list[float] = []
    for block in dict.fromkeys(answered.block.tolist()):
        first_round = answered.ttft_ns[answered.block == block][:concurrency]
        if np.isfinite(first_round).any():
            medians.append(float(np.nanmedian(first_round)))
    return (medians[0], float(np.median(medians[1:]))) if len(medians) >= 3 else None


def _in_order(arm: ArmColumns) -> ArmColumns:
    """The answered requests in the order in which they were due."""
    answered = arm.rows(arm.is_answered)
    return answered.rows(np.argsort(answered.scheduled_ns, kind="stable"))
