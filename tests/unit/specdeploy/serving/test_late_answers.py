"""Answers are held back, keep their order, and none is lost when the server stops."""

import logging
import threading
import time

import pytest

from specdeploy.serving.late_answers import LateAnswers


def test_an_answer_waits_and_is_then_sent() -> None:
    answers = LateAnswers(delay_s=0.05)
    sent = threading.Event()
    started = time.monotonic()
    answers.send_later(sent.set)
    assert not sent.is_set()
    assert sent.wait(5)
    assert time.monotonic() - started >= 0.05
    answers.close()


def test_closing_sends_what_is_left_in_order_without_waiting() -> None:
    answers = LateAnswers(delay_s=3600)
    sent: list[int] = []
    for number in range(5):
        answers.send_later(lambda number=number: sent.append(number))  # type: ignore[misc]
    answers.close()
    assert sent == [0, 1, 2, 3, 4]


def test_an_answer_that_cannot_be_sent_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    answers = LateAnswers(delay_s=0)
    sent = threading.Event()

    def fail() -> None:
        raise RuntimeError("the stream is gone")

    with caplog.at_level(logging.ERROR):
        answers.send_later(fail)
        answers.send_later(sent.set)
        assert sent.wait(5)
    answers.close()
    assert "the stream is gone" in caplog.text
