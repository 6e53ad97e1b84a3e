"""Scripts beside the models of a TensorRT-LLM lane, for one machine: launch.sh, tritonserver.sh, docker-run.sh.

    docker-run.sh -> container -> launch.sh -> [launch_triton_server.py -> mpirun ->] tritonserver.sh -> tritonserver

launch.sh stays in the foreground until the server ends and hands signals on, so whoever started it can stop it.
"""

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineRecord, Lane
from specdeploy.packager.engine_models import tensorrt_llm_section
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.shell_text import (
    default_variable,
    join_command,
    join_lines,
    port_arguments,
    resolved_folder,
    script_head,
)
from specdeploy.trtllm.versions import container_of, image_of, parse_version

LAUNCH_SCRIPT = "launch.sh"
SERVER_SCRIPT = "tritonserver.sh"
DOCKER_SCRIPT = "docker-run.sh"
# Where the container keeps them (server docs, `trtllm-python-py3` containers carry /app/scripts).
LAUNCHER = "/app/scripts/launch_triton_server.py"
TRITONSERVER = "/opt/tritonserver/bin/tritonserver"
SHM_PREFIX_VARIABLE = "SPECDEPLOY_SHM_PREFIX"
ENGINES_ROOT_VARIABLE = "SPECDEPLOY_ENGINES_ROOT"
# Inside the container.
SOURCE_FOLDER = "/opt/specdeploy-source"
REPOSITORY_FOLDER = "/opt/specdeploy-repository"
# What `specdeploy.serving.server_log` looks for: the reason why a server did not start.
ERROR_MARK = "specdeploy: "
EXIT_TIMEOUT_S = 10
# A Python model that loads an LLM reads all weights while the server waits for it; others read a tokenizer.
_STUB_TIMEOUT_S = {Lane.TRTLLM_ENGINE: 300, Lane.TRTLLM_LLMAPI: 3600}

_DEFAULT_THREAD_POOL = 32  # python_backend src/python_be.cc@f9088ff6


def render_launch_files(config: DeploymentConfig, build: PackagedBuild) -> dict[str, str]:
    """File name -> text. Without a known container for the version there is no docker-run.sh, and launch.sh says so.
    A deployment on several nodes has neither: only a scheduler can start it."""
    image = image_of_version(config)
    is_one_node = tensorrt_llm_section(config).num_nodes == 1
    files = {SERVER_SCRIPT: _server_script(config)}
    if is_one_node:
        files[LAUNCH_SCRIPT] = _launch_script(config, build, image)
    if is_one_node and image is not None:
        files[DOCKER_SCRIPT] = _docker_script(config, build, image)
    return files


def image_of_version(config: DeploymentConfig) -> str | None:
    """The container image that carries exactly the configured TensorRT-LLM; None where no known one does."""
    container = container_of(parse_version(tensorrt_llm_section(config).version))
    return None if container is None else image_of(container)


def launcher_arguments(config: DeploymentConfig, engines: Sequence[EngineRecord]) -> list[str]:
    """Arguments of launch_triton_server.py, paths of the repository left out.

    Several engines: one server, and every engine spawns its own processes (`--multi-model`, world size 1). One engine:
    one server per rank; the ranks above 0 load that engine alone, by the name given here.
    """
    serving = config.serving
    ports = [
        f"--http_port={serving.http_port}",
        f"--grpc_port={serving.grpc_port}",
        f"--metrics_port={serving.metrics_port}",
    ]
    names = ",".join(record.model.value for record in engines)
    if len(engines) > 1:
        return ["--multi-model", "--world_size=1", f"--tensorrt_llm_model_name={names}", *ports, "--force"]
    # --force: another deployment's server on this machine is no reason to refuse; whether ports are free is checked.
    return [f"--world_size={num_ranks(engines[0])}", f"--tensorrt_llm_model_name={names}", *ports, "--force"]


