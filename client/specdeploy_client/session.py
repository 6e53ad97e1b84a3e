"""One server, one way to turn speculation off, one folder of results: what commands that talk to a server need."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from specdeploy.config.load import LoadedDeployment, load_deployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.errors import ConfigError, RequestError, Violation
from specdeploy.run_contract import Arm
from specdeploy_client.chat import find_chat_template, load_chat_template
from specdeploy_client.commands.option_values import OptionProblems
from specdeploy_client.commands.options import DEFAULT_DEPLOYMENT, EndpointOptions, SwitchKind, SwitchOptions
from specdeploy_client.load.arms import ArmSwitch, AsServed, ModelControlSwitch, PerRequestSwitch, TwoEndpoints
from specdeploy_client.transport import NobodyAnswersError, RequestRefusedError, ServerUnreachableError
from specdeploy_client.transports.base import OpenedTransport
from specdeploy_client.transports.endpoint import Endpoint, EndpointKind, Tls, open_transport, parse_endpoint
from specdeploy_client.transports.probe import probe_transport
from specdeploy_client.transports.triton_grpc import GrpcTransport
from specdeploy_client.transports.triton_http import HttpTransport
from specdeploy_client.user_input import as_user_input
from specdeploy_client.workloads.render import Rendering, find_token_counter

# Triton's own defaults.
_METRICS_PORT = 8002
_TRITON_PORTS = {EndpointKind.TRITON_GRPC: 8001, EndpointKind.TRITON_HTTP: 8000}


@dataclass(frozen=True, slots=True)
class Session:
    """Addresses and files of one command. `deployment` None: an endpoint of another product, called `name`.

    `off_endpoint` is where requests without speculation go, None where it is the same. `metrics_url` None: nothing
    tells where the measured server has that page. `is_own_address`: nobody named another than the config's. `notes` are
    for people.
    """

    deployment: LoadedDeployment | None
    name: str
    endpoint: Endpoint
    off_endpoint: Endpoint | None
    switch: SwitchKind
    model_control_url: str | None
    metrics_url: str | None
    engines_root: Path
    artifact_dir: Path
    timeout_s: float
    rendering: Rendering
    is_own_address: bool = False
    notes: tuple[str, ...] = ()

    @property
    def config(self) -> DeploymentConfig | None:
        """The deployment's config, where there is one."""
        return None if self.deployment is None else self.deployment.config

    @property
    def arms(self) -> tuple[Arm, ...]:
        """What can be measured."""
        return (Arm.ON,) if self.switch is SwitchKind.NONE else (Arm.OFF, Arm.ON)

    @property
    def prompt_format(self) -> str:
        """For the record: how prompts were rendered."""
        if self.endpoint.kind is EndpointKind.OPENAI_CHAT:
            return "turns, rendered by the server"
        template = self.rendering.template
        return "raw" if template is None else f"chat template {Path(template.origin).name}"


def open_session(
    options: EndpointOptions, switching: SwitchOptions | None = None, artifact_dir: Path | None = None
) -> Session:
    """Find out what the options leave open. `switching` None: nothing is compared.

    Raises `ConfigError` or `RequestError`.
    """
    switching = switching or SwitchOptions()
    deployment = None if _is_foreign(options) else load_deployment(options.deployment or DEFAULT_DEPLOYMENT)
    endpoint = _endpoint(options, deployment, options.url, options.model)
    switch = _chosen_switch(switching, endpoint)
    off_endpoint = None
    if switch in (SwitchKind.ENDPOINTS, SwitchKind.MODEL_CONTROL):
        off_endpoint = _off_endpoint(options, switching, deployment, endpoint)
    name = deployment.config.name if deployment else _file_name(endpoint.model)
    with as_user_input():
        rendering = _rendering(options, endpoint, name)
    return Session(
        deployment=deployment,
        name=name,
        endpoint=endpoint,
        off_endpoint=off_endpoint,
        switch=switch,
        model_control_url=_model_control_url(switching, deployment) if switch is SwitchKind.MODEL_CONTROL else None,
        metrics_url=switching.metrics_url or _metrics_url(deployment, endpoint),
        engines_root=options.engines_root,
        artifact_dir=artifact_dir or Path("artifacts") / name,
        timeout_s=options.timeout,
        rendering=rendering,
        is_own_address=options.url is None,
        notes=tuple(_notes(options, deployment, endpoint, rendering)),
    )


@dataclass(frozen=True, slots=True)
class OpenedArms:
    """The servers of a session, ready to be measured. `notes`: what they said of themselves when they were probed."""

    switch: ArmSwitch
    notes: dict[str, str]


