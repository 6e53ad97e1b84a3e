"""HTTP/2 connections to one server: one carries all streams until the server's limit makes another necessary."""

import asyncio
import ssl
import time
from collections import deque
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from specdeploy_client.transports.endpoint import Tls
from specdeploy_client.transports.exchange import ExchangeError, FailedStep, HttpCall
from specdeploy_client.transports.http2 import Http2Connection
from specdeploy_client.transports.http2_stream import Http2Exchange

MAX_CONNECT_S = 30.0


class Http2Pool:
    """Drives all exchanges of one transport on the event loop it is entered in. A request is never sent twice."""

    def __init__(self, base_url: str, tls: Tls) -> None:
        parts = urlsplit(base_url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = tls if parts.scheme == "https" else None
        self._connections: list[Http2Connection] = []
        self._waiting: deque[tuple[int, Http2Exchange]] = deque()
        self._connecting: asyncio.Task[None] | None = None
        self._asyncio_loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        self._asyncio_loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._asyncio_loop = None
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        self._fail_waiting(ExchangeError(FailedStep.BREAK, "the client closed the connection"))
        for connection in self._connections:
            connection.close()

    def exchange(self, call: HttpCall) -> Http2Exchange:
        """Send `call`. Use as `async with pool.exchange(call) as exchange`."""
        if self._asyncio_loop is None:
            raise ExchangeError(FailedStep.BREAK, "the client has closed this transport")
        exchange = Http2Exchange(call, self._asyncio_loop)
        self._drop_ended()
        if not self._waiting:
            for connection in self._connections:
                if connection.has_room:
                    connection.begin(exchange)
                    return exchange
        self._waiting.append((time.monotonic_ns(), exchange))
        if self._connecting is None:
            self._connecting = self._asyncio_loop.create_task(self._connect())
        return exchange

    def _drop_ended(self) -> None:
        """Let go of connections that the server has closed or is about to."""
        for connection in [connection for connection in self._connections if connection.is_over]:
            connection.close()
            self._connections.remove(connection)

    async def _connect(self) -> None:
        """Open one more connection and let begin on it what waits."""
        try:
            context = None if self._tls is None else tls_context(self._tls)
            async with asyncio.timeout(MAX_CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Http2Connection(self._begin_waiting), self._host, self._port, ssl=context
                )
        except ssl.SSLError as error:
            self._fail_waiting(tls_error(error))
        except (OSError, TimeoutError) as error:
            detail = f"no connection after {MAX_CONNECT_S:g} s" if isinstance(error, TimeoutError) else str(error)
            self._fail_waiting(ExchangeError(FailedStep.CONNECT, detail))
        else:
            self._connections.append(connection)
            self._begin_waiting(connection)
        finally:
            self._connecting = None
        if self._waiting and self._asyncio_loop is not None:
            self._connecting = self._asyncio_loop.create_task(self._connect())

    def _begin_waiting(self, connection: Http2Connection) -> None:
        while self._waiting and connection.has_room:
            since_ns, exchange = self._waiting.popleft()
            if not exchange.is_done:
                exchange.connect_time_ns = time.monotonic_ns() - since_ns
                connection.begin(exchange)

    def _fail_waiting(self, error: ExchangeError) -> None:
        while self._waiting:
            _, exchange = self._waiting.popleft()
            exchange.finish(error)
            # A task runs here; no other may run inside of it.
            asyncio.get_running_loop().call_soon(exchange.news.set)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """What `tls` asks for. Raises `ssl.SSLError` or `OSError` for files that are no certificates."""
    context = ssl.create_default_context(cafile=None if tls.ca_file is None else str(tls.ca_file))
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    context.set_alpn_protocols(["h2"])
    return context


def tls_error(error: ssl.SSLError) -> ExchangeError:
    """A failed handshake in OpenSSL's words."""
    detail = getattr(error, "verify_message", "") or error.reason or str(error)
    return ExchangeError(FailedStep.TLS, str(detail))
