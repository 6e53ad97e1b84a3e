"""The public model `llm` on a real Triton server: stock clients, losslessness, counters, bad input, clients that go."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tokenizers import Tokenizer

from integration.conftest import Deployed, death_of, deploy
from specdeploy.serving.server import stop_server
from specdeploy_client.cli import main as client_main
from specdeploy_client.transport import (
    Completion,
    GenerationRequest,
    Message,
    RequestRefusedError,
    ServerUnreachableError,
)
from specdeploy_client.transports.endpoint import EndpointKind, parse_endpoint
from specdeploy_client.transports.triton_grpc import GrpcTransport

pytestmark = pytest.mark.integration

PROMPTS = [
    "item one then item one then item one",
    "a",
    "The river rose in the night and the bridge was closed. The river rose in the night",
    "東京 👩‍👩‍👧 e\u0301 東京 👩‍👩‍👧",
    "def total(items):\n    return sum(item.price for item in items)\ndef total(",
    "1 2 3 1 2 3 1 2",
    "x" * 150,
    "short answers",
]


def request(prompt: str = PROMPTS[0], max_tokens: int = 24, **fields: Any) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, max_tokens=max_tokens, ignore_eos=True, **fields)


def run(deployed: Deployed, work: Callable[[GrpcTransport], Coroutine[Any, Any, Any]], timeout_s: float = 60.0) -> Any:
    async def session() -> Any:
        async with GrpcTransport(parse_endpoint(deployed.grpc_url, EndpointKind.TRITON_GRPC), timeout_s) as transport:
            return await work(transport)

    return asyncio.run(session())


async def collect(transport: GrpcTransport, item: GenerationRequest) -> list[Message]:
    return [message async for message in transport.stream(item)]


def answer(deployed: Deployed, item: GenerationRequest) -> list[Message]:
    messages: list[Message] = run(deployed, lambda transport: collect(transport, item))
    return messages


def answer_all(deployed: Deployed, items: list[GenerationRequest]) -> list[list[Message]]:
    """All at once."""

    async def gather(transport: GrpcTransport) -> list[list[Message]]:
        return await asyncio.gather(*(collect(transport, item) for item in items))

    answers: list[list[Message]] = run(deployed, gather)
    return answers


def ids(messages: list[Message]) -> tuple[int, ...]:
    return tuple(token for message in messages for token in message.output_ids or ())


def text(messages: list[Message]) -> str:
    return "".join(message.text for message in messages)


def completion(messages: list[Message]) -> Completion:
    last = messages[-1].completion
    assert last is not None
    return last


def assert_idle(deployed: Deployed) -> None:
    """Nothing leaks: requests and key/value rows return to zero."""
    deadline = time.monotonic() + 10
    names = ("specdeploy_requests_in_flight", "specdeploy_kv_rows_in_use")
    while any(deployed.gauge(name) for name in names):
        assert time.monotonic() < deadline, [f"{name} {deployed.gauge(name)}" for name in names]
        time.sleep(0.1)


def test_outputs_on_equal_off_alone_and_in_any_company(deployed: Deployed) -> None:
    alone = [ids(answer(deployed, request(prompt, num_draft_tokens=0))) for prompt in PROMPTS]
    for draft_lens in ((4,), (0, 1, 4), (3, 0)):
        items = [request(p, num_draft_tokens=draft_lens[i % len(draft_lens)]) for i, p in enumerate(PROMPTS)]
        assert [ids(messages) for messages in answer_all(deployed, items)] == alone
    assert_idle(deployed)


def test_streamed_text_is_the_decode_of_the_ids(deployed: Deployed) -> None:
    build = json.loads((deployed.root / "engines" / "tiny.json").read_text())
    tokenizer = Tokenizer.from_file(str(deployed.root / "engines" / build["target_folder"] / "tokenizer.json"))
    for prompt in PROMPTS:
        messages = answer(deployed, request(prompt, max_tokens=60))
        assert text(messages) == tokenizer.decode(list(ids(messages)))
        assert completion(messages).output_token_count == len(ids(messages)) == 60
        assert len(messages) == completion(messages).num_steps


def test_a_seed_gives_the_same_text_with_and_without_drafts_and_neighbours(deployed: Deployed) -> None:
    items = [request(p, temperature=1.2, seed=i, num_draft_tokens=0) for i, p in enumerate(PROMPTS)]
    alone = [ids(answer(deployed, item)) for item in items]
    drafted = [request(p, temperature=1.2, seed=i, num_draft_tokens=4) for i, p in enumerate(PROMPTS)]
    assert [ids(messages) for messages in answer_all(deployed, drafted)] == alone
    unseeded = {ids(answer(deployed, request(temperature=1.5))) for _ in range(4)}
    assert len(unseeded) > 1


def test_counters_on_the_metrics_port_equal_the_clients_sums(deployed: Deployed) -> None:
    before = deployed.facts.counters
    told = {"chat": [0, 0], "edit": [0, 0]}
    items = [request(p, segment=("chat", "edit")[i % 2], num_draft_tokens=4) for i, p in enumerate(PROMPTS * 2)]
    for item, messages in zip(items, answer_all(deployed, items), strict=True):
        last = completion(messages)
        assert last.total_draft_tokens is not None
        assert last.total_accepted_draft_tokens is not None
        assert item.segment is not None
        told[item.segment][0] += last.total_draft_tokens
        told[item.segment][1] += last.total_accepted_draft_tokens
    after = deployed.facts.counters
    for segment, (drafted, accepted) in told.items():
        assert drafted > 0
        increase = after[segment].since(before[segment])
        assert (increase.num_draft_tokens, increase.num_accepted_tokens) == (drafted, accepted)
        per_position = list(increase.accepted_per_pos)
        assert sum(per_position) == accepted
        assert per_position == sorted(per_position, reverse=True)


def test_the_plan_speaks_when_the_request_does_not(deployed: Deployed) -> None:
    assert completion(answer(deployed, request(segment="edit"))).speculation == "on"
    quiet = completion(answer(deployed, request(segment="quiet")))
    assert (quiet.speculation, quiet.total_draft_tokens) == ("off:measured slower", 0)
    assert completion(answer(deployed, request(num_draft_tokens=0))).speculation == "off:requested"


def test_a_stock_grpc_client_works_unchanged(deployed: Deployed) -> None:
    """The tensors that TensorRT-LLM's end-to-end gRPC client sends, by its names, types and shapes [1, n]."""
    values: dict[str, tuple[str, Any]] = {
        "text_input": ("BYTES", [[b"item one then item"]]),
        "max_tokens": ("INT32", [[10]]),
        "bad_words": ("BYTES", [[b""]]),
        "stop_words": ("BYTES", [[b""]]),
        "stream": ("BOOL", [[True]]),
        "beam_width": ("INT32", [[1]]),
        "top_k": ("INT32", [[1]]),
        "top_p": ("FP32", [[0.0]]),
        "temperature": ("FP32", [[1.0]]),
        "length_penalty": ("FP32", [[1.0]]),
        "repetition_penalty": ("FP32", [[1.0]]),
        "seed": ("UINT64", [[0]]),
        "end_id": ("INT32", [[-1]]),
        "pad_id": ("INT32", [[0]]),
        "return_log_probs": ("BOOL", [[True]]),
        "return_context_logits": ("BOOL", [[False]]),
        "return_generation_logits": ("BOOL", [[False]]),
        "return_perf_metrics": ("BOOL", [[True]]),
    }
    numpy_types = {"BYTES": object, "INT32": np.int32, "BOOL": np.bool_, "FP32": np.float32, "UINT64": np.uint64}
    inputs = []
    for name, (triton_type, value) in values.items():
        array = np.array(value, dtype=numpy_types[triton_type])
        inputs.append(triton_grpc.InferInput(name, list(array.shape), triton_type))
        inputs[-1].set_data_from_numpy(array)
    results: list[Any] = []
    with triton_grpc.InferenceServerClient(deployed.grpc_url) as client:
        assert client.get_model_config("llm", as_json=True)["config"]["model_transaction_policy"]["decoupled"]
        client.start_stream(callback=lambda result, error: results.append(error or result))
        client.async_stream_infer("llm", inputs, request_id="1", enable_empty_final_response=True)
        deadline = time.monotonic() + 30
        while not (results and _is_final(results[-1])):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.stop_stream()
    log_probs = np.concatenate([r.as_numpy("output_log_probs").ravel() for r in results])
    assert sum(r.as_numpy("output_ids").size for r in results) == log_probs.size == 10
    last = results[-1]
    assert last.as_numpy("cum_log_probs").ravel()[0] == pytest.approx(log_probs.sum(), rel=1e-4)
    assert last.as_numpy("first_token_time_ns").ravel()[0] < last.as_numpy("last_token_time_ns").ravel()[0]
    assert last.as_numpy("text_output").shape == (1, 1)


