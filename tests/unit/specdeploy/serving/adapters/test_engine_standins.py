"""The stand-in decoder against numbers worked out by hand from the C++ kernel's rule."""

import numpy as np
import pytest

from helpers.engine_standins.decoder import DECODERS, Choice, adjusted, choose

PLAIN = DECODERS[None]
LOGITS = np.array([4.0, 2.0, -1.0, 3.0, 0.0])
PROMPT, OUTPUT = [1, 1, 2], [1, 3]  # token 1 three times, 2 and 3 once


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(presence_penalty=0.5), [4.0, 1.5, -1.5, 2.5, 0.0]),
        (Choice(frequency_penalty=0.5), [4.0, 0.5, -1.5, 2.5, 0.0]),
        (Choice(repetition_penalty=2.0), [4.0, 1.0, -2.0, 1.5, 0.0]),
        (Choice(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0), [4.0, -3.0, -4.0, -0.5, 0.0]),
        (Choice(temperature=2.0, presence_penalty=0.5), [2.0, 0.5, -1.0, 1.0, 0.0]),
        (Choice(bias=np.array([0, 2.0, 0, 0, 0]), repetition_penalty=2.0), [4.0, 2.0, -2.0, 1.5, 0.0]),
        (Choice(end_id=0, min_tokens=3), [-np.inf, 2.0, -1.0, 3.0, 0.0]),
        (Choice(end_id=0, min_tokens=2), [4.0, 2.0, -1.0, 3.0, 0.0]),
        (Choice(bad_words=((3, 4), (1, 2), (3, 0))), [4.0, 2.0, -1.0, 3.0, -np.inf]),
    ],
)
def test_logits_are_adjusted_as_the_kernel_does(choice: Choice, expected: list[float]) -> None:
    assert adjusted(LOGITS, choice, PLAIN, PROMPT, OUTPUT).tolist() == expected


def test_where_the_prompt_ends_makes_no_difference_to_penalties() -> None:
    choice = Choice(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
    splits = [adjusted(LOGITS, choice, PLAIN, [1, 1, 2, 1, 3][:cut], [1, 1, 2, 1, 3][cut:]) for cut in range(1, 6)]
    assert all(np.array_equal(split, splits[0]) for split in splits)


@pytest.mark.parametrize("mode", ["medusa", "eagle", "explicit_draft_tokens", "lookahead_decoding"])
def test_decoders_of_trees_and_lookahead_are_greedy_and_know_no_penalties(mode: str) -> None:
    decoder = DECODERS[mode]
    choice = Choice(temperature=9.0, top_p=1.0, presence_penalty=9.0, bad_words=((0,), (3,)))
    values = adjusted(LOGITS, choice, decoder, PROMPT, OUTPUT)
    assert values.tolist() == LOGITS.tolist()
    assert {choose(values, choice, decoder, position) for position in range(20)} == {0}
    assert not decoder.has_log_probs


def test_a_random_choice_keeps_to_top_k_and_top_p() -> None:
    def chosen(**changes: float) -> set[int]:
        choice = Choice(seed=3, **changes)  # type: ignore[arg-type]
        return {choose(np.array([1.0, 1.1, 0.9, -30.0]), choice, PLAIN, position) for position in range(200)}

    assert chosen(top_p=1.0) == {0, 1, 2}
    assert chosen(top_k=2, top_p=1.0) == {0, 1}
    assert chosen(top_p=0.3) == {1}
    assert chosen() == chosen(top_k=1) == {1}
