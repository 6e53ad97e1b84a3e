"""gRPC's framing inside an HTTP/2 stream: one byte of flags, the length as big-endian uint32, the message.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

import struct
from urllib.parse import unquote

from specdeploy_client.transport import ProtocolError

MAX_MESSAGE_BYTES = 256 << 20
PREFIX_BYTES = 5
_PREFIX = struct.Struct(">BI")

STATUS_NAMES = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)


def frame(message: bytes) -> bytes:
    """`message` as it is sent."""
    return _PREFIX.pack(0, len(message)) + message


class FrameReader:
    """Messages out of chunks that are split anywhere."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def is_whole(self, chunk: bytes) -> bool:
        """Whether `chunk` is one message exactly, uncompressed and with nothing before it."""
        return not self._rest and len(chunk) >= PREFIX_BYTES and chunk[:5] == _PREFIX.pack(0, len(chunk) - PREFIX_BYTES)

    def split(self, chunk: bytes) -> list[bytes]:
        """The messages that `chunk` completes. Raises `ProtocolError` for compressed or far too large ones."""
        data = self._rest + chunk if self._rest else chunk
        messages: list[bytes] = []
        start, size = 0, len(data)
        while size - start >= 5:
            flags, length = _PREFIX.unpack_from(data, start)
            if flags or length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a gRPC message with flags {flags} and {length} bytes: compressed, or no gRPC")
            end = start + 5 + length
            if end > size:
                break
            messages.append(data[start + 5 : end])
            start = end
        self._rest = data[start:]
        return messages


def parse_status(fields: dict[str, str]) -> tuple[str, str] | None:
    """Name and message of `grpc-status` among `fields`; None where there is none."""
    code = fields.get("grpc-status")
    if code is None:
        return None
    number = int(code) if code.isascii() and code.isdigit() else 2
    name = STATUS_NAMES[number] if number < len(STATUS_NAMES) else f"status {code}"
    return name, unquote(fields.get("grpc-message", "")).strip()
