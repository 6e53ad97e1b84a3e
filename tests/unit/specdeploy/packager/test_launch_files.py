"""Scripts of the TensorRT-LLM lanes: strict bash, known flags, the config's ports, and what they do when run."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.engine_builds import BUILD_FOLDER, ENGINE_METHODS, make_build, make_config
from specdeploy.errors import PackagingError
from specdeploy.packager.launch_files import LAUNCHER, TRITONSERVER, launcher_arguments
from specdeploy.packager.repository import pack_repository, render_repository
from specdeploy.serving.server_log import extract_cause
from specdeploy.trtllm.facts import command_problems, launch_script_flags

IMAGE = re.compile(r"nvcr\.io/nvidia/tritonserver:26\.0\d-trtllm-python-py3")
TWO_NODES = {"num_nodes": 2, "tensor_parallel": 8, "pipeline_parallel": 2}
BASH = shutil.which("bash") or "/bin/bash"


def scripts(method: str, build_changes: dict[str, Any] | None = None, **section: Any) -> dict[str, str]:
    files = render_repository(make_config(method, tensorrt_llm=section), make_build(method, **(build_changes or {})))
    return {name: text for name, text in files.items() if name.endswith((".sh", ".slurm"))}


def two_nodes(method: str) -> dict[str, str]:
    changes = {"tensor_parallel": 8, "pipeline_parallel": 2, "gpu_ids": tuple(range(8))}
    return scripts(method, changes, **TWO_NODES)


@pytest.mark.parametrize("method", [*ENGINE_METHODS, "ngram"])
def test_scripts_are_strict_bash_without_template_marks(method: str, tmp_path: Path) -> None:
    found = scripts(method)
    assert set(found) == {"launch.sh", "tritonserver.sh", "docker-run.sh", "launch.slurm", "slurm_task.sh"}
    for name, text in {**found, **{f"two-{name}": text for name, text in two_nodes(method).items()}}.items():
        assert text.startswith("#!/usr/bin/env bash\n")
        assert "\nset -euo pipefail\n" in text
        assert "${" not in text
        (tmp_path / name).write_text(text)
        done = subprocess.run([BASH, "-n", str(tmp_path / name)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), name


def flags_in(text: str) -> list[str]:
    """Arguments of launch_triton_server.py in a script, as a shell would split them."""
    _, found, command = text.partition(f"python3 {LAUNCHER}")
    assert found
    return shlex.split(command.replace("\\\n", " "))


@pytest.mark.parametrize("method", ENGINE_METHODS)
def test_every_flag_of_the_launcher_is_known(method: str) -> None:
    arguments = flags_in(scripts(method)["launch.sh"])

    assert command_problems(arguments, launch_script_flags()) == []
    assert {"--http_port=9000", "--grpc_port=9001", "--metrics_port=9002"} <= set(arguments)
    for planted in ("--http-port=9000", "--worldsize=1", "--world_size=two", "--multi-model=1", "--exit_timeout=5"):
        assert command_problems([*arguments, planted], launch_script_flags()) != []


def test_two_engines_spawn_their_processes_and_one_is_a_world() -> None:
    pair = launcher_arguments(make_config(), make_build(tensor_parallel=4, gpu_ids=(0, 1, 2, 3)).engines)
    one = launcher_arguments(
        make_config("lookahead"), make_build("lookahead", tensor_parallel=4, gpu_ids=(0, 1, 2, 3)).engines
    )

    assert {"--multi-model", "--world_size=1", "--tensorrt_llm_model_name=target,draft"} <= set(pair)
    assert {"--world_size=4", "--tensorrt_llm_model_name=target"} <= set(one)
    assert not {"--multi-model", "--disable-spawn-processes"} & set(one)


def test_the_llm_api_lane_starts_the_server_itself() -> None:
    text = scripts("ngram")["launch.sh"]
    assert LAUNCHER not in text
    assert text.endswith(
        'exec "$here/tritonserver.sh" \\\n  --model-repository="$here" \\\n  --http-port=9000 \\\n'
        "  --grpc-port=9001 \\\n  --metrics-port=9002 \\\n  --disable-auto-complete-config\n"
    )


RUNTIME_CHECK = "python3 -m specdeploy.serving.runtime_versions big 0123456789abcdef "


@pytest.mark.parametrize("method", ["draft_model", "ngram"])
def test_the_build_and_the_repository_are_checked_before_the_start(method: str) -> None:
    """launch.sh asks; where a scheduler starts every rank it is asked once per node before any of them."""
    assert f'\n{RUNTIME_CHECK}"$here"\n' in scripts(method)["launch.sh"]
    several = two_nodes("lookahead" if method == "draft_model" else method)
    first, second = several["launch.slurm"].split("\nsrun ")[1:]
    assert "--ntasks-per-node=1" in first
    assert f"&& {RUNTIME_CHECK}/opt/specdeploy-repository'" in first
    assert "runtime_versions" not in second + several["slurm_task.sh"] + scripts(method)["launch.slurm"]


@pytest.mark.parametrize(("max_rows", "num_threads"), [(8, 32), (24, 32), (25, 33), (256, 264)])
def test_every_row_may_wait_for_an_engine(max_rows: int, num_threads: int) -> None:
    config = make_config(serving={"max_rows": max_rows, "max_seq_len": 2048})
    text = render_repository(config, make_build(max_batch_size=max_rows))["tritonserver.sh"]
    assert re.findall(r"python,thread-pool-size=(\d+)", text) == [str(num_threads)]


@pytest.mark.parametrize("folder", ["/srv/a,b", "/srv/a:b"])
def test_a_folder_that_no_mount_can_name_is_refused(folder: str, tmp_path: Path) -> None:
    engines = replace(make_build("ngram"), folder=f"{folder}/0123456789abcdef")
    weights = replace(make_build("ngram"), checkpoint_folders=(folder,))
    for build in (engines, weights):
        with pytest.raises(PackagingError, match=f"{folder}: holds a comma or colon, and cannot be mounted"):
            pack_repository(make_config("ngram"), tmp_path, build)
    unknown = make_config("ngram", tensorrt_llm={"version": "1.3.0rc29"})  # no container, so no script that mounts
    assert pack_repository(unknown, tmp_path, engines).build_id == "0123456789abcdef"


def test_docker_mounts_read_only_and_pins_the_image() -> None:
    text = scripts("draft_model")["docker-run.sh"]

    assert IMAGE.search(text)
    mounts = re.findall(r"--volume=\S+", text)
    assert len(mounts) == 3
    assert all(mount.endswith(":ro") for mount in mounts)
    assert "--env=SPECDEPLOY_ENGINES_ROOT=/srv/engines" in text
    assert "python3 -m pip install --quiet /opt/specdeploy-source" in text
    assert "--gpus=all" in text


def test_a_snapshot_in_a_hub_cache_is_mounted_with_the_blobs_it_links_to() -> None:
    folders = ("/cache/hub/models--a--b/snapshots/abc", "/models/plain")
    files = render_repository(make_config("ngram"), replace(make_build("ngram"), checkpoint_folders=folders))

    for name in ("docker-run.sh", "launch.slurm"):
        assert "/cache/hub/models--a--b:/cache/hub/models--a--b:ro" in files[name]
        assert "/models/plain:/models/plain:ro" in files[name]
    assert "[[ -d /cache/hub/models--a--b/snapshots/abc ]]" in files["launch.sh"]


def test_without_a_known_container_there_is_no_script_that_needs_one() -> None:
    found = scripts("ngram", version="1.3.0rc29")
    assert set(found) == {"launch.sh", "tritonserver.sh"}
    assert "no known container carries this TensorRT-LLM" in found["launch.sh"]


def test_several_nodes_are_for_a_scheduler() -> None:
    engine, llmapi = two_nodes("lookahead"), two_nodes("ngram")

    assert set(engine) == set(llmapi) == {"tritonserver.sh", "launch.slurm", "slurm_task.sh"}
    for text in (engine["launch.slurm"], llmapi["launch.slurm"]):
        assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n" in text
        assert "--mpi=pmix" in text
        assert "--ntasks=16" in text
        assert "nvcr.io#nvidia/tritonserver:26." in text
    assert "--load-model=target" in engine["slurm_task.sh"]
    assert "exec trtllm-llmapi-launch" in llmapi["slurm_task.sh"]


# --- run ------------------------------------------------------------------------------------------------------------


def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BASH, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": os.environ["PATH"], **environment},
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    pack_repository(make_config(), tmp_path / "repo", make_build())
    return tmp_path / "repo" / "big"


def test_scripts_may_be_executed(repository: Path) -> None:
    for name in ("launch.sh", "tritonserver.sh", "docker-run.sh", "launch.slurm", "slurm_task.sh"):
        assert os.access(repository / name, os.X_OK)


def test_outside_the_container_launching_says_so(repository: Path) -> None:
    done = run(repository / "launch.sh")
    assert done.returncode == 1
    assert done.stderr.startswith(f"specdeploy: launch.sh: {TRITONSERVER} is missing")
    assert "docker-run.sh" in done.stderr
    assert str(extract_cause(done.stderr)) == done.stderr.removeprefix("specdeploy: ").strip()


def test_missing_engines_are_named(repository: Path, tmp_path: Path) -> None:
    script = repository / "launch.sh"
    server = tmp_path / "tritonserver"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    script.write_text(script.read_text().replace(TRITONSERVER, str(server)))
    done = run(script)
    assert done.returncode == 1
    assert f"{BUILD_FOLDER}/target_engine is missing" in done.stderr


def test_the_server_gets_the_addresses_and_its_own_shared_memory(repository: Path, tmp_path: Path) -> None:
    script = repository / "tritonserver.sh"
    server = tmp_path / "tritonserver"
    server.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    server.chmod(0o755)
    script.write_text(script.read_text().replace(TRITONSERVER, str(server)))
    given = ["--model-repository=/a b", "--backend-config=python,shm-region-prefix-name=prefix0_", "--log-verbose=3"]

    done = run(script, *given, SPECDEPLOY_SHM_PREFIX="mine_")

    arguments = done.stdout.splitlines()
    assert arguments[:2] == ["--model-repository=/a b", "--log-verbose=3"]
    prefixes = [argument for argument in arguments if "shm-region-prefix-name" in argument]
    assert prefixes == ["--backend-config=python,shm-region-prefix-name=mine_"]
    assert {"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"} <= set(arguments)
    assert "shm-region-prefix-name=specdeploy_big_" in run(script).stdout


STAND_IN_LAUNCHER = """
import subprocess, sys
flags = dict(argument.lstrip("-").partition("=")[::2] for argument in sys.argv[1:])
arguments = ["--model-repository=" + flags["model_repo"], "--http-port=" + flags["http_port"]]
subprocess.Popen([flags["tritonserver"], *arguments])
"""
STAND_IN_SERVER = """#!/usr/bin/env bash
trap 'echo stopped >> {log}; exit 0' TERM
echo "$1 $2" > {log}
while true; do sleep 0.05; done
"""


def test_launching_stays_with_the_server_and_hands_the_signal_on(repository: Path, tmp_path: Path) -> None:
    """With stand-ins for what only the container has: the launcher ends at once, as NVIDIA's does."""
    server, launcher, log = tmp_path / "tritonserver", tmp_path / "launcher.py", tmp_path / "log"
    server.write_text(STAND_IN_SERVER.format(log=log))
    server.chmod(0o755)
    launcher.write_text(STAND_IN_LAUNCHER)
    for name in ("launch.sh", "tritonserver.sh"):
        text = (repository / name).read_text().replace(TRITONSERVER, str(server)).replace(LAUNCHER, str(launcher))
        text = text.replace(RUNTIME_CHECK, "true ").replace("python3", sys.executable)
        (repository / name).write_text(re.sub(r"^.. -d /srv/engines.*\n", "", text, flags=re.MULTILINE))
    sources = str(Path(__file__).parents[4] / "build")

    process = subprocess.Popen(
        [BASH, str(repository / "launch.sh")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": sources},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 20
        while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert log.read_text() == f"--model-repository={repository} --http-port=9000\n"
        assert process.poll() is None  # the launcher is gone, the server is not
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert log.read_text().endswith("stopped\n")


def test_docker_gets_the_folders_that_were_given(repository: Path, tmp_path: Path) -> None:
    docker, engines, source = tmp_path / "bin" / "docker", tmp_path / "engines", tmp_path / "source"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    docker.chmod(0o755)
    (engines / Path(BUILD_FOLDER).name).mkdir(parents=True)
    source.mkdir()
    (source / "pyproject.toml").touch()
    path = f"{docker.parent}:{os.environ['PATH']}"

    done = run(repository / "docker-run.sh", str(source), str(engines), PATH=path)

    arguments = done.stdout.splitlines()
    assert arguments[0] == "run"
    assert f"--volume={engines}:/srv/engines:ro" in arguments
    assert f"--volume={source}:/opt/specdeploy-source:ro" in arguments
    assert f"--volume={repository}:/opt/specdeploy-repository:ro" in arguments
    assert IMAGE.fullmatch(arguments[-4])
    assert arguments[-3:-1] == ["bash", "-c"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "usage: docker-run.sh"),
        (("{0}",), "it has no pyproject.toml"),
        (("{0}/none",), "no such folder: {0}/none"),
        (("{0}/source",), "/srv/engines holds no build 0123456789abcdef: give the folder of builds as last argument"),
        (("{0}/source", "{0}"), "make engines DEPLOYMENT=big and make repo DEPLOYMENT=big"),
        (("{0}/source", "{0}/a,b"), "{0}/a,b holds a comma or colon"),
    ],
)
def test_docker_script_refuses_what_cannot_work(
    repository: Path, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pyproject.toml").touch()
    (tmp_path / "a,b" / "0123456789abcdef").mkdir(parents=True)
    given = [argument.format(tmp_path) for argument in arguments]

    done = run(repository / "docker-run.sh", *given, PATH=f"{docker.parent}:{os.environ['PATH']}")

    assert done.returncode == 1
    assert reason.format(tmp_path) in done.stderr


def test_weights_that_are_not_on_the_host_are_no_matter_of_mounting(tmp_path: Path) -> None:
    build = replace(make_build("ngram"), checkpoint_folders=("/no/such/weights",))
    for name in ("docker-run.sh", "launch.slurm"):
        text = render_repository(make_config("ngram"), build)[name]
        (line,) = [line for line in text.splitlines() if line.startswith("[[ -d /no/such/weights ]]")]
        assert "is missing on this machine" in line
        assert "run make engines DEPLOYMENT=big" in line


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder with the sources, a build and an `srun` that prints what it is given."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pyproject.toml").touch()
    (tmp_path / "engines" / "0123456789abcdef").mkdir(parents=True)
    return tmp_path


