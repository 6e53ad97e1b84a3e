"""LLM arguments: every key rendered exists in the column of its version."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from helpers.fake_tensorrt_llm import VERSIONS, on_import_path, write_fake_tensorrt_llm
from helpers.llmapi_deployment import (
    BY_LOAD,
    LLMAPI_METHODS,
    ONE_CUT,
    PROBES_121,
    SWAP,
    make_deployment,
    make_probe,
    render,
    section,
)
from specdeploy.builders.trtllm_probe import validate_with_classes
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel, Method
from specdeploy.errors import BuildError
from specdeploy.trtllm.facts import (
    SPECULATIVE_FILE,
    llm_args_column,
    llm_args_fields,
    load_facts,
    speculative_column,
    speculative_types,
)
from specdeploy.trtllm.llm_args import render_llm_args, render_yaml, validate_llm_args
from specdeploy.trtllm.probe_record import ProbeRecord

CASES: list[tuple[str, ProbeRecord | None]] = [
    *((version, None) for version in ("1.0.0", "1.0.0.post1", "1.0.3.2510", "1.1.0", "1.1.0.post1", "1.2.0rc6")),
    *(("1.2.1", probe) for probe in PROBES_121),
    *((version, make_probe(version)) for version in ("1.2.0.post1", "1.2.0.2511", "1.2.1.post1", "1.2.1.2511")),
    *((version, None) for version in ("1.3.0rc27", "1.3.0rc29", "1.4.0rc1", "1.4.0rc4")),
]


def full_deployment(method: Method) -> DeploymentConfig:
    """One that makes the renderer write everything it can write."""
    settings = SWAP | {
        "expert_parallel": 2,
        "tensor_parallel": 4,
        "num_nodes": 2,
        "kv_cache_dtype": "fp8",
        "max_num_tokens": 2048,
        "guided_decoding_backend": "xgrammar",
        "trust_remote_code": True,
    }
    return make_deployment(method, tensorrt_llm=settings, speculation={"draft_len_by_in_flight": BY_LOAD})


def accepted_by_column(version: str, decoding_type: str) -> set[str]:
    """Names of the raw file's class, read here and not by the code under test where the version has its own column."""
    versions = load_facts(SPECULATIVE_FILE)["versions"]
    own = versions.get(version, {}).get("types", {})
    if decoding_type in own:
        table = own[decoding_type]["fields"]
        return {name for key, entry in table.items() for name in (key, *entry.get("aliases", ()))}
    types = speculative_types(speculative_column(Version(version)))
    names = {"Eagle3": "Eagle", "Draft_Target": "DraftTarget"} if version.startswith("1.2.1") else {}
    fields = types[names.get(decoding_type, decoding_type)]
    return {name for field in fields.values() for name in field.accepted_names}


# --- what is written exists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", LLMAPI_METHODS)
@pytest.mark.parametrize(("version", "probe"), CASES)
def test_every_rendered_key_exists_in_its_version(version: str, probe: ProbeRecord | None, method: Method) -> None:
    config = full_deployment(method)
    rendered = render(config, version, probe)
    assert rendered.unresolved == ()
    column = llm_args_column(Version(version))
    top = {**llm_args_fields(column, "base"), **llm_args_fields(column, "torch")}
    assert rendered.arguments.keys() <= top.keys()
    kv_cache = section(rendered.arguments, "kv_cache_config")
    assert kv_cache.keys() <= llm_args_fields(column, "kv_cache_config").keys()
    assert kv_cache == {
        "free_gpu_memory_fraction": 0.85,
        "enable_block_reuse": True,
        "max_tokens": 40_000,
        "dtype": "fp8",
    }
    speculative = section(rendered.arguments, "speculative_config")
    decoding_type = speculative.pop("decoding_type")
    assert speculative.keys() <= accepted_by_column(version, decoding_type)
    speculative["decoding_type"] = decoding_type
    assert validate_llm_args(rendered.arguments, version=Version(version), probe=probe, config=config) == []


