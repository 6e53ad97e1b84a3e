"""The types spoken between stages and processes. Each is also a JSON file, so that any stage can be rerun alone.

    DeploymentConfig -> DeploymentPlan -> EngineManifest -> CurrentBuild -> RepositoryManifest
      -> (Triton serves) -> RequestRecord* -> RunSummary, IntegrityReport -> Verdict -> report.html

All models are frozen and refuse unknown keys. Durations in records are integer nanoseconds; summaries carry
milliseconds because people read them. `None` means "not measurable", never zero.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

OTHER_SEGMENT = "other"  # label of requests whose segment the deployment does not know (bounds metric cardinality)


class ContractModel(BaseModel):
    """Frozen, unknown-key-refusing base of every type that crosses a process or file boundary."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Method(StrEnum):
    """Drafting methods, one spelling everywhere."""

    DRAFT_MODEL = "draft_model"
    NGRAM = "ngram"
    SUFFIX = "suffix"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    MEDUSA = "medusa"
    MTP = "mtp"
    REDRAFTER = "redrafter"
    LOOKAHEAD = "lookahead"
    LAYER_SKIP = "layer_skip"
    AUTO = "auto"


class Lane(StrEnum):
    """How an engine is made and run."""

    TRTLLM_ENGINE = "trtllm_engine"
    TRTLLM_LLMAPI = "trtllm_llmapi"
    TORCH = "torch"


