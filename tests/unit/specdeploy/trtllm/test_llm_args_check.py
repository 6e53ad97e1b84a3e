"""Planted faults: every key a version would refuse, or would read otherwise, is reported."""

from collections.abc import Mapping

import pytest
from packaging.version import Version

from helpers.llmapi_deployment import BY_LOAD, PROBES_121, SWAP, make_deployment, render, section
from specdeploy.contract import EngineModel
from specdeploy.trtllm.facts import LLM_ARGS_FILE, load_facts
from specdeploy.trtllm.llm_args import validate_llm_args
from specdeploy.trtllm.probe_record import ProbeRecord


def planted(version: str, method: str, changes: Mapping[str, object], probe: ProbeRecord | None = None) -> list[str]:
    """Problems of right arguments after `changes` to speculative_config (a key set to `...` is removed)."""
    arguments = render(make_deployment(method), version, probe).arguments
    speculative = section(arguments, "speculative_config")
    for key, value in changes.items():
        if value is ...:
            del speculative[key]
        else:
            speculative[key] = value
    return validate_llm_args(arguments, version=Version(version), probe=probe)


@pytest.mark.parametrize(
    ("version", "method", "changes", "problem"),
    [
        ("1.0.0", "eagle3", {"max_concurrency": 4}, "max_concurrency: TensorRT-LLM 1.0.0 is not known to have it"),
        ("1.0.0", "eagle3", {"speculative_model": "x"}, "speculative_model: TensorRT-LLM 1.0.0 is not known"),
        ("1.3.0rc27", "eagle3", {"acceptance_window": 5}, "acceptance_window: TensorRT-LLM 1.3.0rc27 is not known"),
        ("1.4.0rc4", "eagle3", {"num_eagle_layers": 1}, "num_eagle_layers: TensorRT-LLM 1.4.0rc4 is not known"),
        ("1.3.0rc27", "mtp", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers: TensorRT-LLM 1.3.0rc27"),
        ("1.1.0", "eagle3", {"decoding_type": "Eagle3"}, "has no 'Eagle3' on its PyTorch backend"),
        ("1.2.0rc6", "draft_model", {"decoding_type": "Draft_Target"}, "has no 'Draft_Target'"),
        ("1.3.0rc27", "draft_model", {"decoding_type": "DraftTarget"}, "has no 'DraftTarget'"),
        ("1.0.0", "eagle3", {"decoding_type": "Medusa"}, "has no 'Medusa' on its PyTorch backend"),
        ("1.0.0", "eagle3", {"decoding_type": ...}, "decoding_type: missing"),
        ("1.0.0", "eagle3", {"speculative_model_dir": ...}, "speculative_model_dir: missing"),
        ("1.0.0", "ngram", {"max_matching_ngram_size": ...}, "max_matching_ngram_size: missing"),
        ("1.0.0", "ngram", {"max_matching_ngram_size": 0}, "max_matching_ngram_size: 0 where a number above 0"),
        ("1.3.0rc27", "ngram", {"max_draft_len": ...}, "max_draft_len: missing"),
        ("1.3.0rc27", "ngram", {"max_matching_ngram_size": ...}, "max_matching_ngram_size: None where a number"),
        ("1.0.0", "mtp", {"num_nextn_predict_layers": 0}, "num_nextn_predict_layers: 0 where a number above 0"),
        ("1.3.0rc27", "eagle3", {"max_draft_len": "four"}, "'four' is no int|null"),
        ("1.3.0rc27", "eagle3", {"max_draft_len": True}, "True is no int|null"),
        ("1.3.0rc27", "eagle3", {"max_concurrency": 0}, "max_concurrency: 0 is below 1"),
        ("1.3.0rc27", "eagle3", {"eagle3_model_arch": "gpt"}, "'gpt' is none of llama3"),
        (
            "1.2.0rc6",
            "eagle3",
            {"draft_len_schedule": {1: 4}},
            "draft_len_schedule: TensorRT-LLM 1.2.0rc6 is not known",
        ),
        ("1.3.0rc27", "eagle3", {"draft_len_schedule": {1: 4, 8: 0}}, "written for the other meaning"),
        ("1.3.0rc27", "eagle3", {"draft_len_schedule": {4: 2, 8: 4}}, "smallest key maps to 2"),
        ("1.3.0rc27", "eagle3", {"draft_len_schedule": {"4": 4}}, "is no dict[int,int]|null"),
        ("1.3.0rc27", "eagle3", {"draft_len_schedule": {4: 4}, "max_concurrency": 4}, "exclude each other"),
        ("1.2.0rc6", "eagle3", {"max_concurrency": 4}, "is not known to obey it with eagle3"),
        ("1.3.0rc27", "ngram", {"draft_len_schedule": {4: 4}}, "cannot vary the draft length of ngram"),
        (
            "1.0.0",
            "eagle3",
            {"speculative_model_dir": None},
            "speculative_model_dir: None where the folder",
        ),
        ("1.3.0rc27", "eagle3", {"speculative_model": "x"}, "speculative_model_dir are two names of one field"),
        ("1.3.0rc27", "ngram", {"use_rejection_sampling": True}, "use_rejection_sampling: NGram has no such sampling"),
    ],
)
def test_a_planted_fault_is_reported(version: str, method: str, changes: dict[str, object], problem: str) -> None:
    problems = planted(version, method, changes)
    assert any(problem in found for found in problems), problems


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"draft_len_schedule": {3: 4, 7: 2}}, "key 1 is missing"),
        ({"decoding_type": "Eagle3"}, "has no 'Eagle3'"),
        ({"turbo": 1}, "turbo: TensorRT-LLM 1.2.1 is not known"),
        ({"speculative_model_dir": ...}, "speculative_model: missing"),
    ],
)
def test_a_planted_fault_against_a_probe_is_reported(changes: dict[str, object], problem: str) -> None:
    problems = planted("1.2.1", "eagle3", changes, PROBES_121[0])
    assert any(problem in found for found in problems), problems