@pytest.mark.parametrize(
    ("version", "probe", "era"), [(version, probe, era) for version, probe in CASES for era in VERSIONS[version]]
)
def test_strict_classes_accept_what_is_rendered(
    tmp_path: Path, version: str, probe: ProbeRecord | None, era: str
) -> None:
    spellings = None if probe is None else {key: value for key, value in probe.spellings.items() if value is not None}
    write_fake_tensorrt_llm(tmp_path, version, spellings, era)
    with on_import_path(tmp_path):
        for method in LLMAPI_METHODS:
            for model in (EngineModel.TARGET, EngineModel.TARGET_PLAIN):
                rendered = render(full_deployment(method), version, probe, model)
                assert validate_with_classes(rendered.arguments) == [], (method, model)


@pytest.mark.parametrize("method", LLMAPI_METHODS)
@pytest.mark.parametrize(("version", "probe"), [*CASES, ("1.2.0", None), ("1.2.1", None)])
def test_the_plain_instance_does_not_speculate(version: str, probe: ProbeRecord | None, method: Method) -> None:
    config = full_deployment(method)
    rendered = render(config, version, probe, EngineModel.TARGET_PLAIN)
    assert "speculative_config" not in rendered.arguments
    assert "disable_overlap_scheduler" not in rendered.arguments
    assert rendered.arguments["guided_decoding_backend"] == "xgrammar"
    # Without it 1.0 does not look at the sampling of a request; gone in 1.2.
    assert rendered.arguments.get("enable_mixed_sampler", False) is (version == "1.0.0")
    assert rendered.unresolved == ()
    assert validate_llm_args(rendered.arguments, version=Version(version), probe=probe) == []


def test_top_level_arguments_say_what_the_config_says() -> None:
    arguments = render(full_deployment(Method.EAGLE3), "1.3.0rc27").arguments
    assert {key: value for key, value in arguments.items() if not isinstance(value, dict)} == {
        "model": "/engines/b/target",
        "dtype": "bfloat16",
        "tensor_parallel_size": 4,
        "pipeline_parallel_size": 1,
        "moe_expert_parallel_size": 2,
        "gpus_per_node": 2,
        "max_batch_size": 64,
        "max_num_tokens": 2048,
        "max_seq_len": 4096,
        "enable_chunked_prefill": True,
        "trust_remote_code": True,
        "guided_decoding_backend": "xgrammar",
    }


def test_defaults_are_left_to_the_package() -> None:
    arguments = render(make_deployment("eagle3"), "1.3.0rc27", kv_tokens=None).arguments
    for key in (
        "moe_expert_parallel_size",
        "gpus_per_node",
        "enable_chunked_prefill",
        "trust_remote_code",
        "cuda_graph_config",
        "guided_decoding_backend",
        "quant_config",
        "backend",
    ):
        assert key not in arguments
    assert arguments["kv_cache_config"] == {"free_gpu_memory_fraction": 0.85, "enable_block_reuse": True}


def test_block_reuse_follows_the_config() -> None:
    config = make_deployment("draft_model", tensorrt_llm={"kv_cache_reuse": False})
    assert section(render(config, "1.2.0rc6").arguments, "kv_cache_config")["enable_block_reuse"] is False


# --- speculative_config ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "probe"), CASES)
def test_the_draft_checkpoint_has_its_portable_name(version: str, probe: ProbeRecord | None) -> None:
    for method in ("eagle3", "draft_model"):
        speculative = section(render(make_deployment(method), version, probe).arguments, "speculative_config")
        assert speculative["speculative_model_dir"] == "/engines/b/draft"
        assert "speculative_model" not in speculative


def test_a_package_that_only_has_the_new_name_gets_it() -> None:
    probe = make_probe("1.2.1", {"eagle3": "Eagle"})
    fields = tuple(name for name in probe.speculative_fields["Eagle"] if name != "speculative_model_dir")
    probe = probe.model_copy(update={"speculative_fields": probe.speculative_fields | {"Eagle": fields}})
    speculative = section(render(make_deployment("eagle3"), "1.2.1", probe).arguments, "speculative_config")
    assert speculative == {"decoding_type": "Eagle", "max_draft_len": 4, "speculative_model": "/engines/b/draft"}


@pytest.mark.parametrize(("version", "probe"), CASES)
def test_ngram_always_writes_its_size_and_keeps_requests_apart(version: str, probe: ProbeRecord | None) -> None:
    rendered = render(make_deployment("ngram"), version, probe)
    speculative = section(rendered.arguments, "speculative_config")
    assert speculative == {
        "decoding_type": "NGram",
        "max_draft_len": 4,
        "max_matching_ngram_size": 3,
        "is_public_pool": False,
    }
    assert rendered.arguments["disable_overlap_scheduler"] is True


