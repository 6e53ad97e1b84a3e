"""Memory of the engines of a deployment: weights with their heads, caches, and whether one request fits at all."""

from collections.abc import Sequence
from dataclasses import replace

from specdeploy.builders.engine_records import EngineInputs, is_quantized_here
from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.schema import Gpu, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import Dtype, EngineModel, EngineRecord, MemoryBudget, Method
from specdeploy.errors import CheckpointError, Violation
from specdeploy.planner.hardware import HARDWARE
from specdeploy.planner.memory import LoadedModel, budget_memory, describe_budget, estimate_weight_bytes
from specdeploy.trtllm.rule import METHODS_WITH_HEAD
from specdeploy.units import format_bytes


def plan_memory(inputs: EngineInputs, engines: tuple[EngineRecord, ...]) -> MemoryBudget | None:
    """The budget of all engines on one GPU; None where a checkpoint is not on this machine.

    Raises `CheckpointError` when the files of a checkpoint do not say what is needed.
    """
    needs_draft = inputs.config.speculation.draft is not None
    if inputs.target is None or (needs_draft and inputs.draft is None):
        return None
    section = inputs.section
    return budget_memory(
        HARDWARE[section.gpu],
        [_loaded_model(inputs, engine) for engine in engines],
        kv_cache_fraction=section.kv_cache_fraction,
        max_num_tokens=max(engine.max_num_tokens for engine in engines),
        max_seq_len=inputs.config.serving.max_seq_len,
        max_rows=inputs.config.serving.max_rows,
        is_draft_pair=inputs.method is Method.DRAFT_MODEL,
        max_draft_tokens=max(engine.max_draft_len for engine in engines),
    )


def find_misfit(inputs: EngineInputs, memory: MemoryBudget, file: str) -> list[Violation]:
    """A violation with every line of the budget where not even one request of full length fits.

    What to do comes first, with the key that has to change; it depends on which lines are too large.
    """
    longest = inputs.config.serving.max_seq_len
    if memory.kv_bytes > 0 and min(memory.kv_tokens.values()) >= longest:
        return []
    swap = []
    if inputs.method in METHODS_WITH_HEAD and inputs.section.plain_instance is PlainInstance.BESIDE:
        swap = ["write plain_instance: swap, which leaves the second engine out"]
    if _may_quantize(inputs):
        swap.append("write tensorrt_llm.quantization: fp8, which halves the weights of the target")
    return [describe_misfit(inputs.section, memory, longest, file, first=swap)]


def describe_misfit(
    section: TensorRtLlmConfig, memory: MemoryBudget, longest: int, file: str, *, first: Sequence[str] = ()
) -> Violation:
    """Why not even one request of `longest` tokens fits, by the lines that are too large: weights, the largest step, or
    the caches. `first` are ways out that this deployment alone has; the arithmetic comes after the remedy."""
    weights = sum(line.num_bytes for line in memory.lines if line.subject.startswith("weights "))
    more_gpus = f"raise tensorrt_llm.tensor_parallel above {section.tensor_parallel}"
    largest = "" if section.gpu is Gpu.H200 else ", or use gpu h200"
    if weights >= memory.num_bytes:
        key = "tensorrt_llm.tensor_parallel"
        reason = f"the weights of one GPU, {format_bytes(weights)}, are more than its {format_bytes(memory.num_bytes)}"
        ways = [*first, f"{more_gpus}{largest}"]
    elif memory.kv_bytes <= 0:
        key = "tensorrt_llm.max_num_tokens"
        reason = f"weights and a step of {section.max_num_tokens} tokens leave no room for keys and values"
        ways = [*first, "lower tensorrt_llm.max_num_tokens or serving.max_rows", f"{more_gpus}{largest}"]
    else:
        key, tokens = "serving.max_seq_len", min(memory.kv_tokens.values())
        reason = f"the caches hold {tokens} tokens, and one request may have {longest}"
        fitting = [f"write at most {tokens}"] if tokens > 0 else []
        ways = [*fitting, "lower serving.max_rows, which sizes a step", *first, f"{more_gpus}{largest}"]
    lines = "".join(f"\n  {line}" for line in describe_budget(memory))
    remedy = ", or ".join(ways)
    return Violation(file, key, reason, f"{remedy[0].upper()}{remedy[1:]}. Counted:{lines}")


def _may_quantize(inputs: EngineInputs) -> bool:
    """Whether the build itself could make fp8 weights: as the rules about quantization have it."""
    if inputs.method in METHODS_WITH_HEAD or inputs.section.quantization == "fp8" or inputs.target is None:
        return False
    return inputs.target.quantization is None and (inputs.section.expert_parallel or 1) == 1


def with_kv_tokens(engines: tuple[EngineRecord, ...], memory: MemoryBudget | None) -> tuple[EngineRecord, ...]:
    """The records with the tokens that the budget gives their caches."""
    if memory is None:
        return engines
    return tuple(
        engine.model_copy(update={"kv_tokens": memory.kv_tokens.get(engine.model) or None}) for engine in engines
    )


def _loaded_model(inputs: EngineInputs, engine: EngineRecord) -> LoadedModel:
    info = inputs.info_of(engine.model)
    if info is None:
        raise CheckpointError(f"the checkpoint of {engine.model} is not on this machine")
    element_bytes = 1.0 if engine.kv_cache_dtype == "fp8" else 4.0 if inputs.dtype is Dtype.FLOAT32 else 2.0
    weights = estimate_weight_bytes(info, inputs.dtype, is_fp8_quantized=is_quantized_here(inputs, engine.model))
    loaded = LoadedModel(
        model=engine.model,
        info=info,
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        gpu_ids=(),  # ranks count from 0 over all nodes; a draft shares the first GPUs of its target
        weight_bytes_override=weights,
        kv_element_bytes=element_bytes,
        shards_embedding=False,  # the converters do so with --use_parallel_embedding only, which is not written
    )
    if engine.model is not EngineModel.TARGET or inputs.method not in METHODS_WITH_HEAD or inputs.draft is None:
        return loaded
    return _with_head(loaded, inputs, info, inputs.draft)


def _with_head(loaded: LoadedModel, inputs: EngineInputs, info: CheckpointInfo, head: CheckpointInfo) -> LoadedModel:
    """A head lies in the target's engine: its weights are added, and each EAGLE layer caches like one of the target's
    (assumed: the converter's config does not say how wide its cache is, and the layer has the target's shapes)."""
    weights = loaded.weight_bytes_override
    if weights is not None and head.num_bytes is not None:
        loaded = replace(loaded, weight_bytes_override=weights + head.num_bytes)
    if inputs.method is Method.EAGLE and info.num_layers:
        layers = info.num_layers + inputs.config.speculation.eagle.num_layers
        element_bytes = loaded.kv_element_bytes * layers / info.num_layers
        loaded = replace(loaded, kv_element_bytes=element_bytes)
    return loaded
