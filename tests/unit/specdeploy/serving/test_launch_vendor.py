"""`serve` in the TensorRT-LLM lanes: the packed launch.sh, in the container, with the versions of the build."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.deployment_files import write_deployment
from helpers.engine_builds import make_build
from helpers.engine_manifests import INSTALLED, VERSIONS, write_engine_build
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.contract import Lane
from specdeploy.errors import ServerError
from specdeploy.manifest import load_current_build, write_current_build
from specdeploy.packager.packaged_build import load_packaged_build
from specdeploy.packager.repository import pack_repository
from specdeploy.serving import server
from specdeploy.serving.installation import ServerInstallation, find_container
from specdeploy.serving.launch import LaunchPlan, plan_launch

CONTAINER = "/opt/tritonserver/bin/tritonserver"
SECTIONS: Mapping[str, Any] = {
    "lane": "trtllm_engine",
    "dtype": "bfloat16",
    "speculation": {"method": "draft_model", "draft": {"checkpoint": "draft"}, "max_draft_len": 5},
    "serving": {"max_rows": 8, "max_seq_len": 2048},
    "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"},
}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedDeployment:
    return load_deployment(write_deployment(tmp_path / "configs", "big", SECTIONS))


@pytest.fixture
def build_id(tmp_path: Path, loaded: LoadedDeployment) -> str:
    """Built and packed."""
    build_id = write_engine_build(tmp_path / "engines", config=loaded.config, config_digest=loaded.digest)
    pack_repository(loaded.config, tmp_path / "repo", load_packaged_build(tmp_path / "engines", "big"))
    return build_id


def plan(
    tmp_path: Path,
    loaded: LoadedDeployment,
    *,
    installation: ServerInstallation | None = None,
    installed: Mapping[str, str | None] = INSTALLED,
) -> LaunchPlan:
    return plan_launch(
        loaded,
        engines_root=tmp_path / "engines",
        repo_root=tmp_path / "repo",
        state_root=tmp_path / "state",
        installation=installation or ServerInstallation("container", tmp_path / "opt"),
        installed=installed,
    )


def test_runs_the_packed_script_with_its_own_shared_memory(
    tmp_path: Path, loaded: LoadedDeployment, build_id: str
) -> None:
    found = plan(tmp_path, loaded)
    program, script = found.command()

    assert Path(program).name == "bash"
    assert Path(program).is_absolute()
    assert script == str(tmp_path / "repo" / "big" / "launch.sh")
    assert found.environment()["SPECDEPLOY_ENGINES_ROOT"] == str(tmp_path / "engines")
    assert found.environment()["SPECDEPLOY_SHM_PREFIX"] == found.shm_prefix
    assert (found.lane, found.build_id) == (Lane.TRTLLM_ENGINE, build_id)
    assert "launch.sh" in found.describe()
    assert found.shm_prefix in found.describe()
    assert found.start_timeout_s == 3600


def test_the_script_is_what_is_started(
    tmp_path: Path, loaded: LoadedDeployment, build_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is the first word of the command: bash, not the server."""
    found = plan(tmp_path, loaded)
    (tmp_path / "repo" / "big" / "launch.sh").write_text(f"echo $0 $SPECDEPLOY_SHM_PREFIX > {tmp_path}/started\n")
    found.state_folder.mkdir(parents=True)

    state = server._spawn(found)
    os.waitpid(state.pid, 0)

    assert (tmp_path / "started").read_text() == f"{tmp_path}/repo/big/launch.sh {found.shm_prefix}\n"


def plan_outside(tmp_path: Path, loaded: LoadedDeployment) -> LaunchPlan:
    """As on a machine that is not the container: nothing is given, so everything is looked for."""
    return plan_launch(
        loaded, engines_root=tmp_path / "engines", repo_root=tmp_path / "repo", state_root=tmp_path / "state"
    )


IMAGE = r"nvcr\.io/nvidia/tritonserver:\S+-trtllm-python-py3"
SOURCES = Path(__file__).parents[4]


def test_outside_the_container_the_remedy_is_the_docker_script(
    tmp_path: Path, loaded: LoadedDeployment, build_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdeploy.serving.place.shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(ServerError) as caught:
        plan_outside(tmp_path, loaded)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"big: {CONTAINER} is missing, so this is not the vendor's container. TensorRT-LLM 1.2.1 ")
    assert re.search(f"runs in the container {IMAGE}\\. ", line)
    assert line.endswith(f". Run: bash {tmp_path}/repo/big/docker-run.sh {SOURCES} {tmp_path}/engines")