@pytest.mark.parametrize(("version", "probe"), CASES)
def test_the_depth_of_mtp_has_the_name_of_its_version(version: str, probe: ProbeRecord | None) -> None:
    speculative = section(render(make_deployment("mtp"), version, probe).arguments, "speculative_config")
    name = "max_draft_len" if Version(version) >= Version("1.3.0rc27") else "num_nextn_predict_layers"
    assert speculative == {"decoding_type": "MTP", name: 4}


@pytest.mark.parametrize(("version", "probe"), CASES)
def test_the_overlap_scheduler_is_off_only_where_it_must_be(version: str, probe: ProbeRecord | None) -> None:
    is_old = Version(version) < Version("1.3.0rc27")
    expected = {"eagle3": False, "mtp": False, "ngram": True, "draft_model": is_old}
    for method, is_off in expected.items():
        arguments = render(make_deployment(method), version, probe).arguments
        assert ("disable_overlap_scheduler" in arguments) is is_off


def test_a_smallest_ngram_that_cannot_be_said_is_noted() -> None:
    config = make_deployment("ngram", speculation={"ngram": {"min_matching_ngram_size": 2}})
    assert any("min_matching_ngram_size" in note for note in render(config, "1.3.0rc27").notes)


@pytest.mark.parametrize("version", ["1.2.0", "1.2.1"])
@pytest.mark.parametrize(
    ("method", "value"), [("eagle3", "unresolved:Eagle|Eagle3"), ("draft_model", "unresolved:DraftTarget|Draft_Target")]
)
def test_an_open_spelling_is_rendered_as_open_and_refused(version: str, method: str, value: str) -> None:
    rendered = render(make_deployment(method), version)
    assert section(rendered.arguments, "speculative_config")["decoding_type"] == value
    assert len(rendered.unresolved) == 1
    assert "Run `python -m specdeploy.builders.trtllm_probe`" in rendered.unresolved[0]
    problems = validate_llm_args(rendered.arguments, version=Version(version), probe=None)
    assert len(problems) == 1
    assert "decoding_type" in problems[0]


def test_an_unresolved_value_is_refused_even_with_a_probe() -> None:
    arguments = render(make_deployment("eagle3"), "1.2.1").arguments
    problems = validate_llm_args(arguments, version=Version("1.2.1"), probe=PROBES_121[0])
    assert any("was never resolved" in problem for problem in problems)


def test_speculation_and_guided_decoding_are_kept_apart_where_the_version_refuses_both() -> None:
    config = full_deployment(Method.NGRAM)
    assert "guided_decoding_backend" not in render(config, "1.0.0").arguments
    assert any("guided_decoding_backend" in note for note in render(config, "1.0.0").notes)
    assert render(config, "1.1.0").arguments["guided_decoding_backend"] == "xgrammar"


# --- what the deployment cannot do without --------------------------------------------------------------------------


def without(probe: ProbeRecord, group: str, *names: str) -> ProbeRecord:
    """`probe` of a package that lacks `names`; `group` a field of the record, or a decoding_type."""
    if group in probe.speculative_fields:
        left = tuple(name for name in probe.speculative_fields[group] if name not in names)
        return probe.model_copy(update={"speculative_fields": probe.speculative_fields | {group: left}})
    return probe.model_copy(update={group: tuple(name for name in getattr(probe, group) if name not in names)})


