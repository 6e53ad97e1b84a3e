"""Incremental parser of `text/event-stream`: events out of chunks that are split anywhere.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream; only the data of events is kept.
"""

from specdeploy_client.transport import ProtocolError

MAX_EVENT_BYTES = 256 << 20
_BOM = b"\xef\xbb\xbf"


class EventReader:
    """Data of events. An event that no empty line ends is none, as the standard has it."""

    __slots__ = ("_has_begun", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._has_begun = False

    def split(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes; lines of one event are joined by a line feed."""
        data = self._rest + chunk if self._rest else chunk
        if not self._has_begun:
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return []
            self._has_begun = True
            data = data.removeprefix(_BOM)
        held = b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # a line feed may follow
                data, held = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = data.split(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise ProtocolError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        self._rest = rest + held
        return [event for block in blocks if (event := _data_of(block)) is not None]


def _data_of(block: bytes) -> bytes | None:
    """The data of the lines of one event; None for comments and for events without data."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [
        line[6:] if line.startswith(b"data: ") else line[5:]
        for line in block.split(b"\n")
        if line.startswith(b"data:") or line == b"data"
    ]
    return b"\n".join(lines) if lines else None
