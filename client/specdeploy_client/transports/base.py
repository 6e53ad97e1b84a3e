"""What all transports share: their life cycle, and failed exchanges as the client's errors."""

import asyncio
from types import TracebackType
from typing import Generic, NoReturn, Protocol, Self, TypeVar

from specdeploy_client.transport import (
    NobodyAnswersError,
    ProtocolError,
    RequestTimeoutError,
    ServerUnreachableError,
    StreamClosedError,
    Transport,
)
from specdeploy_client.transports.curl_loop import CurlLoop
from specdeploy_client.transports.endpoint import Endpoint
from specdeploy_client.transports.exchange import ExchangeError, FailedStep, HttpCall
from specdeploy_client.transports.http2_pool import Http2Pool

READY_TIMEOUT_S = 10.0
_LISTEN_TIMEOUT_S = 2.0


class OpenedTransport(Transport, Protocol):
    """A transport with an address and a life: an async context manager in the loop that runs the requests."""

    @property
    def url(self) -> str:
        """The address as the user wrote it."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """What it was opened for."""
        ...

    async def is_ready(self) -> bool:
        """Whether the model answers. Raises `ServerUnreachableError` when nobody listens."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


C = TypeVar("C", CurlLoop, Http2Pool)


class HttpBasedTransport(Generic[C]):
    """Base of the transports: `connections` carry its exchanges. `timeout_s` limits one whole request."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, connections: C) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._connections: C = connections

    @property
    def url(self) -> str:
        """The address as the user wrote it."""
        return self.endpoint.url

    async def __aenter__(self) -> Self:
        await self._connections.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._connections.__aexit__(exc_type, exc, traceback)

    def _call(
        self,
        path: str,
        body: bytes | None,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        timeout_s: float | None = None,
    ) -> HttpCall:
        return HttpCall(
            url=self.endpoint.base_url + path,
            headers=(*headers, *self.endpoint.headers),
            body=body,
            timeout_s=self.timeout_s if timeout_s is None else timeout_s,
            tls=self.endpoint.tls,
        )

    async def _raise_for(self, error: ExchangeError) -> NoReturn:
        """Turn a failed exchange into an error that names the address and what to do."""
        match error.step:
            case FailedStep.CONNECT:
                raise NobodyAnswersError(self._nobody_answers(error.detail)) from error
            case FailedStep.TLS:
                raise ServerUnreachableError(
                    f"no secure connection to {self.url} ({error.detail}). Name the server's authority with --tls-ca, "
                    "your certificate with --tls-cert and --tls-key, or use an address without TLS"
                ) from error
            case FailedStep.TIMEOUT:
                raise RequestTimeoutError(
                    f"server at {self.url}: no complete answer within {self.timeout_s:g} s. Raise --timeout, or lower "
                    "max_tokens or the concurrency"
                ) from error
            case FailedStep.PROTOCOL:
                raise ProtocolError(
                    f"the server at {self.url} does not answer as {self.endpoint.kind} ({error.detail}). "
                    "--endpoint-type names another protocol"
                ) from error
            case FailedStep.BREAK:
                # One connection of many, or the server itself? A look tells, after the failed request's time.
                if not await self._is_listening():
                    raise NobodyAnswersError(self._went_away(error.detail)) from error
                raise StreamClosedError(
                    f"server at {self.url}: the connection broke before the end of the answer ({error.detail})"
                ) from error

    def _nobody_answers(self, detail: str) -> str:
        product = "server" if self.endpoint.kind.is_openai else "Triton server"
        return f"no {product} answers at {self.url} ({detail})"

    def _went_away(self, detail: str) -> str:
        return f"nobody answers at {self.url} any more ({detail})"

    def _no_model(self, detail: str) -> str:
        """A model that is not there, or, while a server shuts down or loads, not any more or not yet."""
        if "no available versions" in detail:
            return f"the server at {self.url} has not loaded its model `{self.endpoint.model}` ({detail})"
        return (
            f"the server at {self.url} has no model `{self.endpoint.model}` ({detail}). Is it another server? --model "
            "names the model, --url the server"
        )

    async def _is_listening(self) -> bool:
        """Whether somebody takes connections at the address."""
        host, port = self.endpoint.address
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _LISTEN_TIMEOUT_S)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True


class PageTransport(HttpBasedTransport[CurlLoop]):
    """Base of the transports over HTTP/1.1, which have pages beside the calls that stream."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        super().__init__(endpoint, timeout_s, CurlLoop())

    async def _fetch(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and content of a page. Raises the client's errors."""
        timeout_s = min(self.timeout_s, READY_TIMEOUT_S)
        try:
            async with self._connections.exchange(self._call(path, body, timeout_s=timeout_s)) as exchange:
                content = await exchange.read_all()
                return exchange.status or 0, content
        except ExchangeError as error:
            await self._raise_for(error)