def _is_final(result: Any) -> bool:
    assert not isinstance(result, Exception), result
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def post(deployed: Deployed, endpoint: str, **fields: Any) -> httpx.Response:
    body = {"text_input": PROMPTS[0], "max_tokens": 12, "ignore_eos": True, **fields}
    return httpx.post(f"{deployed.http_url}/{endpoint}", json=body, trust_env=False, timeout=60)


def test_the_generate_endpoints_answer(deployed: Deployed) -> None:
    whole = post(deployed, "generate").json()
    streamed = post(deployed, "generate_stream", stream=True).text
    events = [json.loads(line.removeprefix("data:")) for line in streamed.splitlines() if line.startswith("data:")]
    assert "".join(event["text_output"] for event in events) == whole["text_output"]
    assert whole["output_token_count"] == 12
    assert whole["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text_input": ""}, "text_input: is empty"),
        ({"max_tokens": 0}, "max_tokens: 0 is below 1"),
        ({"temperature": -0.5}, "temperature: -0.5 is below 0"),
        ({"text_input": "word " * 400}, "text_input: "),
        ({"text_input": "y" * 10_000_000}, "text_input: 10000000 bytes are at least"),
        ({"guided_decoding_guide_type": "yaml", "guided_decoding_guide": "x"}, "unknown type 'yaml'"),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": ""}, "guided_decoding_guide: is missing"),
        ({"beam_width": 4}, "beam_width: 4 - beam search is not supported"),
        ({"lora_task_id": 1}, "lora_task_id: LoRA adapters are not supported"),
        ({"num_draft_tokens": -1}, "num_draft_tokens: -1 is below 0"),
    ],
)
def test_bad_input_is_refused_by_name_and_the_server_lives_on(
    deployed: Deployed, fields: dict[str, Any], message: str
) -> None:
    response = post(deployed, "generate", **fields)
    assert response.status_code >= 400
    assert message in response.json()["error"]
    assert post(deployed, "generate").json()["output_token_count"] == 12
    assert_idle(deployed)


