"""The types spoken between stages and processes. Each is also a JSON file, so that any stage can be rerun alone.

    DeploymentConfig -> DeploymentPlan -> EngineManifest -> CurrentBuild -> RepositoryManifest
      -> (Triton serves) -> what run_contract.py holds: RequestRecord* -> RunSummary, IntegrityReport -> Verdict

All models are frozen and refuse unknown keys.
"""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt

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
