"""One libcurl multi handle on the running event loop: requests and streamed answers over HTTP/1.1.

A connection carries one answer at a time: libcurl looks at every stream of a connection whenever one of them has data,
so that 64 streams on one HTTP/2 connection cost it half as much again per message as on 64 connections. A chunk is
stamped in the write callback, which is the first moment this process has its bytes.

Nothing is ever sent twice: libcurl repeats a request by itself when a kept connection turns out dead, unless it cannot
rewind the body. Bodies are therefore given through a read callback without a seek callback.
"""

import asyncio
import io
import ssl
from types import TracebackType
from typing import Self

import pycurl

from specdeploy_client.transports.endpoint import Tls
from specdeploy_client.transports.exchange import Exchange, ExchangeError, FailedStep, HttpCall
from specdeploy_client.transports.signal_now import Signal

MAX_ROUNDS_PER_WAKE_UP = 8
MAX_IDLE_HANDLES = 256
MAX_KEPT_CONNECTIONS = 1024
MAX_CONNECT_S = 30.0


_HTTP2_STREAM_ERROR = 92  # CURLE_HTTP2_STREAM, which pycurl does not name
_STEPS = {
    pycurl.E_COULDNT_RESOLVE_HOST: FailedStep.CONNECT,
    pycurl.E_COULDNT_CONNECT: FailedStep.CONNECT,
    pycurl.E_SSL_CONNECT_ERROR: FailedStep.TLS,
    pycurl.E_PEER_FAILED_VERIFICATION: FailedStep.TLS,
    pycurl.E_SSL_CERTPROBLEM: FailedStep.TLS,
    pycurl.E_SSL_CACERT_BADFILE: FailedStep.TLS,
    pycurl.E_SSL_CIPHER: FailedStep.TLS,
    pycurl.E_OPERATION_TIMEDOUT: FailedStep.TIMEOUT,
    pycurl.E_SEND_ERROR: FailedStep.BREAK,
    pycurl.E_SEND_FAIL_REWIND: FailedStep.BREAK,
    pycurl.E_RECV_ERROR: FailedStep.BREAK,
    pycurl.E_GOT_NOTHING: FailedStep.BREAK,
    pycurl.E_PARTIAL_FILE: FailedStep.BREAK,
    pycurl.E_HTTP2: FailedStep.BREAK,
    _HTTP2_STREAM_ERROR: FailedStep.BREAK,
}


class CurlExchange(Exchange):
    """An exchange that libcurl carries."""

    __slots__ = ("_curl", "_loop", "_past_headers")

    def __init__(self, loop: "CurlLoop", curl: pycurl.Curl) -> None:
        super().__init__(loop.asyncio_loop)
        self._loop = loop
        self._curl: pycurl.Curl | None = curl
        self._past_headers = False

    @property
    def connect_ns(self) -> int:
        """Time spent on a new connection (name, TCP, TLS); 0 where there was one. Known until it is closed."""
        if self._curl is None or not self._curl.getinfo(pycurl.NUM_CONNECTS):
            return 0
        connected_s = max(self._curl.getinfo(pycurl.CONNECT_TIME), self._curl.getinfo(pycurl.APPCONNECT_TIME))
        return int(connected_s * 1e9)

    def close(self) -> None:
        """Give the exchange up, if it has not ended; harmless a second time."""
        curl, self._curl = self._curl, None
        if curl is not None:
            self._loop.release(curl)

    def take_chunk(self, chunk: bytes) -> None:
        """For libcurl: a piece of the body, stamped here and nowhere else."""
        self.add_chunk(chunk)
        self._loop.with_news.append(self.news)

    def take_header(self, raw: bytes) -> None:
        """For libcurl: one line of the headers or, after the body, of the trailers."""
        line = raw.decode("latin-1").strip()
        if line.startswith("HTTP/") and not self._past_headers:
            self.status = int(line.split(" ", 2)[1])
            self.headers.clear()
        elif not line:
            self._past_headers = self.status is not None and self.status >= 200
        else:
            name, _, value = line.partition(":")
            block = self.trailers if self._past_headers else self.headers
            name, value = name.strip().lower(), value.strip()
            block[name] = f"{block[name]}, {value}" if name in block else value