def test_text_that_is_not_utf8_is_refused_by_name(deployed: Deployed) -> None:
    inputs = [
        triton_grpc.InferInput("text_input", [1, 1], "BYTES"),
        triton_grpc.InferInput("max_tokens", [1, 1], "INT32"),
    ]
    inputs[0].set_data_from_numpy(np.array([[b"ab\xff\xfe"]], dtype=object))
    inputs[1].set_data_from_numpy(np.array([[4]], dtype=np.int32))
    errors: list[Any] = []
    with triton_grpc.InferenceServerClient(deployed.grpc_url) as client:
        client.start_stream(callback=lambda result, error: errors.append(error))
        client.async_stream_infer("llm", inputs)
        client.stop_stream()
    assert "text_input: not valid UTF-8 at byte 2" in str(errors[0])


def test_more_requests_than_rows_and_queue_are_refused_not_lost(deployed: Deployed) -> None:
    async def flood(transport: GrpcTransport) -> list[Any]:
        items = [request(max_tokens=100) for _ in range(60)]
        return await asyncio.gather(*(collect(transport, item) for item in items), return_exceptions=True)

    outcomes = run(deployed, flood)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(outcomes) == 60
    assert len(refused) < 20
    assert all(isinstance(error, RequestRefusedError) and "requests wait already" in str(error) for error in refused)
    answered = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    assert len({ids(messages) for messages in answered}) == 1
    assert_idle(deployed)


@pytest.mark.parametrize("num_messages", [0, 1, 5])
def test_a_client_that_goes_frees_its_row(deployed: Deployed, num_messages: int) -> None:
    async def leave(transport: GrpcTransport) -> None:
        stream = transport.stream(request("x " * 60, max_tokens=120, num_draft_tokens=0))
        if num_messages == 0:
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.01)
            task.cancel()
            return
        for _ in range(num_messages):
            await anext(stream)
        await stream.aclose()

    run(deployed, leave)
    assert_idle(deployed)
    assert completion(answer(deployed, request())).output_token_count == 24


