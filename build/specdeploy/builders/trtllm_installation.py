"""The TensorRT-LLM of this machine: found from package metadata and `nvidia-smi`, never by importing it.

Importing tensorrt_llm takes half a minute, starts MPI and needs a GPU driver; nothing here does.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from specdeploy.config.schema import DeploymentConfig, Gpu
from specdeploy.contract import Lane
from specdeploy.errors import BuildError, Violation
from specdeploy.planner.hardware import HARDWARE
from specdeploy.trtllm.distributions import (
    CUDA_DISTRIBUTIONS,
    CUDA_VARIABLE,
    DISTRIBUTION,
    TENSORRT_DISTRIBUTIONS,
    find_version,
)
from specdeploy.trtllm.versions import FIRST_KNOWN, container_of, engine_flow_refusal, image_of, parse_version
from specdeploy.units import format_bytes

BUILD_PROGRAM = "trtllm-build"
EXAMPLES_VARIABLE = "SPECDEPLOY_TRTLLM_EXAMPLES"
# Triton's containers carry the examples under /app, TensorRT-LLM's own release image under /app/tensorrt_llm.
EXAMPLES_PLACES = (Path("/app/examples"), Path("/app/tensorrt_llm/examples"))
_GPU_QUERY = ("nvidia-smi", "--query-gpu=compute_cap,name,memory.total", "--format=csv,noheader,nounits")
_QUERY_TIMEOUT_S = 20.0
# What drivers report is up to 7 % above what budgets count (planner/hardware.py); other boards differ by more.
MEMORY_TOLERANCE = 0.1
_OTHER_BOARDS = frozenset({"PCIE", "NVL"})

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class TrtllmInstallation:
    """What is installed. None = not found, which is an error only where it is needed (`check_installation`).

    `cuda` as the container states it, `gpu_architecture` such as sm90, `gpu_names` one per GPU that the driver shows,
    `gpu_memory_bytes` beside them where it says how much they have.
    `examples_root` holds the convert scripts, `python` is the interpreter that has the package.
    """

    version: str
    tensorrt: str | None
    cuda: str | None
    gpu_architecture: str | None
    trtllm_build: Path | None
    examples_root: Path | None
    python: Path
    gpu_names: tuple[str, ...] = ()
    gpu_memory_bytes: tuple[int, ...] = ()


def run_query(command: Sequence[str]) -> str:
    """Standard output of a short command. Raises `OSError` or `SubprocessError` where it cannot run or fails."""
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, stdin=subprocess.DEVNULL
    ).stdout


def find_installation(environment: Mapping[str, str], *, run: Run = run_query) -> TrtllmInstallation | None:
    """The installed TensorRT-LLM, or None where its package is not there.

    `environment` gives PATH, CUDA_VERSION (set by NVIDIA's containers) and where the examples are
    (`SPECDEPLOY_TRTLLM_EXAMPLES`); `run` is the seam through which the GPU is asked for.
    """
    version = find_version(DISTRIBUTION)
    if version is None:
        return None
    gpus = _find_gpus(run)
    architectures = {gpu.architecture for gpu in gpus}
    return TrtllmInstallation(
        version=version,
        tensorrt=find_version(*TENSORRT_DISTRIBUTIONS),
        cuda=environment.get(CUDA_VARIABLE) or find_version(*CUDA_DISTRIBUTIONS),
        gpu_architecture=architectures.pop() if len(architectures) == 1 else None,
        trtllm_build=_find_program(environment),
        examples_root=_find_examples(environment),
        python=Path(sys.executable),
        gpu_names=tuple(gpu.name for gpu in gpus),
        gpu_memory_bytes=tuple(gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None),
    )


def check_installation(
    config: DeploymentConfig, installation: TrtllmInstallation | None, *, file: str = ""
) -> list[Violation]:
    """Everything that keeps `config` from being built by `installation`; `file` is the YAML file for the messages.

    trtllm-build and the examples are asked for in the engine lane only. A version that this lane can never be built
    for is no question of the machine: `specdeploy.trtllm.refusals` refuses it, and nothing here sends people to look
    for a machine that has it.
    """
    section = config.tensorrt_llm
    if section is None:
        reason = f"lane {config.lane} needs this section"
        return [Violation(file, "tensorrt_llm", reason, "Name at least version (such as 1.2.1) and gpu (h100 or h200)")]
    wanted = parse_version(section.version)
    is_refused = _version_refusal(config.lane, wanted) is not None
    if installation is None:
        reason = "TensorRT-LLM is not installed on this machine"
        missing = Violation(file, "tensorrt_llm.version", reason, _where_to_build(wanted))
        return [] if is_refused else [missing]
    problems = [] if is_refused else list(_version_problems(config.lane, wanted, installation))
    if config.lane is Lane.TRTLLM_ENGINE and not _has_lost_engine_flow(installation):
        problems += _engine_problems(installation)
    problems += _gpu_problems(config, installation)
    return [Violation(file, *problem) for problem in problems]


def _version_refusal(lane: Lane, version: Version) -> str | None:
    """Why a lane can never be built for `version`, or None."""
    refusal = engine_flow_refusal(version)
    return refusal if lane is Lane.TRTLLM_ENGINE or version < FIRST_KNOWN else None


def _has_lost_engine_flow(installation: TrtllmInstallation) -> bool:
    """Whether it is a version without trtllm-build and convert scripts: then they are not missing, they are gone."""
    try:
        return engine_flow_refusal(Version(installation.version)) is not None
    except InvalidVersion:
        return False


def _version_problems(lane: Lane, wanted: Version, installation: TrtllmInstallation) -> Iterator[tuple[str, str, str]]:
    """(key, reason, remedy) of a version that is not the config's, or one that has no engine flow any more."""
    key = "tensorrt_llm.version"
    try:
        installed = Version(installation.version)
    except InvalidVersion:
        reason = f"the installed TensorRT-LLM calls itself {installation.version!r}, which is no version"
        yield key, reason, "Install a released one"
        return
    where = _lower_first(_where_to_build(wanted))
    if gone := _version_refusal(lane, installed):
        other = f"Use lane {Lane.TRTLLM_LLMAPI} with version {installed}" if installed >= FIRST_KNOWN else ""
        yield key, f"installed: {gone}", f"{other}, or {where}" if other else _where_to_build(wanted)
    elif installed != wanted:
        reason = f"{wanted} is not the installed version, {installation.version}"
        yield key, reason, f"Write {installation.version}, or {where}"


def _engine_problems(installation: TrtllmInstallation) -> Iterator[tuple[str, str, str]]:
    if not installation.gpu_names:
        remedy = "Build on the GPU machine that will serve; in a container pass --gpus all"
        yield "tensorrt_llm.gpu", "no GPU is visible (nvidia-smi shows none), and engines are compiled on one", remedy
    if installation.trtllm_build is None:
        remedy = "Put the folder of the program into PATH, or install the package again"
        yield "lane", f"{BUILD_PROGRAM} is not in PATH, though TensorRT-LLM {installation.version} is installed", remedy
    if installation.examples_root is None:
        looked_at = " nor ".join(str(place) for place in EXAMPLES_PLACES)
        remedy = (
            f"Set {EXAMPLES_VARIABLE} to the folder `examples` of TensorRT-LLM {installation.version} (its sources of "
            f"tag v{installation.version})"
        )
        yield "lane", f"the convert scripts are missing: neither {looked_at} exists", remedy


def _gpu_problems(config: DeploymentConfig, installation: TrtllmInstallation) -> Iterator[tuple[str, str, str]]:
    """An engine runs on the GPU model it was built for, and its memory is shared out as that model has it. Without any
    GPU in sight nothing is claimed here."""
    if config.tensorrt_llm is None or not installation.gpu_names:
        return
    gpu, hardware = config.tensorrt_llm.gpu, HARDWARE[config.tensorrt_llm.gpu]
    meant = f"{gpu} ({hardware.name}, {hardware.architecture})"
    remedy = "Write the GPU of this machine, or build on the machine that will serve"
    if others := sorted({name for name in installation.gpu_names if not _is_model(gpu, name)}):
        yield "tensorrt_llm.gpu", f"{meant} is not what this machine has: {', '.join(others)}", remedy
        return
    tolerance = MEMORY_TOLERANCE * hardware.memory_bytes
    sizes = sorted({size for size in installation.gpu_memory_bytes if abs(size - hardware.memory_bytes) > tolerance})
    if sizes:
        names = ", ".join(dict.fromkeys(installation.gpu_names))
        seen = ", ".join(format_bytes(size) for size in sizes)
        reason = f"{meant} has {format_bytes(hardware.memory_bytes)}, and this machine's {names} has {seen}"
        yield "tensorrt_llm.gpu", reason, remedy


def _is_model(gpu: Gpu, name: str) -> bool:
    """Whether a name as the driver spells it is of the model that is meant: a GH200 is no H200, and what is known of
    memory and speed is that of the SXM boards."""
    words = re.findall(r"[A-Z0-9]+", name.upper())
    return gpu.value.upper() in words and not _OTHER_BOARDS.intersection(words)


def _where_to_build(version: Version) -> str:
    container = container_of(version)
    if container is None:
        place = f"Build on a machine that has TensorRT-LLM {version}; no Triton container is known to carry it"
    else:
        place = f"Build inside {image_of(container)}, which carries it"
    return f"{place}; --dry-run shows the commands anywhere"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _find_program(environment: Mapping[str, str]) -> Path | None:
    """In PATH, or beside the interpreter, where pip puts it."""
    places = (environment.get("PATH", ""), str(Path(sys.executable).parent))
    found = next((path for place in places if place and (path := shutil.which(BUILD_PROGRAM, path=place))), None)
    return None if found is None else Path(found)


def _find_examples(environment: Mapping[str, str]) -> Path | None:
    stated = environment.get(EXAMPLES_VARIABLE)
    if stated:
        folder = Path(stated).expanduser()
        if not folder.is_dir():
            raise BuildError(f"{EXAMPLES_VARIABLE}: {folder} is no folder. Write where TensorRT-LLM's examples are")
        return folder
    return next((place for place in EXAMPLES_PLACES if place.is_dir()), None)


@dataclass(frozen=True, slots=True)
class _SeenGpu:
    """Such as sm90, `NVIDIA H100 80GB HBM3`, 85.5e9; memory None where the driver does not say it."""

    architecture: str
    name: str
    memory_bytes: int | None


def _find_gpus(run: Run) -> list[_SeenGpu]:
    """Every GPU; none without a driver."""
    try:
        text = run(_GPU_QUERY)
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = []
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(\d+)\.(\d+)\s*,\s*([^,]+?)\s*(?:,\s*(\d+|\S.*?)\s*)?", line)
        if match is not None:
            mebibytes = int(match[4]) if (match[4] or "").isdecimal() else None
            memory_bytes = None if mebibytes is None else mebibytes << 20
            gpus.append(_SeenGpu(f"sm{match[1]}{match[2]}", match[3], memory_bytes))
    return gpus
