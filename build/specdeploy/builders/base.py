"""A build: named steps that fill a staging folder, which becomes `engines/<build id>/` by one rename.

A build is never half there. What a killed build left in `engines/.staging/` is cleaned by the next one; a lock keeps
two builds of one engines root apart.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from specdeploy.builders.file_errors import REMEDY, file_errors
from specdeploy.contract import (
    BuildCheck,
    CheckpointSource,
    EngineManifest,
    EngineRecord,
    FileDigest,
    Lane,
    MemoryBudget,
)
from specdeploy.errors import BuildError, SpecDeployError
from specdeploy.manifest import (
    MANIFEST_NAME,
    build_id_of,
    find_damages,
    find_other_manifest,
    load_manifest,
    record_new_manifest,
    sha256_file,
    write_manifest,
)

STAGING = ".staging"
LOCK = ".build.lock"

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BuildStep:
    """One step. `run` gets the staging folder and returns what it checked; `outputs` are relative to that folder."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[[Path], tuple[BuildCheck, ...]]

    def describe(self) -> str:
        """One line for people: what goes in, what comes out."""
        return f"{self.name}: {', '.join(self.inputs)} -> {', '.join(self.outputs) or 'checks only'}"


@dataclass(frozen=True, slots=True)
class BuildRecipe:
    """What a build is made of; equal recipes give equal bytes, so the build id is a digest of it.

    `checks` is what was checked before the build; `pair_digest` gets the filled staging folder. `engines`, `memory` and
    `gpu_architecture` belong to the TensorRT-LLM lanes: whatever of them may change while sources and versions stay the
    same must be part of `versions` too. `digest_of` gives the SHA-256 of a file of the staging folder, from memory
    where it was read before.
    """

    lane: Lane
    checkpoints: tuple[CheckpointSource, ...]
    versions: Mapping[str, str]
    steps: tuple[BuildStep, ...]
    checks: tuple[BuildCheck, ...] = ()
    pair_digest: Callable[[Path], str] | None = None
    engines: tuple[EngineRecord, ...] = ()
    memory: MemoryBudget | None = None
    gpu_architecture: str | None = None
    digest_of: Callable[[Path], str] = sha256_file

    @property
    def build_id(self) -> str:
        """Short SHA-256 over lane, sources and the versions that decide the bytes. The compute dtype is not among
        them: weights are stored in their source precision and cast when they are loaded."""
        return build_id_of(self.lane, self.checkpoints, self.versions)


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished build. `reused` is true when it was there already and nothing was built."""

    manifest: EngineManifest
    build_folder: Path
    reused: bool


def run_build(recipe: BuildRecipe, engines_root: Path, report: Report) -> BuildResult:
    """Give the build of `recipe`: the one that is there, if undamaged, or a new one.

    Raises `BuildError` when the manifest of the one that is there was edited since a deployment recorded it, and where
    the file system refuses to write.
    """
    with file_errors(engines_root), _locked(engines_root, report):
        staging_root = engines_root / STAGING
        shutil.rmtree(staging_root, ignore_errors=True)
        build_folder = engines_root / recipe.build_id
        if build_folder.exists():
            damages = find_damages(engines_root, recipe.build_id)
            if not damages:
                _check_recorded(engines_root, recipe.build_id)
                return BuildResult(load_manifest(engines_root, recipe.build_id), build_folder, reused=True)
            report(f"build {recipe.build_id} is damaged ({damages[0]}): building again")
        try:
            manifest = _fill(recipe, staging_root / recipe.build_id, report)
            if build_folder.exists():
                build_folder.replace(staging_root / f"{recipe.build_id}.damaged")
            (staging_root / recipe.build_id).replace(build_folder)
            record_new_manifest(engines_root, recipe.build_id)
        finally:
            shutil.rmtree(staging_root, ignore_errors=True)
        return BuildResult(manifest, build_folder, reused=False)


def _check_recorded(engines_root: Path, build_id: str) -> None:
    """Reusing a build never accepts another manifest than the one recorded when it was made."""
    if faults := find_other_manifest(engines_root, build_id):
        path = engines_root / build_id / MANIFEST_NAME
        raise BuildError(f"{path}: {faults[0]}. Remove {path.parent} and run `make engines` again")


def is_finished(engines_root: Path, build_id: str) -> bool:
    """Whether `run_build` would find the build undamaged, so that nothing has to be made for it."""
    return (engines_root / build_id).exists() and not find_damages(engines_root, build_id)


@contextmanager
def _locked(engines_root: Path, report: Report) -> Iterator[None]:
    engines_root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(engines_root / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("another build is running here: waiting for it to end")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fill(recipe: BuildRecipe, staging: Path, report: Report) -> EngineManifest:
    staging.mkdir(parents=True)
    checks = list(recipe.checks)
    for number, step in enumerate(recipe.steps, start=1):
        report(f"[{number}/{len(recipe.steps)}] {step.name} ...")
        started = time.monotonic()
        checks += _run_step(step, staging)
        report(f"[{number}/{len(recipe.steps)}] {step.name}: done in {time.monotonic() - started:.1f} s")
    manifest = EngineManifest(
        build_id=recipe.build_id,
        lane=recipe.lane,
        checkpoints=recipe.checkpoints,
        files=_hash_files(staging, recipe.digest_of),
        versions=dict(sorted(recipe.versions.items())),
        checks=tuple(checks),
        pair_digest=recipe.pair_digest(staging) if recipe.pair_digest is not None else None,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        engines=recipe.engines,
        memory=recipe.memory,
        gpu_architecture=recipe.gpu_architecture,
    )
    write_manifest(staging, manifest)
    return manifest


def _hash_files(staging: Path, digest_of: Callable[[Path], str]) -> tuple[FileDigest, ...]:
    """Every file below `staging` by its relative POSIX path; hard links of one file are read once."""
    files = {path.relative_to(staging).as_posix(): path for path in staging.rglob("*") if path.is_file()}
    digests: dict[tuple[int, int], str] = {}
    hashed = []
    for name, path in sorted(files.items()):
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        if identity not in digests:
            digests[identity] = digest_of(path)
        hashed.append(FileDigest(path=name, sha256=digests[identity], num_bytes=status.st_size))
    return tuple(hashed)


def _run_step(step: BuildStep, staging: Path) -> tuple[BuildCheck, ...]:
    try:
        checks = step.run(staging)
    except SpecDeployError:
        raise
    except MemoryError as error:
        raise BuildError(
            f"step {step.name}: out of memory. Use a machine with more, or a smaller checkpoint"
        ) from error
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise BuildError(f"step {step.name}: {place}{error.strerror or error}. {REMEDY}") from error
    except Exception as error:  # whatever a library raises becomes one message that names the step
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        raise BuildError(f"step {step.name}: {type(error).__name__}: {reason}") from error
    if missing := [name for name in step.outputs if not (staging / name).exists()]:
        raise BuildError(f"step {step.name}: did not write {', '.join(missing)}")
    return checks


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link where the file system allows it (weights are large), else copy."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
