"""Files that say what was built: written whole or not at all, read back with an error that names the remedy.

engines/<build id>/manifest.json           EngineManifest, immutable
engines/<deployment>.json                  CurrentBuild, replaced by every successful build of the deployment
triton_repo/<deployment>/repository.json   RepositoryManifest, replaced with the repository it belongs to
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from specdeploy.config.schema import DeploymentConfig, is_valid_name
from specdeploy.contract import CheckpointSource, ContractModel, DeploymentPlan, EngineManifest, FileDigest, Lane
from specdeploy.errors import BuildError

ModelT = TypeVar("ModelT", bound=BaseModel)
MANIFEST_NAME = "manifest.json"
REPOSITORY_MANIFEST_NAME = "repository.json"
BUILD_ID_LENGTH = 16
_READ_ONLY = 0o444
_BUILD_ID = re.compile(rf"[0-9a-f]{{{BUILD_ID_LENGTH}}}")


class CurrentBuild(ContractModel):
    """What a deployment serves now. Folders are relative to the engines root; `config_digest` is of the YAML file.

    `pair_digest` names the pair that is served (see `pair_digest` below), `manifest_sha256` the exact manifest of the
    build; both are None in a file written before they existed. `effective_concurrency` and `concurrency_limit`: how
    many requests of full length are decoded at once, and what bounds it.
    """

    schema_version: Literal[1] = 1
    deployment: str
    build_id: str
    target_folder: str
    draft_folder: str | None
    pair_digest: str | None = None
    manifest_sha256: str | None = None
    config_digest: str
    config: DeploymentConfig
    plan: DeploymentPlan
    effective_concurrency: int | None = None
    concurrency_limit: str | None = None


class ManifestVerification(ContractModel):
    """A build's files against its manifest. Names are relative to the build folder; `manifest` are its own faults."""

    schema_version: Literal[1] = 1
    build_id: str
    num_files: int
    num_bytes: int
    manifest: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()

    @property
    def is_intact(self) -> bool:
        """Whether every byte is as it was when the build was made."""
        return not (self.manifest or self.changed or self.missing or self.surplus)


