"""`Transport` over OpenAI's streamed completions and chat completions, as vLLM, SGLang, trtllm-serve and hosts offer.

A message is a chunk with text or token ids; chunks with a role, a finish reason or usage alone are none. Reasoning is
text like any other: the user waits for it too.
"""

from collections.abc import AsyncGenerator, Iterator
from typing import Any, NoReturn

import orjson

from specdeploy.errors import ClientError
from specdeploy_client.transport import (
    Completion,
    GenerationRequest,
    Message,
    ProtocolError,
    RequestRefusedError,
    ServerUnreachableError,
    StreamClosedError,
)
from specdeploy_client.transports.answer import AnswerInProgress
from specdeploy_client.transports.base import PageTransport
from specdeploy_client.transports.endpoint import Endpoint, EndpointKind
from specdeploy_client.transports.event_stream import EventReader
from specdeploy_client.transports.exchange import Exchange, ExchangeError
from specdeploy_client.transports.openai_dialect import DIALECT_OF_OWNER, PLAIN, OpenAiDialect, request_body

_HEADERS = (("content-type", "application/json"), ("accept", "text/event-stream"))
_DONE = b"[DONE]"


class OpenAiTransport(PageTransport):
    """Talks to one model of an OpenAI-compatible server. `timeout_s` limits one whole request.

    `dialect` says which extensions requests use: none, until `read_dialect` or a probe has found out.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        super().__init__(endpoint, timeout_s)
        self.dialect: OpenAiDialect = PLAIN
        self._is_chat = endpoint.kind is EndpointKind.OPENAI_CHAT
        self._path = "/chat/completions" if self._is_chat else "/completions"

    async def is_ready(self) -> bool:
        """Whether the server answers. Raises `ServerUnreachableError` when nobody listens."""
        status, content = await self._fetch("/models")
        if status in (401, 403):
            self._raise_refused(status, content)
        return status < 500  # a server without this page may still answer requests

    async def list_models(self) -> dict[str, str]:
        """The names of the server's models and who owns each; empty where the server does not tell."""
        status, content = await self._fetch("/models")
        if status != 200:
            return {}
        try:
            entries = orjson.loads(content)["data"]
            return {str(entry["id"]): str(entry.get("owned_by", "")) for entry in entries}
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return {}

    async def read_dialect(self) -> OpenAiDialect:
        """What the server's own page says of its kind; requests use it from now on."""
        owners = await self.list_models()
        owner = owners.get(self.endpoint.model) or next(iter(owners.values()), "")
        self.dialect = DIALECT_OF_OWNER.get(owner, PLAIN)
        return self.dialect

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        """Send `request`; yield its messages, stamped before they are decoded."""
        body = orjson.dumps(request_body(request, self.endpoint.model, self.dialect, is_chat=self._is_chat))
        events = EventReader()
        try:
            async with self._connections.exchange(self._call(self._path, body, _HEADERS)) as exchange:
                answer = _Answer(self, exchange)
                try:
                    while chunks := await exchange.read():
                        if exchange.status != 200:
                            break
                        for message in answer.messages(chunks, events):
                            yield message
                    if exchange.status != 200:
                        content = b"".join(chunk for _, chunk in chunks) + await exchange.read_all()
                        self._raise_refused(exchange.status or 0, content)
                    if (last := answer.last_message()) is not None:
                        yield last
                except (ExchangeError, ClientError):
                    if (held := answer.progress.held()) is not None:
                        yield held
                    raise
        except ExchangeError as error:
            await self._raise_for(error)

    def _raise_refused(self, status: int, content: bytes) -> NoReturn:
        """Raise what an answer other than 200 means."""
        problem = problem_in(content) or f"HTTP {status}"
        if status in (401, 403):
            raise RequestRefusedError(
                f"server at {self.url}: {problem}. Give your key with --header 'Authorization: Bearer ...'"
            )
        if status == 404:
            raise ServerUnreachableError(
                f"the server at {self.url} has no model `{self.endpoint.model}`, or no page {self._path} ({problem}). "
                "--model names another, --url gives the address up to /v1"
            )
        raise RequestRefusedError(f"server at {self.url}: {problem}")


