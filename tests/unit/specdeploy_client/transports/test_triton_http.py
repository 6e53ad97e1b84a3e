"""`generate_stream` against servers that answer, refuse, break off and lie."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from helpers.mock_llm_server import MockBehaviour, MockFailure, MockLlmServer, TensorDeclaration
from helpers.scripted_server import Certificates, replying, scripted_server
from specdeploy.errors import ClientError, RequestError
from specdeploy_client.transport import (
    GenerationRequest,
    Message,
    NobodyAnswersError,
    ProtocolError,
    RequestRefusedError,
    RequestTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
)
from specdeploy_client.transports.endpoint import Tls, parse_endpoint
from specdeploy_client.transports.triton_http import HttpTransport

REQUEST = GenerationRequest(prompt="Gr\u00fc\u00dfe", max_tokens=6, request_id="r1")
EVENT_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def _serve(behaviour: MockBehaviour, use: Callable[[MockLlmServer], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with MockLlmServer(behaviour) as server:
            await use(server)

    asyncio.run(run())


def _transport(url: str, *, timeout_s: float = 5.0, model: str = "llm", tls: Tls | None = None) -> HttpTransport:
    return HttpTransport(parse_endpoint(url, "triton-http", model=model, tls=tls), timeout_s)


async def _collect(url: str, request: GenerationRequest = REQUEST, **options: Any) -> list[Message]:
    async with _transport(url, **options) as transport:
        return [message async for message in transport.stream(request)]


def test_messages_and_counts() -> None:
    async def use(server: MockLlmServer) -> None:
        messages = await _collect(server.http_url, replace(REQUEST, stop_words=("a",), seed=2**63, num_draft_tokens=4))
        assert [len(message.output_ids or ()) for message in messages] == [3, 1, 2]
        assert messages[1].recv_ns - messages[0].recv_ns >= 8_000_000
        completion = messages[-1].completion
        assert completion is not None
        assert (completion.finish_reason, completion.output_token_count, completion.num_steps) == ("length", 6, 3)
        assert completion.connect_ns
        fields = server.requests[0].fields
        assert (fields["text_input"], fields["max_tokens"], fields["id"]) == ("Gr\u00fc\u00dfe", 6, "r1")
        assert (fields["stop_words"], fields["seed"], fields["num_draft_tokens"]) == (["a"], 2**63, 4)

    _serve(MockBehaviour(step_s=0.01), use)


def test_connections_are_kept() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.http_url) as transport:
            for _ in range(3):
                messages = [message async for message in transport.stream(REQUEST)]
        assert (server.num_connections, server.num_cancelled) == (1, 0)
        assert messages[-1].completion is not None
        assert messages[-1].completion.connect_ns == 0

    _serve(MockBehaviour(), use)


def test_closing_early_cancels_the_request_on_the_server() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.http_url) as transport:
            async with aclosing(transport.stream(REQUEST)) as stream:
                async for _ in stream:
                    break
            await asyncio.wait_for(server.cancelled.wait(), 2.0)

    _serve(MockBehaviour(step_s=5.0), use)


@pytest.mark.parametrize(
    ("failure", "expected", "words", "num_messages"),
    [
        (MockFailure.REFUSE, RequestRefusedError, "the mock refuses this request", 0),
        (MockFailure.ERROR_MID_STREAM, RequestRefusedError, "the mock broke", 1),
        (MockFailure.CLOSE_EARLY, StreamClosedError, "the stream ended before its last message", 1),
        (MockFailure.GARBAGE, ProtocolError, "is no JSON", 1),
        (MockFailure.WRONG_DTYPE, ProtocolError, "not whole numbers", 0),
        (MockFailure.DIE, NobodyAnswersError, "any more", 1),
        (MockFailure.STALL, RequestTimeoutError, "within 0.2 s. Raise --timeout", 1),
    ],
)
def test_what_goes_wrong_has_its_error_and_keeps_what_arrived(
    failure: MockFailure, expected: type[ClientError], words: str, num_messages: int
) -> None:
    async def use(server: MockLlmServer) -> None:
        messages = []
        async with _transport(server.http_url, timeout_s=0.2) as transport:
            with pytest.raises(ClientError) as caught:  # noqa: PT012 - the messages before the error count
                async for message in transport.stream(REQUEST):
                    messages.append(message)  # noqa: PERF401
        assert type(caught.value) is expected, caught.value
        assert words in str(caught.value)
        assert len(messages) == num_messages

    _serve(MockBehaviour(failure=failure), use)


@pytest.mark.parametrize(
    ("reply", "expected", "words"),
    [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope", ProtocolError, "HTTP 404, not as Triton does"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", ProtocolError, "without a content type, no event stream"),
        (EVENT_STREAM, StreamClosedError, "ended before its last message"),
        (EVENT_STREAM + b"data: [1]\n\n", ProtocolError, "is no message"),
        (EVENT_STREAM + b'data: {"text_output": 3}\n\n', ProtocolError, "text_output is int, not text"),
        (b"SSH-2.0-server\r\n", ProtocolError, "does not answer as triton-http"),
    ],
)
def test_servers_of_another_kind(reply: bytes, expected: type[ClientError], words: str) -> None:
    async def run() -> None:
        async with scripted_server(replying(reply)) as url:
            with pytest.raises(expected, match=words):
                await _collect(f"http://{url}")

    asyncio.run(run())


def test_nobody_and_the_wrong_model() -> None:
    async def use(server: MockLlmServer) -> None:
        with pytest.raises(ServerUnreachableError, match="has no model `other`"):
            await _collect(server.http_url, model="other")
        with pytest.raises(ServerUnreachableError, match="no Triton server answers"):
            await _collect("http://127.0.0.1:1")

    _serve(MockBehaviour(), use)


def test_readiness() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.http_url) as transport:
            assert await transport.is_ready()
        async with _transport(server.http_url, model="other") as transport:
            assert not await transport.is_ready()

    _serve(MockBehaviour(), use)


def test_the_models_own_declaration_is_read_and_used() -> None:
    declared = (TensorDeclaration("text_input", "BYTES"), TensorDeclaration("sampling_param_max_tokens", "INT64"))
    text = (TensorDeclaration("text_output", "BYTES", (-1,)),)

    async def use(server: MockLlmServer) -> None:
        async with _transport(server.http_url) as transport:
            interface = await transport.read_interface()
            assert [spec.datatype for spec in interface.inputs] == ["BYTES", "INT64"]
            transport.is_cumulative = True
            messages = [message async for message in transport.stream(REQUEST)]
            assert server.requests[0].fields["sampling_param_max_tokens"] == 6
            assert [message.num_tokens for message in messages][:1] == [None]
            assert messages[-1].completion is not None
            assert "".join(message.text for message in messages).count(" w") == 16  # the mock's own limit
            with pytest.raises(RequestError, match="num_draft_tokens"):
                await anext(transport.stream(replace(REQUEST, num_draft_tokens=0)))

    _serve(MockBehaviour(inputs=declared, outputs=text, is_cumulative=True, max_batch_size=0), use)


def test_tls(certificates: Certificates) -> None:
    async def run() -> None:
        async with MockLlmServer(MockBehaviour(), tls=certificates.server) as server:
            messages = await _collect(server.http_url, tls=Tls(ca_file=certificates.ca_file))
            assert messages[-1].completion is not None
            with pytest.raises(ServerUnreachableError, match="no secure connection"):
                await _collect(server.http_url)

    asyncio.run(run())
