"""Suffix lookup against the longest previous suffix by definition."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.runtime.drafters import DraftRow, Observation, SuffixDrafter
from specdeploy.runtime.drafters.suffix import SuffixAutomaton


def drafted(drafter: SuffixDrafter, token_ids: Sequence[int], draft_len: int = 5, slot: int = 0) -> list[int]:
    draft = drafter.propose([DraftRow(slot, token_ids, draft_len)])[0]
    assert draft.parents is None
    assert draft.probs is None
    return list(draft.token_ids)


def earlier_ends(text: Sequence[int], size: int) -> list[int]:
    """Where the last `size` tokens of the text occurred before, latest first."""
    suffix = list(text[len(text) - size :])
    return [end for end in range(len(text) - 1, size - 1, -1) if list(text[end - size : end]) == suffix]


def longest_earlier_suffix(text: Sequence[int]) -> int:
    return next((size for size in range(len(text) - 1, 0, -1) if earlier_ends(text, size)), 0)


def automaton_of(text: Sequence[int], min_size: int = 1) -> SuffixAutomaton:
    automaton = SuffixAutomaton(min_size)
    for token in text:
        automaton.append(token)
    return automaton


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], [9, 1, 2, 3, 9]),
        ([1, 2, 3, 4], []),
        ([1, 2, 1, 2], [1, 2, 1, 2, 1]),
        ([1, 2, 3, 4, 5, 6, 9, 3, 4, 5, 7, 2, 3, 4, 5], [6, 9, 3, 4, 5]),  # not the later, shorter match before 7
        ([8, 1, 8, 2, 8], [2, 8, 2, 8, 2]),  # of two equal matches the later one
        ([0, 0, 0], [0, 0, 0, 0, 0]),
        ([4], []),
    ],
)
def test_examples(token_ids: list[int], expected: list[int]) -> None:
    assert drafted(SuffixDrafter(min_matching_size=1), token_ids) == expected


@pytest.mark.parametrize(("min_size", "expected"), [(2, [9, 1, 2, 9, 1]), (3, [])])
def test_short_matches_are_not_continued(min_size: int, expected: list[int]) -> None:
    assert drafted(SuffixDrafter(min_matching_size=min_size), [1, 2, 9, 1, 2]) == expected


@pytest.mark.parametrize(
    ("factor", "expected"), [(0.4, []), (0.5, [9]), (1.0, [9, 1]), (1.5, [9, 1, 2]), (9.0, [9, 1, 2, 9, 1])]
)
def test_a_draft_is_no_longer_than_its_match_allows(factor: float, expected: list[int]) -> None:
    drafter = SuffixDrafter(min_matching_size=1, max_draft_factor=factor)
    assert drafted(drafter, [1, 2, 9, 1, 2]) == expected


@given(text=st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_match_is_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    automaton = automaton_of(text)
    assert automaton.match_size == longest_earlier_suffix(text)
    if automaton.match_size:
        assert automaton.match_end in earlier_ends(text, automaton.match_size)


@given(text=st.lists(st.integers(0, 2), min_size=2, max_size=16), min_size=st.integers(1, 3))
def test_the_latest_occurrence_is_continued(text: list[int], min_size: int) -> None:
    """Exactly, while no match is longer than the number of places that are kept fresh."""
    automaton = automaton_of(text, min_size)
    if automaton.match_size >= min_size:
        assert automaton.match_end == earlier_ends(text, automaton.match_size)[0]


@given(
    chunks=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=6),
    is_asked=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_observed_and_asked_in_steps_it_answers_as_at_once(chunks: list[list[int]], is_asked: list[bool]) -> None:
    drafter = SuffixDrafter(min_matching_size=1)
    text: list[int] = []
    for chunk, asked in zip(chunks, is_asked, strict=False):
        text.extend(chunk)
        drafter.observe([Observation(2, text, len(text) - 1, None)])
        if asked:
            assert drafted(drafter, text, slot=2) == drafted(SuffixDrafter(min_matching_size=1), text)


@given(text=st.lists(st.integers(0, 3), min_size=2, max_size=80))
def test_states_stay_within_twice_the_text(text: list[int]) -> None:
    assert automaton_of(text).num_states <= 2 * len(text)


def test_one_repeated_token_takes_one_state_each() -> None:
    automaton = automaton_of([7] * 3000)
    assert automaton.num_states == 3001
    assert automaton.match_size == 2999


def test_a_released_slot_starts_afresh_and_rows_share_nothing() -> None:
    drafter = SuffixDrafter(min_matching_size=1)
    assert drafted(drafter, [1, 2, 1]) == [2, 1, 2, 1, 2]
    assert drafted(drafter, [3, 1], slot=1) == []
    drafter.release(0)
    drafter.release(0)
    assert drafted(drafter, [3, 1]) == []
