"""Checkpoints that stay where they are: the LLM API reads weights from their snapshot, a build only pins them.

`sources.json` of a build names the folder, the commit and the SHA-256 of every file; `find_changed_sources` compares
them again before the build is packed and before its server starts.
"""

from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from specdeploy.checkpoint.digest_cache import open_digest_cache
from specdeploy.checkpoint.source import list_checkpoint_files
from specdeploy.contract import ContractModel, FileDigest
from specdeploy.errors import BuildError, CheckpointError

SOURCES_NAME = "sources.json"

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
