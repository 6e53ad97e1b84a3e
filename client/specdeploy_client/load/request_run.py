"""One request: sent, watched, and written down as a record whatever becomes of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm, FailureKind, Load, RequestRecord
from specdeploy_client.load.server_watch import ServerWatch
from specdeploy_client.metrics import GAVE_UP
from specdeploy_client.transport import (
    Completion,
    GenerationRequest,
    Message,
    NobodyAnswersError,
    ProtocolError,
    RequestRefusedError,
    RequestTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
    Transport,
)

Clock = Callable[[], int]
RecordSink = Callable[[RequestRecord], None]
MessageSink = Callable[[Message], None]

_FAILURE_OF: dict[type[ClientError], FailureKind] = {
    RequestRefusedError: FailureKind.REFUSED,
    RequestTimeoutError: FailureKind.TIMEOUT,
    StreamClosedError: FailureKind.STREAM_CLOSED,
    ProtocolError: FailureKind.PROTOCOL,
    ServerUnreachableError: FailureKind.UNREACHABLE,
    NobodyAnswersError: FailureKind.UNREACHABLE,
}


@dataclass(frozen=True, slots=True)
class RequestLabel:
    """Where a request belongs in a run."""

    segment: str
    load: Load
    arm: Arm
    block: int
    prompt_id: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to send, and where it belongs. `expected_input_tokens`: of a prompt made to a length."""

    label: RequestLabel
    request: GenerationRequest
    expected_input_tokens: int | None = None


class RequestRun:
    """One sending of one job. `clock` must be the one that stamps the transport's messages.

    `scheduled_ns`: when the request was due; None if it was due when it was sent.
    """

    def __init__(self, job: Job, clock: Clock = time.monotonic_ns, scheduled_ns: int | None = None) -> None:
        self._job = job
        self._clock = clock
        self._messages: list[Message] = []
        self._send_ns = clock()
        self._scheduled_ns = self._send_ns if scheduled_ns is None else scheduled_ns

    async def record(self, transport: Transport, on_message: MessageSink | None = None) -> RequestRecord:
        """Send the request, now, and watch it to its end. A failure is a record too.

        Cancelled, it closes the stream and raises CancelledError; `given_up` then records what had arrived.
        """
        messages = self._messages
        self._send_ns = self._clock()
        try:
            async with aclosing(transport.stream(self._job.request)) as stream:
                async for message in stream:
                    messages.append(message)
                    if on_message is not None:
                        on_message(message)
        except ClientError as problem:
            return self._recorded(self._clock(), str(problem), _FAILURE_OF.get(type(problem), FailureKind.PROTOCOL))
        if not messages or messages[-1].completion is None:
            error = "the stream ended without a last message that carries finish_reason"
            return self._recorded(self._clock(), error, FailureKind.STREAM_CLOSED)
        completion = messages[-1].completion
        if (reason := completion.finish_reason) in GAVE_UP:
            error = f"the server ended the request itself: its finish reason is {reason}"
            return self._recorded(messages[-1].recv_ns, error, GAVE_UP[reason])
        if (backwards := self._backwards_ns()) > 0:
            error = f"the client's clock went back by {backwards} ns while this request ran: its times mean nothing"
            return self._recorded(messages[-1].recv_ns, error, FailureKind.CLOCK)
        return self._recorded(messages[-1].recv_ns)

    def given_up(self, error: str, failure: FailureKind | None) -> RequestRecord:
        """The record of a request that was ended from outside, or not sent at all."""
        return self._recorded(self._clock(), error, failure)

    def _backwards_ns(self) -> int:
        """The largest step backwards from due to sent to the arrival of every message."""
        times = (self._scheduled_ns, self._send_ns, *(message.recv_ns for message in self._messages))
        return max(earlier - later for earlier, later in pairwise(times))

    def _recorded(self, end_ns: int, error: str | None = None, failure: FailureKind | None = None) -> RequestRecord:
        label, request = self._job.label, self._job.request
        messages = self._messages
        completion = (messages[-1].completion if messages else None) or Completion()
        message_ns, message_tokens = _arrivals(messages)
        return RequestRecord(
            request_id=request.request_id,
            segment=label.segment,
            concurrency=label.load.concurrency,
            request_rate=label.load.request_rate,
            arm=label.arm,
            block=label.block,
            index=label.index,
            prompt_id=label.prompt_id,
            scheduled_ns=self._scheduled_ns,
            send_ns=self._send_ns,
            end_ns=end_ns,
            message_ns=message_ns,
            message_tokens=message_tokens,
            output_ids=tuple(token for message in messages for token in message.output_ids or ()),
            text="".join([message.text for message in messages]),
            max_tokens=request.max_tokens,
            ignore_eos=request.ignore_eos,
            expected_input_tokens=self._job.expected_input_tokens,
            connect_ns=completion.connect_ns,
            error=error,
            failure=failure,
            finish_reason=completion.finish_reason,
            input_token_count=completion.input_token_count,
            output_token_count=completion.output_token_count,
            cached_token_count=completion.cached_token_count,
            num_steps=completion.num_steps,
            num_draft_tokens=completion.total_draft_tokens,
            num_accepted_tokens=completion.total_accepted_draft_tokens,
            speculation=completion.speculation,
        )


async def run_request(
    transport: Transport, job: Job, clock: Clock = time.monotonic_ns, on_message: MessageSink | None = None
) -> RequestRecord:
    """Send one request now and record what came back; every failure is a record with `error` and `failure`."""
    return await RequestRun(job, clock).record(transport, on_message)


async def send_recorded(
    transport: Transport,
    job: Job,
    sink: RecordSink,
    *,
    clock: Clock,
    scheduled_ns: int | None,
    watch: ServerWatch,
) -> RequestRecord:
    """Like `run_request`, for a request that something else may end: its record is with `sink` even then.

    It was ended with the server where `watch` has given that up, else by this client's own wish.
    """
    run = RequestRun(job, clock, scheduled_ns)
    try:
        record = await run.record(transport, watch.hear)
    except asyncio.CancelledError:
        sink(run.given_up(*end_from_outside(watch, "while this request ran")))
        raise
    sink(record)
    return record


def end_from_outside(watch: ServerWatch, when: str) -> tuple[str, FailureKind]:
    """Error and kind of a request that something else ended: the loss of the server, or this client's own wish."""
    if watch.lost is not None:
        return f"ended with the server: {watch.lost}", FailureKind.UNREACHABLE
    return f"the client was stopped {when}", FailureKind.CANCELLED


def _arrivals(messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """When messages came and how many tokens each carried; where one does not say, None, and messages without text
    are left out because they may carry no token."""
    sizes = [message.num_tokens for message in messages]
    if any(size is None for size in sizes):
        return tuple(message.recv_ns for message in messages if message.text), None
    return tuple(message.recv_ns for message in messages), tuple(size or 0 for size in sizes)
