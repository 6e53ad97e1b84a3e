"""The gRPC side of the mock server: KServe v2 with Triton's streaming call."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]  # no published type information
from tritonclient.grpc import model_config_pb2, service_pb2

from helpers.mock_llm_answers import MockBehaviour, MockFailure, MockMessage, MockRequest, TensorDeclaration

if TYPE_CHECKING:
    from helpers.mock_llm_server import Answer, MockLlmServer

NUMBER_FORMATS = {"INT32": "i", "INT64": "q", "UINT32": "I", "UINT64": "Q", "FP32": "f", "BOOL": "?"}
GARBAGE = b"\x0a\xff\xff\xff"  # a field whose length is longer than the message


class GrpcFront:
    """Serves the mock's answers over gRPC."""

    def __init__(self, mock: "MockLlmServer") -> None:
        self._mock = mock
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handlers(self),))

    async def start(self, port: int) -> int:
        """Listen; returns the port."""
        address, tls = f"127.0.0.1:{port}", self._mock.tls
        if tls is None:
            bound = self._server.add_insecure_port(address)
        else:
            client_ca = tls.client_ca_file.read_bytes() if tls.client_ca_file else None
            pair = (tls.key_file.read_bytes(), tls.cert_file.read_bytes())
            credentials = grpc.ssl_server_credentials([pair], client_ca, client_ca is not None)
            bound = self._server.add_secure_port(address, credentials)
        await self._server.start()
        return int(bound)

    async def stop(self) -> None:
        """Drop every call and stop listening."""
        await self._server.stop(None)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        return service_pb2.ModelReadyResponse(
            ready=self._mock.behaviour.is_ready and self._mock.loaded.get(request.name, False)
        )

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        behaviour = await self._require_model(request.name, context)
        response = service_pb2.ModelMetadataResponse(name=request.name, versions=["1"], platform="python")
        batch = [-1] if behaviour.max_batch_size else []
        for tensor in behaviour.inputs:
            response.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=[*batch, *tensor.dims])
        for tensor in behaviour.outputs:
            response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=[*batch, *tensor.dims])
        return response

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        behaviour = await self._require_model(request.name, context)
        config = model_config_pb2.ModelConfig(name=request.name, max_batch_size=behaviour.max_batch_size)
        config.model_transaction_policy.decoupled = behaviour.is_decoupled
        for tensor in behaviour.inputs:
            config.input.add(
                name=tensor.name, data_type=_config_type(tensor), dims=tensor.dims, optional=tensor.is_optional
            )
        for tensor in behaviour.outputs:
            config.output.add(name=tensor.name, data_type=_config_type(tensor), dims=tensor.dims)
        return service_pb2.ModelConfigResponse(config=config)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        behaviour = await self._require_model(request.model_name, context)
        if behaviour.is_decoupled:
            await context.abort(
                grpc.StatusCode.UNIMPLEMENTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        answer = await self._mock.answer(read_request(self._mock, "ModelInfer", request, context))
        if answer.failure is MockFailure.REFUSE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the mock refuses this request")
        await answer.wait_until(answer.whole.due_s)
        return response_of(behaviour, request.id, answer.whole, answer.failure)

    async def stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[bytes]:
        """`ModelStreamInfer`, in serialised messages so that broken ones can be sent too."""
        async for request in requests:
            if not self._mock.loaded.get(request.model_name, False):
                problem = f"Request for unknown model: '{request.model_name}' is not found"
                yield service_pb2.ModelStreamInferResponse(error_message=problem).SerializeToString()
                continue
            answer = await self._mock.answer(read_request(self._mock, "ModelStreamInfer", request, context))
            try:
                async for message in self._responses(request, answer, context):
                    yield message
            except asyncio.CancelledError:
                if not self._mock.is_dead:
                    self._mock.note_cancelled()
                raise

    async def _responses(self, request: Any, answer: "Answer", context: Any) -> AsyncIterator[bytes]:
        behaviour, failure = answer.behaviour, answer.failure
        problem = self._refusal(request, behaviour, failure)
        if problem is not None:
            yield service_pb2.ModelStreamInferResponse(error_message=problem).SerializeToString()
            return
        if not behaviour.is_decoupled:
            await answer.wait_until(answer.whole.due_s)
            only = response_of(behaviour, request.id, answer.whole, failure)
            only.parameters["triton_final_response"].bool_param = True
            yield _envelope(only)
            return
        async for message in answer:
            yield _envelope(response_of(behaviour, request.id, message, failure))
        if failure is MockFailure.GARBAGE:
            yield GARBAGE
        elif failure is MockFailure.ERROR_MID_STREAM:
            yield service_pb2.ModelStreamInferResponse(error_message="the mock broke").SerializeToString()
        elif failure is not MockFailure.CLOSE_EARLY:
            final = service_pb2.ModelInferResponse(model_name=behaviour.model, id=request.id)
            final.parameters["triton_final_response"].bool_param = True
            yield _envelope(final)

    def _refusal(self, request: Any, behaviour: MockBehaviour, failure: MockFailure | None) -> str | None:
        """Triton's own words for a tensor of another type or shape, or for one that is missing."""
        if failure is MockFailure.REFUSE:
            return "the mock refuses this request"
        declared = {tensor.name: tensor for tensor in behaviour.inputs}
        batch = 1 if behaviour.max_batch_size else 0
        for tensor in request.inputs:
            if tensor.name not in declared:
                return f"unexpected inference input '{tensor.name}' for model '{behaviour.model}'"
            if tensor.datatype != declared[tensor.name].datatype:
                return (
                    f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but model '{behaviour.model}' "
                    f"expects '{declared[tensor.name].datatype}'"
                )
            if len(tensor.shape) != len(declared[tensor.name].dims) + batch:
                return f"unexpected shape for input '{tensor.name}' for model '{behaviour.model}'"
        sent = {tensor.name for tensor in request.inputs}
        missing = [tensor.name for tensor in behaviour.inputs if not tensor.is_optional and tensor.name not in sent]
        return f"expected inputs {missing} for model '{behaviour.model}'" if missing else None

    async def _require_model(self, name: str, context: Any) -> MockBehaviour:
        if not self._mock.loaded.get(name, False):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        return self._mock.behaviour


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The service without the generated serialiser of the streaming call, so that its answers stay bytes."""

    def __init__(self, front: GrpcFront) -> None:
        self._front = front

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        if name == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(
                self._front.stream, request_deserializer=service_pb2.ModelInferRequest.FromString
            )
        if not hasattr(self._front, name):
            return None
        request_type = service_pb2.ModelInferRequest if name == "ModelInfer" else getattr(service_pb2, f"{name}Request")
        return grpc.unary_unary_rpc_method_handler(
            getattr(self._front, name),
            request_deserializer=request_type.FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )


def read_request(mock: "MockLlmServer", endpoint: str, request: Any, context: Any) -> MockRequest:
    """The request's tensors by name; a tensor of one value is that value."""
    fields: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        values = _decode(tensor.datatype, raw)
        fields[tensor.name] = values[0] if len(values) == 1 else values
    return MockRequest(
        number=len(mock.requests),
        endpoint=endpoint,
        model=request.model_name,
        prompt=str(fields.get("text_input", "")),
        max_tokens=int(fields.get("max_tokens", 16)),
        num_draft_tokens=fields.get("num_draft_tokens"),
        segment=str(fields.get("segment", "")),
        fields=fields | {"id": request.id},
        headers={str(key): str(value) for key, value in context.invocation_metadata() or ()},
    )


def response_of(behaviour: MockBehaviour, request_id: str, message: MockMessage, failure: MockFailure | None) -> Any:
    """One `ModelInferResponse`."""
    response = service_pb2.ModelInferResponse(model_name=behaviour.model, id=request_id)
    declared = {tensor.name: tensor.datatype for tensor in behaviour.outputs}

    def add(name: str, *values: Any) -> None:
        if name not in declared:
            return
        datatype = "FP32" if name == "output_ids" and failure is MockFailure.WRONG_DTYPE else declared[name]
        response.outputs.add(name=name, datatype=datatype, shape=[1, len(values)])
        response.raw_output_contents.append(_encode(datatype, values))

    add("text_output", message.text)
    if behaviour.sends_ids:
        add("output_ids", *message.ids)
    counts = message.counts
    if counts is not None and behaviour.sends_finish:
        add("finish_reason", "length")
        add("speculation", "on" if counts.is_drafting else "off:request")
    if counts is not None and behaviour.sends_counts:
        add("input_token_count", counts.input_token_count)
        add("output_token_count", counts.output_token_count)
        add("num_steps", counts.num_steps)
        add("total_draft_tokens", counts.num_draft_tokens)
        add("total_accepted_draft_tokens", counts.num_accepted_tokens)
        add("speculation_stats", "measured")
    return response


def _envelope(response: Any) -> bytes:
    return bytes(service_pb2.ModelStreamInferResponse(infer_response=response).SerializeToString())


def _config_type(tensor: TensorDeclaration) -> int:
    name = "TYPE_STRING" if tensor.datatype == "BYTES" else f"TYPE_{tensor.datatype}"
    return int(model_config_pb2.DataType.Value(name))


def _encode(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value.encode())) + value.encode() for value in values)
    return struct.pack(f"<{len(values)}{NUMBER_FORMATS[datatype]}", *values)


def _decode(datatype: str, raw: bytes) -> list[Any]:
    if datatype != "BYTES":
        size = struct.calcsize("<" + NUMBER_FORMATS[datatype])
        return list(struct.unpack(f"<{len(raw) // size}{NUMBER_FORMATS[datatype]}", raw))
    values, offset = [], 0
    while offset < len(raw):
        (length,) = struct.unpack_from("<I", raw, offset)
        values.append(raw[offset + 4 : offset + 4 + length].decode())
        offset += 4 + length
    return values
