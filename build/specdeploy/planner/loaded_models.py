"""Which models lie in memory in each TensorRT-LLM lane and method: the one account that plans and builds share.

engine lane    target, and with method draft_model the draft as an engine of its own, on `draft_tensor_parallel` of
               the target's GPUs; a head lies inside the target's engine, and `plain_instance: beside` adds an engine
               without it
LLM API lane   an LLM object with its draft or head on the same GPUs; `plain_instance: beside` adds an object
               without it. The module of mtp is part of the target's checkpoint
"""

from dataclasses import replace

from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.schema import DeploymentConfig, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import Dtype, EngineModel, Lane, Method
from specdeploy.planner.model_memory import LoadedModel
from specdeploy.planner.weight_bytes import MTP, estimate_weight_bytes
from specdeploy.trtllm.parallel_rules import engine_step_tokens, tokens_per_step
from specdeploy.trtllm.rule import METHODS_WITH_HEAD

_NARROW = ("fp8", "int8")


def loaded_models(
    config: DeploymentConfig, section: TensorRtLlmConfig, target: CheckpointInfo, draft: CheckpointInfo | None
) -> list[LoadedModel]:
    """Everything that is loaded at the same time, ranks from 0: every node holds the same."""
    return [_loaded(config, section, model, target, draft) for model in _names(config, section, draft)]


def plain_target(config: DeploymentConfig, section: TensorRtLlmConfig, target: CheckpointInfo) -> LoadedModel:
    """The target as a deployment without speculation would load it."""
    return replace(_loaded(config, section, EngineModel.TARGET_PLAIN, target, None), model=EngineModel.TARGET)


def is_draft_pair(config: DeploymentConfig, draft: CheckpointInfo | None) -> bool:
    """Whether target and draft cache the same tokens, each in a cache of its own."""
    if config.lane is Lane.TRTLLM_ENGINE:
        return config.speculation.method is Method.DRAFT_MODEL
    return draft is not None


def verified_tokens(config: DeploymentConfig) -> int:
    """Draft tokens that one step may verify per request: K of a chain, the nodes of a tree."""
    if config.lane is Lane.TRTLLM_ENGINE:
        return tokens_per_step(config.speculation)
    return config.speculation.max_draft_len


def step_tokens(config: DeploymentConfig, section: TensorRtLlmConfig) -> int:
    """Tokens of the largest step, as the engines are built for."""
    if config.lane is not Lane.TRTLLM_ENGINE:
        return section.max_num_tokens
    serving = config.serving
    sizes = (section.max_num_tokens, serving.max_rows, serving.max_seq_len)
    return max(engine_step_tokens(*sizes, draft_len) for draft_len in (0, verified_tokens(config)))


def kv_element_bytes(
    config: DeploymentConfig, section: TensorRtLlmConfig, model: EngineModel, info: CheckpointInfo
) -> float:
    """1 for a cache in fp8, asked for or the checkpoint's own; else the width of the arithmetic.

    The engine lane asks for it only where it quantises the weights itself.
    """
    full = 4.0 if config.dtype is Dtype.FLOAT32 else 2.0
    stored = (info.quantization.kv_cache_dtype if info.quantization is not None else None) or ""
    if config.lane is Lane.TRTLLM_ENGINE:
        is_converted = model is not EngineModel.DRAFT and section.quantization == "fp8"
        is_fp8 = section.kv_cache_dtype == "fp8" if is_converted else stored.lower() == "fp8"
        return 1.0 if is_fp8 else full
    return 1.0 if section.kv_cache_dtype == "fp8" or stored.lower() in _NARROW else full


def _names(
    config: DeploymentConfig, section: TensorRtLlmConfig, draft: CheckpointInfo | None
) -> tuple[EngineModel, ...]:
    is_engine, method = config.lane is Lane.TRTLLM_ENGINE, config.speculation.method
    has_draft = method is Method.DRAFT_MODEL if is_engine else draft is not None
    has_plain = section.plain_instance is PlainInstance.BESIDE and (not is_engine or method in METHODS_WITH_HEAD)
    return (
        EngineModel.TARGET,
        *((EngineModel.DRAFT,) if has_draft else ()),
        *((EngineModel.TARGET_PLAIN,) if has_plain else ()),
    )


def _loaded(
    config: DeploymentConfig,
    section: TensorRtLlmConfig,
    model: EngineModel,
    target: CheckpointInfo,
    draft: CheckpointInfo | None,
) -> LoadedModel:
    is_engine, is_draft = config.lane is Lane.TRTLLM_ENGINE, model is EngineModel.DRAFT
    info = draft if is_draft and draft is not None else target
    tensor, pipeline = section.tensor_parallel, section.pipeline_parallel
    if is_engine and is_draft:
        tensor, pipeline = section.draft_tensor_parallel or tensor, 1
    is_converted = is_engine and not is_draft and section.quantization == "fp8"
    loaded = LoadedModel(
        model=model,
        info=info,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        gpu_ids=(),
        weight_bytes_override=estimate_weight_bytes(info, config.dtype, is_fp8_quantized=is_converted),
        kv_element_bytes=kv_element_bytes(config, section, model, info),
        shards_embedding=not is_engine,  # the converters do so with --use_parallel_embedding, which is not written
    )
    if model is not EngineModel.TARGET:
        return loaded
    if is_engine and draft is not None and config.speculation.method in METHODS_WITH_HEAD:
        return _with_head(loaded, config, draft)
    return _with_mtp(loaded, config) if config.speculation.method is Method.MTP else loaded


def _with_head(loaded: LoadedModel, config: DeploymentConfig, head: CheckpointInfo) -> LoadedModel:
    """A head lies in the target's engine: its weights are added, and each EAGLE layer caches like one of the target's
    (assumed: the converter's config does not say how wide its cache is, and the layer has the target's shapes)."""
    weights = loaded.weight_bytes_override
    head_bytes = head.num_bytes or estimate_weight_bytes(head, config.dtype, is_fp8_quantized=False)
    if weights is not None and head_bytes is not None:
        loaded = replace(loaded, weight_bytes_override=weights + head_bytes)
    if config.speculation.method is Method.EAGLE:
        loaded = _with_layers(loaded, config.speculation.eagle.num_layers)
    return loaded


def _with_mtp(loaded: LoadedModel, config: DeploymentConfig) -> LoadedModel:
    """The modules' weights, where they were not counted with a quantised checkpoint's, and the cache of K layers.

    `get_num_spec_layers` gives `num_nextn_predict_layers`, which is K, whatever the checkpoint has
    (NVIDIA/TensorRT-LLM tensorrt_llm/_torch/speculative/utils.py up to 1.2.1; later one where a module is reused).
    """
    info, weights = loaded.info, loaded.weight_bytes_override
    if weights is not None and info.quantization is None:
        element_bytes = 4 if config.dtype is Dtype.FLOAT32 else 2
        weights += info.left_out_parameters.get(MTP, 0) * element_bytes
    return _with_layers(replace(loaded, weight_bytes_override=weights), config.speculation.max_draft_len)


def _with_layers(loaded: LoadedModel, more: int) -> LoadedModel:
    """The cache of `more` layers like those of the model."""
    layers = loaded.info.num_layers
    if not layers:
        return loaded
    return replace(loaded, kv_element_bytes=loaded.kv_element_bytes * (layers + more) / layers)
