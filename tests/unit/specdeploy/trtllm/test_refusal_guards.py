"""Rows of the fact sheet without a rule of refusals: the place that `GUARDS` names refuses them or cannot do them."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

from helpers.deployment_files import write_deployment
from helpers.fabricated_checkpoints import SMALL, byte_level_tokenizer
from helpers.pair_files import write_model
from helpers.refusal_cases import ENGINE_METHODS, LLMAPI_METHODS, SWAP, Case, info, llmapi
from helpers.tiny_checkpoint import EOS_ID, make_tokenizer
from specdeploy.builders.engine_records import EngineInputs, EngineTools, plan_engines
from specdeploy.builders.pair import Consent, check_pair
from specdeploy.builders.trtllm_commands import plan_commands
from specdeploy.checkpoint.pair import PairSettings, inspect_pair
from specdeploy.config.load import load_deployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel, EngineRecord, Method
from specdeploy.errors import CheckpointError, ConfigError, RequestError
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.pbtxt import parse_pbtxt
from specdeploy.packager.repository import public_model_config, render_repository
from specdeploy.packager.tensors import INPUTS
from specdeploy.planner.schedule import plan_from_config
from specdeploy.serving.adapters.draft_rounds import off_reason_of
from specdeploy.serving.adapters.llmapi_placement import Instance, Placement, Setup, place_request
from specdeploy.serving.request import ServingLimits, ServingRequest, parse_request
from specdeploy.trtllm.facts import build_flags, llm_args_column, llm_args_fields, speculative_column, speculative_types
from specdeploy.trtllm.llm_args import render_llm_args, validate_llm_args
from specdeploy.trtllm.refusals import GUARDS

TOKENIZER = make_tokenizer()
MAIN = Version("1.3.0rc27")
VERSIONS = ("1.0.0", "1.1.0", "1.2.0", "1.2.1", "1.3.0rc27", "1.4.0rc1")
COVERED: set[tuple[str, str]] = set()

Test = Callable[..., None]


def guards(row: str, place: str) -> Callable[[Test], Test]:
    """Marks a test of one entry of `GUARDS`."""
    COVERED.add((row, place))
    return lambda test: test


# --- what the guards are asked ----------------------------------------------------------------------------------------


def parse(tensors: Mapping[str, object], *, serves_guides: bool = False) -> ServingRequest:
    inputs: dict[str, object] = {"text_input": b"hello", "max_tokens": 5, **tensors}
    arrays: dict[str, np.ndarray[Any, Any]] = {
        name: np.array([value], dtype=object if isinstance(value, bytes) else None) for name, value in inputs.items()
    }
    limits = ServingLimits(64, TOKENIZER.get_vocab_size(), longest_token_bytes=8, serves_guides=serves_guides)
    return parse_request(arrays, TOKENIZER, limits, frozenset({EOS_ID}))


def render(case: Case, model: EngineModel = EngineModel.TARGET) -> dict[str, Any]:
    rendered = render_llm_args(
        case.config(),
        version=Version(case.version),
        probe=None,
        model=model,
        target_path="/target",
        draft_path="/draft",
        kv_tokens=1000,
    )
    return rendered.arguments


def rendered_everywhere() -> list[dict[str, Any]]:
    return [render(llmapi(method, version=version)) for method in LLMAPI_METHODS for version in VERSIONS]


def problems_of(arguments: dict[str, Any], version: str, config: DeploymentConfig | None = None) -> str:
    return " | ".join(validate_llm_args(arguments, version=Version(version), probe=None, config=config))


def engine_inputs(method: Method, **changes: Any) -> EngineInputs:
    config = Case(method, **changes).config()
    assert config.tensorrt_llm is not None
    return EngineInputs(
        config, config.tensorrt_llm, Version("1.2.1"), info(num_bytes=1), info(num_bytes=1), EngineTools()
    )


def packed(case: Case) -> dict[str, Any]:
    """Model folder -> its config.pbtxt, parsed, as the packager writes them."""
    engines: tuple[EngineRecord, ...]
    if case.engine:
        engines = plan_engines(engine_inputs(case.method))
    else:
        engines = (
            EngineRecord(
                model=EngineModel.TARGET,
                folder="target",
                decoding="NGram",
                max_draft_len=4,
                max_batch_size=8,
                max_seq_len=4096,
                max_num_tokens=8192,
                dtype="bfloat16",
            ),
        )
    build = PackagedBuild(
        folder="/engines/0123456789abcdef",
        engines=tuple(engine.model_copy(update={"kv_tokens": 50_000, "gpu_ids": (0,)}) for engine in engines),
        memory=None,
        versions={"tensorrt_llm": "1.2.1"},
    )
    files = render_repository(case.config(), build)
    return {
        name.split("/", 1)[0]: parse_pbtxt(text, name) for name, text in files.items() if name.endswith("config.pbtxt")
    }


def place(request: ServingRequest, case: Case, *, version: Version = MAIN, **speculative: object) -> Placement:
    """Where a request runs; a plain instance is beside unless the case swaps."""
    config = case.config()
    assert config.tensorrt_llm is not None
    backend = {"guided_decoding_backend": config.tensorrt_llm.guided_decoding_backend}
    drafting = Setup(version, backend | {"speculative_config": {"decoding_type": "Eagle3"} | speculative})
    plain = None if config.tensorrt_llm.plain_instance == "swap" else Setup(version, backend)
    return place_request(request, plan_from_config(config), 1, speculative=drafting, plain=plain)


# --- every guard has a test -------------------------------------------------------------------------------------------


def test_every_guard_is_there_and_tested() -> None:
    assert {(guard.row, guard.place) for guard in GUARDS} == COVERED
    for guard in GUARDS:
        module, _, name = guard.place.partition(":")
        assert callable(getattr(importlib.import_module(module), name)), guard.place
        assert guard.how


# --- guided decoding --------------------------------------------------------------------------------------------------


@guards("guided decoding through Triton llmapi", "specdeploy.packager.repository:render_repository")
def test_the_stock_model_without_guided_inputs_is_never_packed() -> None:
    models = packed(llmapi())
    assert list(models) == ["llm"]
    inputs = {tensor.name for tensor in models["llm"].input}
    assert {"guided_decoding_guide_type", "guided_decoding_guide"} <= inputs


@guards("guided decoding through Triton llmapi", "specdeploy.serving.request:parse_request")
def test_a_guide_that_nothing_enforces_is_refused() -> None:
    guide = {"guided_decoding_guide_type": b"regex", "guided_decoding_guide": b"[ab]+"}
    with pytest.raises(RequestError, match="guided_decoding_guide_type: nothing in this deployment enforces it"):
        parse(guide)
    assert parse(guide, serves_guides=True).guide is not None


@guards("speculation + guided decoding", "specdeploy.serving.adapters.llmapi_placement:place_request")
def test_a_guided_request_is_not_drafted_for() -> None:
    guided = {"guided_decoding_backend": "xgrammar"}
    request = parse({"guided_decoding_guide_type": b"json"}, serves_guides=True)
    beside = place(request, llmapi(section=guided))
    assert (beside.instance, beside.off_reason) == (Instance.PLAIN, "constrained")
    with pytest.raises(RequestError, match="guided_decoding_guide_type"):
        place(request, llmapi(section=guided | SWAP))
    assert place(parse({}), llmapi(section=guided)).instance is Instance.SPECULATIVE


@guards("speculation + guided decoding", "specdeploy.serving.adapters.draft_rounds:off_reason_of")
@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_a_guided_request_is_not_drafted_for_by_engines(method: Method) -> None:
    guided = parse({"guided_decoding_guide_type": b"json"}, serves_guides=True)
    assert off_reason_of(guided, method) == "constrained"
    assert off_reason_of(parse({}), method) is None


@guards("guided decoding + use_rejection_sampling", "specdeploy.trtllm.llm_args:render_llm_args")
def test_rejection_sampling_is_never_asked_for(tmp_path: Path) -> None:
    known = speculative_types(speculative_column(MAIN))["MTP"]
    assert "use_rejection_sampling" in known
    assert all("use_rejection_sampling" not in arguments["speculative_config"] for arguments in rendered_everywhere())
    overrides = {"speculation": {"method": "ngram", "max_draft_len": 4, "use_rejection_sampling": True}}
    with pytest.raises(ConfigError, match=r"speculation\.use_rejection_sampling: unknown key"):
        load_deployment(write_deployment(tmp_path, overrides=overrides))


# --- drafting on and off ----------------------------------------------------------------------------------------------


@guards("per-request drafting switch", "specdeploy.serving.adapters.llmapi_placement:place_request")
def test_a_request_without_drafts_needs_the_plain_instance() -> None:
    request = parse({"num_draft_tokens": 0})
    assert place(request, llmapi()).instance is Instance.PLAIN
    with pytest.raises(RequestError, match="num_draft_tokens: drafting cannot be off for one request"):
        place(request, llmapi(section=SWAP))


@guards(
    "penalties + one-model speculation without enable_penalty",
    "specdeploy.serving.adapters.llmapi_placement:place_request",
)
@pytest.mark.parametrize("penalty", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_penalties_are_not_sent_to_an_instance_that_rejects_them(penalty: str) -> None:
    request = parse({penalty: 1.5})
    beside = place(request, llmapi())
    assert (beside.instance, beside.off_reason) == (Instance.PLAIN, "penalties")
    assert place(request, llmapi(), enable_penalty=True).instance is Instance.SPECULATIVE
    with pytest.raises(RequestError, match=f"{penalty}: TensorRT-LLM refuses penalties"):
        place(request, llmapi(section=SWAP))


@guards("drafting through `ensemble`", "specdeploy.packager.repository:render_repository")
def test_no_ensemble_is_ever_packed() -> None:
    for method in ENGINE_METHODS:
        models = packed(Case(method))
        assert "ensemble" not in models
        assert not any(
            model.platform == "ensemble" or model.HasField("ensemble_scheduling") for model in models.values()
        )


@guards(
    "BLS drafting + stream / batch / context or generation logits / decoupled sub-models",
    "specdeploy.packager.repository:render_repository",
)
def test_the_models_of_drafting_rounds_answer_once() -> None:
    models = packed(Case(Method.DRAFT_MODEL))
    policies = {name: model.model_transaction_policy.decoupled for name, model in models.items()}
    assert policies == {"llm": True, "target": False, "draft": False}
    assert models["llm"].max_batch_size == 1
    for method in (Method.MEDUSA, Method.EAGLE, Method.REDRAFTER, Method.LOOKAHEAD):
        assert all(model.model_transaction_policy.decoupled for model in packed(Case(method)).values())


@guards(
    "BLS drafting + stream / batch / context or generation logits / decoupled sub-models",
    "specdeploy.serving.request:parse_request",
)
@pytest.mark.parametrize("name", ["return_context_logits", "return_generation_logits", "use_draft_logits"])
def test_logits_are_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=f"{name}: "):
        parse({name: True})
    assert parse({name: False}).prompt == "hello"


@guards("streaming without decoupled in config.pbtxt", "specdeploy.packager.repository:public_model_config")
@pytest.mark.parametrize("case", [Case(), llmapi()], ids=["engine", "llmapi"])
def test_the_public_model_is_decoupled_in_its_own_config(case: Case) -> None:
    assert public_model_config(case.config()).decoupled
    assert packed(case)["llm"].model_transaction_policy.decoupled


# --- commands of the engine lane --------------------------------------------------------------------------------------


@guards("`--gather_context_logits` + max_draft_len > 0", "specdeploy.builders.trtllm_commands:plan_commands")
def test_context_logits_are_never_built_in() -> None:
    assert "--gather_context_logits" in build_flags(Version("1.2.1"))
    for method in ENGINE_METHODS:
        inputs = engine_inputs(method)
        steps = plan_commands(inputs, plan_engines(inputs))
        assert [step for step in steps if "--max_beam_width" in step.argv]
        assert not any("gather" in str(argument) for step in steps for argument in step.argv)


@guards("beam > 1 with draft/target or Medusa", "specdeploy.serving.request:parse_request")
def test_beams_are_refused_and_never_built_for() -> None:
    with pytest.raises(RequestError, match="beam_width: 2 - beam search is not supported"):
        parse({"beam_width": 2})
    assert parse({"beam_width": 1}).prompt == "hello"
    for method in ENGINE_METHODS:
        inputs = engine_inputs(method)
        for step in plan_commands(inputs, plan_engines(inputs)):
            if "--max_beam_width" in step.argv:
                assert step.argv[step.argv.index("--max_beam_width") + 1] == "1"


# --- arguments of the LLM API -----------------------------------------------------------------------------------------


@guards("logits processors + speculation", "specdeploy.trtllm.llm_args:render_llm_args")
def test_nothing_can_carry_a_logits_processor() -> None:
    assert "batched_logits_processor" in llm_args_fields(llm_args_column(MAIN), "base")
    assert not any("processor" in key for arguments in rendered_everywhere() for key in arguments)
    assert not any("processor" in tensor.name for tensor in INPUTS)


@guards("NGram without explicit ngram size", "specdeploy.trtllm.llm_args:render_llm_args")
@pytest.mark.parametrize("version", VERSIONS)
def test_the_ngram_size_is_always_written(version: str) -> None:
    assert render(llmapi(version=version))["speculative_config"]["max_matching_ngram_size"] == 3


@guards("overlap scheduler + NGram / user-provided", "specdeploy.trtllm.llm_args:render_llm_args")
@pytest.mark.parametrize("version", VERSIONS)
def test_ngram_runs_without_the_overlap_scheduler(version: str, tmp_path: Path) -> None:
    arguments = render(llmapi(version=version))
    assert arguments["disable_overlap_scheduler"] is True
    assert "disable_overlap_scheduler" in problems_of(arguments | {"disable_overlap_scheduler": False}, version)
    overrides = {"speculation": {"method": "user_provided", "max_draft_len": 4}}
    with pytest.raises(ConfigError, match=r'speculation\.method: "user_provided" is not allowed'):
        load_deployment(write_deployment(tmp_path, overrides=overrides))


@guards("NVFP4 / FP4 weights or KV, DFlash/DSpark attention TRTLLM", "specdeploy.config.load:load_deployment")
@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_methods_for_later_gpus_are_no_methods_here(method: str, tmp_path: Path) -> None:
    overrides = {"speculation": {"method": method, "max_draft_len": 4}}
    with pytest.raises(ConfigError, match=rf'speculation\.method: "{method}" is not allowed'):
        load_deployment(write_deployment(tmp_path, overrides=overrides))
    assert not any(arguments.get("attn_backend") for arguments in rendered_everywhere())


@guards("triton max_batch_size > 0", "specdeploy.trtllm.llm_args:validate_llm_args")
@guards("unknown YAML key", "specdeploy.trtllm.llm_args:validate_llm_args")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("triton_config", {"max_batch_size": 8}),
        ("max_batchsize", 8),
        ("pytorch_backend_config", {}),
        ("quant_config", {}),
    ],
)
def test_a_planted_key_is_found(key: str, value: object, version: str) -> None:
    arguments = render(llmapi(version=version))
    assert problems_of(arguments, version) == ""
    assert f"{key}: " in problems_of(arguments | {key: value}, version)


@guards("draft_len_schedule carried across 1.2.1 / mid-2026", "specdeploy.trtllm.llm_args:validate_llm_args")
def test_a_schedule_of_the_other_meaning_is_found() -> None:
    by_load = [
        {"min_in_flight": 1, "max_in_flight": 4, "draft_len": 4},
        {"min_in_flight": 5, "max_in_flight": 8, "draft_len": 2},
    ]
    speculation = {"draft_len_by_in_flight": by_load, "max_draft_len": 4}
    keys = {"section": SWAP, "speculation": speculation, "serving": {"max_rows": 32}}
    cases = {v: llmapi(Method.DRAFT_MODEL, version=v, **keys) for v in ("1.2.1", "1.3.0rc27")}
    schedules = {version: render(case)["speculative_config"]["draft_len_schedule"] for version, case in cases.items()}
    assert schedules["1.2.1"] == {1: 4, 5: 2, 9: 0}
    assert schedules["1.3.0rc27"] == {4: 4, 8: 2}
    for version, other in (("1.2.1", "1.3.0rc27"), ("1.3.0rc27", "1.2.1")):
        arguments = render(cases[version])
        arguments["speculative_config"] |= {"draft_len_schedule": schedules[other]}
        assert "draft_len_schedule" in problems_of(arguments, version, cases[version].config())


# --- the pair ---------------------------------------------------------------------------------------------------------


@guards("draft and target with different tokenizers", "specdeploy.builders.pair:check_pair")
@pytest.mark.parametrize("case", [Case(), llmapi(Method.DRAFT_MODEL)], ids=["engine", "llmapi"])
def test_different_tokenizers_forbid_the_build(case: Case, tmp_path: Path) -> None:
    write_model(tmp_path / "target", SMALL, tokenizer=byte_level_tokenizer(320))
    write_model(tmp_path / "same", SMALL, tokenizer=byte_level_tokenizer(320))
    write_model(tmp_path / "other", SMALL, tokenizer=byte_level_tokenizer(320, swap=(65, 66)))
    config = case.config()
    settings = PairSettings(config.speculation.method, config.lane, 64)
    consent = Consent(allow=("draft-too-costly",))
    with pytest.raises(CheckpointError, match="tokens-differ"):
        check_pair(inspect_pair(tmp_path / "target", tmp_path / "other", settings), consent)
    assert check_pair(inspect_pair(tmp_path / "target", tmp_path / "same", settings), consent)
