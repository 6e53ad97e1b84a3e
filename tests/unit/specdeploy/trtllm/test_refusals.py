"""What the TensorRT-LLM lanes refuse: every rule with a deployment that meets it and one that does not, every row of
the fact sheet with its rule or with the place that refuses it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.refusal_cases import (
    ENGINE_METHODS,
    FILE,
    LLMAPI_METHODS,
    PAIRS,
    Case,
    Pair,
    head,
    info,
    llmapi,
    quantised,
)
from specdeploy.config.load import load_deployment
from specdeploy.contract import Lane, Method
from specdeploy.errors import BuildError, ConfigError
from specdeploy.trtllm.parallel_rules import tokens_per_step
from specdeploy.trtllm.refusals import GUARDS, REFUSALS, DeploymentFacts, find_notes, find_refusals
from specdeploy.trtllm.versions import parse_version

REPO = Path(__file__).parents[4]

# "What the pipeline must refuse": the request, the versions, and the reason, as the fact sheet has them.
ROWS: Mapping[str, tuple[str, str]] = {
    "engine flow": (">= 1.3", "removed"),
    "Medusa, lookahead, ReDrafter": ("LLM API, any", "not on the PyTorch backend"),
    "EAGLE v1/v2 checkpoints": ("LLM API", "only EAGLE-3 loads"),
    "speculation + pipeline parallel > 1": (
        "LLM API; EAGLE in the engine flow",
        "documented no; converter asserts pp 1",
    ),
    "speculation + guided decoding": ("LLM API <= 1.0; engine flow all", "ValueError; unverified and unsafe"),
    "guided decoding through Triton llmapi": ("all", "no input for it"),
    "guided decoding + use_rejection_sampling": ("main", "refused by validator"),
    "per-request drafting switch": ("LLM API", "none; restart"),
    "drafting through `ensemble`": ("engine", "no input"),
    "BLS drafting + stream / batch / context or generation logits / decoupled sub-models": (
        "engine",
        "refused or raises",
    ),
    "`--gather_context_logits` + max_draft_len > 0": ("engine", "RuntimeError"),
    "beam > 1 with draft/target or Medusa": ("engine", "unsupported"),
    "logits processors + speculation": ("LLM API", "documented no"),
    "penalties + one-model speculation without enable_penalty": ("main", "request rejected"),
    "NGram without explicit ngram size": ("1.0 - 1.2.1", "default 0 fails"),
    "overlap scheduler + NGram / user-provided": ("all", "unsupported"),
    "NVFP4 / FP4 weights or KV, DFlash/DSpark attention TRTLLM": ("H100/H200", "Blackwell only"),
    "triton max_batch_size > 0": ("llmapi", "not implemented"),
    "streaming without decoupled in config.pbtxt": ("llmapi via launch script", "setting ignored"),
    "unknown YAML key": (">= 1.0", "strict models"),
    "draft_len_schedule carried across 1.2.1 / mid-2026": ("-", "other meaning"),
    "draft and target with different tokenizers": ("all", "acceptance collapses"),
}

# Refused while the file is read already, so that no config can be made of it: see the test of its own.
NOT_LOADABLE = {"method-not-in-lane"}


@pytest.mark.parametrize(("code", "pair"), [(code, pair) for code, pairs in PAIRS.items() for pair in pairs])
def test_each_rule_refuses_what_it_is_for_and_nothing_beside_it(code: str, pair: Pair) -> None:
    found = pair.bad.refusals()
    assert code in found, found
    violation = found[code]
    assert (violation.file, violation.key) == (FILE, pair.key)
    assert pair.words in violation.reason, violation
    assert violation.remedy.endswith("."), violation
    assert not violation.reason.endswith(".")
    assert code not in pair.good.refusals()


def test_every_rule_has_such_a_pair() -> None:
    codes = [rule.code for rule in REFUSALS]
    assert len(codes) == len(set(codes))
    assert set(codes) == PAIRS.keys() | NOT_LOADABLE


@pytest.mark.parametrize("engine", [True, False])
def test_a_deployment_with_its_defaults_is_refused_by_nothing(engine: bool) -> None:
    methods = ENGINE_METHODS if engine else LLMAPI_METHODS
    for method in methods:
        for target, draft in ((None, None), (info(num_mtp_layers=1), info())):
            facts = Case(method, engine=engine, target=target, draft=draft).facts()
            assert find_refusals(facts) == [], method
            assert find_notes(facts) == []


@pytest.mark.parametrize("bad", [{"guided_decoding_backend": "xgrammar"}, {"guided_decoding_backend": "llguidance"}])
def test_no_remedy_recommends_what_the_engine_lane_refuses(bad: dict[str, str]) -> None:
    facts = Case(section=bad, speculation={"constrained": "on"}).facts()
    found = find_refusals(facts)
    assert [violation.key for violation in found] == [
        "speculation.constrained",
        "tensorrt_llm.guided_decoding_backend",
    ]
    assert all("lane trtllm_llmapi" in violation.remedy for violation in found)
    assert not any("xgrammar" in violation.remedy for violation in found)


@pytest.mark.parametrize(
    ("engine", "remedy"),
    [
        (True, "Use a version from 1.0.0 to 1.2.1, the last one with the engine flow."),
        (False, "Use 1.2.1, or any version from 1.0.0 on."),
    ],
)
def test_versions_offered_instead_of_an_unknown_one_are_of_the_lane(engine: bool, remedy: str) -> None:
    case = Case(version="0.21.0") if engine else llmapi(version="0.21.0")
    (violation,) = [one for one in find_refusals(case.facts()) if one.key == "tensorrt_llm.version"]
    assert violation.remedy == remedy


@pytest.mark.parametrize("method", [Method.MEDUSA, Method.LOOKAHEAD, Method.REDRAFTER, Method.EAGLE])
def test_methods_of_the_engine_flow_alone_are_refused_in_the_other_lane(method: Method) -> None:
    facts = Case(method).facts()
    facts = DeploymentFacts(
        facts.config.model_copy(update={"lane": Lane.TRTLLM_LLMAPI}), facts.version, None, None, facts.file
    )
    (violation,) = find_refusals(facts)
    assert violation.key == "speculation.method"
    assert f"lane trtllm_llmapi has no method {method}" in violation.reason
    also = " or lane torch" if method in (Method.MEDUSA, Method.EAGLE) else ""
    assert violation.remedy == f"Use lane trtllm_engine{also}, or another method."


def test_everything_is_refused_at_once() -> None:
    case = Case(
        Method.EAGLE,
        version="1.3.0",
        section={"pipeline_parallel": 2, "guided_decoding_backend": "llguidance", "tensor_parallel": 7},
        target=info(),
        draft=head("v3"),
    )
    found = find_refusals(case.facts())
    assert [violation.key for violation in found] == [
        "tensorrt_llm.version",
        "tensorrt_llm.pipeline_parallel",
        "tensorrt_llm.guided_decoding_backend",
        "speculation.draft.checkpoint",
        "tensorrt_llm.pipeline_parallel",
        "tensorrt_llm.tensor_parallel",
        "tensorrt_llm.tensor_parallel",
    ]
    assert str(ConfigError(found)).count("\n") == len(found) - 1


def test_one_rule_tells_everything_it_forbids() -> None:
    ranges = [{"min_in_flight": low, "max_in_flight": low, "draft_len": low} for low in (1, 2)]
    for case in (Case(Method.MEDUSA), llmapi()):
        both = replace(case, speculation={"draft_len_by_in_flight": ranges}, segment={"draft_len_by_in_flight": ranges})
        keys = [violation.key for violation in find_refusals(both.facts())]
        assert len([key for key in keys if key.endswith(".draft_len")]) == 4
    weights = [found.key for found in find_refusals(Case(target=quantised("int8"), draft=quantised("int8")).facts())]
    assert weights == ["target.checkpoint", "speculation.draft.checkpoint"]


@pytest.mark.parametrize(
    ("case", "offered"),
    [
        (Case(version="1.3.0rc27"), "Use lane trtllm_llmapi, or version 1.2.1 (nvcr.io/nvidia/tritonserver:"),
        (Case(version="1.3.0rc1"), "Use lane trtllm_llmapi with version 1.2.1, or version 1.2.1 ("),
        (Case(Method.MEDUSA, version="1.3.0rc27"), "Use version 1.2.1 (nvcr.io/nvidia/tritonserver:"),
        (llmapi(section={"pipeline_parallel": 2}), "or use lane trtllm_engine with method draft_model."),
        (
            llmapi(version="1.3.0rc27", section={"pipeline_parallel": 2}),
            "or use lane trtllm_engine with method draft_model and version 1.2.1.",
        ),
        (Case(Method.LOOKAHEAD, section={"guided_decoding_backend": "xgrammar"}), "Remove the key: guided"),
        (Case(Method.LOOKAHEAD, target=quantised("int8")), "Use its unquantised checkpoint."),
    ],
)
def test_no_remedy_is_refused_in_its_turn(case: Case, offered: str) -> None:
    (found,) = find_refusals(case.facts())
    assert offered in found.remedy


def test_a_draft_may_have_gpus_of_its_own_number() -> None:
    (found,) = find_refusals(Case(section={"tensor_parallel": 4}, draft=info(num_heads=6, num_kv_heads=6)).facts())
    assert found.remedy.endswith("or tensorrt_llm.draft_tensor_parallel: 1 or 2 or 3 for the draft alone.")


def test_a_lane_without_the_section_is_no_deployment_of_these_lanes() -> None:
    facts = Case().facts()
    bare = DeploymentFacts(
        facts.config.model_copy(update={"tensorrt_llm": None}), facts.version, None, None, facts.file
    )
    with pytest.raises(ConfigError, match="tensorrt_llm: lane trtllm_engine needs this section"):
        find_refusals(bare)


@pytest.mark.parametrize(
    ("method", "note"),
    [
        ("bitsandbytes", "no page says whether the LLM API runs bitsandbytes weights"),
        ("compressed-tensors int-quantized", "no page says"),
        ("mxfp4", "MXFP4 on Hopper"),
        ("fp8", None),
        ("fbgemm_fp8", None),
        ("gptq", None),
        ("modelopt FP8", None),
        ("none", None),
    ],
)
def test_what_nobody_answers_is_a_note_and_no_refusal(method: str, note: str | None) -> None:
    facts = llmapi(target=quantised(method)).facts()
    assert find_refusals(facts) == []
    assert [note in text for text in find_notes(facts) if note] == ([True] if note else [])
    assert bool(find_notes(facts)) == (note is not None)


@pytest.mark.parametrize(
    ("case", "tokens"),
    [
        (Case(), 4),
        (Case(Method.LOOKAHEAD), 83),
        (Case(Method.MEDUSA), 63),
        (Case(Method.EAGLE), 63),
        (Case(Method.REDRAFTER), 25),
        (Case(Method.MEDUSA, speculation={"medusa": {"choices": [[0], [0, 0], [1]]}}), 3),
    ],
)
def test_tokens_of_a_step(case: Case, tokens: int) -> None:
    assert tokens_per_step(case.config().speculation) == tokens


@pytest.mark.parametrize("path", sorted((REPO / "configs" / "deployments").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_checked_in_deployment_is_refused(path: Path) -> None:
    config = load_deployment(path).config
    if config.tensorrt_llm is None:
        return
    facts = DeploymentFacts(config, parse_version(config.tensorrt_llm.version), None, None, str(path))
    assert find_refusals(facts) == []


def test_a_version_that_is_none_is_an_error_of_its_own() -> None:
    with pytest.raises(BuildError, match="is no version"):
        parse_version("latest")


# --- rows of the fact sheet -------------------------------------------------------------------------------------------


def test_every_row_is_refused_somewhere_and_nothing_names_a_row_that_is_not_there() -> None:
    ruled = {rule.row for rule in REFUSALS if rule.row}
    guarded = {guard.row for guard in GUARDS}
    assert ruled | guarded == ROWS.keys()


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_a_deployment_that_meets_its_rule_or_a_guard(row: str) -> None:
    codes = {rule.code for rule in REFUSALS if rule.row == row}
    assert codes <= PAIRS.keys() | NOT_LOADABLE
    assert codes or [guard for guard in GUARDS if guard.row == row]