class Dtype(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class ConstrainedPolicy(StrEnum):
    """Whether requests with guided decoding are drafted for: never, only where a canary server is asked to, or as all
    others, which a server does only for a build with a passed integrity report (docs/design.md section 3)."""

    OFF = "off"
    CANARY = "canary"
    ON = "on"


# The single source of refusals: a (lane, method) pair is either here or refused with the reason below.
SUPPORTED: frozenset[tuple[Lane, Method]] = frozenset(
    {
        (Lane.TORCH, Method.NGRAM),
        (Lane.TORCH, Method.SUFFIX),
        (Lane.TORCH, Method.DRAFT_MODEL),
        (Lane.TORCH, Method.EAGLE),
        (Lane.TORCH, Method.EAGLE3),
        (Lane.TORCH, Method.MEDUSA),
        (Lane.TORCH, Method.MTP),
        (Lane.TORCH, Method.LAYER_SKIP),
        (Lane.TORCH, Method.AUTO),
        (Lane.TRTLLM_ENGINE, Method.DRAFT_MODEL),
        (Lane.TRTLLM_ENGINE, Method.MEDUSA),
        (Lane.TRTLLM_ENGINE, Method.EAGLE),
        (Lane.TRTLLM_ENGINE, Method.REDRAFTER),
        (Lane.TRTLLM_ENGINE, Method.LOOKAHEAD),
        (Lane.TRTLLM_LLMAPI, Method.EAGLE3),
        (Lane.TRTLLM_LLMAPI, Method.DRAFT_MODEL),
        (Lane.TRTLLM_LLMAPI, Method.NGRAM),
        (Lane.TRTLLM_LLMAPI, Method.MTP),
    }
)

# Methods whose draft is a checkpoint of its own; the others draft from the text or from the target.
METHODS_WITH_DRAFT: frozenset[Method] = frozenset(
    {Method.DRAFT_MODEL, Method.EAGLE, Method.EAGLE3, Method.MEDUSA, Method.REDRAFTER, Method.AUTO}
)


def unsupported_reason(lane: Lane, method: Method) -> str | None:
    """Why `lane` does not serve `method`, or None when it does."""
    if (lane, method) in SUPPORTED:
        return None
    usable = sorted(str(m) for (supported_lane, m) in SUPPORTED if supported_lane is lane)
    return f"lane {lane} has no method {method} (lane {lane} serves {', '.join(usable)})"


# --- DeploymentPlan: what was decided -------------------------------------------------------------------------------


class DraftLenRange(ContractModel):
    """K for a range of in-flight requests, both ends inclusive; `max_in_flight` None means unbounded."""

    min_in_flight: PositiveInt
    max_in_flight: PositiveInt | None
    draft_len: NonNegativeInt


class SegmentPlan(ContractModel):
    """K by load for one traffic segment. `off_reason` says why wherever K is 0."""

    segment: str
    ranges: tuple[DraftLenRange, ...]
    off_reason: str | None = None

    def draft_len(self, in_flight: int) -> int:
        """K at `in_flight` concurrent requests (>= 1); 0 outside every range."""
        for entry in self.ranges:
            if entry.min_in_flight <= in_flight and (entry.max_in_flight is None or in_flight <= entry.max_in_flight):
                return entry.draft_len
        return 0


class DeploymentPlan(ContractModel):
    """Per segment: how many tokens to draft at which load, and why not. Version 1."""

    schema_version: Literal[1] = 1
    deployment: str
    source: Literal["config", "planner"]
    method: Method
    max_draft_len: NonNegativeInt
    constrained: ConstrainedPolicy = ConstrainedPolicy.OFF
    segments: tuple[SegmentPlan, ...]
    default: SegmentPlan

    def segment(self, name: str) -> SegmentPlan:
        """The plan of segment `name`, or the default for a name the deployment does not know."""
        return next((plan for plan in self.segments if plan.segment == name), self.default)


# --- What was built -------------------------------------------------------------------------------------------------


class FileDigest(ContractModel):
    """One file of a build: path relative to the build folder, SHA-256 in hex, size in bytes."""

    path: str
    sha256: str
    num_bytes: NonNegativeInt


class CheckpointSource(ContractModel):
    """Where a checkpoint came from. `digest` is the SHA-256 over its weight and tokenizer files."""

    role: Literal["target", "draft"]
    reference: str
    digest: str
    folder: str


class BuildCheck(ContractModel):
    """A check that ran during the build and what it saw."""

    name: str
    detail: str


class EngineModel(StrEnum):
    """Engines (or LLM instances) of a TensorRT-LLM build; in the engine lane also names of Triton models."""

    TARGET = "target"
    DRAFT = "draft"
    TARGET_PLAIN = "target_plain"


class EngineRecord(ContractModel):
    """One engine of a build: what it was built for, checked again where it is packed and where it is served.

    `folder` is relative to the build. `decoding` is trtllm-build's `--speculative_decoding_mode` or the LLM API's
    `decoding_type`; None = plain. `max_draft_len` counts the tokens one step may verify besides the target's own (of a
    tree: its nodes). `kv_tokens` is what the memory budget gives its key/value cache, None where it was not computed.
    """

    model: EngineModel
    folder: str
    decoding: str | None
    max_draft_len: NonNegativeInt
    max_batch_size: PositiveInt
    max_seq_len: PositiveInt
    max_num_tokens: PositiveInt
    tensor_parallel: PositiveInt = 1
    pipeline_parallel: PositiveInt = 1
    dtype: str
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    kv_tokens: PositiveInt | None = None
    gpu_ids: tuple[NonNegativeInt, ...] = ()


class MemoryLine(ContractModel):
    """One line of a memory budget on one GPU: `formula` is the arithmetic that gives `num_bytes`."""

    subject: str
    formula: str
    num_bytes: int


class MemoryBudget(ContractModel):
    """Memory of the fullest GPU: lines that add up, what is left for key/value caches, and tokens for each engine.

    `kv_bytes_per_token` and `kv_tokens` are per engine and GPU. `num_bytes` is the GPU's memory.
    """

    gpu: str
    num_bytes: PositiveInt
    lines: tuple[MemoryLine, ...]
    kv_bytes: int
    kv_bytes_per_token: dict[EngineModel, NonNegativeInt]
    kv_tokens: dict[EngineModel, NonNegativeInt]
    max_sequences: NonNegativeInt
    max_sequences_without_draft: NonNegativeInt


class EngineManifest(ContractModel):
    """What `engines/<build_id>/manifest.json` says: contents, origin and versions. Immutable once written.

    `engines`, `memory` and `gpu_architecture` (such as sm90) belong to the TensorRT-LLM lanes.

    `pair_digest` changes with target, draft, tokenizer, special ids, chat template, lane or versions: what was proven
    about one pair holds for that digest only. None in a manifest written before it existed.
    """

    schema_version: Literal[1] = 1
    build_id: str
    lane: Lane
    pair_digest: str | None = None
    checkpoints: tuple[CheckpointSource, ...]
    files: tuple[FileDigest, ...]
    versions: dict[str, str]
    checks: tuple[BuildCheck, ...]
    created_at: str
    engines: tuple[EngineRecord, ...] = ()
    memory: MemoryBudget | None = None
    gpu_architecture: str | None = None


class RepositoryManifest(ContractModel):
    """What `make repo` wrote: one entry per file of the model repository.

    `build_id` and `config_digest` (of the YAML file that was built) say what it was packed for. None in lane torch,
    whose repository names no build, and then not written.
    """

    schema_version: Literal[1] = 1
    deployment: str
    build_id: str | None = None
    config_digest: str | None = None
    models: tuple[str, ...]
    files: tuple[FileDigest, ...]


# --- What was measured ----------------------------------------------------------------------------------------------


class Arm(StrEnum):
    """The two sides of every comparison. `floor` is off at another batch mix, the noise floor of bf16 runs."""

    OFF = "off"
    ON = "on"
    FLOOR = "floor"


class MetricName(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


class Percentile(StrEnum):
    P50 = "p50"
    P90 = "p90"
    P99 = "p99"

    @property
    def quantile(self) -> float:
        """0.5, 0.9 or 0.99."""
        return int(self.value[1:]) / 100


class MessageRecord(ContractModel):
    """One streamed message: when it was received (monotonic ns) and the tokens it carried."""

    recv_ns: int
    num_tokens: NonNegativeInt


class RequestRecord(ContractModel):
    """One raw observation of one request. Times are the client's monotonic clock, integer nanoseconds.

    `scheduled_ns` when the request should have been sent, `send_ns` when it was, `end_ns` when the last message
    (or the error) arrived. `error` is None for a request that finished. Counts the server did not report are None.
    """

    request_id: str
    segment: str
    concurrency: PositiveInt
    arm: Arm
    block: NonNegativeInt
    prompt_id: str
    scheduled_ns: int
    send_ns: int
    end_ns: int
    messages: tuple[MessageRecord, ...]
    output_ids: tuple[int, ...]
    text: str
    error: str | None = None
    finish_reason: str | None = None
    input_token_count: int | None = None
    output_token_count: int | None = None
    num_steps: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    speculation: str | None = None


class Percentiles(ContractModel):
    """Milliseconds; a percentile the sample does not support (n < 10 / (1 - q)) is None."""

    p50: float | None
    p90: float | None
    p99: float | None
    num_samples: NonNegativeInt

    def value(self, percentile: Percentile) -> float | None:
        """The value of one percentile, or None where the sample does not support it."""
        return {Percentile.P50: self.p50, Percentile.P90: self.p90, Percentile.P99: self.p99}[percentile]


class Acceptance(ContractModel):
    """Acceptance over a set of requests. Rates are None before the first draft, never 0/0."""

    num_steps: NonNegativeInt
    num_draft_tokens: NonNegativeInt
    num_accepted_tokens: NonNegativeInt
    acceptance_rate: float | None
    mean_acceptance_length: float | None


class CellSummary(ContractModel):
    """One arm of one (segment, concurrency) cell."""

    segment: str
    concurrency: PositiveInt
    arm: Arm
    num_requests: NonNegativeInt
    num_errors: NonNegativeInt
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles
    tokens_per_message: float | None
    output_throughput: float | None
    acceptance: Acceptance | None


class Comparison(ContractModel):
    """on/off ratio of medians for one metric of one cell, with a paired bootstrap interval. Below 1 is faster."""

    segment: str
    concurrency: PositiveInt
    metric: MetricName
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    confidence: float
    num_pairs: NonNegativeInt
    void_reasons: tuple[str, ...] = ()

    @property
    def outcome(self) -> Literal["faster", "slower", "undecided", "void"]:
        """What the interval says of speculation in this cell."""
        if self.void_reasons or self.ci_low is None or self.ci_high is None:
            return "void"
        if self.ci_high < 1.0:
            return "faster"
        return "slower" if self.ci_low > 1.0 else "undecided"


class Slo(ContractModel):
    """A latency objective of one segment at the expected concurrency."""

    segment: str
    metric: MetricName
    percentile: Percentile
    max_ms: PositiveFloat


class PlannedDraftLen(ContractModel):
    """K the plan gives a segment at the expected concurrency (0 = off, with its reason)."""

    segment: str
    draft_len: NonNegativeInt
    off_reason: str | None = None


class RunSummary(ContractModel):
    """Everything one `bench` run saw; `gate` and `report` need nothing else of it.

    `effective_concurrency` is how many requests of full length the server decodes at once and `concurrency_limit` what
    bounds it (rows, engine batch, key/value memory); None where the server does not say.
    """

    schema_version: Literal[1] = 1
    deployment: str
    build_id: str | None
    lane: str | None
    method: str | None
    max_draft_len: int | None
    dtype: str | None
    server_threads: int | None
    budget: str
    random_seed: int
    started_at: str
    duration_s: float
    expected_concurrency: PositiveInt
    slos: tuple[Slo, ...]
    planned: tuple[PlannedDraftLen, ...]
    cells: tuple[CellSummary, ...]
    comparisons: tuple[Comparison, ...]
    environment: dict[str, str]
    effective_concurrency: PositiveInt | None = None
    concurrency_limit: str | None = None

    def is_queued(self, concurrency: int) -> bool:
        """Whether `concurrency` requests cannot run at once on this server: its latencies then contain a queue."""
        return self.effective_concurrency is not None and concurrency > self.effective_concurrency


class Status(StrEnum):
    """Outcome of a check, a finding or a whole verdict."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class IntegrityCheck(ContractModel):
    """One question about outputs and its answer."""

    name: str
    status: Status
    detail: str
    num_compared: NonNegativeInt = 0
    num_different: NonNegativeInt = 0


class IntegrityReport(ContractModel):
    """Did speculation change anything but the time? `status` is the worst of the checks."""

    schema_version: Literal[1] = 1
    deployment: str
    build_id: str | None
    dtype: str | None
    created_at: str
    status: Status
    checks: tuple[IntegrityCheck, ...]


class GateConfig(ContractModel):
    """What a deployment must show before it may take traffic (`configs/gates/*.yaml`)."""

    schema_version: Literal[1] = 1
    name: str
    require_integrity: bool = True
    decide_metric: MetricName = MetricName.E2E
    max_ratio: Annotated[float, Field(gt=0)] = 1.0
    require_slos: bool = True
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.0


class GateFinding(ContractModel):
    """One line of a verdict."""

    subject: str
    status: Status
    detail: str


class SegmentDecision(ContractModel):
    """What the measurement says about speculation for one segment at the expected concurrency."""

    segment: str
    concurrency: PositiveInt
    action: Literal["speculate", "switch off", "measure more"]
    detail: str


class Verdict(ContractModel):
    """The gate's answer. Pure function of RunSummary, IntegrityReport and GateConfig."""

    schema_version: Literal[1] = 1
    deployment: str
    status: Status
    findings: tuple[GateFinding, ...]
    decisions: tuple[SegmentDecision, ...]