def test_without_docker_either_the_error_says_both(
    tmp_path: Path, loaded: LoadedDeployment, build_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdeploy.serving.place.shutil.which", lambda _: None)
    with pytest.raises(
        ServerError, match=r"is missing.*On a machine with docker \(not installed here\).*docker-run\.sh"
    ):
        plan_outside(tmp_path, loaded)


def test_without_container_build_and_repository_all_three_are_said(tmp_path: Path, loaded: LoadedDeployment) -> None:
    with pytest.raises(ServerError) as caught:
        plan_outside(tmp_path, loaded)

    place, build, repository = str(caught.value).splitlines()
    assert re.search(IMAGE, place)
    assert "After make engines and make repo DEPLOYMENT=big in that container, " in place
    assert f"bash {tmp_path}/repo/big/docker-run.sh" in place
    assert "make engines DEPLOYMENT=big" in build
    assert "make repo DEPLOYMENT=big" in repository


def test_outside_the_container_versions_are_nobodys_business(
    tmp_path: Path, loaded: LoadedDeployment, build_id: str
) -> None:
    with pytest.raises(ServerError) as caught:
        plan_outside(tmp_path, loaded)
    assert "other versions" not in str(caught.value)


def test_a_version_that_no_known_container_carries(tmp_path: Path) -> None:
    sections = {**SECTIONS, "tensorrt_llm": {"version": "1.2.0rc3", "gpu": "h100"}}
    loaded = load_deployment(write_deployment(tmp_path / "configs", "big", sections))
    with pytest.raises(ServerError, match=r"TensorRT-LLM 1\.2\.0rc3 runs in the vendor's container, of which none"):
        plan_outside(tmp_path, loaded)


def test_several_nodes_are_started_from_a_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative folders: the command must work from anywhere. No container is needed to submit a job."""
    nodes = {"num_nodes": 2, "tensor_parallel": 8, "pipeline_parallel": 2}
    sections = {**SECTIONS, "speculation": {"method": "lookahead", "max_draft_len": 83}}
    sections["tensorrt_llm"] = {"version": "1.2.1", "gpu": "h100", **nodes}
    loaded = load_deployment(write_deployment(tmp_path / "configs", "big", sections))
    changes: dict[str, Any] = {"tensor_parallel": 8, "pipeline_parallel": 2, "gpu_ids": tuple(range(8))}
    build_id = write_engine_build(tmp_path / "engines", config=loaded.config, config_digest=loaded.digest)
    build = replace(make_build("lookahead", **changes), folder=str(tmp_path / "engines" / build_id))
    pack_repository(loaded.config, tmp_path / "repo", replace(build, config_digest=loaded.digest))
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ServerError) as caught:
        plan_launch(loaded, engines_root=Path("engines"), repo_root=Path("repo"), state_root=Path("state"))

    assert str(caught.value) == (
        "big: spans 2 nodes, which one server command cannot start. On a login node of the cluster run: "
        f"sbatch {tmp_path}/repo/big/launch.slurm {SOURCES} {tmp_path}/repo/big {tmp_path}/engines"
    )


def test_the_container_is_found(tmp_path: Path) -> None:
    assert find_container(tmp_path) is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").touch()
    assert find_container(tmp_path) == ServerInstallation("container", tmp_path)


def test_other_versions_stop_the_start(tmp_path: Path, loaded: LoadedDeployment, build_id: str) -> None:
    with pytest.raises(ServerError, match=r"tensorrt_llm +1\.2\.1 +1\.1\.0 +<- differs"):
        plan(tmp_path, loaded, installed={**INSTALLED, "tensorrt_llm": "1.1.0"})


def test_an_edited_manifest_stops_the_start(tmp_path: Path, loaded: LoadedDeployment, build_id: str) -> None:
    path = tmp_path / "engines" / build_id / "manifest.json"
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"sm90"', '"sm80"'))
    with pytest.raises(ServerError, match="its bytes are not those that deployment big recorded"):
        plan(tmp_path, loaded, installed={**INSTALLED, "gpu_architecture": "sm80"})


def test_a_missing_manifest_stops_the_start(tmp_path: Path, loaded: LoadedDeployment, build_id: str) -> None:
    (tmp_path / "engines" / build_id / "manifest.json").unlink()
    with pytest.raises(ServerError, match="make engines"):
        plan(tmp_path, loaded)


def test_nothing_built_and_nothing_packed_are_both_said(tmp_path: Path, loaded: LoadedDeployment) -> None:
    with pytest.raises(ServerError) as caught:
        plan(tmp_path, loaded)
    assert "was never built" in str(caught.value)
    assert "make repo DEPLOYMENT=big" in str(caught.value)


def test_another_config_than_the_one_built(tmp_path: Path, loaded: LoadedDeployment, build_id: str) -> None:
    write_deployment(tmp_path / "configs", "big", {**SECTIONS, "serving": {"max_rows": 4, "max_seq_len": 2048}})
    changed = load_deployment(tmp_path / "configs" / "deployments" / "big.yaml")
    with pytest.raises(ServerError, match="changed since"):
        plan(tmp_path, changed)


# --- the repository that was packed ---------------------------------------------------------------------------------


def refusal(tmp_path: Path, loaded: LoadedDeployment) -> str:
    with pytest.raises(ServerError) as caught:
        plan(tmp_path, loaded)
    return str(caught.value)


def test_a_repository_of_another_build(tmp_path: Path, loaded: LoadedDeployment, build_id: str) -> None:
    newer = write_engine_build(
        tmp_path / "engines", config=loaded.config, config_digest=loaded.digest, versions={**VERSIONS, "gpu": "h100"}
    )
    assert refusal(tmp_path, loaded) == (
        f"{tmp_path}/repo/big/repository.json: was packed for build {build_id}, and {newer} is served now. "
        "Run: make repo DEPLOYMENT=big"
    )


def test_a_repository_with_the_ports_of_before(tmp_path: Path, loaded: LoadedDeployment, build_id: str) -> None:
    """Another YAML file and the same engines: the build stays, its pointer is new."""
    write_deployment(tmp_path / "configs", "big", {**SECTIONS, "serving": {**SECTIONS["serving"], "http_port": 9100}})
    changed = load_deployment(tmp_path / "configs" / "deployments" / "big.yaml")
    current = load_current_build(tmp_path / "engines", "big")
    update = {"config": changed.config, "config_digest": changed.digest}
    write_current_build(tmp_path / "engines", current.model_copy(update=update))

    assert "was packed before the deployment was changed and built again" in refusal(tmp_path, changed)
    pack_repository(changed.config, tmp_path / "repo", load_packaged_build(tmp_path / "engines", "big"))
    assert plan(tmp_path, changed).build_id == build_id


def edit_target(folder: Path) -> None:
    path = folder / "target" / "config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 8", "max_batch_size: 9"))


def remove_draft(folder: Path) -> None:
    (folder / "draft" / "config.pbtxt").unlink()


def add_version(folder: Path) -> None:
    (folder / "llm" / "2").mkdir()
    (folder / "llm" / "2" / "model.py").touch()


def add_model(folder: Path) -> None:
    (folder / "extra").mkdir()


def remove_launch_script(folder: Path) -> None:
    (folder / "launch.sh").unlink()


def damage_manifest(folder: Path) -> None:
    (folder / "repository.json").write_text("{}")


def remove_manifest(folder: Path) -> None:
    (folder / "repository.json").unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (edit_target, "target/config.pbtxt changed since it was packed"),
        (remove_draft, "draft/config.pbtxt missing since it was packed"),
        (add_version, "llm/2/model.py added since it was packed"),
        (add_model, "extra added since it was packed"),
        (remove_launch_script, "launch.sh missing since it was packed"),
        (damage_manifest, "repository.json: cannot be read"),
        (remove_manifest, "repository.json: cannot be read"),
    ],
)
def test_a_repository_that_is_not_the_one_packed(
    change: Callable[[Path], None], reason: str, tmp_path: Path, loaded: LoadedDeployment, build_id: str
) -> None:
    change(tmp_path / "repo" / "big")
    found = refusal(tmp_path, loaded)
    assert reason in found
    assert found.endswith("Run: make repo DEPLOYMENT=big")


def test_what_python_and_schedulers_leave_in_a_repository_is_no_change(
    tmp_path: Path, loaded: LoadedDeployment, build_id: str
) -> None:
    folder = tmp_path / "repo" / "big"
    (folder / "llm" / "1" / "__pycache__").mkdir()
    (folder / "llm" / "1" / "__pycache__" / "model.pyc").touch()
    (folder / "slurm-17.out").touch()
    plan(tmp_path, loaded)
