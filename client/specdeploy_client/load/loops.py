"""How the requests of one block are sent: by workers (closed loop) or at times fixed beforehand (open loop)."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from specdeploy.run_contract import RequestRecord
from specdeploy_client.load.cell import CellRequest, chains_of
from specdeploy_client.load.precise_timer import SleepUntil
from specdeploy_client.load.ramps import worker_starts_ns
from specdeploy_client.load.request_run import Clock, Job, RecordSink, RequestRun, end_from_outside, send_recorded
from specdeploy_client.load.server_watch import ServerWatch
from specdeploy_client.transport import Transport

# What is under way when the server is lost may still be answered (only one connection broke): it gets this long.
LOSS_GRACE_S = 2.0

MakeJob = Callable[[CellRequest, tuple[str, ...]], Job]


class BlockSender:
    """Sends the requests of one block with one arm, and returns when every one that was due has its record.

    `make_job(request, history)` makes what is sent; `history` are the turns before those of a request that continues
    the answer to another one, the answer included, () otherwise.
    When `watch` gives the server up, nothing is sent any more, and what is under way is recorded within `LOSS_GRACE_S`.
    """

    def __init__(
        self,
        transport: Transport,
        make_job: MakeJob,
        sink: RecordSink,
        watch: ServerWatch,
        *,
        clock: Clock,
        sleep_until: SleepUntil,
    ) -> None:
        self._watch = watch
        self._transport = transport
        self._make_job = make_job
        self._sink = sink
        self._clock = clock
        self._sleep_until = sleep_until
        self._slots: asyncio.Semaphore | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[Any]] = set()
        self._is_over = asyncio.Event()
        self._bug: BaseException | None = None

    async def run_closed(self, requests: Sequence[CellRequest], concurrency: int) -> None:
        """`concurrency` workers, each sending its next request when its last one is answered.

        Requests that follow one another are one user's session: one worker sends them, and waits while the user thinks.
        """
        chains = iter(chains_of(requests))

        async def work() -> None:
            for chain in chains:  # one event loop: taking the next chain is atomic
                await self._send_chain(chain, None)
                if self._watch.lost is not None:
                    return

        await self._run_all([work() for _ in range(concurrency)])

    async def run_ramp(self, requests: Iterator[CellRequest], concurrency: int, ramp_ns: int) -> None:
        """Workers that start one by one over `ramp_ns`; none begins another request after that, or after a failed one.

        `requests` must not run out. Each stands alone.
        """
        start_ns = self._clock()

        async def work(after_ns: int) -> None:
            await self._sleep_until(start_ns + after_ns)
            while True:
                record = await self._send(self._make_job(next(requests), ()), None)
                if record.error is not None or self._clock() >= start_ns + ramp_ns:
                    return

        await self._run_all([work(after_ns) for after_ns in worker_starts_ns(concurrency, ramp_ns)])

    async def run_open(
        self, requests: Sequence[CellRequest], offsets_ns: Mapping[int, int], max_in_flight: int
    ) -> None:
        """Each request at its time (`offsets_ns` by index, counted from now), whatever is still under way.

        With `max_in_flight` under way a request waits for a place; its being late then shows in its record, and so does
        that it never got one because the run ended before.
        """
        self._slots = asyncio.Semaphore(max_in_flight)
        chains = sorted(chains_of(requests), key=lambda chain: offsets_ns[chain[0].index])
        start_ns = self._clock()

        async def dispatch() -> None:
            for chain in chains:
                due_ns = start_ns + offsets_ns[chain[0].index]
                await self._sleep_until(due_ns)
                self._start(self._send_chain(chain, due_ns))

        await self._run_all([dispatch()])

    async def _send_chain(self, chain: Sequence[CellRequest], due_ns: int | None) -> None:
        """A request, due now or at `due_ns`, and those that follow it, each after the answer to the one before."""
        history: tuple[str, ...] = ()
        previous: RequestRecord | None = None
        for request in chain:
            if previous is not None:
                # A user who does not think is ready when the client is.
                due_ns = previous.end_ns + request.think_ns if request.think_ns else None
            if due_ns is not None:
                await self._sleep_until(due_ns)
            job = self._make_job(request, history if request.continues_own_answer else ())
            if request.continues_own_answer and previous is not None and previous.error is not None:
                previous = self._record_unsent(job, previous, due_ns)
                continue
            previous = await self._send(job, due_ns)
            if self._watch.lost is not None:
                return
            history = (*job.request.turns, previous.text)

    async def _send(self, job: Job, due_ns: int | None) -> RequestRecord:
        scheduled_ns = self._clock() if due_ns is None else due_ns
        await self._take_slot(job, scheduled_ns)
        try:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - every coroutine runs in a task
            self._sending.add(task)
            try:
                record = await send_recorded(
                    self._transport, job, self._sink, clock=self._clock, scheduled_ns=scheduled_ns, watch=self._watch
                )
            finally:
                self._sending.discard(task)
            # Before the place is free: whoever waits for it must find out first.
            if self._watch.judge(record):
                self._give_up()
        finally:
            if self._slots is not None:
                self._slots.release()
        return record

    async def _take_slot(self, job: Job, scheduled_ns: int) -> None:
        if self._slots is None:
            return
        try:
            await self._slots.acquire()
        except asyncio.CancelledError:
            error, failure = end_from_outside(self._watch, "while this request waited for a place")
            self._sink(RequestRun(job, self._clock, scheduled_ns).given_up(f"not sent: {error}", failure))
            raise

    def _record_unsent(self, job: Job, previous: RequestRecord, due_ns: int | None) -> RequestRecord:
        error = f"not sent: request {previous.index}, which it continues, has no answer ({previous.error})"
        record = RequestRun(job, self._clock, due_ns).given_up(error, previous.failure)
        self._sink(record)
        return record

    def _give_up(self) -> None:
        """Stop sending; end what is under way if it has not ended itself before long."""
        for task in self._tasks - self._sending - {asyncio.current_task()}:
            task.cancel()
        asyncio.get_running_loop().call_later(LOSS_GRACE_S, self._cancel_all)

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._bug = self._bug or bug
        if not self._tasks or self._bug is not None:
            self._is_over.set()

    async def _run_all(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run `work` and all that it starts to the end. Cancelled, or after an error in one of them, end the others."""
        for coroutine in work:
            self._start(coroutine)
        try:
            await self._is_over.wait()
        finally:
            self._cancel_all()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._bug is not None:
            raise self._bug
