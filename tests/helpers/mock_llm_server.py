"""A model server in the test's own event loop: settable, deterministic, speaking every protocol the client speaks.

    async with MockLlmServer(MockBehaviour(step_s=0.01)) as server:
        ... server.grpc_url, server.http_url, server.metrics_url ...
        server.behaviour = replace(server.behaviour, failure=MockFailure.DIE)

gRPC: streaming, unary, readiness, model metadata and configuration. HTTP: `generate_stream`, `generate`, model control
(load, unload, index), `/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health` and a Prometheus page with the
counters of what was answered.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from helpers.mock_llm_answers import (
    MockBehaviour,
    MockCounts,
    MockFailure,
    MockMessage,
    MockRequest,
    TensorDeclaration,
    plan_answer,
)

__all__ = [
    "MockBehaviour",
    "MockCounts",
    "MockFailure",
    "MockLlmServer",
    "MockMessage",
    "MockRequest",
    "ServerTls",
    "TensorDeclaration",
]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of the server; `client_ca_file` makes it ask for a client's certificate."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None


@dataclass(slots=True)
class SegmentTotals:
    """Counters of one segment, as the metrics page shows them."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class MockLlmServer:
    """The server. `requests` are those that arrived, `num_cancelled` how many a client gave up, `num_connections` how
    many connections HTTP clients opened."""

    def __init__(
        self,
        behaviour: MockBehaviour | None = None,
        *,
        tls: ServerTls | None = None,
        models: tuple[str, ...] = (),
        grpc_port: int = 0,
        http_port: int = 0,
    ) -> None:
        """`models`: further names under model control; the behaviour's model is loaded at the start, they are not."""
        self.behaviour = behaviour or MockBehaviour()
        self.tls = tls
        self.loaded = {self.behaviour.model: True} | dict.fromkeys(models, False)
        self.requests: list[MockRequest] = []
        self.totals: dict[str, SegmentTotals] = defaultdict(SegmentTotals)
        self.num_cancelled = 0
        self.num_connections = 0
        self.cancelled = asyncio.Event()
        self.is_dead = False
        self._grpc_port = grpc_port
        self._http_port = http_port
        self._servers: list[Any] = []
        self._death: asyncio.Task[None] | None = None

    @property
    def grpc_url(self) -> str:
        """host:port, with the scheme only where it is TLS."""
        return f"{'grpcs://' if self.tls else ''}localhost:{self._grpc_port}"

    @property
    def http_url(self) -> str:
        """http://localhost:port or https://..."""
        return f"{'https' if self.tls else 'http'}://localhost:{self._http_port}"

    @property
    def metrics_url(self) -> str:
        """The Prometheus page."""
        return f"{self.http_url}/metrics"

    async def __aenter__(self) -> Self:
        from helpers.mock_llm_grpc import GrpcFront
        from helpers.mock_llm_http import HttpFront

        grpc_front, http_front = GrpcFront(self), HttpFront(self)
        self._grpc_port = await grpc_front.start(self._grpc_port)
        self._http_port = await http_front.start(self._http_port)
        self._servers = [grpc_front, http_front]
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._death is not None:
            await self._death
        await self._stop_all()

    def die(self) -> None:
        """Drop every connection and stop listening, as a killed process does."""
        if self._death is None:
            self.is_dead = True
            self._death = asyncio.get_running_loop().create_task(self._stop_all())

    async def answer(self, request: MockRequest) -> "Answer":
        """Note the request; raises nothing: what goes wrong is in the answer."""
        self.requests.append(request)
        return Answer(self, request, self.behaviour)

    def note_cancelled(self) -> None:
        """A client gave a request up."""
        self.num_cancelled += 1
        self.cancelled.set()

    async def _stop_all(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            await server.stop()


class Answer:
    """One answer on its way. `failure` is what befalls it; `messages()` waits until each message is due."""

    def __init__(self, server: MockLlmServer, request: MockRequest, behaviour: MockBehaviour) -> None:
        self.behaviour = behaviour
        self.request = request
        self.failure = behaviour.failure_of(request.number)
        self._server = server
        self._plan = plan_answer(behaviour, request)
        self._started = asyncio.get_running_loop().time()

    @property
    def whole(self) -> MockMessage:
        """All messages as one, for calls that do not stream."""
        text = self._plan[-1].text if self.behaviour.is_cumulative else "".join(part.text for part in self._plan)
        ids = tuple(token for part in self._plan for token in part.ids)
        return MockMessage(self._plan[-1].due_s, text, ids, self._plan[-1].counts)

    def __aiter__(self) -> "Answer":
        self._position = 0
        return self

    async def __anext__(self) -> MockMessage:
        """The next message when it is due. Ends at the failure's place; the caller then does what `failure` says."""
        if self.failure is not None and self._position >= min(self.behaviour.fail_after, len(self._plan) - 1):
            await self._fail()
        if self._position == len(self._plan):
            raise StopAsyncIteration
        message = self._plan[self._position]
        self._position += 1
        await self.wait_until(message.due_s)
        if message.counts is not None:
            self._count(message.counts)
        return message

    async def wait_until(self, due_s: float) -> None:
        """Sleep until `due_s` after the request's arrival."""
        delay = self._started + due_s - asyncio.get_running_loop().time()
        if delay > 0:
            await asyncio.sleep(delay)

    async def _fail(self) -> None:
        if self.failure is MockFailure.DIE:
            self._server.die()
            await asyncio.sleep(3600)
        if self.failure is MockFailure.STALL:
            await asyncio.sleep(3600)
        if self.failure in (MockFailure.CLOSE_EARLY, MockFailure.ERROR_MID_STREAM, MockFailure.GARBAGE):
            raise StopAsyncIteration

    def _count(self, counts: MockCounts) -> None:
        totals = self._server.totals[self.request.segment or "other"]
        totals.num_drafts += counts.num_steps if counts.is_drafting else 0
        totals.num_draft_tokens += counts.num_draft_tokens
        totals.num_accepted_tokens += counts.num_accepted_tokens
        for position, accepted in enumerate(counts.accepted_per_pos):
            totals.accepted_per_pos[position] += accepted
