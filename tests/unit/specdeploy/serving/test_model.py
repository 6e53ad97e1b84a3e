"""The Triton model over a real engine and a fake Triton: messages, counts, refusals, cancellation, no leaks."""

import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import fake_triton
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.config.schema import DeploymentConfig
from specdeploy.manifest import CurrentBuild, write_current_build
from specdeploy.packager.tensors import INPUTS, OUTPUTS
from specdeploy.planner.schedule import plan_from_config

OUTPUT_NAMES = [tensor.name for tensor in OUTPUTS]
CONFIG = {
    "schema_version": 1,
    "name": "tiny",
    "lane": "torch",
    "dtype": "float32",
    "target": {"checkpoint": "unused"},
    "speculation": {"method": "ngram", "max_draft_len": 3},
    "serving": {"max_rows": 3, "max_queue": 2, "max_seq_len": 128, "prefill_chunk": 32},
    "runtime": {"threads": 1},
    "traffic": {
        "expected_concurrency": 2,
        "segments": [
            {"name": "edit", "prompts": "edit.jsonl"},
            {"name": "chat", "prompts": "chat.jsonl", "speculate": False, "off_reason": "measured slower"},
        ],
    },
}


@pytest.fixture(scope="module")
def engines_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("engines")
    make_checkpoint(root / "b1" / "target")
    config = DeploymentConfig.model_validate(CONFIG)
    write_current_build(
        root,
        CurrentBuild(
            deployment="tiny",
            build_id="b1",
            target_folder="b1/target",
            draft_folder=None,
            config_digest="0",
            config=config,
            plan=plan_from_config(config),
        ),
    )
    return root


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, engines_root: Path) -> Any:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", fake_triton.make_module())
    monkeypatch.delitem(sys.modules, "specdeploy.serving.model", raising=False)
    monkeypatch.setenv("SPECDEPLOY_ENGINES_ROOT", str(engines_root))
    loaded = importlib.import_module("specdeploy.serving.model")
    monkeypatch.delitem(sys.modules, "specdeploy.serving.model")  # it holds the fake: nobody else may find it
    return loaded


def model_args(deployment: str = "tiny") -> dict[str, str]:
    return {"model_config": json.dumps({"parameters": {"deployment": {"string_value": deployment}}})}


@pytest.fixture
def model(module: Any) -> Iterator[Any]:
    subject = module.TritonPythonModel()
    subject.initialize(model_args())
    yield subject
    subject.finalize()


