"""Positions and ticks: equal ratios at equal distances, and ticks that do not touch."""

from itertools import pairwise

import pytest

from specdeploy.charts.scales import (
    LogScale,
    duration_scale,
    duration_ticks,
    labelled,
    level_scale,
    narrowest_gap,
    ratio_scale,
    ratio_ticks,
)


def test_equal_ratios_are_equally_far_apart() -> None:
    scale = LogScale(1, 16, 0, 100)
    assert [scale.at(value) for value in (1, 2, 4, 8, 16)] == pytest.approx([0, 25, 50, 75, 100])
    assert LogScale(1, 16, 100, 0).at(2) == pytest.approx(75)


def test_what_lies_beyond_an_axis_is_drawn_at_its_end() -> None:
    scale = LogScale(1, 4, 0, 100)
    assert scale.at(0.001) == 0
    assert scale.at(1e9) == 100


def test_one_level_alone_stands_in_the_middle() -> None:
    assert level_scale([2.5], 0, 100).at(2.5) == pytest.approx(50)


def test_levels_keep_off_the_borders() -> None:
    scale = level_scale([1, 32, 4], 10, 90)
    assert 10 < scale.at(1) < scale.at(4) < scale.at(32) < 90


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([], 0.8, 1.25), ([0.97, 1.02], 0.8, 1.25), ([0.41, 1.3], 0.4, 1.5), ([0.01, 50.0], 0.1, 10.0)],
)
def test_a_ratio_axis_encloses_its_values_and_one(values: list[float], low: float, high: float) -> None:
    scale = ratio_scale(values, 0, 100)
    assert (scale.low, scale.high) == (low, high)


def test_headroom_is_left_beside_the_outermost_ratios() -> None:
    assert ratio_scale([0.5, 1.2], 0, 1, headroom=1.2).low <= 0.5 / 1.2
    assert ratio_scale([0.5, 1.2], 0, 1, headroom=1.2).high >= 1.2 * 1.2


@pytest.mark.parametrize("values", [[0.5], [0.9, 1.1], [0.1, 10.0], [2.4]])
def test_one_is_always_a_tick_and_ticks_keep_their_distance(values: list[float]) -> None:
    scale = ratio_scale(values, 240, 0)
    ticks = ratio_ticks(scale, 17)
    assert 1.0 in ticks
    assert ticks == sorted(ticks)
    assert min(abs(scale.at(a) - scale.at(b)) for a, b in pairwise(ticks)) >= 17


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([7.0], 5, 10), ([10.0], 10, 20), ([48.0, 510.0], 20, 1000), ([0.004, 0.03], 0.002, 0.05), ([100, 100], 100, 200)],
)
def test_a_time_axis_ends_at_round_values(values: list[float], low: float, high: float) -> None:
    scale = duration_scale(values, 0, 100)
    assert (scale.low, scale.high) == pytest.approx((low, high))


def test_powers_of_ten_win_where_ticks_are_crowded() -> None:
    scale = duration_scale([1.0, 100_000.0], 150, 0)
    ticks = duration_ticks(scale, 20)
    assert ticks == pytest.approx([1, 10, 100, 1_000, 10_000, 100_000])
    assert 20.0 in duration_ticks(duration_scale([9.0, 55.0], 150, 0), 20)


def test_the_last_level_keeps_its_label_where_there_is_no_room_for_all() -> None:
    assert labelled([0, 10, 20, 30, 40], 20) == [True, False, True, False, True]
    assert labelled([0, 5, 40], 20) == [False, True, True]
    assert labelled([], 20) == []


def test_the_narrowest_gap_of_one_position_is_the_default() -> None:
    assert narrowest_gap([5.0], 60.0) == 60.0
    assert narrowest_gap([0.0, 30.0, 42.0], 60.0) == 12.0
