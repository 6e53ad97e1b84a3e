"""Intervals of ratios hold what they promise, and the excess-rate test behaves as its users assume."""

import math

import numpy as np
import pytest
from scipy.stats import norm, t

from specdeploy_client.comparison.stats import (
    MAX_PAIRS_NEEDED,
    Floats,
    RatioInterval,
    block_widening,
    bootstrap_log_ratios,
    excess_rate_p_value,
    interval_ends,
    median_of_ratios,
    num_resamples,
    pairs_needed,
    ratio_of_percentiles,
)


def _pairs(ratio: float, num_pairs: int = 40, noise: float = 0.02, seed: int = 7) -> tuple[Floats, Floats]:
    """(off, on): prompts differ by half, both arms of a prompt by little."""
    rng = np.random.default_rng(seed)
    off = rng.lognormal(3.0, 0.5, num_pairs)
    return off, off * ratio * rng.lognormal(0.0, noise, num_pairs)


def test_a_real_difference_lies_inside_an_interval_narrower_than_that_of_unpaired_samples() -> None:
    off, on = _pairs(0.6)
    paired = ratio_of_percentiles(off, on, 0.5, seed=1)
    unpaired = ratio_of_percentiles(off, np.roll(on, 7), 0.5, seed=1)
    assert paired.low < 0.6 < paired.high
    assert paired.low <= paired.ratio <= paired.high
    assert math.log(paired.high / paired.low) < 0.5 * math.log(unpaired.high / unpaired.low)


def test_the_ratio_is_on_over_off_of_the_percentile_asked_for() -> None:
    off = np.arange(1.0, 1001.0)
    on = np.where(off > 900, 2 * off, off)
    assert ratio_of_percentiles(off, on, 0.5).ratio == pytest.approx(1.0)
    assert ratio_of_percentiles(off, on, 0.99, 0.8).ratio == pytest.approx(2.0, rel=0.01)
    assert ratio_of_percentiles(on, off, 0.99, 0.8).ratio == pytest.approx(0.5, rel=0.01)


def test_the_same_seed_gives_the_same_interval_and_zero_is_a_seed() -> None:
    off, on = _pairs(0.8, num_pairs=300)
    assert ratio_of_percentiles(off, on, 0.5, seed=0) == ratio_of_percentiles(off, on, 0.5, seed=0)
    assert ratio_of_percentiles(off, on, 0.5, seed=0) != ratio_of_percentiles(off, on, 0.5, seed=1)


