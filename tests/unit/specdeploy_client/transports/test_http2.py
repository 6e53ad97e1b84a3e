"""HTTP/2 against a scripted peer: frames in any order and shape, flow control, and every way to break off."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import hpack
import pytest

from helpers.scripted_server import scripted_server
from specdeploy_client.transports import http2
from specdeploy_client.transports.endpoint import Tls
from specdeploy_client.transports.exchange import ExchangeError, FailedStep, HttpCall
from specdeploy_client.transports.http2_frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from specdeploy_client.transports.http2_pool import Http2Pool

RESPONSE = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0"), ("grpc-message", "fine")]


@dataclass
class Peer:
    """The server's side of one connection: sends frames, reads them as (kind, flags, number, payload)."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    encoder: hpack.Encoder = field(default_factory=hpack.Encoder)
    decoder: hpack.Decoder = field(default_factory=hpack.Decoder)
    kinds: list[int] = field(default_factory=list)

    async def read(self) -> tuple[int, int, int, bytes]:
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        self.kinds.append(head[3])
        return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def read_kind(self, kind: int) -> tuple[int, int, int, bytes]:
        """The next frame of `kind`; others before it are passed over."""
        while True:
            got = await self.read()
            if got[0] == kind:
                return got

    async def request(self) -> int:
        """Wait for a whole request; returns its stream's number."""
        while True:
            _, flags, number, _ = await self.read_kind(DATA)
            if flags & END_STREAM:
                return number

    def send(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        self.writer.write(frame(kind, flags, number, payload))

    def headers(self, number: int, fields: list[tuple[str, str]], flags: int = 0) -> None:
        self.send(HEADERS, END_HEADERS | flags, number, self.encoder.encode(fields))

    def answer(self, number: int, *chunks: bytes) -> None:
        """A usual answer."""
        self.headers(number, RESPONSE)
        for chunk in chunks:
            self.send(DATA, 0, number, chunk)
        self.headers(number, TRAILERS, END_STREAM)


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def _pool(script: Script, *, settings: bytes = b"") -> AsyncIterator[Http2Pool]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(PREFACE)) == PREFACE
        peer = Peer(reader, writer)
        peer.send(SETTINGS, 0, 0, settings)
        await script(peer)

    async with scripted_server(serve) as url, Http2Pool(f"http://{url}", Tls()) as pool:
        yield pool


def _call(body: bytes = b"request", timeout_s: float = 5.0) -> HttpCall:
    return HttpCall("http://host:1/service/Method", (("Content-Type", "application/grpc"),), body, timeout_s)


async def _body(pool: Http2Pool, call: HttpCall | None = None) -> bytes:
    async with pool.exchange(call or _call()) as exchange:
        return await exchange.read_all()


async def _failure(pool: Http2Pool, call: HttpCall | None = None) -> ExchangeError:
    with pytest.raises(ExchangeError) as caught:
        await _body(pool, call)
    return caught.value


def test_a_request_and_its_answer() -> None:
    async def script(peer: Peer) -> None:
        _, flags, number, block = await peer.read_kind(HEADERS)
        fields = [(str(name), str(value)) for name, value in peer.decoder.decode(block)]
        assert flags & END_HEADERS
        assert fields == [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/service/Method"),
            (":authority", "host:1"),
            ("content-type", "application/grpc"),
        ]
        assert await peer.read_kind(DATA) == (DATA, END_STREAM, number, b"request")
        peer.answer(number, b"one", b"two")
        await peer.read()

    async def run() -> None:
        async with _pool(script) as pool, pool.exchange(_call()) as exchange:
            assert await exchange.read_all() == b"onetwo"
            assert (exchange.status, exchange.headers, exchange.trailers) == (
                200,
                {"content-type": "application/grpc"},
                dict(TRAILERS),
            )
            assert exchange.connect_ns > 0

    asyncio.run(run())


def test_one_connection_carries_streams_side_by_side() -> None:
    async def script(peer: Peer) -> None:
        numbers = [await peer.request() for _ in range(3)]
        for number in numbers:
            peer.headers(number, RESPONSE)
        for number in reversed(numbers):
            peer.send(DATA, 0, number, b"%d" % number)
        for number in numbers:
            peer.headers(number, TRAILERS, END_STREAM)
        second = await peer.request()
        peer.answer(second, b"later")
        await peer.read()

    async def run() -> None:
        async with _pool(script) as pool:
            assert await asyncio.gather(*[_body(pool) for _ in range(3)]) == [b"1", b"3", b"5"]
            async with pool.exchange(_call()) as exchange:
                assert await exchange.read_all() == b"later"
                assert exchange.connect_ns == 0

    asyncio.run(run())


