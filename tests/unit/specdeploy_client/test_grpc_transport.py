"""The old place of the gRPC transport still gives it, by host:port."""

import asyncio

from helpers.mock_llm_server import MockBehaviour, MockLlmServer
from specdeploy_client.grpc_transport import GrpcTransport
from specdeploy_client.transport import GenerationRequest
from specdeploy_client.transports import triton_grpc


def test_it_is_the_transport_of_the_new_place() -> None:
    async def run() -> None:
        async with MockLlmServer(MockBehaviour()) as server, GrpcTransport(server.grpc_url, 5.0) as transport:
            assert isinstance(transport, triton_grpc.GrpcTransport)
            messages = [message async for message in transport.stream(GenerationRequest("hi", 6))]
            assert sum(message.num_tokens or 0 for message in messages) == 6

    asyncio.run(run())
