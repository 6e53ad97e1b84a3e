"""Prompt lookup against a scan of the text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.runtime.drafters import DraftRow, NgramDrafter, Observation


def drafted(drafter: NgramDrafter, token_ids: Sequence[int], draft_len: int, slot: int = 0) -> list[int]:
    draft = drafter.propose([DraftRow(slot, token_ids, draft_len)])[0]
    assert draft.parents is None
    assert draft.probs is None
    return list(draft.token_ids)


def by_scan(token_ids: Sequence[int], draft_len: int, min_size: int, max_size: int) -> list[int]:
    """The same answer by definition: longest suffix first, latest earlier occurrence first, copied token by token."""
    for size in range(min(max_size, len(token_ids)), min_size - 1, -1):
        suffix = list(token_ids[-size:])
        for end in range(len(token_ids) - 1, size - 1, -1):
            if list(token_ids[end - size : end]) == suffix:
                text = list(token_ids)
                for place in range(end, end + draft_len):
                    text.append(text[place])
                return text[len(token_ids) :]
    return []


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3, 9]),
        ([1, 2, 3, 4], []),
        ([5, 5, 5], [5, 5, 5, 5, 5]),
        ([1, 2, 1, 2], [1, 2, 1, 2, 1]),  # the copy goes on into itself
        ([7, 1, 8, 7, 2, 8, 7], [2, 8, 7, 2, 8]),  # latest occurrence of the longest match
        ([3, 4, 5, 6, 9, 4, 5, 7, 3, 4, 5], [6, 9, 4, 5, 7]),  # a longer match is taken before a later one
        ([0, 0, 1, 0], [1, 0, 1, 0, 1]),  # token 0 is a token like any other
        ([0], []),
        ([1], []),
    ],
)
def test_examples(token_ids: list[int], expected: list[int]) -> None:
    assert drafted(NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3), token_ids, 5) == expected


def test_min_size_suppresses_short_matches() -> None:
    drafter = NgramDrafter(min_matching_ngram_size=2, max_matching_ngram_size=3)
    drafts = drafter.propose([DraftRow(0, [1, 9, 1], 3), DraftRow(1, [1, 2, 9, 1, 2], 2)])
    assert [draft.token_ids for draft in drafts] == [(), (9, 1)]


def test_ids_that_share_low_bits_are_told_apart() -> None:
    drafter = NgramDrafter(min_matching_ngram_size=2, max_matching_ngram_size=2)
    assert drafted(drafter, [1, 2**17 + 5, 8, 1, 5], 2) == []


@given(
    chunks=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=8),
    sizes=st.tuples(st.integers(1, 3), st.integers(0, 3)),
    is_asked=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_the_index_grown_in_steps_equals_a_scan(
    chunks: list[list[int]], sizes: tuple[int, int], is_asked: list[bool]
) -> None:
    min_size, max_size = sizes[0], sizes[0] + sizes[1]
    drafter = NgramDrafter(min_matching_ngram_size=min_size, max_matching_ngram_size=max_size)
    text: list[int] = []
    for chunk, asked in zip(chunks, is_asked, strict=False):
        text.extend(chunk)
        drafter.observe([Observation(4, text, len(text) - 1, None)])
        if asked:
            assert drafted(drafter, text, 5, slot=4) == by_scan(text, 5, min_size, max_size)


@given(text=st.lists(st.integers(0, 2), min_size=2, max_size=24), num_read=st.integers(1, 24))
def test_a_prompt_read_in_part_is_indexed_in_part(text: list[int], num_read: int) -> None:
    drafter = NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3)
    drafter.observe([Observation(0, text, min(num_read, len(text)), None)])
    assert drafted(drafter, text, 4) == by_scan(text, 4, 1, 3)


def test_a_released_slot_starts_afresh() -> None:
    drafter = NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=2)
    drafter.observe([Observation(0, [1, 2, 1], 2, None)])
    drafter.release(0)
    drafter.release(0)
    assert drafted(drafter, [3, 1], 2) == []


def test_rows_share_nothing() -> None:
    drafter = NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=2)
    drafter.propose([DraftRow(0, [1, 2, 1], 2)])
    assert drafted(drafter, [3, 1], 2, slot=1) == []
