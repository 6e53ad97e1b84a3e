"""A converted checkpoint from another build: several deployments of one target convert it once."""

from collections.abc import Mapping
from pathlib import Path

from specdeploy.builders.base import link_or_copy
from specdeploy.contract import BuildCheck, EngineManifest, Lane
from specdeploy.errors import SpecDeployError
from specdeploy.manifest import load_manifest, sha256_file


def reuse_converted(
    engines_root: Path, role: str, digest: str, versions: Mapping[str, str], folder: Path
) -> tuple[BuildCheck, ...] | None:
    """Link the files that a build made of the same source (`digest`) by the same `versions` into `folder`.

    None when there is no such build, or when a file of it is not what its manifest says: then nothing was written and
    the checkpoint is converted again.
    """
    for path in sorted(engines_root.glob("*/manifest.json")):
        try:
            manifest = load_manifest(engines_root, path.parent.name)
        except SpecDeployError:
            continue  # a damaged neighbour is not this build's business
        made = _files_made_of(manifest, digest, versions)
        if made and all(_is_intact(path.parent / name, sha256) for name, sha256 in made.items()):
            folder.mkdir(parents=True)
            for name in made:
                link_or_copy(path.parent / name, folder / Path(name).name)
            return (BuildCheck(name=f"{role} reused", detail=f"converted before, by build {manifest.build_id}"),)
    return None


def _files_made_of(manifest: EngineManifest, digest: str, versions: Mapping[str, str]) -> dict[str, str]:
    """Path in the build -> SHA-256, of the checkpoint that was converted from `digest`; empty for another one."""
    if manifest.lane is not Lane.TORCH or manifest.versions != dict(versions):
        return {}
    for checkpoint in manifest.checkpoints:
        if checkpoint.digest == digest:
            prefix = f"{checkpoint.folder}/"
            return {file.path: file.sha256 for file in manifest.files if file.path.startswith(prefix)}
    return {}


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        return sha256_file(path) == sha256
    except (OSError, SpecDeployError):
        return False