@pytest.mark.parametrize(
    ("method", "group", "name", "key"),
    [
        *(
            ("eagle3", "llm_args_fields", name, name)
            for name in (
                "model",
                "max_batch_size",
                "max_num_tokens",
                "max_seq_len",
                "tensor_parallel_size",
                "moe_expert_parallel_size",
                "gpus_per_node",
                "enable_chunked_prefill",
                "kv_cache_config",
                "speculative_config",
            )
        ),
        *(
            ("eagle3", "kv_cache_fields", name, f"kv_cache_config.{name}")
            for name in ("max_tokens", "free_gpu_memory_fraction", "dtype")
        ),
        ("ngram", "llm_args_fields", "disable_overlap_scheduler", "disable_overlap_scheduler"),
        ("draft_model", "llm_args_fields", "disable_overlap_scheduler", "disable_overlap_scheduler"),
        ("eagle3", "Eagle", "max_draft_len", "speculative_config.max_draft_len"),
        ("ngram", "NGram", "max_draft_len", "speculative_config.max_draft_len"),
        ("ngram", "NGram", "max_matching_ngram_size", "speculative_config.max_matching_ngram_size"),
    ],
)
def test_a_package_without_a_needed_key_is_refused(method: str, group: str, name: str, key: str) -> None:
    probe = without(make_probe("1.2.1"), group, name)
    with pytest.raises(BuildError) as raised:
        render(full_deployment(Method(method)), "1.2.1", probe)
    assert str(raised.value).startswith(f"{key}: TensorRT-LLM 1.2.1 is not known to have it")
    assert "run `python -m specdeploy.builders.trtllm_probe`" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_all_needed_keys_that_are_missing_are_named_at_once() -> None:
    probe = without(make_probe("1.2.1"), "llm_args_fields", "max_batch_size", "kv_cache_config", "speculative_config")
    with pytest.raises(BuildError) as raised:
        render(make_deployment("ngram"), "1.2.1", probe)
    keys = [line.partition(":")[0] for line in str(raised.value).splitlines()]
    assert keys == ["max_batch_size", "kv_cache_config", "speculative_config"]


def test_a_draft_without_a_name_for_its_folder_is_refused() -> None:
    probe = without(make_probe("1.2.1"), "Eagle", "speculative_model", "speculative_model_dir")
    with pytest.raises(BuildError, match=r"speculative_config\.speculative_model_dir: TensorRT-LLM 1\.2\.1"):
        render(make_deployment("eagle3"), "1.2.1", probe)


def test_what_only_makes_it_slower_is_left_out_and_noted() -> None:
    probe = without(make_probe("1.2.1"), "kv_cache_fields", "enable_block_reuse")
    rendered = render(make_deployment("ngram"), "1.2.1", probe)
    assert "enable_block_reuse" not in section(rendered.arguments, "kv_cache_config")
    assert any("kv_cache_config.enable_block_reuse is left out" in note for note in rendered.notes)


# --- where names were read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "method", "class_name", "read"),
    [
        ("1.3.0rc27", "ngram", "NGram", "1.3.0rc (July-Aug 2026 main)"),
        ("1.3.0rc27", "eagle3", "Eagle3", None),
        ("1.3.0rc29", "mtp", "MTP", "1.3.0rc27"),
        ("1.3.0rc29", "eagle3", "Eagle3", None),
        ("1.4.0rc1", "mtp", "MTP", "1.3.0rc27"),
        ("1.4.0rc4", "draft_model", "Draft_Target", "1.3.0rc (July-Aug 2026 main)"),
        ("1.4.0rc4", "mtp", "MTP", None),
        ("1.0.0", "ngram", "NGram", None),
    ],
)
def test_a_class_that_its_version_did_not_show_is_noted(
    version: str, method: str, class_name: str, read: str | None
) -> None:
    rendered = render(make_deployment(method), version)
    notes = [note for note in rendered.notes if "class " in note]
    note = f"speculative_config: class {class_name} was read in {read}, not in {version}"
    assert notes == ([] if read is None else [note])
    assert any(source.startswith(f"class {class_name} of {read or ''}") for source in rendered.known_from)


def test_names_of_a_probe_are_known_from_it() -> None:
    assert render(make_deployment("ngram"), "1.2.1", PROBES_121[0]).known_from == ("the probe of the installed 1.2.1",)


@pytest.mark.parametrize("version", ["1.2.1.post1", "1.2.1.2511"])
def test_a_later_build_of_1_2_1_is_read_as_1_2_1(version: str) -> None:
    rendered = render(make_deployment("eagle3"), version)
    assert section(rendered.arguments, "speculative_config")["decoding_type"] == "unresolved:Eagle|Eagle3"
    assert any(f"{version} was not read, it is taken for 1.2.1" in note for note in rendered.notes)


# --- sampling and penalties -----------------------------------------------------------------------------------------