class _Answer:
    """One streamed answer."""

    def __init__(self, transport: OpenAiTransport, exchange: Exchange) -> None:
        self.progress = AnswerInProgress(exchange, holds_last=True)
        self._url = transport.url
        self._is_chat = transport.endpoint.kind is EndpointKind.OPENAI_CHAT
        self._counts_running = transport.dialect.running_usage and not transport.dialect.token_ids
        self._exchange = exchange
        self._usage: dict[str, Any] = {}
        self._num_tokens = 0
        self._finish_reason: str | None = None
        self._is_done = False

    def messages(self, chunks: list[tuple[int, bytes]], events: EventReader) -> Iterator[Message]:
        """Messages that these chunks complete."""
        for recv_ns, chunk in chunks:
            for data in events.split(chunk):
                if data == _DONE:
                    self._is_done = True
                    continue
                message = self._message(data, recv_ns)
                earlier = self.progress.take_counted(message) if message is not None else None
                if earlier is not None:
                    yield earlier

    def last_message(self) -> Message | None:
        """The last message, with what is known at the end. Raises `StreamClosedError` where the end is missing."""
        kind = self._exchange.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise ProtocolError(
                f"the server at {self._url} answers {kind or 'without a content type'}, no event stream"
            )
        if self._finish_reason is None and not self._is_done:
            raise StreamClosedError(f"server at {self._url}: the stream ended before its last message")
        details = self._usage.get("prompt_tokens_details")
        completion = Completion(
            finish_reason=self._finish_reason,
            input_token_count=_count(self._usage, "prompt_tokens"),
            output_token_count=_count(self._usage, "completion_tokens"),
            cached_token_count=_count(details, "cached_tokens") if isinstance(details, dict) else None,
        )
        return self.progress.close(completion)

    def _message(self, data: bytes, recv_ns: int) -> Message | None:
        """What one event carries; None without text and tokens."""
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"server at {self._url}: {data[:80]!r} is no JSON ({error})") from error
        if not isinstance(event, dict) or "choices" not in event:
            problem = problem_in(data)
            if problem is None:
                raise ProtocolError(f"server at {self._url}: {data[:80]!r} is no chunk of an answer")
            raise RequestRefusedError(f"server at {self._url}: {problem}")
        token_count = self._take_usage(event.get("usage"))
        choices = event["choices"]
        if not choices:
            return None
        try:
            choice = choices[0]
            text = _delta_text(choice["delta"]) if self._is_chat else choice["text"] or ""
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            ids = choice.get("token_ids")
        except (KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(f"server at {self._url}: {data[:80]!r} is no chunk of an answer") from error
        if not text and not ids and not token_count:
            return None
        return Message(recv_ns, text, None if ids is None else _whole_ids(ids, self._url), None, token_count)

    def _take_usage(self, usage: Any) -> int | None:
        """Note the counts so far; how many tokens are new where every chunk counts them."""
        if not isinstance(usage, dict):
            return None
        self._usage = usage
        if not self._counts_running:
            return None
        before, self._num_tokens = self._num_tokens, _count(usage, "completion_tokens") or self._num_tokens
        return self._num_tokens - before


def problem_in(content: bytes) -> str | None:
    """The server's own words in an error: OpenAI's shape, older vLLM's and TensorRT-LLM's, or FastAPI's."""
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, dict):
        return None
    error = parsed.get("error")
    if isinstance(error, dict) and error.get("message"):
        return str(error["message"])
    for problem in (error, parsed.get("message"), parsed.get("detail")):
        if problem:
            return str(problem)
    return None


def _delta_text(delta: dict[str, Any]) -> str:
    reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
    return f"{reasoning}{delta.get('content') or ''}"


def _whole_ids(ids: Any, url: str) -> tuple[int, ...]:
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise ProtocolError(f"server at {url}: token_ids is {str(ids)[:80]}, not a list of whole numbers")
    return tuple(ids)


def _count(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if type(value) is int and value >= 0 else None
