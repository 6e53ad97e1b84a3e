"""What the commands of `specdeploy-client` can be told: groups of options, each a frozen dataclass.

A command takes a group as one parameter; `spread_options` shows its fields to typer as options of their own, so that
an option has one place, whichever commands take it. Names are those of AIPerf and `vllm bench` where they have one.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from specdeploy_client.load.arrivals import ArrivalPattern
from specdeploy_client.load.cell import MAX_IN_FLIGHT
from specdeploy_client.transports.endpoint import EndpointKind
from specdeploy_client.workloads.base import BLOCK_TOKENS
from specdeploy_client.workloads.corpus import TextKind
from specdeploy_client.workloads.recorded import UnfitPolicy

_METAVARS: tuple[tuple[type, str], ...] = ((StrEnum, "NAME"), (Path, "PATH"), (int, "N"), (float, "X"))
DEFAULT_DEPLOYMENT = "demo"
DEFAULT_ENGINES = Path("engines")
DEFAULT_GATE = Path("configs/gates/default.yaml")


class SwitchKind(StrEnum):
    """How speculation is turned off for one arm. `none`: only the server as it is, nothing to compare with."""

    PER_REQUEST = "per-request"
    ENDPOINTS = "endpoints"
    MODEL_CONTROL = "model-control"
    NONE = "none"


class UiKind(StrEnum):
    """What is shown while measuring."""

    DASHBOARD = "dashboard"
    SIMPLE = "simple"
    NONE = "none"


Deployment = Annotated[str, typer.Option(help="Name in configs/deployments, or the path of a YAML file.")]
EnginesRoot = Annotated[Path, typer.Option(help="Where builds and integrity reports live.")]
ArtifactDir = Annotated[Path | None, typer.Option(help="Where results go. Default: artifacts/<deployment>.")]
Gate = Annotated[Path, typer.Option("--gate", help="What the deployment must show.")]
Also = Annotated[list[Path] | None, typer.Option(help="Artifact folder of a further run to show in the report.")]


def _server(help_text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Server", **settings)


def _switch(help_text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Comparison", **settings)


def _workload(help_text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Workload", **settings)


def _load(help_text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Load", **settings)


def _warm_up(help_text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Warm-up", **settings)


def _result(help_text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel="Results", **settings)


# No field of `LoadOptions`: `verify` has a budget of its own.
Budget = Annotated[str, _load("How much to measure: quick, full, row.")]
DEFAULT_BUDGET = "quick"


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Which server, and how it is asked."""

    deployment: Annotated[
        str | None,
        _server(
            "Name in configs/deployments, or the path of a YAML file. Default: demo; none for an endpoint of another "
            "product (--endpoint-type openai-..., or --model)."
        ),
    ] = None
    url: Annotated[str | None, _server("Address; host:port or a URL. Default: the config's.", "--url", "-u")] = None
    endpoint_type: Annotated[
        str | None, _server(f"Protocol: {', '.join(EndpointKind)}. Default: by the address, else triton-grpc.")
    ] = None
    model: Annotated[str | None, _server("Model to ask. Default: llm.", "--model", "-m")] = None
    header: Annotated[list[str] | None, _server("'Name: value' sent with every request; may be repeated.")] = None
    tls_ca: Annotated[Path | None, _server("PEM of the authority that signed the server's certificate.")] = None
    tls_cert: Annotated[Path | None, _server("PEM certificate of this client.")] = None
    tls_key: Annotated[Path | None, _server("PEM key of --tls-cert.")] = None
    tls_no_verify: Annotated[bool, _server("Accept any certificate.", "--tls-no-verify")] = False
    timeout: Annotated[float, _server("Seconds for one whole request.", min=0.1)] = 300.0
    engines_root: Annotated[Path, _server("Where builds and integrity reports live.")] = DEFAULT_ENGINES
    chat_template: Annotated[Path | None, _server("A jinja chat template. Default: the build's.")] = None
    raw: Annotated[bool, _server("Send prompts without a chat template.", "--raw")] = False