def candidate_probe(version: str) -> ProbeRecord:
    """A candidate of 1.3.0 that nobody read, as main of early 2026 was: the switch exists, penalties do not."""
    probe = make_probe("1.3.0rc27").model_copy(update={"version": version})
    for name in ("Eagle3", "MTP", "NGram", "Draft_Target"):
        probe = without(probe, name, "enable_penalty")
    return probe


@pytest.mark.parametrize("method", LLMAPI_METHODS)
@pytest.mark.parametrize(("settings", "is_alone"), [(SWAP, True), ({}, False)])
def test_sampling_switches_are_written_where_they_act(method: Method, settings: dict[str, Any], is_alone: bool) -> None:
    config = make_deployment(method, tensorrt_llm=settings)
    is_one_model = method in (Method.EAGLE3, Method.MTP)

    def written(version: str, probe: ProbeRecord | None = None) -> set[str]:
        speculative = section(render(config, version, probe).arguments, "speculative_config")
        return {name for name in ("allow_advanced_sampling", "enable_penalty") if speculative.get(name) is True}

    assert written("1.3.0rc12", candidate_probe("1.3.0rc12")) == (
        {"allow_advanced_sampling"} if is_one_model else set()
    )
    for version in ("1.3.0rc27", "1.4.0rc4"):  # the switch is a no-op that warns
        assert written(version) == ({"enable_penalty"} if is_one_model and is_alone else set())
    for version in ("1.0.0", "1.2.0rc6", "1.2.1"):
        assert written(version, make_probe(version)) == set()


@pytest.mark.parametrize(
    ("version", "settings", "is_noted"),
    [("1.0.0", SWAP, True), ("1.2.1", SWAP, True), ("1.2.1", {}, False), ("1.3.0rc27", SWAP, False)],
)
def test_refused_sampling_is_noted_before_it_is_served(version: str, settings: dict[str, Any], is_noted: bool) -> None:
    notes = render(make_deployment("ngram", tensorrt_llm=settings), version).notes
    found = [note for note in notes if note.startswith("requests that sample")]
    assert bool(found) is is_noted
    assert all("plain_instance: beside, or version 1.3.0rc27" in note for note in found)


def test_a_candidate_that_samples_while_drafting_is_not_noted() -> None:
    config = make_deployment("mtp", tensorrt_llm=SWAP)
    rendered = render(config, "1.3.0rc12", candidate_probe("1.3.0rc12"))
    assert not any(note.startswith("requests that sample") for note in rendered.notes)


def test_metrics_of_requests_are_asked_for_in_each_request() -> None:
    assert "return_perf_metrics" not in render(make_deployment("ngram"), "1.3.0rc27").arguments


@pytest.mark.parametrize("version", ["1.3.0rc27", "1.5.0"])
def test_the_depth_of_mtp_is_the_new_name_also_where_a_package_lists_the_old(version: str) -> None:
    probe = make_probe("1.3.0rc27").model_copy(update={"version": version})
    listed = (*probe.speculative_fields["MTP"], "num_nextn_predict_layers")
    probe = probe.model_copy(update={"speculative_fields": probe.speculative_fields | {"MTP": listed}})
    arguments = render(make_deployment("mtp"), version, probe).arguments
    speculative = section(arguments, "speculative_config")
    assert speculative == {"decoding_type": "MTP", "max_draft_len": 4}
    assert validate_llm_args(arguments, version=Version(version), probe=probe) == []
    speculative["num_nextn_predict_layers"] = speculative.pop("max_draft_len")
    problems = validate_llm_args(arguments, version=Version(version), probe=probe)
    assert any("max_draft_len: None where a number above 0" in problem for problem in problems)


# --- K by load ------------------------------------------------------------------------------------------------------


def load_limits(method: str, version: str, probe: ProbeRecord | None, ranges: list[dict[str, Any]]) -> dict[str, Any]:
    config = make_deployment(method, tensorrt_llm=SWAP, speculation={"draft_len_by_in_flight": ranges})
    speculative = section(render(config, version, probe).arguments, "speculative_config")
    return {key: value for key, value in speculative.items() if key in ("draft_len_schedule", "max_concurrency")}


FROM_KEY_SCHEDULE = {"draft_len_schedule": {1: 4, 4: 2, 8: 0}}
UP_TO_KEY_SCHEDULE = {"draft_len_schedule": {3: 4, 7: 2}}


