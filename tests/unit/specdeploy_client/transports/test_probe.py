"""What a probe finds out, sets up and says."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from helpers.mock_llm_answers import INPUTS, OUTPUTS
from helpers.mock_llm_server import MockBehaviour, MockFailure, MockLlmServer, TensorDeclaration
from specdeploy.errors import RequestError
from specdeploy_client.transport import GenerationRequest, Message, RequestRefusedError
from specdeploy_client.transports.endpoint import open_transport, parse_endpoint
from specdeploy_client.transports.openai import OpenAiTransport
from specdeploy_client.transports.probe import ProbeReport, probe_transport, repeats_whole_text

TEXT_ONLY = (TensorDeclaration("text_output", "BYTES", (-1,)),)
TRITON = pytest.mark.parametrize("kind", ["triton-grpc", "triton-http"])
OPENAI = pytest.mark.parametrize("kind", ["openai-chat", "openai-completions"])


def _probe(behaviour: MockBehaviour, kind: str) -> tuple[ProbeReport, Any, list[Message], MockLlmServer]:
    """The report, the transport as it was set up, an answer read with it, and the server."""

    async def run() -> tuple[ProbeReport, Any, list[Message], MockLlmServer]:
        async with MockLlmServer(behaviour) as server:
            url = server.grpc_url if kind == "triton-grpc" else server.http_url
            async with open_transport(parse_endpoint(url, kind, model="llm"), 5.0) as transport:
                report = await probe_transport(transport)
                messages = [message async for message in transport.stream(GenerationRequest("hi", 6))]
                return report, transport, messages, server

    return asyncio.run(run())


@TRITON
def test_a_model_that_tells_everything_needs_no_note(kind: str) -> None:
    report, _, messages, _ = _probe(MockBehaviour(), kind)
    assert report == ProbeReport("Triton model llm", True, False, True, True, ())
    assert sum(message.num_tokens or 0 for message in messages) == 6


@TRITON
def test_stock_models_are_measurable_as_far_as_they_allow(kind: str) -> None:
    stock = MockBehaviour(
        inputs=(
            TensorDeclaration("text_input", "BYTES", (-1,)),
            TensorDeclaration("streaming", "BOOL", is_optional=True),
            TensorDeclaration("sampling_param_max_tokens", "INT32", is_optional=True),
        ),
        outputs=TEXT_ONLY,
        max_batch_size=0,
        is_cumulative=True,
    )
    report, transport, messages, _ = _probe(stock, kind)
    assert (report.is_streaming, report.is_cumulative, report.counts_tokens, report.counts_drafts) == (
        True,
        True,
        False,
        False,
    )
    text = " ".join(report.notes)
    for words in (
        "messages repeat the whole text",
        "tokens a message carries",
        "nor how many an answer has",
        "drafted",
    ):
        assert words in text
    assert transport.is_cumulative
    whole = "".join(message.text for message in messages)
    assert whole.split() == list(dict.fromkeys(whole.split()))  # nothing twice
    assert messages[-1].completion is not None


def test_a_model_that_is_not_decoupled_is_said_to_give_one_message() -> None:
    report, _, messages, _ = _probe(MockBehaviour(is_decoupled=False), "triton-grpc")
    assert not report.is_streaming
    assert len(messages) == 1
    assert any("is not decoupled" in note and "TPOT is not measurable" in note for note in report.notes)


@TRITON
def test_a_required_input_that_is_missing_is_named(kind: str) -> None:
    behaviour = MockBehaviour(inputs=(*INPUTS, TensorDeclaration("end_id", "UINT32")))
    with pytest.raises(RequestError, match="end_id: the model llm requires"):
        _probe(behaviour, kind)


@TRITON
def test_a_model_without_text_is_named_with_what_it_gives(kind: str) -> None:
    with pytest.raises(RequestError, match="--model: the model llm gives output_ids, finish_reason"):
        _probe(MockBehaviour(outputs=OUTPUTS[1:3]), kind)


@pytest.mark.parametrize("datatype", ["INT32", "INT64", "UINT32"])
@pytest.mark.parametrize("max_batch_size", [0, 8])
def test_types_and_ranks_of_the_models_configuration(datatype: str, max_batch_size: int) -> None:
    inputs = tuple(replace(tensor, datatype=datatype) if tensor.name == "max_tokens" else tensor for tensor in INPUTS)
    outputs = tuple(replace(tensor, datatype=datatype) if tensor.name == "output_ids" else tensor for tensor in OUTPUTS)
    report, _, messages, _ = _probe(
        MockBehaviour(inputs=inputs, outputs=outputs, max_batch_size=max_batch_size), "triton-grpc"
    )
    assert report.notes == ()
    assert sum(message.num_tokens or 0 for message in messages) == 6


def test_a_server_that_refuses_the_probe_ends_it() -> None:
    with pytest.raises(RequestRefusedError, match="the mock refuses"):
        _probe(MockBehaviour(failure=MockFailure.REFUSE), "triton-grpc")


@OPENAI
@pytest.mark.parametrize("owner", ["vllm", "sglang", "a gateway"])
def test_token_ids_are_asked_for_where_they_are_known(kind: str, owner: str) -> None:
    report, transport, messages, server = _probe(MockBehaviour(openai_owner=owner), kind)
    assert (report.counts_tokens, transport.dialect.token_ids) == (True, True)
    assert messages[0].output_ids is not None
    assert len(server.requests) == 2
    assert report.notes == (
        "answers do not say what was drafted and accepted: that is known from the server's counters, if at all",
    )


@OPENAI
@pytest.mark.parametrize("owner", ["tensorrt_llm", "a gateway"])
def test_running_counts_are_asked_for_where_ids_are_refused(kind: str, owner: str) -> None:
    strict = MockBehaviour(openai_owner=owner, openai_extensions=frozenset({"continuous_usage_stats"}), is_strict=True)
    report, transport, messages, _ = _probe(strict, kind)
    assert (report.counts_tokens, transport.dialect.running_usage) == (True, True)
    assert [message.num_tokens for message in messages] == [3, 1, 2]


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_plain_server_is_measured_without_tokens(is_strict: bool) -> None:
    plain = MockBehaviour(openai_owner="", openai_extensions=frozenset(), is_strict=is_strict)
    report, transport, messages, server = _probe(plain, "openai-chat")
    assert not report.counts_tokens
    assert (transport.dialect.token_ids, transport.dialect.running_usage) == (False, False)
    assert any("tokens a message carries" in note for note in report.notes)
    assert server.requests[-1].fields.keys() == {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert messages[-1].completion is not None


def test_the_newer_name_of_the_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def answers(transport: OpenAiTransport, request: GenerationRequest) -> list[Message]:
        tried.append(transport.dialect.length_field)
        if transport.dialect.token_ids or transport.dialect.running_usage:
            raise RequestRefusedError("unknown field")
        if transport.dialect.length_field == "max_tokens":
            raise RequestRefusedError("use max_completion_tokens instead of max_tokens")
        return [Message(1, "one", None)]

    monkeypatch.setattr("specdeploy_client.transports.probe._messages", answers)

    async def run() -> OpenAiTransport:
        async with MockLlmServer(MockBehaviour(openai_owner="")) as server:
            transport = OpenAiTransport(parse_endpoint(server.http_url, "chat", model="llm"), 5.0)
            async with transport:
                await probe_transport(transport)
            return transport

    assert asyncio.run(run()).dialect.length_field == "max_completion_tokens"
    assert tried == ["max_tokens"] * 3 + ["max_completion_tokens"]


@pytest.mark.parametrize(
    ("texts", "is_cumulative"),
    [
        (["a", "ab", "abc"], True),
        (["a", "a", "a b"], True),
        (["a", "b", "c"], False),
        (["the", "the", "the"], False),
        (["a", "ab"], False),
        (["a", "ab", "b"], False),
        (["a", "", "ab", "abc"], True),
    ],
)
def test_cumulative_text_is_told_from_deltas(texts: list[str], is_cumulative: bool) -> None:
    assert repeats_whole_text([Message(1, text, None) for text in texts]) is is_cumulative
