"""The probe against packages generated from the facts: both kinds, every outcome for 1.2.1."""

from pathlib import Path

import pytest
from packaging.version import Version

from helpers.fake_tensorrt_llm import (
    ERAS,
    VERSIONS,
    accepted_by_fake,
    fake_group,
    fake_types,
    on_import_path,
    write_fake_tensorrt_llm,
)
from helpers.llmapi_deployment import make_deployment
from specdeploy.builders.trtllm_probe import installed_version, main, probe_installed, validate_with_classes
from specdeploy.contract import EngineModel
from specdeploy.errors import BuildError
from specdeploy.trtllm.decoding import SPELLINGS
from specdeploy.trtllm.llm_args import render_llm_args, validate_llm_args
from specdeploy.trtllm.probe_record import load_probe, probe_path


def ignore(_line: str) -> None:
    pass


@pytest.mark.parametrize("version", VERSIONS)
def test_the_probe_finds_what_the_package_was_made_of(tmp_path: Path, version: str) -> None:
    write_fake_tensorrt_llm(tmp_path, version)
    with on_import_path(tmp_path):
        assert installed_version() == version
        record = probe_installed(tmp_path / "engines", ignore)
    era = ERAS[VERSIONS[version][0]]
    types = {name: fields for name, (_, fields) in fake_types(era).items()}
    for method, names in SPELLINGS.items():
        expected = next(name for name in names if name in types)
        assert record.spellings[method.value] == expected
        assert set(record.speculative_fields[expected]) == accepted_by_fake(types[expected])
    top = [*fake_group(era, "base"), *fake_group(era, "torch")]
    assert set(record.llm_args_fields) == accepted_by_fake(top)
    assert set(record.kv_cache_fields) == accepted_by_fake(fake_group(era, "kv_cache_config"))
    assert load_probe(probe_path(tmp_path / "engines", version)) == record


@pytest.mark.parametrize("eagle", ["Eagle", "Eagle3"])
@pytest.mark.parametrize("draft", ["DraftTarget", "Draft_Target"])
def test_every_outcome_for_1_2_1_renders_arguments_that_the_package_accepts(
    tmp_path: Path, eagle: str, draft: str
) -> None:
    write_fake_tensorrt_llm(tmp_path, "1.2.1", {"eagle3": eagle, "draft_model": draft})
    with on_import_path(tmp_path):
        record = probe_installed(tmp_path / "engines", ignore)
        assert (record.spellings["eagle3"], record.spellings["draft_model"]) == (eagle, draft)
        for method, spelled in (("eagle3", eagle), ("draft_model", draft), ("ngram", "NGram"), ("mtp", "MTP")):
            rendered = render_llm_args(
                make_deployment(method),
                version=Version("1.2.1"),
                probe=record,
                model=EngineModel.TARGET,
                target_path="t",
                draft_path="d",
                kv_tokens=1000,
            )
            assert rendered.unresolved == ()
            speculative = rendered.arguments["speculative_config"]
            assert isinstance(speculative, dict)
            assert speculative["decoding_type"] == spelled
            assert validate_llm_args(rendered.arguments, version=Version("1.2.1"), probe=record) == []
            assert validate_with_classes(rendered.arguments) == []


def test_a_package_with_none_of_the_spellings_is_recorded_as_such(tmp_path: Path) -> None:
    write_fake_tensorrt_llm(tmp_path, "1.2.1", {"draft_model": "TargetDraft"})
    lines: list[str] = []
    with on_import_path(tmp_path):
        record = probe_installed(tmp_path / "engines", lines.append)
    assert record.spellings["draft_model"] is None
    assert record.spellings["ngram"] == "NGram"
    assert "draft_model: no spelling accepted" in lines


def test_a_version_that_was_not_read_can_be_probed_and_rendered(tmp_path: Path) -> None:
    write_fake_tensorrt_llm(tmp_path, "1.3.0rc5")
    with on_import_path(tmp_path):
        record = probe_installed(tmp_path / "engines", ignore)
        assert record.spellings == {"eagle3": "Eagle3", "draft_model": "Draft_Target", "ngram": "NGram", "mtp": "MTP"}
        for method in record.spellings:
            arguments = render_llm_args(
                make_deployment(method),
                version=Version("1.3.0rc5"),
                probe=record,
                model=EngineModel.TARGET,
                target_path="t",
                draft_path="d",
                kv_tokens=1000,
            ).arguments
            assert validate_llm_args(arguments, version=Version("1.3.0rc5"), probe=record) == []
            assert validate_with_classes(arguments) == []