@pytest.mark.parametrize(
    ("version", "probe", "scheduled", "expected"),
    [
        ("1.0.0", None, (), {}),
        ("1.1.0", None, (), {}),
        ("1.2.0rc6", None, (), {}),
        ("1.2.1", PROBES_121[0], ("draft_model", "ngram"), FROM_KEY_SCHEDULE),
        ("1.2.1", PROBES_121[3], ("draft_model", "ngram"), FROM_KEY_SCHEDULE),
        ("1.3.0rc27", None, ("eagle3", "mtp", "draft_model"), UP_TO_KEY_SCHEDULE),
        ("1.4.0rc4", None, ("eagle3", "mtp", "draft_model"), UP_TO_KEY_SCHEDULE),
    ],
)
def test_a_schedule_is_written_in_the_meaning_of_its_version(
    version: str, probe: ProbeRecord | None, scheduled: tuple[str, ...], expected: dict[str, Any]
) -> None:
    for method in ("eagle3", "draft_model", "ngram", "mtp"):
        assert load_limits(method, version, probe, BY_LOAD) == (expected if method in scheduled else {}), method


@pytest.mark.parametrize(("version", "probe"), CASES)
def test_one_cut_becomes_max_concurrency_where_there_is_no_schedule(version: str, probe: ProbeRecord | None) -> None:
    if version.startswith("1.2.1"):
        expected: dict[str, Any] = {"draft_len_schedule": {1: 4, 17: 0}}
    else:
        expected = {"max_concurrency": 16} if Version(version) >= Version("1.2.0rc0") else {}
    assert load_limits("ngram", version, probe, ONE_CUT) == expected


@pytest.mark.parametrize(("version", "probe"), [("1.2.0rc6", None), ("1.2.1", PROBES_121[0])])
def test_a_method_that_would_not_obey_gets_no_limit(version: str, probe: ProbeRecord | None) -> None:
    for method in ("eagle3", "mtp"):
        assert load_limits(method, version, probe, ONE_CUT) == {}


def test_a_pause_that_costs_acceptance_is_noted() -> None:
    for method, is_noted in (("eagle3", True), ("mtp", True), ("ngram", False)):
        config = make_deployment(method, tensorrt_llm=SWAP, speculation={"draft_len_by_in_flight": ONE_CUT})
        notes = render(config, "1.3.0rc27").notes
        assert any("from 17 requests on" in note for note in notes) is is_noted


def test_a_plan_that_cannot_be_kept_is_noted() -> None:
    for version, ranges in (("1.0.0", ONE_CUT), ("1.2.0rc6", BY_LOAD)):
        config = make_deployment("ngram", tensorrt_llm=SWAP, speculation={"draft_len_by_in_flight": ranges})
        assert any("draft_len_by_in_flight is not kept" in note for note in render(config, version).notes)


def test_a_plan_that_does_not_start_at_its_maximum_is_not_bent() -> None:
    ranges = [{"min_in_flight": 1, "max_in_flight": 4, "draft_len": 2}]
    assert load_limits("eagle3", "1.3.0rc27", None, ranges) == {}
    assert load_limits("ngram", "1.2.1", PROBES_121[0], ranges) == {}


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        (
            [{"min_in_flight": 1, "max_in_flight": 4, "draft_len": 2}],
            "drafts 2 for 1 request (write speculation.max_draft_len: 2, or give 1 request on draft_len 4, or plain",
        ),
        (
            [{"min_in_flight": 8, "max_in_flight": 16, "draft_len": 4}],
            "drafts 0 for 1 request (give 1 request on draft_len 4, or plain_instance: beside)",
        ),
        (
            [
                {"min_in_flight": 1, "max_in_flight": 4, "draft_len": 2},
                {"min_in_flight": 5, "max_in_flight": 9, "draft_len": 4},
            ],
            "drafts 2 for 1 request (give 1 request on draft_len 4, or plain_instance: beside)",
        ),
    ],
)
@pytest.mark.parametrize(("method", "version"), [("ngram", "1.2.1"), ("eagle3", "1.3.0rc27")])
def test_why_a_plan_that_begins_lower_is_lost_and_what_to_write(
    method: str, version: str, ranges: list[dict[str, Any]], words: str
) -> None:
    config = make_deployment(method, tensorrt_llm=SWAP, speculation={"draft_len_by_in_flight": ranges})
    (note,) = [note for note in render(config, version).notes if "is not kept" in note]
    assert f"a schedule of TensorRT-LLM {version} must begin with max_draft_len 4" in note
    assert words in note


