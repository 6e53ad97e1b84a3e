"""One real Triton server per session, serving `llm` on a tiny random Llama through the whole build side."""

import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.deployment_files import write_deployment
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.builders.dispatch import build_deployment
from specdeploy.builders.pair import Consent
from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.packager.repository import pack_repository
from specdeploy.serving.launch import plan_launch
from specdeploy.serving.server import ServerState, start_server, stop_server
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
