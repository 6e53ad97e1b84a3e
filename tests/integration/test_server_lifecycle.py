"""The real Triton server with a trivial model: start, look, refuse, fail, stop."""

import os
import signal
import socket
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from specdeploy.config.schema import ServingConfig
from specdeploy.errors import PortInUseError, ServerError
from specdeploy.serving.installation import find_installation
from specdeploy.serving.launch import LaunchPlan, new_shm_prefix
from specdeploy.serving.server import (
    ServerState,
    StopOutcome,
    inspect_server,
    start_server,
    stop_server,
)

pytestmark = pytest.mark.integration

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (where POSIX shared memory is visible)
CONFIG = """\
name: "llm"
backend: "python"
max_batch_size: 1
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
ECHO = """\
import os
import triton_python_backend_utils as pb_utils
import specdeploy

class TritonPythonModel:
    def initialize(self, args):
        assert os.path.isdir(os.environ["SPECDEPLOY_ENGINES_ROOT"])

    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input")
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text.as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def failing(statement: str) -> str:
    """A model whose loading ends with `statement`."""
    return f"import os\nclass TritonPythonModel:\n    def initialize(self, args):\n        {statement}\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


MakePlan = Callable[..., LaunchPlan]


@pytest.fixture
def make_plan(tmp_path: Path) -> Iterator[MakePlan]:
    """Plans for a server of `model`; whatever was started with them is stopped at the end."""
    names: list[str] = []

    def make(model: str = ECHO, name: str = "tiny", serving: ServingConfig | None = None) -> LaunchPlan:
        folder = tmp_path / "repos" / name / "llm"
        (folder / "1").mkdir(parents=True, exist_ok=True)
        (folder / "config.pbtxt").write_text(CONFIG)
        (folder / "1" / "model.py").write_text(textwrap.dedent(model))
        (tmp_path / "engines").mkdir(exist_ok=True)
        names.append(name)
        return LaunchPlan(
            deployment=name,
            build_id="build",
            config_digest="digest",
            serving=serving or ServingConfig(http_port=free_port(), grpc_port=free_port(), metrics_port=free_port()),
            model_repository=folder.parent,
            engines_root=tmp_path / "engines",
            state_folder=tmp_path / "state" / name,
            installation=find_installation(),
            shm_prefix=new_shm_prefix(name),
        )

    yield make
    for name in names:
        stop_server(tmp_path / "state", name)


def processes_of(plan: LaunchPlan) -> list[int]:
    """Server and stubs of this start: both carry its prefix on their command line."""
    return [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE and plan.shm_prefix in " ".join(process.info["cmdline"] or [])
    ]


def assert_nothing_left(plan: LaunchPlan) -> None:
    assert processes_of(plan) == []
    assert list(SHARED_MEMORY.glob(f"{plan.shm_prefix}*")) == []
    assert not (plan.state_folder / "server.json").exists()


def addresses_of(state: ServerState) -> set[str]:
    """Addresses that the server listens on; gRPC writes IPv4 ones in IPv6 form."""
    connections = psutil.Process(state.pid).net_connections(kind="tcp")
    addresses = [connection.laddr[0] for connection in connections if connection.status == psutil.CONN_LISTEN]
    return {str(address).removeprefix("::ffff:") for address in addresses}


def ask(state: ServerState, text: str) -> str:
    url = f"http://{state.host}:{state.http_port}/v2/models/llm/generate"
    return str(httpx.post(url, json={"text_input": text}, trust_env=False).json()["text_output"])


def test_life_of_a_server(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan()
    waited: list[float] = []

    state, is_new = start_server(plan, timeout_s=60.0, on_wait=waited.append)

    assert is_new
    assert ask(state, "hello") == "hello"
    assert os.getsid(state.pid) == state.pid  # a session of its own: the end of this shell is not its end
    assert len(processes_of(plan)) == 2
    assert addresses_of(state) == {"127.0.0.1"}
    status = inspect_server(tmp_path / "state", "tiny")
    assert (status.running, status.ready, status.state) == (True, True, state)

    again, is_new = start_server(plan)
    assert (again, is_new) == (state, False)

    assert stop_server(tmp_path / "state", "tiny") is StopOutcome.STOPPED
    assert_nothing_left(plan)
    assert stop_server(tmp_path / "state", "tiny") is StopOutcome.NOT_RUNNING
    assert "successfully unloaded 'llm'" in plan.log_path.read_text()


def test_two_servers_side_by_side_and_a_port_that_is_taken(make_plan: MakePlan, tmp_path: Path) -> None:
    first, second = make_plan(), make_plan(name="other")
    running, _ = start_server(first, timeout_s=60.0)
    start_server(second, timeout_s=60.0)

    taken = make_plan(name="third", serving=first.serving)
    with pytest.raises(PortInUseError) as caught:
        start_server(taken)

    message = str(caught.value)
    assert f"serving.http_port: port {running.http_port} is taken by pid {running.pid} (" in message
    assert "serving.metrics_port" in message
    assert "make stop DEPLOYMENT=tiny" in message
    assert_nothing_left(taken)

    stop_server(tmp_path / "state", "other")
    assert ask(running, "still here") == "still here"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            failing("raise ValueError('specdeploy: engines/x: missing. Run: make engines')"),
            "start: engines/x: missing. Run: make engines\n",
        ),
        (failing("{}['target_folder']"), "model llm: KeyError: 'target_folder' (at "),
        ("import no_such_module\n", "No module named 'no_such_module'"),
        (failing("os.kill(os.getpid(), 9)"), "the model's process died"),
    ],
    ids=["our error", "exception", "import", "killed stub"],
)
def test_failing_model_gives_its_cause_and_leaves_nothing(make_plan: MakePlan, model: str, words: str) -> None:
    plan = make_plan(model)

    with pytest.raises(ServerError) as caught:
        start_server(plan, timeout_s=60.0)

    message = str(caught.value)
    assert words in message
    assert f"Log: {plan.log_path}" in message
    assert len(message.splitlines()) <= 4
    assert_nothing_left(plan)


def test_model_that_never_gets_ready(make_plan: MakePlan) -> None:
    plan = make_plan(failing("import time; time.sleep(60)"))

    with pytest.raises(ServerError, match="it was not ready after 1 s"):
        start_server(plan, timeout_s=1.0)

    assert_nothing_left(plan)


def test_interrupted_start_leaves_nothing(make_plan: MakePlan) -> None:
    plan = make_plan(failing("import time; time.sleep(60)"))

    def interrupt(_elapsed_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_server(plan, on_wait=interrupt)

    assert_nothing_left(plan)


def test_server_that_was_killed_is_cleaned_up_after(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan()
    state, _ = start_server(plan, timeout_s=60.0)

    os.kill(state.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while inspect_server(tmp_path / "state", "tiny").running and time.monotonic() < deadline:
        time.sleep(0.05)

    assert stop_server(tmp_path / "state", "tiny") is StopOutcome.NOT_RUNNING
    assert_nothing_left(plan)
