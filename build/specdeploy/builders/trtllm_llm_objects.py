"""What an LLM API deployment loads: its LLM objects, their memory, and how one is recorded."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdeploy.builders.engine_memory import describe_misfit
from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.schema import DeploymentConfig, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import EngineModel, EngineRecord, MemoryBudget
from specdeploy.errors import Violation
from specdeploy.planner.hardware import HARDWARE
from specdeploy.planner.loaded_models import is_draft_pair, loaded_models
from specdeploy.planner.memory import budget_memory


@dataclass(frozen=True, slots=True)
class DeploymentParts:
    """A deployment of the LLM API lane, its section, and the facts of its checkpoints as far as they are known."""

    config: DeploymentConfig
    section: TensorRtLlmConfig
    target: CheckpointInfo | None
    draft: CheckpointInfo | None

    @property
    def has_draft(self) -> bool:
        """Whether the method drafts with weights of their own."""
        return self.config.speculation.draft is not None

    @property
    def instances(self) -> tuple[EngineModel, ...]:
        """The LLM objects of one server."""
        if self.section.plain_instance is PlainInstance.BESIDE:
            return (EngineModel.TARGET, EngineModel.TARGET_PLAIN)
        return (EngineModel.TARGET,)

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """GPUs of one node; every node has the same."""
        return tuple(range(self.section.num_gpus // self.section.num_nodes))


def budget_llm_objects(parts: DeploymentParts) -> MemoryBudget | None:
    """Memory of the fullest GPU with everything loaded that serves at the same time; None where facts are missing.

    The draft of an LLM object shares its GPUs and holds the same tokens, and both instances get the same number of
    tokens. Raises `CheckpointError` when the files do not say what a formula needs.
    """
    if parts.target is None or (parts.has_draft and parts.draft is None):
        return None
    return budget_memory(
        HARDWARE[parts.section.gpu],
        loaded_models(parts.config, parts.section, parts.target, parts.draft),
        kv_cache_fraction=parts.section.kv_cache_fraction,
        max_num_tokens=parts.section.max_num_tokens,
        max_seq_len=parts.config.serving.max_seq_len,
        max_rows=parts.config.serving.max_rows,
        is_draft_pair=is_draft_pair(parts.config, parts.draft),
        max_draft_tokens=parts.config.speculation.max_draft_len,
    )


def find_misfits(parts: DeploymentParts, budget: MemoryBudget, file: str) -> list[Violation]:
    """Why the deployment does not fit its GPUs, with the arithmetic; empty when one full-length request fits."""
    longest = parts.config.serving.max_seq_len
    if budget.kv_bytes > 0 and budget.max_sequences >= 1:
        return []
    first = ["write tensorrt_llm.plain_instance: swap"] if len(parts.instances) > 1 else []
    return [describe_misfit(parts.section, budget, longest, file, first=first)]


def kv_tokens_of(budget: MemoryBudget | None, instance: EngineModel) -> int | None:
    """Tokens of the key/value cache of one LLM object, None where memory was not counted."""
    return None if budget is None else budget.kv_tokens[instance]


def record_instance(
    parts: DeploymentParts, instance: EngineModel, arguments: Mapping[str, object], kv_tokens: int | None
) -> EngineRecord:
    """What the manifest says of one LLM object; `decoding` is the decoding_type that was written, None = plain."""
    speculative = arguments.get("speculative_config")
    decoding = str(speculative["decoding_type"]) if isinstance(speculative, Mapping) else None
    quantized = parts.target.quantization if parts.target is not None else None
    return EngineRecord(
        model=instance,
        folder="target",
        decoding=decoding,
        max_draft_len=0 if decoding is None else parts.config.speculation.max_draft_len,
        max_batch_size=parts.config.serving.max_rows,
        max_seq_len=parts.config.serving.max_seq_len,
        max_num_tokens=parts.section.max_num_tokens,
        tensor_parallel=parts.section.tensor_parallel,
        pipeline_parallel=parts.section.pipeline_parallel,
        dtype=str(parts.config.dtype),
        quantization=None if quantized is None else quantized.method,
        kv_cache_dtype=parts.section.kv_cache_dtype,
        kv_tokens=kv_tokens,
        gpu_ids=parts.gpu_ids,
    )