def request(
    text: str = "def total(items):", outputs: list[str] | None = None, **fields: Any
) -> fake_triton.FakeRequest:
    values = {"text_input": text, "max_tokens": 12, "ignore_eos": True} | fields
    types = {"STRING": object, "BOOL": np.bool_, "INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64}
    declared = {tensor.name: types.get(tensor.data_type.value, np.float32) for tensor in INPUTS}
    tensors = {
        name: np.array(
            [[v.encode() if isinstance(v, str) else v for v in (value if isinstance(value, list) else [value])]],
            dtype=declared[name],
        )
        for name, value in values.items()
    }
    return fake_triton.FakeRequest(tensors, outputs or OUTPUT_NAMES)


def answer(model: Any, item: fake_triton.FakeRequest) -> list[fake_triton.FakeResponse]:
    model.execute([item])
    assert item.sender.done.wait(20)
    return item.sender.responses


def metric(name: str, **labels: str) -> float:
    return fake_triton.FakeMetricFamily.values[(name, tuple(sorted(labels.items())))].value


def value(response: fake_triton.FakeResponse, name: str) -> Any:
    item = response.tensors[name].ravel()[0]
    return item.decode() if isinstance(item, bytes) else item


def joined_ids(responses: list[fake_triton.FakeResponse]) -> list[int]:
    return [int(token) for response in responses for token in response.tensors["output_ids"].ravel()]


def joined_text(responses: list[fake_triton.FakeResponse]) -> str:
    return "".join(value(response, "text_output") for response in responses)


def test_streamed_and_whole_answers_are_the_same(model: Any) -> None:
    (whole,) = answer(model, request(num_draft_tokens=0))
    streamed = answer(model, request(num_draft_tokens=3, stream=True))
    assert joined_ids(streamed) == joined_ids([whole])
    assert joined_text(streamed) == value(whole, "text_output")
    assert len(streamed) == value(streamed[-1], "num_steps")
    last = streamed[-1]
    assert value(last, "output_token_count") == len(joined_ids(streamed)) == 12
    assert value(last, "finish_reason") == "length"
    assert value(last, "speculation_stats") == "measured"
    assert value(whole, "speculation") == "off:requested"
    assert "finish_reason" not in streamed[0].tensors


def test_every_output_has_its_declared_type_and_rank(model: Any) -> None:
    wanted: dict[str, Any] = {"return_log_probs": True, "return_perf_metrics": True, "return_num_input_tokens": True}
    streamed = answer(model, request(stream=True, return_num_output_tokens=True, segment="edit", **wanted))
    declared = {tensor.name: tensor for tensor in OUTPUTS}
    numpy_types = {"STRING": object, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
    seen = set()
    for response in streamed:
        for name, array in response.tensors.items():
            seen.add(name)
            assert array.dtype == numpy_types[declared[name].data_type.value], name
            assert array.ndim == 1 + len(declared[name].dims), name
            assert array.shape[0] == 1, name
    assert {"cum_log_probs", "output_log_probs", "first_token_time_ns", "num_output_tokens"} <= seen


def test_only_what_was_asked_for_is_sent(model: Any) -> None:
    (response,) = answer(model, request(outputs=["text_output"]))
    assert set(response.tensors) == {"text_output"}


def test_counts_match_the_metrics(model: Any) -> None:
    drafted = accepted = 0
    for text in ("a b c a b c a b c", "1 2 3 1 2 3"):
        last = answer(model, request(text, segment="edit", num_draft_tokens=3))[-1]
        drafted += value(last, "total_draft_tokens")
        accepted += value(last, "total_accepted_draft_tokens")
    assert drafted > 0
    assert metric("spec_decode_num_draft_tokens", segment="edit") == drafted
    assert metric("spec_decode_num_accepted_tokens", segment="edit") == accepted
    per_position = [
        metric("spec_decode_num_accepted_tokens_per_pos", segment="edit", position=str(i)) for i in range(3)
    ]
    assert sum(per_position) == accepted
    assert metric("spec_decode_num_draft_tokens", segment="other") == 0
    assert metric("specdeploy_requests_in_flight", deployment="tiny") == 0
    assert metric("specdeploy_kv_rows_in_use", deployment="tiny") == 0


@pytest.mark.parametrize(
    ("segment", "label", "speculation"), [("chat", "chat", "off:measured slower"), ("surprise", "other", "on")]
)
def test_the_plan_is_followed_by_segment(model: Any, segment: str, label: str, speculation: str) -> None:
    last = answer(model, request("a b a b a b a b", segment=segment))[-1]
    assert value(last, "speculation") == speculation
    assert metric("spec_decode_num_draft_tokens", segment=label) == value(last, "total_draft_tokens")


def test_a_refused_request_names_the_field_and_leaves_the_others_alone(model: Any) -> None:
    good, bad = request(), request(temperature=-1.0)
    model.execute([bad, good])
    assert good.sender.done.wait(20)
    assert bad.sender.responses[0].error == "temperature: -1 is below 0. Send at least 0"
    assert good.sender.responses[0].error is None


def test_too_long_and_too_many_are_refused(model: Any) -> None:
    (refused,) = answer(model, request("word " * 200))
    assert refused.error.startswith("text_input: ")
    items = [request(max_tokens=60) for _ in range(12)]
    model.execute(items)
    assert all(item.sender.done.wait(30) for item in items)
    errors = [item.sender.responses[-1].error for item in items if item.sender.responses[-1].error]
    assert errors
    assert all("requests wait already" in error for error in errors)
    assert metric("specdeploy_requests_in_flight", deployment="tiny") == 0


def test_a_cancelled_request_stops_and_frees_its_row(model: Any) -> None:
    item, neighbour = request(stream=True, max_tokens=100), request(stream=True, max_tokens=30)
    model.execute([item, neighbour])
    while not item.sender.responses:
        time.sleep(0.001)
    item.sender.cancelled = True
    assert item.sender.done.wait(20)
    assert neighbour.sender.done.wait(20)
    assert value(item.sender.responses[-1], "finish_reason") == "cancelled"
    assert value(item.sender.responses[-1], "output_token_count") < 100
    assert value(neighbour.sender.responses[-1], "output_token_count") == 30
    assert metric("specdeploy_kv_rows_in_use", deployment="tiny") == 0


GUIDED: dict[str, Any] = {
    "guided_decoding_guide_type": "json_schema",
    "guided_decoding_guide": '{"type": "object", "properties": {"n": {"enum": ["ab", "abc"]}}, "required": ["n"]}',
}


def test_a_guided_request_is_answered_in_form_and_undrafted(model: Any) -> None:
    plain = request(stream=True, max_tokens=60)
    guided = [request(max_tokens=100, num_draft_tokens=3, ignore_eos=i == 0, **GUIDED) for i in range(2)]
    model.execute([plain, *guided])
    assert plain.sender.done.wait(60)
    for item in guided:
        assert item.sender.done.wait(60)
        (response,) = item.sender.responses
        assert response.error is None
        assert json.loads(value(response, "text_output"))["n"] in ("ab", "abc")
        assert value(response, "finish_reason") == "stop"
        assert value(response, "speculation") == "off:constrained"
        assert value(response, "total_draft_tokens") == 0
    assert joined_ids(plain.sender.responses) == joined_ids(answer(model, request(max_tokens=60)))
    assert metric("specdeploy_requests_in_flight", deployment="tiny") == 0


def test_a_guide_that_cannot_be_compiled_is_refused_by_name(model: Any) -> None:
    bad = request(guided_decoding_guide_type="regex", guided_decoding_guide="(a")
    (refused,) = answer(model, bad)
    assert refused.error.startswith("guided_decoding_guide: cannot be compiled as regex: ")
    assert metric("specdeploy_requests_in_flight", deployment="tiny") == 0
    assert value(answer(model, request())[-1], "output_token_count") == 12


def test_without_xgrammar_a_guide_is_refused_with_the_package(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    subject = module.TritonPythonModel()
    subject.initialize(model_args())
    (refused,) = answer(subject, request(**GUIDED))
    subject.finalize()
    assert "enforced by the package xgrammar, which is not installed" in refused.error


@pytest.mark.parametrize(("is_canary", "speculation"), [("1", "on"), ("0", "off:constrained")])
def test_a_canary_drafts_for_guides_where_asked_to(
    module: Any, engines_root: Path, monkeypatch: pytest.MonkeyPatch, is_canary: str, speculation: str
) -> None:
    settings = CONFIG | {"name": "canary", "speculation": CONFIG["speculation"] | {"constrained": "canary"}}  # type: ignore[operator]
    config = DeploymentConfig.model_validate(settings)
    build = CurrentBuild(
        deployment="canary",
        build_id="b1",
        target_folder="b1/target",
        draft_folder=None,
        config_digest="0",
        config=config,
        plan=plan_from_config(config),
    )
    write_current_build(engines_root, build)
    monkeypatch.setenv("SPECDEPLOY_CANARY", is_canary)
    subject = module.TritonPythonModel()
    subject.initialize(model_args("canary"))
    (drafted,) = answer(subject, request(max_tokens=100, num_draft_tokens=3, **GUIDED))
    (unasked,) = answer(subject, request(max_tokens=100, **GUIDED))
    subject.finalize()
    assert value(drafted, "speculation") == speculation
    assert value(unasked, "speculation") == "off:constrained"
    assert value(drafted, "text_output") == value(unasked, "text_output")


def test_stop_words_end_the_text_before_themselves(model: Any) -> None:
    (whole,) = answer(model, request(max_tokens=30, num_draft_tokens=0))
    text = value(whole, "text_output")
    stop = text[8:11]
    for draft in (0, 3):
        responses = answer(model, request(max_tokens=30, num_draft_tokens=draft, stop_words=[stop], stream=True))
        assert joined_text(responses) == text[: text.index(stop)]
        assert value(responses[-1], "finish_reason") == "stop"


def test_the_input_can_be_part_of_the_output(model: Any) -> None:
    (response,) = answer(model, request("hello", exclude_input_in_output=False))
    assert value(response, "text_output").startswith("hello")


def test_an_engine_failure_answers_everyone_and_the_server_lives_on(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = model._adapter._engine
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_pack", lambda drafts: 1 / 0)
        items = [request(), request()]
        model.execute(items)
        assert all(item.sender.done.wait(20) for item in items)
        assert all("ZeroDivisionError" in item.sender.responses[-1].error for item in items)
        assert metric("specdeploy_kv_rows_in_use", deployment="tiny") == 0
    assert value(answer(model, request())[-1], "output_token_count") == 12
    assert engine.num_slots_in_use == 0


def test_a_client_that_cannot_be_answered_takes_no_other_with_it(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, neighbour = request(stream=True, max_tokens=40), request(stream=True, max_tokens=40)

    def refuse(response: Any, flags: int = 0) -> None:
        raise RuntimeError("no shared memory")

    monkeypatch.setattr(broken.sender, "send", refuse)
    model.execute([broken, neighbour])
    assert neighbour.sender.done.wait(20)
    assert value(neighbour.sender.responses[-1], "output_token_count") == 40
    assert value(answer(model, request())[-1], "output_token_count") == 12
    assert metric("specdeploy_kv_rows_in_use", deployment="tiny") == 0


def test_shutting_down_answers_what_is_in_flight(module: Any) -> None:
    subject = module.TritonPythonModel()
    subject.initialize(model_args())
    item = request(max_tokens=110, stream=True)
    subject.execute([item])
    while not item.sender.responses:
        time.sleep(0.001)
    subject.finalize()
    assert item.sender.done.is_set()


def test_a_deployment_that_was_not_built_says_what_to_do(module: Any) -> None:
    with pytest.raises(fake_triton.FakeError, match=r"^specdeploy: .*never built.*make engines DEPLOYMENT=nope"):
        module.TritonPythonModel().initialize(model_args("nope"))


def test_the_served_facts_are_labels(model: Any) -> None:
    (labels,) = [dict(key[1]) for key in fake_triton.FakeMetricFamily.values if key[0] == "specdeploy_info"]
    assert labels == {
        "deployment": "tiny",
        "build_id": "b1",
        "lane": "torch",
        "method": "ngram",
        "dtype": "float32",
        "threads": "1",
        "max_draft_len": "3",
        "effective_concurrency": "",
        "concurrency_limit": "",
        "prefix_cache": "off",
    }
