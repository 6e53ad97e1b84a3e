"""Every changed, missing and surplus byte of a build is found and named; one digest stands for one pair."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from specdeploy import cli
from specdeploy.contract import CheckpointSource, EngineManifest, Lane
from specdeploy.errors import BuildError
from specdeploy.manifest import (
    MANIFEST_NAME,
    build_id_of,
    hash_folder,
    pair_digest,
    sha256_file,
    verify_build,
    write_manifest,
)

SOURCES = (CheckpointSource(role="target", reference="x", digest="00", folder="target"),)
BUILD_ID = build_id_of(Lane.TORCH, SOURCES, {"converter": "1"})


@pytest.fixture
def engines(tmp_path: Path) -> Path:
    """One build of three files."""
    folder = tmp_path / BUILD_ID
    (folder / "target").mkdir(parents=True)
    (folder / "target" / "weights").write_bytes(bytes(range(256)) * 100)
    (folder / "target" / "config").write_text("{}")
    (folder / "target" / "empty").write_bytes(b"")
    manifest = EngineManifest(
        build_id=BUILD_ID,
        lane=Lane.TORCH,
        checkpoints=SOURCES,
        files=hash_folder(folder),
        versions={"converter": "1"},
        checks=(),
        created_at="now",
    )
    write_manifest(folder, manifest)
    return tmp_path


def flip_a_bit(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def edit_manifest(engines: Path, **changes: Any) -> None:
    path = engines / BUILD_ID / MANIFEST_NAME
    content = {**json.loads(path.read_text()), **changes}
    path.chmod(0o644)
    path.write_text(json.dumps(content))


def test_an_untouched_build_is_intact_and_every_byte_is_counted(engines: Path) -> None:
    read: list[int] = []

    found = verify_build(engines, BUILD_ID, on_bytes=read.append)

    assert found.is_intact
    assert (found.num_files, found.num_bytes, sum(read)) == (3, 25602, 25602)


@pytest.mark.parametrize("at", [0, 12345, 25599])
def test_one_changed_bit_is_found(at: int, engines: Path) -> None:
    flip_a_bit(engines / BUILD_ID / "target" / "weights", at)
    assert verify_build(engines, BUILD_ID).changed == ("target/weights",)


def test_missing_changed_and_surplus_files_come_at_once(engines: Path) -> None:
    folder = engines / BUILD_ID
    (folder / "target" / "config").unlink()
    (folder / "target" / "empty").write_text("x")
    (folder / "added").write_text("y")
    (folder / "link").symlink_to("nowhere")

    found = verify_build(engines, BUILD_ID)

    assert (found.missing, found.changed, found.surplus) == (("target/config",), ("target/empty",), ("added", "link"))
    assert not found.is_intact


def test_a_manifest_cannot_be_written_by_accident(engines: Path) -> None:
    mode = (engines / BUILD_ID / MANIFEST_NAME).stat().st_mode
    assert not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def test_an_edited_manifest_gives_itself_away(engines: Path) -> None:
    recorded = sha256_file(engines / BUILD_ID / MANIFEST_NAME)
    edit_manifest(engines, versions={"converter": "2"})
    assert "make build" in verify_build(engines, BUILD_ID).manifest[0]

    edit_manifest(engines, versions={"converter": "1"}, created_at="later")
    assert verify_build(engines, BUILD_ID).is_intact  # without the pointer's record there is nothing to compare with
    faults = verify_build(engines, BUILD_ID, manifest_sha256=recorded).manifest
    assert faults == ("its bytes are not those the deployment recorded after the build",)


def test_files_outside_the_build_are_never_read(engines: Path) -> None:
    secret = engines / "secret"
    secret.write_text("x")
    listed = {"path": "../secret", "sha256": sha256_file(secret), "num_bytes": 1}
    edit_manifest(engines, files=[listed])

    found = verify_build(engines, BUILD_ID)

    assert found.missing == ("../secret",)
    assert "it names ../secret, which lies outside the build" in found.manifest


def write_pointer(engines: Path, deployment: str, manifest_sha256: str | None) -> None:
    pointer = {"deployment": deployment, "build_id": BUILD_ID, "manifest_sha256": manifest_sha256}
    (engines / f"{deployment}.json").write_text(json.dumps(pointer))


def test_every_deployment_that_points_to_a_build_vouches_for_its_manifest(engines: Path) -> None:
    write_pointer(engines, "tiny", sha256_file(engines / BUILD_ID / MANIFEST_NAME))
    write_pointer(engines, "old", None)
    (engines / "broken.json").write_text("{")
    assert verify_build(engines, BUILD_ID).is_intact

    edit_manifest(engines, created_at="later")

    assert verify_build(engines, BUILD_ID).manifest == (
        "its bytes are not those that deployment tiny recorded after the build",
    )
    assert cli.run(["verify-manifest", BUILD_ID, "--engines-root", str(engines)]) == cli.EXIT_FAIL


def test_links_are_no_part_of_a_build(engines: Path, tmp_path: Path) -> None:
    folder = engines / BUILD_ID
    (tmp_path / "elsewhere").mkdir()
    (folder / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (folder / "target" / "config").rename(tmp_path / "config")
    (folder / "target" / "config").symlink_to(tmp_path / "config")

    found = verify_build(engines, BUILD_ID)

    assert (found.surplus, found.changed) == (("linked",), ("target/config",))


def test_what_cannot_be_read_is_named(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def refuse(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "weights":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BuildError, match=r"target/weights: cannot be read \(Permission denied\)\. Make it readable"):
        verify_build(engines, BUILD_ID)


def test_a_build_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no such build"):
        verify_build(tmp_path, BUILD_ID)


PARTS: dict[str, Any] = {
    "target": "t",
    "draft": "d",
    "tokenizer_map": "m",
    "special_ids": {"eos_token_ids": [1, 2], "bos_token_id": None},
    "chat_template": "c",
    "lane": Lane.TORCH,
    "versions": {"converter": "1", "torch": "2"},
}


class TestPairDigest:
    def test_it_is_one_sha256_and_the_same_every_time(self) -> None:
        reordered = {**PARTS, "versions": {"torch": "2", "converter": "1"}}

        assert pair_digest(**PARTS) == pair_digest(**reordered)
        assert len(bytes.fromhex(pair_digest(**PARTS))) == 32
        # Recorded reports name this digest: a change of the recipe makes every one of them stale.
        assert pair_digest(**PARTS) == "8dc315c7995ec2dbb23e4c3cb9664123a852d6220537c31bd5300289da4c802b"

    @pytest.mark.parametrize(
        "change",
        [
            {"target": "u"},
            {"draft": None},
            {"tokenizer_map": "n"},
            {"special_ids": {"eos_token_ids": [2, 1], "bos_token_id": None}},
            {"chat_template": None},
            {"lane": Lane.TRTLLM_LLMAPI},
            {"versions": {"converter": "1", "torch": "3"}},
        ],
    )
    def test_every_part_counts(self, change: dict[str, Any]) -> None:
        assert pair_digest(**{**PARTS, **change}) != pair_digest(**PARTS)


class TestCommand:
    def test_exit_codes_and_names(self, engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["verify-manifest", BUILD_ID, "--engines-root", str(engines)]
        assert cli.run(arguments) == 0
        out = capsys.readouterr().out
        assert out.splitlines() == [f"hashing {BUILD_ID}, 25.0 KiB", f"{BUILD_ID}: intact, 3 files, 25.0 KiB"]

        flip_a_bit(engines / BUILD_ID / "target" / "weights", 7)
        (engines / BUILD_ID / "added").write_text("y")

        assert cli.run(arguments) == cli.EXIT_FAIL
        out = capsys.readouterr().out
        assert "changed: target/weights\nsurplus: added\n" in out
        assert "run `make engines` again" in out
        assert cli.run([*arguments, "--json"]) == cli.EXIT_FAIL
        assert json.loads(capsys.readouterr().out)["changed"] == ["target/weights"]

    @pytest.mark.parametrize("reference", ["", ".", "..", "../x", BUILD_ID + "/target", "Not A Name"])
    def test_what_names_no_build(self, reference: str, engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["verify-manifest", reference, "--engines-root", str(engines)]) == cli.EXIT_USAGE
        assert "neither a build id" in " ".join(capsys.readouterr().err.replace("│", " ").split())

    def test_what_was_never_built(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["verify-manifest", "tiny", "--engines-root", str(tmp_path)]) == cli.EXIT_FAIL
        assert "never built. Run `make engines DEPLOYMENT=tiny`" in capsys.readouterr().err