@dataclass(frozen=True, slots=True)
class SwitchOptions:
    """How speculation is turned off for one arm, and where counters are read."""

    switch: Annotated[SwitchKind | None, _switch("How speculation is turned off. Default: by what else is given.")] = (
        None
    )
    off_url: Annotated[str | None, _switch("Address of a server without speculation.")] = None
    off_model: Annotated[str | None, _switch("Model without speculation.")] = None
    model_control_url: Annotated[
        str | None, _switch("HTTP address that loads and unloads models. Default: the config's.")
    ] = None
    metrics_url: Annotated[
        str | None, _switch("Metrics page of the server at --url. Default: where the config has it.")
    ] = None


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """What is asked. Without any: the prompt files of the deployment."""

    segments: Annotated[str, _workload("Comma-separated segments. Default: the budget's.")] = ""
    max_tokens: Annotated[int | None, _workload("Output tokens per request. Default: the segment's.", min=1)] = None
    ignore_eos: Annotated[bool, _workload("Answers go on to their limit.", "--ignore-eos")] = False
    input_file: Annotated[
        Path | None, _workload("Prompts: JSONL with id, prompt and optional segment, max_tokens, constraint, turns.")
    ] = None
    isl: Annotated[int | None, _workload("Input tokens of synthetic prompts, exactly.", min=1)] = None
    isl_stddev: Annotated[float, _workload("Spread of --isl.", min=0)] = 0.0
    osl: Annotated[int | None, _workload("Output tokens of synthetic prompts.", min=1)] = None
    osl_stddev: Annotated[float, _workload("Spread of --osl.", min=0)] = 0.0
    text: Annotated[TextKind, _workload("What synthetic prompts and those of traces are made of.")] = TextKind.PROSE
    trace: Annotated[
        Path | None, _workload("Recorded traffic to replay: Azure CSV, Mooncake or AIPerf JSONL, ShareGPT JSON.")
    ] = None
    trace_speedup: Annotated[float, _workload("Replay this many times as fast.", min=0.001)] = 1.0
    trace_start: Annotated[float, _workload("Seconds of the trace to skip.", min=0)] = 0.0
    trace_duration: Annotated[float | None, _workload("Seconds of the trace to replay.", min=0.001)] = None
    trace_unfit: Annotated[UnfitPolicy, _workload("What becomes of requests that the target cannot take.")] = (
        UnfitPolicy.REFUSE
    )
    trace_block_tokens: Annotated[int, _workload("Tokens that one of a trace's hash_ids stands for.", min=1)] = (
        BLOCK_TOKENS
    )
    tokenizer: Annotated[
        Path | None, _workload("tokenizer.json, or its folder, for exact lengths. Default: the build's.")
    ] = None
    draft_len: Annotated[
        int | None, _workload("K of the on arm where requests carry it. Default: the plan's.", min=1)
    ] = None
    random_seed: Annotated[int, _workload("Chooses prompts, arrivals and resamples.", min=0)] = 0


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How much is asked at once, or per second, and for how long."""

    concurrency: Annotated[
        str, _load("Closed loop: comma-separated levels, for example 1,2,4,8. Default: the budget's.")
    ] = ""
    request_rate: Annotated[
        str, _load("Open loop: requests per second, comma-separated; sent whatever comes back.")
    ] = ""
    arrival_pattern: Annotated[
        ArrivalPattern | None, _load("Gaps between requests of an open loop. Default: poisson; of --trace its own.")
    ] = None
    arrival_smoothness: Annotated[
        float, _load("Shape of --arrival-pattern gamma: 1 is Poisson, above is smoother, below burstier.", min=0.001)
    ] = 1.0
    max_in_flight: Annotated[
        int | None, _load(f"Open loop: requests under way at once, at most. Default: {MAX_IN_FLIGHT}.", min=1)
    ] = None
    request_count: Annotated[int | None, _load("Requests per arm and cell. Default: the budget's.", min=1)] = None
    benchmark_duration: Annotated[float | None, _load("Seconds after which a cell begins no block.", min=0.1)] = None
    warmup_request_count: Annotated[int | None, _warm_up("Per arm and cell. Default: one per worker.", min=1)] = None
    concurrency_ramp_duration: Annotated[float, _warm_up("Seconds of warm-up over which workers start.", min=0)] = 0.0
    request_rate_ramp_duration: Annotated[float, _warm_up("Seconds of warm-up over which the rate rises.", min=0)] = 0.0
    stop_when_decided: Annotated[bool, _load("End a cell as soon as its interval decides.", "--stop-when-decided")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Where results go and what is made of them."""

    artifact_dir: Annotated[Path | None, _result("Where results go. Default: artifacts/<deployment>.")] = None
    goodput: Annotated[str, _result('What a request must meet to be good, in ms: "ttft:200 tpot:30 e2el:4000".')] = ""
    metric_percentiles: Annotated[str, _result("Percentiles whose on/off ratio is compared.")] = "50,99"
    ui: Annotated[UiKind, _result("What is shown while measuring.")] = UiKind.SIMPLE


def _with_short_metavar(annotation: Any) -> Any:
    """`annotation` of an option with a short word for its value: typer's own cut long names off at 80 columns.

    The choices of an enumeration, which that word would hide, go to the help text.
    """
    value_type, *details = get_args(annotation) or (annotation,)
    option = next((detail for detail in details if isinstance(detail, OptionInfo)), None)
    kinds = [kind for kind in (get_args(value_type) or (value_type,)) if kind is not type(None)]
    if option is None or option.metavar is not None or bool in kinds:
        return annotation
    option = copy.copy(option)
    option.metavar = next((metavar for kind, metavar in _METAVARS if issubclass(_origin(kinds[0]), kind)), "TEXT")
    if issubclass(_origin(kinds[0]), StrEnum):
        option.help = f"{option.help} One of {', '.join(kinds[0])}."
    return Annotated[value_type, option]


def _origin(kind: Any) -> type:
    origin: type = get_origin(kind) or kind
    return origin


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` for typer: every parameter that is a dataclass becomes its fields.

    Options without a group stay as they are. Two groups of one command must not share a name.
    """
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        annotation = get_type_hints(command, include_extras=True)[name]
        if not is_dataclass(annotation):
            shown = _with_short_metavar(annotation)
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=shown))
            continue
        groups[name] = annotation
        hints = get_type_hints(annotation, include_extras=True)
        for field in fields(annotation):
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=_with_short_metavar(hints[field.name]),
                )
            )

    def run(**values: Any) -> None:
        grouped = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **grouped)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what inspect and typer read
    return run
