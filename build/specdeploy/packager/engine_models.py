"""EngineRecord -> config.pbtxt of one C++ model (`target`, `draft`, `target_plain`) of the engine lane.

Tensors, parameter names and their values are those of the stock model `tensorrt_llm` (trtllm/facts). Every parameter
the deployment needs is written; one left out has the default named in the facts.
"""

from collections.abc import Iterable, Mapping

from specdeploy.config.methods import TreePaths
from specdeploy.config.schema import DeploymentConfig, TensorRtLlmConfig
from specdeploy.contract import EngineModel, EngineRecord, MemoryBudget, Method
from specdeploy.errors import PackagingError
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.pbtxt import InstanceKind, TritonModelConfig, render_pbtxt
from specdeploy.packager.tensors import DataType, Tensor
from specdeploy.trtllm.facts import TritonTensor, triton_model

STOCK_MODEL = "tensorrt_llm"
BACKEND = "tensorrtllm"
ORCHESTRATED_FRACTION = 0.95
# trtllm-build's --speculative_decoding_mode -> the runtime's decoding_mode; draft_tokens_external has none.
DECODING_MODES: Mapping[str, str] = {
    "medusa": "medusa",
    "eagle": "eagle",
    "explicit_draft_tokens": "redrafter",
    "lookahead_decoding": "lookahead",
}
# trtllm-build's mode of the target by method.
BUILD_MODES: Mapping[Method, str] = {
    Method.DRAFT_MODEL: "draft_tokens_external",
    Method.MEDUSA: "medusa",
    Method.EAGLE: "eagle",
    Method.REDRAFTER: "explicit_draft_tokens",
    Method.LOOKAHEAD: "lookahead_decoding",
}
# The backend reads these without a default and does not load a model that lacks one; empty = unset
# (NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/model_instance_state.cc@0c8de69a).
GUIDED_PARAMETERS = ("guided_decoding_backend", "tokenizer_dir", "xgrammar_tokenizer_info_path")
_TEMPLATE_TYPES = {
    "${logits_datatype}": DataType.FP32,
    "${encoder_input_features_data_type}": DataType.FP16,
    "${prompt_embedding_table_data_type}": DataType.FP16,
}
# The only inputs of a shape of their own that must not be ragged
# (NVIDIA/TensorRT-LLM triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt@0c8de69a).
_NOT_RAGGED = {"mrope_rotary_cos_sin", "mrope_position_deltas"}
VERSION_FOLDER_NOTE = "The engine lies where gpt_model_path of ../config.pbtxt says; Triton asks for this folder.\n"


def engine_models(method: Method, *, has_plain_instance: bool) -> tuple[EngineModel, ...]:
    """The C++ models that `method` needs; a plain one only beside methods that cannot be switched off per request."""
    if method is Method.DRAFT_MODEL:
        return (EngineModel.TARGET, EngineModel.DRAFT)
    if method is not Method.LOOKAHEAD and has_plain_instance:
        return (EngineModel.TARGET, EngineModel.TARGET_PLAIN)
    return (EngineModel.TARGET,)


def is_decoupled(method: Method) -> bool:
    """Drafting rounds call the models one answer at a time; the others stream through a decoupled one."""
    return method is not Method.DRAFT_MODEL


def engine_model_config(config: DeploymentConfig, build: PackagedBuild, record: EngineRecord) -> TritonModelConfig:
    """The Triton model of one engine. Raises `PackagingError` without the section `tensorrt_llm`."""
    facts = triton_model(STOCK_MODEL)
    parameters = _parameters(config, build, record)
    return TritonModelConfig(
        name=record.model.value,
        backend=BACKEND,
        max_batch_size=record.max_batch_size,
        decoupled=is_decoupled(config.speculation.method),
        inputs=tuple(_input(tensor) for tensor in facts.inputs),
        outputs=tuple(_tensor(tensor) for tensor in facts.outputs),
        # The executor inside picks the GPUs by gpu_device_ids; Triton must not place instances on its own.
        instance_kind=InstanceKind.CPU,
        instance_count=1,
        parameters=parameters,
        max_queue_size=0,  # `llm` refuses what is above serving.max_queue before it gets here
        blank_parameters=tuple(key for key in GUIDED_PARAMETERS if key not in parameters),
    )


