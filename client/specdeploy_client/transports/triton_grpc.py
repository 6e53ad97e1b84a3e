"""`Transport` over Triton's gRPC streaming call, one HTTP/2 stream per request so that each can be cancelled alone."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from google.protobuf.message import DecodeError
from tritonclient.grpc import model_config_pb2, service_pb2

from specdeploy.errors import ClientError
from specdeploy_client.tensors import (
    LLM_INTERFACE,
    ModelInterface,
    TensorSpec,
    decode_outputs,
    encode_request,
    is_final,
)
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
from specdeploy_client.transports.answer import AnswerInProgress
from specdeploy_client.transports.base import READY_TIMEOUT_S, HttpBasedTransport
from specdeploy_client.transports.endpoint import Endpoint
from specdeploy_client.transports.exchange import Exchange, ExchangeError, HttpCall
from specdeploy_client.transports.grpc_frames import PREFIX_BYTES, FrameReader, frame, parse_status
from specdeploy_client.transports.http2_pool import Http2Pool
from specdeploy_client.transports.repeated_layout import RepeatedLayout

_SERVICE = "/inference.GRPCInferenceService/"
_HEADERS = (("content-type", "application/grpc"), ("te", "trailers"))


class GrpcTransport(HttpBasedTransport[Http2Pool]):
    """Talks to one model of a Triton server. `timeout_s` limits one whole request.

    `interface` is what the model takes and gives; until `read_interface` has asked the server it is that of `llm`.
    `is_cumulative`: the model repeats the whole text in every message, and only what is new of it is passed on.
    """

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        super().__init__(endpoint, timeout_s, Http2Pool(endpoint.base_url, endpoint.tls))
        self.interface = replace(LLM_INTERFACE, model=endpoint.model)
        self.is_cumulative = False

    async def is_ready(self) -> bool:
        """Whether the model is ready to answer. Raises `ServerUnreachableError` when nobody listens."""
        request = service_pb2.ModelReadyRequest(name=self.endpoint.model)
        response = await self._unary("ModelReady", request, service_pb2.ModelReadyResponse)
        return bool(response.ready)

    async def read_interface(self) -> ModelInterface:
        """Ask the server what the model takes and gives, and build requests by it from now on."""
        request = service_pb2.ModelConfigRequest(name=self.endpoint.model)
        response = await self._unary("ModelConfig", request, service_pb2.ModelConfigResponse)
        self.interface = interface_of(response.config)
        return self.interface

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        """Send `request`; yield its messages, stamped before they are decoded."""
        body = encode_request(request, self.interface).SerializeToString()
        frames, layout = FrameReader(), RepeatedLayout()
        holds_last = not self.interface.has_output("finish_reason")
        try:
            async with self._connections.exchange(self._rpc("ModelStreamInfer", body, self.timeout_s)) as exchange:
                answer = AnswerInProgress(exchange, is_cumulative=self.is_cumulative, holds_last=holds_last)
                try:
                    while not answer.is_over:
                        if not (chunks := exchange.take()):
                            if exchange.is_done:
                                break
                            await exchange.news
                            continue
                        for recv_ns, chunk in chunks:
                            if frames.is_whole(chunk) and (known := layout.read(chunk, PREFIX_BYTES)) is not None:
                                message = answer.take(recv_ns, *known)
                                if message is not None:
                                    yield message
                                continue
                            for message in self._decoded(exchange, frames.split(chunk), recv_ns, answer, layout):
                                yield message
                    if answer.is_over:
                        await exchange.drain()
                    else:
                        await self._check_end(exchange, answer)
                except (ExchangeError, ClientError):
                    if (held := answer.held()) is not None:
                        yield held
                    raise
        except ExchangeError as error:
            await self._raise_for(error)

    def _decoded(
        self,
        exchange: Exchange,
        frames: list[bytes],
        recv_ns: int,
        answer: AnswerInProgress,
        layout: RepeatedLayout,
    ) -> Iterator[Message]:
        """The messages in `frames`, decoded the long way; `answer` keeps how far it got."""
        if not answer.has_begun:
            self._check_head(exchange)
        for raw in frames:
            try:
                envelope = _parse_envelope(raw)
            except DecodeError as error:
                raise ProtocolError(f"server at {self.url}: a message that is no answer ({error})") from error
            if envelope.error_message:
                self._raise_refused("", envelope.error_message)
            message = self._message(envelope.infer_response, raw, recv_ns, answer, layout)
            if message is not None:
                yield message

    def _message(
        self, response: Any, raw: bytes, recv_ns: int, answer: AnswerInProgress, layout: RepeatedLayout
    ) -> Message | None:
        is_last = is_final(response)
        if not response.outputs:
            return answer.close() if is_last else None
        text, output_ids, counts = decode_outputs(response)
        if counts is None and not is_last:
            layout.learn(raw, response)
        return answer.take(recv_ns, text, output_ids, counts, is_last)

    async def _check_end(self, exchange: Exchange, answer: AnswerInProgress) -> None:
        """Raise what an answer that ended without its final flag means; nothing if it was complete."""
        exchange.raise_if_failed()
        self._check_head(exchange)
        await self._raise_for_status(exchange)
        if not answer.is_complete:
            raise StreamClosedError(f"server at {self.url}: the stream ended before its last message")

    def _rpc(self, method: str, message: bytes, timeout_s: float) -> HttpCall:
        return self._call(_SERVICE + method, frame(message), _HEADERS, timeout_s=timeout_s)

    async def _unary(self, method: str, request: Any, response_type: Any) -> Any:
        """One request, one answer."""
        frames = FrameReader()
        call = self._rpc(method, request.SerializeToString(), min(self.timeout_s, READY_TIMEOUT_S))
        try:
            async with self._connections.exchange(call) as exchange:
                messages = frames.split(await exchange.read_all())
                self._check_head(exchange)
                await self._raise_for_status(exchange)
        except ExchangeError as error:
            await self._raise_for(error)
        if len(messages) != 1:
            raise ProtocolError(f"server at {self.url}: {len(messages)} answers to one {method}")
        try:
            return response_type.FromString(messages[0])
        except DecodeError as error:
            raise ProtocolError(f"server at {self.url}: {method} gave what is no answer ({error})") from error

    def _check_head(self, exchange: Exchange) -> None:
        """Raise `ProtocolError` unless what answers speaks gRPC."""
        kind = exchange.headers.get("content-type", "")
        if exchange.status != 200 or not kind.startswith("application/grpc"):
            raise ProtocolError(
                f"the server at {self.url} answers HTTP {exchange.status} {kind or 'without content type'}, not gRPC. "
                "--url must be Triton's gRPC port, or --endpoint-type another protocol"
            )

    async def _raise_for_status(self, exchange: Exchange) -> None:
        """Turn a gRPC status into an error that names the address and what to do; nothing for OK."""
        status = parse_status(exchange.trailers) or parse_status(exchange.headers)
        if status is None:
            raise StreamClosedError(f"server at {self.url}: the stream ended without a gRPC status")
        name, details = status
        if name == "OK":
            return
        if name == "DEADLINE_EXCEEDED":
            raise RequestTimeoutError(f"server at {self.url}: {name}: {details}. Raise the server's own time limit")
        # A server that is there may say so of one call; only one that is gone is lost.
        if name in ("UNAVAILABLE", "CANCELLED") and not await self._is_listening():
            raise NobodyAnswersError(self._went_away(details or name))
        self._raise_refused(name, details)

    def _raise_refused(self, status: str, details: str) -> NoReturn:
        """Raise what an error means: no such model, which no later request can change, or this request's own fault."""
        if status == "NOT_FOUND" or "unknown model" in details:
            raise ServerUnreachableError(self._no_model(details))
        raise RequestRefusedError(f"server at {self.url}: {status and f'{status}: '}{details}")


_parse_envelope = service_pb2.ModelStreamInferResponse.FromString


def interface_of(config: Any) -> ModelInterface:
    """The interface that a model's configuration (protobuf `ModelConfig`) declares."""
    return ModelInterface(
        model=config.name,
        inputs=tuple(
            TensorSpec(tensor.name, _datatype(tensor.data_type), tuple(tensor.dims), tensor.optional)
            for tensor in config.input
        ),
        outputs=tuple(
            TensorSpec(tensor.name, _datatype(tensor.data_type), tuple(tensor.dims)) for tensor in config.output
        ),
        has_batch=config.max_batch_size > 0,
        is_decoupled=config.model_transaction_policy.decoupled,
    )


def _datatype(number: int) -> str:
    """`TYPE_STRING` of a configuration is `BYTES` on the wire; the others only lose their prefix."""
    name = str(model_config_pb2.DataType.Name(number)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name