class CurlLoop:
    """Drives all exchanges of one transport on the event loop it is entered in."""

    def __init__(self) -> None:
        self.asyncio_loop: asyncio.AbstractEventLoop
        self._exchanges: dict[pycurl.Curl, CurlExchange] = {}
        self._idle: list[pycurl.Curl] = []
        self._watched: dict[int, int] = {}
        self._timer: asyncio.Handle | None = None
        self.with_news: list[Signal] = []
        self._is_acting = False
        self._is_due = False
        self._multi: pycurl.CurlMulti | None = None

    async def __aenter__(self) -> Self:
        self.asyncio_loop = asyncio.get_running_loop()
        multi = pycurl.CurlMulti()
        multi.setopt(pycurl.M_MAXCONNECTS, MAX_KEPT_CONNECTIONS)
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        self._multi = multi
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for exchange in list(self._exchanges.values()):
            exchange.finish(ExchangeError(FailedStep.BREAK, "the client closed the connection"))
            self.with_news.append(exchange.news)
            exchange.close()
        self.asyncio_loop.call_soon(self._tell_news)
        if self._multi is not None:
            multi, self._multi = self._multi, None
            multi.close()
        self._set_timer(-1)
        for fd in list(self._watched):
            self._watch(pycurl.POLL_REMOVE, fd, None, None)
        for curl in self._idle:
            curl.close()
        self._idle.clear()

    def exchange(self, call: HttpCall) -> CurlExchange:
        """Send `call`. Use as `async with loop.exchange(call) as exchange`."""
        if self._multi is None:
            raise ExchangeError(FailedStep.BREAK, "the client has closed this transport")
        curl = self._idle.pop() if self._idle else pycurl.Curl()
        exchange = CurlExchange(self, curl)
        _set_options(curl, call, exchange)
        self._exchanges[curl] = exchange
        self._multi.add_handle(curl)
        return exchange

    def release(self, curl: pycurl.Curl) -> None:
        """For exchanges: stop `curl`, if it still runs, and keep it for a later one."""
        if self._exchanges.pop(curl, None) is not None and self._multi is not None:
            self._multi.remove_handle(curl)
        if len(self._idle) < MAX_IDLE_HANDLES and self._multi is not None:
            curl.reset()
            self._idle.append(curl)
        else:
            curl.close()

    def _watch(self, events: int, fd: int, _multi: object, _data: object) -> None:
        """libcurl's wish to hear of a socket."""
        wanted = 0 if events == pycurl.POLL_REMOVE else events
        before = self._watched.get(fd, 0)
        if wanted & pycurl.POLL_IN and not before & pycurl.POLL_IN:
            self.asyncio_loop.add_reader(fd, self._act, fd, pycurl.CSELECT_IN)
        elif before & pycurl.POLL_IN and not wanted & pycurl.POLL_IN:
            self.asyncio_loop.remove_reader(fd)
        if wanted & pycurl.POLL_OUT and not before & pycurl.POLL_OUT:
            self.asyncio_loop.add_writer(fd, self._act, fd, pycurl.CSELECT_OUT)
        elif before & pycurl.POLL_OUT and not wanted & pycurl.POLL_OUT:
            self.asyncio_loop.remove_writer(fd)
        if wanted:
            self._watched[fd] = wanted
        else:
            self._watched.pop(fd, None)

    def _set_timer(self, delay_ms: int) -> None:
        """libcurl's wish to be called in `delay_ms`; -1: no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_due = delay_ms == 0
        if delay_ms > 0:
            self._timer = self.asyncio_loop.call_later(delay_ms / 1000, self._act, pycurl.SOCKET_TIMEOUT, 0)
        elif delay_ms == 0 and not self._is_acting:
            self._timer = self.asyncio_loop.call_soon(self._act, pycurl.SOCKET_TIMEOUT, 0)

    def _act(self, fd: int, events: int) -> None:
        """Let libcurl read and write; what it wants to do at once, it does in the same wake-up."""
        if self._multi is None:
            return
        self._is_acting = True
        try:
            _, num_running = self._multi.socket_action(fd, events)
            for _ in range(MAX_ROUNDS_PER_WAKE_UP):
                if not self._is_due:
                    break
                self._is_due = False
                _, num_running = self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        finally:
            self._is_acting = False
        if self._is_due:
            self._set_timer(0)
        if num_running < len(self._exchanges):
            self._finish_ended(self._multi)
        self._tell_news()

    def _tell_news(self) -> None:
        """Resume the readers of what has arrived, here and now: libcurl's callbacks are over."""
        news, self.with_news = self.with_news, []
        for signal in news:
            signal.set()

    def _finish_ended(self, multi: pycurl.CurlMulti) -> None:
        while True:
            num_left, succeeded, failed = multi.info_read()
            for curl in succeeded:
                self._finish(curl, None)
            for curl, code, detail in failed:
                step = _STEPS.get(code, FailedStep.PROTOCOL)
                if step is FailedStep.TIMEOUT and not curl.getinfo(pycurl.PRETRANSFER_TIME):
                    step = FailedStep.CONNECT
                self._finish(curl, ExchangeError(step, detail or pycurl.easy_strerror(code)))
            if not num_left:
                return

    def _finish(self, curl: pycurl.Curl, error: ExchangeError | None) -> None:
        exchange = self._exchanges.get(curl)
        if exchange is not None:
            exchange.finish(error)
            self.with_news.append(exchange.news)


