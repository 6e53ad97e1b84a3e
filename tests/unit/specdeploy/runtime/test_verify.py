"""Acceptance of a block, by hand."""

import pytest

from specdeploy.runtime.verify import verify


@pytest.mark.parametrize(
    ("draft", "target", "output", "num_accepted"),
    [
        ([], [7], (7,), 0),
        ([1, 2, 3], [1, 2, 3, 4], (1, 2, 3, 4), 3),
        ([1, 2, 3], [1, 9, 3, 4], (1, 9), 1),
        ([1, 2, 3], [9, 2, 3, 4], (9,), 0),
        ([1, 1, 1], [1, 1, 2, 8], (1, 1, 2), 2),
    ],
)
def test_the_longest_agreeing_prefix_and_one_more(
    draft: list[int], target: list[int], output: tuple[int, ...], num_accepted: int
) -> None:
    result = verify(draft, target.__getitem__)
    assert (result.token_ids, result.num_accepted) == (output, num_accepted)


def test_nothing_behind_a_rejection_is_asked_for() -> None:
    asked: list[int] = []

    def choose(index: int) -> int:
        asked.append(index)
        return 5

    verify([5, 6, 5, 5], choose)
    assert asked == [0, 1]