def checkpoint_mounts(build: PackagedBuild) -> list[str]:
    """Folders with weights that must be seen at the same place inside the container; of a snapshot in a hub's cache
    the folder of its repository, because its files are links into the one beside it."""
    paths = [PurePosixPath(folder) for folder in build.checkpoint_folders]
    roots = [path.parents[1] if path.parent.name == "snapshots" else path for path in paths]
    return list(dict.fromkeys(str(root) for root in roots))


def runtime_check(config: DeploymentConfig, build: PackagedBuild, repository: str) -> str:
    """The command that refuses other versions, another build, a changed repository (a word of bash) or weights."""
    return f"python3 -m specdeploy.serving.runtime_versions {config.name} {shlex.quote(build.build_id)} {repository}"


def host_checks(config: DeploymentConfig, build: PackagedBuild) -> list[str]:
    """Lines of bash that refuse what cannot be mounted: folders in $source, $engines and those that the build pins."""
    build_again = f"run make engines DEPLOYMENT={config.name} and make repo DEPLOYMENT={config.name}"
    no_build = f"$engines holds no build {build.build_id}: give the folder of builds as last argument, or {build_again}"
    return [
        '[[ -f "$source/pyproject.toml" ]] || fail "$source is not the source folder: it has no pyproject.toml"',
        f'[[ -d "$engines/"{shlex.quote(build.build_id)} ]] || fail "{no_build}"',
        'engines="$(cd -- "$engines" && pwd)"',
        *(
            f"[[ -d {shlex.quote(folder)} ]] || fail "
            + shlex.quote(f"{folder} is missing on this machine, and the build reads weights there: {build_again}")
            for folder in checkpoint_mounts(build)
        ),
        'for folder in "$source" "$engines" "$repository"; do',
        '  [[ "$folder" != *[,:]* ]] || fail "$folder holds a comma or colon, which separate mounts: move it"',
        "done",
    ]


def num_ranks(record: EngineRecord) -> int:
    """Processes of one engine: tensor x pipeline parallel."""
    return record.tensor_parallel * record.pipeline_parallel


# --- on one machine -------------------------------------------------------------------------------------------------


def _launch_script(config: DeploymentConfig, build: PackagedBuild, image: str | None) -> str:
    what = f"container image {image}" if image else "no known container carries this TensorRT-LLM"
    started_by = f"which {DOCKER_SCRIPT} starts" if image else "of this TensorRT-LLM"
    head = [
        *script_head(
            config,
            f"Starts the server of this repository and stays until it ends. TensorRT-LLM "
            f"{tensorrt_llm_section(config).version}: {what}.",
        ),
        'here="$(cd -- "$(dirname -- "$0")" && pwd)"',
        default_variable(ENGINES_ROOT_VARIABLE, build.engines_root),
        f'fail() {{ echo "{ERROR_MARK}launch.sh: $1" >&2; exit 1; }}',
        f'[[ -x {TRITONSERVER} ]] || fail "{TRITONSERVER} is missing: run this inside the container, {started_by}"',
        f'[[ -x "$here/{SERVER_SCRIPT}" ]] || fail "$here/{SERVER_SCRIPT} may not be executed: run chmod +x on it"',
        *(_folder_check(folder) for folder in _folders(config, build)),
        "# Engines run only with the versions they were built with, and only in the repository packed for them.",
        runtime_check(config, build, '"$here"'),
        "",
    ]
    if config.lane is Lane.TRTLLM_ENGINE:
        head.insert(-3, f'[[ -f {LAUNCHER} ]] || fail "{LAUNCHER} is missing: this is not a TensorRT-LLM container"')
        arguments = [
            '--model_repo="$here"',
            f'--tritonserver="$here/{SERVER_SCRIPT}"',
            *launcher_arguments(config, build.engines),
        ]
        command = f"exec python3 -m specdeploy.serving.foreground python3 {LAUNCHER}"
        return join_lines(
            [*head, "# The launcher returns at once; what it started is waited for.", join_command(command, arguments)]
        )
    return join_lines(
        [*head, join_command(f'exec "$here/{SERVER_SCRIPT}"', ['--model-repository="$here"', *port_arguments(config)])]
    )


