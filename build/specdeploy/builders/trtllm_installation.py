"""The TensorRT-LLM of this machine: found from package metadata and `nvidia-smi`, never by importing it.

Importing tensorrt_llm takes half a minute, starts MPI and needs a GPU driver; nothing here does.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Lane
from specdeploy.errors import BuildError, Violation
from specdeploy.planner.hardware import HARDWARE
from specdeploy.trtllm.versions import container_of, engine_flow_refusal, image_of, parse_version

DISTRIBUTION = "tensorrt_llm"
# One distribution per CUDA major; the plain name depends on the one that fits.
TENSORRT_DISTRIBUTIONS = ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")
BUILD_PROGRAM = "trtllm-build"
EXAMPLES_VARIABLE = "SPECDEPLOY_TRTLLM_EXAMPLES"
# Triton's containers carry the examples under /app, TensorRT-LLM's own release image under /app/tensorrt_llm.
EXAMPLES_PLACES = (Path("/app/examples"), Path("/app/tensorrt_llm/examples"))
_GPU_QUERY = ("nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader")
_QUERY_TIMEOUT_S = 20.0

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class TrtllmInstallation:
    """What is installed. None = not found, which is an error only where it is needed (`check_installation`).

    `cuda` as the container states it, `gpu_architecture` such as sm90, `gpu_names` one per GPU that the driver shows.
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
    version = _version_of(DISTRIBUTION)
    if version is None:
        return None
    gpus = _find_gpus(run)
    architectures = {architecture for architecture, _ in gpus}
    return TrtllmInstallation(
        version=version,
        tensorrt=next((found for name in TENSORRT_DISTRIBUTIONS if (found := _version_of(name))), None),
        cuda=environment.get("CUDA_VERSION") or None,
        gpu_architecture=architectures.pop() if len(architectures) == 1 else None,
        trtllm_build=_find_program(environment),
        examples_root=_find_examples(environment),
        python=Path(sys.executable),
        gpu_names=tuple(name for _, name in gpus),
    )


def check_installation(
    config: DeploymentConfig, installation: TrtllmInstallation | None, *, file: str = ""
) -> list[Violation]:
    """Everything that keeps `config` from being built by `installation`; `file` is the YAML file for the messages.

    trtllm-build and the examples are asked for in the engine lane only.
    """
    section = config.tensorrt_llm
    if section is None:
        reason = f"lane {config.lane} needs this section"
        return [Violation(file, "tensorrt_llm", reason, "Name at least version (such as 1.2.1) and gpu (h100 or h200)")]
    if installation is None:
        reason = "TensorRT-LLM is not installed on this machine"
        return [Violation(file, "tensorrt_llm.version", reason, _where_to_build(parse_version(section.version)))]
    violations = [Violation(file, *problem) for problem in _version_problems(config, section.version, installation)]
    if config.lane is Lane.TRTLLM_ENGINE:
        violations += [Violation(file, *problem) for problem in _engine_problems(installation)]
    violations += [Violation(file, *problem) for problem in _gpu_problems(config, installation)]
    return violations


def _version_problems(
    config: DeploymentConfig, wanted: str, installation: TrtllmInstallation
) -> Iterator[tuple[str, str, str]]:
    """(key, reason, remedy) of a version that is not the config's, or one that has no engine flow any more."""
    key = "tensorrt_llm.version"
    try:
        installed = Version(installation.version)
    except InvalidVersion:
        yield (
            key,
            f"the installed TensorRT-LLM calls itself {installation.version!r}, which is no version",
            ("Install a released one"),
        )
        return
    gone = engine_flow_refusal(installed) if config.lane is Lane.TRTLLM_ENGINE else None
    if gone is not None:
        yield (
            key,
            f"installed: {gone}",
            (
                f"Use lane {Lane.TRTLLM_LLMAPI}, which compiles nothing, or build where an older one is installed: "
                f"{_where_to_build(parse_version(wanted))}"
            ),
        )
    elif installed != parse_version(wanted):
        remedy = f"Write {installation.version}, or {_lower_first(_where_to_build(parse_version(wanted)))}"
        yield key, f"{wanted} is not the installed version, {installation.version}", remedy


def _engine_problems(installation: TrtllmInstallation) -> Iterator[tuple[str, str, str]]:
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
    """An engine runs on the GPU model it was built for. Without any GPU in sight nothing is claimed here."""
    if config.tensorrt_llm is None or not installation.gpu_names:
        return
    gpu, hardware = config.tensorrt_llm.gpu, HARDWARE[config.tensorrt_llm.gpu]
    others = sorted({name for name in installation.gpu_names if gpu.value.upper() not in name.upper()})
    if others:
        reason = f"{gpu} ({hardware.architecture}) is not what this machine has: {', '.join(others)}"
        yield "tensorrt_llm.gpu", reason, "Write the GPU of this machine, or build on the machine that will serve"


def _where_to_build(version: Version) -> str:
    container = container_of(version)
    if container is None:
        place = f"Build on a machine that has TensorRT-LLM {version}; no Triton container is known to carry it"
    else:
        place = f"Build inside {image_of(container)}, which carries it"
    return f"{place}; --dry-run shows the commands anywhere"


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


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


def _find_gpus(run: Run) -> list[tuple[str, str]]:
    """(architecture, name) of every GPU, such as ("sm90", "NVIDIA H100 80GB HBM3"); none without a driver."""
    try:
        text = run(_GPU_QUERY)
    except (OSError, subprocess.SubprocessError):
        return []
    found = [re.fullmatch(r"\s*(\d+)\.(\d+)\s*,\s*(.+?)\s*", line) for line in text.splitlines()]
    return [(f"sm{match[1]}{match[2]}", match[3]) for match in found if match]
