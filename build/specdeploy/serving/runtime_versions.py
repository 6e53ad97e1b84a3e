"""Was the build made with what is installed here? An engine runs only with the TensorRT-LLM, the TensorRT and the GPU
architecture it was built with; found out before a server is started, from metadata, without importing anything.

`python3 -m specdeploy.serving.runtime_versions DEPLOYMENT BUILD_ID [REPOSITORY]` is what launch.sh asks, inside the
container: it also compares the repository with what was packed, and pinned weights with what was built.
"""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from specdeploy.checkpoint.pinned_sources import find_changed_sources
from specdeploy.contract import EngineManifest, Lane
from specdeploy.errors import ServerError, SpecDeployError
from specdeploy.manifest import find_damages, find_other_manifest, load_current_build, load_manifest
from specdeploy.serving.installation import ENGINES_ROOT_VARIABLE
from specdeploy.serving.packed_repository import repository_problems
from specdeploy.serving.server_log import ERROR_MARK
from specdeploy.trtllm.distributions import (
    CUDA_DISTRIBUTIONS,
    CUDA_VARIABLE,
    DISTRIBUTION,
    TENSORRT_DISTRIBUTIONS,
    find_version,
)

COMPARED = ("tensorrt_llm", "tensorrt", "cuda", "gpu_architecture")
_GPU_QUERY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
_QUERY_TIMEOUT_S = 60.0

Installed = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version twice: as the manifest recorded it and as it is here. None = not known."""

    name: str
    recorded: str | None
    installed: str | None

    @property
    def differs(self) -> bool:
        """Whether what was recorded is not what is here; what was not recorded cannot differ."""
        if self.recorded is None:
            return False
        return self.installed is None or not _is_same(self.name, self.recorded, self.installed)


def run_query(command: tuple[str, ...]) -> str:
    """Standard output of a command. Raises `OSError` or `subprocess.SubprocessError` when it cannot be had."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_QUERY_TIMEOUT_S)
    return done.stdout


def find_installed_versions(
    environment: Mapping[str, str],
    *,
    version_of: Callable[[str], str] = importlib.metadata.version,
    run: Callable[[tuple[str, ...]], str] = run_query,
) -> Installed:
    """What is on this machine, by the names in `COMPARED`; None = not found.

    CUDA: the container's own `CUDA_VERSION`, else the runtime package. GPUs of several kinds are joined by a comma.
    """

    return {
        "tensorrt_llm": find_version(DISTRIBUTION, version_of=version_of),
        "tensorrt": find_version(*TENSORRT_DISTRIBUTIONS, version_of=version_of),
        "cuda": environment.get(CUDA_VARIABLE) or find_version(*CUDA_DISTRIBUTIONS, version_of=version_of),
        "gpu_architecture": _gpu_architecture(run),
    }


def compare_versions(manifest: EngineManifest, installed: Installed) -> tuple[VersionRow, ...]:
    """One row per name in `COMPARED`."""
    recorded = {**manifest.versions, "gpu_architecture": manifest.gpu_architecture}
    return tuple(VersionRow(name, recorded.get(name), installed.get(name)) for name in COMPARED)


def version_table(rows: tuple[VersionRow, ...]) -> str:
    """Both sides as aligned text, differences marked."""
    cells = [("", "built with", "installed", "")]
    cells += [
        (row.name, row.recorded or "not recorded", row.installed or "not found", "<- differs" if row.differs else "")
        for row in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)) for row in cells)
    return "\n".join(f"  {line}".rstrip() for line in lines)


