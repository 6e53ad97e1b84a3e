"""What makes an engine build that build: its checkpoints, its versions, its commands, and how memory is shared out."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from specdeploy.builders.engine_inspection import SourceFiles
from specdeploy.builders.file_errors import file_errors
from specdeploy.builders.step_graph import Argument, GraphSource, GraphStep, StepGraph, ToolPath
from specdeploy.builders.trtllm_commands import gpu_version
from specdeploy.builders.trtllm_installation import EXAMPLES_VARIABLE, TrtllmInstallation
from specdeploy.builders.trtllm_snapshot import Snapshot
from specdeploy.checkpoint.digest_cache import open_digest_cache
from specdeploy.checkpoint.source import digest_files, list_checkpoint_files
from specdeploy.config.schema import TensorRtLlmConfig
from specdeploy.contract import CheckpointSource, EngineRecord, MemoryBudget
from specdeploy.manifest import sha256_file
from specdeploy.trtllm.versions import container_of

_NOT_HASHED = "not hashed"


def pin_checkpoint(
    snapshot: Snapshot,
    read: dict[str, SourceFiles],
    engines_root: Path,
    not_checked: list[str],
    *,
    is_dry_run: bool,
) -> CheckpointSource:
    """One checkpoint with its digest. A dry run reads no weights for it; `not_checked` gets what that leaves open.

    Raises `CheckpointError` for weights that are incomplete, `BuildError` for a file that cannot be read.
    """
    role, reference = snapshot.role, snapshot.source.checkpoint
    source = read.get(str(role))
    digest = _NOT_HASHED
    if source is None:
        not_checked.append(f"{role} {reference} is not on this machine: neither its family nor its sizes are known")
    else:
        cache = open_digest_cache(engines_root)
        files = list_checkpoint_files(source.folder)
        weights = [path for path in files if path.suffix == ".safetensors"]
        if is_dry_run and any(cache.known(path) is None for path in weights):
            not_checked.append(f"the digest of {role} {reference}: a dry run reads no weights")
        else:
            digest = digest_files(files, cache.sha256)
            if not is_dry_run:
                with file_errors(engines_root):
                    cache.save()
    return CheckpointSource(role=role, reference=reference, digest=digest, folder=str(role))


def graph_source(snapshot: Snapshot, checkpoints: tuple[CheckpointSource, ...]) -> GraphSource:
    """What the commands read; where it is not here, the place that a container has it at."""
    digest = next(source.digest for source in checkpoints if source.role == snapshot.role)
    return GraphSource(snapshot.folder or Path(snapshot.container_folder), digest)


def build_versions(
    section: TensorRtLlmConfig, installation: TrtllmInstallation | None, version: Version
) -> dict[str, str]:
    """What a build records of the machine. Without an installation, versions of the container that carries it."""
    container = container_of(version)
    tensorrt, cuda = (container.tensorrt, container.cuda) if container is not None else (None, None)
    if installation is not None:
        tensorrt, cuda = installation.tensorrt, installation.cuda
    versions = {"tensorrt_llm": section.version if installation is None else installation.version}
    versions |= {"gpu": gpu_version(section)}
    versions |= {"tensorrt": tensorrt} if tensorrt is not None else {}
    versions |= {"cuda": cuda} if cuda is not None else {}
    return versions


def graph_versions(versions: Mapping[str, str]) -> dict[str, str]:
    """Those that decide the bytes of every command. CUDA is recorded only: TensorRT-LLM and TensorRT pin it, and it is
    known from a variable that one shell has and another has not."""
    return {name: versions[name] for name in ("tensorrt_llm", "tensorrt") if name in versions}


def with_script_digests(steps: tuple[GraphStep, ...]) -> tuple[GraphStep, ...]:
    """The steps with the digest of every convert script as it is here: people patch them. Scripts that are not on this
    machine stay without."""

    def pin(argument: Argument) -> Argument:
        if not isinstance(argument, ToolPath) or argument.path.suffix != ".py" or not argument.path.is_file():
            return argument
        return replace(argument, digest=sha256_file(argument.path))

    return tuple(replace(step, argv=tuple(pin(argument) for argument in step.argv)) for step in steps)


def find_missing_tools(steps: tuple[GraphStep, ...]) -> list[str]:
    """Programs and scripts that the commands name by a path and that are not there. Bare names are looked up."""
    tools = {argument for step in steps for argument in step.argv if isinstance(argument, ToolPath)}
    return [
        f"{tool.path}: {tool.name} is missing. Set {EXAMPLES_VARIABLE} to the examples of the installed TensorRT-LLM"
        for tool in sorted(tools, key=lambda tool: str(tool.path))
        if len(tool.path.parts) > 1 and not tool.path.is_file()
    ]


def plan_digest(graph: StepGraph, engines: tuple[EngineRecord, ...], memory: MemoryBudget | None) -> str:
    """Over everything that the manifest records of a plan: a build whose commands are equal and whose memory is shared
    out otherwise is another build, though nothing has to be compiled for it."""
    return short_digest(
        [
            sorted(graph.keys().items()),
            [engine.model_dump(mode="json") for engine in engines],
            None if memory is None else memory.model_dump(mode="json"),
        ]
    )


def short_digest(content: object) -> str:
    """16 hex digits over `content` as canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