def _server_script(config: DeploymentConfig) -> str:
    """The server with what the launcher has no flag for: addresses, time limits, the name of its shared memory."""
    host = shlex.quote(config.serving.host)
    arguments = [
        '"$@"',
        f"--http-address={host}",
        f"--grpc-address={host}",
        f"--metrics-address={host}",
        "--exit-on-error=true",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        "--log-info=true",
        '--backend-config=python,shm-region-prefix-name="$prefix"',
        f"--backend-config=python,stub-timeout-seconds={_STUB_TIMEOUT_S[config.lane]}",
        # A call from `llm` to an engine holds a thread until it is answered, and every row may wait for one.
        f"--backend-config=python,thread-pool-size={max(_DEFAULT_THREAD_POOL, config.serving.max_rows + 8)}",
    ]
    return join_lines(
        [
            *script_head(config, "The server with the addresses and limits of this deployment; launch.sh starts it."),
            default_variable(SHM_PREFIX_VARIABLE, f"specdeploy_{config.name}_"),
            f'prefix="${SHM_PREFIX_VARIABLE}"',
            "# The launcher names the shared memory of every server alike; here each start has its own.",
            'for argument in "$@"; do',
            "  shift",
            '  case "$argument" in',
            "    --backend-config=python,shm-region-prefix-name=*) ;;",
            '    *) set -- "$@" "$argument" ;;',
            "  esac",
            "done",
            join_command(f"exec {TRITONSERVER}", arguments),
        ]
    )


def _docker_script(config: DeploymentConfig, build: PackagedBuild, image: str) -> str:
    options = [
        "--rm",
        "--init",
        f"--name=specdeploy-{config.name}",
        "# All GPUs: a selection would be numbered anew inside, and the engines name theirs.",
        "--gpus=all",
        "--env=CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "# The host's network: the server listens on serving.host and the ports of the config, as it would outside.",
        "--network=host",
        "--ipc=host",
        "--ulimit=memlock=-1",
        "--ulimit=stack=67108864",
        f"--env={ENGINES_ROOT_VARIABLE}={shlex.quote(build.engines_root)}",
        f'--volume="$engines":{shlex.quote(build.engines_root)}:ro',
        f'--volume="$repository":{REPOSITORY_FOLDER}:ro',
        f'--volume="$source":{SOURCE_FOLDER}:ro',
        *(f"--volume={shlex.quote(f'{folder}:{folder}:ro')}" for folder in checkpoint_mounts(build)),
        shlex.quote(image),
        f"bash -c 'python3 -m pip install --quiet {SOURCE_FOLDER} && exec bash {REPOSITORY_FOLDER}/{LAUNCH_SCRIPT}'",
    ]
    lines = [
        *script_head(
            config, "Usage: docker-run.sh SOURCE_FOLDER [ENGINES_ROOT]: the project's sources, and where builds lie."
        ),
        'fail() { echo "docker-run.sh: $1" >&2; exit 1; }',
        '[[ $# -ge 1 ]] || fail "usage: docker-run.sh SOURCE_FOLDER [ENGINES_ROOT]"',
        'command -v docker > /dev/null || fail "docker is not installed: install it with NVIDIA\'s container toolkit"',
        'repository="$(cd -- "$(dirname -- "$0")" && pwd)"',
        *resolved_folder("source", '"$1"'),
        f"engines={shlex.quote(build.engines_root)}",
        'if [[ $# -ge 2 ]]; then engines="$2"; fi',
        *host_checks(config, build),
        "",
    ]
    comments = [option for option in options if option.startswith("# ")]
    return join_lines([*lines, *comments, join_command("exec docker run", [o for o in options if o not in comments])])


def _folders(config: DeploymentConfig, build: PackagedBuild) -> list[str]:
    """What the server must find: its engines, or the build and the checkpoints it pins."""
    if config.lane is Lane.TRTLLM_ENGINE:
        return [build.engine_folder(record) for record in build.engines]
    return [build.folder, *build.checkpoint_folders]


def _folder_check(folder: str) -> str:
    return f"[[ -d {shlex.quote(folder)} ]] || fail {shlex.quote(f'{folder} is missing: mount it here')}"
