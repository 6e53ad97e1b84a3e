"""Is the server still there? One opinion for all requests of a cell."""

from specdeploy.run_contract import FailureKind, RequestRecord
from specdeploy_client.transport import Message

MAX_SILENT_TIMEOUTS = 3
# What only a server that is there can do to a request: answer it, refuse it, break it off.
_SIGNS_OF_LIFE = (None, FailureKind.REFUSED, FailureKind.STREAM_CLOSED, FailureKind.PROTOCOL)


class ServerWatch:
    """`lost` is why the server was given up, None while it answers.

    A server that nobody reaches is lost at once. One that takes requests and says nothing is lost when
    `MAX_SILENT_TIMEOUTS` requests in a row ran into their time limit while it gave no sign of life, be it a message or
    a refusal: else a run against it would not end before each of its requests has run into the limit.
    """

    def __init__(self) -> None:
        self.lost: str | None = None
        self._heard_ns: int | None = None
        self._num_silent = 0

    def hear(self, message: Message) -> None:
        """Note that somebody got a message."""
        self._note_life(message.recv_ns)

    def judge(self, record: RequestRecord) -> bool:
        """Take in how a request ended; whether the server is lost because of it, and was not before."""
        if self.lost is not None:
            return False
        if record.failure is FailureKind.UNREACHABLE:
            self.lost = record.error
        elif record.failure is FailureKind.TIMEOUT and (self._heard_ns is None or self._heard_ns < record.send_ns):
            self._num_silent += 1
            if self._num_silent >= MAX_SILENT_TIMEOUTS:
                self.lost = f"{self._num_silent} requests in a row without a single message ({record.error})"
        elif record.failure in _SIGNS_OF_LIFE:
            self._note_life(record.end_ns)
        return self.lost is not None

    def _note_life(self, at_ns: int) -> None:
        self._heard_ns = at_ns if self._heard_ns is None else max(self._heard_ns, at_ns)
        self._num_silent = 0
