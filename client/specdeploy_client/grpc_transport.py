"""`Transport` over Triton's gRPC streaming call, one stream per request so that each can be cancelled alone."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc  # type: ignore[import-untyped]  # no published type information
from tritonclient.grpc import service_pb2, service_pb2_grpc

from specdeploy_client.tensors import MODEL_NAME, decode_response, encode_request, is_final
from specdeploy_client.transport import (
    GenerationRequest,
    Message,
    RequestRefusedError,
    RequestTimeoutError,
    ServerUnreachableError,
)

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),  # a proxy for the web is never on the way to a model server
)
_START_HINT = "Start it with `make serve`, or give its address with --url"


class GrpcTransport:
    """Talks to the Triton model `llm` at `url` (host:port). `timeout_s` limits one whole request.

    Use as an async context manager inside the event loop that runs the requests.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._channel = grpc.aio.insecure_channel(url, options=_CHANNEL_OPTIONS)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def is_ready(self) -> bool:
        """Whether the model is ready to answer. Raises `ServerUnreachableError` when nobody listens."""
        try:
            response = await self._stub.ModelReady(
                service_pb2.ModelReadyRequest(name=MODEL_NAME), timeout=min(self._timeout_s, 10.0)
            )
        except grpc.aio.AioRpcError as error:
            self._raise_for(error)
        return bool(response.ready)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        """Send `request`; yield its messages, stamped before they are decoded."""
        call = self._stub.ModelStreamInfer(_once(encode_request(request)), timeout=self._timeout_s)
        try:
            async for envelope in call:
                recv_ns = time.monotonic_ns()
                if envelope.error_message:
                    raise RequestRefusedError(f"server at {self.url}: {envelope.error_message}")
                message = decode_response(envelope.infer_response, recv_ns)
                if message is not None:
                    yield message
                if is_final(envelope.infer_response):
                    return
        except grpc.aio.AioRpcError as error:
            self._raise_for(error)
        finally:
            call.cancel()  # a no-op for a stream that has ended

    def _raise_for(self, error: Any) -> NoReturn:
        """Turn a gRPC status into an error that names the address and what to do."""
        code = error.code()
        details = (error.details() or "").strip()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise RequestTimeoutError(
                f"server at {self.url}: no complete answer within {self._timeout_s:g} s. Raise --timeout, or lower "
                "max_tokens or the concurrency"
            ) from error
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise ServerUnreachableError(
                f"no Triton server answers at {self.url} ({details}). {_START_HINT}"
            ) from error
        if code is grpc.StatusCode.NOT_FOUND:
            raise ServerUnreachableError(
                f"the server at {self.url} has no model `{MODEL_NAME}` ({details}). Is it another server? {_START_HINT}"
            ) from error
        raise RequestRefusedError(f"server at {self.url}: {code.name}: {details}") from error


async def _once(message: Any) -> AsyncIterator[Any]:
    yield message
