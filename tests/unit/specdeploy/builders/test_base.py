"""A build is all there or not there: staging, reuse, damage, races."""

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from specdeploy.builders.base import BuildRecipe, BuildStep, is_finished, link_or_copy, run_build
from specdeploy.contract import BuildCheck, CheckpointSource, EngineModel, EngineRecord, Lane, MemoryBudget
from specdeploy.errors import BuildError, CheckpointError
from specdeploy.manifest import find_damages, load_manifest, sha256_file, verify_build

Run = Callable[[Path], tuple[BuildCheck, ...]]


def write_target(staging: Path) -> tuple[BuildCheck, ...]:
    (staging / "target").mkdir()
    (staging / "target" / "weights").write_bytes(b"12345")
    return (BuildCheck(name="target", detail="fine"),)


def recipe(run: Run = write_target, *, digest: str = "d", version: str = "1") -> BuildRecipe:
    source = CheckpointSource(role="target", reference="r", digest=digest, folder="target")
    step = BuildStep("copy target", ("r",), ("target/weights",), run)
    return BuildRecipe(Lane.TORCH, (source,), {"converter": version}, (step,))


def ignore(_line: str) -> None:
    """Reports of a build that nobody reads."""


def test_build_lands_whole_and_is_reused(tmp_path: Path) -> None:
    lines: list[str] = []

    first = run_build(recipe(), tmp_path, lines.append)
    second = run_build(recipe(), tmp_path, lines.append)

    assert (first.reused, second.reused) == (False, True)
    assert first.manifest == second.manifest
    assert [file.path for file in first.manifest.files] == ["target/weights"]
    assert [check.name for check in first.manifest.checks] == ["target"]
    assert first.build_folder == tmp_path / recipe().build_id
    assert not (tmp_path / ".staging").exists()
    assert lines[0] == "[1/1] copy target ..."
    assert len(lines) == 2


def test_build_id_follows_sources_and_versions() -> None:
    assert recipe().build_id == recipe().build_id
    assert len({recipe().build_id, recipe(digest="e").build_id, recipe(version="2").build_id}) == 3


@pytest.mark.parametrize("damage", ["cut", "gone", "no manifest"])
def test_damaged_build_is_made_again(tmp_path: Path, damage: str) -> None:
    build = run_build(recipe(), tmp_path, ignore)
    if damage == "cut":
        (build.build_folder / "target" / "weights").write_bytes(b"1")
    elif damage == "gone":
        (build.build_folder / "target" / "weights").unlink()
    else:
        (build.build_folder / "manifest.json").unlink()
    lines: list[str] = []

    again = run_build(recipe(), tmp_path, lines.append)

    assert not again.reused
    assert "is damaged" in lines[0]
    assert find_damages(tmp_path, recipe().build_id) == []


def test_failing_step_leaves_nothing(tmp_path: Path) -> None:
    def fail(staging: Path) -> tuple[BuildCheck, ...]:
        write_target(staging)
        raise ValueError("first line\nsecond line")

    with pytest.raises(BuildError, match=r"^step copy target: ValueError: first line$"):
        run_build(recipe(fail), tmp_path, ignore)

    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_our_own_errors_pass_unchanged(tmp_path: Path) -> None:
    def fail(_staging: Path) -> tuple[BuildCheck, ...]:
        raise CheckpointError("the message")

    with pytest.raises(CheckpointError, match=r"^the message$"):
        run_build(recipe(fail), tmp_path, ignore)


def test_step_that_forgets_its_output(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="did not write target/weights"):
        run_build(recipe(lambda _staging: ()), tmp_path, ignore)


def test_staging_of_a_killed_build_is_cleaned(tmp_path: Path) -> None:
    leftover = tmp_path / ".staging" / "other" / "target"
    leftover.mkdir(parents=True)

    run_build(recipe(), tmp_path, ignore)

    assert not leftover.exists()