@pytest.mark.parametrize(
    ("version", "method", "changes", "problem"),
    [
        ("1.2.0rc6", "ngram", {"pipeline_parallel_size": 2}, "pipeline_parallel_size: 2: speculation does not run"),
        ("1.0.0", "ngram", {"guided_decoding_backend": "xgrammar"}, "guided_decoding_backend: TensorRT-LLM 1.0.0"),
        ("1.0.3.2510", "eagle3", {"guided_decoding_backend": "xgrammar"}, "refuses it with speculation"),
        ("1.2.0rc6", "draft_model", {"disable_overlap_scheduler": False}, "DraftTarget of TensorRT-LLM 1.2.0rc6 does"),
        (
            "1.2.1",
            "draft_model",
            {"disable_overlap_scheduler": ...},
            "disable_overlap_scheduler: unresolved:Draft",
        ),
        ("1.3.0rc27", "ngram", {"disable_overlap_scheduler": ...}, "disable_overlap_scheduler: NGram of TensorRT-LLM"),
        ("1.0.0", "mtp", {"cuda_graph_config": {"batch_sizes": [1], "max_batch_size": 8}}, "exclude each other"),
        ("1.0.0", "mtp", {"tensor_parallel_size": 0}, "tensor_parallel_size: 0 where a number of GPUs"),
        ("1.3.0rc27", "mtp", {"moe_expert_parallel_size": -1}, "moe_expert_parallel_size: -1 where a number"),
        ("1.2.0rc6", "mtp", {"pipeline_parallel_size": 0}, "pipeline_parallel_size: 0 where a number"),
        *(
            ("1.2.0rc6", "mtp", {key: ...}, f"{key}: missing, the deployment cannot do without")
            for key in ("model", "max_batch_size", "max_num_tokens", "max_seq_len", "kv_cache_config")
        ),
        ("1.2.0rc6", "mtp", {"speculative_config": ...}, "speculative_config: missing, the deployment cannot"),
        (
            "1.2.0rc6",
            "mtp",
            {"kv_cache_config": {"max_tokens": 8}},
            "free_gpu_memory_fraction: missing",
        ),
    ],
)
def test_a_planted_fault_beside_speculation_is_reported_once(
    version: str, method: str, changes: dict[str, object], problem: str
) -> None:
    arguments = render(make_deployment(method), version).arguments
    known = validate_llm_args(arguments, version=Version(version), probe=None, model=EngineModel.TARGET)
    for key, value in changes.items():
        arguments.pop(key, None)
        arguments |= {} if value is ... else {key: value}
    found = validate_llm_args(arguments, version=Version(version), probe=None, model=EngineModel.TARGET)
    assert len([one for one in found if problem in one]) == 1, found
    assert len(found) == len(known) + 1


