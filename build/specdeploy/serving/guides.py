"""Compiles the guides of requests on a thread of its own: neither Triton's thread nor the engine waits for them."""

import logging
import queue
import threading
from collections.abc import Callable

from specdeploy.errors import RequestError, SpecDeployError
from specdeploy.runtime.request import GuidedOutput
from specdeploy.serving.adapters.base import Sink
from specdeploy.serving.request import ServingRequest

# Longer than any guide within the limits of runtime.grammar was seen to take; one that takes longer is left behind.
_CLOSE_TIMEOUT_S = 5.0

_log = logging.getLogger(__name__)

CompileGuide = Callable[[ServingRequest], GuidedOutput]
# What became of a guide: the constraint, or why the request is refused.
TakeGuided = Callable[[ServingRequest, Sink, GuidedOutput | SpecDeployError], None]


class GuideThread:
    """Hands every request on with its compiled guide, or with the error that refuses it, in the order they came."""

    def __init__(self, compile_guide: CompileGuide, take: TakeGuided, *, max_waiting: int) -> None:
        """`take` is called on this thread, or on the caller's where `max_waiting` guides wait already."""
        self._compile = compile_guide
        self._take = take
        self._max_waiting = max_waiting
        self._inbox: queue.SimpleQueue[tuple[ServingRequest, Sink] | None] = queue.SimpleQueue()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="specdeploy-guides", daemon=True)
        self._thread.start()

    def submit(self, request: ServingRequest, sink: Sink) -> None:
        """Compile the guide of a request that has one."""
        if self._inbox.qsize() >= self._max_waiting:
            reason = f"{self._max_waiting} guides wait to be compiled already"
            self._take(request, sink, RequestError("request", reason, "Retry later"))
        else:
            self._inbox.put((request, sink))

    def close(self) -> None:
        """Refuse what waits and stop."""
        self._is_closing = True
        self._inbox.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        while self._compile_one():
            pass

    def _compile_one(self) -> bool:
        # A frame of its own: see TorchAdapter._receive_one.
        item = self._inbox.get()
        if item is None:
            return False
        request, sink = item
        self._take(request, sink, self._outcome(request))
        return True

    def _outcome(self, request: ServingRequest) -> GuidedOutput | SpecDeployError:
        if self._is_closing:
            return SpecDeployError("the server is shutting down")
        try:
            return self._compile(request)
        except SpecDeployError as error:
            return error
        except Exception as error:  # a bug, here or in xgrammar: this request is refused and the others go on
            _log.exception("compiling a guide failed")
            return RequestError("guided_decoding_guide", f"could not be compiled: {error!r}", "Leave it out")
