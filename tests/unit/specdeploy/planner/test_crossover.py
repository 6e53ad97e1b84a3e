"""The crossover of curves made by hand, and its words."""

from collections.abc import Sequence

import pytest

from specdeploy.planner.crossover import BEYOND, NEVER, crossing, describe_crossover, find_crossover
from specdeploy.planner_contract import Estimate, LevelPrediction

LOADS = [1, 2, 4, 8, 16]


def levels(values: Sequence[float | None], spread: float = 0.1) -> list[LevelPrediction]:
    return [
        LevelPrediction(
            concurrency=load,
            draft_len=3,
            best_static_draft_len=3,
            tpot_ratio=None,
            e2e_ratio=None if value is None else Estimate(value=value, low=value - spread, high=value + spread),
            ttft_ratio=None,
            off_tpot_s=None,
            on_tpot_s=None,
            off_throughput=None,
            on_throughput=None,
            tokens_per_step=2.0,
            verified_tokens=4 * load,
            is_compute_bound=False,
        )
        for load, value in zip(LOADS, values, strict=True)
    ]


def test_between_levels_the_ratio_is_straight_over_the_logarithm() -> None:
    assert crossing([4, 8], [0.9, 1.1]) == pytest.approx(4 * 2**0.5)
    assert crossing([4, 8], [1.2, 1.1]) == NEVER
    assert crossing([4, 8], [1.2, 0.9]) == BEYOND


def test_the_pessimistic_bound_crosses_first() -> None:
    found = find_crossover(levels([0.6, 0.7, 0.8, 0.95, 1.15]))

    assert found.kind == "crosses"
    assert found.concurrency is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.concurrency < found.high
    assert describe_crossover(found) == "10 [6, 13]"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.5, 0.5, 0.6, 0.6, 0.7], "none up to 16"),
        ([1.2, 1.3, 1.3, 1.4, 1.5], "never faster up to 16"),
        ([0.8, 0.8, 0.85, 0.88, 0.95], "undecided [10, 16+]"),
        ([1.05, 1.05, 1.05, 1.05, 1.05], "undecided"),
        ([None, None, None, None, None], "undecided"),
    ],
)
def test_words(values: Sequence[float | None], words: str) -> None:
    assert describe_crossover(find_crossover(levels(values))) == words


def test_a_gain_only_in_the_middle_ends_at_its_last_crossing() -> None:
    """As with a mixture of experts: dear at one request, and at many."""
    found = find_crossover(levels([1.2, 0.8, 0.7, 0.8, 1.2], spread=0.01))

    assert found.kind == "crosses"
    assert found.concurrency == pytest.approx(8 * 2**0.5)


def test_levels_without_a_ratio_are_left_out() -> None:
    found = find_crossover(levels([0.5, 0.5, 0.5, None, None]))

    assert (found.kind, found.max_concurrency) == ("none up to", 4)
