"""The gRPC transport against servers that answer, refuse, break off and lie."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from helpers.mock_llm_server import MockBehaviour, MockFailure, MockLlmServer, TensorDeclaration
from helpers.scripted_server import Certificates, replying, scripted_server
from specdeploy.errors import ClientError, RequestError
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
from specdeploy_client.transports.endpoint import Tls, parse_endpoint
from specdeploy_client.transports.triton_grpc import GrpcTransport

REQUEST = GenerationRequest(prompt="Gr\u00fc\u00dfe", max_tokens=6, request_id="r1")


def _serve(behaviour: MockBehaviour, use: Callable[[MockLlmServer], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with MockLlmServer(behaviour) as server:
            await use(server)

    asyncio.run(run())


def _transport(url: str, *, timeout_s: float = 5.0, model: str = "llm", tls: Tls | None = None) -> GrpcTransport:
    return GrpcTransport(parse_endpoint(url, "triton-grpc", model=model, headers=("x-team: one",), tls=tls), timeout_s)


async def _collect(url: str, request: GenerationRequest = REQUEST, **options: Any) -> list[Message]:
    async with _transport(url, **options) as transport:
        return [message async for message in transport.stream(request)]


async def _broken(url: str, **options: Any) -> tuple[list[Message], ClientError]:
    """The messages before the error, and it."""
    messages = []
    async with _transport(url, **options) as transport:
        with pytest.raises(ClientError) as caught:  # noqa: PT012 - the messages before the error count
            async for message in transport.stream(REQUEST):
                messages.append(message)  # noqa: PERF401
    return messages, caught.value


def test_messages_arrive_one_by_one_and_the_last_has_the_counts() -> None:
    async def use(server: MockLlmServer) -> None:
        before = time.monotonic_ns()
        messages = await _collect(server.grpc_url)
        assert [len(message.output_ids or ()) for message in messages] == [3, 1, 2]
        assert messages[1].recv_ns - messages[0].recv_ns >= 8_000_000
        assert before < messages[0].recv_ns
        assert [message.completion is None for message in messages] == [True, True, False]
        completion = messages[-1].completion
        assert completion is not None
        assert (completion.output_token_count, completion.num_steps, completion.total_draft_tokens) == (6, 3, 12)
        assert completion.connect_ns
        assert "".join(message.text for message in messages).count(" w") == 6

    _serve(MockBehaviour(step_s=0.01), use)


def test_the_request_says_what_it_should_and_headers_go_along() -> None:
    async def use(server: MockLlmServer) -> None:
        await _collect(server.grpc_url, replace(REQUEST, num_draft_tokens=0, segment="chat", seed=0))
        (request,) = server.requests
        assert (request.prompt, request.max_tokens, request.num_draft_tokens) == ("Gr\u00fc\u00dfe", 6, 0)
        assert (request.segment, request.fields["seed"], request.fields["id"]) == ("chat", 0, "r1")
        assert request.headers["x-team"] == "one"

    _serve(MockBehaviour(), use)


def test_many_streams_share_a_connection_and_only_the_first_connects() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.grpc_url) as transport:

            async def one(number: int) -> list[Message]:
                request = replace(REQUEST, prompt=f"prompt {number}", max_tokens=40)
                return [message async for message in transport.stream(request)]

            answers = await asyncio.gather(*[one(number) for number in range(30)])
            again = await one(31)
        assert [sum(message.num_tokens or 0 for message in answer) for answer in answers] == [40] * 30
        assert len({answer[0].text for answer in answers}) == 30
        assert again[-1].completion is not None
        assert again[-1].completion.connect_ns == 0

    _serve(MockBehaviour(step_s=0.001), use)


def test_closing_early_cancels_the_request_on_the_server() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.grpc_url) as transport:
            async with aclosing(transport.stream(REQUEST)) as stream:
                async for _ in stream:
                    break
            await asyncio.wait_for(server.cancelled.wait(), 2.0)

    _serve(MockBehaviour(step_s=5.0), use)


def test_a_task_that_is_cancelled_cancels_the_request_on_the_server() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.grpc_url) as transport:

            async def consume() -> None:
                async with aclosing(transport.stream(REQUEST)) as stream:
                    async for _ in stream:
                        pass

            task = asyncio.create_task(consume())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.cancelled.wait(), 2.0)

    _serve(MockBehaviour(step_s=5.0), use)


def test_an_answer_that_ended_is_not_cancelled_and_the_server_sees_each_request_once() -> None:
    async def use(server: MockLlmServer) -> None:
        for _ in range(3):
            await _collect(server.grpc_url)
        assert (len(server.requests), server.num_cancelled) == (3, 0)

    _serve(MockBehaviour(), use)


@pytest.mark.parametrize(
    ("failure", "expected", "words", "num_messages"),
    [
        (MockFailure.REFUSE, RequestRefusedError, "the mock refuses this request", 0),
        (MockFailure.ERROR_MID_STREAM, RequestRefusedError, "the mock broke", 1),
        (MockFailure.CLOSE_EARLY, StreamClosedError, "the stream ended before its last message", 1),
        (MockFailure.GARBAGE, ProtocolError, "a message that is no answer", 1),
        (MockFailure.WRONG_DTYPE, ProtocolError, "output_ids is FP32, not whole numbers", 0),
        (MockFailure.DIE, NobodyAnswersError, "any more", 1),
        (MockFailure.STALL, RequestTimeoutError, r"within 0\.2 s\. Raise --timeout", 1),
    ],
)
def test_what_goes_wrong_has_its_error_and_keeps_what_arrived(
    failure: MockFailure, expected: type[ClientError], words: str, num_messages: int
) -> None:
    async def use(server: MockLlmServer) -> None:
        messages, error = await _broken(server.grpc_url, timeout_s=0.2)
        assert type(error) is expected, error
        assert words.replace("\\", "") in str(error)
        assert server.grpc_url in str(error) or failure is MockFailure.WRONG_DTYPE
        assert len(messages) == num_messages

    _serve(MockBehaviour(failure=failure), use)


def test_one_request_that_fails_leaves_the_others_alone() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.grpc_url) as transport:

            async def one() -> str:
                try:
                    return "".join([message.text async for message in transport.stream(REQUEST)])
                except RequestRefusedError:
                    return "refused"

            answers = await asyncio.gather(*[one() for _ in range(6)])
        assert answers.count("refused") == 2
        assert len(set(answers)) == 2

    _serve(MockBehaviour(failure=MockFailure.REFUSE, fail_numbers=frozenset({1, 4})), use)


def test_nobody_listening_names_the_address() -> None:
    with pytest.raises(NobodyAnswersError, match=r"no Triton server answers at 127\.0\.0\.1:1"):
        asyncio.run(_collect("127.0.0.1:1"))


def test_a_model_that_is_not_there_is_named() -> None:
    async def use(server: MockLlmServer) -> None:
        with pytest.raises(ServerUnreachableError, match="has no model `other`"):
            await _collect(server.grpc_url, model="other")

    _serve(MockBehaviour(), use)


def test_an_http_port_is_recognised() -> None:
    async def use(server: MockLlmServer) -> None:
        url = server.http_url.removeprefix("http://")
        with pytest.raises(ProtocolError, match="does not answer as triton-grpc"):
            await _collect(url)

    _serve(MockBehaviour(), use)


def test_an_http2_server_that_is_no_grpc_says_what_it_answered() -> None:
    page = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x8d"  # :status 404

    async def run() -> None:
        async with scripted_server(replying(page)) as url:
            with pytest.raises(ProtocolError, match="answers HTTP 404 without content type, not gRPC"):
                await _collect(url)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, RequestRefusedError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, RequestTimeoutError),
        (grpc.StatusCode.UNAVAILABLE, RequestRefusedError),  # by a server that is there: the next call may succeed
        (grpc.StatusCode.NOT_FOUND, ServerUnreachableError),
    ],
)
def test_a_status_of_grpc_has_its_error(code: Any, expected: type[ClientError]) -> None:
    class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
            await context.abort(code, "too many; say less: 50 %")
            yield service_pb2.ModelStreamInferResponse()

    async def run() -> None:
        server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            with pytest.raises(expected, match="too many; say less: 50 %"):
                await _collect(f"127.0.0.1:{port}")
        finally:
            await server.stop(None)

    asyncio.run(run())


def test_readiness() -> None:
    async def use(server: MockLlmServer) -> None:
        async with _transport(server.grpc_url) as transport:
            assert await transport.is_ready()
            server.behaviour = MockBehaviour(is_ready=False)
            assert not await transport.is_ready()

    async def nobody() -> None:
        async with _transport("127.0.0.1:1") as transport:
            await transport.is_ready()

    _serve(MockBehaviour(), use)
    with pytest.raises(ServerUnreachableError, match="no Triton server answers"):
        asyncio.run(nobody())


def test_the_models_own_declaration_is_read_and_used() -> None:
    declared = (
        TensorDeclaration("text_input", "BYTES"),
        TensorDeclaration("max_tokens", "UINT32"),
        TensorDeclaration("seed", "INT64", is_optional=True),
    )

    async def use(server: MockLlmServer) -> None:
        async with _transport(server.grpc_url) as transport:
            with pytest.raises(RequestRefusedError, match="unexpected"):
                assert [message async for message in transport.stream(REQUEST)]
            interface = await transport.read_interface()
            assert (interface.has_batch, interface.is_decoupled) == (False, True)
            messages = [message async for message in transport.stream(replace(REQUEST, seed=3))]
            assert messages[-1].completion is not None
            with pytest.raises(RequestError, match="num_draft_tokens"):
                await anext(transport.stream(replace(REQUEST, num_draft_tokens=0)))

    _serve(MockBehaviour(inputs=declared, max_batch_size=0), use)


def test_a_model_that_is_not_decoupled_answers_in_one_message() -> None:
    async def use(server: MockLlmServer) -> None:
        (message,) = await _collect(server.grpc_url)
        assert message.num_tokens == 6
        assert message.completion is not None

    _serve(MockBehaviour(is_decoupled=False), use)


def test_a_stock_model_with_text_alone_completes_with_its_last_message() -> None:
    text = (TensorDeclaration("text_output", "BYTES", (-1,)),)

    async def use(server: MockLlmServer) -> None:
        async with _transport(server.grpc_url) as transport:
            await transport.read_interface()
            transport.is_cumulative = True
            messages = [message async for message in transport.stream(REQUEST)]
        assert [message.num_tokens for message in messages] == [None] * 3
        assert [message.text.count(" w") for message in messages] == [3, 1, 2]
        assert [message.completion is None for message in messages] == [True, True, False]

    _serve(MockBehaviour(outputs=text, is_cumulative=True), use)


def test_tls(certificates: Certificates) -> None:
    async def run() -> None:
        async with MockLlmServer(MockBehaviour(), tls=certificates.server) as server:
            messages = await _collect(server.grpc_url, tls=Tls(ca_file=certificates.ca_file))
            assert messages[-1].completion is not None
            assert messages[-1].completion.connect_ns
            assert await _collect(server.grpc_url, tls=Tls(verify=False))
            with pytest.raises(ServerUnreachableError, match=r"no secure connection.*--tls-ca"):
                await _collect(server.grpc_url)
            with pytest.raises(ClientError):
                await _collect(server.grpc_url.removeprefix("grpcs://"))

    asyncio.run(run())


def test_a_model_that_is_unloaded_is_not_called_a_wrong_name() -> None:
    transport = GrpcTransport(parse_endpoint("h:1"), 1.0)
    with pytest.raises(ServerUnreachableError, match="has not loaded its model `llm`") as unloaded:
        transport._raise_refused("UNAVAILABLE", "Request for unknown model: 'llm' has no available versions")
    assert "another server" not in str(unloaded.value)
