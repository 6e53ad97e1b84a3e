"""Spellings and accepted fields: settled by the facts, by a probe, or said to be open."""

import pytest
from packaging.version import Version

from helpers.llmapi_deployment import LLMAPI_METHODS, make_probe
from specdeploy.contract import Method
from specdeploy.errors import BuildError
from specdeploy.trtllm.decoding import (
    SPELLINGS,
    argument_fields,
    class_fields,
    group_fields,
    method_of,
    spelling,
    unresolved_reason,
)
from specdeploy.trtllm.facts import SPECULATIVE_FILE, load_facts
from specdeploy.trtllm.probe_record import ProbeRecord

OLD = {Method.EAGLE3: "Eagle", Method.DRAFT_MODEL: "DraftTarget", Method.NGRAM: "NGram", Method.MTP: "MTP"}
NEW = OLD | {Method.EAGLE3: "Eagle3", Method.DRAFT_MODEL: "Draft_Target"}


@pytest.mark.parametrize("method", LLMAPI_METHODS)
@pytest.mark.parametrize(
    ("version", "spellings"),
    [("1.0.0", OLD), ("1.1.0", OLD), ("1.2.0rc6", OLD), ("1.3.0rc27", NEW), ("1.3.0rc29", NEW), ("1.4.0rc4", NEW)],
)
def test_a_spelling_that_the_facts_settle(version: str, spellings: dict[Method, str], method: Method) -> None:
    assert spelling(method, Version(version), None) == spellings[method]
    assert unresolved_reason(spellings[method], Version(version), None) is None


@pytest.mark.parametrize("version", ["1.2.0", "1.2.1"])
def test_a_spelling_that_only_a_probe_can_settle(version: str) -> None:
    assert spelling(Method.EAGLE3, Version(version), None) == "unresolved:Eagle|Eagle3"
    assert spelling(Method.DRAFT_MODEL, Version(version), None) == "unresolved:DraftTarget|Draft_Target"
    assert spelling(Method.NGRAM, Version(version), None) == "NGram"
    assert spelling(Method.MTP, Version(version), None) == "MTP"
    assert "Run `python -m" in (unresolved_reason("Draft_Target", Version(version), None) or "")


@pytest.mark.parametrize("spelled", ["Eagle", "Eagle3"])
def test_a_probe_settles_it(spelled: str) -> None:
    probe = make_probe("1.2.1", {"eagle3": spelled})
    other = "Eagle3" if spelled == "Eagle" else "Eagle"
    assert spelling(Method.EAGLE3, Version("1.2.1"), probe) == spelled
    assert class_fields(spelled, Version("1.2.1"), probe) is not None
    assert class_fields(other, Version("1.2.1"), probe) is None


def test_a_package_that_accepts_no_spelling_is_refused() -> None:
    probe = make_probe("1.2.1", {"draft_model": None})
    with pytest.raises(BuildError, match="accepts no decoding_type Draft_Target or DraftTarget"):
        spelling(Method.DRAFT_MODEL, Version("1.2.1"), probe)


def test_a_probe_of_another_version_says_nothing() -> None:
    probe = make_probe("1.2.1")
    with pytest.raises(BuildError, match=r"of TensorRT-LLM 1\.2\.1, the deployment names 1\.2\.0"):
        spelling(Method.EAGLE3, Version("1.2.0"), probe)


@pytest.mark.parametrize("method", [Method.MEDUSA, Method.LOOKAHEAD, Method.SUFFIX])
def test_a_method_of_another_lane_is_refused(method: Method) -> None:
    with pytest.raises(BuildError, match="the LLM API has no method"):
        spelling(method, Version("1.2.1"), None)


@pytest.mark.parametrize("version", ["0.21.0", "1.3.0rc5", "1.4.0"])
def test_a_version_that_was_not_read_needs_a_probe(version: str) -> None:
    with pytest.raises(BuildError, match="probe the installed package"):
        spelling(Method.NGRAM, Version(version), None)
    with pytest.raises(BuildError, match="probe the installed package"):
        argument_fields(Version(version), None)


def test_a_probe_is_enough_where_nothing_was_read() -> None:
    probe = ProbeRecord(
        version="1.3.0rc5",
        spellings={"ngram": "NGram"},
        speculative_fields={"NGram": ("max_draft_len", "max_matching_ngram_size")},
        llm_args_fields=("model", "speculative_config"),
        kv_cache_fields=("max_tokens",),
        how="made for a test",
        created_at="2026-11-29T00:00:00+00:00",
    )
    version = Version("1.3.0rc5")
    assert spelling(Method.NGRAM, version, probe) == "NGram"
    assert set(class_fields("NGram", version, probe) or ()) == {"max_draft_len", "max_matching_ngram_size"}
    assert set(argument_fields(version, probe)) == {"model", "speculative_config"}
    assert set(group_fields("kv_cache_config", version, probe) or ()) == {"max_tokens"}
    assert group_fields("cuda_graph_config", version, probe) is None


def test_what_users_must_not_set_is_not_accepted() -> None:
    fields = class_fields("MTP", Version("1.3.0rc27"), None)
    assert fields is not None
    assert "num_nextn_predict_layers" not in fields
    assert "num_nextn_predict_layers" in (class_fields("MTP", Version("1.0.0"), None) or {})
    probed = class_fields("MTP", Version("1.3.0rc27"), make_probe("1.3.0rc27"))
    assert probed is not None
    assert "num_nextn_predict_layers" not in probed


def test_types_of_the_engine_flow_and_unknown_ones_have_no_fields() -> None:
    for decoding_type in ("Medusa", "Lookahead", "Eagle3", "Draft_Target", "Turbo"):
        assert class_fields(decoding_type, Version("1.0.0"), None) is None, decoding_type
    assert class_fields("Eagle", Version("1.0.0"), None) is not None


def test_every_spelling_is_one_of_the_facts() -> None:
    versions = load_facts(SPECULATIVE_FILE)["versions"]
    types = {name for column in versions.values() for name in column["types"]}
    for method, names in SPELLINGS.items():
        assert set(names) <= types
        assert all(method_of(name) is method for name in names)
    assert method_of("Medusa") is None
