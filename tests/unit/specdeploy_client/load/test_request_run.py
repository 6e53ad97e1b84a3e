"""Whatever becomes of a request, it is one record that says so."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest

from helpers.virtual_time import Clock, VirtualServer, VirtualTimeLoop, run_virtual
from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm, FailureKind, Load, RequestRecord
from specdeploy_client.load.request_run import Job, RequestLabel, RequestRun, run_request, send_recorded
from specdeploy_client.load.server_watch import ServerWatch
from specdeploy_client.metrics import is_answered, is_cancelled
from specdeploy_client.transport import (
    Completion,
    GenerationRequest,
    Message,
    ProtocolError,
    RequestRefusedError,
    RequestTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
)

JOB = Job(
    RequestLabel("chat", Load(None, 2.5), Arm.ON, 3, "p7", 7),
    GenerationRequest("a b c", 9, num_draft_tokens=4, request_id="r7", ignore_eos=True),
    expected_input_tokens=3,
)
START = VirtualTimeLoop.START_NS


class Scripted:
    """Sends `messages`, then raises `error` where there is one."""

    def __init__(self, *messages: Message, error: Exception | None = None) -> None:
        self.messages = messages
        self.error = error
        self.is_closed = False

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        try:
            for message in self.messages:
                yield message
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


def _message(recv_ns: int, ids: tuple[int, ...] | None = (1,), text: str = "x", is_last: bool = False) -> Message:
    return Message(recv_ns, text, ids, Completion(finish_reason="length") if is_last else None)


def _run(transport: Scripted, clock: Callable[[], int] = lambda: 100) -> RequestRecord:
    return asyncio.run(run_request(transport, JOB, clock))


def test_a_record_keeps_what_was_asked_and_what_arrived() -> None:
    seen: list[Message] = []

    async def main(clock: Clock) -> RequestRecord:
        server = VirtualServer(clock, ttft_s=0.05, step_s=0.02, acceptance=1.0, cached_tokens=2)
        return await run_request(server, JOB, clock, seen.append)

    record = run_virtual(main)
    assert (record.segment, record.concurrency, record.request_rate, record.arm) == ("chat", None, 2.5, Arm.ON)
    assert (record.block, record.index, record.prompt_id, record.request_id) == (3, 7, "p7", "r7")
    assert (record.max_tokens, record.ignore_eos, record.expected_input_tokens) == (9, True, 3)
    assert (record.scheduled_ns, record.send_ns, record.end_ns) == (START, START, START + 90_000_000)
    assert record.message_ns == (START + 50_000_000, START + 70_000_000, START + 90_000_000)
    assert record.message_tokens == (1, 5, 3)
    assert record.output_ids == tuple(range(9))
    assert record.text == "xxxxxxxxx"
    assert (record.num_steps, record.num_draft_tokens, record.num_accepted_tokens) == (2, 8, 6)
    assert (record.input_token_count, record.output_token_count, record.cached_token_count) == (3, 9, 2)
    assert (record.finish_reason, record.speculation, record.connect_ns) == ("length", "on", 0)
    assert (record.error, record.failure) == (None, None)
    assert [message.num_tokens for message in seen] == [1, 5, 3]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (RequestRefusedError("too long"), FailureKind.REFUSED),
        (RequestTimeoutError("too slow"), FailureKind.TIMEOUT),
        (StreamClosedError("closed"), FailureKind.STREAM_CLOSED),
        (ProtocolError("not an answer"), FailureKind.PROTOCOL),
        (ServerUnreachableError("gone"), FailureKind.UNREACHABLE),
        (ClientError("something else"), FailureKind.PROTOCOL),
    ],
)
def test_every_error_is_a_failure_with_what_had_arrived(error: ClientError, failure: FailureKind) -> None:
    transport = Scripted(_message(100), _message(110), error=error)
    record = _run(transport)
    assert (record.error, record.failure) == (str(error), failure)
    assert record.message_ns == (100, 110)
    assert record.message_tokens == (1, 1)
    assert record.finish_reason is None
    assert transport.is_closed


def test_a_bug_is_not_a_failure_of_the_server() -> None:
    with pytest.raises(KeyError):
        _run(Scripted(_message(100), error=KeyError("bug")))


@pytest.mark.parametrize("messages", [(), (_message(100),)])
def test_a_stream_without_a_last_message_was_closed(messages: tuple[Message, ...]) -> None:
    record = _run(Scripted(*messages))
    assert record.failure is FailureKind.STREAM_CLOSED
    assert record.error is not None
    assert "without a last message" in record.error


@pytest.mark.parametrize(
    ("arrivals", "step"),
    [((99, 120), 1), ((150, 120), 30), ((120, 120), None), ((100, 101), None)],
)
def test_a_clock_that_goes_backwards_is_noticed(arrivals: tuple[int, int], step: int | None) -> None:
    record = _run(Scripted(_message(arrivals[0]), _message(arrivals[1], is_last=True)))
    assert record.failure is (None if step is None else FailureKind.CLOCK)
    assert step is None or f"by {step} ns" in (record.error or "")


def test_where_one_message_does_not_say_its_tokens_none_are_known_and_empty_ones_are_left_out() -> None:
    unknown = _message(110, ids=None)
    record = _run(Scripted(_message(100), unknown, _message(120, ids=None, text="", is_last=True)))
    assert (record.message_ns, record.message_tokens) == ((100, 110), None)
    counted = replace(_message(120, ids=None, text="", is_last=True), token_count=0)
    record = _run(Scripted(_message(100), counted))
    assert (record.message_ns, record.message_tokens) == ((100, 120), (1, 0))


@pytest.mark.parametrize(
    ("lost", "failure", "words"),
    [
        (None, FailureKind.CANCELLED, "the client was stopped"),
        ("no server at x:1", FailureKind.UNREACHABLE, "ended with the server: no server at x:1"),
    ],
)
def test_a_request_that_is_ended_from_outside_has_its_record(
    lost: str | None, failure: FailureKind, words: str
) -> None:
    records: list[RequestRecord] = []

    async def main(clock: Clock) -> VirtualServer:
        server = VirtualServer(clock)
        watch = ServerWatch()
        watch.lost = lost
        sending = send_recorded(server, JOB, records.append, clock=clock, scheduled_ns=START - 5, watch=watch)
        task = asyncio.create_task(sending)
        await asyncio.sleep(0.06)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return server

    server = run_virtual(main)
    (record,) = records
    assert (record.failure, record.finish_reason) == (failure, None)
    assert words in (record.error or "")
    assert (record.scheduled_ns, record.send_ns, record.end_ns) == (START - 5, START, START + 60_000_000)
    assert record.message_tokens == (1,)
    assert (server.in_flight, server.num_cancelled) == (0, 1)


def test_the_time_a_request_was_due_is_kept() -> None:
    record = asyncio.run(RequestRun(JOB, lambda: 100, scheduled_ns=40).record(Scripted(_message(130, is_last=True))))
    assert (record.scheduled_ns, record.send_ns, record.end_ns) == (40, 100, 130)


@pytest.mark.parametrize(("reason", "failure"), [("cancelled", FailureKind.REFUSED), ("timeout", FailureKind.TIMEOUT)])
def test_an_answer_that_the_server_gave_up_is_a_failure_and_not_this_clients_wish(
    reason: str, failure: FailureKind
) -> None:
    record = _run(Scripted(_message(100), Message(120, "", (), Completion(finish_reason=reason))))
    assert (record.failure, record.finish_reason) == (failure, reason)
    assert record.error == f"the server ended the request itself: its finish reason is {reason}"
    assert not is_answered(record)
    assert not is_cancelled(record)
