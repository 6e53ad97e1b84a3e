"""HTTP/2 frames (RFC 9113): their kinds and flags, how one is written, and headers that come in several of them."""

import struct

import hpack

from specdeploy_client.transports.exchange import ExchangeError, FailedStep

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 2, 3, 4, 5
CANCEL = 8
ERROR_NAMES = {
    0: "NO_ERROR",
    1: "PROTOCOL_ERROR",
    2: "INTERNAL_ERROR",
    3: "FLOW_CONTROL_ERROR",
    5: "STREAM_CLOSED",
    7: "REFUSED_STREAM",
    8: "CANCEL",
    11: "ENHANCE_YOUR_CALM",
    12: "INADEQUATE_SECURITY",
    13: "HTTP_1_1_REQUIRED",
}
MAX_HEADER_BYTES = 1 << 16


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """One frame as it is sent."""
    return struct.pack(">HBBBI", len(payload) >> 8, len(payload) & 0xFF, kind, flags, number) + payload


class HeaderReader:
    """Headers and trailers of one connection. They are decoded even for streams that were given up: the table of names
    and values is the connection's."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._block = b""
        self._number = 0
        self._flags = 0

    def begin(self, number: int, flags: int, payload: bytes) -> tuple[int, int, list[tuple[str, str]]] | None:
        """A HEADERS frame. Its stream, its flags and the fields, or None where CONTINUATION frames follow.

        Raises `hpack.HPACKError`, or `IndexError` for a frame that is shorter than its flags say.
        """
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if flags & HAS_PRIORITY:
            payload = payload[5:]
        self._number, self._flags, self._block = number, flags, payload
        return self._finish(flags)

    def go_on(self, flags: int, payload: bytes) -> tuple[int, int, list[tuple[str, str]]] | None:
        """A CONTINUATION frame; as `begin`."""
        self._block += payload
        if len(self._block) > MAX_HEADER_BYTES:
            raise ExchangeError(FailedStep.PROTOCOL, f"headers of more than {MAX_HEADER_BYTES} bytes")
        return self._finish(flags)

    def _finish(self, flags: int) -> tuple[int, int, list[tuple[str, str]]] | None:
        if not flags & END_HEADERS:
            return None
        decoded = self._decoder.decode(self._block, raw=True)
        self._block = b""
        return self._number, self._flags, [(name.decode("latin-1"), value.decode("latin-1")) for name, value in decoded]