def render_engine_model(config: DeploymentConfig, build: PackagedBuild, record: EngineRecord) -> dict[str, str]:
    """Files of one C++ model: relative POSIX path -> text."""
    name = record.model.value
    header = "\n".join(
        [
            f"Written by `make repo DEPLOYMENT={config.name}`; change configs/deployments/{config.name}.yaml instead.",
            *_describe_engine(record, build.versions.get("tensorrt_llm", "of an unrecorded version")),
            *_describe_memory(build, record),
        ]
    )
    return {
        f"{name}/config.pbtxt": render_pbtxt(engine_model_config(config, build, record), header),
        f"{name}/1/README": VERSION_FOLDER_NOTE,
    }


# --- tensors --------------------------------------------------------------------------------------------------------


def _input(tensor: TritonTensor) -> Tensor:
    ragged = not tensor.reshape_to_scalar and tensor.name not in _NOT_RAGGED
    return Tensor(
        tensor.name,
        _data_type(tensor),
        tensor.dims,
        optional=tensor.optional,
        reshape_to_scalar=tensor.reshape_to_scalar,
        allow_ragged_batch=ragged,
    )


def _tensor(tensor: TritonTensor) -> Tensor:
    return Tensor(tensor.name, _data_type(tensor), tensor.dims)


def _data_type(tensor: TritonTensor) -> DataType:
    return _TEMPLATE_TYPES.get(tensor.data_type) or DataType(tensor.data_type)


# --- parameters -----------------------------------------------------------------------------------------------------


def _parameters(config: DeploymentConfig, build: PackagedBuild, record: EngineRecord) -> dict[str, str]:
    section = tensorrt_llm_section(config)
    parameters = {
        "max_beam_width": "1",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": build.engine_folder(record),
        "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "kv_cache_free_gpu_mem_fraction": f"{memory_fraction(section, build, record):g}",
        "enable_kv_cache_reuse": _flag(section.kv_cache_reuse),
        # Prompts longer than a step are read in parts; the engines have the paged context attention that needs.
        "enable_chunked_context": _flag(record.max_num_tokens < record.max_seq_len),
        "exclude_input_in_output": "true",
        "normalize_log_probs": "true",
        "cancellation_check_period_ms": "100",
        "stats_check_period_ms": "100",
    }
    if record.kv_tokens is not None:
        parameters["max_tokens_in_paged_kv_cache"] = str(record.kv_tokens)
    if record.gpu_ids:
        parameters["gpu_device_ids"] = ",".join(str(gpu_id) for gpu_id in rank_gpus(section, record))
    if section.num_nodes > 1:
        parameters["num_nodes"] = str(section.num_nodes)
    if record.model is EngineModel.TARGET:
        parameters |= _decoding_parameters(config, record)
    if section.guided_decoding_backend is not None and build.guided_tokenizer_info is not None:
        parameters["guided_decoding_backend"] = section.guided_decoding_backend
        parameters["xgrammar_tokenizer_info_path"] = f"{build.folder}/{build.guided_tokenizer_info}"
    return parameters


def _decoding_parameters(config: DeploymentConfig, record: EngineRecord) -> dict[str, str]:
    mode = DECODING_MODES.get(record.decoding or "")
    if mode is None:
        return {}
    speculation, parameters = config.speculation, {"decoding_mode": mode}
    if mode == "medusa":
        parameters |= _choices("medusa_choices", speculation.medusa)
    if mode == "eagle":
        parameters |= _choices("eagle_choices", speculation.eagle)
    if mode == "lookahead":
        parameters["lookahead_window_size"] = str(speculation.lookahead.window_size)
        parameters["lookahead_ngram_size"] = str(speculation.lookahead.ngram_size)
        parameters["lookahead_verification_set_size"] = str(speculation.lookahead.verification_set_size)
    return parameters


def _choices(key: str, paths: TreePaths) -> dict[str, str]:
    """Tree paths as text in braces; without any the engine takes its own tree, mc_sim_7b_63."""
    if paths.choices is None:
        return {}
    return {key: ", ".join("{" + ", ".join(str(rank) for rank in path) + "}" for path in paths.choices)}


