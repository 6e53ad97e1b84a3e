"""Files that say what was built: written whole or not at all, read back with an error that names the remedy.

engines/<build id>/manifest.json   EngineManifest, immutable
engines/<deployment>.json          CurrentBuild, replaced by every successful build of the deployment
"""

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from specdeploy.config.schema import DeploymentConfig, is_valid_name
from specdeploy.contract import ContractModel, DeploymentPlan, EngineManifest, FileDigest
from specdeploy.errors import BuildError

ModelT = TypeVar("ModelT", bound=BaseModel)
MANIFEST_NAME = "manifest.json"


class CurrentBuild(ContractModel):
    """What a deployment serves now. Folders are relative to the engines root; `config_digest` is of the YAML file."""

    schema_version: Literal[1] = 1
    deployment: str
    build_id: str
    target_folder: str
    draft_folder: str | None
    config_digest: str
    config: DeploymentConfig
    plan: DeploymentPlan


def write_text_atomically(path: Path, text: str) -> None:
    """Write to a temporary name beside `path`, then rename: a reader sees the old file or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json_atomically(path: Path, model: BaseModel) -> None:
    """Write `model` as indented JSON, whole or not at all."""
    write_text_atomically(path, model.model_dump_json(indent=2) + "\n")


def sha256_file(path: Path, chunk: int = 1 << 20) -> str:
    """SHA-256 of a file in hex, read `chunk` bytes at a time."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(chunk):
            digest.update(block)
    return digest.hexdigest()


def hash_folder(folder: Path) -> tuple[FileDigest, ...]:
    """Every file below `folder`, sorted by its relative POSIX path."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return tuple(
        FileDigest(path=name, sha256=sha256_file(path), num_bytes=path.stat().st_size)
        for name, path in sorted(files.items())
    )


def write_manifest(build_folder: Path, manifest: EngineManifest) -> None:
    """Write a build's manifest once. Writing the same one again changes nothing; a different one is refused."""
    path = build_folder / MANIFEST_NAME
    if path.exists():
        if _read_model(path, EngineManifest, "Remove its folder and build again.") != manifest:
            raise BuildError(f"{path} exists and differs: a build never changes. Remove its folder and build again.")
        return
    write_json_atomically(path, manifest)


def load_manifest(engines_root: Path, build_id: str) -> EngineManifest:
    """The manifest of one build."""
    path = engines_root / build_id / MANIFEST_NAME
    remedy = f"Remove {path.parent} and run `make engines`."
    if not path.is_file():
        raise BuildError(f"{path}: no such build. {remedy}")
    manifest = _read_model(path, EngineManifest, remedy)
    if manifest.build_id != build_id:
        raise BuildError(f"{path}: build_id: {manifest.build_id} is not the name of its folder. {remedy}")
    return manifest


def current_build_path(engines_root: Path, deployment: str) -> Path:
    """Where the current build of a deployment is named."""
    if not is_valid_name(deployment):
        raise BuildError(f"'{deployment}' is not a deployment name.")
    return engines_root / f"{deployment}.json"


def write_current_build(engines_root: Path, build: CurrentBuild) -> None:
    """Make `build` the one its deployment serves."""
    write_json_atomically(current_build_path(engines_root, build.deployment), build)


def load_current_build(engines_root: Path, deployment: str) -> CurrentBuild:
    """The build a deployment serves now; its folders are checked to exist."""
    path = current_build_path(engines_root, deployment)
    remedy = f"Run `make engines DEPLOYMENT={deployment}`."
    if not path.is_file():
        raise BuildError(f"{path}: deployment '{deployment}' was never built. {remedy}")
    build = _read_model(path, CurrentBuild, remedy)
    if build.deployment != deployment:
        raise BuildError(f"{path}: deployment: it names '{build.deployment}', not '{deployment}'. {remedy}")
    for folder in (build.target_folder, build.draft_folder):
        if folder is not None and not (engines_root / folder).is_dir():
            raise BuildError(f"{path}: {engines_root / folder} is missing. {remedy}")
    return build


def _read_model(path: Path, model: type[ModelT], remedy: str) -> ModelT:
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BuildError(f"{path}: cannot be read ({error.strerror or error}). {remedy}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        others = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
        message = f"{path}: {key}: {first['msg']}{others} (damaged, or written by another version). {remedy}"
        raise BuildError(message) from error
