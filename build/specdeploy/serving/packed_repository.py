"""Is the model repository the one that was packed, for the build that is served now? Asked before every start: a
repository names folders, ports and limits, and one that is older than its build runs new plans on old engines."""

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from specdeploy.contract import FileDigest, Lane, RepositoryManifest
from specdeploy.manifest import REPOSITORY_MANIFEST_NAME, CurrentBuild, sha256_file

_SHOWN = 3


def repository_problems(folder: Path, current: CurrentBuild) -> list[str]:
    """Why `folder` must not be served as the repository of `current`, one sentence each, remedy included.

    Lane torch: its repository names no build, so only its files are compared, and one without `repository.json` is
    taken as it is. Raises `BuildError` for a file that cannot be read.
    """
    path = folder / REPOSITORY_MANIFEST_NAME
    is_bound = current.config.lane is not Lane.TORCH
    if not path.is_file() and not is_bound:
        return []
    try:
        manifest = RepositoryManifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        problems = ["cannot be read, so nothing says what was packed"]
    else:
        problems = list(_problems(folder, manifest, current, is_bound=is_bound))
    remedy = f"Run: make repo DEPLOYMENT={current.deployment}"
    return [f"{path}: {problem}. {remedy}" for problem in problems]


def _problems(folder: Path, manifest: RepositoryManifest, current: CurrentBuild, *, is_bound: bool) -> Iterator[str]:
    if manifest.deployment != current.deployment:
        yield f"was packed for deployment {manifest.deployment}, not for {current.deployment}"
    if is_bound and manifest.build_id != current.build_id:
        yield f"was packed for build {manifest.build_id or 'unknown'}, and {current.build_id} is served now"
    elif is_bound and manifest.config_digest != current.config_digest:
        yield "was packed before the deployment was changed and built again: its ports and limits are the old ones"
    changed, missing = _compare(folder, manifest.files)
    if changed:
        yield f"{_names(changed)} changed since it was packed"
    if missing:
        yield f"{_names(missing)} missing since it was packed"
    if is_bound and (surplus := _find_surplus(folder, manifest)):
        yield f"{_names(surplus)} added since it was packed"


def _compare(folder: Path, files: Iterable[FileDigest]) -> tuple[list[str], list[str]]:
    """Names of files that are not as they were packed, and of those that are not there."""
    changed, missing = [], []
    for file in files:
        path = folder / file.path
        if not path.is_file():
            missing.append(file.path)
        elif path.stat().st_size != file.num_bytes or sha256_file(path) != file.sha256:
            changed.append(file.path)
    return changed, missing


def _find_surplus(folder: Path, manifest: RepositoryManifest) -> list[str]:
    """What Triton would take for a model, a version or a part of one; files at the top are nothing to it."""
    known = {file.path for file in manifest.files}
    below = {path.relative_to(folder).as_posix() for path in folder.glob("*/**/*") if path.is_file()}
    models = {path.name for path in folder.iterdir() if path.is_dir()} - set(manifest.models)
    kept = {name for name in below - known if "__pycache__" not in PurePosixPath(name).parts}
    return sorted(models | {name for name in kept if PurePosixPath(name).parts[0] not in models})


def _names(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
