"""The paired bootstrap and the excess-rate test behave as their users assume."""

import numpy as np
import pytest

from specdeploy_client.stats import excess_rate_p_value, ratio_of_medians


def _pairs(ratio: float, num_pairs: int = 40) -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(7)
    off = rng.lognormal(3.0, 0.5, num_pairs)
    return list(off * ratio * rng.normal(1.0, 0.02, num_pairs)), list(off)


def test_a_real_difference_lies_inside_a_narrow_interval() -> None:
    on, off = _pairs(0.6)
    interval = ratio_of_medians(on, off, seed=1)
    assert interval.low <= interval.ratio <= interval.high
    assert interval.low < 0.6 < interval.high < 0.75


def test_equal_arms_are_undecided() -> None:
    on, off = _pairs(1.0)
    interval = ratio_of_medians(on, off, seed=1)
    assert interval.low <= 1.0 <= interval.high


def test_the_same_seed_gives_the_same_interval_and_zero_is_a_seed() -> None:
    on, off = _pairs(0.8)
    assert ratio_of_medians(on, off, seed=0) == ratio_of_medians(on, off, seed=0)


def test_identical_values_give_a_point() -> None:
    interval = ratio_of_medians([5.0] * 10, [10.0] * 10, seed=0)
    assert (interval.low, interval.ratio, interval.high) == (0.5, 0.5, 0.5)


def test_too_few_or_unmatched_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 8"):
        ratio_of_medians([1.0] * 7, [1.0] * 7, seed=0)
    with pytest.raises(ValueError, match="at least 8"):
        ratio_of_medians([1.0] * 9, [1.0] * 8, seed=0)


def test_excess_rate_is_one_sided() -> None:
    assert excess_rate_p_value(20, 20, 0, 20) < 1e-9
    assert excess_rate_p_value(0, 20, 20, 20) == pytest.approx(1.0)
    assert excess_rate_p_value(5, 20, 5, 20) > 0.1
