"""Closed-loop load: a fixed number of workers, each sending its next request when its last one has finished."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace

from specdeploy.contract import OTHER_SEGMENT
from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm, RequestRecord
from specdeploy_client.arrivals import Block, plan_blocks
from specdeploy_client.transport import (
    Completion,
    GenerationRequest,
    Message,
    ServerUnreachableError,
    Transport,
)

WARMUP_MAX_TOKENS = 8  # the prompt and at least two verify steps, so that nothing lazy is left for a measured request
RecordSink = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class CellRequest:
    """Request number `index` of a cell before its arm is known."""

    index: int
    prompt_id: str
    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One (segment, concurrency) pair to measure with every arm of `draft_lens` (K sent, by arm; 0 = off).

    `requests` are the measured ones; `warmup` go before them, once per arm, and are not counted.
    """

    segment: str
    concurrency: int
    draft_lens: dict[Arm, int]
    requests: tuple[CellRequest, ...]
    warmup: tuple[CellRequest, ...]


@dataclass(frozen=True, slots=True)
class RequestLabel:
    """Where a request belongs in a run."""

    segment: str
    concurrency: int
    arm: Arm
    block: int
    prompt_id: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to send, and where it belongs."""

    label: RequestLabel
    request: GenerationRequest


async def run_cell(
    transport: Transport, cell: Cell, sink: RecordSink, clock: Callable[[], int] = time.monotonic_ns
) -> None:
    """Warm up, then measure every block of `cell`; each finished or failed request goes to `sink`.

    Raises `ClientError` when the server is gone; what was measured before is with `sink` already.
    """
    for arm in cell.draft_lens:
        await _warm_up(transport, cell, arm, clock)
    for block in plan_blocks(len(cell.requests), cell.concurrency, tuple(cell.draft_lens)):
        await _run_jobs(transport, _block_jobs(cell, block), cell.concurrency, sink, clock)


async def run_request(
    transport: Transport,
    job: Job,
    clock: Callable[[], int] = time.monotonic_ns,
    on_message: Callable[[Message], None] | None = None,
) -> RequestRecord:
    """Send one request and record what came back; a refused or timed-out request is a record with an error.

    `clock` must be the one that stamps the transport's messages. Raises `ServerUnreachableError` when the server is
    gone: no later request can succeed.
    """
    messages: list[Message] = []
    error: str | None = None
    send_ns = clock()
    try:
        async with aclosing(transport.stream(job.request)) as stream:
            async for message in stream:
                messages.append(message)
                if on_message is not None:
                    on_message(message)
        end_ns = messages[-1].recv_ns if messages else clock()
    except ServerUnreachableError:
        raise
    except ClientError as problem:
        error, end_ns = str(problem), clock()
    completion = messages[-1].completion if messages else None
    if error is None and completion is None:
        error = "the stream ended without a last message that carries finish_reason"
    return _record(job, send_ns, end_ns, messages, completion or Completion(), error)


def _record(
    job: Job, send_ns: int, end_ns: int, messages: list[Message], completion: Completion, error: str | None
) -> RequestRecord:
    label = job.label
    counts_known = all(message.num_tokens is not None for message in messages)
    kept = messages if counts_known else [message for message in messages if message.text]
    return RequestRecord(
        request_id=job.request.request_id,
        segment=label.segment,
        concurrency=label.concurrency,
        arm=label.arm,
        block=label.block,
        index=label.index,
        prompt_id=label.prompt_id,
        scheduled_ns=send_ns,  # closed loop: a request is due when its worker is free
        send_ns=send_ns,
        end_ns=end_ns,
        message_ns=tuple(message.recv_ns for message in kept),
        message_tokens=tuple(message.num_tokens or 0 for message in kept) if counts_known else None,
        output_ids=tuple(token for message in messages for token in message.output_ids or ()),
        text="".join(message.text for message in messages),
        error=error,
        finish_reason=completion.finish_reason,
        input_token_count=completion.input_token_count,
        cached_token_count=completion.cached_token_count,
        connect_ns=completion.connect_ns,
        output_token_count=completion.output_token_count,
        num_steps=completion.num_steps,
        num_draft_tokens=completion.total_draft_tokens,
        num_accepted_tokens=completion.total_accepted_draft_tokens,
        speculation=completion.speculation,
    )


def _job(cell: Cell, block: int, arm: Arm, request: CellRequest) -> Job:
    return Job(
        label=RequestLabel(cell.segment, cell.concurrency, arm, block, request.prompt_id, request.index),
        request=GenerationRequest(
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            num_draft_tokens=cell.draft_lens[arm],
            segment=cell.segment,
            # Unique within a run, and readable in a server's log.
            request_id=f"{cell.segment}-c{cell.concurrency}-{arm}-{request.index}",
        ),
    )


def _block_jobs(cell: Cell, block: Block) -> Iterator[Job]:
    for request in cell.requests[block.first_index : block.first_index + block.num_requests]:
        yield _job(cell, block.number, block.arm, request)


async def _warm_up(transport: Transport, cell: Cell, arm: Arm, clock: Callable[[], int]) -> None:
    """Short requests at the cell's concurrency, counted by the server as segment `other`."""
    other = replace(cell, segment=OTHER_SEGMENT)
    jobs = (
        _job(other, 0, arm, replace(request, max_tokens=min(request.max_tokens, WARMUP_MAX_TOKENS)))
        for request in cell.warmup
    )
    await _run_jobs(transport, jobs, cell.concurrency, _discard, clock)


def _discard(_record: RequestRecord) -> None:
    """Sink of warm-up requests."""


async def _run_jobs(
    transport: Transport, jobs: Iterable[Job], concurrency: int, sink: RecordSink, clock: Callable[[], int]
) -> None:
    """Drain `jobs` with `concurrency` workers. The first worker that loses the server stops the others."""
    queue = iter(jobs)

    async def work() -> None:
        for job in queue:  # one event loop: taking the next job is atomic
            sink(await run_request(transport, job, clock))

    workers = [asyncio.create_task(work()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


class LoopLagProbe:
    """Measures how late the event loop wakes up: a client that is itself the bottleneck stamps messages late."""

    INTERVAL_S = 0.02

    def __init__(self) -> None:
        self.lags_ns: list[int] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "LoopLagProbe":
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            before = time.monotonic_ns()
            await asyncio.sleep(self.INTERVAL_S)
            self.lags_ns.append(time.monotonic_ns() - before - int(self.INTERVAL_S * 1e9))
