"""Manifests: whole, immutable, and errors that say what to run."""

import hashlib
import json
from pathlib import Path

import pytest

from helpers.deployment_files import write_deployment
from specdeploy.config.load import load_deployment
from specdeploy.contract import CheckpointSource, EngineManifest, Lane
from specdeploy.errors import BuildError
from specdeploy.manifest import (
    CurrentBuild,
    hash_folder,
    load_current_build,
    load_manifest,
    sha256_file,
    write_current_build,
    write_json_atomically,
    write_manifest,
)
from specdeploy.planner.schedule import plan_from_config

REMEDY = r"Run `make engines DEPLOYMENT=tiny`"


def make_build(tmp_path: Path) -> CurrentBuild:
    loaded = load_deployment(write_deployment(tmp_path))
    return CurrentBuild(
        deployment="tiny",
        build_id="b1",
        target_folder="b1/target",
        draft_folder=None,
        config_digest=loaded.digest,
        config=loaded.config,
        plan=plan_from_config(loaded.config),
    )


def make_manifest(build_id: str = "b1") -> EngineManifest:
    source = CheckpointSource(role="target", reference="x", digest="00", folder="target")
    return EngineManifest(
        build_id=build_id, lane=Lane.TORCH, checkpoints=(source,), files=(), versions={}, checks=(), created_at="now"
    )


def test_files_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "manifest.json"
    write_json_atomically(path, make_manifest("old"))

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_json_atomically(path, make_manifest("new"))
    assert json.loads(path.read_text())["build_id"] == "old"
    assert [entry.name for entry in path.parent.iterdir()] == ["manifest.json"]


def test_hashes(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(b"12345")
    (tmp_path / "a").write_bytes(b"")
    digests = hash_folder(tmp_path)
    assert [(entry.path, entry.num_bytes) for entry in digests] == [("a", 0), ("b/x", 5)]
    assert digests[1].sha256 == hashlib.sha256(b"12345").hexdigest() == sha256_file(tmp_path / "b" / "x", chunk=2)


def test_a_manifest_never_changes(tmp_path: Path) -> None:
    folder = tmp_path / "b1"
    write_manifest(folder, make_manifest())
    write_manifest(folder, make_manifest())
    assert load_manifest(tmp_path, "b1") == make_manifest()
    with pytest.raises(BuildError, match="a build never changes"):
        write_manifest(folder, make_manifest("b2"))


def test_manifest_errors(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no such build"):
        load_manifest(tmp_path, "b1")
    write_manifest(tmp_path / "b1", make_manifest("b2"))
    with pytest.raises(BuildError, match="not the name of its folder"):
        load_manifest(tmp_path, "b1")


def test_current_build_survives(tmp_path: Path) -> None:
    build = make_build(tmp_path)
    (tmp_path / "b1" / "target").mkdir(parents=True)
    write_current_build(tmp_path, build)
    assert load_current_build(tmp_path, "tiny") == build


def test_never_built(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=f"was never built. {REMEDY}"):
        load_current_build(tmp_path, "tiny")


@pytest.mark.parametrize("text", ["", "{", "{}", '{"schema_version": 2}', "[]"])
def test_damaged_or_foreign_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(text)
    with pytest.raises(BuildError, match=REMEDY):
        load_current_build(tmp_path, "tiny")


def test_a_build_whose_folder_is_gone(tmp_path: Path) -> None:
    write_current_build(tmp_path, make_build(tmp_path))
    with pytest.raises(BuildError, match=f"is missing. {REMEDY}"):
        load_current_build(tmp_path, "tiny")


def test_a_file_of_another_deployment(tmp_path: Path) -> None:
    write_json_atomically(tmp_path / "tiny.json", make_build(tmp_path).model_copy(update={"deployment": "else"}))
    with pytest.raises(BuildError, match="it names 'else'"):
        load_current_build(tmp_path, "tiny")


def test_names_that_would_leave_the_engines_root(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not a deployment name"):
        load_current_build(tmp_path, "../tiny")