def test_more_confidence_is_a_wider_interval_with_as_many_samples_beyond_its_ends() -> None:
    off, on = _pairs(1.0, noise=0.1)
    narrow, wide = (ratio_of_percentiles(off, on, 0.5, confidence) for confidence in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high
    assert (num_resamples(0.9), num_resamples(0.99)) == (500, 5000)


def test_identical_values_give_a_point() -> None:
    interval = ratio_of_percentiles([10.0] * 10, [5.0] * 10, 0.5)
    assert (interval.low, interval.ratio, interval.high) == pytest.approx((0.5, 0.5, 0.5))


def test_too_few_or_unmatched_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8"):
        ratio_of_percentiles([1.0] * 7, [1.0] * 7, 0.5)
    with pytest.raises(ValueError, match="at least 8"):
        ratio_of_percentiles([1.0] * 9, [1.0] * 8, 0.5)


@pytest.mark.parametrize(("num_pairs", "quantile"), [(20, 0.5), (60, 0.5), (100, 0.9), (300, 0.9)])
def test_equal_arms_are_said_to_differ_no_more_often_than_promised(num_pairs: int, quantile: float) -> None:
    # Requests of one length, the case without any help from pairing; drawn pair by pair (few) and by rank (many).
    rng = np.random.default_rng(11)
    num_runs, confidence = 250, 0.9
    samples = rng.lognormal(0.0, 0.1, (num_runs, 2, num_pairs))
    alarms = sum(ratio_of_percentiles(off, on, quantile, confidence).excludes(1.0) for off, on in samples)
    # 25 expected; binomial, so 41 or more have a chance of 0.001. Far fewer would be too wide an interval.
    assert 5 <= alarms <= 40


@pytest.mark.parametrize(("num_pairs", "quantile"), [(100, 0.5), (1000, 0.5), (500, 0.95), (2500, 0.99)])
def test_drawing_by_rank_gives_the_interval_that_drawing_pairs_gives(
    num_pairs: int, quantile: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    off, on = _pairs(0.9, num_pairs, noise=0.2)

    def ends() -> tuple[float, float]:
        rng = np.random.default_rng(3)
        return interval_ends(bootstrap_log_ratios(off, on, quantile, 0.9, 1000, rng), 0.9)

    by_rank = ends()
    monkeypatch.setattr("specdeploy_client.comparison.stats._MIN_TAIL_FOR_RANKS", math.inf)
    by_pair = ends()
    width = by_pair[1] - by_pair[0]
    assert by_rank == pytest.approx(by_pair, abs=0.2 * width)


def test_drawing_by_rank_leans_to_the_side_where_values_are_far_apart() -> None:
    on = np.exp(np.concatenate([np.arange(-500, 0) * 0.0001, np.arange(500) * 0.001]))
    interval = ratio_of_percentiles(np.ones(1000), on, 0.5)
    assert math.log(interval.high / interval.ratio) > 5 * math.log(interval.ratio / interval.low)


def test_half_a_million_pairs_have_a_narrow_interval() -> None:
    off, on = _pairs(0.95, 500_000, noise=0.1)
    for quantile in (0.5, 0.99):
        interval = ratio_of_percentiles(off, on, quantile)
        assert 0.94 < interval.low < 0.95 < interval.high < 0.96 or quantile == 0.99
        assert interval.high / interval.low < 1.05


def test_pairs_of_a_block_that_resemble_each_other_widen_the_interval() -> None:
    rng = np.random.default_rng(5)
    blocks = np.repeat(np.arange(10), 10)
    off, on = rng.normal(0.0, 0.1, (2, 100))
    assert 1.0 <= block_widening(off, on, 0.5, blocks, 0.99) < 1.5
    off, on = np.stack([off, on]) + rng.normal(0.0, 0.2, (2, 10)).repeat(10, axis=1)
    assert block_widening(off, on, 0.5, blocks, 0.99) > 1.8
    assert block_widening(off, on, 0.5, np.zeros(100, dtype=np.int64), 0.99) == 1.0
    assert block_widening(off, on, 0.5, np.arange(100), 0.99) == 1.0


def test_the_widening_is_that_of_its_formula() -> None:
    # Two of three blocks lean to one side: influences 1, 1 | -1, -1 | 0, 0. By block 8 * 3 / 2, by pair 4: effect 3.
    off, on = np.array([1.0, 1, 9, 9, 1, 9]), np.array([9.0, 9, 1, 1, 1, 9])
    effect = (5 + 2 * 3) / 7
    expected = math.sqrt(effect) * float(t.isf(0.005, 7) / norm.isf(0.005))
    blocks = np.array([4, 4, 7, 7, 9, 9])
    assert block_widening(off, on, 0.5, blocks, 0.99) == pytest.approx(expected)


def test_slow_spells_of_a_machine_raise_no_more_alarms_than_promised() -> None:
    rng = np.random.default_rng(13)
    blocks = np.repeat(np.arange(10), 6)
    alarms = {True: 0, False: 0}
    for _ in range(150):
        spells = rng.normal(0.0, 0.06, (2, 10)).repeat(6, axis=1)
        off, on = np.exp(rng.normal(0.0, 0.08, (2, 60)) + spells)
        for is_told in alarms:
            interval = ratio_of_percentiles(off, on, 0.5, 0.9, blocks=blocks if is_told else None)
            alarms[is_told] += interval.excludes(1.0)
    assert alarms[False] > 30  # more than twice as often as the 15 that are promised: what the blocks are for
    assert alarms[True] <= 24


def test_pairs_still_needed_are_for_the_end_beyond_the_limit() -> None:
    interval = RatioInterval(ratio=0.9, low=0.7, high=1.1, num_pairs=20)
    # The upper end must come from log(1.1 / 0.9) to log(1 / 0.9), with the square root of the pairs.
    assert pairs_needed(interval) == math.ceil(20 * (math.log(1.1 / 0.9) / math.log(1 / 0.9)) ** 2) == 73
    slower = RatioInterval(ratio=1.1, low=0.9, high=1.5, num_pairs=20)
    assert pairs_needed(slower) == math.ceil(20 * (math.log(1.1 / 0.9) / math.log(1.1)) ** 2)
    assert pairs_needed(interval, limit=0.85) == math.ceil(20 * (math.log(0.9 / 0.7) / math.log(0.9 / 0.85)) ** 2)


def test_no_number_of_pairs_is_named_where_none_is_needed_or_none_would_do() -> None:
    assert pairs_needed(RatioInterval(0.5, 0.4, 0.6, 20)) is None
    assert pairs_needed(RatioInterval(1.0, 0.9, 1.1, 20)) is None
    assert pairs_needed(RatioInterval(1.0001, 0.9, 1.1, 20)) is None
    almost = pairs_needed(RatioInterval(1.001, 0.9, 1.1, 20))
    assert almost is not None
    assert almost < MAX_PAIRS_NEEDED


def test_the_number_of_pairs_needed_is_about_the_number_that_decides() -> None:
    off, on = _pairs(0.97, 4000, noise=0.15, seed=1)
    needed = pairs_needed(ratio_of_percentiles(off[:200], on[:200], 0.5))
    assert needed is not None
    assert not ratio_of_percentiles(off[: needed // 4], on[: needed // 4], 0.5).excludes(1.0)
    assert ratio_of_percentiles(off[: 3 * needed], on[: 3 * needed], 0.5).excludes(1.0)


def test_the_median_of_ratios_is_of_single_pairs() -> None:
    assert median_of_ratios(np.array([1.0, 10.0, 100.0]), np.array([3.0, 5.0, 90.0])) == 0.9


def test_excess_rate_is_one_sided() -> None:
    assert excess_rate_p_value(20, 20, 0, 20) < 1e-9
    assert excess_rate_p_value(0, 20, 20, 20) == pytest.approx(1.0)
    assert excess_rate_p_value(5, 20, 5, 20) > 0.1
