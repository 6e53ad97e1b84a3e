"""Prompt lookup against a scan of the text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.runtime.drafters import DraftRow, NgramDrafter


def by_scan(token_ids: Sequence[int], draft_len: int, min_size: int, max_size: int) -> list[int]:
    """The same answer by definition: longest suffix first, latest earlier occurrence first."""
    for size in range(min(max_size, len(token_ids)), min_size - 1, -1):
        suffix = list(token_ids[-size:])
        for end in range(len(token_ids) - 1, size - 1, -1):
            if list(token_ids[end - size : end]) == suffix:
                return list(token_ids[end : end + draft_len])
    return []


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2]),
        ([1, 2, 3, 4], []),
        ([5, 5, 5], [5]),
        ([7, 1, 8, 7, 2, 8, 7], [2, 8, 7]),  # latest occurrence of the longest match
        ([1], []),
    ],
)
def test_examples(token_ids: list[int], expected: list[int]) -> None:
    drafter = NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3)
    assert drafter.propose([DraftRow(0, token_ids, 3)]) == [expected]


def test_min_size_suppresses_short_matches() -> None:
    drafter = NgramDrafter(min_matching_ngram_size=2, max_matching_ngram_size=3)
    assert drafter.propose([DraftRow(0, [1, 9, 1], 3), DraftRow(1, [1, 2, 9, 1, 2], 2)]) == [[], [9, 1]]


@given(
    chunks=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=8),
    sizes=st.tuples(st.integers(1, 3), st.integers(0, 3)),
)
def test_the_index_grown_in_steps_equals_a_scan(chunks: list[list[int]], sizes: tuple[int, int]) -> None:
    min_size, max_size = sizes[0], sizes[0] + sizes[1]
    drafter = NgramDrafter(min_matching_ngram_size=min_size, max_matching_ngram_size=max_size)
    text: list[int] = []
    for chunk in chunks:
        text.extend(chunk)
        assert drafter.propose([DraftRow(4, text, 5)]) == [by_scan(text, 5, min_size, max_size)]


def test_a_released_slot_starts_afresh() -> None:
    drafter = NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=2)
    drafter.prefill(0, [1, 2, 1])
    drafter.release(0)
    drafter.release(0)
    assert drafter.propose([DraftRow(0, [3, 1], 2)]) == [[]]
