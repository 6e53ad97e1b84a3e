"""Odd answers are seen, ordinary ones are left alone."""

import numpy as np
import pytest

from specdeploy_client.records.answer_flags import MAX_LOOP_PERIOD, is_degenerate
from specdeploy_client.records.message_columns import flat_ints, starts_of
from unit.specdeploy_client.fabricate import make_columns, make_record

PROSE = np.random.default_rng(0).integers(0, 50_000, 200).tolist()


def _degenerate(*answers: list[int]) -> list[bool]:
    flags: list[bool] = is_degenerate(starts_of(answers), flat_ints(answers)).tolist()
    return flags


@pytest.mark.parametrize("period", [1, 2, 7, 30, MAX_LOOP_PERIOD])
def test_an_answer_that_ends_in_a_loop_is_degenerate(period: int) -> None:
    loop = (PROSE[:period] * 200)[:160]
    assert _degenerate(PROSE[100:120] + loop) == [True]


def test_ordinary_and_short_answers_are_not_degenerate() -> None:
    ends_in_a_line = PROSE[:100] + [7] * 30  # less than half of it
    broken_loop = [*([5, 6] * 40), 9]
    too_long_a_period = PROSE[: MAX_LOOP_PERIOD + 10] * 2
    assert _degenerate(PROSE, ends_in_a_line, broken_loop, too_long_a_period, [3] * 16, []) == [False] * 6


def test_answers_are_judged_apart_from_their_neighbours() -> None:
    assert _degenerate([1] * 30, PROSE[:30], [1] * 30, [2] * 10, [2] * 10) == [True, False, True, False, False]


def test_words_stand_in_for_ids_that_the_server_does_not_send() -> None:
    looping, talking = "all work and no play " * 12, " ".join(map(str, PROSE))
    columns = make_columns([make_record(ids=(), text=looping), make_record(ids=(), text=talking)])
    assert columns.is_degenerate.tolist() == [True, False]


def test_an_answer_that_had_to_go_on_and_did_not_is_short() -> None:
    def short(**fields: object) -> bool:
        return bool(make_columns([make_record(**fields)]).is_short[0])  # type: ignore[arg-type]

    assert short(max_tokens=4, ignore_eos=True, finish_reason="stop")
    assert short(max_tokens=4, finish_reason="length")
    assert not short(max_tokens=4, finish_reason="stop")  # its text ended
    assert not short(max_tokens=3, ignore_eos=True)
    assert not short(max_tokens=None, ignore_eos=True)
    assert not short(max_tokens=4, ignore_eos=True, error="refused")
    assert not short(max_tokens=4, ignore_eos=True, sizes=None, ids=(), reported=None)  # number of tokens unknown
    assert short(max_tokens=4, ignore_eos=True, sizes=None, ids=(), reported=3)


def test_messages_that_were_held_back_are_buffered() -> None:
    def buffered(arrivals: list[float], sizes: list[int] | None, steps: int | None) -> bool:
        return bool(make_columns([make_record(arrivals, sizes, steps=steps)]).is_buffered[0])

    steady = [50.0 + 20 * i for i in range(16)]
    assert not buffered(steady, [1] * 16, 16)
    assert not buffered(steady, [1] * 16, None)
    assert buffered([500 + 0.01 * i for i in range(16)], [1] * 16, 16)  # all let go at the end
    pairs = [50.0 + 40 * (i // 2) + 0.01 * (i % 2) for i in range(16)]
    assert not buffered(pairs, [1] * 16, 8)  # a step of two tokens, sent one by one
    assert not buffered(pairs, [1] * 16, 16)
    threes = [50.0 + 40 * (i // 3) + 0.01 * (i % 3) for i in range(18)]
    assert not buffered(threes, [1] * 18, 6)  # six verify steps
    assert buffered(threes, [1] * 18, 17)  # plain decoding, held back
    assert buffered([900.0], [16], 16)  # the whole answer at once
    assert buffered([900.0], [17], None)
    assert not buffered([900.0], [16], None)
    assert buffered([50.0, *[900 + 0.01 * i for i in range(20)]], [1] * 21, None)  # all but the first
    assert buffered([900 + 0.01 * i for i in range(8)], [1] * 8, 7)  # short, and all at the end
    assert buffered([900 + 0.01 * i for i in range(20)], None, None)  # at least one token each
    assert not buffered(steady, None, None)
    assert not buffered([900.0], [6], None)  # a draft may be that long
    assert buffered([50.0, 350.0, 650.0], [6, 6, 4], 16)  # every sixth step only
    assert not buffered([50.0, 90.0], [1, 4], 2)  # speculation: many tokens of one step


def test_drafting_is_seen_in_counts_or_in_the_servers_word() -> None:
    def drafting(drafted: int | None, word: str | None) -> tuple[bool, int]:
        columns = make_columns([make_record(steps=3, drafted=drafted, speculation=word)])
        return bool(columns.has_drafting[0]), int(columns.speculation[0])

    assert drafting(6, "on") == (True, 1)
    assert drafting(0, "on") == (False, 1)
    assert drafting(0, "off:load") == (False, 0)
    assert drafting(None, "on") == (True, 1)
    assert drafting(None, "off:load") == (False, 0)
    assert drafting(None, None) == (False, -1)