def test_frames_in_unusual_shapes() -> None:
    async def script(peer: Peer) -> None:
        number = await peer.request()
        peer.headers(number, [(":status", "103"), ("link", "early")])
        block = peer.encoder.encode(RESPONSE)
        padded = bytes((3,)) + bytes(5) + block[:2] + bytes(3)
        peer.send(HEADERS, PADDED | HAS_PRIORITY, number, padded)
        peer.send(CONTINUATION, END_HEADERS, number, block[2:])
        peer.send(99, 0, number, b"a frame of a later time")
        peer.send(DATA, 0, number, b"")
        peer.send(DATA, PADDED, number, b"\x04padded" + bytes(4))
        peer.send(PING, 0, 0, b"12345678")
        peer.send(PING, ACK, 0, b"12345678")
        peer.send(DATA, 0, 77, b"of a stream that is not there")
        peer.send(DATA, END_STREAM | PADDED, number, b"\x01end\0")
        assert await peer.read_kind(PING) == (PING, ACK, 0, b"12345678")

    async def run() -> None:
        async with _pool(script) as pool, pool.exchange(_call()) as exchange:
            assert await exchange.read_all() == b"paddedend"
            assert (exchange.status, exchange.headers["content-type"]) == (200, "application/grpc")

    asyncio.run(run())


def test_frames_arrive_in_pieces() -> None:
    async def script(peer: Peer) -> None:
        number = await peer.request()
        whole = frame(HEADERS, END_HEADERS, number, peer.encoder.encode(RESPONSE))
        whole += frame(DATA, 0, number, b"abc") + frame(DATA, END_STREAM, number, b"def")
        for index in range(len(whole)):
            peer.writer.write(whole[index : index + 1])
            await peer.writer.drain()
            await asyncio.sleep(0)
        await peer.read()

    async def run() -> None:
        async with _pool(script) as pool:
            assert await _body(pool) == b"abcdef"

    asyncio.run(run())


def test_a_large_body_waits_for_the_servers_windows() -> None:
    body = bytes(range(256)) * 800  # 204800 bytes
    sizes: list[int] = []

    async def script(peer: Peer) -> None:
        received = b""
        while len(received) < len(body):
            _, flags, number, payload = await peer.read_kind(DATA)
            sizes.append(len(payload))
            received += payload
            if len(received) in (1000, 65535):  # all that was allowed
                peer.send(WINDOW_UPDATE, 0, number, struct.pack(">I", 100_000))
                peer.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 100_000))
            elif len(received) == 101_000:
                peer.send(WINDOW_UPDATE, 0, 0, struct.pack(">I", 100_000))
                peer.send(SETTINGS, 0, 0, struct.pack(">HI", 4, 300_000))  # a larger window for every stream
        assert received == body
        assert flags & END_STREAM
        peer.answer(number, b"whole")
        await peer.read()

    async def run() -> None:
        async with _pool(script, settings=struct.pack(">HI", 4, 1000)) as pool:
            assert await asyncio.wait_for(_body(pool, _call(body)), 5.0) == b"whole"

    asyncio.run(run())
    assert max(sizes) <= 16384


def test_our_windows_are_topped_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "STREAM_WINDOW", 65_536)
    monkeypatch.setattr(http2, "CONNECTION_WINDOW", 131_072)
    topped: dict[int, int] = {}

    async def script(peer: Peer) -> None:
        assert (await peer.read_kind(WINDOW_UPDATE))[3] == struct.pack(">I", 131_072 - 65_535)
        number = await peer.request()
        peer.headers(number, RESPONSE)
        for _ in range(12):
            peer.send(DATA, 0, number, bytes(16_000))
        peer.headers(number, TRAILERS, END_STREAM)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                while True:
                    _, _, updated, payload = await peer.read_kind(WINDOW_UPDATE)
                    topped[updated] = topped.get(updated, 0) + struct.unpack(">I", payload)[0]

    async def run() -> None:
        async with _pool(script) as pool:
            assert len(await _body(pool)) == 192_000
            await asyncio.sleep(0.12)

    asyncio.run(run())
    assert 65_536 < topped[0] <= 192_000
    assert 131_072 <= topped[1] <= 192_000


def test_leaving_early_resets_the_stream_and_what_still_comes_is_dropped() -> None:
    async def script(peer: Peer) -> None:
        number = await peer.request()
        peer.headers(number, RESPONSE)
        peer.send(DATA, 0, number, b"one")
        assert await peer.read_kind(RST_STREAM) == (RST_STREAM, 0, number, struct.pack(">I", 8))
        peer.send(DATA, 0, number, b"too late")
        peer.headers(number, TRAILERS, END_STREAM)
        peer.answer(await peer.request(), b"next")
        await peer.read()

    async def run() -> None:
        async with _pool(script) as pool:
            async with pool.exchange(_call()) as exchange:
                assert [chunk for _, chunk in await exchange.read()] == [b"one"]
            assert await _body(pool) == b"next"

    asyncio.run(run())


def test_an_answer_that_was_read_to_its_end_is_not_reset() -> None:
    peers: list[Peer] = []

    async def script(peer: Peer) -> None:
        peers.append(peer)
        peer.answer(await peer.request(), b"one")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await peer.read_kind(RST_STREAM)

    async def run() -> None:
        async with _pool(script) as pool:
            await _body(pool)
            await asyncio.sleep(0.06)

    asyncio.run(run())
    assert RST_STREAM not in peers[0].kinds


