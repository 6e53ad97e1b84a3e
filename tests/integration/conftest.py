"""One real Triton server per session, serving `llm` on a tiny random Llama through the whole build side."""

import re
import socket
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from helpers.deployment_files import write_deployment
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.builders.dispatch import build_deployment
from specdeploy.builders.pair import Consent
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.packager.repository import pack_repository
from specdeploy.serving.launch import plan_launch
from specdeploy.serving.server import ServerState, start_server, stop_server
from specdeploy.serving.server_log import read_log_tail
from specdeploy_client.server_facts import ServerFacts, parse_server_facts

SERVING = {"max_rows": 4, "max_queue": 40, "max_seq_len": 256, "prefill_chunk": 32}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The wheel's stubs are built for numpy 1; without it, as on a 3.13 without compiler, nothing can be served."""
    import numpy as np

    if np.lib.NumpyVersion(np.__version__) >= "2.0.0" and not Path("/opt/tritonserver").exists():
        reason = f"the Triton server of the wheel needs numpy 1, Python {sys.version.split()[0]} has {np.__version__}"
        for item in items:
            if item.get_closest_marker("integration"):
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployment that is being served, and where everything of it lies."""

    root: Path
    loaded: LoadedDeployment
    state: ServerState

    @property
    def grpc_url(self) -> str:
        return f"{self.state.host}:{self.state.grpc_port}"

    @property
    def http_url(self) -> str:
        return f"http://{self.state.host}:{self.state.http_port}/v2/models/llm"

    @property
    def metrics_url(self) -> str:
        return f"http://{self.state.host}:{self.state.metrics_port}/metrics"

    @property
    def metrics_text(self) -> str:
        return httpx.get(self.metrics_url, trust_env=False).text

    @property
    def facts(self) -> ServerFacts:
        return parse_server_facts(self.metrics_text)

    def gauge(self, name: str) -> float:
        """The value of one of our gauges."""
        lines = [line for line in self.metrics_text.splitlines() if line.startswith(f"{name}{{")]
        assert len(lines) == 1, lines
        return float(lines[0].rsplit(" ", 1)[1])


LOG_TAIL_LINES = 40
DEATH_WAIT_S = 1.0  # connections break before the process has written its last words
# What Triton's own handler of signals prints; it may hang in there, with the process still alive.
_SIGNAL_LINE = re.compile(r"^Signal \((\d+)\) received", re.MULTILINE)


def death_of(state: ServerState) -> str | None:
    """How a server died and the end of its log; None while it lives."""
    exit_code: int | None = None
    is_there = False
    try:
        process = psutil.Process(state.pid)
        if abs(process.create_time() - state.create_time) < 2.0:
            exit_code = process.wait(timeout=DEATH_WAIT_S)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        is_there = True
    log = read_log_tail(Path(state.log_path))
    printed = _SIGNAL_LINE.search(log)
    if is_there and printed is None:
        return None
    if exit_code is not None:
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit status {exit_code}"
    else:
        how = "nobody saw its exit status" if printed is None else f"signal {printed[1]}, by its log"
    how += ", its process still hangs" if is_there else ""
    tail = "\n".join(log.splitlines()[-LOG_TAIL_LINES:])
    return f"the Triton server of '{state.deployment}' died ({how}). The end of {state.log_path}:\n{tail}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test whose server died fails by that, not by whichever connection broke first (docs/reliability.md)."""
    try:
        return (yield)
    except Exception as error:
        servers = [value.state for value in getattr(item, "funcargs", {}).values() if isinstance(value, Deployed)]
        if deaths := [death for death in map(death_of, servers) if death is not None]:
            raise AssertionError("\n\n".join(deaths)) from error
        raise


def prepare(root: Path, name: str, overrides: dict[str, Any] | None = None) -> LoadedDeployment:
    """Write a config, build and pack it: the same calls as the command line makes."""
    make_checkpoint(root / "configs" / "deployments" / "checkpoint")
    ports = {"http_port": free_port(), "grpc_port": free_port(), "metrics_port": free_port()}
    settings: dict[str, Any] = {
        "serving": {**SERVING, **ports},
        "runtime": {"threads": 1},
        # Drafts are counted here; whether they pay on a random model is another question.
        "speculation": {"method": "ngram", "max_draft_len": 4, "dynamic_draft_len": False},
        "traffic": {
            "expected_concurrency": 1,
            "segments": [
                {"name": "chat", "prompts": "prompts.jsonl", "max_tokens": 12},
                {"name": "edit", "prompts": "prompts.jsonl", "max_tokens": 12},
                {"name": "quiet", "prompts": "prompts.jsonl", "speculate": False, "off_reason": "measured slower"},
            ],
        },
        **(overrides or {}),
    }
    path = write_deployment(root / "configs", name, settings)
    lines = [f'{{"id": "p{i}", "prompt": "item {i} then item {i} then item {i}"}}\n' for i in range(24)]
    (path.parent / "prompts.jsonl").write_text("".join(lines))
    loaded = load_deployment(path, root / "configs")
    # Drafts here are there to be tested, not to pay.
    consent = Consent(allow=("draft-too-costly",))
    build_deployment(loaded, root / "engines", report=lambda line: None, consent=consent)
    pack_repository(loaded.config, root / "triton_repo")
    return loaded


def deploy(root: Path, name: str, overrides: dict[str, Any] | None = None, *, is_canary: bool = False) -> Deployed:
    """Prepare a deployment and serve it."""
    loaded = prepare(root, name, overrides)
    plan = plan_launch(
        loaded,
        engines_root=root / "engines",
        repo_root=root / "triton_repo",
        state_root=root / "state",
        is_canary=is_canary,
    )
    state, _ = start_server(plan, timeout_s=90.0, on_wait=lambda seconds: None)
    return Deployed(root, loaded, state)


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    root = tmp_path_factory.mktemp("deployed")
    try:
        yield deploy(root, "tiny")
    finally:
        stop_server(root / "state", "tiny")
