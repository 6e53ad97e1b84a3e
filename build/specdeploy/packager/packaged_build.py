"""What the packager must know of a build of a TensorRT-LLM lane, and how it is read from the engines folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from specdeploy.contract import EngineManifest, EngineModel, EngineRecord, MemoryBudget
from specdeploy.errors import BuildError
from specdeploy.manifest import load_current_build, load_manifest

# Where a build keeps what the C++ backend needs to constrain outputs: the tokenizer's vocabulary as xgrammar reads it.
GUIDED_TOKENIZER_INFO = "target/xgrammar_tokenizer_info.json"
# What a build of the LLM API lane pins and does not hold: {"checkpoints": [{"folder": "/...", ...}, ...]}.
SOURCES_NAME = "sources.json"
LLM_ARGS_PATTERN = "llm_args*.yaml"
UNRESOLVED_MARK = "unresolved:"  # how a value that only the installed package can tell is written


@dataclass(frozen=True, slots=True)
class PackagedBuild:
    """A build as the server will see it. `folder` is absolute, and its parent is the engines root.

    `unresolved`: what in its files was left open, one sentence each. `guided_tokenizer_info`: path of that file below
    `folder`, None where the build holds none. `checkpoint_folders`: absolute folders outside the build that its server
    reads weights from (LLM API lane). `config_digest`: of the YAML file that was built, None for a planned build.
    """

    folder: str
    engines: tuple[EngineRecord, ...]
    memory: MemoryBudget | None
    versions: Mapping[str, str]
    unresolved: tuple[str, ...] = ()
    guided_tokenizer_info: str | None = None
    checkpoint_folders: tuple[str, ...] = ()
    config_digest: str | None = None

    @property
    def build_id(self) -> str:
        """The name of its folder."""
        return PurePosixPath(self.folder).name

    @property
    def engines_root(self) -> str:
        """The folder that holds all builds, as the server sees it."""
        return str(PurePosixPath(self.folder).parent)

    def engine_folder(self, record: EngineRecord) -> str:
        """Absolute folder of one engine."""
        return str(PurePosixPath(self.folder) / record.folder)

    def find(self, model: EngineModel) -> EngineRecord | None:
        """The record of one engine, None where the build has none."""
        return next((record for record in self.engines if record.model is model), None)

    def shares_gpus(self, record: EngineRecord) -> bool:
        """Whether another engine lies on one of this engine's GPUs; an engine without ids may be on any."""
        others = [other for other in self.engines if other.model is not record.model]
        return any(
            not record.gpu_ids or not other.gpu_ids or bool(set(record.gpu_ids) & set(other.gpu_ids))
            for other in others
        )


def load_packaged_build(engines_root: Path, deployment: str) -> PackagedBuild:
    """What `deployment` serves now. Raises `BuildError` when it was never built or its manifest cannot be read."""
    current = load_current_build(engines_root, deployment)
    manifest = load_manifest(engines_root, current.build_id)
    folder = (engines_root / current.build_id).resolve()
    names = {file.path for file in manifest.files}
    return PackagedBuild(
        folder=str(folder),
        engines=manifest.engines,
        memory=manifest.memory,
        versions=manifest.versions,
        unresolved=tuple(_find_unresolved(folder, manifest)),
        guided_tokenizer_info=GUIDED_TOKENIZER_INFO if GUIDED_TOKENIZER_INFO in names else None,
        checkpoint_folders=_pinned_folders(folder / SOURCES_NAME) if SOURCES_NAME in names else (),
        config_digest=current.config_digest,
    )


def _pinned_folders(path: Path) -> tuple[str, ...]:
    try:
        folders = [str(entry["folder"]) for entry in json.loads(path.read_bytes())["checkpoints"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{path}: does not name the checkpoints of the build ({error}). Build again") from error
    return tuple(dict.fromkeys(folders))


def _find_unresolved(folder: Path, manifest: EngineManifest) -> list[str]:
    found = []
    for file in manifest.files:
        if not PurePosixPath(file.path).match(LLM_ARGS_PATTERN):
            continue
        try:
            lines = (folder / file.path).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise BuildError(f"{folder / file.path}: cannot be read ({error.strerror}). Build again") from error
        found += [
            f"{file.path}: line {number}: {line.strip()}"
            for number, line in enumerate(lines, start=1)
            if UNRESOLVED_MARK in line.partition("#")[0]
        ]
    return found