def test_a_timeout_resets_the_stream() -> None:
    resets = []

    async def script(peer: Peer) -> None:
        number = await peer.request()
        peer.headers(number, RESPONSE)
        resets.append((await peer.read_kind(RST_STREAM))[2] == number)

    async def run() -> None:
        async with _pool(script) as pool:
            failure = await _failure(pool, _call(timeout_s=0.05))
            assert failure.step is FailedStep.TIMEOUT
            await asyncio.sleep(0.02)

    asyncio.run(run())
    assert resets == [True]


def test_streams_beyond_the_servers_limit_get_another_connection() -> None:
    async def script(peer: Peer) -> None:
        first = await peer.request()
        await asyncio.sleep(0.03)
        peer.answer(first, b"%d" % first)
        await peer.read_kind(DATA)

    async def run() -> None:
        async with _pool(script, settings=struct.pack(">HI", 3, 1)) as pool, pool.exchange(_call()) as exchange:
            await asyncio.sleep(0.01)  # its settings are here now
            assert tuple(await asyncio.gather(_body(pool), exchange.read_all())) == (b"1", b"1")

    asyncio.run(run())


def test_a_reset_by_the_server_ends_this_stream_alone() -> None:
    async def script(peer: Peer) -> None:
        first, second = await peer.request(), await peer.request()
        peer.send(RST_STREAM, 0, first, struct.pack(">I", 7))
        peer.answer(second, b"fine")
        await peer.read()

    async def run() -> None:
        async with _pool(script) as pool:
            failure, body = await asyncio.gather(_failure(pool), _body(pool))
            assert (failure.step, failure.detail) == (FailedStep.BREAK, "the server reset the stream: REFUSED_STREAM")
            assert body == b"fine"

    asyncio.run(run())


def test_a_server_that_goes_away_finishes_what_it_began_and_the_next_request_connects_anew() -> None:
    peers: list[Peer] = []

    async def script(peer: Peer) -> None:
        peers.append(peer)
        first = await peer.request()
        if len(peers) == 1:
            await peer.request()
            peer.send(GOAWAY, 0, 0, struct.pack(">II", first, 0))
        peer.answer(first, b"fine")
        await peer.read()

    async def run() -> None:
        async with _pool(script) as pool:
            body, failure = await asyncio.gather(_body(pool), _failure(pool))
            assert (body, failure.step) == (b"fine", FailedStep.BREAK)
            assert "going away" in failure.detail
            assert await _body(pool) == b"fine"
        assert len(peers) == 2

    asyncio.run(run())


def test_a_connection_that_dies_ends_every_stream_and_nothing_is_sent_again() -> None:
    peers: list[Peer] = []

    async def script(peer: Peer) -> None:
        peers.append(peer)
        await peer.request()
        await peer.request()

    async def run() -> None:
        async with _pool(script) as pool:
            failures = await asyncio.gather(_failure(pool), _failure(pool))
            assert [failure.step for failure in failures] == [FailedStep.BREAK] * 2
        assert len(peers) == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "flags", "payload"),
    [
        (PUSH_PROMISE, END_HEADERS, bytes(8)),
        (HEADERS, END_HEADERS, b"\xff\xff\xff\xff\xff\xff"),
        (RST_STREAM, 0, b"ab"),
        (DATA, PADDED | END_STREAM, b""),
        (DATA, 0, bytes(20_000)),
    ],
)
def test_what_is_no_http2_ends_the_connection(kind: int, flags: int, payload: bytes) -> None:
    async def script(peer: Peer) -> None:
        peer.send(kind, flags, await peer.request(), payload)
        with suppress(ConnectionError):
            await peer.reader.read()

    async def run() -> None:
        async with _pool(script) as pool:
            assert (await _failure(pool)).step is FailedStep.PROTOCOL

    asyncio.run(run())


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-server\r\n", b"x", b""])
def test_a_server_of_another_protocol_is_recognised(greeting: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(greeting)

    async def run() -> None:
        async with scripted_server(script) as url, Http2Pool(f"http://{url}", Tls()) as pool:
            failure = await _failure(pool)
            assert (failure.step, failure.detail[:17]) == (FailedStep.PROTOCOL, "it speaks no HTTP")

    asyncio.run(run())


def test_nobody_listens() -> None:
    async def run() -> None:
        async with Http2Pool("http://127.0.0.1:1", Tls()) as pool:
            failures = await asyncio.gather(_failure(pool), _failure(pool))
            assert [failure.step for failure in failures] == [FailedStep.CONNECT] * 2

    asyncio.run(run())


def test_a_closed_pool_ends_what_runs_and_takes_nothing_more() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(30)

    async def run() -> None:
        async with _pool(script) as pool:
            task = asyncio.create_task(_failure(pool))
            await asyncio.sleep(0.02)
            await pool.__aexit__(None, None, None)
            assert (await task).step is FailedStep.BREAK
            with pytest.raises(ExchangeError, match="closed this transport"):
                pool.exchange(_call())

    asyncio.run(run())