@pytest.mark.parametrize(
    ("version", "arguments", "problem"),
    [
        ("1.2.0rc6", {"model": "m", "turbo": 1}, "turbo"),
        (
            "1.2.0rc6",
            {"model": "m", "speculative_config": {"decoding_type": "Eagle3"}},
            "Invalid decoding type: Eagle3",
        ),
        (
            "1.2.0rc6",
            {"model": "m", "speculative_config": {"decoding_type": "NGram", "max_draft_len": 4}},
            "max_matching_ngram_size",
        ),
        ("1.3.0rc27", {"model": "m", "speculative_config": {"decoding_type": "DraftTarget"}}, "speculative_config"),
        (
            "1.3.0rc27",
            {
                "model": "m",
                "speculative_config": {
                    "decoding_type": "Eagle3",
                    "max_draft_len": 4,
                    "speculative_model": "d",
                    "draft_len_schedule": {1: 2},
                },
            },
            "draft_len_schedule",
        ),
        (
            "1.2.1",
            {
                "model": "m",
                "speculative_config": {
                    "decoding_type": "Eagle",
                    "max_draft_len": 4,
                    "speculative_model": "d",
                    "draft_len_schedule": {4: 4},
                },
            },
            "must contain batch size 1",
        ),
        ("1.3.0rc27", {"kv_cache_config": {"free": 1}}, "model"),
    ],
)
def test_the_classes_refuse_a_planted_fault(
    tmp_path: Path, version: str, arguments: dict[str, object], problem: str
) -> None:
    write_fake_tensorrt_llm(tmp_path, version)
    with on_import_path(tmp_path):
        problems = validate_with_classes(arguments)
    assert any(problem in found for found in problems), problems


def test_the_arguments_are_not_changed_by_the_check(tmp_path: Path) -> None:
    write_fake_tensorrt_llm(tmp_path, "1.0.0")
    speculative = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3}
    with on_import_path(tmp_path):
        assert validate_with_classes({"model": "m", "speculative_config": speculative}) == []
    assert speculative["decoding_type"] == "NGram"


def test_without_the_package_there_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert installed_version() is None
    with pytest.raises(BuildError, match="TensorRT-LLM is not installed here"):
        probe_installed(tmp_path, ignore)
    with pytest.raises(BuildError, match="cannot be imported"):
        validate_with_classes({"model": "m"})
    assert main([str(tmp_path)]) == 1
    assert "not installed" in capsys.readouterr().err


def test_a_package_whose_libraries_do_not_load_is_one_message(tmp_path: Path) -> None:
    write_fake_tensorrt_llm(tmp_path, "1.2.1")
    module = tmp_path / "tensorrt_llm" / "llmapi" / "llm_args.py"
    module.write_text('raise OSError("libcuda.so.1: cannot open shared object file")\n')
    with on_import_path(tmp_path), pytest.raises(BuildError, match=r"libcuda\.so\.1.*NVIDIA driver"):
        probe_installed(tmp_path / "engines", ignore)
    assert not (tmp_path / "engines").exists()


@pytest.mark.parametrize(
    ("text", "missing"),
    [("", "DecodingBaseConfig"), ("class DecodingBaseConfig:\n    pass\n", "TorchLlmArgs or LlmArgs")],
)
def test_a_package_without_the_classes_cannot_be_probed(tmp_path: Path, text: str, missing: str) -> None:
    write_fake_tensorrt_llm(tmp_path, "1.2.1")
    (tmp_path / "tensorrt_llm" / "llmapi" / "llm_args.py").write_text(text)
    with on_import_path(tmp_path), pytest.raises(BuildError, match=f"has no {missing}"):
        probe_installed(tmp_path / "engines", ignore)


def test_the_command_writes_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fake_tensorrt_llm(tmp_path, "1.2.1", {"eagle3": "Eagle3"})
    with on_import_path(tmp_path):
        assert main([str(tmp_path / "engines")]) == 0
    assert "eagle3: Eagle3" in capsys.readouterr().out
    assert load_probe(probe_path(tmp_path / "engines", "1.2.1")).version == "1.2.1"
