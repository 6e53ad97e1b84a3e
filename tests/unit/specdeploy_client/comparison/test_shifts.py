"""Differences between parts of a cell are found where they are planted, and chance is not taken for one."""

import math

import numpy as np
import pytest

from specdeploy_client.comparison.shifts import (
    first_quarter_ratio,
    first_round_ttft_ns,
    is_slower,
    is_spread_difference_rare,
    median_interval,
    second_arm_ttft_ratio,
    spread_difference,
)
from unit.specdeploy_client.fabricate import make_columns, make_record


def test_a_part_is_slower_by_its_median_and_by_more_than_chance() -> None:
    rng = np.random.default_rng(1)
    rest = rng.lognormal(0.0, 0.1, 20)
    assert is_slower(1.6 * rng.lognormal(0.0, 0.1, 10), rest, 1.3)
    assert not is_slower(1.1 * rng.lognormal(0.0, 0.1, 10), rest, 1.3)
    assert not is_slower(np.array([9.0, 9.0]), rest[:3], 1.3)  # two of five may be the largest by chance
    assert not is_slower(np.array([math.nan]), rest, 1.3)
    assert is_slower(np.array([*1.6 * rest[:10], math.nan]), rest, 1.3)


def test_the_spread_difference_is_that_of_sorted_samples() -> None:
    assert spread_difference(np.array([1.0, 3.0]), np.array([3.0, 1.0])) == 0
    assert spread_difference(np.array([2.0, 2.0]), np.array([1.0, 3.0])) == 0.5


def test_only_a_systematic_spread_difference_is_rare() -> None:
    rng = np.random.default_rng(4)
    chance = [is_spread_difference_rare(*rng.integers(20, 80, (2, 30)).astype(float)) for _ in range(40)]
    assert sum(chance) <= 3  # a hundredth each
    even = np.full(30, 50.0)
    assert is_spread_difference_rare(even, np.array([25.0, 75.0] * 15))


def test_of_many_pairs_an_even_choice_shows_the_same_spread() -> None:
    even = np.full(20_001, 50.0)
    other = rng_lengths = np.random.default_rng(1).integers(25, 76, 20_001).astype(float)
    assert is_spread_difference_rare(even, other)
    assert not is_spread_difference_rare(rng_lengths, rng_lengths[::-1])


def test_the_median_lies_in_its_interval_as_often_as_promised() -> None:
    rng = np.random.default_rng(6)
    ends = [median_interval(rng.exponential(1.0, 60)) for _ in range(1000)]
    missed = sum(not low <= math.log(2) <= high for low, high in ends)
    assert missed <= 14  # 5 expected at most
    assert median_interval(np.arange(8.0)) == (-math.inf, math.inf)
    assert median_interval(np.arange(10.0)) == (0.0, 9.0)


def test_what_coming_second_brings_is_apart_from_what_the_arms_differ_by() -> None:
    # The on arm takes half the time, and coming second 0.8 of it; off goes first in even blocks.
    def arm(is_on: bool) -> list[float]:
        return [100 * (0.5 if is_on else 1.0) * (0.8 if (block % 2 == 0) == is_on else 1.0) for block in range(20)]

    off, on = (
        make_columns(
            [
                make_record((ttft, ttft + 1), (1, 1), block=block, send_ms=10_000 * block + (5000 if is_later else 0))
                for block, ttft in enumerate(arm(is_on))
                for is_later in [(block % 2 == 0) == is_on]
            ]
        )
        for is_on in (False, True)
    )
    assert second_arm_ttft_ratio(off, on) == pytest.approx((0.8, 0.8, 0.8))
    rows = np.arange(8)
    ratio, low, high = second_arm_ttft_ratio(off.rows(rows), on.rows(rows))
    assert (round(ratio, 6), low, high) == (0.8, 0.0, math.inf)
    ratio, low, high = second_arm_ttft_ratio(off.rows(rows[::2]), on.rows(rows[::2]))  # off first, always
    assert (ratio, low, high) == (1.0, 0.0, math.inf)


def test_the_first_quarter_is_compared_with_the_last_half_in_the_order_of_their_times() -> None:
    def record(number: int) -> object:
        gap = 30 if number < 10 else 10
        return make_record((50, 50 + gap, 50 + 2 * gap), index=number, send_ms=1000.0 * number)

    records = [record(number) for number in (*range(20, 40), *range(20))]
    columns = make_columns(records)  # type: ignore[arg-type]
    assert first_quarter_ratio(columns, 1.3) == pytest.approx(3.0)
    assert first_quarter_ratio(columns, 3.5) is None
    assert first_quarter_ratio(columns.rows(columns.failure > 0), 1.3) is None


def test_first_rounds_are_compared_with_first_rounds() -> None:
    records = [
        make_record(
            (ttft, ttft + 1), (1, 1), index=4 * block + place, block=block, send_ms=10_000.0 * block + 100 * place
        )
        for block in range(3)
        for place in range(4)
        for ttft in [900 if (block, place) == (0, 0) else 80 if place < 2 else 20]
    ]
    columns = make_columns(records)
    assert first_round_ttft_ns(columns, 1) == (900e6, 80e6)
    assert first_round_ttft_ns(columns, 2) == (490e6, 80e6)
    assert first_round_ttft_ns(columns.rows(columns.block < 2), 1) is None
