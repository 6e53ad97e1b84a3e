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


class ServerUnreachableError(ClientError):
    """Nobody answers at the address, or the connection broke while a request was running."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as the server will see it. A field that is None is not sent: the server's default applies.

    `num_draft_tokens` None means the plan's K for the current load, 0 means no speculation for this request.
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


@dataclass(frozen=True, slots=True)
class Completion:
    """What the last message says of the whole request. A count the server did not report is None, never 0."""

    finish_reason: str | None = None
    input_token_count: int | None = None
    output_token_count: int | None = None
    num_steps: int | None = None
    total_draft_tokens: int | None = None
    total_accepted_draft_tokens: int | None = None
    speculation: str | None = None
    speculation_stats: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One streamed message: a delta of text and of token ids, stamped on arrival (`time.monotonic_ns`)."""

    recv_ns: int
    text: str
    output_ids: tuple[int, ...]
    completion: Completion | None = None


class Transport(Protocol):
    """How a request reaches a server.

    `stream` yields messages as they arrive and ends after the last one. Closing the generator early cancels the
    request on the server. Raises `RequestRefusedError`, `RequestTimeoutError` or `ServerUnreachableError`.
    """

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        """Send `request` and yield its messages."""
        ...