def submit(repository: Path, slurm: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BASH, str(repository / "launch.slurm"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=slurm,
        env={"PATH": f"{slurm / 'bin'}:{os.environ['PATH']}"},
    )


def test_a_job_mounts_folders_by_their_full_path(repository: Path, slurm: Path) -> None:
    done = submit(repository, slurm, "source", os.path.relpath(repository, slurm), "engines")

    assert (done.returncode, done.stderr) == (0, "")
    mounts = [line for line in done.stdout.splitlines() if line.startswith("--container-mounts=")]
    repository_mount = f"{repository}:/opt/specdeploy-repository:ro"
    source_mount = f"{slurm}/source:/opt/specdeploy-source:ro"
    all_mounts = f"--container-mounts={slurm}/engines:/srv/engines:ro,{repository_mount},{source_mount}"
    assert mounts == [all_mounts, all_mounts]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("source",), "usage: sbatch launch.slurm"),
        (("none", "repo/big", "engines"), "no such folder: none"),
        (("engines", "repo/big", "engines"), "it has no pyproject.toml"),
        (("source", "none", "engines"), "no such folder: none"),
        (("source", "source", "engines"), "source has no slurm_task.sh: run make repo DEPLOYMENT=big"),
        (("source", "repo/big"), "/srv/engines holds no build 0123456789abcdef"),
        (("source", "repo/big", "source"), "source holds no build 0123456789abcdef"),
    ],
)
def test_a_job_refuses_what_cannot_work(arguments: tuple[str, ...], reason: str, repository: Path, slurm: Path) -> None:
    done = submit(repository, slurm, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert "launch.slurm: " in done.stderr
    assert reason in done.stderr


def test_a_machine_without_docker_is_told_so(repository: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("dirname", "bash"):
        (tools / name).symlink_to(shutil.which(name) or name)
    done = run(repository / "docker-run.sh", str(tmp_path), PATH=str(tools))
    assert done.returncode == 1
    assert "docker is not installed" in done.stderr