def test_two_builds_do_not_race(tmp_path: Path) -> None:
    built: list[str] = []
    started = threading.Event()

    def slow(staging: Path) -> tuple[BuildCheck, ...]:
        built.append(staging.name)
        started.set()
        time.sleep(0.3)
        return write_target(staging)

    lines: list[str] = []
    first = threading.Thread(target=run_build, args=(recipe(slow), tmp_path, ignore))
    first.start()
    assert started.wait(5)
    second = run_build(recipe(slow), tmp_path, lines.append)
    first.join()

    assert second.reused
    assert len(built) == 1
    assert lines == ["another build is running here: waiting for it to end"]


def test_link_or_copy_works_across_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.write_text("text")

    link_or_copy(source, tmp_path / "linked")
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("cross-device")))
    link_or_copy(source, tmp_path / "copied")

    assert (tmp_path / "linked").samefile(source)
    assert (tmp_path / "copied").read_text() == "text"
    assert not (tmp_path / "copied").samefile(source)


def test_engines_and_memory_are_recorded(tmp_path: Path) -> None:
    engine = EngineRecord(
        model=EngineModel.TARGET,
        folder="target_engine",
        decoding=None,
        max_draft_len=0,
        max_batch_size=4,
        max_seq_len=128,
        max_num_tokens=512,
        dtype="bfloat16",
    )
    memory = MemoryBudget(
        gpu="H100 SXM (GPU 0)",
        num_bytes=1,
        lines=(),
        kv_bytes=1,
        kv_bytes_per_token={EngineModel.TARGET: 1},
        kv_tokens={EngineModel.TARGET: 1},
        max_sequences=0,
        max_sequences_without_draft=0,
    )

    build = run_build(replace(recipe(), engines=(engine,), memory=memory, gpu_architecture="sm90"), tmp_path, ignore)

    manifest = load_manifest(tmp_path, build.manifest.build_id)
    assert (manifest.engines, manifest.memory, manifest.gpu_architecture) == ((engine,), memory, "sm90")


def test_hard_links_of_one_file_are_read_once(tmp_path: Path) -> None:
    def write_linked(staging: Path) -> tuple[BuildCheck, ...]:
        checks = write_target(staging)
        os.link(staging / "target" / "weights", staging / "target" / "again")
        return checks

    read: list[str] = []

    def digest_of(path: Path) -> str:
        read.append(path.name)
        return sha256_file(path)

    build = run_build(replace(recipe(write_linked), digest_of=digest_of), tmp_path, ignore)

    assert [file.path for file in build.manifest.files] == ["target/again", "target/weights"]
    assert len({file.sha256 for file in build.manifest.files}) == 1
    assert read == ["again"]
    assert verify_build(tmp_path, build.manifest.build_id).is_intact


def test_finished_means_there_and_undamaged(tmp_path: Path) -> None:
    build_id = recipe().build_id
    assert not is_finished(tmp_path, build_id)

    build = run_build(recipe(), tmp_path, ignore)
    assert is_finished(tmp_path, build_id)

    (build.build_folder / "target" / "weights").unlink()
    assert not is_finished(tmp_path, build_id)


# --- what the file system refuses -------------------------------------------------------------------------------------


def test_engines_root_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "engines").write_text("a file")

    with pytest.raises(BuildError, match=r"engines: .*Make the folder writable for this user and free space on its"):
        run_build(recipe(), tmp_path / "engines", ignore)


def test_lock_that_cannot_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / ".build.lock"))

    monkeypatch.setattr(FileLock, "acquire", refuse)

    with pytest.raises(BuildError, match=r"\.build\.lock: Read-only file system\. Make the folder writable"):
        run_build(recipe(), tmp_path, ignore)


def test_disk_that_becomes_full_in_a_step_and_in_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_arguments: object) -> tuple[BuildCheck, ...]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "weights")

    with pytest.raises(BuildError, match=r"step copy target: weights: No space left on device\. .*free space"):
        run_build(recipe(fill), tmp_path, ignore)
    monkeypatch.setattr("specdeploy.builders.base.write_manifest", fill)
    with pytest.raises(BuildError, match=r"weights: No space left on device\. .*free space"):
        run_build(recipe(), tmp_path, ignore)
    assert not (tmp_path / ".staging").exists()
