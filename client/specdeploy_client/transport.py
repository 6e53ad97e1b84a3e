"""The seam between the client and a server: one request in, a stream of messages out.

Everything above this module (load generator, query, checks) talks to the protocol `Transport`; tests put a mock with
settable latencies behind it.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from specdeploy.errors import ClientError


class RequestRefusedError(ClientError):
    """The server answered this request with an error; the next request may succeed."""


class RequestTimeoutError(ClientError):
    """The request did not finish within the client's time limit; it was cancelled."""


class StreamClosedError(ClientError):
    """The stream ended before its last message; other requests may be answered."""


class ProtocolError(ClientError):
    """The server answered something that is not an answer: a broken message, another shape than it declared."""


class ServerUnreachableError(ClientError):
    """Nobody answers at the address, or the connection broke while a request was running."""


class NobodyAnswersError(ServerUnreachableError):
    """Nobody takes connections at the address. What to do about it depends on who gave the address, and when."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as the server will see it. A field that is None is not sent: the server's default applies.

    `prompt` is the whole text. `turns` is the same conversation unrendered, user and assistant in turn, for endpoints
    that render it themselves. `num_draft_tokens` None means the plan's K for the current load, 0 means no speculation
    for this request. `guide_type` (json, json_schema, regex, ebnf_grammar) and `guide` constrain the answer.
    """

    prompt: str
    max_tokens: int
    num_draft_tokens: int | None = None
    segment: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_words: tuple[str, ...] = ()
    stream: bool = True
    request_id: str = ""
    turns: tuple[str, ...] = ()
    guide_type: str | None = None
    guide: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What the last message says of the whole request. A count the server did not report is None, never 0.

    `cached_token_count`: prompt tokens that the server took from a prefix cache. `connect_ns`: what the transport spent
    on a new connection for this request, 0 where it had one.
    """

    finish_reason: str | None = None
    input_token_count: int | None = None
    output_token_count: int | None = None
    num_steps: int | None = None
    total_draft_tokens: int | None = None
    total_accepted_draft_tokens: int | None = None
    speculation: str | None = None
    speculation_stats: str | None = None
    cached_token_count: int | None = None
    connect_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One streamed message: a delta of text and of token ids, stamped on arrival (`time.monotonic_ns`).

    `output_ids` None: the server sends no ids; `token_count` is then the number of tokens, where it says that.
    The last message of an answer has `completion`; without text and tokens it has the stamp of the one before it.
    """

    recv_ns: int
    text: str
    output_ids: tuple[int, ...] | None
    completion: Completion | None = None
    token_count: int | None = None

    @property
    def num_tokens(self) -> int | None:
        """Tokens in this message; None where the server does not say."""
        return self.token_count if self.output_ids is None else len(self.output_ids)


class Transport(Protocol):
    """How a request reaches a server.

    `stream` yields messages as they arrive and ends after the last one. Closing the generator early cancels the
    request on the server. Raises `RequestRefusedError`, `RequestTimeoutError`, `StreamClosedError`, `ProtocolError` or
    `ServerUnreachableError`.
    """

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        """Send `request` and yield its messages."""
        ...