def _set_options(curl: pycurl.Curl, call: HttpCall, exchange: CurlExchange) -> None:
    curl.setopt(pycurl.URL, call.url)
    curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    headers = [f"{name}: {value}" for name, value in call.headers]
    if call.body is not None:
        curl.setopt(pycurl.POST, 1)
        curl.setopt(pycurl.POSTFIELDSIZE_LARGE, len(call.body))
        curl.setopt(pycurl.READFUNCTION, io.BytesIO(call.body).read)
        headers.append("Expect:")  # the body goes at once, however large
    curl.setopt(pycurl.HTTPHEADER, headers)
    curl.setopt(pycurl.WRITEFUNCTION, exchange.take_chunk)
    curl.setopt(pycurl.HEADERFUNCTION, exchange.take_header)
    curl.setopt(pycurl.TIMEOUT_MS, max(int(call.timeout_s * 1000), 1))
    curl.setopt(pycurl.CONNECTTIMEOUT_MS, max(int(min(call.timeout_s, MAX_CONNECT_S) * 1000), 1))
    curl.setopt(pycurl.NOPROXY, "*")  # a proxy for the web is never on the way to a model server
    curl.setopt(pycurl.NOSIGNAL, 1)
    curl.setopt(pycurl.PATH_AS_IS, 1)
    if call.url.startswith("https:"):
        _set_tls_options(curl, call.tls)


def _set_tls_options(curl: pycurl.Curl, tls: Tls) -> None:
    if not tls.verify:
        curl.setopt(pycurl.SSL_VERIFYPEER, 0)
        curl.setopt(pycurl.SSL_VERIFYHOST, 0)
    if tls.ca_file is not None:
        curl.setopt(pycurl.CAINFO, str(tls.ca_file))
    else:
        system = ssl.get_default_verify_paths()  # those of Python, which a user may move with SSL_CERT_FILE
        if system.cafile is not None:
            curl.setopt(pycurl.CAINFO, system.cafile)
        if system.capath is not None:
            curl.setopt(pycurl.CAPATH, system.capath)
    if tls.cert_file is not None and tls.key_file is not None:
        curl.setopt(pycurl.SSLCERT, str(tls.cert_file))
        curl.setopt(pycurl.SSLKEY, str(tls.key_file))
