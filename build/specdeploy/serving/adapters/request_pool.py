"""A bounded pool of threads, one request each, with the accounting and the cancellation that every request needs.

For engines that are called: a call blocks its thread, so Triton's own thread only hands requests over. `max_rows`
requests run, `max_queue` wait, more are refused. One thread beside them asks the clients that no worker can ask: those
of waiting requests, and of requests inside a long call. It ends such a call again every period until it has ended: an
engine that is told before it knows the request forgets it.
"""

import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.runtime.request import RequestStats, RowUpdate
from specdeploy.serving.adapters.base import Sink
from specdeploy.serving.request import ServingRequest

WATCH_PERIOD_S = 0.25
SHUTTING_DOWN = "the server is shutting down"

_log = logging.getLogger(__name__)


class ShuttingDownError(SpecDeployError):
    """The pool is being closed: the request must end now."""


@dataclass(slots=True, eq=False)
class Job:
    """A request in the pool. `interrupt` ends the call it is in; set while there is such a call.

    `is_ending`: that was asked for, so it is asked for again until the call is over.
    """

    request_id: str
    request: ServingRequest
    sink: Sink
    is_running: bool = False
    is_closing: bool = False
    is_ending: bool = False
    interrupt: Callable[[], None] | None = None
    _is_over: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_cancelled(self) -> bool:
        """Whether the client is gone; from any thread. Raises ShuttingDownError when the server is about to go.

        Never asks after `end`: Triton looks the answer up in what it frees with the last response
        (ProcessIsRequestCancelled in python_backend src/python_be.cc@f9088ff6).
        """
        if self.is_closing:
            raise ShuttingDownError(SHUTTING_DOWN)
        with self._lock:
            return not self._is_over and self.sink.is_cancelled()

    def end(self) -> None:
        """To be called before the last message."""
        with self._lock:
            self._is_over = True

    def interrupt_call(self) -> None:
        """End the call the request is in, if there is one. The pool repeats it until `interrupt` is taken away."""
        interrupt = self.interrupt
        if interrupt is not None:
            self.is_ending = True
            interrupt()

    def must_end(self) -> bool:
        """Whether the call it is in is for nobody."""
        return self.is_closing or self.is_ending or self.is_cancelled()


class RequestPool:
    """Runs `run(job)` for every request. `run` delivers to the sink and calls `finish` before the last message."""

    def __init__(
        self, run: Callable[[Job], None], *, max_rows: int, max_queue: int, watch_period_s: float = WATCH_PERIOD_S
    ) -> None:
        """Threads start when they are needed; the watching one starts now."""
        self._run = run
        self._max_rows, self._max_queue = max_rows, max_queue
        self._watch_period_s = watch_period_s
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._num_submitted = 0
        self._instance = secrets.token_hex(4)  # engines outlive this model: an id must not come twice
        self._is_closing = False
        self._is_closed = threading.Event()
        self._workers = ThreadPoolExecutor(max_rows, thread_name_prefix="specdeploy-request")
        self._watcher = threading.Thread(target=self._watch, name="specdeploy-watch", daemon=True)
        self._watcher.start()

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not finished."""
        return len(self._jobs)

    @property
    def num_running(self) -> int:
        """Requests that have a row."""
        with self._lock:
            return sum(job.is_running for job in self._jobs.values())

    def submit(self, request: ServingRequest, sink: Sink) -> None:
        """Queue a request. Raises RequestError when too many wait already, ShuttingDownError from `close` on."""
        with self._lock:
            if self._is_closing:
                raise ShuttingDownError(SHUTTING_DOWN)
            if len(self._jobs) >= self._max_rows + self._max_queue:
                reason = f"all rows are busy and {self._max_queue} requests wait already"
                raise RequestError("request", reason, "Retry later")
            self._num_submitted += 1
            request_id = f"llm-{self._instance}-{self._num_submitted}"
            self._jobs[request_id] = Job(request_id, request, sink)
            self._workers.submit(self._work, request_id)  # within the lock: `close` comes before all of it or after

    def finish(self, job: Job) -> None:
        """Take a request off the books: before its last message, so that what is reported then is true."""
        with self._lock:
            self._jobs.pop(job.request_id, None)
        job.end()

    def close(self) -> None:
        """Fail what waits, end what runs, and stop the threads. The watching one goes last: it repeats what is lost."""
        with self._lock:
            self._is_closing = True
            waiting = [job for job in self._jobs.values() if not job.is_running]
            running = [job for job in self._jobs.values() if job.is_running]
            self._jobs = {job.request_id: job for job in running}
            for job in running:
                job.is_closing = True
        for job in running:
            self._interrupt(job)
        for job in waiting:
            self._fail(job, SHUTTING_DOWN)
        self._workers.shutdown(wait=True)
        self._is_closed.set()
        self._watcher.join()

    def _work(self, request_id: str) -> None:
        # Waiting threads must hold no request: Triton does not unload a model while one of its requests is alive.
        with self._lock:
            job = self._jobs.get(request_id)
            if job is None:
                return
            job.is_running = True
        try:
            self._run(job)
        except SpecDeployError as error:
            self._fail(job, str(error))
        except Exception as error:  # a bug: this request gets an answer and the others go on
            _log.exception("request %s failed", request_id)
            self._fail(job, f"the request failed: {error!r}")
        finally:
            self.finish(job)

    def _fail(self, job: Job, message: str) -> None:
        """Tell a client that its request failed. The thread lives on even when that cannot be sent."""
        self.finish(job)
        try:
            job.sink.fail(message)
        except Exception:
            _log.exception("reporting a failed request failed")

    def _watch(self) -> None:
        while not self._is_closed.wait(self._watch_period_s):
            self._look_around()

    def _look_around(self) -> None:
        # A frame of its own, for the reason given in _work.
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            try:
                self._look_at(job)
            except Exception:
                _log.exception("asking the client of request %s failed", job.request_id)

    def _look_at(self, job: Job) -> None:
        if job.is_running:
            if job.interrupt is not None and job.must_end():
                self._interrupt(job)
            return
        if not job.is_cancelled():
            return
        with self._lock:
            if job.is_running or self._jobs.pop(job.request_id, None) is None:
                return
        job.end()
        job.sink.deliver(RowUpdate(job.request_id, (), None, "cancelled", RequestStats()))

    def _interrupt(self, job: Job) -> None:
        is_first = not job.is_ending
        try:
            job.interrupt_call()
        except SpecDeployError as error:
            _log.log(logging.WARNING if is_first else logging.DEBUG, "request %s goes on: %s", job.request_id, error)
        except Exception:
            _log.exception("ending the call of request %s failed", job.request_id)
