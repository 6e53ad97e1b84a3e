"""Ratios, their intervals, and verdicts."""

from collections.abc import Callable
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


def test_a_ratio_is_that_of_the_medians_and_lies_in_its_interval(script: Script) -> None:
    ratio = script("comparison").paired_ratio([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.1, 2.9, 4.2, 5.0])
    assert ratio.value == pytest.approx(6.0 / 2.9)
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.num_pairs == 5


def test_pairs_that_agree_give_a_narrow_interval(script: Script) -> None:
    slow = [3.0, 9.0, 6.0, 12.0, 4.5, 7.5]
    ratio = script("comparison").paired_ratio(slow, [seconds / 3 for seconds in slow])
    assert (ratio.low, ratio.high) == (pytest.approx(3.0), pytest.approx(3.0))


def test_two_pairs_have_no_interval(script: Script) -> None:
    ratio = script("comparison").paired_ratio([2.0, 2.0], [1.0, 1.0])
    assert (ratio.value, ratio.low, ratio.high, ratio.text()) == (2.0, None, None, "2.00")


def test_equal_seconds_are_no_trouble(script: Script) -> None:
    assert script("comparison").paired_ratio([2.0] * 4, [1.0] * 4).text() == "2.00 (2.00-2.00)"


def test_lists_that_do_not_pair_are_refused(script: Script) -> None:
    with pytest.raises(ValueError, match="2 and 1 measurements"):
        script("comparison").paired_ratio([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("value", "is_floor", "verdict"),
    [
        (2.0, True, "reached"),
        (1.5, True, "short of the goal"),
        (1.2, True, "missed"),
        (2.0, False, "reached"),
        (3.0, False, "missed"),
    ],
)
def test_verdicts(script: Script, value: float, is_floor: bool, verdict: str) -> None:
    goal = script("comparison").Goal(2.0, 1.3 if is_floor else 2.5, is_floor=is_floor)
    assert goal.verdict(value) == verdict


def test_counts_without_drafts_have_no_acceptance(script: Script) -> None:
    counts = script("comparison").DraftCounts(12, 12, 0, 0)
    assert counts.acceptance_rate is None
    assert counts.tokens_per_step == 1.0