def write_text_atomically(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write to a temporary name beside `path`, then rename: a reader sees the old file or the new one, whole.

    `mode` are the file's permissions from the moment it has its name; None leaves them to the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json_atomically(path: Path, model: BaseModel) -> None:
    """Write `model` as indented JSON, whole or not at all."""
    write_text_atomically(path, model.model_dump_json(indent=2) + "\n")


def sha256_file(path: Path, chunk: int = 1 << 20, on_bytes: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file in hex, read `chunk` bytes at a time; `on_bytes` is told the size of each piece read.

    Raises `BuildError` when it cannot be read to its end.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(chunk):
                digest.update(block)
                if on_bytes is not None:
                    on_bytes(len(block))
    except OSError as error:
        raise _unreadable(path, error) from error
    return digest.hexdigest()


def _unreadable(path: Path, error: OSError) -> BuildError:
    reason = error.strerror or str(error)
    return BuildError(
        f"{error.filename or path}: cannot be read ({reason}). Make it readable for this user, then repeat"
    )


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
    write_text_atomically(path, manifest.model_dump_json(indent=2) + "\n", mode=_READ_ONLY)


def build_id_of(lane: Lane, sources: Iterable[CheckpointSource], versions: Mapping[str, str]) -> str:
    """Short SHA-256 over lane, sources and the versions that decide the bytes of a build."""
    lines = [f"{source.role} {source.digest}" for source in sources]
    lines += [f"{name} {version}" for name, version in sorted(versions.items())]
    return hashlib.sha256("\n".join([lane, *lines]).encode()).hexdigest()[:BUILD_ID_LENGTH]


def pair_digest(
    *,
    target: str,
    draft: str | None,
    tokenizer_map: str,
    special_ids: Mapping[str, object],
    chat_template: str | None,
    lane: Lane,
    versions: Mapping[str, str],
) -> str:
    """One SHA-256 that changes whenever what was proven about a pair may no longer hold.

    `target`, `draft` are digests of the checkpoints' files, `tokenizer_map` of the target's id -> bytes map,
    `chat_template` of its template; `special_ids` maps the role of each special token (eos, bos, ...) to its id or ids.
    The digest is taken over canonical JSON, so the order of keys does not matter and the order of lists does.
    """
    parts = {
        "schema_version": 1,
        "target": target,
        "draft": draft,
        "tokenizer_map": tokenizer_map,
        "special_ids": dict(special_ids),
        "chat_template": chat_template,
        "lane": str(lane),
        "versions": dict(versions),
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def verify_build(
    engines_root: Path,
    build_id: str,
    *,
    manifest_sha256: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> ManifestVerification:
    """Read every byte of a build again and compare it with the manifest; every difference is named.

    The manifest itself must hash to what every deployment that points to the build recorded, and to `manifest_sha256`
    where given. A symbolic link is no part of a build. Raises `BuildError` when the manifest is missing or anything
    cannot be read.
    """
    folder = engines_root / build_id
    manifest = load_manifest(engines_root, build_id)
    changed, missing = [], []
    for file in manifest.files:
        status = _status_of(folder / file.path) if _is_below(file.path) else None
        if status is None or stat.S_ISDIR(status.st_mode):
            missing.append(file.path)
        elif (
            not stat.S_ISREG(status.st_mode)
            or status.st_size != file.num_bytes
            or sha256_file(folder / file.path, on_bytes=on_bytes) != file.sha256
        ):
            changed.append(file.path)
    faults = _manifest_faults(folder / MANIFEST_NAME, manifest, manifest_sha256)
    faults += find_other_manifest(engines_root, build_id)
    present = _names_below(folder)
    return ManifestVerification(
        build_id=build_id,
        num_files=len(manifest.files),
        num_bytes=sum(file.num_bytes for file in manifest.files),
        manifest=tuple(faults),
        changed=tuple(changed),
        missing=tuple(missing),
        surplus=tuple(sorted(present - {file.path for file in manifest.files} - {MANIFEST_NAME})),
    )


def _status_of(path: Path) -> os.stat_result | None:
    """Of the path itself, not of what a link names; None = not there."""
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from error


def _names_below(folder: Path) -> set[str]:
    """Relative POSIX paths of everything that is no folder; links are named, not followed."""

    def stop(error: OSError) -> None:
        raise _unreadable(folder, error) from error

    names = set()
    for place, folders, files in os.walk(folder, onerror=stop):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        names |= {(Path(place) / name).relative_to(folder).as_posix() for name in (*files, *links)}
    return names


def recorded_manifests(engines_root: Path, build_id: str) -> dict[str, str]:
    """Deployment -> SHA-256 of the manifest, as recorded by every `engines/<deployment>.json` that names the build."""
    return {
        path.stem: str(pointer["manifest_sha256"])
        for path, pointer in _pointers(engines_root, build_id)
        if pointer.get("manifest_sha256") is not None
    }


def find_other_manifest(engines_root: Path, build_id: str) -> list[str]:
    """Per deployment that recorded another manifest of the build than the one on disk, a sentence that says so."""
    recorded = recorded_manifests(engines_root, build_id)
    if not recorded:
        return []
    found = sha256_file(engines_root / build_id / MANIFEST_NAME)
    return [
        f"its bytes are not those that deployment {deployment} recorded after the build"
        for deployment, digest in sorted(recorded.items())
        if digest != found
    ]


def record_new_manifest(engines_root: Path, build_id: str) -> None:
    """After a build was made again: every deployment that points to it records the manifest that is there now.

    Never to be called for a build that was only found: what was recorded before is the proof against an edit.
    """
    found = sha256_file(engines_root / build_id / MANIFEST_NAME)
    for path, pointer in _pointers(engines_root, build_id):
        if pointer.get("manifest_sha256") not in (None, found):
            text = json.dumps({**pointer, "manifest_sha256": found}, indent=2, ensure_ascii=False)
            write_text_atomically(path, text + "\n")


def _pointers(engines_root: Path, build_id: str) -> list[tuple[Path, dict[str, object]]]:
    """The pointer files that name a build. One that cannot be read as JSON points nowhere."""
    found = []
    for path in sorted(engines_root.glob("*.json")):
        if not is_valid_name(path.stem):
            continue
        try:
            pointer = json.loads(path.read_bytes())
        except OSError as error:
            raise _unreadable(path, error) from error
        except (ValueError, RecursionError):
            continue
        if isinstance(pointer, dict) and pointer.get("build_id") == build_id:
            found.append((path, pointer))
    return found


def build_of_reference(engines_root: Path, reference: str) -> str:
    """The build id that a person named: itself, or a deployment that points to it.

    Raises `ValueError` for what can be neither, `BuildError` for what was never built.
    """
    if _BUILD_ID.fullmatch(reference) and not current_exists(engines_root, reference):
        return reference
    if not is_valid_name(reference):
        raise ValueError(f"'{reference}' is neither a build id ({BUILD_ID_LENGTH} hex digits) nor a deployment name")
    return load_current_build(engines_root, reference).build_id


def _is_below(name: str) -> bool:
    """Whether a relative POSIX path stays inside the folder it starts from."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _manifest_faults(path: Path, manifest: EngineManifest, manifest_sha256: str | None) -> list[str]:
    """What gives a manifest away that was edited after the build."""
    faults = ["it is a symbolic link"] if path.is_symlink() else []
    expected = build_id_of(manifest.lane, manifest.checkpoints, manifest.versions)
    if manifest.build_id != expected:
        faults.append(f"its lane, sources and versions make build {expected}, not {manifest.build_id}")
    if manifest_sha256 is not None and sha256_file(path) != manifest_sha256:
        faults.append("its bytes are not those the deployment recorded after the build")
    if outside := [file.path for file in manifest.files if not _is_below(file.path)]:
        faults.append(f"it names {outside[0]}, which lies outside the build")
    return faults


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


def find_damages(engines_root: Path, build_id: str) -> list[str]:
    """What is visibly wrong with a finished build: files that are gone or have another size than the manifest says."""
    try:
        manifest = load_manifest(engines_root, build_id)
    except BuildError as error:
        return [str(error)]
    damages = []
    for file in manifest.files:
        path = engines_root / build_id / file.path
        try:
            num_bytes = path.stat().st_size if path.is_file() else None
        except OSError as error:
            raise _unreadable(path, error) from error
        if num_bytes is None:
            damages.append(f"{file.path} is missing")
        elif num_bytes != file.num_bytes:
            damages.append(f"{file.path} has {num_bytes} bytes instead of {file.num_bytes}")
    return damages


def current_build_path(engines_root: Path, deployment: str) -> Path:
    """Where the current build of a deployment is named."""
    if not is_valid_name(deployment):
        raise BuildError(f"'{deployment}' is not a deployment name.")
    return engines_root / f"{deployment}.json"


def current_exists(engines_root: Path, deployment: str) -> bool:
    """Whether a deployment of this name was ever built."""
    return is_valid_name(deployment) and (engines_root / f"{deployment}.json").is_file()


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