@asynccontextmanager
async def open_arms(session: Session) -> AsyncIterator[OpenedArms]:
    """Connect to the servers of `session` and probe them: transports learn there what the servers take and tell.

    Raises `ServerUnreachableError` where one that should answer does not, and what `probe_transport` raises.
    """
    notes: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(open_transport(session.endpoint, session.timeout_s))
        if session.off_endpoint is None:
            with _advice(is_own=session.is_own_address, option="--url"):
                await _probe(on, notes)
            yield OpenedArms(PerRequestSwitch(on) if session.switch is SwitchKind.PER_REQUEST else AsServed(on), notes)
            return
        off = await stack.enter_async_context(open_transport(session.off_endpoint, session.timeout_s))
        switch: ArmSwitch = TwoEndpoints(off, on, _in_words(session.off_endpoint), _in_words(session.endpoint))
        if session.switch is SwitchKind.MODEL_CONTROL:
            switch = ModelControlSwitch(
                {Arm.OFF: off, Arm.ON: on},
                {Arm.OFF: (session.off_endpoint.model,), Arm.ON: (session.endpoint.model,)},
                session.model_control_url or "",
                metrics_url=session.metrics_url,
            )
        # The off arm last: a run begins with it, and loading a model can take minutes.
        for arm, transport in ((Arm.ON, on), (Arm.OFF, off)):
            is_off_alone = arm is Arm.OFF and session.off_endpoint.url != session.endpoint.url
            option = "--off-url" if is_off_alone else "--url"
            await switch.activate(arm)
            with _advice(is_own=session.is_own_address and not is_off_alone, option=option):
                await _probe(transport, notes, arm)
        yield OpenedArms(switch, notes)


async def _probe(transport: OpenedTransport, notes: dict[str, str], arm: Arm | None = None) -> None:
    await require_model(transport)
    report = await probe_transport(transport)
    suffix = "" if arm is None else f", {arm}"
    notes[f"server{suffix}"] = report.server
    if report.notes:
        notes[f"probe{suffix}"] = "; ".join(report.notes)


async def require_model(transport: OpenedTransport) -> None:
    """Raise `ServerUnreachableError` unless the model that `transport` asks is there and ready."""
    if await transport.is_ready():
        return
    if isinstance(transport, GrpcTransport | HttpTransport):
        with suppress(RequestRefusedError):
            await transport.read_interface()  # of a model that it does not know the server says so
    raise ServerUnreachableError(
        f"the server at {transport.url} is up but its model {transport.endpoint.model} is not ready. Check its "
        "name, wait for it, or read why in the server's log (`make status` prints its path)"
    )


@asynccontextmanager
async def open_endpoint(session: Session) -> AsyncIterator[OpenedTransport]:
    """The one server of a command that compares nothing, its model ready. Raises `ServerUnreachableError`."""
    async with open_transport(session.endpoint, session.timeout_s) as transport:
        with _advice(is_own=session.is_own_address, option="--url"):
            await require_model(transport)
        yield transport


@contextmanager
def _advice(*, is_own: bool, option: str) -> Iterator[None]:
    """While connecting: what to do where nobody answers. Only a server of ours at its own address can be started."""
    try:
        yield
    except NobodyAnswersError as error:
        remedy = f"Is it running? {option} gives another address"
        if is_own:
            remedy = f"Start it with `make serve`, or give its address with {option}"
        raise NobodyAnswersError(f"{error}. {remedy}") from error


def _is_foreign(options: EndpointOptions) -> bool:
    """Whether the options name an endpoint that no deployment of ours describes."""
    is_openai = (options.endpoint_type or "").removeprefix("openai-") in ("chat", "completions")
    return options.deployment is None and (options.model is not None or is_openai)


def _endpoint(
    options: EndpointOptions, deployment: LoadedDeployment | None, url: str | None, model: str | None
) -> Endpoint:
    if url is None and deployment is None:
        raise RequestError("--url", "is missing", "Give the address of the endpoint, or --deployment")
    if url is None and deployment is not None:
        serving = deployment.config.serving
        is_http = options.endpoint_type == EndpointKind.TRITON_HTTP
        url = f"http://{serving.host}:{serving.http_port}" if is_http else f"{serving.host}:{serving.grpc_port}"
    return parse_endpoint(
        url or "",
        options.endpoint_type,
        model=model,
        headers=options.header or (),
        tls=Tls(options.tls_ca, options.tls_cert, options.tls_key, verify=not options.tls_no_verify),
    )


def _off_endpoint(
    options: EndpointOptions, switching: SwitchOptions, deployment: LoadedDeployment | None, on: Endpoint
) -> Endpoint:
    """Where the off arm is. Raises `RequestError` where it speaks another protocol: their costs would be compared."""
    try:
        off = _endpoint(options, deployment, switching.off_url or options.url, switching.off_model or options.model)
    except ConfigError as error:
        if switching.off_url is None:
            raise
        named = [
            Violation("--off-url" if found.file == "--url" else found.file, found.key, found.reason, found.remedy)
            for found in error.violations
        ]
        raise ConfigError(named) from error
    if off.kind is not on.kind:
        reason = f"{off.url} is {off.kind}, but {on.url} is {on.kind}: two protocols are no comparison"
        raise RequestError("--off-url", reason, "Give both addresses of one kind, or say it with --endpoint-type")
    return off