def test_waiting_clients_that_go_leave_the_queue(deployed: Deployed) -> None:
    async def crowd(transport: GrpcTransport) -> list[Any]:
        staying = [asyncio.ensure_future(collect(transport, request(max_tokens=120))) for _ in range(4)]
        await asyncio.sleep(0.05)
        leaving = [asyncio.ensure_future(collect(transport, request(max_tokens=120))) for _ in range(30)]
        await asyncio.sleep(0.2)
        for task in leaving:
            task.cancel()
        last = await collect(transport, request(max_tokens=3))
        return [*await asyncio.gather(*staying), last]

    *stayed, last = run(deployed, crowd)
    assert {len(ids(messages)) for messages in stayed} == {120}
    assert len(ids(last)) == 3
    assert_idle(deployed)


def test_smoke_measures_judges_and_reports(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    arguments = [
        "smoke", "--deployment", str(deployed.loaded.path), "--engines-root", str(deployed.root / "engines"),
        "--artifact-dir", str(tmp_path), "--concurrency", "1,2", "--request-count", "20", "--segments", "chat",
    ]  # fmt: skip
    code = client_main(arguments)
    shown = capsys.readouterr().out
    assert code in (0, 1, 2), shown
    summary = json.loads((tmp_path / "run_summary.json").read_text())
    integrity = json.loads((tmp_path / "integrity.json").read_text())
    assert integrity["status"] == "pass", integrity
    assert summary["dtype"] == "float32"
    assert summary["server_threads"] == 1
    assert {(cell["concurrency"], cell["arm"]) for cell in summary["cells"]} == {
        (c, a) for c in (1, 2) for a in ("on", "off")
    }
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_a_draft_model_changes_the_steps_alone_and_its_server_stops_gracefully(
    deployed: Deployed, tmp_path: Path
) -> None:
    """The target as its own draft is accepted always. Triton waits for a model's last request to be released: one that
    is kept alive costs its exit timeout. The refused request comes first: a refusal is answered inside `execute`, and
    Triton itself loses a model that is unloaded between such an answer and the end of its `execute`. Requests go over
    HTTP: Triton's gRPC endpoint holds on to some that are over, whatever the model does (about every second of these
    servers then took the exit timeout; none of twelve over HTTP)."""
    expected = [ids(answer(deployed, request(prompt, num_draft_tokens=0))) for prompt in PROMPTS]
    speculation = {
        "method": "draft_model",
        "max_draft_len": 3,
        "dynamic_draft_len": False,  # so that steps can be counted
        "draft": {"checkpoint": "checkpoint"},
    }
    served = deploy(tmp_path, "drafted", {"speculation": speculation})
    try:
        assert post(served, "generate", temperature=-1).status_code >= 400
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            posts = [pool.submit(post, served, "generate", text_input=prompt, max_tokens=24) for prompt in PROMPTS]
        answers = [one.result().json() for one in posts]
        assert [tuple(body["output_ids"]) for body in answers] == expected
        for body in answers:
            assert body["total_draft_tokens"]
            assert body["total_accepted_draft_tokens"] == body["total_draft_tokens"]
            assert body["num_steps"] == 7  # one for the prompt, then 4 tokens a step
    finally:
        stop_server(tmp_path / "state", "drafted")
    log = Path(served.state.log_path).read_text()
    assert "Exit timeout expired" not in log
    assert "Non-graceful termination" not in log


def test_a_server_killed_mid_request_is_one_clear_error(tmp_path: Path) -> None:
    import os
    import signal

    victim = deploy(tmp_path, "victim")
    try:

        async def kill(transport: GrpcTransport) -> None:
            stream = transport.stream(request(max_tokens=200, num_draft_tokens=0))
            await anext(stream)
            os.kill(victim.state.pid, signal.SIGKILL)
            async for _ in stream:
                pass

        assert death_of(victim.state) is None
        with pytest.raises(ServerUnreachableError, match=victim.grpc_url):
            run(victim, kill)
        told = f"the Triton server of 'victim' died (signal 9). The end of {victim.state.log_path}:\n"
        assert str(death_of(victim.state)).startswith(told)
    finally:
        stop_server(tmp_path / "state", "victim")
