"""Repository against config and build: right ones pass, each planted fault is named, and all of them at once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.engine_builds import ENGINE_METHODS, make_build, make_config, make_record
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel
from specdeploy.errors import PackagingError
from specdeploy.packager.cross_checks import cross_check, effective_concurrency
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.repository import pack_repository, render_repository
from specdeploy.trtllm.parallel_rules import tokens_per_step

Files = dict[str, str]
METHODS = (*ENGINE_METHODS, "ngram")


def check(config: DeploymentConfig, build: PackagedBuild, change: Callable[[Files], None] | None = None) -> list[str]:
    files = render_repository(config, build)
    if change is not None:
        change(files)
    return cross_check(config, build, files)


def in_file(name: str, old: str, new: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        assert old in files[name], old
        files[name] = files[name].replace(old, new)

    return change


def set_parameter(model: str, key: str, value: str | None) -> Callable[[Files], None]:
    """Give a parameter another value; None removes it."""

    def change(files: Files) -> None:
        name = f"{model}/config.pbtxt"
        before, _, rest = files[name].partition(f'parameters {{\n  key: "{key}"\n')
        after = rest[rest.index("\n}\n") + 3 :] if rest else ""
        entry = "" if value is None else f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        files[name] = before + entry + after

    return change


@pytest.mark.parametrize("method", METHODS)
def test_what_is_rendered_for_a_fitting_build_passes(method: str) -> None:
    assert check(make_config(method), make_build(method)) == []


@pytest.mark.parametrize("method", ["medusa", "eagle", "redrafter"])
def test_one_engine_without_a_plain_instance(method: str) -> None:
    config = make_config(method, tensorrt_llm={"plain_instance": "swap"})
    assert check(config, make_build(method, has_plain_instance=False)) == []


@pytest.mark.parametrize(
    ("method", "change", "problem"),
    [
        ("draft_model", in_file("llm/config.pbtxt", '"big"', '"${name}"'), "llm/config.pbtxt: an unfilled template"),
        ("draft_model", in_file("launch.sh", "here=", "root=${root}\nhere="), "launch.sh: an unfilled template"),
        (
            "draft_model",
            in_file("draft/config.pbtxt", 'name: "draft"', 'name: "target"'),
            "'target' is not that of its",
        ),
        ("draft_model", in_file("target/config.pbtxt", "name", "nam"), "not a Triton model config"),
        ("draft_model", lambda files: files.pop("draft/config.pbtxt"), "draft: `llm` calls this model"),
        ("draft_model", lambda files: files.pop("llm/config.pbtxt"), "llm/config.pbtxt: is missing"),
        (
            "lookahead",
            lambda files: files.update({"extra/config.pbtxt": 'name: "extra"'}),
            "extra: nothing calls this model with method lookahead",
        ),
        (
            "draft_model",
            in_file("llm/config.pbtxt", "decoupled: true", "decoupled: false"),
            "llm/config.pbtxt: is not dec",
        ),
        (
            "draft_model",
            in_file(
                "draft/config.pbtxt", "model_transaction_policy {\n", "model_transaction_policy {\n decoupled: true\n"
            ),
            "draft/config.pbtxt: is decoupled",
        ),
        ("lookahead", in_file("target/config.pbtxt", "decoupled: true", ""), "target/config.pbtxt: is not decoupled"),
        (
            "medusa",
            in_file("target/config.pbtxt", "max_batch_size: 8", "max_batch_size: 16"),
            "16 is not the engine's 8",
        ),
        (
            "medusa",
            set_parameter("target", "decoding_mode", None),
            "decoding_mode: unset with an engine built for medusa",
        ),
        ("medusa", set_parameter("target_plain", "decoding_mode", "medusa"), "medusa with an engine built for plain"),
        ("medusa", set_parameter("target", "decoding_mode", "eagle"), "eagle with an engine built for medusa"),
        (
            "medusa",
            set_parameter("target", "medusa_choices", "{0}, {0, 0, 0, 0, 0}"),
            "a path of 5 tokens, and heads are 4",
        ),
        ("eagle", set_parameter("target", "eagle_choices", "{0}, {0, 0}"), "a path of 2 tokens, and layers are 4"),
        ("lookahead", set_parameter("target", "lookahead_ngram_size", None), "all or none must be"),
        (
            "draft_model",
            set_parameter("draft", "enable_kv_cache_reuse", "false"),
            "needs it. Write tensorrt_llm.kv_cache",
        ),
        (
            "draft_model",
            set_parameter("draft", "max_tokens_in_paged_kv_cache", None),
            "a fraction alone does not divide",
        ),
        (
            "draft_model",
            set_parameter("draft", "max_tokens_in_paged_kv_cache", "7"),
            "7 are not the 100000 of the memory",
        ),
        ("draft_model", set_parameter("draft", "gpt_model_path", "/elsewhere"), "gpt_model_path: /elsewhere is not"),
        ("draft_model", set_parameter("draft", "participant_ids", "1"), "participant_ids: the processes"),
        ("draft_model", set_parameter("draft", "guided_decoding_backend", None), "does not load a model without it"),
        ("draft_model", set_parameter("draft", "enable_trt_overlap", "true"), "the model has no such parameter"),
    ],
)
def test_a_planted_fault_is_named(method: str, change: Callable[[Files], None], problem: str) -> None:
    found = check(make_config(method), make_build(method), change)
    assert any(problem in text for text in found), found


@pytest.mark.parametrize(
    ("method", "changes", "problem"),
    [
        ("draft_model", {"max_batch_size": 4}, "built for 4 requests at once, serving.max_rows is 8"),
        ("draft_model", {"max_seq_len": 1024}, "built for 1024 tokens, serving.max_seq_len is 2048"),
        ("draft_model", {"max_draft_len": 3}, "verifies 3 draft tokens in a step, the config needs 5"),
        ("medusa", {"max_draft_len": 62}, "verifies 62 draft tokens in a step, the config needs 63"),
        ("lookahead", {"max_draft_len": 90}, "its sizes make 83 draft tokens and the engine was built for 90"),
        ("redrafter", {"max_draft_len": 24}, "the config needs 25"),
        ("draft_model", {"decoding": "medusa"}, "built for medusa, not for draft_tokens_external"),
        ("draft_model", {"kv_tokens": 1024}, "holds 1024 tokens, not one request of 2048"),
        ("draft_model", {"kv_tokens": None}, "a fraction alone does not divide a GPU"),
        ("draft_model", {"gpu_ids": (8,)}, "GPU 8 is not within a node of 8"),
        ("draft_model", {"gpu_ids": (0, 1)}, "2 GPUs for 1 ranks"),
        ("draft_model", {"gpu_ids": (0, 0), "tensor_parallel": 2}, "names a GPU twice"),
        ("draft_model", {"folder": "engine"}, "engine: several engines lie in this folder"),
        ("draft_model", {"folder": "/engine"}, "'/engine' is not below the build"),
    ],
)
def test_a_build_that_does_not_fit_the_config(method: str, changes: dict[str, Any], problem: str) -> None:
    found = check(make_config(method), make_build(method, **changes))
    assert any(problem in text for text in found), found


def test_an_engine_that_the_build_lacks() -> None:
    build = make_build("draft_model")
    found = check(make_config("draft_model"), replace(build, engines=build.engines[:1]))

    assert "draft: `llm` calls this model and the repository has none of that name" in found
    assert "draft: the build has 0 engines of that name. Run `make engines`" in found


def test_reuse_switched_off_with_a_draft_model() -> None:
    found = check(make_config(tensorrt_llm={"kv_cache_reuse": False}), make_build())
    assert sum("enable_kv_cache_reuse" in text for text in found) == 2


def test_several_nodes_need_a_method_with_one_engine() -> None:
    changes: dict[str, Any] = {"tensor_parallel": 8, "pipeline_parallel": 2, "gpu_ids": tuple(range(8))}
    sizes = {"num_nodes": 2, "tensor_parallel": 8, "pipeline_parallel": 2}

    assert check(make_config("lookahead", tensorrt_llm=sizes), make_build("lookahead", **changes)) == []
    found = check(make_config("draft_model", tensorrt_llm=sizes), make_build("draft_model", **changes))
    assert any("2 nodes and 2 engines" in text for text in found)


@pytest.mark.parametrize(
    ("backend", "problems"),
    [
        ("xgrammar", ["holds no tokenizer information"]),
        ("llguidance", ["Write xgrammar", "holds no tokenizer information"]),
    ],
)
def test_guided_decoding_of_the_engine_lane(backend: str, problems: list[str]) -> None:
    config = make_config("lookahead", tensorrt_llm={"guided_decoding_backend": backend})
    found = check(config, make_build("lookahead"))

    assert len(found) == len(problems)
    assert all(problem in text for problem, text in zip(problems, found, strict=True))
    with_file = check(config, replace(make_build("lookahead"), guided_tokenizer_info="target/x.json"))
    assert [text for text in with_file if text.startswith("tensorrt_llm.")] == found[:-1]
    assert bool(with_file) is (backend != "xgrammar")


def test_unresolved_values_are_refused_in_both_lanes() -> None:
    sentence = "llm_args.yaml: line 9: decoding_type: unresolved:DraftTarget|Draft_Target"
    for method in ("ngram", "draft_model"):
        build = replace(make_build(method), unresolved=(sentence,))
        assert check(make_config(method), build) == [f"unresolved: {sentence}"]


def test_everything_at_once_and_nothing_written(tmp_path: Path) -> None:
    build = replace(make_build(max_batch_size=2, max_draft_len=1, kv_tokens=64), unresolved=("x",))
    with pytest.raises(PackagingError) as caught:
        pack_repository(make_config(), tmp_path / "repo", build)

    for part in ("unresolved: x", "built for 2 requests", "verifies 1 draft tokens", "holds 64 tokens"):
        assert part in str(caught.value)
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("method", "speculation", "due"),
    [
        ("draft_model", {}, 5),
        ("medusa", {}, 63),
        ("medusa", {"medusa": {"choices": [[0], [0, 0], [1]]}}, 3),
        ("eagle", {}, 63),
        ("redrafter", {"redrafter": {"num_beams": 3, "draft_len_per_beam": 5}}, 15),
        ("lookahead", {}, 83),
        ("ngram", {}, 4),
    ],
)
def test_draft_tokens_of_one_step(method: str, speculation: dict[str, Any], due: int) -> None:
    assert tokens_per_step(make_config(method, speculation=speculation).speculation) == due


@pytest.mark.parametrize(
    ("changes", "number", "limit"),
    [
        ({}, 8, "serving.max_rows 8"),
        ({"max_batch_size": 6}, 6, "max_batch_size 6 of engine target"),
        ({"kv_tokens": 6143}, 2, "key/value cache of target: 6143 tokens / max_seq_len 2048"),
        ({"kv_tokens": None}, 8, "serving.max_rows 8"),
    ],
)
def test_the_smallest_limit_sets_the_concurrency(changes: dict[str, Any], number: int, limit: str) -> None:
    found = effective_concurrency(make_config(), make_build(**changes).engines)
    assert (found.num_requests, found.limit) == (number, limit)


def test_the_engine_with_the_smallest_cache_limits() -> None:
    engines = (
        make_record(EngineModel.TARGET, "medusa", 63, kv_tokens=20_480),
        make_record(EngineModel.TARGET_PLAIN, None, 0, kv_tokens=4096),
    )
    found = effective_concurrency(make_config("medusa"), engines)
    assert (found.num_requests, "target_plain" in found.limit) == (2, True)


def test_without_engines_the_rows_limit() -> None:
    assert effective_concurrency(make_config(), ()).limit == "serving.max_rows 8"


@pytest.mark.parametrize(("tokens", "expected"), [(100_000_000, 8), (3 * 2048 + 5, 3), (100, 1)])
def test_bounded_memory_of_lane_torch_limits_full_requests(tokens: int, expected: int) -> None:
    config = make_config()
    serving = config.serving.model_copy(update={"kv_cache_tokens": tokens, "max_rows": 8, "max_seq_len": 2048})

    found = effective_concurrency(config.model_copy(update={"serving": serving}), ())

    assert found.num_requests == expected
    assert ("kv_cache_tokens" in found.limit) is (expected < 8)