def _chosen_switch(options: SwitchOptions, endpoint: Endpoint) -> SwitchKind:
    """What was asked for, or what the other options make possible. Raises `ConfigError` for what contradicts itself."""
    has_off = options.off_url is not None or options.off_model is not None
    problems = OptionProblems()
    switch = options.switch
    if switch is None:
        if has_off:
            switch = SwitchKind.ENDPOINTS
        else:
            switch = SwitchKind.NONE if endpoint.kind.is_openai else SwitchKind.PER_REQUEST
    if switch is SwitchKind.PER_REQUEST and endpoint.kind.is_openai:
        remedy = "Name a server or model without speculation with --off-url or --off-model, or use --switch none"
        problems.add("--switch", "OpenAI's calls have no field that turns speculation off", remedy)
    if switch in (SwitchKind.PER_REQUEST, SwitchKind.NONE) and has_off:
        problems.add("--switch", f"{switch} asks no second server or model", "Leave out --off-url and --off-model")
    if switch is SwitchKind.ENDPOINTS and not has_off:
        problems.add("--switch", "endpoints needs a second one", "Give --off-url, --off-model or both")
    if switch is SwitchKind.MODEL_CONTROL and options.off_model is None:
        problems.add("--switch", "model-control needs the model without speculation", "Give --off-model")
    if switch is SwitchKind.MODEL_CONTROL and endpoint.kind.is_openai:
        problems.add("--switch", "only Triton server loads and unloads models", "Use --endpoint-type triton-grpc")
    problems.raise_if_any()
    return switch


def _model_control_url(options: SwitchOptions, deployment: LoadedDeployment | None) -> str:
    if options.model_control_url is not None:
        return options.model_control_url
    if deployment is None:
        remedy = "Give the address of Triton server's HTTP service, http://host:8000"
        raise RequestError("--model-control-url", "is missing", remedy)
    serving = deployment.config.serving
    return f"http://{serving.host}:{serving.http_port}"


def _metrics_url(deployment: LoadedDeployment | None, endpoint: Endpoint) -> str | None:
    """The page of the server at `endpoint`: on its host, at the port that belongs to its own port in the config or in
    Triton's defaults. None for any other port: the page of another server there would name another build.
    """
    parts = urlsplit(endpoint.base_url)
    if endpoint.kind.is_openai:
        return f"{parts.scheme}://{parts.netloc}/metrics"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    ports = {_TRITON_PORTS[endpoint.kind]: _METRICS_PORT}
    if deployment is not None:
        serving = deployment.config.serving
        is_http = endpoint.kind is EndpointKind.TRITON_HTTP
        ports = {serving.http_port if is_http else serving.grpc_port: serving.metrics_port}
    port = ports.get(endpoint.address[1])
    return None if port is None else f"http://{host}:{port}/metrics"


def _rendering(options: EndpointOptions, endpoint: Endpoint, name: str) -> Rendering:
    """Template and tokenizer: those named, else the current build's."""
    if options.raw and options.chat_template is not None:
        raise RequestError("--raw", "contradicts --chat-template", "Give one of them")
    template = None
    if options.chat_template is not None:
        template = load_chat_template(options.chat_template)
    elif not options.raw:
        template = find_chat_template(name, options.engines_root)
    counter = find_token_counter(name, options.engines_root)
    return Rendering(template, counter, endpoint.kind is EndpointKind.OPENAI_CHAT)


def _notes(
    options: EndpointOptions, deployment: LoadedDeployment | None, endpoint: Endpoint, rendering: Rendering
) -> Iterator[str]:
    """What is done otherwise than a user may expect."""
    if deployment is None and not endpoint.kind.is_openai:
        yield (
            f"--model {endpoint.model} without --deployment: measured as another product's, without a plan and prompts "
            f"of ours. For a server of ours name its --deployment"
        )
    # It lowers acceptance and quality.
    if rendering.template is None and not options.raw and endpoint.kind is not EndpointKind.OPENAI_CHAT:
        if deployment is None:
            yield f"no chat template known for {endpoint.model}: prompts are sent raw"
        else:
            yield f"no chat template in the current build of {deployment.config.name}: prompts are sent raw"


def _in_words(endpoint: Endpoint) -> str:
    return f"{endpoint.model} at {endpoint.url}"


def _file_name(model: str) -> str:
    """A model's name as a folder: hub ids hold a slash."""
    return model.replace("/", "--")
