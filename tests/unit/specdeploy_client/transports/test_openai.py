"""OpenAI-compatible servers that answer, refuse, break off and lie."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from helpers.mock_llm_server import MockBehaviour, MockFailure, MockLlmServer
from helpers.scripted_server import replying, scripted_server
from specdeploy.errors import ClientError
from specdeploy_client.transport import (
    Completion,
    GenerationRequest,
    Message,
    NobodyAnswersError,
    ProtocolError,
    RequestRefusedError,
    RequestTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
)
from specdeploy_client.transports.endpoint import parse_endpoint
from specdeploy_client.transports.openai import OpenAiTransport, problem_in
from specdeploy_client.transports.openai_dialect import PLAIN, SGLANG, TRTLLM, VLLM, OpenAiDialect

REQUEST = GenerationRequest(prompt="Gr\u00fc\u00dfe", max_tokens=6)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
KINDS = pytest.mark.parametrize("kind", ["chat", "completions"])


def _serve(behaviour: MockBehaviour, use: Callable[[MockLlmServer], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with MockLlmServer(behaviour) as server:
            await use(server)

    asyncio.run(run())


def _transport(
    url: str, kind: str = "chat", *, dialect: OpenAiDialect = PLAIN, timeout_s: float = 5.0, model: str = "llm"
) -> OpenAiTransport:
    headers = ("Authorization: Bearer key",)
    transport = OpenAiTransport(parse_endpoint(url, kind, model=model, headers=headers), timeout_s)
    transport.dialect = dialect
    return transport


async def _collect(url: str, kind: str = "chat", **options: Any) -> list[Message]:
    async with _transport(url, kind, **options) as transport:
        return [message async for message in transport.stream(REQUEST)]


def _events(*events: Any) -> bytes:
    parts = (event if isinstance(event, bytes) else json.dumps(event).encode() for event in events)
    return HEAD + b"".join(b"data: " + part + b"\n\n" for part in parts)


async def _scripted(*events: Any, kind: str = "chat", dialect: OpenAiDialect = PLAIN) -> list[Message]:
    async with scripted_server(replying(_events(*events))) as url:
        return await _collect(f"http://{url}", kind, dialect=dialect)


def _delta(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


@KINDS
def test_messages_usage_and_headers(kind: str) -> None:
    async def use(server: MockLlmServer) -> None:
        messages = await _collect(server.http_url, kind, dialect=VLLM)
        assert [len(message.output_ids or ()) for message in messages] == [3, 1, 2]
        assert messages[1].recv_ns - messages[0].recv_ns >= 8_000_000
        completion = messages[-1].completion
        assert completion is not None
        assert completion.connect_ns
        assert replace(completion, connect_ns=None) == Completion(
            finish_reason="length", input_token_count=1, output_token_count=6, cached_token_count=0
        )
        request = server.requests[0]
        assert (request.headers["authorization"], request.fields["stream"]) == ("Bearer key", True)
        assert request.endpoint == ("/v1/chat/completions" if kind == "chat" else "/v1/completions")

    _serve(MockBehaviour(step_s=0.01, cached_tokens=0), use)


@KINDS
def test_without_extensions_tokens_are_not_counted(kind: str) -> None:
    async def use(server: MockLlmServer) -> None:
        messages = await _collect(server.http_url, kind)
        assert [message.num_tokens for message in messages] == [None] * 3
        assert messages[-1].completion is not None
        assert messages[-1].completion.output_token_count == 6

    _serve(MockBehaviour(), use)


def test_running_usage_gives_the_tokens_of_each_message() -> None:
    async def use(server: MockLlmServer) -> None:
        messages = await _collect(server.http_url, "completions", dialect=TRTLLM)
        assert [(message.output_ids, message.num_tokens) for message in messages] == [(None, 3), (None, 1), (None, 2)]

    _serve(MockBehaviour(openai_extensions=frozenset({"continuous_usage_stats"})), use)


def test_connections_are_kept_and_requests_sent_once() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.http_url) as transport:
            for _ in range(3):
                assert [message async for message in transport.stream(REQUEST)]
        assert (server.num_connections, len(server.requests), server.num_cancelled) == (1, 3, 0)

    _serve(MockBehaviour(), use)


def test_closing_early_cancels_the_request_on_the_server() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.http_url) as transport:
            async with aclosing(transport.stream(REQUEST)) as stream:
                async for _ in stream:
                    break
            await asyncio.wait_for(server.cancelled.wait(), 2.0)

    _serve(MockBehaviour(step_s=0.1), use)


@KINDS
@pytest.mark.parametrize(
    ("failure", "expected", "words", "num_messages"),
    [
        (MockFailure.REFUSE, RequestRefusedError, "the mock refuses this request", 0),
        (MockFailure.ERROR_MID_STREAM, RequestRefusedError, "the mock broke", 1),
        (MockFailure.CLOSE_EARLY, StreamClosedError, "the stream ended before its last message", 1),
        (MockFailure.GARBAGE, ProtocolError, "is no JSON", 1),
        (MockFailure.WRONG_DTYPE, ProtocolError, "token_ids is", 0),
        (MockFailure.DIE, NobodyAnswersError, "any more", 1),
        (MockFailure.STALL, RequestTimeoutError, "within 0.2 s. Raise --timeout", 1),
    ],
)
def test_what_goes_wrong_has_its_error_and_keeps_what_arrived(
    kind: str, failure: MockFailure, expected: type[ClientError], words: str, num_messages: int
) -> None:
    async def use(server: MockLlmServer) -> None:
        messages = []
        async with _transport(server.http_url, kind, dialect=VLLM, timeout_s=0.2) as transport:
            with pytest.raises(ClientError) as caught:  # noqa: PT012 - the messages before the error count
                async for message in transport.stream(REQUEST):
                    messages.append(message)  # noqa: PERF401
        assert type(caught.value) is expected, caught.value
        assert words in str(caught.value)
        assert len(messages) == num_messages

    _serve(MockBehaviour(failure=failure), use)


def test_chunks_without_text_and_tokens_are_no_messages_and_reasoning_is_text() -> None:
    async def run() -> None:
        messages = await _scripted(
            _delta(role="assistant", content=""),
            _delta(reasoning_content="thinks "),
            _delta(reasoning="more "),
            _delta(content=None),
            _delta(content="answer"),
            _delta("stop", content=""),
            {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 7}},
            b"[DONE]",
        )
        assert [message.text for message in messages] == ["thinks ", "more ", "answer"]
        assert [message.completion is None for message in messages] == [True, True, False]
        assert messages[-1].completion is not None
        assert replace(messages[-1].completion, connect_ns=None) == Completion("stop", 4, 7)

    asyncio.run(run())


def test_tokens_without_text_are_a_message() -> None:
    async def run() -> None:
        half = {"choices": [{"text": "", "token_ids": [5]}]}
        rest = {"choices": [{"text": "\u20ac", "token_ids": [6], "finish_reason": "stop"}]}
        messages = await _scripted(half, rest, kind="completions", dialect=SGLANG)
        assert [(message.text, message.output_ids) for message in messages] == [("", (5,)), ("\u20ac", (6,))]

    asyncio.run(run())


def test_an_answer_without_any_token_still_ends() -> None:
    async def run() -> None:
        (message,) = await _scripted(_delta("stop", content=""), b"[DONE]")
        assert (message.text, message.num_tokens) == ("", None)
        assert message.completion is not None
        assert message.completion.finish_reason == "stop"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("event", "expected", "words"),
    [
        (b"[1, 2]", ProtocolError, "is no chunk of an answer"),
        (b'{"id": 3}', ProtocolError, "is no chunk of an answer"),
        (b'{"choices": [{"index": 0}]}', ProtocolError, "is no chunk of an answer"),
        (b'{"choices": [7]}', ProtocolError, "is no chunk of an answer"),
        (b'{"error": {"message": "out of memory", "code": 500}}', RequestRefusedError, "out of memory"),
        (b'{"object": "error", "message": "too long"}', RequestRefusedError, "too long"),
    ],
)
def test_events_that_are_no_chunks(event: bytes, expected: type[ClientError], words: str) -> None:
    with pytest.raises(expected, match=words):
        asyncio.run(_scripted(event))


@pytest.mark.parametrize(
    ("status", "content", "expected", "words"),
    [
        (401, b'{"error": {"message": "bad key"}}', RequestRefusedError, "bad key. Give your key with --header"),
        (404, b'{"detail": "Not Found"}', ServerUnreachableError, "has no model `llm`, or no page /chat/completions"),
        (429, b"slow down", RequestRefusedError, "HTTP 429"),
        (503, b'{"message": "starting"}', RequestRefusedError, "starting"),
        (200, b"{}", ProtocolError, "no event stream"),
    ],
)
def test_other_answers(status: int, content: bytes, expected: type[ClientError], words: str) -> None:
    async def run() -> None:
        head = f"HTTP/1.1 {status} .\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        async with scripted_server(replying(head.encode() + content)) as url:
            with pytest.raises(expected, match=words):
                await _collect(f"http://{url}")

    asyncio.run(run())


def test_nobody_and_the_wrong_model() -> None:
    async def use(server: MockLlmServer) -> None:
        with pytest.raises(ServerUnreachableError, match="The model `other` does not exist"):
            await _collect(server.http_url, model="other")
        with pytest.raises(NobodyAnswersError, match="no server answers"):
            await _collect("http://127.0.0.1:1")

    _serve(MockBehaviour(), use)


@pytest.mark.parametrize(
    ("owner", "dialect"),
    [("vllm", VLLM), ("sglang", SGLANG), ("tensorrt_llm", TRTLLM), ("somebody", PLAIN), ("", PLAIN)],
)
def test_the_models_page_tells_the_dialect(owner: str, dialect: OpenAiDialect) -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.http_url) as transport:
            assert await transport.is_ready()
            assert await transport.list_models() == {"llm": owner}
            assert await transport.read_dialect() == dialect

    _serve(MockBehaviour(openai_owner=owner), use)


@pytest.mark.parametrize(
    ("status", "content", "models"),
    [(404, b"", {}), (200, b"<html>", {}), (200, b'{"data": 3}', {}), (200, b'{"data": [{"id": "a"}]}', {"a": ""})],
)
def test_servers_without_a_models_page_are_ready_all_the_same(
    status: int, content: bytes, models: dict[str, str]
) -> None:
    async def run() -> None:
        head = f"HTTP/1.1 {status} .\r\ncontent-length: {len(content)}\r\n\r\n".encode()
        async with scripted_server(replying(head + content)) as url, _transport(f"http://{url}") as transport:
            assert await transport.is_ready()
            assert await transport.list_models() == models

    asyncio.run(run())


def test_a_refused_key_is_said_before_anything_is_measured() -> None:
    async def run() -> None:
        reply = b"HTTP/1.1 403 .\r\ncontent-length: 0\r\n\r\n"
        async with scripted_server(replying(reply)) as url, _transport(f"http://{url}") as transport:
            with pytest.raises(RequestRefusedError, match="--header"):
                await transport.is_ready()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b'{"error": {"message": "a"}}', "a"),
        (b'{"error": "b"}', "b"),
        (b'{"object": "error", "message": "c"}', "c"),
        (b'{"detail": [{"msg": "d"}]}', "[{'msg': 'd'}]"),
        (b"{}", None),
        (b"[]", None),
        (b"<html>", None),
    ],
)
def test_servers_own_words(content: bytes, problem: str | None) -> None:
    assert problem_in(content) == problem
