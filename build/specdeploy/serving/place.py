"""Where a deployment of a TensorRT-LLM lane is served: in the vendor's container, or as a job on several nodes."""

import shlex
import shutil
from pathlib import Path

from specdeploy.config.schema import DeploymentConfig
from specdeploy.serving.installation import CONTAINER_ROOT
from specdeploy.trtllm.versions import container_of, image_of, parse_version

SLURM_SCRIPT = "launch.slurm"
DOCKER_SCRIPT = "docker-run.sh"


def place_problems(
    config: DeploymentConfig, engines_root: Path, repository: Path, *, is_in_container: bool
) -> list[str]:
    """Why `serve` cannot start `config` on this machine, at most one sentence, with the command that can."""
    section = config.tensorrt_llm
    if section is None:  # not a TensorRT-LLM lane
        return []
    container = container_of(parse_version(section.version))
    image = None if container is None else image_of(container)
    if section.num_nodes > 1:
        return [_several_nodes(config, engines_root, repository, section.num_nodes, image)]
    if is_in_container:
        return []
    carried = f"the container {image}" if image else "the vendor's container, of which none known carries it"
    missing = (
        f"{config.name}: {CONTAINER_ROOT}/bin/tritonserver is missing, so this is not the vendor's container. "
        f"TensorRT-LLM {section.version} runs in {carried}"
    )
    if image is None:
        return [f"{missing}. Serve it where that version is installed with the Triton server"]
    script = repository.resolve() / DOCKER_SCRIPT
    command = f"bash {shlex.quote(str(script))} {_source_folder()} {shlex.quote(str(engines_root.resolve()))}"
    when = "" if script.is_file() else f"After make engines and make repo DEPLOYMENT={config.name} in that container, "
    if shutil.which("docker") is None:
        return [f"{missing}. {when}{'on' if when else 'On'} a machine with docker (not installed here) run: {command}"]
    return [f"{missing}. {when}{'run' if when else 'Run'}: {command}"]


def _several_nodes(
    config: DeploymentConfig, engines_root: Path, repository: Path, num_nodes: int, image: str | None
) -> str:
    spans = f"{config.name}: spans {num_nodes} nodes, which one server command cannot start"
    if image is None:
        return f"{spans}, and no known container carries its TensorRT-LLM, so there is no {SLURM_SCRIPT} either"
    folder = repository.resolve()
    script, *folders = (shlex.quote(str(path)) for path in (folder / SLURM_SCRIPT, folder, engines_root.resolve()))
    return f"{spans}. On a login node of the cluster run: sbatch {script} {_source_folder()} {' '.join(folders)}"


def _source_folder() -> str:
    """The project's sources, which the scripts install in the container; a word for them where only a package is."""
    folder = Path(__file__).resolve().parents[3]
    return shlex.quote(str(folder)) if (folder / "pyproject.toml").is_file() else "SOURCE_FOLDER"
