"""One request and its streamed answer, whichever protocol carries it."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

from specdeploy_client.transports.endpoint import Tls
from specdeploy_client.transports.signal_now import Signal

MAX_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request. `body` None makes it a GET. `timeout_s` limits all of it, from its start to the last byte."""

    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    timeout_s: float
    tls: Tls = field(default_factory=Tls)


class FailedStep(Enum):
    """Where an exchange broke."""

    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    BREAK = "break"
    PROTOCOL = "protocol"


class ExchangeError(Exception):
    """An exchange was given up. `step` says where, `detail` in the words of what noticed."""

    def __init__(self, step: FailedStep, detail: str) -> None:
        self.step = step
        self.detail = detail
        super().__init__(detail)


class Exchange:
    """One request on its way, an async context manager: leaving it early resets the stream on the server.

    `await read()` gives the chunks that have arrived, each with the time it did, and nothing once the answer has
    ended; `chunks` are those that nobody has read yet. `status`, `headers` and `trailers` (names in lower case) are
    those received so far.
    """

    __slots__ = ("_error", "chunks", "headers", "is_done", "news", "status", "trailers")

    def __init__(self, asyncio_loop: asyncio.AbstractEventLoop) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.is_done = False
        self.news = Signal(asyncio_loop)
        self.chunks: list[tuple[int, bytes]] = []
        self._error: ExchangeError | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def connect_ns(self) -> int:
        """Time spent on a new connection for this request (name, TCP, TLS); 0 where there was one."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the exchange up, if it has not ended; harmless a second time."""
        raise NotImplementedError

    async def read(self) -> list[tuple[int, bytes]]:
        """Chunks of the body as (`time.monotonic_ns` of arrival, bytes); empty at the end. Raises `ExchangeError`."""
        while not self.chunks and not self.is_done:
            await self.news
        chunks = self.take()
        if not chunks:
            self.raise_if_failed()
        return chunks

    def take(self) -> list[tuple[int, bytes]]:
        """Like `read`, what is there now; `await news` then waits for more, unless `is_done`."""
        chunks, self.chunks = self.chunks, []
        return chunks

    def raise_if_failed(self) -> None:
        """Raise `ExchangeError` if the answer ended by one."""
        if self._error is not None:
            raise self._error

    async def read_all(self) -> bytes:
        """The whole body."""
        parts: list[bytes] = []
        while chunks := await self.read():
            parts += (chunk for _, chunk in chunks)
        return b"".join(parts)

    async def drain(self) -> None:
        """Read what ends an answer whose content is complete, so that leaving does not look like giving up."""
        with suppress(ExchangeError, TimeoutError):
            async with asyncio.timeout(MAX_DRAIN_S):
                while await self.read():
                    pass

    def add_chunk(self, chunk: bytes, recv_ns: int | None = None) -> None:
        """For the connection: a piece of the body; the stamp is taken here unless the connection took it."""
        self.chunks.append((time.monotonic_ns() if recv_ns is None else recv_ns, chunk))

    def finish(self, error: ExchangeError | None = None) -> None:
        """For the connection: nothing more will come."""
        if not self.is_done:
            self.is_done = True
            self._error = error
