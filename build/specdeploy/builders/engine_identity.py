"""What makes an engine build that build: its checkpoints, its versions, its commands, and how memory is shared out."""

import hashlib
import json
from pathlib import Path

from packaging.version import Version

from specdeploy.builders.engine_inspection import SourceFiles
from specdeploy.builders.source_digests import open_digest_cache
from specdeploy.builders.step_graph import GraphSource, GraphStep, StepGraph, ToolPath
from specdeploy.builders.trtllm_installation import TrtllmInstallation
from specdeploy.builders.trtllm_snapshot import Snapshot
from specdeploy.checkpoint.source import digest_files, list_checkpoint_files
from specdeploy.config.schema import TensorRtLlmConfig
from specdeploy.contract import CheckpointSource, EngineRecord, MemoryBudget
from specdeploy.manifest import sha256_file
from specdeploy.planner.hardware import HARDWARE
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
                cache.save()
    return CheckpointSource(role=role, reference=reference, digest=digest, folder=str(role))


def graph_source(snapshot: Snapshot, checkpoints: tuple[CheckpointSource, ...]) -> GraphSource:
    """What the commands read; where it is not here, the place that a container has it at."""
    digest = next(source.digest for source in checkpoints if source.role == snapshot.role)
    return GraphSource(snapshot.folder or Path(snapshot.container_folder), digest)


def build_versions(
    section: TensorRtLlmConfig,
    installation: TrtllmInstallation | None,
    version: Version,
    steps: tuple[GraphStep, ...],
) -> dict[str, str]:
    """Everything besides commands and checkpoints that decides the bytes of an engine.

    Without an installation, those of the container that carries the version.
    """
    container = container_of(version)
    tensorrt, cuda = (container.tensorrt, container.cuda) if container is not None else (None, None)
    if installation is not None:
        tensorrt, cuda = installation.tensorrt, installation.cuda
    versions = {"tensorrt_llm": section.version if installation is None else installation.version}
    versions |= {"gpu": f"{section.gpu} {HARDWARE[section.gpu].architecture}"}
    versions |= {"tensorrt": tensorrt} if tensorrt is not None else {}
    versions |= {"cuda": cuda} if cuda is not None else {}
    if scripts := _scripts_digest(steps):
        versions["scripts"] = scripts
    return versions


def _scripts_digest(steps: tuple[GraphStep, ...]) -> str | None:
    """Over the convert scripts as they are here: people patch them. None where they are not on this machine."""
    tools = {argument for step in steps for argument in step.argv if isinstance(argument, ToolPath)}
    scripts = sorted((tool.name, tool.path) for tool in tools if tool.path.suffix == ".py" and tool.path.is_file())
    return short_digest([[name, sha256_file(path)] for name, path in scripts]) if scripts else None


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
