"""The last messages of cancelled requests, held back for a moment.

Triton's gRPC endpoint (2.51) frees a cancelled stream when its last response comes, and again when an event that was
under way then is handled: the whole server may die of it (docs/reliability.md). Nobody waits for these messages.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

# A bare model that waited this long after the cancellation brought the server down in none of 10,879 streams; without
# waiting, measured in turns with it, in 9 of 5,376 (docs/reliability.md).
DELAY_S = 0.1


class LateAnswers:
    """Sends each answer `delay_s` after it was given, in order, from its own thread; `close` sends what is left."""

    def __init__(self, delay_s: float = DELAY_S) -> None:
        self._delay_s = delay_s
        self._answers: queue.SimpleQueue[tuple[float, Callable[[], None]] | None] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="late-answers", daemon=True)
        self._thread.start()

    def send_later(self, send: Callable[[], None]) -> None:
        """Call `send` in a moment; should it raise, that is logged and the others are sent."""
        self._answers.put((time.monotonic() + self._delay_s, send))

    def close(self) -> None:
        """Send what is left at once and end the thread; nothing may be given any more."""
        self._is_closing.set()
        self._answers.put(None)
        self._thread.join()

    def _send_all(self) -> None:
        while (answer := self._answers.get()) is not None:
            due_s, send = answer
            self._is_closing.wait(max(due_s - time.monotonic(), 0.0))
            try:
                send()
            except Exception:  # the client has gone already; the answers of others must not wait for ever
                _log.exception("the last message of a cancelled request could not be sent")
