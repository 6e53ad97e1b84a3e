"""The transports against a real Triton server: the same answer over both, refusals in its own words, cancellation."""

import asyncio
import time
from contextlib import aclosing

import pytest

from integration.conftest import Deployed
from specdeploy.errors import ClientError
from specdeploy_client.transport import (
    GenerationRequest,
    ProtocolError,
    RequestRefusedError,
    ServerUnreachableError,
)
from specdeploy_client.transports.base import OpenedTransport
from specdeploy_client.transports.endpoint import open_transport, parse_endpoint
from specdeploy_client.transports.probe import ProbeReport, probe_transport

pytestmark = pytest.mark.integration
REQUEST = GenerationRequest(
    "item 1 then item 1 then item 1", 12, segment="chat", ignore_eos=True, seed=3, stop_words=("zzz", "yyy")
)
KINDS = pytest.mark.parametrize("kind", ["triton-grpc", "triton-http"])


def _open(deployed: Deployed, kind: str, model: str = "llm") -> OpenedTransport:
    state = deployed.state
    url = deployed.grpc_url if kind == "triton-grpc" else f"http://{state.host}:{state.http_port}"
    return open_transport(parse_endpoint(url, kind, model=model), 30.0)


async def _answer(deployed: Deployed, kind: str, request: GenerationRequest = REQUEST, model: str = "llm") -> str:
    async with _open(deployed, kind, model) as transport:
        messages = [message async for message in transport.stream(request)]
    completion = messages[-1].completion
    assert completion is not None
    assert completion.output_token_count == sum(message.num_tokens or 0 for message in messages)
    assert all(message.completion is None for message in messages[:-1])
    return "".join(message.text for message in messages)


def test_both_protocols_give_the_same_answer(deployed: Deployed) -> None:
    answers = [asyncio.run(_answer(deployed, kind)) for kind in ("triton-grpc", "triton-http")]
    assert answers[0] == answers[1] != ""


@KINDS
def test_the_probe_finds_nothing_missing(deployed: Deployed, kind: str) -> None:
    async def probe() -> ProbeReport:
        async with _open(deployed, kind) as transport:
            return await probe_transport(transport)

    assert asyncio.run(probe()) == ProbeReport("Triton model llm", True, False, True, True, ())


@KINDS
@pytest.mark.parametrize(
    ("request_", "model", "expected", "words"),
    [
        (GenerationRequest("a", 0), "llm", RequestRefusedError, "max_tokens: 0 is below 1"),
        (GenerationRequest("a", 4, top_p=7.0), "llm", RequestRefusedError, "top_p: 7 is above 1"),
        (GenerationRequest("a", 4), "other", ServerUnreachableError, "has no model `other`"),
    ],
)
def test_refusals_are_the_servers_own_words(
    deployed: Deployed, kind: str, request_: GenerationRequest, model: str, expected: type[ClientError], words: str
) -> None:
    with pytest.raises(expected, match=words):
        asyncio.run(_answer(deployed, kind, request_, model))


@KINDS
def test_a_cancelled_request_leaves_the_engine(deployed: Deployed, kind: str) -> None:
    async def begin_and_leave() -> None:
        async with (
            _open(deployed, kind) as transport,
            aclosing(transport.stream(GenerationRequest("item 1", 200, ignore_eos=True))) as stream,
        ):
            async for _ in stream:
                return

    asyncio.run(begin_and_leave())
    deadline = time.monotonic() + 5.0
    while deployed.gauge("specdeploy_requests_in_flight") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert deployed.gauge("specdeploy_requests_in_flight") == 0


def test_the_wrong_port_is_recognised(deployed: Deployed) -> None:
    async def ask(url: str, kind: str) -> None:
        async with open_transport(parse_endpoint(url, kind), 5.0) as transport:
            await transport.is_ready()

    state = deployed.state
    for url, kind in (
        (f"{state.host}:{state.http_port}", "triton-grpc"),
        (f"http://{deployed.grpc_url}", "triton-http"),
    ):
        with pytest.raises(ProtocolError, match=f"does not answer as {kind}"):
            asyncio.run(ask(url, kind))
