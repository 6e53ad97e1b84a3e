"""`serve` in the TensorRT-LLM lanes: the packed launch.sh, in the container, with the versions of the build."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.deployment_files import write_deployment
from helpers.engine_manifests import INSTALLED, write_engine_build
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.contract import Lane
from specdeploy.errors import ServerError
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


def test_outside_the_container_the_remedy_is_the_docker_script(
    tmp_path: Path, loaded: LoadedDeployment, build_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdeploy.serving.launch.shutil.which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(ServerError) as caught:
        plan_launch(
            loaded, engines_root=tmp_path / "engines", repo_root=tmp_path / "repo", state_root=tmp_path / "state"
        )
    assert str(caught.value) == (
        f"{CONTAINER} is missing: TensorRT-LLM is served by the vendor's container only. "
        f"Run: bash {tmp_path}/repo/big/docker-run.sh SOURCE_FOLDER"
    )


def test_without_docker_either_the_error_says_both(
    tmp_path: Path, loaded: LoadedDeployment, build_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdeploy.serving.launch.shutil.which", lambda _: None)
    with pytest.raises(ServerError, match=r"is missing.*docker \(it is not installed here either\).*docker-run\.sh"):
        plan_launch(
            loaded, engines_root=tmp_path / "engines", repo_root=tmp_path / "repo", state_root=tmp_path / "state"
        )


def test_without_a_repository_the_container_is_named(tmp_path: Path, loaded: LoadedDeployment) -> None:
    with pytest.raises(ServerError, match="Serve inside the container that carries"):
        plan_launch(
            loaded, engines_root=tmp_path / "engines", repo_root=tmp_path / "repo", state_root=tmp_path / "state"
        )


def test_the_container_is_found(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").touch()
    assert find_container("", tmp_path) == ServerInstallation("container", tmp_path)


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


@pytest.mark.parametrize(
    ("has_slurm", "reason"),
    [(True, r"spans several nodes.*sbatch .*launch\.slurm"), (False, r"has no launch\.sh\. Run: make repo")],
)
def test_a_repository_without_launch_script(
    has_slurm: bool, reason: str, tmp_path: Path, loaded: LoadedDeployment, build_id: str
) -> None:
    folder = tmp_path / "repo" / "big"
    (folder / "launch.sh").unlink()
    if not has_slurm:
        (folder / "launch.slurm").unlink()
    with pytest.raises(ServerError, match=reason):
        plan(tmp_path, loaded)


def test_another_config_than_the_one_built(tmp_path: Path, loaded: LoadedDeployment, build_id: str) -> None:
    write_deployment(tmp_path / "configs", "big", {**SECTIONS, "serving": {"max_rows": 4, "max_seq_len": 2048}})
    changed = load_deployment(tmp_path / "configs" / "deployments" / "big.yaml")
    with pytest.raises(ServerError, match="changed since"):
        plan(tmp_path, changed)
