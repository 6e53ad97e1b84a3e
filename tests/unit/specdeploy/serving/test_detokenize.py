"""Deltas concatenate to the full decode, whatever the burst; stop strings cut at the right character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from helpers.tiny_checkpoint import make_tokenizer
from specdeploy.serving.detokenize import IncrementalDetokenizer, OutputText

TOKENIZER = make_tokenizer()
TEXTS = [
    "plain ascii with  two spaces and\nnewlines\t",
    "東京の天気は晴れです。",
    "안녕하세요 세계",
    "family: 👩‍👩‍👧‍👦 flag: 🇩🇪 skin: 👍🏽",
    "combining: e\u0301 a\u030a o\u0308",
    "mixed 混ぜる text ünïcödé — “quotes”",
    " leading space",
]


def full_decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("burst", [1, 2, 3, 5, 50])
def test_deltas_concatenate_to_the_text(text: str, burst: int) -> None:
    ids = TOKENIZER.encode(text).ids
    output = OutputText(TOKENIZER, ())
    deltas = []
    for start in range(0, len(ids), burst):
        for token in ids[start : start + burst]:
            assert not output.accept(token)
        deltas.append(output.take_delta(is_final=start + burst >= len(ids)))
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


@given(ids=st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40))
def test_any_ids_at_all_give_their_full_decode(ids: list[int]) -> None:
    """Random ids are mostly broken UTF-8 and special tokens."""
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    assert "".join([*(detokenizer.push(token) for token in ids), detokenizer.flush()]) == full_decode(TOKENIZER, ids)


def test_an_unfinished_character_is_flushed_as_the_full_decode_shows_it() -> None:
    ids = TOKENIZER.encode("ok 東").ids[:-1]
    output = OutputText(TOKENIZER, ())
    for token in ids:
        output.accept(token)
    assert output.take_delta(is_final=False) == "ok "
    assert "ok " + output.take_delta(is_final=True) == full_decode(TOKENIZER, ids)


@given(
    text=st.text(alphabet="abc\n 東", min_size=1, max_size=30),
    stop=st.text(alphabet="abc 東", min_size=1, max_size=4),
    burst=st.integers(1, 6),
)
def test_text_is_cut_before_the_first_stop_string(text: str, stop: str, burst: int) -> None:
    output = OutputText(TOKENIZER, (stop,))
    ids = TOKENIZER.encode(text).ids
    shown, num_taken, stopped = "", 0, False
    while num_taken < len(ids) and not stopped:
        for token in ids[num_taken : num_taken + burst]:
            num_taken += 1
            stopped = output.accept(token)
            if stopped:
                break
        shown += output.take_delta(is_final=stopped or num_taken >= len(ids))
        assert stop not in shown
    assert shown == text.split(stop)[0]
    assert stopped == (stop in text)
    if stopped:  # it stopped at the very token that completed the string
        assert stop not in full_decode(TOKENIZER, ids[: num_taken - 1])


def test_stop_strings_before_min_tokens_do_not_stop() -> None:
    ids = TOKENIZER.encode("a b a b a").ids
    output = OutputText(TOKENIZER, ("b",), min_tokens=len(ids) - 2)
    stops = [output.accept(token) for token in ids]
    assert stops.index(True) == len(ids) - 2
    assert output.take_delta(is_final=True) == "a b a "


@pytest.mark.parametrize("burst", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("streams", [True, False])
def test_a_stop_string_passed_over_before_min_tokens_stays_passed_over(burst: int, streams: bool) -> None:
    """However many tokens a step brings and whether anything is delivered meanwhile."""
    output = OutputText(TOKENIZER, ("\n", "Observation:"), min_tokens=5)
    ids = [TOKENIZER.encode(character).ids[0] for character in "ab\ncdefgh"]
    shown = ""
    for start in range(0, len(ids), burst):
        for token in ids[start : start + burst]:
            assert not output.accept(token)
        if streams:
            shown += output.take_delta(is_final=False)
    assert shown + output.take_delta(is_final=True) == "ab\ncdefgh"
