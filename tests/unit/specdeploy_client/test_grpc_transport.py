"""Tensors on the wire, and the transport against a real gRPC server with made-up answers."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from specdeploy_client.grpc_transport import GrpcTransport
from specdeploy_client.tensors import decode_response, encode_request, is_final
from specdeploy_client.transport import (
    Completion,
    GenerationRequest,
    Message,
    RequestRefusedError,
    RequestTimeoutError,
    ServerUnreachableError,
)

REQUEST = GenerationRequest(prompt="Gr\u00fc\u00dfe", max_tokens=3)


def _response(final: bool = False, **tensors: tuple[str, bytes]) -> Any:
    response = service_pb2.ModelInferResponse(model_name="llm")
    for name, (datatype, raw) in tensors.items():
        response.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        response.raw_output_contents.append(raw)
    response.parameters["triton_final_response"].bool_param = final
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def _text(text: str) -> tuple[str, bytes]:
    return "BYTES", struct.pack("<I", len(text.encode())) + text.encode()


def _ints(*values: int) -> tuple[str, bytes]:
    return "INT32", struct.pack(f"<{len(values)}i", *values)


DELTA = _response(text_output=_text("ab"), output_ids=_ints(5, 6))
LAST = _response(
    text_output=_text("c"),
    output_ids=_ints(7),
    finish_reason=_text("stop"),
    output_token_count=_ints(3),
    num_steps=_ints(2),
)
EMPTY_FINAL = _response(final=True)


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers with `script`: responses, or seconds to wait."""

    def __init__(self, script: list[Any]) -> None:
        self.script = script
        self.requests: list[Any] = []
        self.cancelled = asyncio.Event()

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        return service_pb2.ModelReadyResponse(ready=request.name == "llm")

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for request in requests:
            self.requests.append(request)
            try:
                for step in self.script:
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                    else:
                        yield step
            except asyncio.CancelledError:
                self.cancelled.set()
                raise


def _serve(script: list[Any], use: Callable[[str, _Service], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        service, server = _Service(script), grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            await use(f"127.0.0.1:{port}", service)
        finally:
            await server.stop(None)

    asyncio.run(run())


async def _collect(url: str, request: GenerationRequest = REQUEST, timeout_s: float = 10.0) -> list[Message]:
    async with GrpcTransport(url, timeout_s) as transport:
        return [message async for message in transport.stream(request)]


def test_only_given_fields_are_sent_each_with_shape_one_by_n() -> None:
    request = GenerationRequest(
        "hi", 3, num_draft_tokens=0, segment="chat", seed=0, stop_words=("a", "\u00e4"), request_id="r1"
    )
    message = encode_request(request)
    sent = {
        tensor.name: (tensor.datatype, list(tensor.shape), raw)
        for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }
    assert set(sent) == {
        "text_input",
        "max_tokens",
        "stream",
        "num_draft_tokens",
        "segment",
        "seed",
        "stop_words",
        "return_perf_metrics",
    }
    assert sent["text_input"] == ("BYTES", [1, 1], b"\x02\0\0\0hi")
    assert sent["num_draft_tokens"] == ("INT32", [1, 1], b"\0\0\0\0")
    assert sent["seed"] == ("UINT64", [1, 1], bytes(8))
    assert sent["stream"] == ("BOOL", [1, 1], b"\x01")
    assert sent["stop_words"] == ("BYTES", [1, 2], b"\x01\0\0\0a\x02\0\0\0\xc3\xa4")
    assert (message.model_name, message.id) == ("llm", "r1")


def test_an_absent_count_stays_none() -> None:
    message = decode_response(LAST.infer_response, 1)
    assert message == Message(1, "c", (7,), Completion(finish_reason="stop", output_token_count=3, num_steps=2))
    assert decode_response(EMPTY_FINAL.infer_response, 1) is None
    assert (is_final(EMPTY_FINAL.infer_response), is_final(LAST.infer_response)) == (True, False)


def test_messages_arrive_one_by_one_and_the_empty_final_response_is_none_of_them() -> None:
    async def use(url: str, service: _Service) -> None:
        before = time.monotonic_ns()
        messages = await _collect(url)
        assert [message.text for message in messages] == ["ab", "c"]
        assert messages[1].recv_ns - messages[0].recv_ns >= 25_000_000
        assert before < messages[0].recv_ns
        assert messages[0].completion is None
        assert messages[1].completion is not None
        assert service.requests[0].parameters["triton_enable_empty_final_response"].bool_param

    _serve([DELTA, 0.03, LAST, EMPTY_FINAL], use)


def test_closing_early_cancels_the_request_on_the_server() -> None:
    async def use(url: str, service: _Service) -> None:
        async with GrpcTransport(url, 10.0) as transport:
            async with aclosing(transport.stream(REQUEST)) as stream:
                async for _ in stream:
                    break
            await asyncio.wait_for(service.cancelled.wait(), 2.0)

    _serve([DELTA, 30.0, LAST], use)


def test_a_refusal_is_the_servers_own_words() -> None:
    async def use(url: str, service: _Service) -> None:
        with pytest.raises(RequestRefusedError, match=r"max_tokens: must be at least 1"):
            await _collect(url)

    _serve([service_pb2.ModelStreamInferResponse(error_message="max_tokens: must be at least 1")], use)


def test_a_slow_answer_times_out_with_a_remedy() -> None:
    async def use(url: str, service: _Service) -> None:
        with pytest.raises(RequestTimeoutError, match=r"within 0\.2 s\. Raise --timeout"):
            await _collect(url, timeout_s=0.2)

    _serve([DELTA, 30.0], use)


def test_nobody_listening_names_address_and_remedy() -> None:
    with pytest.raises(ServerUnreachableError, match=r"127\.0\.0\.1:1 .*make serve"):
        asyncio.run(_collect("127.0.0.1:1"))


def test_readiness() -> None:
    async def use(url: str, service: _Service) -> None:
        async with GrpcTransport(url, 10.0) as transport:
            assert await transport.is_ready()

    _serve([], use)


async def _not_ready() -> None:
    async with GrpcTransport("127.0.0.1:1", 2.0) as transport:
        await transport.is_ready()


def test_readiness_of_nobody() -> None:
    with pytest.raises(ServerUnreachableError, match="no Triton server answers"):
        asyncio.run(_not_ready())
