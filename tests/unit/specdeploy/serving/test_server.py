"""Deciding, ports and state of the server; starting a real one is an integration test."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from helpers.deployment_files import write_deployment
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.config.schema import ServingConfig
from specdeploy.errors import PortInUseError, ServerError
from specdeploy.manifest import CurrentBuild, write_current_build, write_json_atomically
from specdeploy.planner.schedule import plan_from_config
from specdeploy.serving.installation import ServerInstallation
from specdeploy.serving.launch import LaunchPlan, plan_launch
from specdeploy.serving.server import (
    ServerState,
    StopOutcome,
    check_ports,
    inspect_server,
    start_server,
    stop_server,
)
from specdeploy.verdict_contract import IntegrityReport

BUILD_ID = "0123456789abcdef"


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedDeployment:
    write_deployment(tmp_path / "configs")
    return load_deployment("tiny", tmp_path / "configs")


@pytest.fixture
def make_build(tmp_path: Path, loaded: LoadedDeployment) -> Callable[[str], None]:
    """Write `engines/tiny.json` and its build folder, made for a config with this digest."""

    def make(config_digest: str) -> None:
        folder = tmp_path / "engines" / BUILD_ID
        (folder / "target").mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        current = CurrentBuild(
            deployment="tiny",
            build_id=BUILD_ID,
            target_folder=f"{BUILD_ID}/target",
            draft_folder=None,
            config_digest=config_digest,
            config=loaded.config,
            plan=plan_from_config(loaded.config),
        )
        write_current_build(tmp_path / "engines", current)

    return make


def plan(tmp_path: Path, loaded: LoadedDeployment, *, is_canary: bool = False) -> LaunchPlan:
    return plan_launch(
        loaded,
        engines_root=tmp_path / "engines",
        repo_root=tmp_path / "repos",
        state_root=tmp_path / "state",
        installation=ServerInstallation("wheel", tmp_path / "server", tmp_path / "libs"),
        is_canary=is_canary,
    )


def make_repository(tmp_path: Path) -> None:
    (tmp_path / "repos" / "tiny" / "llm").mkdir(parents=True)
    (tmp_path / "repos" / "tiny" / "llm" / "config.pbtxt").touch()


class TestPlan:
    def test_all_that_is_missing_is_named_at_once(self, tmp_path: Path, loaded: LoadedDeployment) -> None:
        with pytest.raises(ServerError) as caught:
            plan(tmp_path, loaded)

        assert "make engines DEPLOYMENT=tiny" in str(caught.value)
        assert "make repo DEPLOYMENT=tiny" in str(caught.value)

    def test_config_that_changed_since_the_build(
        self, tmp_path: Path, loaded: LoadedDeployment, make_build: Callable[[str], None]
    ) -> None:
        make_build("older")
        make_repository(tmp_path)

        with pytest.raises(ServerError, match=r"tiny\.yaml: changed since .*make engines DEPLOYMENT=tiny"):
            plan(tmp_path, loaded)

    def test_command_line(self, tmp_path: Path, loaded: LoadedDeployment, make_build: Callable[[str], None]) -> None:
        make_build(loaded.digest)
        make_repository(tmp_path)

        first, second = plan(tmp_path, loaded), plan(tmp_path, loaded)

        command = first.command()
        assert command[0] == str(tmp_path / "server" / "bin" / "tritonserver")
        for flag in (
            f"--model-repository={tmp_path / 'repos' / 'tiny'}",
            f"--backend-directory={tmp_path / 'state' / 'tiny' / 'backends'}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
            "--http-port=8000",
            "--exit-on-error=true",
            "--disable-auto-complete-config",
        ):
            assert flag in command
        assert first.shm_prefix != second.shm_prefix
        assert f"SPECDEPLOY_ENGINES_ROOT={tmp_path / 'engines'}" in first.describe()


class TestCanary:
    @pytest.fixture
    def on(self, tmp_path: Path, make_build: Callable[[str], None]) -> LoadedDeployment:
        """Built and packed with `speculation.constrained: on`."""
        speculation = {"method": "ngram", "max_draft_len": 3, "constrained": "on"}
        write_deployment(tmp_path / "configs", "tiny", {"speculation": speculation})
        changed = load_deployment("tiny", tmp_path / "configs")
        make_build(changed.digest)
        make_repository(tmp_path)
        return changed

    def write_report(self, tmp_path: Path, **changes: str) -> None:
        report = {
            "deployment": "tiny",
            "build_id": BUILD_ID,
            "dtype": "float32",
            "created_at": "2026-01-01",
            "status": "pass",
            "checks": (),
        }
        path = tmp_path / "engines" / "integrity" / f"{BUILD_ID}-tiny.json"
        path.parent.mkdir(exist_ok=True)
        write_json_atomically(path, IntegrityReport.model_validate(report | changes))

    def test_drafting_for_guides_needs_a_passed_report(self, tmp_path: Path, on: LoadedDeployment) -> None:
        with pytest.raises(ServerError, match=r"constrained: on needs a passed integrity report of build .*--canary"):
            plan(tmp_path, on)
        for changes in ({"status": "fail"}, {"status": "inconclusive"}, {"dtype": "bfloat16"}, {"build_id": "x"}):
            self.write_report(tmp_path, **changes)
            with pytest.raises(ServerError, match="needs a passed integrity report"):
                plan(tmp_path, on)
        self.write_report(tmp_path)
        assert not plan(tmp_path, on).is_canary

    def test_a_canary_needs_none_and_is_told_so(
        self, tmp_path: Path, on: LoadedDeployment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        canary = plan(tmp_path, on, is_canary=True)
        assert canary.environment()["SPECDEPLOY_CANARY"] == "1"
        assert "SPECDEPLOY_CANARY=1" in canary.describe()
        self.write_report(tmp_path)
        monkeypatch.setenv("SPECDEPLOY_CANARY", "1")  # left over from elsewhere: it makes no canary
        assert "SPECDEPLOY_CANARY" not in plan(tmp_path, on).environment()

    @pytest.mark.parametrize(("host", "is_allowed"), [("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False)])
    def test_a_canary_is_for_this_machine(
        self, tmp_path: Path, make_build: Callable[[str], None], host: str, is_allowed: bool
    ) -> None:
        write_deployment(tmp_path / "configs", "tiny", {"serving": {"host": host}})
        changed = load_deployment("tiny", tmp_path / "configs")
        make_build(changed.digest)
        make_repository(tmp_path)
        if is_allowed:
            assert plan(tmp_path, changed, is_canary=True).is_canary
        else:
            with pytest.raises(ServerError, match=r"serving\.host: 192\.0\.2\.1 can be reached from other machines"):
                plan(tmp_path, changed, is_canary=True)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


class TestPorts:
    def test_busy_ports_are_named_with_their_holder(self, listener: socket.socket, tmp_path: Path) -> None:
        port = listener.getsockname()[1]
        serving = ServingConfig(http_port=free_port(), grpc_port=port, metrics_port=free_port())

        with pytest.raises(PortInUseError) as caught:
            check_ports(serving, tmp_path)

        message = str(caught.value)
        assert f"serving.grpc_port: port {port} is taken by pid {os.getpid()} (" in message
        assert "http_port" not in message

    def test_own_server_is_named_by_its_deployment(self, listener: socket.socket, tmp_path: Path) -> None:
        write_state(tmp_path, pid=os.getpid(), create_time=0.0)
        serving = ServingConfig(http_port=listener.getsockname()[1], grpc_port=free_port(), metrics_port=free_port())

        with pytest.raises(PortInUseError, match="make stop DEPLOYMENT=tiny"):
            check_ports(serving, tmp_path)

    def test_foreign_address(self, tmp_path: Path) -> None:
        with pytest.raises(ServerError, match=r"serving\.host: 192\.0\.2\.1 is not an address of this machine"):
            check_ports(ServingConfig(host="192.0.2.1"), tmp_path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def write_state(state_root: Path, *, pid: int, create_time: float, build_id: str = BUILD_ID) -> Path:
    folder = state_root / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    state = ServerState(
        deployment="tiny",
        pid=pid,
        create_time=create_time,
        host="127.0.0.1",
        http_port=free_port(),
        grpc_port=2,
        metrics_port=3,
        build_id=build_id,
        config_digest="digest",
        shm_prefix="specdeploy_unit_test_nothing_",
        log_path=str(folder / "server.log"),
        started_at="2026-01-01T00:00:00+00:00",
    )
    write_json_atomically(folder / "server.json", state)
    return folder / "server.json"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the server."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


class TestState:
    def test_nothing_was_started(self, tmp_path: Path) -> None:
        assert not inspect_server(tmp_path, "tiny").running
        assert stop_server(tmp_path, "tiny") is StopOutcome.NOT_RUNNING

    def test_reused_pid_is_left_alone_and_the_state_cleaned(
        self, tmp_path: Path, sleeper: subprocess.Popen[bytes]
    ) -> None:
        path = write_state(tmp_path, pid=sleeper.pid, create_time=psutil.Process(sleeper.pid).create_time() - 60)

        assert stop_server(tmp_path, "tiny") is StopOutcome.NOT_RUNNING
        assert sleeper.poll() is None
        assert not path.exists()

    def test_damaged_state_file_is_cleaned(self, tmp_path: Path) -> None:
        path = write_state(tmp_path, pid=1, create_time=0.0)
        path.write_text("{")

        assert not inspect_server(tmp_path, "tiny").running
        assert not path.exists()

    def test_stop_ends_the_process(self, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
        path = write_state(tmp_path, pid=sleeper.pid, create_time=psutil.Process(sleeper.pid).create_time())

        status = inspect_server(tmp_path, "tiny")
        outcome = stop_server(tmp_path, "tiny", grace_s=5.0)

        assert (status.running, status.ready) == (True, False)
        assert outcome is StopOutcome.STOPPED
        assert sleeper.wait(5) is not None
        assert not path.exists()

    def test_running_server_of_another_build_is_an_error(
        self,
        tmp_path: Path,
        loaded: LoadedDeployment,
        make_build: Callable[[str], None],
        sleeper: subprocess.Popen[bytes],
    ) -> None:
        make_build(loaded.digest)
        make_repository(tmp_path)
        created = psutil.Process(sleeper.pid).create_time()
        write_state(tmp_path / "state", pid=sleeper.pid, create_time=created, build_id="older")

        with pytest.raises(ServerError, match=rf"pid {sleeper.pid}\) with build older, not {BUILD_ID}.*make stop"):
            start_server(plan(tmp_path, loaded))
