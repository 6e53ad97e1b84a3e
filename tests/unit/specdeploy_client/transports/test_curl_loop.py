"""Requests through libcurl: what arrives and when, what breaks, and that nothing is sent twice."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from helpers.mock_llm_server import MockBehaviour, MockLlmServer, ServerTls
from helpers.scripted_server import Certificates, replying, scripted_server
from specdeploy_client.transports.curl_loop import CurlLoop
from specdeploy_client.transports.endpoint import Tls
from specdeploy_client.transports.exchange import ExchangeError, FailedStep, HttpCall

OK = b"HTTP/1.1 200 OK\r\nX-One: a\r\nx-one: b\r\ncontent-length: 4\r\n\r\n"


def _call(url: str, *, body: bytes | None = b"body", timeout_s: float = 5.0, tls: Tls | None = None) -> HttpCall:
    return HttpCall(f"http://{url}/", (("x-two", "c"),), body, timeout_s, tls or Tls())


def _run(use: Callable[[CurlLoop], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with CurlLoop() as loop:
            await use(loop)

    asyncio.run(run())


async def _failure(loop: CurlLoop, call: HttpCall) -> ExchangeError:
    with pytest.raises(ExchangeError) as caught:
        async with loop.exchange(call) as exchange:
            await exchange.read_all()
    return caught.value


def test_chunks_are_stamped_as_they_come_and_headers_are_read() -> None:
    async def use(loop: CurlLoop) -> None:
        async with scripted_server(replying(OK, b"ab", b"cd")) as url, loop.exchange(_call(url)) as exchange:
            before = time.monotonic_ns()
            first = await exchange.read()
            second = await exchange.read()
            assert await exchange.read() == []
        assert [chunk for _, chunk in (*first, *second)] == [b"ab", b"cd"]
        assert before < first[0][0] < second[0][0]
        assert (exchange.status, exchange.headers["x-one"], exchange.trailers) == (200, "a, b", {})

    _run(use)


def test_what_is_sent_has_our_headers_and_the_body_at_once() -> None:
    received: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        received.append(await reader.readexactly(2_000_000))
        writer.write(OK + b"done")

    async def use(loop: CurlLoop) -> None:
        async with scripted_server(script) as url, loop.exchange(_call(url, body=b"x" * 2_000_000)) as exchange:
            assert await exchange.read_all() == b"done"

    _run(use)
    head = received[0].lower()
    assert head.startswith(b"post / http/1.1")
    assert b"x-two: c" in head
    assert b"expect" not in head
    assert received[1] == b"x" * 2_000_000


def test_a_connection_is_kept_and_connecting_is_counted_once() -> None:
    async def use(loop: CurlLoop) -> None:
        async with MockLlmServer(MockBehaviour()) as server:
            times = []
            for _ in range(3):
                async with loop.exchange(HttpCall(f"{server.http_url}/health", (), None, 5.0)) as exchange:
                    await exchange.read_all()
                    times.append(exchange.connect_ns)
            assert server.num_connections == 1
        assert times[0] > 0
        assert times[1:] == [0, 0]

    _run(use)


def test_a_request_is_not_repeated_on_a_connection_that_dies() -> None:
    requests: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            requests.append(await reader.readuntil(b"body"))
            if len(requests) == 2:
                return  # closes, without a word, what the client took for a good connection
            writer.write(OK + b"done")

    async def use(loop: CurlLoop) -> None:
        async with scripted_server(script) as url:
            async with loop.exchange(_call(url)) as exchange:
                assert await exchange.read_all() == b"done"
            failure = await _failure(loop, _call(url))
            assert failure.step is FailedStep.BREAK
            assert len(requests) == 2

    _run(use)


def test_leaving_early_closes_the_connection() -> None:
    async def use(loop: CurlLoop) -> None:
        left = asyncio.Event()

        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"body")
            writer.write(OK + b"ab")
            await reader.read()
            left.set()

        async with scripted_server(script) as url:
            async with loop.exchange(_call(url)) as exchange:
                assert await exchange.read()
            await asyncio.wait_for(left.wait(), 2.0)

    _run(use)


@pytest.mark.parametrize(
    ("pieces", "step"),
    [
        ((), FailedStep.BREAK),
        ((OK, b"ab"), FailedStep.BREAK),
        ((b"SSH-2.0-server\r\n",), FailedStep.PROTOCOL),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",), FailedStep.BREAK),
    ],
)
def test_broken_answers_say_where(pieces: tuple[bytes, ...], step: FailedStep) -> None:
    async def use(loop: CurlLoop) -> None:
        async with scripted_server(replying(*pieces)) as url:
            assert (await _failure(loop, _call(url))).step is step

    _run(use)


def test_chunks_before_a_break_are_read_first() -> None:
    async def use(loop: CurlLoop) -> None:
        async with scripted_server(replying(OK, b"ab")) as url, loop.exchange(_call(url)) as exchange:
            assert [chunk for _, chunk in await exchange.read()] == [b"ab"]
            with pytest.raises(ExchangeError):
                await exchange.read()

    _run(use)


def test_nobody_listens() -> None:
    async def use(loop: CurlLoop) -> None:
        failure = await _failure(loop, _call("127.0.0.1:1"))
        assert failure.step is FailedStep.CONNECT
        assert failure.detail

    _run(use)


def test_a_silent_server_times_out() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"ab")
        await asyncio.sleep(30)

    async def use(loop: CurlLoop) -> None:
        async with scripted_server(script) as url:
            assert (await _failure(loop, _call(url, timeout_s=0.1))).step is FailedStep.TIMEOUT

    _run(use)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")

    async def use(loop: CurlLoop) -> None:
        async with scripted_server(replying(OK, b"done")) as url, loop.exchange(_call(url)) as exchange:
            assert await exchange.read_all() == b"done"

    _run(use)


def test_a_closed_loop_ends_what_runs_and_takes_nothing_more() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async def run() -> None:
        loop = CurlLoop()
        async with scripted_server(script) as url:
            async with loop:
                task = asyncio.create_task(_failure(loop, _call(url)))
                await asyncio.sleep(0.02)
            assert (await task).step is FailedStep.BREAK
            with pytest.raises(ExchangeError, match="closed this transport"):
                loop.exchange(_call(url))

    asyncio.run(run())


def test_a_hundred_requests_at_once_and_handles_are_used_again() -> None:
    async def use(loop: CurlLoop) -> None:
        async def one(url: str) -> int:
            async with loop.exchange(HttpCall(url, (), None, 5.0)) as exchange:
                await exchange.read_all()
                return exchange.status or 0

        async with MockLlmServer(MockBehaviour()) as server:
            for _ in range(2):
                results = await asyncio.gather(*[one(f"{server.http_url}/health") for _ in range(100)])
                assert results == [200] * 100

    _run(use)


def test_tls_with_an_authority_and_a_client_certificate(certificates: Certificates) -> None:
    both = ServerTls(certificates.server.cert_file, certificates.server.key_file, certificates.ca_file)
    shown = Tls(certificates.ca_file, certificates.client_cert_file, certificates.client_key_file)

    async def status(loop: CurlLoop, server: MockLlmServer, tls: Tls) -> int | FailedStep:
        try:
            async with loop.exchange(HttpCall(f"{server.http_url}/health", (), None, 5.0, tls)) as exchange:
                await exchange.read_all()
                return exchange.status or 0
        except ExchangeError as error:
            return error.step

    async def use(loop: CurlLoop) -> None:
        async with MockLlmServer(MockBehaviour(), tls=certificates.server) as server:
            assert await status(loop, server, Tls()) is FailedStep.TLS
            assert await status(loop, server, Tls(ca_file=certificates.ca_file)) == 200
            assert await status(loop, server, Tls(verify=False)) == 200
            assert await status(loop, server, Tls(ca_file=Path(__file__))) is FailedStep.TLS
        async with MockLlmServer(MockBehaviour(), tls=both) as server:
            assert await status(loop, server, shown) == 200
            assert await status(loop, server, Tls(ca_file=certificates.ca_file)) in (FailedStep.TLS, FailedStep.BREAK)

    _run(use)
