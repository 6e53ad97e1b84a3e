"""From what messages carry to an answer whose last message says so."""

import asyncio
from typing import Any

import pytest

from specdeploy_client.transport import Completion, Message, ProtocolError
from specdeploy_client.transports.answer import AnswerInProgress
from specdeploy_client.transports.exchange import Exchange


class _Exchange(Exchange):
    """An exchange that nothing arrives on."""

    @property
    def connect_ns(self) -> int:
        return 7

    def close(self) -> None:
        """Nothing to close."""


def _answer(**options: bool) -> AnswerInProgress:
    loop = asyncio.new_event_loop()
    try:
        return AnswerInProgress(_Exchange(loop), **options)
    finally:
        loop.close()


def _finish(**counts: Any) -> dict[str, Any]:
    return {"finish_reason": "stop", **counts}


def test_a_message_with_a_finish_reason_completes_the_answer() -> None:
    answer = _answer()
    assert answer.take(1, "a", (5,)) == Message(1, "a", (5,))
    last = answer.take(2, "b", (6,), _finish(num_steps=3))
    assert last == Message(2, "b", (6,), Completion(finish_reason="stop", num_steps=3, connect_ns=7))
    assert (answer.is_complete, answer.is_over) == (True, False)
    assert answer.close() is None


def test_the_final_flag_on_a_message_completes_it_without_a_finish_reason() -> None:
    answer = _answer()
    last = answer.take(2, "b", None, {"total_draft_tokens": 4}, True)
    assert last == Message(2, "b", None, Completion(total_draft_tokens=4, connect_ns=7))
    assert answer.is_over


def test_an_end_after_the_last_message_moves_no_latency() -> None:
    answer = _answer()
    answer.take(2, "b", (6,))
    assert answer.close() == Message(2, "", (), Completion(connect_ns=7))


def test_an_end_after_a_message_without_ids_has_no_ids_either() -> None:
    answer = _answer()
    answer.take(2, "b", None)
    assert answer.close() == Message(2, "", None, Completion(connect_ns=7))


def test_where_the_end_comes_late_the_last_message_waits_for_it() -> None:
    answer = _answer(holds_last=True)
    assert answer.take(1, "a", None) is None
    assert answer.take(2, "b", None, {"num_steps": 2}) == Message(1, "a", None)
    assert answer.close() == Message(2, "b", None, Completion(num_steps=2, connect_ns=7))


def test_a_message_that_waits_is_given_out_when_the_stream_breaks() -> None:
    answer = _answer(holds_last=True)
    answer.take(1, "a", None)
    assert answer.held() == Message(1, "a", None)
    assert answer.held() is None


def test_repeated_text_becomes_deltas() -> None:
    answer = _answer(is_cumulative=True)
    texts = [answer.take(1, text, None) for text in ("Once", "Once upon", "Once upon", "Once upon a")]
    assert [message.text for message in texts if message] == ["Once", " upon", "", " a"]


def test_text_that_does_not_go_on_from_what_came_is_an_error() -> None:
    answer = _answer(is_cumulative=True)
    answer.take(1, "Once", None)
    with pytest.raises(ProtocolError, match="another text than before"):
        answer.take(2, "Twice", None)