def test_beside_a_plain_instance_the_router_switches_and_nothing_is_written() -> None:
    config = make_deployment("eagle3", speculation={"draft_len_by_in_flight": BY_LOAD})
    rendered = render(config, "1.3.0rc27")
    assert section(rendered.arguments, "speculative_config").keys() == {
        "decoding_type",
        "max_draft_len",
        "speculative_model_dir",
    }
    assert any("K in between" in note for note in rendered.notes)


def test_without_ranges_nothing_is_written_and_nothing_noted() -> None:
    config = make_deployment("eagle3", tensorrt_llm=SWAP)
    rendered = render(config, "1.3.0rc27")
    assert "draft_len_schedule" not in section(rendered.arguments, "speculative_config")
    assert not any("draft_len" in note for note in rendered.notes)


def test_a_k_by_segment_is_noted_as_lost() -> None:
    segment = {"name": "chat", "prompts": "prompts.jsonl", "draft_len_by_in_flight": ONE_CUT}
    config = make_deployment("eagle3", tensorrt_llm=SWAP, traffic={"segments": [segment]})
    assert any("K by segment" in note for note in render(config, "1.3.0rc27").notes)


@pytest.mark.parametrize("version", ["1.3.0rc5", "1.4.1"])
def test_where_the_meaning_is_not_known_no_schedule_is_written(version: str) -> None:
    probe = make_probe("1.3.0rc27").model_copy(update={"version": version})
    assert load_limits("eagle3", version, probe, BY_LOAD) == {}
    assert load_limits("eagle3", version, probe, ONE_CUT) == {}
    assert load_limits("ngram", version, probe, BY_LOAD) == {}
    assert load_limits("ngram", version, probe, ONE_CUT) == {"max_concurrency": 16}


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.21.0", "1.2.2", "1.3.0rc5", "1.4.0"])
def test_a_version_that_was_not_read_is_refused_without_a_probe(version: str) -> None:
    with pytest.raises(BuildError, match="probe the installed package"):
        render(make_deployment("ngram"), version)
    assert len(validate_llm_args({"model": "m"}, version=Version(version), probe=None)) == 1


def test_what_cannot_be_rendered_is_refused() -> None:
    with pytest.raises(BuildError, match="accepts no decoding_type"):
        render(make_deployment("eagle3"), "1.2.1", make_probe("1.2.1", {"eagle3": None}))
    with pytest.raises(BuildError, match="of TensorRT-LLM"):
        render(make_deployment("ngram"), "1.2.0", PROBES_121[0])
    with pytest.raises(BuildError, match="no arguments for it alone"):
        render(make_deployment("draft_model"), "1.0.0", model=EngineModel.DRAFT)
    with pytest.raises(BuildError, match=r"speculation\.draft"):
        render_llm_args(
            make_deployment("eagle3"),
            version=Version("1.0.0"),
            probe=None,
            model=EngineModel.TARGET,
            target_path="t",
            draft_path=None,
            kv_tokens=None,
        )


# --- YAML -----------------------------------------------------------------------------------------------------------


def test_yaml_reads_back_as_the_arguments() -> None:
    config = make_deployment("eagle3", tensorrt_llm=SWAP, speculation={"draft_len_by_in_flight": BY_LOAD})
    rendered = render(config, "1.3.0rc27")
    text = render_yaml(rendered, "TensorRT-LLM 1.3.0rc27\n\nmade by a test")
    assert text.startswith("# TensorRT-LLM 1.3.0rc27\n#\n# made by a test\n# note: ")
    assert "\n# note: LLM arguments: read from main of July-August 2026" in text
    assert yaml.safe_load(text) == rendered.arguments
    assert next(iter(yaml.safe_load(text))) == "model"


def test_yaml_says_on_top_what_is_unresolved() -> None:
    text = render_yaml(render(make_deployment("draft_model"), "1.2.1"), "head")
    assert "# UNRESOLVED: speculative_config.decoding_type: TensorRT-LLM 1.2.1 spells method draft_model" in text
    assert "decoding_type: unresolved:DraftTarget|Draft_Target" in text
