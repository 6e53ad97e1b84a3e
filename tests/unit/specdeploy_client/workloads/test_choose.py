"""The right workload for what a command says, and one clear refusal of everything that contradicts itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.trained_tokenizers import rendering_of
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.errors import ConfigError, RequestError, SpecDeployError
from specdeploy_client.workloads.base import Workload, WorkRequest
from specdeploy_client.workloads.choose import FileFormat, WorkloadChoice, detect_format, open_workload
from specdeploy_client.workloads.recorded import TraceWindow, UnfitPolicy

CONFIGS = Path(__file__).parents[4] / "configs"
SAMPLE = CONFIGS / "traffic" / "azure_2023_conv_sample.csv"
RENDERING = rendering_of("gpt2")
SEGMENTS = ("code_edit", "chat", "summarisation")


def _demo() -> LoadedDeployment:
    return load_deployment("demo", CONFIGS)


def _write(folder: Path, text: str, name: str = "work.jsonl") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def _open(choice: WorkloadChoice, deployment: LoadedDeployment | None = None) -> Workload:
    return open_workload(choice, RENDERING, deployment)


def _problems(choice: WorkloadChoice, deployment: LoadedDeployment | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        _open(choice, deployment)
    return [violation.file for violation in caught.value.violations]


def test_by_itself_a_deployment_brings_its_prompt_files() -> None:
    workload = _open(WorkloadChoice(), _demo())
    assert workload.segments == SEGMENTS
    assert [workload.num_distinct(segment) for segment in SEGMENTS] == [24, 24, 24]
    assert "chat: chat.jsonl (sha256 " in workload.description
    assert {request.segment for request in workload.requests("chat", 0, 3)} == {"chat"}
    assert _open(WorkloadChoice(segments=("chat",)), _demo()).segments == ("chat",)


def test_a_prompt_file_of_the_users(tmp_path: Path) -> None:
    plain = _write(tmp_path, '{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "y"}')
    assert _open(WorkloadChoice(input_file=plain)).segments == ("default",)
    assert _open(WorkloadChoice(input_file=plain, segments=("chat",)), _demo()).segments == ("chat",)
    assert _open(WorkloadChoice(input_file=plain, segments=("mine",))).segments == ("mine",)
    with pytest.raises(ConfigError, match="no prompt names one"):
        _open(WorkloadChoice(input_file=plain), _demo())
    lines = [{"id": f"{n}", "prompt": "x", "segment": name} for n, name in enumerate(("chat", "code_edit", "chat"))]
    named = _write(tmp_path, "\n".join(map(json.dumps, lines)))
    workload = _open(WorkloadChoice(input_file=named), _demo())
    assert [(name, workload.num_distinct(name)) for name in workload.segments] == [("chat", 2), ("code_edit", 1)]
    with pytest.raises(RequestError, match="has no prompts for summarisation"):
        _open(WorkloadChoice(input_file=named, segments=("summarisation",)), _demo())
    unknown = _write(tmp_path, '{"id": "a", "prompt": "x", "segment": "poems"}')
    with pytest.raises(ConfigError, match=r"jsonl:1: segment: no segment is called 'poems'.*code_edit, chat, summ"):
        _open(WorkloadChoice(input_file=unknown), _demo())


def test_made_prompts() -> None:
    workload = _open(WorkloadChoice(isl=60, osl=8, segments=("chat",)), _demo())
    (request,) = workload.requests("chat", 0, 1)
    assert (request.expected_input_tokens, request.max_tokens) == (60, 8)
    assert _open(WorkloadChoice(isl=60)).segments == ("synthetic",)
    with pytest.raises(RequestError, match=r"exceed the server's 2048\. Ask for at most 2040"):
        _open(WorkloadChoice(isl=2041, osl=8), _demo())


def test_a_trace_with_its_arrivals() -> None:
    window = TraceWindow(speedup=10.0, duration_s=60.0)
    workload = _open(WorkloadChoice(trace=SAMPLE, window=window, unfit=UnfitPolicy.SKIP), _demo())
    assert workload.segments == ("recorded",)
    requests = workload.requests("recorded", 0, 3)
    assert [request.expected_input_tokens for request in requests] == [374, 396, 879]
    assert [request.arrival_ns for request in requests] == [0, 431_457_900, 454_187_700]
    assert "do not fit" in workload.description
    assert "10 times as fast" in workload.description
    with pytest.raises(RequestError, match=r"--trace: \d+ of 200 recorded requests"):
        _open(WorkloadChoice(trace=SAMPLE), _demo())


def test_recorded_files_come_in_any_format(tmp_path: Path) -> None:
    files = {
        FileFormat.MOONCAKE: '{"timestamp": 0, "input_length": 30, "output_length": 4, "hash_ids": [1]}',
        FileFormat.AIPERF_LINES: '{"text": "one"}\n{"session_id": "s", "turns": [{"text": "two"}]}',
        FileFormat.AIPERF_INPUTS: json.dumps(
            {"data": [{"session_id": "s", "payloads": [{"messages": [{"role": "user", "content": "x"}]}]}]}, indent=1
        ),
        FileFormat.SHAREGPT: json.dumps([{"id": "a", "conversations": [{"from": "human", "value": "x"}]}]),
    }
    for found, text in files.items():
        path = _write(tmp_path, text)
        assert detect_format(path) is found
        workload = _open(WorkloadChoice(input_file=path))
        assert workload.name == found
        assert workload.requests("recorded", 0, 2)[0].user_turn
    assert detect_format(_write(tmp_path, '{"conversations": []}')) is FileFormat.SHAREGPT
    assert detect_format(_write(tmp_path, '{"id": "a", "turns": ["x"]}')) is FileFormat.PROMPTS
    assert detect_format(_write(tmp_path, "what is this")) is FileFormat.PROMPTS


def test_blocks_of_another_size(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"input_length": 60, "hash_ids": [1, 2]}\n{"input_length": 70, "hash_ids": [1, 3, 4]}')
    workload = _open(WorkloadChoice(trace=path, block_tokens=32))
    first, second = (
        RENDERING.require_counter("x").ids(RENDERING.prompt(request.user_turn))
        for request in workload.requests("recorded", 0, 2)
    )
    assert (len(first), len(second)) in ((60, 70), (70, 60))
    assert first[:32] == second[:32]
    assert first[:40] != second[:40]


def test_a_trace_with_a_broken_first_line_is_named_by_that_line(tmp_path: Path) -> None:
    good = '{"timestamp": 1, "input_length": 65, "output_length": 5}'
    path = _write(tmp_path, '{"timestamp": 0, "input_length": 65, broken\n' + good)
    with pytest.raises(ConfigError, match=r"work\.jsonl:1: is not JSON \(") as caught:
        _open(WorkloadChoice(trace=path))
    assert len(caught.value.violations) == 1


def test_json_nested_beyond_all_reason_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"a":' * 100_000 + "1" + "}" * 100_000)
    for choice in (WorkloadChoice(input_file=path), WorkloadChoice(trace=path)):
        with pytest.raises(ConfigError, match=r"work\.jsonl:1: is not JSON \(it is nested too deeply\)"):
            _open(choice)


def test_everything_that_contradicts_itself_is_named_at_once(tmp_path: Path) -> None:
    path = _write(tmp_path, '{"id": "a", "prompt": "x"}')
    choice = WorkloadChoice(isl=60, trace=SAMPLE, input_file=path, osl_stddev=3.0, segments=("poems",))
    assert _problems(choice, _demo()) == ["--input-file", "--osl-stddev", "--segments"]
    choice = WorkloadChoice(osl=3, isl_stddev=4.0, window=TraceWindow(2.0), block_tokens=16)
    assert _problems(choice, _demo()) == ["--isl-stddev", "--osl", "--trace-speedup", "--trace-block-tokens"]


def test_single_refusals(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="nothing says what to ask"):
        _open(WorkloadChoice())
    prompts = _write(tmp_path, '{"id": "a", "prompt": "x"}')
    with pytest.raises(RequestError, match="no recorded traffic"):
        _open(WorkloadChoice(trace=prompts))
    with pytest.raises(RequestError, match="says no arrival times"):
        _open(WorkloadChoice(input_file=prompts, window=TraceWindow(2.0)))
    with pytest.raises(RequestError, match="one segment"):
        _open(WorkloadChoice(trace=SAMPLE, segments=("chat", "code_edit")), _demo())
    with pytest.raises(ConfigError, match=r"no known format: its first entry has foo.*Mooncake JSONL"):
        _open(WorkloadChoice(input_file=_write(tmp_path, '{"foo": 1}')))
    with pytest.raises(ConfigError, match="is empty"):
        _open(WorkloadChoice(input_file=_write(tmp_path, "\n")))


_KEYS = ["id", "prompt", "turns", "segment", "timestamp", "input_length", "hash_ids", "session_id", "messages", "delay",
         "text", "texts", "payload", "data", "conversations", "from", "value", "role", "content", "output_length",
         "constraint", "type", "guide", "payloads"]  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 40) | st.floats() | st.sampled_from(["", "x", "user", "human", "json"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.lists(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=5), min_size=1, max_size=3))
@pytest.mark.parametrize("shape", ["lines", "list", "object"])
def test_any_file_is_requests_or_one_clear_error(tmp_path: Path, shape: str, entries: list[Any]) -> None:
    texts = {
        "lines": "\n".join(map(json.dumps, entries)),
        "list": json.dumps(entries),
        "object": json.dumps({"data": entries}),
    }
    path = _write(tmp_path, texts[shape])
    refusal = ""
    requests: tuple[WorkRequest, ...] = ()
    try:
        workload = _open(WorkloadChoice(input_file=path, unfit=UnfitPolicy.SKIP))
        requests = workload.requests(workload.segments[0], 0, 3)
    except SpecDeployError as error:
        refusal = str(error)
    assert str(path) in refusal or (not refusal and len(requests) == 3)
    assert all(request.user_turn for request in requests)
