"""One HTTP/2 connection (RFC 9113) as a gRPC client needs it: many streams, their frames read in one pass.

Written for the cost of a small streamed message: libcurl looks at every stream of a connection whenever one of them has
data, which at 64 streams costs more than all the rest; here it is one read and one look at the frame's number.
"""

import asyncio
import struct
import time
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import hpack

from specdeploy_client.transports.exchange import ExchangeError, FailedStep
from specdeploy_client.transports.http2_frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    ERROR_NAMES,
    GOAWAY,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    HeaderReader,
    frame,
)
from specdeploy_client.transports.http2_stream import Http2Exchange
from specdeploy_client.transports.signal_now import Signal

DEFAULT_WINDOW = 65535
MAX_STREAM_NUMBER = 2**31 - 1
# Answers are read as fast as they come, so windows are there to be large and rarely topped up.
CONNECTION_WINDOW = 1 << 30
STREAM_WINDOW = 1 << 24
BUFFER_BYTES = 1 << 18
OUR_MAX_FRAME_BYTES = 16384
_HEAD_BYTES = 9


class Http2Connection(asyncio.BufferedProtocol):
    """Frames to streams and back. `on_free` is called when a stream has ended and another may begin."""

    def __init__(self, on_free: Callable[["Http2Connection"], None]) -> None:
        self._on_free = on_free
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Http2Exchange] = {}
        self._next_number = 1
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._encoder = hpack.Encoder()
        self._header_reader = HeaderReader()
        self._has_settings = False
        self._received = 0
        self._window = DEFAULT_WINDOW
        self._stream_window = DEFAULT_WINDOW
        self._max_frame_bytes = OUR_MAX_FRAME_BYTES
        self._max_streams = 1 << 30
        self._news: list[Signal] = []
        self.is_usable = False

    @property
    def is_over(self) -> bool:
        """Whether it takes no new streams and carries none."""
        return not self.is_usable and not self._streams

    @property
    def has_room(self) -> bool:
        """Whether a stream may begin now."""
        return self.is_usable and len(self._streams) < self._max_streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's call: the preface and our settings go out before anything else."""
        self._transport = stream = cast(asyncio.Transport, transport)  # a stream protocol is given nothing else
        ours = struct.pack(">HIHI", ENABLE_PUSH, 0, INITIAL_WINDOW_SIZE, STREAM_WINDOW)
        top_up = struct.pack(">I", CONNECTION_WINDOW - DEFAULT_WINDOW)
        stream.write(PREFACE + frame(SETTINGS, 0, 0, ours) + frame(WINDOW_UPDATE, 0, 0, top_up))
        self.is_usable = True

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's call: whatever runs has ended with it."""
        detail = "the server closed the connection" if exc is None else str(exc) or type(exc).__name__
        step = FailedStep.BREAK if self._has_settings else FailedStep.PROTOCOL
        self._break(ExchangeError(step, detail if self._has_settings else f"it speaks no HTTP/2: {detail}"))

    def begin(self, exchange: Http2Exchange) -> None:
        """Send a request on a new stream."""
        exchange.connection = self
        exchange.number, self._next_number = self._next_number, self._next_number + 2
        exchange.window = self._stream_window
        self._streams[exchange.number] = exchange
        if self._next_number > MAX_STREAM_NUMBER:
            self.is_usable = False
        parts = urlsplit(exchange.call.url)
        fields = [
            (":method", "POST"),
            (":scheme", parts.scheme),
            (":path", parts.path),
            (":authority", parts.netloc),
            *((name.lower(), value) for name, value in exchange.call.headers),
        ]
        block = self._encoder.encode(fields)
        size = self._max_frame_bytes
        kinds = [HEADERS] + [CONTINUATION] * ((len(block) - 1) // size)
        for index, kind in enumerate(kinds):
            flags = END_HEADERS if index == len(kinds) - 1 else 0
            self._write(frame(kind, flags, exchange.number, block[index * size : (index + 1) * size]))
        self._send_body(exchange)

    def remove(self, exchange: Http2Exchange) -> None:
        """Forget a stream; one that has not ended is reset on the server."""
        if self._streams.pop(exchange.number, None) is not None:
            self._write(frame(RST_STREAM, 0, exchange.number, struct.pack(">I", CANCEL)))
            self._on_free(self)

    def close(self) -> None:
        """Close the connection; streams on it end with an error."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.close()
        self._break(ExchangeError(FailedStep.BREAK, "the client closed the connection"))

    def get_buffer(self, sizehint: int) -> memoryview:
        """asyncio's call: where to put what arrives."""
        del sizehint
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """asyncio's call: bytes are there. One stamp for all frames that came together: none can be read earlier."""
        recv_ns = time.monotonic_ns()
        buffer, view, start, end = self._buffer, self._view, 0, self._filled + nbytes
        streams, news = self._streams, self._news
        try:
            while end - start >= _HEAD_BYTES:
                size = (buffer[start] << 16) | (buffer[start + 1] << 8) | buffer[start + 2]
                kind = buffer[start + 3]
                if not self._has_settings:
                    self._check_first(kind, size)
                if size > OUR_MAX_FRAME_BYTES:
                    raise ExchangeError(FailedStep.PROTOCOL, f"a frame of {size} bytes, more than was allowed")
                content = start + _HEAD_BYTES
                if content + size > end:
                    break
                number = int.from_bytes(buffer[start + 5 : content], "big") & MAX_STREAM_NUMBER
                flags, start = buffer[start + 4], content + size
                payload = bytes(view[content:start])
                if kind != DATA:
                    self._take_frame(kind, number, flags, payload)
                    continue
                self._received += size
                exchange = streams.get(number)
                if exchange is None:
                    continue  # given up a moment ago
                exchange.received += size
                if flags or exchange.received > STREAM_WINDOW // 2:
                    payload = self._take_unusual_data(exchange, flags, payload)
                exchange.chunks.append((recv_ns, payload))
                news.append(exchange.news)
        except (ExchangeError, hpack.HPACKError, struct.error, IndexError, UnicodeDecodeError) as error:
            self._fail(error)
            return
        if start:
            buffer[: end - start] = buffer[start:end]
        self._filled = end - start
        if self._received > CONNECTION_WINDOW // 2:
            self._write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._received)))
            self._received = 0
        self._tell_news()

    def _check_first(self, kind: int, size: int) -> None:
        if kind != SETTINGS or size > OUR_MAX_FRAME_BYTES:
            raise ExchangeError(FailedStep.PROTOCOL, "it speaks no HTTP/2")
        self._has_settings = True

    def _take_unusual_data(self, exchange: Http2Exchange, flags: int, payload: bytes) -> bytes:
        """The content of a frame that is padded, the last of its stream, or that makes half the window full."""
        if exchange.received > STREAM_WINDOW // 2:
            self._write(frame(WINDOW_UPDATE, 0, exchange.number, struct.pack(">I", exchange.received)))
            exchange.received = 0
        if flags & PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        if flags & END_STREAM:
            self._end(exchange, None)
        return payload

    def _take_frame(self, kind: int, number: int, flags: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._take_headers(self._header_reader.begin(number, flags, payload))
        elif kind == CONTINUATION:
            self._take_headers(self._header_reader.go_on(flags, payload))
        elif kind == RST_STREAM:
            (code,) = struct.unpack(">I", payload)
            detail = f"the server reset the stream: {ERROR_NAMES.get(code, code)}"
            if (exchange := self._streams.get(number)) is not None:
                self._end(exchange, ExchangeError(FailedStep.BREAK, detail))
        elif kind == SETTINGS:
            self._take_settings(flags, payload)
        elif kind == PING and not flags & ACK:
            self._write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self._take_goaway(payload)
        elif kind == WINDOW_UPDATE:
            self._widen(number, struct.unpack(">I", payload)[0] & MAX_STREAM_NUMBER)
        elif kind == PUSH_PROMISE:
            raise ExchangeError(FailedStep.PROTOCOL, "a pushed stream, which was not allowed")

    def _take_headers(self, block: tuple[int, int, list[tuple[str, str]]] | None) -> None:
        """Headers or trailers of a stream, once they are whole."""
        exchange = None if block is None else self._streams.get(block[0])
        if block is None or exchange is None:
            return
        exchange.take_headers(block[2])
        if block[1] & END_STREAM:
            self._end(exchange, None)

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            return
        for name, value in struct.iter_unpack(">HI", payload):
            if name == HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, 4096)
            elif name == MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif name == MAX_FRAME_SIZE:
                self._max_frame_bytes = value
            elif name == INITIAL_WINDOW_SIZE:
                for exchange in self._streams.values():
                    exchange.window += value - self._stream_window
                self._stream_window = value
        self._write(frame(SETTINGS, ACK, 0, b""))
        self._widen(0, 0)

    def _take_goaway(self, payload: bytes) -> None:
        """The server takes no new streams; those above its last number it never began."""
        last_number, code = struct.unpack_from(">II", payload)
        self.is_usable = False
        detail = f"the server is going away: {ERROR_NAMES.get(code, code)}"
        for number, exchange in list(self._streams.items()):
            if number > last_number & MAX_STREAM_NUMBER:
                self._end(exchange, ExchangeError(FailedStep.BREAK, detail))

    def _widen(self, number: int, increment: int) -> None:
        """The server can take more: bodies that waited go on."""
        if number == 0:
            self._window += increment
        elif number in self._streams:
            self._streams[number].window += increment
        for exchange in list(self._streams.values()):
            if exchange.unsent:
                self._send_body(exchange)

    def _send_body(self, exchange: Http2Exchange) -> None:
        """As much of the body as the windows of the connection and of the stream let through."""
        while exchange.unsent:
            size = min(len(exchange.unsent), self._max_frame_bytes, self._window, exchange.window)
            if size <= 0:
                return
            piece, exchange.unsent = exchange.unsent[:size], exchange.unsent[size:]
            self._window -= size
            exchange.window -= size
            self._write(frame(DATA, 0 if exchange.unsent else END_STREAM, exchange.number, piece))

    def _end(self, exchange: Http2Exchange, error: ExchangeError | None) -> None:
        """The stream is over for the server."""
        self._streams.pop(exchange.number, None)
        exchange.connection = None
        exchange.finish(error)
        self._news.append(exchange.news)
        self._on_free(self)

    def _fail(self, error: Exception) -> None:
        """What arrived is no HTTP/2 that could be gone on with."""
        failure = error if isinstance(error, ExchangeError) else ExchangeError(FailedStep.PROTOCOL, repr(error))
        if self._transport is not None:
            self._transport.abort()
        self._break(failure)

    def _break(self, error: ExchangeError) -> None:
        self.is_usable = False
        for exchange in list(self._streams.values()):
            self._end(exchange, error)
        # Not from here: whoever closes the connection may be a task, which no other task may run inside of.
        asyncio.get_running_loop().call_soon(self._tell_news)

    def _tell_news(self) -> None:
        """Resume the readers of what has arrived, here and now."""
        news, self._news = self._news, []
        for signal in news:
            signal.set()

    def _write(self, content: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(content)
