"""The sections that only the TensorRT-LLM lanes read: `tensorrt_llm` and the methods of heads and trees."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from helpers.deployment_files import write_deployment
from specdeploy.config.load import load_deployment
from specdeploy.config.methods import LookaheadConfig, MedusaConfig, TreePaths, lookahead_draft_len
from specdeploy.config.schema import DeploymentConfig, SpeculationConfig, TensorRtLlmConfig
from specdeploy.contract import SUPPORTED, Lane, Method
from specdeploy.errors import ConfigError, Violation

ENGINE: dict[str, Any] = {"lane": "trtllm_engine", "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"}}
LLMAPI: dict[str, Any] = ENGINE | {"lane": "trtllm_llmapi"}
HEADS: dict[str, Any] = {"draft": {"checkpoint": "head"}}
SIZES = st.integers(min_value=1, max_value=40)

# What each method needs beside its name; the numbers are those of the sections' defaults.
SPECULATION: dict[Method, dict[str, Any]] = {
    Method.DRAFT_MODEL: HEADS | {"max_draft_len": 4},
    Method.EAGLE3: HEADS | {"max_draft_len": 3},
    Method.EAGLE: HEADS | {"max_draft_len": 4},
    Method.MEDUSA: HEADS | {"max_draft_len": 4},
    Method.REDRAFTER: HEADS | {"max_draft_len": 5},
    Method.LOOKAHEAD: {"max_draft_len": 83},
    Method.NGRAM: {"max_draft_len": 4},
    Method.SUFFIX: {"max_draft_len": 8},
    Method.LAYER_SKIP: {"max_draft_len": 3, "layer_skip": {"num_layers": 2}},
    Method.AUTO: HEADS | {"max_draft_len": 4},
    Method.MTP: {"max_draft_len": 1},
}


def load(tmp_path: Path, overrides: dict[str, Any]) -> DeploymentConfig:
    return load_deployment(write_deployment(tmp_path, overrides=overrides)).config


def violations_of(tmp_path: Path, overrides: dict[str, Any]) -> list[Violation]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, overrides)
    return caught.value.violations


def speculate(method: Method, **sections: Any) -> dict[str, Any]:
    return ENGINE | {"speculation": {"method": str(method)} | SPECULATION[method] | sections}


@pytest.mark.parametrize(("lane", "method"), sorted(SUPPORTED))
def test_every_supported_pair_loads_with_the_defaults_of_its_method(lane: Lane, method: Method, tmp_path: Path) -> None:
    section = None if lane is Lane.TORCH else ENGINE["tensorrt_llm"]
    overrides = speculate(method) | {"lane": str(lane), "tensorrt_llm": section}
    assert load(tmp_path, overrides).speculation.method is method


# --- the section itself ---------------------------------------------------------------------------------------------


def test_defaults_of_the_section(tmp_path: Path) -> None:
    section = load(tmp_path, speculate(Method.LOOKAHEAD)).tensorrt_llm
    assert section == TensorRtLlmConfig(version="1.2.1", gpu="h100")
    assert section is not None
    assert (section.num_gpus, section.num_nodes, section.plain_instance) == (1, 1, "beside")
    assert (section.quantization, section.kv_cache_dtype, section.kv_cache_reuse) == ("none", "auto", True)


def test_pipeline_multiplies_gpus() -> None:
    section = TensorRtLlmConfig.model_validate(
        {"version": "1.2.1", "gpu": "h200", "tensor_parallel": 4, "pipeline_parallel": 2}
    )
    assert section.num_gpus == 8


@pytest.mark.parametrize("lane", ["trtllm_engine", "trtllm_llmapi"])
def test_both_lanes_need_the_section(lane: str, tmp_path: Path) -> None:
    (violation,) = violations_of(tmp_path, speculate(Method.DRAFT_MODEL) | {"lane": lane, "tensorrt_llm": None})
    assert (violation.key, violation.reason) == ("tensorrt_llm", f"lane {lane} needs this section")
    assert "version (such as 1.2.1)" in violation.remedy


def test_the_torch_lane_refuses_the_section(tmp_path: Path) -> None:
    (violation,) = violations_of(tmp_path, ENGINE | {"lane": "torch"})
    assert (violation.key, violation.reason) == ("tensorrt_llm", "lane torch reads no such section")


def test_a_missing_section_is_reported_although_another_one_is_broken(tmp_path: Path) -> None:
    overrides = speculate(Method.DRAFT_MODEL) | {"tensorrt_llm": None, "dtype": "int4"}
    assert sorted(violation.key for violation in violations_of(tmp_path, overrides)) == ["dtype", "tensorrt_llm"]


@pytest.mark.parametrize("version", ["1.0.0", "1.2.1", "1.0.3.2510", "1.3.0rc27", "0.17.0.post1", "1.2"])
def test_versions(version: str) -> None:
    assert TensorRtLlmConfig.model_validate({"version": version, "gpu": "h100"}).version == version


@pytest.mark.parametrize(
    "version", ["latest", "1", "v1.2.1", "1.2.1 ", "1.2.x", "1.2.1-rc1", "", ">=1.2", "1.2.1\n", "1.2.1rc"]
)
def test_texts_that_are_no_version(version: str) -> None:
    with pytest.raises(ValidationError, match="version"):
        TensorRtLlmConfig.model_validate({"version": version, "gpu": "h100"})


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("gpu", "b200", "is not allowed: these lanes are for Hopper GPUs only"),
        ("version", "latest", "is no exact version"),
        ("gpu", None, "is not allowed"),
        ("tensor_parallel", 0, "out of range"),
        ("quantization", "nvfp4", "is not allowed"),
        ("kv_cache_dtype", "nvfp4", "is not allowed"),
        ("kv_cache_fraction", 1.0, "out of range"),
        ("kv_cache_fraction", 0.0, "out of range"),
        ("plain_instance", "none", "is not allowed"),
        ("guided_decoding_backend", "outlines", "is not allowed"),
        ("use_rejection_sampling", True, "unknown key"),
        ("draft_len_schedule", {"1": 4}, "unknown key"),
    ],
)
def test_values_of_the_section(key: str, value: object, reason: str, tmp_path: Path) -> None:
    overrides = speculate(Method.DRAFT_MODEL) | {"tensorrt_llm": ENGINE["tensorrt_llm"] | {key: value}}
    (violation,) = violations_of(tmp_path, overrides)
    assert violation.key == f"tensorrt_llm.{key}"
    assert reason in violation.reason, violation


# --- trees ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "key", "reason"),
    [
        ([], "", "an empty tree proposes nothing"),
        ([[]], "[0]", "an empty path"),
        ([[0], [0]], "[1]", "path [0] is there already"),
        ([[0, 0]], "[0]", "path [0, 0] has no parent [0]"),
        ([[0], [1, 0], [1, 0, 2]], "[1]", "path [1, 0] has no parent [1]"),
    ],
)
def test_paths_that_are_no_tree(choices: list[list[int]], key: str, reason: str, tmp_path: Path) -> None:
    violations = violations_of(tmp_path, speculate(Method.MEDUSA, medusa={"choices": choices}))
    assert [(one.key, one.reason) for one in violations] == [(f"speculation.medusa.choices{key}", reason)]


def test_a_parent_may_come_after_its_child() -> None:
    assert TreePaths(choices=((0, 1), (0,))).depth == 2


@given(st.sets(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=8))
def test_paths_are_accepted_exactly_when_every_prefix_is_there(paths: set[tuple[int, ...]]) -> None:
    is_tree = all(path[:-1] in paths or len(path) == 1 for path in paths)
    closed = {path[:length] for path in paths for length in range(1, len(path) + 1)}
    if is_tree:
        assert TreePaths(choices=tuple(paths)).depth == max(map(len, paths))
    else:
        with pytest.raises(ValidationError, match="has no parent"):
            TreePaths(choices=tuple(paths))
    assert TreePaths(choices=tuple(closed)).depth == max(map(len, paths))


def test_the_default_tree_has_no_depth_of_its_own() -> None:
    assert MedusaConfig().depth is None


# --- K, where the method's own numbers say what it is -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sections", "key", "reason"),
    [
        (
            Method.MEDUSA,
            {"medusa": {"num_heads": 2, "choices": [[0], [0, 0], [0, 0, 0]]}, "max_draft_len": 2},
            "medusa.choices",
            "3 tokens deep and there are 2 heads",
        ),
        (Method.MEDUSA, {"max_draft_len": 5}, "max_draft_len", "5 exceeds the 4 Medusa heads"),
        (
            Method.EAGLE,
            {"eagle": {"choices": [[0], [0, 0]]}},
            "eagle.choices",
            "2 deep and num_layers is 4",
        ),
        (Method.EAGLE, {"max_draft_len": 3}, "max_draft_len", "3 is not eagle.num_layers 4"),
        (Method.REDRAFTER, {"max_draft_len": 4}, "max_draft_len", "is not redrafter.draft_len_per_beam 5"),
        (Method.LOOKAHEAD, {"max_draft_len": 82}, "max_draft_len", "82 is not the 83 tokens of lookahead (7, 7, 7)"),
        (
            Method.LOOKAHEAD,
            {"lookahead": {"window_size": 4, "ngram_size": 3, "verification_set_size": 4}},
            "max_draft_len",
            "83 is not the 15 tokens of lookahead (4, 3, 4)",
        ),
    ],
)
def test_lengths_that_do_not_fit(
    method: Method, sections: dict[str, Any], key: str, reason: str, tmp_path: Path
) -> None:
    (violation,) = violations_of(tmp_path, speculate(method, **sections))
    assert (violation.key, reason in violation.reason) == (f"speculation.{key}", True), violation
    assert violation.remedy


def test_all_wrong_lengths_of_medusa_are_reported_at_once(tmp_path: Path) -> None:
    medusa = {"num_heads": 1, "choices": [[0], [0, 0]]}
    keys = [one.key for one in violations_of(tmp_path, speculate(Method.MEDUSA, medusa=medusa))]
    assert keys == ["speculation.medusa.choices", "speculation.max_draft_len"]


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        (Method.MEDUSA, {"medusa": {"num_heads": 3, "choices": [[0], [0, 0], [1]]}, "max_draft_len": 2}),
        (Method.EAGLE, {"eagle": {"num_layers": 2, "choices": [[0], [0, 0], [1]]}, "max_draft_len": 2}),
        (Method.REDRAFTER, {"redrafter": {"num_beams": 2, "draft_len_per_beam": 3}, "max_draft_len": 3}),
        (
            Method.LOOKAHEAD,
            {"lookahead": {"window_size": 2, "ngram_size": 2, "verification_set_size": 1}, "max_draft_len": 2},
        ),
    ],
)
def test_lengths_that_fit(method: Method, sections: dict[str, Any], tmp_path: Path) -> None:
    assert load(tmp_path, speculate(method, **sections)).speculation.method is method


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("ngram", {"max_matching_ngram_size": 5}),
        ("medusa", {"num_heads": 2}),
        ("eagle", {"num_layers": 2}),
        ("redrafter", {"num_beams": 2}),
        ("lookahead", {"window_size": 4}),
    ],
)
def test_a_section_of_another_method_is_refused_and_not_ignored(
    section: str, value: dict[str, int], tmp_path: Path
) -> None:
    (violation,) = violations_of(tmp_path, speculate(Method.DRAFT_MODEL, **{section: value}))
    assert violation.key == f"speculation.{section}"
    readers = f"only method {section} reads it"
    if section in ("ngram", "medusa", "eagle"):
        readers = f"only methods {section} and auto read it"
    assert violation.reason == f"{readers}, not draft_model"


@pytest.mark.parametrize("method", [Method.EAGLE, Method.EAGLE3, Method.MEDUSA, Method.REDRAFTER])
def test_heads_need_a_checkpoint(method: Method) -> None:
    with pytest.raises(ValidationError, match=f"method {method} needs a draft. Name the draft heads"):
        SpeculationConfig(method=method, max_draft_len=SPECULATION[method]["max_draft_len"])


@pytest.mark.parametrize("method", [Method.LOOKAHEAD, Method.MTP, Method.NGRAM])
def test_methods_that_draft_from_the_target_refuse_a_checkpoint(method: Method) -> None:
    with pytest.raises(ValidationError, match=f"method {method} needs no checkpoint"):
        SpeculationConfig.model_validate({"method": method} | SPECULATION[method] | HEADS)


# --- the formula of lookahead -----------------------------------------------------------------------------------------


def of(window: int, ngram: int, verification: int) -> int:
    return lookahead_draft_len(
        LookaheadConfig(window_size=window, ngram_size=ngram, verification_set_size=verification)
    )


@pytest.mark.parametrize(
    ("sizes", "tokens"), [((7, 7, 7), 83), ((1, 1, 1), 0), ((2, 2, 1), 2), ((4, 3, 4), 15), ((1, 2, 1), 1)]
)
def test_lookahead_by_hand(sizes: tuple[int, int, int], tokens: int) -> None:
    assert of(*sizes) == tokens


@given(SIZES, SIZES, SIZES)
def test_lookahead_never_shrinks_as_a_number_grows(window: int, ngram: int, verification: int) -> None:
    tokens = of(window, ngram, verification)
    assert tokens >= 0
    assert (tokens == 0) == (ngram == 1)
    assert of(window, ngram + 1, verification) > tokens
    for grown in (of(window + 1, ngram, verification), of(window, ngram, verification + 1)):
        assert grown - tokens == ngram - 1


@given(SIZES, SIZES, SIZES)
def test_window_and_verification_weigh_the_same(window: int, ngram: int, verification: int) -> None:
    assert of(window, ngram, verification) == of(verification, ngram, window)


@given(SIZES, SIZES, SIZES)
def test_k_of_lookahead_is_taken_exactly_when_it_is_the_formulas(window: int, ngram: int, verification: int) -> None:
    sizes = LookaheadConfig(window_size=window, ngram_size=ngram, verification_set_size=verification)
    due = lookahead_draft_len(sizes)
    for k in (due - 1, due, due + 1):
        if not 1 <= k <= 255:
            continue
        if k == due:
            assert SpeculationConfig(method=Method.LOOKAHEAD, max_draft_len=k, lookahead=sizes).max_draft_len == due
        else:
            with pytest.raises(ValidationError, match=f"is not the {due} tokens"):
                SpeculationConfig(method=Method.LOOKAHEAD, max_draft_len=k, lookahead=sizes)
