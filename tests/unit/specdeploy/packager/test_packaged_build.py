"""A build of a TensorRT-LLM lane as `make repo` reads it from the engines folder."""

import json
from pathlib import Path

import pytest

from helpers.engine_builds import make_build, make_config
from helpers.engine_manifests import write_engine_build
from specdeploy.errors import BuildError, PackagingError
from specdeploy.packager.packaged_build import load_packaged_build
from specdeploy.packager.repository import pack_repository, render_repository


def test_reads_what_the_manifest_says(tmp_path: Path) -> None:
    build_id = write_engine_build(
        tmp_path, config=make_config("draft_model"), files={"target_engine/config.json": "{}"}
    )
    found = load_packaged_build(tmp_path, "big")

    assert (found.folder, found.engines_root) == (str(tmp_path / build_id), str(tmp_path))
    assert found.engines == make_build("draft_model").engines
    assert found.memory == make_build("draft_model").memory
    assert (found.build_id, found.config_digest) == (build_id, "digest")
    assert (found.unresolved, found.guided_tokenizer_info, found.checkpoint_folders) == ((), None, ())


def test_packs_what_was_read(tmp_path: Path) -> None:
    build_id = write_engine_build(
        tmp_path / "engines", config=make_config("draft_model"), files={"target_engine/config.json": "{}"}
    )
    manifest = pack_repository(make_config(), tmp_path / "repo", load_packaged_build(tmp_path / "engines", "big"))

    assert manifest.models == ("draft", "llm", "target")
    text = (tmp_path / "repo" / "big" / "draft" / "config.pbtxt").read_text()
    assert f"{tmp_path}/engines/{build_id}/draft_engine" in text
    assert (tmp_path / "repo" / "big" / "target" / "1").is_dir()


def test_finds_values_that_were_left_open_and_no_comment(tmp_path: Path) -> None:
    text = "# unresolved: not this one\nspeculative_config:\n  decoding_type: unresolved:DraftTarget|Draft_Target\n"
    write_engine_build(
        tmp_path,
        config=make_config("ngram"),
        files={"llm_args.yaml": text, "llm_args_plain.yaml": "model: /x\n", "notes.yaml": text},
    )

    assert load_packaged_build(tmp_path, "big").unresolved == (
        "llm_args.yaml: line 3: decoding_type: unresolved:DraftTarget|Draft_Target",
    )


def test_finds_the_tokenizer_file_and_the_pinned_checkpoints(tmp_path: Path) -> None:
    sources = {"checkpoints": [{"folder": "/a"}, {"folder": "/b"}, {"folder": "/a"}]}
    files = {"target/xgrammar_tokenizer_info.json": "{}", "sources.json": json.dumps(sources)}
    write_engine_build(tmp_path, config=make_config("lookahead"), files=files)
    found = load_packaged_build(tmp_path, "big")

    assert found.guided_tokenizer_info == "target/xgrammar_tokenizer_info.json"
    assert found.checkpoint_folders == ("/a", "/b")


def test_a_broken_list_of_checkpoints_is_named(tmp_path: Path) -> None:
    write_engine_build(tmp_path, config=make_config("ngram"), files={"sources.json": "{}"})
    with pytest.raises(BuildError, match=r"sources.json: does not name the checkpoints"):
        load_packaged_build(tmp_path, "big")


def test_never_built(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="was never built"):
        load_packaged_build(tmp_path, "big")


@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_a_repository_needs_a_build(method: str) -> None:
    with pytest.raises(PackagingError, match="make engines DEPLOYMENT=big"):
        render_repository(make_config(method))
