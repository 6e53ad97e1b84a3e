"""C++ models of the engine lane: every tensor, parameter name, value and choice is one the facts know."""

from collections.abc import Mapping
from typing import Any

import pytest

from helpers.engine_builds import BUILD_FOLDER, ENGINE_METHODS, KV_TOKENS, make_build, make_config
from specdeploy.contract import EngineModel
from specdeploy.packager.engine_models import GUIDED_PARAMETERS, engine_model_config, render_engine_model
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.parameter_checks import parameter_problems
from specdeploy.packager.pbtxt import parse_pbtxt
from specdeploy.trtllm.facts import triton_model

FACTS = triton_model("tensorrt_llm")
FILLED = {
    "${logits_datatype}": "FP32",
    "${encoder_input_features_data_type}": "FP16",
    "${prompt_embedding_table_data_type}": "FP16",
}


def parsed_models(method: str, build: PackagedBuild | None = None, **sections: Any) -> dict[str, Any]:
    config, build = make_config(method, **sections), build or make_build(method)
    texts = {record.model.value: render_engine_model(config, build, record) for record in build.engines}
    return {name: parse_pbtxt(files[f"{name}/config.pbtxt"], name) for name, files in texts.items()}


def parameters_of(model: Any) -> dict[str, str]:
    return {key: entry.string_value for key, entry in model.parameters.items()}


@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_tensors_are_those_of_the_facts(method: str) -> None:
    for model in parsed_models(method).values():
        for found, due in ((model.input, FACTS.inputs), (model.output, FACTS.outputs)):
            assert [tensor.name for tensor in found] == [tensor.name for tensor in due]
            for tensor, fact in zip(found, due, strict=True):
                data_type = FILLED.get(fact.data_type, fact.data_type)
                assert (
                    type(tensor)
                    .DESCRIPTOR.fields_by_name["data_type"]
                    .enum_type.values_by_number[tensor.data_type]
                    .name
                    == f"TYPE_{data_type}"
                )
                assert tuple(tensor.dims) == fact.dims
        for tensor, fact in zip(model.input, FACTS.inputs, strict=True):
            assert (tensor.optional, tensor.HasField("reshape")) == (fact.optional, fact.reshape_to_scalar)
            assert not (tensor.allow_ragged_batch and fact.reshape_to_scalar)


@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_parameters_are_those_of_the_facts(method: str) -> None:
    for name, model in parsed_models(method).items():
        problems = parameter_problems(parameters_of(model), FACTS.parameters, blank=GUIDED_PARAMETERS)
        assert list(problems) == [], name


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"kv_cache_free_gpu_memory_fraction": "0.9"}, "the model has no such parameter"),
        ({"gpt_model_type": "inflight"}, "none of inflight_fused_batching, V1"),
        ({"decoding_mode": "draft_tokens_external"}, "none of top_k"),
        ({"max_tokens_in_paged_kv_cache": "many"}, "'many' is no int"),
        ({"kv_cache_free_gpu_mem_fraction": "half"}, "'half' is no float"),
        ({"enable_kv_cache_reuse": "yes"}, "'yes' is no bool"),
        ({"gpt_model_path": "engines/target"}, "'engines/target' is no path"),
        ({"FORCE_CPU_ONLY_INPUT_TENSORS": "yes"}, "instead of the fixed value 'no'"),
        ({"batch_scheduler_policy": ""}, "'' is no str"),
        ({"gpt_model_type": None}, "parameter gpt_model_type: is missing"),
        ({"executor_worker_path": None}, "parameter executor_worker_path: is missing"),
    ],
)
def test_a_planted_wrong_parameter_is_found(changes: Mapping[str, str | None], problem: str) -> None:
    parameters = parameters_of(parsed_models("draft_model")["target"])
    assert list(parameter_problems(parameters, FACTS.parameters, blank=GUIDED_PARAMETERS)) == []
    for key, value in changes.items():
        parameters.pop(key, None)
        if value is not None:
            parameters[key] = value

    found = list(parameter_problems(parameters, FACTS.parameters, blank=GUIDED_PARAMETERS))

    assert len(found) >= 1
    assert any(problem in text for text in found)


@pytest.mark.parametrize(
    ("method", "models", "is_decoupled", "mode"),
    [
        ("draft_model", ["target", "draft"], False, None),
        ("medusa", ["target", "target_plain"], True, "medusa"),
        ("eagle", ["target", "target_plain"], True, "eagle"),
        ("redrafter", ["target", "target_plain"], True, "redrafter"),
        ("lookahead", ["target"], True, "lookahead"),
    ],
)
def test_models_policies_and_modes_by_method(
    method: str, models: list[str], is_decoupled: bool, mode: str | None
) -> None:
    found = parsed_models(method)

    assert list(found) == models
    assert {model.model_transaction_policy.decoupled for model in found.values()} == {is_decoupled}
    assert parameters_of(found["target"]).get("decoding_mode") == mode
    assert all("decoding_mode" not in parameters_of(found[name]) for name in models[1:])
    assert {(model.backend, model.max_batch_size) for model in found.values()} == {("tensorrtllm", 8)}
    for name, model in found.items():
        assert [(group.count, group.kind) for group in model.instance_group] == [(1, 2)]  # one, KIND_CPU
        assert parameters_of(model)["gpt_model_path"] == f"{BUILD_FOLDER}/{name}_engine"


