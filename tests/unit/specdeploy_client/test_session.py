"""What the options leave open is found out, and what contradicts itself is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from helpers.mock_llm_server import MockBehaviour, MockLlmServer
from specdeploy.errors import ConfigError, RequestError
from specdeploy.run_contract import Arm
from specdeploy_client.commands.options import ServerOptions, SwitchKind
from specdeploy_client.load.arms import ModelControlSwitch, PerRequestSwitch, TwoEndpoints
from specdeploy_client.session import AsServed, Session, open_arms, open_session
from specdeploy_client.transport import GenerationRequest, ServerUnreachableError
from specdeploy_client.transports.endpoint import EndpointKind

DEMO = str(Path(__file__).parents[3] / "configs" / "deployments" / "demo.yaml")


def _session(artifact_dir: Path | None = None, **options: Any) -> Session:
    return open_session(ServerOptions(**options), artifact_dir)


def test_a_deployment_says_everything() -> None:
    session = _session(deployment=DEMO, engines_root=Path("nowhere"))
    assert (session.name, session.endpoint.url, session.endpoint.model) == ("demo", "127.0.0.1:18001", "llm")
    assert session.endpoint.kind is EndpointKind.TRITON_GRPC
    assert session.metrics_url == "http://127.0.0.1:18002/metrics"
    assert session.artifact_dir == Path("artifacts/demo")
    assert (session.switch, session.arms) == (SwitchKind.PER_REQUEST, (Arm.OFF, Arm.ON))
    assert session.notes == ("no chat template in the current build of demo: prompts are sent raw",)
    assert session.prompt_format == "raw"


def test_its_http_service_has_another_port() -> None:
    session = _session(deployment=DEMO, endpoint_type="triton-http")
    assert (session.endpoint.kind, session.endpoint.base_url) == (EndpointKind.TRITON_HTTP, "http://127.0.0.1:18000")


@pytest.mark.parametrize(
    ("options", "metrics_url", "switch"),
    [
        (
            {"url": "http://h:9/v1", "endpoint_type": "openai-chat", "model": "a/b"},
            "http://h:9/metrics",
            SwitchKind.NONE,
        ),
        ({"url": "h:8001", "model": "ensemble"}, "http://h:8002/metrics", SwitchKind.PER_REQUEST),
        ({"url": "[::1]:8001", "model": "m", "off_model": "n"}, "http://[::1]:8002/metrics", SwitchKind.ENDPOINTS),
        (
            {"url": "http://h/v1/completions", "model": "m", "off_url": "http://o/v1/completions"},
            "http://h/metrics",
            SwitchKind.ENDPOINTS,
        ),
    ],
)
def test_an_endpoint_without_a_deployment(options: dict[str, Any], metrics_url: str, switch: SwitchKind) -> None:
    session = _session(**options)
    assert session.deployment is None
    assert (session.metrics_url, session.switch) == (metrics_url, switch)


def test_the_folder_of_a_foreign_model_is_one_folder() -> None:
    session = _session(url="http://h/v1", model="owner/name")
    assert session.artifact_dir == Path("artifacts/owner--name")
    assert session.prompt_format == "turns, rendered by the server"
    assert session.notes == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "m"}, "--url: is missing"),
        ({"endpoint_type": "openai-chat"}, "--url: is missing"),
        ({"deployment": DEMO, "endpoint_type": "smoke signals"}, "--endpoint-type"),
        ({"deployment": DEMO, "header": ["no colon"]}, "--header"),
        ({"deployment": DEMO, "switch": SwitchKind.ENDPOINTS}, "--switch: endpoints needs a second one"),
        ({"deployment": DEMO, "switch": SwitchKind.MODEL_CONTROL}, "Give --off-model"),
        ({"deployment": DEMO, "switch": SwitchKind.PER_REQUEST, "off_model": "x"}, "asks no second server or model"),
        (
            {"url": "http://h/v1", "model": "m", "switch": SwitchKind.PER_REQUEST},
            "OpenAI's calls have no field that turns speculation off",
        ),
        (
            {"url": "h:1", "model": "m", "off_model": "n", "switch": SwitchKind.MODEL_CONTROL},
            "--model-control-url: is missing",
        ),
        ({"deployment": DEMO, "raw": True, "chat_template": Path("x")}, "--raw: contradicts --chat-template"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, RequestError)) as refused:
        _session(**options)
    assert message in str(refused.value)


def test_arms_are_opened_as_the_switch_says() -> None:
    async def open_all() -> list[object]:
        async with MockLlmServer(MockBehaviour(), models=("plain",)) as server:
            common: dict[str, Any] = {"url": server.grpc_url, "model": "llm", "metrics_url": server.metrics_url}
            sessions = [
                _session(**common),
                _session(**common, switch=SwitchKind.NONE),
                _session(**common, off_url=server.grpc_url),
                _session(
                    **common,
                    off_model="plain",
                    switch=SwitchKind.MODEL_CONTROL,
                    model_control_url=server.http_url,
                ),
            ]
            opened: list[object] = []
            for session in sessions:
                async with open_arms(session) as arms:
                    opened.append(arms.switch)
                    assert [text for name, text in arms.notes.items() if name.startswith("server")]
            return opened

    per_request, as_served, two, control = asyncio.run(open_all())
    assert isinstance(per_request, PerRequestSwitch)
    assert isinstance(as_served, AsServed)
    assert as_served.request_for(Arm.ON, GenerationRequest("x", 1, num_draft_tokens=4)).num_draft_tokens is None
    assert isinstance(two, TwoEndpoints)
    assert isinstance(control, ModelControlSwitch)


@pytest.mark.parametrize("changes", [{"model": "nothing"}, {"off_model": "nothing"}])
def test_a_model_that_is_not_there_is_named(changes: dict[str, Any]) -> None:
    async def open_it() -> None:
        async with MockLlmServer() as server:
            options: dict[str, Any] = {"url": server.grpc_url, "model": "llm", **changes}
            session = _session(**options)
            async with open_arms(session):
                pass

    with pytest.raises(ServerUnreachableError, match="its model nothing is not ready"):
        asyncio.run(open_it())
