"""The facts: their files are whole, versions land on the right column, and commands are held against the flags."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from specdeploy.errors import BuildError
from specdeploy.trtllm.facts import (
    BUILD_FLAGS_FILE,
    JULY_MAIN,
    LLM_ARGS_FILE,
    LLM_ARGS_GROUPS,
    SPECULATIVE_FILE,
    TRITON_FILE,
    ConvertScript,
    build_flags,
    command_problems,
    convert_flags,
    launch_script_flags,
    llm_args_column,
    llm_args_fields,
    load_facts,
    pytorch_types,
    speculative_column,
    speculative_types,
    triton_model,
    type_sources,
)

FILES = (BUILD_FLAGS_FILE, LLM_ARGS_FILE, SPECULATIVE_FILE, TRITON_FILE)


def raw(file_name: str) -> dict[str, Any]:
    text = resources.files("specdeploy.trtllm").joinpath("facts", file_name).read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


@pytest.mark.parametrize("file_name", FILES)
def test_a_file_loads_as_it_lies_there(file_name: str) -> None:
    assert dict(load_facts(file_name)) == raw(file_name)


@pytest.mark.parametrize("file_name", FILES)
def test_a_file_has_no_key_twice(file_name: str) -> None:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len({key for key, _ in pairs}) == len(pairs), [key for key, _ in pairs]
        return dict(pairs)

    path = Path(str(resources.files("specdeploy.trtllm").joinpath("facts", file_name)))
    json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)


def test_every_column_names_its_sources_or_says_that_it_is_absent() -> None:
    for file_name in (LLM_ARGS_FILE, SPECULATIVE_FILE):
        for version, column in raw(file_name)["versions"].items():
            assert column.get("sources") or column["evidence"] == "absent", (file_name, version)


def test_every_field_of_speculative_config_has_a_type_and_a_default_or_says_there_is_none() -> None:
    for version, column in raw(SPECULATIVE_FILE)["versions"].items():
        for name, entry in column.get("types", {}).items():
            for field, facts in entry["fields"].items():
                assert {"type", "default", "required"} <= facts.keys(), (version, name, field)


# --- columns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "sources", "is_exact"),
    [
        ("1.0.0", ("1.0.0",), True),
        ("1.0.3.2510", ("1.0.0", "1.2.0rc"), False),
        ("1.1.0", ("1.0.0", "1.2.0rc"), False),
        ("1.1.0rc2", ("1.0.0", "1.2.0rc"), False),
        ("1.2.0rc6", ("1.2.0rc",), False),
        ("1.2.0", ("1.2.0rc", "1.2.1"), False),
        ("1.2.1", ("1.2.1",), False),
        ("1.3.0rc27", ("1.3.0rc27",), True),
        ("1.3.0rc29", ("1.3.0rc27", "1.4.0rc1"), False),
        ("1.4.0rc1", ("1.4.0rc1",), True),
        ("1.4.0rc2", ("1.4.0rc1", "1.4.0rc4"), False),
        ("1.4.0rc4", ("1.4.0rc4",), True),
    ],
)
def test_a_version_is_read_in_its_column_or_between_two(version: str, sources: tuple[str, ...], is_exact: bool) -> None:
    column = speculative_column(Version(version))
    assert column.sources == sources
    assert column.is_exact is is_exact
    assert bool(column.note) is not is_exact


@pytest.mark.parametrize("version", ["0.21.0", "1.0.0rc4", "1.2.2", "1.3.0rc1", "1.3.0rc26", "1.4.0", "1.5.0rc1"])
def test_a_version_outside_what_was_read_is_refused_by_both(version: str) -> None:
    for column_of in (speculative_column, llm_args_column):
        with pytest.raises(BuildError, match=r"probe the installed package"):
            column_of(Version(version))


@pytest.mark.parametrize("version", ["1.1.0", "1.2.0", "1.3.0rc29", "1.4.0rc2"])
def test_between_two_columns_a_field_is_accepted_by_both(version: str) -> None:
    column = speculative_column(Version(version))
    versions = raw(SPECULATIVE_FILE)["versions"]
    types = speculative_types(column)
    assert {"MTP", "NGram"} <= types.keys()
    for decoding_type, fields in types.items():
        for key in type_sources(column, decoding_type):
            table = versions[key]["types"][decoding_type]["fields"]
            accepted = {name for own, entry in table.items() for name in (own, *entry.get("aliases", ()))}
            for field in fields.values():
                assert set(field.accepted_names) <= accepted, (decoding_type, key, field)


def test_a_renamed_field_survives_under_the_name_that_both_sides_accept() -> None:
    fields = speculative_types(speculative_column(Version("1.2.0")))["DraftTarget"]
    assert "speculative_model_dir" in fields
    assert "speculative_model" not in fields
    assert "draft_len_schedule" not in fields


def test_a_field_with_other_defaults_on_both_sides_has_none() -> None:
    column = llm_args_column(Version("1.1.0"))
    assert llm_args_fields(column, "base")["max_num_tokens"].is_default_absent
    assert not llm_args_fields(column, "base")["tensor_parallel_size"].is_default_absent


def test_a_class_that_a_page_does_not_show_is_read_where_it_was_shown_last() -> None:
    column = speculative_column(Version("1.4.0rc1"))
    assert type_sources(column, "Eagle3") == ("1.4.0rc1",)
    assert type_sources(column, "MTP") == ("1.3.0rc27",)
    assert type_sources(column, "Draft_Target") == ("1.3.0rc (July-Aug 2026 main)",)
    assert type_sources(column, "Medusa") == ()


def test_engine_flow_types_are_not_of_the_pytorch_backend() -> None:
    column = speculative_column(Version("1.0.0"))
    assert "Medusa" in speculative_types(column)
    assert not {"Medusa", "Lookahead"} & pytorch_types(column)


def test_unseen_groups_of_1_2_1_hold_only_what_its_neighbours_share() -> None:
    versions = raw(LLM_ARGS_FILE)["versions"]
    column = llm_args_column(Version("1.2.1"))
    kv_cache = llm_args_fields(column, "kv_cache_config")
    assert {"free_gpu_memory_fraction", "enable_block_reuse", "max_tokens", "dtype"} <= kv_cache.keys()
    assert kv_cache.keys() <= versions["1.0.0"]["kv_cache_config"].keys()
    torch = llm_args_fields(column, "torch")
    assert "disable_overlap_scheduler" in torch
    assert "sampler_type" not in torch  # removed later, although the version before has it


def test_every_version_has_every_group() -> None:
    for version in ("1.0.0", "1.1.0", "1.2.0rc6", "1.2.0", "1.2.1", "1.3.0rc27", "1.4.0rc4"):
        column = llm_args_column(Version(version))
        for group in LLM_ARGS_GROUPS:
            assert llm_args_fields(column, group), (version, group)


@pytest.mark.parametrize(
    ("version", "speculative", "arguments"),
    [
        ("1.0", ("1.0.0",), ("1.0.0",)),
        ("1.0.0", ("1.0.0",), ("1.0.0",)),
        ("1.0.0.post1", ("1.0.0", "1.2.0rc"), ("1.0.0", "1.2.0rc")),
        ("1.0.0.2508", ("1.0.0", "1.2.0rc"), ("1.0.0", "1.2.0rc")),
        ("1.0.3.2510", ("1.0.0", "1.2.0rc"), ("1.0.0", "1.2.0rc")),
        ("1.1.0", ("1.0.0", "1.2.0rc"), ("1.0.0", "1.2.0rc")),
        ("1.1.0.post1", ("1.0.0", "1.2.0rc"), ("1.0.0", "1.2.0rc")),
        ("1.2.0rc0", ("1.2.0rc",), ("1.2.0rc",)),
        ("1.2.0", ("1.2.0rc", "1.2.1"), ("1.2.0rc", "1.2.1")),
        ("1.2.0.post1", ("1.2.0rc", "1.2.1"), ("1.2.0rc", "1.2.1")),
        ("1.2.0.2511", ("1.2.0rc", "1.2.1"), ("1.2.0rc", "1.2.1")),
        ("1.2.1rc1", ("1.2.0rc", "1.2.1"), ("1.2.0rc", "1.2.1")),
        ("1.2.1", ("1.2.1",), ("1.2.1",)),
        ("1.2.1.post1", ("1.2.1",), ("1.2.1",)),
        ("1.2.1.2511", ("1.2.1",), ("1.2.1",)),
        ("1.3.0rc27", ("1.3.0rc27",), (JULY_MAIN,)),
        ("1.3.0", ("1.3.0rc27", "1.4.0rc1"), (JULY_MAIN,)),
        ("1.3.0.post1", ("1.3.0rc27", "1.4.0rc1"), (JULY_MAIN,)),
        ("1.4.0rc2", ("1.4.0rc1", "1.4.0rc4"), (JULY_MAIN,)),
    ],
)
def test_the_columns_of_a_version_are_its_own_or_its_neighbours(
    version: str, speculative: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    for column, sources in (
        (speculative_column(Version(version)), speculative),
        (llm_args_column(Version(version)), arguments),
    ):
        assert column.sources == sources
        assert column.is_exact is ((sources == (version,) and version != "1.2.1") or version == "1.0")
        assert column.is_exact or column.note


@pytest.mark.parametrize("version", ["0.21.0", "1.2.2", "1.2.2rc1", "1.3.0rc26", "1.4.0rc5", "1.4.0"])
def test_what_lies_outside_everything_that_was_read_has_no_column(version: str) -> None:
    for find in (speculative_column, llm_args_column):
        with pytest.raises(
            BuildError, match=r"tensorrt_llm\.version: .*`python -m specdeploy\.builders\.trtllm_probe`"
        ):
            find(Version(version))


# --- flags ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0.0", "1.0.3.2510", "1.1.0", "1.2.1"])
def test_build_flags_hold_own_and_plugin_flags_and_resolve_aliases(version: str) -> None:
    flags = build_flags(Version(version))
    assert flags["--max_batch_size"].default == 2048
    assert flags["--use_paged_context_fmha"].choices == ("enable", "disable")
    assert flags["--max_decoder_seq_len"] is flags["--max_seq_len"]
    is_old = version.startswith("1.0")
    assert ("--auto_parallel" in flags) is is_old
    assert ("not read" in flags["--gemm_plugin"].note) is is_old


@pytest.mark.parametrize("version", ["0.10.0", "1.3.0rc27", "1.3.0"])
def test_build_flags_of_a_version_without_the_command_are_refused(version: str) -> None:
    with pytest.raises(BuildError, match="trtllm-build"):
        build_flags(Version(version))


def test_heads_add_their_flags_to_llamas() -> None:
    medusa = convert_flags(ConvertScript.MEDUSA)
    assert medusa["--num_medusa_heads"].default == 4
    assert medusa["--tp_size"].default == 1
    assert "auto" not in (medusa["--dtype"].choices or ())
    assert "auto" in (convert_flags(ConvertScript.LLAMA)["--dtype"].choices or ())
    assert "--use_fp8" not in convert_flags(ConvertScript.QWEN)
    assert "--pp_size" not in convert_flags(ConvertScript.REDRAFTER)


def test_a_right_command_has_no_problems() -> None:
    argv = ["--checkpoint_dir", "in", "--output_dir=out", "--max_batch_size", "8", "--gemm_plugin", "bfloat16"]
    argv += ["--speculative_decoding_mode", "draft_tokens_external", "--strip_plan", "--lora_dir", "a", "b"]
    assert command_problems(argv, build_flags(Version("1.2.1"))) == []
    convert = ["--model_dir", "m", "--moe_tp_size", "-1", "-sq", "0.5", "--embedding_sharding_dim", "1"]
    assert command_problems(convert, convert_flags(ConvertScript.QWEN)) == []


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--max_batchsize", "8"], "--max_batchsize: no such flag"),
        (["--gemm_plugin", "int4"], "--gemm_plugin: 'int4' is none of auto"),
        (["--max_batch_size", "many"], "--max_batch_size: 'many' is no int"),
        (["--max_batch_size", "1.5"], "--max_batch_size: '1.5' is no int"),
        (["--max_batch_size"], "--max_batch_size: needs a value"),
        (["--max_batch_size", "8", "9"], "--max_batch_size: takes one value, got 8 9"),
        (["--strip_plan", "true"], "--strip_plan: takes no value, got true"),
        (["stray"], "stray: a value that belongs to no flag"),
        (["--max_seq_len", "8", "--max_decoder_seq_len", "9"], "--max_seq_len: given twice"),
    ],
)
def test_a_planted_fault_of_a_command_is_found(argv: list[str], problem: str) -> None:
    problems = command_problems(argv, build_flags(Version("1.2.1")))
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_all_faults_of_a_command_are_found_at_once() -> None:
    argv = ["--use_fp8", "--dtype", "float8", "--tp_size", "two"]
    problems = command_problems(argv, convert_flags(ConvertScript.QWEN))
    assert [problem.split(":")[0] for problem in problems] == ["--use_fp8", "--dtype", "--tp_size", "--model_dir"]


def test_a_flag_of_unknown_type_must_not_be_generated() -> None:
    flags = launch_script_flags()
    assert command_problems(["--world_size", "2", "--multi-model", "-f", "--log-file", "x"], flags) == []
    assert "not known" in command_problems(["--exit_timeout", "3"], flags)[0]


# --- Triton models --------------------------------------------------------------------------------------------------


def test_the_engine_model_has_its_tensors_and_parameters() -> None:
    model = triton_model("tensorrt_llm")
    inputs = {tensor.name: tensor for tensor in model.inputs}
    assert inputs["input_lengths"].dims == (1,)
    assert inputs["input_lengths"].reshape_to_scalar
    assert not inputs["input_lengths"].optional
    assert inputs["draft_logits"].data_type == "${logits_datatype}"
    assert {tensor.name for tensor in model.outputs} >= {"output_ids", "sequence_length", "acceptance_rate"}
    assert model.parameters["gpt_model_path"]["template"] == "engine_dir"
    assert "engine_dir" in model.template_keys


def test_all_stock_models_of_the_engine_flow_are_there() -> None:
    for name in ("tensorrt_llm", "tensorrt_llm_bls", "ensemble", "preprocessing", "postprocessing"):
        assert triton_model(name).inputs
    with pytest.raises(KeyError):
        triton_model("tensorrt_llm_draft")