def test_the_guided_parameters_are_there_and_empty() -> None:
    parameters = parameters_of(parsed_models("lookahead")["target"])
    assert {key: parameters[key] for key in GUIDED_PARAMETERS} == dict.fromkeys(GUIDED_PARAMETERS, "")


def test_guided_decoding_names_its_tokenizer_file() -> None:
    build = make_build("lookahead")
    build = PackagedBuild(
        build.folder, build.engines, build.memory, build.versions, guided_tokenizer_info="target/info.json"
    )
    found = parsed_models("lookahead", build, tensorrt_llm={"guided_decoding_backend": "xgrammar"})
    parameters = parameters_of(found["target"])

    assert parameters["guided_decoding_backend"] == "xgrammar"
    assert parameters["xgrammar_tokenizer_info_path"] == f"{BUILD_FOLDER}/target/info.json"
    assert parameters["tokenizer_dir"] == ""


def test_two_engines_on_one_gpu_get_tokens_and_one_high_cap() -> None:
    found = [parameters_of(model) for model in parsed_models("draft_model").values()]

    assert {entry["max_tokens_in_paged_kv_cache"] for entry in found} == {str(KV_TOKENS)}
    assert {entry["kv_cache_free_gpu_mem_fraction"] for entry in found} == {"0.95"}


@pytest.mark.parametrize("part", [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99])
@pytest.mark.parametrize("fraction", [0.3, 0.85, 0.95])
def test_the_cap_binds_for_neither_order_of_loading(part: float, fraction: float) -> None:
    """Room 1: the first engine to load caches fraction x part of it, the second the rest of the budget."""
    first, second = fraction * part, fraction * (1 - part)
    free_for_second = 1 - first

    assert second <= 0.95 * free_for_second
    assert second <= fraction * free_for_second + 1e-12


def test_engines_on_their_own_gpus_keep_the_fraction_of_the_config() -> None:
    build = make_build("draft_model")
    apart = tuple(record.model_copy(update={"gpu_ids": (index,)}) for index, record in enumerate(build.engines))
    found = parsed_models("draft_model", PackagedBuild(build.folder, apart, build.memory, build.versions))

    assert [parameters_of(model)["gpu_device_ids"] for model in found.values()] == ["0", "1"]
    assert {parameters_of(model)["kv_cache_free_gpu_mem_fraction"] for model in found.values()} == {"0.85"}


def test_gpus_of_one_node_are_repeated_for_every_node() -> None:
    build = make_build("lookahead", tensor_parallel=8, pipeline_parallel=2, gpu_ids=tuple(range(8)))
    sizes = {"num_nodes": 2, "tensor_parallel": 8, "pipeline_parallel": 2}
    parameters = parameters_of(parsed_models("lookahead", build, tensorrt_llm=sizes)["target"])

    assert parameters["gpu_device_ids"] == "0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7"
    assert parameters["num_nodes"] == "2"
    assert "participant_ids" not in parameters


@pytest.mark.parametrize(
    ("method", "key", "choices"),
    [
        ("medusa", "medusa_choices", [[0], [0, 0], [1]]),
        ("eagle", "eagle_choices", [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]),
    ],
)
def test_trees_are_written_in_braces_or_left_to_the_engine(method: str, key: str, choices: list[list[int]]) -> None:
    config = {method: {"choices": choices}}
    stated = parameters_of(parsed_models(method, speculation=config)["target"])

    assert stated[key] == ", ".join("{" + ", ".join(map(str, path)) + "}" for path in choices)
    assert key not in parameters_of(parsed_models(method)["target"])
    assert key not in parameters_of(parsed_models(method, speculation=config)["target_plain"])


def test_lookahead_writes_all_three_numbers() -> None:
    parameters = parameters_of(parsed_models("lookahead")["target"])
    names = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
    assert [parameters[name] for name in names] == ["7", "7", "7"]


def test_long_prompts_are_read_in_parts_only_where_they_must_be() -> None:
    config, build = make_config(), make_build(max_num_tokens=1024)
    short = engine_model_config(config, build, build.engines[0])
    whole = engine_model_config(config, make_build(), make_build().engines[0])

    assert (short.parameters["enable_chunked_context"], whole.parameters["enable_chunked_context"]) == ("true", "false")


def test_the_arithmetic_of_the_memory_stands_in_the_comment() -> None:
    build = make_build()
    text = render_engine_model(make_config(), build, build.engines[0])["target/config.pbtxt"]
    comment = "".join(line for line in text.splitlines() if line.startswith("#"))

    for part in ("80000000000  in all", "-20000000000  weights of target: 10e9 x 2 B", "60000000000  for key/value"):
        assert part in comment
    assert "target 100000 x 131072 B = 13107200000" in comment
    assert "Not verified on a GPU" in comment


def test_memory_that_was_not_budgeted_is_said_to_be() -> None:
    build = make_build("lookahead", kv_tokens=None)
    text = render_engine_model(make_config("lookahead"), build, build.engines[0])["target/config.pbtxt"]

    assert "Memory was not budgeted" in text
    assert "max_tokens_in_paged_kv_cache" not in text
    assert "not to be served like this" not in text
    pair = make_build("draft_model", kv_tokens=None)
    text = render_engine_model(make_config("draft_model"), pair, pair.engines[0])["target/config.pbtxt"]
    assert "not to be served like this" in text


def test_each_engine_is_found_by_its_model() -> None:
    build = make_build("medusa")
    assert build.find(EngineModel.TARGET_PLAIN) is build.engines[1]
    assert build.find(EngineModel.DRAFT) is None