def test_rejection_sampling_and_guides_exclude_each_other() -> None:
    config = make_deployment("eagle3", tensorrt_llm={"guided_decoding_backend": "xgrammar"})
    arguments = render(config, "1.3.0rc27").arguments
    assert validate_llm_args(arguments, version=Version("1.3.0rc27"), probe=None) == []
    section(arguments, "speculative_config")["use_rejection_sampling"] = True
    (problem,) = validate_llm_args(arguments, version=Version("1.3.0rc27"), probe=None)
    assert "use_rejection_sampling: it and guided_decoding_backend exclude each other" in problem


@pytest.mark.parametrize("settings", [{"tensor_parallel": 2}, {"tensor_parallel": 2, "expert_parallel": 2}])
def test_gpus_of_the_config_that_the_arguments_lack_are_reported(settings: dict[str, int]) -> None:
    config = make_deployment("mtp", tensorrt_llm=settings)
    arguments = render(config, "1.2.0rc6").arguments
    assert validate_llm_args(arguments, version=Version("1.2.0rc6"), probe=None, config=config) == []
    for key in ("tensor_parallel_size", "moe_expert_parallel_size"):
        arguments.pop(key, None)
    found = validate_llm_args(arguments, version=Version("1.2.0rc6"), probe=None, config=config)
    assert len(found) == len(settings)


def test_an_instance_without_drafting_may_guide_and_overlap() -> None:
    config = make_deployment("ngram", tensorrt_llm={"guided_decoding_backend": "xgrammar"})
    arguments = render(config, "1.0.0", model=EngineModel.TARGET_PLAIN).arguments
    found = validate_llm_args(arguments, version=Version("1.0.0"), probe=None, model=EngineModel.TARGET_PLAIN)
    assert found == []


def test_an_open_spelling_is_not_taken_on_trust() -> None:
    for decoding_type in ("Eagle", "Eagle3"):
        problems = planted("1.2.1", "eagle3", {"decoding_type": decoding_type})
        assert any("either Eagle or Eagle3" in problem for problem in problems)


def test_planted_keys_outside_speculation_are_reported_all_at_once() -> None:
    arguments = render(make_deployment("ngram"), "1.2.0rc6").arguments
    arguments |= {"quant_config": {}, "max_batch_size": "8", "disable_overlap_scheduler": False}
    section(arguments, "kv_cache_config")["free_memory"] = 0.5
    section(arguments, "kv_cache_config")["free_gpu_memory_fraction"] = 1.5
    del arguments["model"]
    problems = validate_llm_args(arguments, version=Version("1.2.0rc6"), probe=None)
    places = sorted(problem.split(":")[0] for problem in problems)
    assert places == [
        "disable_overlap_scheduler",
        "kv_cache_config.free_gpu_memory_fraction",
        "kv_cache_config.free_memory",
        "max_batch_size",
        "model",
        "quant_config",
    ]


@pytest.mark.parametrize(
    ("version", "probe", "foreign"),
    [("1.2.1", PROBES_121[0], {1: 4, 3: 2, 7: 0}), ("1.3.0rc27", None, {1: 4, 4: 2})],
)
def test_a_well_formed_schedule_of_the_other_meaning_is_found_against_the_plan(
    version: str, probe: ProbeRecord | None, foreign: dict[int, int]
) -> None:
    config = make_deployment("draft_model", tensorrt_llm=SWAP, speculation={"draft_len_by_in_flight": BY_LOAD})
    arguments = render(config, version, probe).arguments
    assert validate_llm_args(arguments, version=Version(version), probe=probe, config=config) == []
    section(arguments, "speculative_config")["draft_len_schedule"] = foreign
    assert validate_llm_args(arguments, version=Version(version), probe=probe) == []
    problems = validate_llm_args(arguments, version=Version(version), probe=probe, config=config)
    assert problems
    assert all("the config says" in problem for problem in problems)


def test_the_facts_name_a_guided_backend_that_the_config_may_choose() -> None:
    for column in load_facts(LLM_ARGS_FILE)["versions"].values():
        if "base" in column:
            assert column["base"]["guided_decoding_backend"]["choices"] == ["xgrammar", "llguidance"]
