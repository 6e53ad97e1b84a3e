"""Memory of the engines of a deployment: weights with their heads, caches, and whether one request fits at all."""

from dataclasses import replace

from specdeploy.builders.engine_records import EngineInputs, is_quantized_here
from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.schema import PlainInstance
from specdeploy.contract import Dtype, EngineModel, EngineRecord, MemoryBudget, Method
from specdeploy.errors import CheckpointError, Violation
from specdeploy.planner.hardware import HARDWARE
from specdeploy.planner.memory import LoadedModel, budget_memory, describe_budget, estimate_weight_bytes
from specdeploy.trtllm.rule import METHODS_WITH_HEAD


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
    """A violation with every line of the budget where not even one request of full length fits."""
    longest = inputs.config.serving.max_seq_len
    if memory.kv_bytes > 0 and min(memory.kv_tokens.values()) >= longest:
        return []
    ways = ["use more GPUs (tensor_parallel)", "a smaller max_seq_len or max_rows", "a larger GPU"]
    if inputs.method in METHODS_WITH_HEAD and inputs.section.plain_instance is PlainInstance.BESIDE:
        ways.insert(0, "write plain_instance: swap, which leaves the second engine out")
    lines = "".join(f"\n  {line}" for line in describe_budget(memory))
    reason = f"the engines leave no room for the keys and values of one request of {longest} tokens:{lines}\n "
    remedy = f"{ways[0][0].upper()}{ways[0][1:]}, {', '.join(ways[1:-1])}, or {ways[-1]}"
    return [Violation(file, "tensorrt_llm.gpu", reason, remedy)]


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