def memory_fraction(section: TensorRtLlmConfig, build: PackagedBuild, record: EngineRecord) -> float:
    """`kv_cache_free_gpu_mem_fraction`: the config's where an engine has its GPUs to itself, else one high cap.

    The runtime applies it to what is free when the engine loads, so two engines on one GPU would get what the order of
    loading gives them. The tokens are what divides the memory. Budgeted caches take f = kv_cache_fraction of the room
    both engines leave; the second to load needs f(1-s) of the 1-fs that the first left it (s = the first's part), which
    is at most f for every s. A cap of f or more therefore binds for neither order, and 0.95 keeps 5% of what is free
    even where the budget was too hopeful. Without tokens the fraction alone would rule: such a build is refused.
    """
    if not build.shares_gpus(record):
        return section.kv_cache_fraction
    return max(ORCHESTRATED_FRACTION, section.kv_cache_fraction)


def rank_gpus(section: TensorRtLlmConfig, record: EngineRecord) -> tuple[int, ...]:
    """GPU of each rank on its own node; ids of one node are repeated for the others."""
    world = record.tensor_parallel * record.pipeline_parallel
    is_one_node = section.num_nodes > 1 and len(record.gpu_ids) * section.num_nodes == world
    return record.gpu_ids * section.num_nodes if is_one_node else record.gpu_ids


def tensorrt_llm_section(config: DeploymentConfig) -> TensorRtLlmConfig:
    """The section that both TensorRT-LLM lanes have. Raises `PackagingError` without it."""
    if config.tensorrt_llm is None:
        raise PackagingError(f"{config.name}: tensorrt_llm: lane {config.lane} needs this section. Add it")
    return config.tensorrt_llm


def _flag(value: bool) -> str:
    return "true" if value else "false"


# --- comments -------------------------------------------------------------------------------------------------------


def _describe_engine(record: EngineRecord, version: str) -> Iterable[str]:
    yield (
        f"Engine of TensorRT-LLM {version}: {record.decoding or 'plain'}, "
        f"{record.max_batch_size} requests of {record.max_seq_len} tokens, "
        f"{record.max_draft_len} draft tokens, tp {record.tensor_parallel}, pp {record.pipeline_parallel}, "
        f"{record.dtype}{f' ({record.quantization})' if record.quantization else ''}."
    )


def _describe_memory(build: PackagedBuild, record: EngineRecord) -> Iterable[str]:
    budget = build.memory
    if budget is None or record.kv_tokens is None:
        yield "Memory was not budgeted: kv_cache_free_gpu_mem_fraction alone limits the key/value cache."
        if build.shares_gpus(record):
            yield "Another engine shares its GPUs, and a fraction does not divide them: not to be served like this."
        return
    yield f"Memory of {budget.gpu}, in bytes:"
    yield f"  {budget.num_bytes:>15}  in all"
    for line in budget.lines:
        yield f"  {-line.num_bytes:>15}  {line.subject}: {line.formula}"
    yield f"  {budget.kv_bytes:>15}  for key/value caches"
    yield from _describe_tokens(budget, record)
    yield "Of max_tokens_in_paged_kv_cache and what kv_cache_free_gpu_mem_fraction of the memory then free holds, the"
    yield "smaller counts (NVIDIA/TensorRT-LLM docs/source/reference/memory.md@5a211b91). Not verified on a GPU."
    if build.shares_gpus(record):
        yield "Another engine shares its GPUs: the tokens divide the memory, the fraction is a cap that no order of"
        yield "loading makes bind while the arithmetic above holds."


def _describe_tokens(budget: MemoryBudget, record: EngineRecord) -> Iterable[str]:
    parts = [
        f"{model} {tokens} x {budget.kv_bytes_per_token.get(model, 0)} B = "
        f"{tokens * budget.kv_bytes_per_token.get(model, 0)}"
        for model, tokens in budget.kv_tokens.items()
    ]
    yield f"Tokens: {'; '.join(parts)}. This engine: {record.kv_tokens}."
