"""One request and its answer on a stream of an HTTP/2 connection."""

import asyncio
from typing import TYPE_CHECKING

from specdeploy_client.transports.exchange import Exchange, ExchangeError, FailedStep, HttpCall

if TYPE_CHECKING:
    from specdeploy_client.transports.http2 import Http2Connection


class Http2Exchange(Exchange):
    """One stream. `unsent`: what of the body the server's flow control still holds back."""

    __slots__ = (
        "_timer",
        "call",
        "connect_time_ns",
        "connection",
        "number",
        "received",
        "unsent",
        "window",
    )

    def __init__(self, call: HttpCall, asyncio_loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(asyncio_loop)
        self.call = call
        self.connection: Http2Connection | None = None
        self.number = 0
        self.unsent = call.body or b""
        self.window = 0
        self.received = 0
        self.connect_time_ns = 0
        self._timer = asyncio_loop.call_later(call.timeout_s, self._time_out)

    @property
    def connect_ns(self) -> int:
        """Time this request waited for a new connection; 0 where there was one."""
        return self.connect_time_ns

    def close(self) -> None:
        """Give the exchange up, if it has not ended; harmless a second time."""
        self._timer.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.remove(self)
        self.finish()

    def take_headers(self, fields: list[tuple[str, str]]) -> None:
        """For the connection: the headers or, if they came already, the trailers."""
        status = next((value for name, value in fields if name == ":status"), None)
        if self.status is None and status is not None and status.startswith("1"):
            return
        block = self.headers if self.status is None else self.trailers
        if self.status is None:
            self.status = int(status) if status is not None and status.isdigit() else 0
        for name, value in fields:
            if not name.startswith(":"):
                block[name] = f"{block[name]}, {value}" if name in block else value

    def _time_out(self) -> None:
        is_waiting = self.number == 0
        step = FailedStep.CONNECT if is_waiting else FailedStep.TIMEOUT
        self.finish(ExchangeError(step, f"no {'connection' if is_waiting else 'end'} after {self.call.timeout_s:g} s"))
        self.news.set()
