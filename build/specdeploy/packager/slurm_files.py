"""launch.slurm and slurm_task.sh: the server of a TensorRT-LLM lane on a cluster with Slurm and pyxis.

On one node a single task runs launch.sh. On several nodes every rank of the one engine is a task of its own.
"""

import shlex

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Lane
from specdeploy.packager.engine_models import tensorrt_llm_section
from specdeploy.packager.launch_files import (
    ENGINES_ROOT_VARIABLE,
    LAUNCH_SCRIPT,
    REPOSITORY_FOLDER,
    SERVER_SCRIPT,
    SOURCE_FOLDER,
    checkpoint_mounts,
    host_checks,
    image_of_version,
    num_ranks,
    runtime_check,
)
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.shell_text import join_command, join_lines, port_arguments, resolved_folder, script_head

SLURM_SCRIPT = "launch.slurm"
SLURM_TASK_SCRIPT = "slurm_task.sh"


def render_slurm_files(config: DeploymentConfig, build: PackagedBuild) -> dict[str, str]:
    """File name -> text; nothing where no known container carries the configured TensorRT-LLM."""
    image = image_of_version(config)
    if image is None:
        return {}
    return {SLURM_SCRIPT: _slurm_script(config, build, image), SLURM_TASK_SCRIPT: _slurm_task_script(config, build)}


def _slurm_script(config: DeploymentConfig, build: PackagedBuild, image: str) -> str:
    num_nodes, num_tasks = tensorrt_llm_section(config).num_nodes, _num_tasks(config, build)
    mounts = [
        f'"$engines":{shlex.quote(build.engines_root)}:ro',
        f'"$repository":{REPOSITORY_FOLDER}:ro',
        f'"$source":{SOURCE_FOLDER}:ro',
        *(shlex.quote(f"{folder}:{folder}:ro") for folder in checkpoint_mounts(build)),
    ]
    container = [f"--container-name=specdeploy-{config.name}", f"--container-mounts={','.join(mounts)}"]
    registry, _, path = image.partition("/")
    install = [
        f"--nodes={num_nodes}",
        "--ntasks-per-node=1",
        f"--container-image={shlex.quote(f'{registry}#{path}')}",
        *container,
        *_prepare(config, build),
    ]
    task = [
        "--mpi=pmix" if num_nodes > 1 else "--mpi=none",
        f"--ntasks={num_tasks}",
        *container,
        f"bash {REPOSITORY_FOLDER}/{SLURM_TASK_SCRIPT}",
    ]
    first, *rest = script_head(
        config, "Usage: sbatch launch.slurm SOURCE_FOLDER REPOSITORY [ENGINES_ROOT], with pyxis."
    )
    directives = [
        f"#SBATCH --job-name=specdeploy-{config.name}",
        f"#SBATCH --nodes={num_nodes}",
        f"#SBATCH --ntasks-per-node={num_tasks // num_nodes}",
        f"#SBATCH --gpus-per-node={_gpus_per_node(config, build)}",
        "#SBATCH --exclusive",
    ]
    repack = f"run make repo DEPLOYMENT={config.name}"
    return join_lines(
        [
            first,
            *directives,
            *rest,
            'fail() { echo "launch.slurm: $1" >&2; exit 1; }',
            '[[ $# -ge 2 ]] || fail "usage: sbatch launch.slurm SOURCE_FOLDER REPOSITORY [ENGINES_ROOT]"',
            *resolved_folder("source", '"$1"'),
            *resolved_folder("repository", '"$2"'),
            f'[[ -f "$repository/{SLURM_TASK_SCRIPT}" ]] || fail "$repository has no {SLURM_TASK_SCRIPT}: {repack}"',
            f"engines={shlex.quote(build.engines_root)}",
            'if [[ $# -ge 3 ]]; then engines="$3"; fi',
            *host_checks(config, build),
            f"export {ENGINES_ROOT_VARIABLE}={shlex.quote(build.engines_root)}",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "",
            "# One container per node, kept by its name for the second step.",
            join_command("srun", install),
            join_command("srun", task),
        ]
    )


def _prepare(config: DeploymentConfig, build: PackagedBuild) -> list[str]:
    """Words of the command that prepares each node; with several it also asks once per node what launch.sh asks."""
    install = f"python3 -m pip install --quiet {SOURCE_FOLDER}"
    if tensorrt_llm_section(config).num_nodes == 1:
        return [install]
    return ["bash -c", shlex.quote(f"{install} && {runtime_check(config, build, REPOSITORY_FOLDER)}")]


def _slurm_task_script(config: DeploymentConfig, build: PackagedBuild) -> str:
    head = [
        *script_head(config, "What one task of launch.slurm does, inside the container."),
        'here="$(cd -- "$(dirname -- "$0")" && pwd)"',
    ]
    if tensorrt_llm_section(config).num_nodes == 1:
        return join_lines(
            [
                *head,
                "# The server starts its own processes with mpirun, which must not take this task for one of them.",
                "for name in $(compgen -e | grep -E '^(SLURM|PMI|PMIX|OMPI)_' || true); do unset \"$name\"; done",
                f'exec bash "$here/{LAUNCH_SCRIPT}"',
            ]
        )
    server = [f'"$here/{SERVER_SCRIPT}"', '--model-repository="$here"', *port_arguments(config)]
    if config.lane is Lane.TRTLLM_LLMAPI:
        return join_lines([*head, join_command("exec trtllm-llmapi-launch", server)])
    workers = ["--model-control-mode=explicit", *(f"--load-model={record.model}" for record in build.engines)]
    return join_lines(
        [
            *head,
            "# Rank 0 serves; the others hold their part of the engine and load nothing else.",
            'if [[ "$SLURM_PROCID" != 0 ]]; then',
            f"  {join_command('exec', [*server, *workers], indent='    ')}",
            "fi",
            join_command("exec", server),
        ]
    )


def _num_tasks(config: DeploymentConfig, build: PackagedBuild) -> int:
    """One on a single node, where launch.sh starts the rest; else one per rank."""
    section = tensorrt_llm_section(config)
    return 1 if section.num_nodes == 1 else max(num_ranks(record) for record in build.engines)


def _gpus_per_node(config: DeploymentConfig, build: PackagedBuild) -> int:
    """Up to the highest GPU that an engine names; without names as many as ranks fall on a node."""
    num_nodes = tensorrt_llm_section(config).num_nodes
    named = [gpu_id + 1 for record in build.engines for gpu_id in record.gpu_ids]
    return max(named, default=max(num_ranks(record) for record in build.engines) // num_nodes)
