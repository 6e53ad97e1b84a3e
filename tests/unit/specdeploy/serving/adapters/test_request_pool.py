"""The pool's accounting, its watcher, and what closing leaves behind."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from helpers.serving_requests import RecordingSink, make_request
from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.runtime.request import RequestStats, RowUpdate
from specdeploy.serving.adapters.request_pool import Job, RequestPool, ShuttingDownError

PERIOD_S = 0.01
WAIT_S = 10.0
PoolFactory = Callable[..., RequestPool]


@pytest.fixture
def make_pool() -> Iterator[PoolFactory]:
    pools: list[RequestPool] = []

    def make(run: Callable[[Job], None], *, max_rows: int = 2, max_queue: int = 1) -> RequestPool:
        pools.append(RequestPool(run, max_rows=max_rows, max_queue=max_queue, watch_period_s=PERIOD_S))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def end(pool: RequestPool, job: Job, reason: str = "length") -> None:
    pool.finish(job)
    job.sink.deliver(RowUpdate(job.request_id, (), None, reason, RequestStats()))  # type: ignore[arg-type]


class Call:
    """A call that goes on until it is interrupted for the `heard`-th time, as one that is lost before that."""

    def __init__(self, heard: int = 1) -> None:
        self.is_running = threading.Event()
        self.num_interrupts = 0
        self._heard = heard
        self._is_over = threading.Event()

    def run(self, job: Job) -> None:
        job.interrupt = self.interrupt
        self.is_running.set()
        try:
            assert self._is_over.wait(WAIT_S)
        finally:
            job.interrupt = None

    def interrupt(self) -> None:
        self.num_interrupts += 1
        if self.num_interrupts >= self._heard:
            self._is_over.set()


def test_rows_and_queue_are_counted_and_ids_never_come_twice(make_pool: PoolFactory) -> None:
    go, ids = threading.Event(), []

    def run(job: Job) -> None:
        ids.append(job.request_id)
        assert go.wait(WAIT_S)
        end(pool, job)

    pool = make_pool(run)
    sinks = [RecordingSink() for _ in range(3)]
    for sink in sinks:
        pool.submit(make_request(), sink)
    with pytest.raises(RequestError, match="all rows are busy and 1 requests wait already"):
        pool.submit(make_request(), RecordingSink())
    wait_until(lambda: len(ids) == 2)
    assert (pool.num_in_flight, pool.num_running) == (3, 2)
    go.set()
    assert all(sink.done.wait(WAIT_S) for sink in sinks)
    assert len(set(ids)) == 3
    wait_until(lambda: pool.num_in_flight == pool.num_running == 0)


@pytest.mark.parametrize(
    ("error", "message"),
    [(SpecDeployError("it failed"), "it failed"), (KeyError("x"), "the request failed: KeyError('x')")],
)
def test_a_request_that_fails_frees_its_row(make_pool: PoolFactory, error: Exception, message: str) -> None:
    def run(job: Job) -> None:
        raise error

    pool = make_pool(run)
    sink = RecordingSink()
    pool.submit(make_request(), sink)
    assert sink.done.wait(WAIT_S)
    assert sink.error == message
    wait_until(lambda: pool.num_in_flight == pool.num_running == 0)


def test_a_call_is_interrupted_again_until_it_ends(make_pool: PoolFactory) -> None:
    """The first ones are lost: the engine does not know the request yet."""
    call = Call(heard=4)

    def run(job: Job) -> None:
        call.run(job)
        end(pool, job, "cancelled")

    pool = make_pool(run)
    sink = RecordingSink()
    pool.submit(make_request(), sink)
    assert call.is_running.wait(WAIT_S)
    time.sleep(5 * PERIOD_S)
    assert call.num_interrupts == 0  # its client is there
    sink.is_gone = True
    assert sink.done.wait(WAIT_S)
    assert call.num_interrupts == 4


def test_an_interrupt_of_the_workers_own_is_repeated_too(make_pool: PoolFactory) -> None:
    call = Call(heard=3)

    def run(job: Job) -> None:
        job.interrupt = call.interrupt
        job.interrupt_call()
        call.run(job)
        end(pool, job, "stop")

    pool = make_pool(run)
    sink = RecordingSink()
    pool.submit(make_request(), sink)
    assert sink.done.wait(WAIT_S)
    assert call.num_interrupts == 3


def test_an_interrupt_that_fails_is_told_once_and_tried_again(
    make_pool: PoolFactory, caplog: pytest.LogCaptureFixture
) -> None:
    call = Call(heard=3)

    def interrupt() -> None:
        call.interrupt()
        raise SpecDeployError("the engine is away")

    def run(job: Job) -> None:
        call.run(job)
        end(pool, job, "cancelled")

    pool = make_pool(run)
    sink = RecordingSink()
    pool.submit(make_request(), sink)
    assert call.is_running.wait(WAIT_S)
    next(iter(pool._jobs.values())).interrupt = interrupt
    sink.is_gone = True
    assert sink.done.wait(WAIT_S)
    assert caplog.text.count("the engine is away") == 1


def test_a_waiting_client_that_goes_leaves_the_queue(make_pool: PoolFactory) -> None:
    call = Call()

    def run(job: Job) -> None:
        call.run(job)
        end(pool, job)

    pool = make_pool(run, max_rows=1)
    pool.submit(make_request(), RecordingSink())
    assert call.is_running.wait(WAIT_S)
    sink = RecordingSink()
    pool.submit(make_request(), sink)
    sink.is_gone = True
    assert sink.done.wait(WAIT_S)
    assert sink.last.finish_reason == "cancelled"
    assert pool.num_in_flight == 1


def test_closing_repeats_what_a_call_did_not_hear(make_pool: PoolFactory) -> None:
    call = Call(heard=3)

    def run(job: Job) -> None:
        call.run(job)
        job.is_cancelled()
        raise AssertionError("it must not go on")

    pool = make_pool(run, max_rows=1)
    sinks = [RecordingSink(), RecordingSink()]
    for sink in sinks:
        pool.submit(make_request(), sink)
    assert call.is_running.wait(WAIT_S)
    pool.close()
    assert [sink.error for sink in sinks] == ["the server is shutting down"] * 2
    assert (pool.num_in_flight, pool.num_running, call.num_interrupts) == (0, 0, 3)


def test_after_closing_nothing_is_taken_in(make_pool: PoolFactory) -> None:
    pool = make_pool(lambda job: None)
    pool.close()
    with pytest.raises(ShuttingDownError, match="the server is shutting down"):
        pool.submit(make_request(), RecordingSink())
    assert pool.num_in_flight == 0


def test_requests_that_come_while_it_closes_are_answered_or_refused(make_pool: PoolFactory) -> None:
    def run(job: Job) -> None:
        end(pool, job)

    pool = make_pool(run, max_rows=4, max_queue=1000)
    sinks: list[RecordingSink] = []
    is_refused = threading.Event()

    def submit() -> None:
        while not is_refused.is_set():
            sinks.append(RecordingSink())
            try:
                pool.submit(make_request(), sinks[-1])
            except RequestError:
                sinks.pop()
            except ShuttingDownError:
                sinks.pop()
                is_refused.set()

    thread = threading.Thread(target=submit)
    thread.start()
    wait_until(lambda: len(sinks) > 20)
    pool.close()
    thread.join(WAIT_S)
    assert is_refused.is_set()
    assert all(sink.done.is_set() for sink in sinks)
    assert (pool.num_in_flight, pool.num_running) == (0, 0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