def runtime_problems(engines_root: Path, build_id: str, installed: Installed | None) -> list[str]:
    """Why the build must not be served here: manifest missing, edited, silent, or other versions (a table).

    `installed` None: this is not where it will be served, so versions are not compared.
    """
    try:
        manifest = load_manifest(engines_root, build_id)
        edited = find_other_manifest(engines_root, build_id)
    except SpecDeployError as error:
        return [str(error)]
    folder = engines_root / build_id
    problems = [f"{folder / 'manifest.json'}: {text}. Remove {folder} and build again" for text in edited]
    problems += [f"{folder}: {text}. Build again" for text in find_damages(engines_root, build_id)]
    rows = compare_versions(manifest, installed or {})
    if rows[0].recorded is None:
        problems.append(f"{folder / 'manifest.json'}: versions: names no tensorrt_llm. Remove {folder} and build again")
    if installed is not None and any(row.differs for row in rows):
        problems.append(
            f"{folder}: was built with other versions than those installed here:\n{version_table(rows)}\n"
            "Serve it in the container it was built in (docker-run.sh beside the models), or build it again here"
        )
    return problems


def check_deployment(
    engines_root: Path,
    deployment: str,
    installed: Installed,
    *,
    build_id: str | None = None,
    repository: Path | None = None,
) -> None:
    """Raise `ServerError` with every reason why what `deployment` serves now must not be served here.

    `build_id`: the build that a repository was packed for, which must be the one that is served now. `repository`: its
    folder, compared with what was packed. Lane trtllm_llmapi: the weights it pins are compared too, and read whole
    where no digest is remembered.
    """
    current = load_current_build(engines_root, deployment)
    problems = []
    if build_id is not None and build_id != current.build_id:
        problems.append(
            f"{deployment}: this repository was packed for build {build_id}, and {current.build_id} is served now. "
            f"Run: make repo DEPLOYMENT={deployment}"
        )
    elif repository is not None:
        problems += repository_problems(repository, current)
    problems += runtime_problems(engines_root, current.build_id, installed)
    if not problems and current.config.lane is Lane.TRTLLM_LLMAPI:  # may read hundreds of GB: last
        problems += find_changed_sources(engines_root / current.build_id, engines_root)
    if problems:
        raise ServerError("\n".join(problems))


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Entry of the module: 0 = may be served, 1 = no (the reason goes to standard error), 64 = wrong usage.

    Every line of the reason is marked, so that whoever reads the server's log finds all of it.
    """
    root = environment.get(ENGINES_ROOT_VARIABLE)
    if len(arguments) not in (2, 3) or not root:
        _tell(
            f"usage: {ENGINES_ROOT_VARIABLE}=FOLDER python3 -m specdeploy.serving.runtime_versions DEPLOYMENT BUILD_ID "
            "[REPOSITORY]. Asked by a launch.sh that was packed with another version of specdeploy, run make repo again"
        )
        return 64
    deployment, build_id, *repository = arguments
    try:
        check_deployment(
            Path(root),
            deployment,
            find_installed_versions(environment),
            build_id=build_id,
            repository=Path(repository[0]) if repository else None,
        )
    except SpecDeployError as error:
        _tell(str(error))
        return 1
    return 0


def _tell(text: str) -> None:
    for line in text.splitlines():
        sys.stderr.write(f"{ERROR_MARK}{line}\n")


def _gpu_architecture(run: Callable[[tuple[str, ...]], str]) -> str | None:
    """Such as sm90, from the compute capability (9.0) of every GPU."""
    try:
        lines = run(_GPU_QUERY).split()
    except (OSError, subprocess.SubprocessError):
        return None
    return ",".join(sorted({f"sm{line.replace('.', '')}" for line in lines})) or None


def _is_same(name: str, recorded: str, installed: str) -> bool:
    """TensorRT-LLM exactly, TensorRT by its numbers, CUDA by major and minor, GPUs by name."""
    if name == "gpu_architecture":
        return recorded == installed
    try:
        first, second = Version(recorded), Version(installed)
    except InvalidVersion:
        return recorded == installed
    if name == "tensorrt":
        return first.release == second.release
    if name == "cuda":
        return first.release[:2] == second.release[:2]
    return first.public == second.public


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
