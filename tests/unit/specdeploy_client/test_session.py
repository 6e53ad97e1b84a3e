"""What the options leave open is found out, and what contradicts itself is refused."""

import asyncio
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from helpers.mock_llm_server import MockBehaviour, MockLlmServer
from specdeploy.errors import ConfigError, RequestError
from specdeploy.run_contract import Arm
from specdeploy_client.commands.options import EndpointOptions, SwitchKind, SwitchOptions
from specdeploy_client.load.arms import AsServed, ModelControlSwitch, PerRequestSwitch, TwoEndpoints
from specdeploy_client.session import Session, open_arms, open_session
from specdeploy_client.transport import GenerationRequest, NobodyAnswersError, ServerUnreachableError
from specdeploy_client.transports.endpoint import EndpointKind

DEMO = str(Path(__file__).parents[3] / "configs" / "deployments" / "demo.yaml")


def _session(artifact_dir: Path | None = None, **options: Any) -> Session:
    of_switch = {field.name for field in fields(SwitchOptions)}
    switching = SwitchOptions(**{name: options.pop(name) for name in of_switch & set(options)})
    return open_session(EndpointOptions(**options), switching, artifact_dir)


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
    ("options", "metrics_url"),
    [
        ({"url": "other:18001"}, "http://other:18002/metrics"),
        ({"url": "http://other:18000", "endpoint_type": "triton-http"}, "http://other:18002/metrics"),
        ({"url": "127.0.0.1:9001"}, None),
        ({"url": "127.0.0.1:18000"}, None),
        ({"url": "127.0.0.1:9001", "metrics_url": "http://127.0.0.1:9002/metrics"}, "http://127.0.0.1:9002/metrics"),
        ({"url": "http://h:9/v1", "model": "m", "endpoint_type": "openai-chat"}, "http://h:9/metrics"),
    ],
)
def test_another_address_has_metrics_of_its_own_or_none(options: dict[str, Any], metrics_url: str | None) -> None:
    assert _session(deployment=DEMO, **options).metrics_url == metrics_url


def test_where_a_foreign_triton_has_its_metrics_only_its_default_ports_tell() -> None:
    assert _session(url="h:9001", model="m").metrics_url is None


def test_a_wrong_model_is_said_to_be_taken_for_another_products() -> None:
    foreign, no_template = _session(url="h:8001", model="nope").notes
    assert "--model nope without --deployment: measured as another product's" in foreign
    assert no_template == "no chat template known for nope: prompts are sent raw"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deployment": DEMO}, "Start it with `make serve`, or give its address with --url"),
        ({"deployment": DEMO, "url": "127.0.0.1:1"}, "Is it running? --url gives another address"),
        ({"url": "http://127.0.0.1:1/v1", "model": "m"}, "Is it running? --url gives another address"),
    ],
)
def test_only_the_configs_own_server_can_be_started(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    if "url" not in options:  # a port of its own, where nobody is
        config = Path(DEMO).read_text()
        options = {"deployment": str(tmp_path / "demo.yaml")}
        config = config.replace("../traffic", str(Path(DEMO).parents[1] / "traffic"))
        (tmp_path / "demo.yaml").write_text(re.sub(r"grpc_port: \d+", "grpc_port: 1025", config))

    async def open_it() -> None:
        async with open_arms(_session(**options)):
            pass

    with pytest.raises(NobodyAnswersError, match=r"no .*server answers at .*127\.0\.0\.1:1") as absent:
        asyncio.run(open_it())
    assert message in str(absent.value)


def test_an_absent_off_server_is_named_by_its_option() -> None:
    async def open_it() -> None:
        async with (
            MockLlmServer() as server,
            open_arms(_session(url=server.grpc_url, model="llm", off_url="127.0.0.1:1")),
        ):
            pass

    with pytest.raises(NobodyAnswersError, match=r"at 127\.0\.0\.1:1 .*--off-url gives another address"):
        asyncio.run(open_it())


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
        ({"deployment": DEMO, "off_url": "carrier pigeon"}, "--off-url: 'carrier pigeon'"),
        ({"url": "http://h/v1/chat/completions", "model": "m", "off_url": "h:1"}, "two protocols are no comparison"),
        ({"deployment": DEMO, "chat_template": Path("none.jinja")}, "chat template none.jinja cannot be read"),
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

    with pytest.raises(ServerUnreachableError, match="has no model `nothing`"):
        asyncio.run(open_it())
