"""Does the repository that was rendered fit the config and the build? Every violation at once, before it is written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from specdeploy.config.methods import lookahead_draft_len
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel, EngineRecord, Lane, Method
from specdeploy.errors import PackagingError
from specdeploy.packager.engine_models import (
    BUILD_MODES,
    DECODING_MODES,
    GUIDED_PARAMETERS,
    STOCK_MODEL,
    engine_models,
    is_decoupled,
    rank_gpus,
    tensorrt_llm_section,
)
from specdeploy.packager.launch_files import checkpoint_mounts, image_of_version
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.parameter_checks import parameter_problems
from specdeploy.packager.pbtxt import TEMPLATE_MARK, parse_pbtxt
from specdeploy.trtllm.facts import triton_model
from specdeploy.trtllm.parallel_rules import GPUS_PER_NODE, tokens_per_step

PUBLIC_MODEL = "llm"
_LOOKAHEAD_KEYS = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


@dataclass(frozen=True, slots=True)
class EffectiveConcurrency:
    """Requests of full length that are decoded at once, and in words which limit sets that number."""

    num_requests: int
    limit: str


def effective_concurrency(config: DeploymentConfig, engines: Sequence[EngineRecord]) -> EffectiveConcurrency:
    """min(server's rows, an engine's batch, tokens of its key/value cache // max_seq_len), with what limits.

    Of equal limits the first in that order is named. Unbudgeted caches (`kv_tokens` None) do not count.
    """
    limits = [(config.serving.max_rows, f"serving.max_rows {config.serving.max_rows}")]
    limits += [
        (record.max_batch_size, f"max_batch_size {record.max_batch_size} of engine {record.model}")
        for record in engines
    ]
    limits += [
        (
            record.kv_tokens // config.serving.max_seq_len,
            f"key/value cache of {record.model}: {record.kv_tokens} tokens / max_seq_len {config.serving.max_seq_len}",
        )
        for record in engines
        if record.kv_tokens is not None
    ]
    if (tokens := config.serving.kv_cache_tokens) is not None:  # shorter requests share what full ones would need
        full = max(1, tokens // config.serving.max_seq_len)
        limits.append((full, f"serving.kv_cache_tokens {tokens} / max_seq_len {config.serving.max_seq_len}"))
    number, limit = min(limits, key=lambda entry: entry[0])
    return EffectiveConcurrency(number, limit)


def cross_check(config: DeploymentConfig, build: PackagedBuild, files: Mapping[str, str]) -> list[str]:
    """All that keeps this repository from doing what `config` says with `build`; empty = nothing."""
    problems = [f"unresolved: {sentence}" for sentence in build.unresolved]
    problems += [
        f"{name}: an unfilled template variable ({TEMPLATE_MARK}...)"
        for name, text in files.items()
        if TEMPLATE_MARK in text
    ]
    parsed, broken = _parse_models(files)
    problems += broken
    if config.lane is Lane.TRTLLM_ENGINE:
        problems += _model_problems(config, build, parsed)
        for record in build.engines:
            if (model := parsed.get(record.model.value)) is not None:
                place = f"{record.model}/config.pbtxt"
                problems += [f"{place}: {text}" for text in _engine_problems(config, build, record, model)]
    public = parsed.get(PUBLIC_MODEL)
    if public is None:
        problems.append(f"{PUBLIC_MODEL}/config.pbtxt: is missing, and it is what clients talk to")
    elif not public.model_transaction_policy.decoupled:
        problems.append(f"{PUBLIC_MODEL}/config.pbtxt: is not decoupled, so it could not stream")
    problems += _mount_problems(config, build)
    problems += [
        f"engine {record.model}: {text}" for record in build.engines for text in _record_problems(config, record)
    ]
    return problems + list(_guide_problems(config, build))


def _parse_models(files: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Folder -> parsed config.pbtxt, and what could not be parsed (template variables are reported by the caller)."""
    parsed, problems = {}, []
    for name, text in files.items():
        path = PurePosixPath(name)
        if path.name != "config.pbtxt" or TEMPLATE_MARK in text:
            continue
        try:
            parsed[path.parent.as_posix()] = parse_pbtxt(text, name)
        except PackagingError as error:
            problems.append(str(error))
    return parsed, problems


def _mount_problems(config: DeploymentConfig, build: PackagedBuild) -> Iterator[str]:
    """Folders that docker-run.sh and launch.slurm mount: both separate the parts of a mount by these characters."""
    if image_of_version(config) is None:  # then there are no such scripts
        return
    for folder in (build.engines_root, *checkpoint_mounts(build)):
        if set(folder) & set(",:"):
            yield f"{folder}: holds a comma or colon, and cannot be mounted into the container. Move it and build again"


# --- models of the engine lane --------------------------------------------------------------------------------------


def _model_problems(config: DeploymentConfig, build: PackagedBuild, parsed: Mapping[str, Any]) -> Iterator[str]:
    """The models that `llm` will call are exactly those that are there, and each has its own name and engine."""
    section = tensorrt_llm_section(config)
    needed = engine_models(config.speculation.method, has_plain_instance=section.plain_instance == "beside")
    built = [record.model for record in build.engines]
    for model in needed:
        if model.value not in parsed:
            yield f"{model}: `{PUBLIC_MODEL}` calls this model and the repository has none of that name"
        if built.count(model) != 1:
            yield f"{model}: the build has {built.count(model)} engines of that name. Run `make engines`"
    for name, model_config in parsed.items():
        if name not in {PUBLIC_MODEL, *(model.value for model in needed)}:
            yield f"{name}: nothing calls this model with method {config.speculation.method}"
        if model_config.name != name:
            yield f"{name}/config.pbtxt: name '{model_config.name}' is not that of its folder"
    folders = [record.folder for record in build.engines]
    for folder in sorted({folder for folder in folders if folders.count(folder) > 1}):
        yield f"{folder}: several engines lie in this folder"
    if section.num_nodes > 1 and len(needed) > 1:
        yield (
            f"tensorrt_llm.num_nodes: {section.num_nodes} nodes and {len(needed)} engines: the processes of several "
            "engines are spawned on one node only. Use one node, or a method with one engine"
        )


def _engine_problems(config: DeploymentConfig, build: PackagedBuild, record: EngineRecord, model: Any) -> Iterator[str]:
    parameters = {key: entry.string_value for key, entry in model.parameters.items()}
    yield from parameter_problems(parameters, triton_model(STOCK_MODEL).parameters, blank=GUIDED_PARAMETERS)
    yield from (
        f"parameter {key}: the backend does not load a model without it"
        for key in GUIDED_PARAMETERS
        if key not in parameters
    )
    method = config.speculation.method
    if model.model_transaction_policy.decoupled != is_decoupled(method):
        yield (
            "is decoupled, and drafting rounds call it one answer at a time"
            if model.model_transaction_policy.decoupled
            else "is not decoupled, so it could not stream"
        )
    if model.max_batch_size != record.max_batch_size:
        yield f"max_batch_size {model.max_batch_size} is not the engine's {record.max_batch_size}"
    if method is Method.DRAFT_MODEL and parameters.get("enable_kv_cache_reuse") != "true":
        yield (
            "parameter enable_kv_cache_reuse: drafting with a second model needs it. "
            "Write tensorrt_llm.kv_cache_reuse: true"
        )
    if parameters.get("gpt_model_path") != build.engine_folder(record):
        yield f"parameter gpt_model_path: {parameters.get('gpt_model_path')} is not {build.engine_folder(record)}"
    yield from _memory_problems(build, record, parameters)
    yield from _gpu_problems(config, record, parameters)
    yield from _decoding_problems(config, record, parameters)


def _memory_problems(build: PackagedBuild, record: EngineRecord, parameters: Mapping[str, str]) -> Iterator[str]:
    tokens = parameters.get("max_tokens_in_paged_kv_cache")
    if tokens is None and build.shares_gpus(record):
        yield (
            "parameter max_tokens_in_paged_kv_cache: is missing, and a fraction alone does not divide a GPU between "
            "engines. Build again, with checkpoints whose memory can be counted"
        )
    if tokens is not None and record.kv_tokens is not None and tokens != str(record.kv_tokens):
        yield f"parameter max_tokens_in_paged_kv_cache: {tokens} are not the {record.kv_tokens} of the memory budget"


def _gpu_problems(config: DeploymentConfig, record: EngineRecord, parameters: Mapping[str, str]) -> Iterator[str]:
    section = tensorrt_llm_section(config)
    world = record.tensor_parallel * record.pipeline_parallel
    ids = rank_gpus(section, record)
    if ids and len(ids) != world:
        yield f"parameter gpu_device_ids: {len(ids)} GPUs for {world} ranks (tensor x pipeline parallel)"
    if section.num_nodes == 1 and len(set(ids)) != len(ids):
        yield f"parameter gpu_device_ids: {parameters.get('gpu_device_ids')} names a GPU twice"
    for gpu_id in sorted({gpu_id for gpu_id in ids if gpu_id >= GPUS_PER_NODE}):
        yield f"parameter gpu_device_ids: GPU {gpu_id} is not within a node of {GPUS_PER_NODE}"
    if "participant_ids" in parameters:
        yield "parameter participant_ids: the processes of an engine are spawned, so it must not name any"


def _decoding_problems(config: DeploymentConfig, record: EngineRecord, parameters: Mapping[str, str]) -> Iterator[str]:
    is_speculative = record.model is EngineModel.TARGET
    due = DECODING_MODES.get(record.decoding or "")
    found = parameters.get("decoding_mode")
    if found != due:
        built = record.decoding or "plain decoding"
        yield f"parameter decoding_mode: {found or 'unset'} with an engine built for {built}"
    present = [key for key in _LOOKAHEAD_KEYS if key in parameters]
    if 0 < len(present) < len(_LOOKAHEAD_KEYS) or (due == "lookahead" and not present):
        yield f"lookahead: {', '.join(present) or 'none'} of its three parameters is there; all or none must be"
    if due == "lookahead" and (tokens := lookahead_draft_len(config.speculation.lookahead)) != record.max_draft_len:
        yield f"lookahead: its sizes make {tokens} draft tokens and the engine was built for {record.max_draft_len}"
    if is_speculative:
        yield from _choice_problems(config, parameters)


def _choice_problems(config: DeploymentConfig, parameters: Mapping[str, str]) -> Iterator[str]:
    """Trees as deep as the heads allow; an EAGLE tree exactly as deep as its layers."""
    for key, limit, is_exact in (
        ("medusa_choices", config.speculation.medusa.num_heads, False),
        ("eagle_choices", config.speculation.eagle.num_layers, True),
    ):
        if key not in parameters:
            continue
        depth = max((len(path.split(",")) for path in parameters[key].strip("{}").split("}, {")), default=0)
        if depth > limit or (is_exact and depth != limit):
            yield f"parameter {key}: a path of {depth} tokens, and {'layers' if is_exact else 'heads'} are {limit}"


# --- engines of both lanes ------------------------------------------------------------------------------------------


def _record_problems(config: DeploymentConfig, record: EngineRecord) -> Iterator[str]:
    serving = config.serving
    if not record.folder or PurePosixPath(record.folder).is_absolute() or ".." in PurePosixPath(record.folder).parts:
        yield f"folder '{record.folder}' is not below the build"
    if record.max_batch_size < serving.max_rows:
        yield f"was built for {record.max_batch_size} requests at once, serving.max_rows is {serving.max_rows}"
    if record.max_seq_len < serving.max_seq_len:
        yield f"was built for {record.max_seq_len} tokens, serving.max_seq_len is {serving.max_seq_len}"
    if record.kv_tokens is not None and record.kv_tokens < record.max_seq_len:
        yield (
            f"its key/value cache holds {record.kv_tokens} tokens, not one request of {record.max_seq_len}. "
            "Lower serving.max_seq_len, or use more GPUs"
        )
    if record.model is EngineModel.TARGET and record.max_draft_len < (needed := tokens_per_step(config.speculation)):
        yield f"verifies {record.max_draft_len} draft tokens in a step, the config needs {needed}"
    if config.lane is Lane.TRTLLM_ENGINE:
        due = BUILD_MODES.get(config.speculation.method) if record.model is EngineModel.TARGET else None
        if record.decoding != due:
            yield f"was built for {record.decoding or 'plain decoding'}, not for {due or 'plain decoding'}"


def _guide_problems(config: DeploymentConfig, build: PackagedBuild) -> Iterator[str]:
    backend = tensorrt_llm_section(config).guided_decoding_backend
    if config.lane is not Lane.TRTLLM_ENGINE or backend is None:
        return
    key = "tensorrt_llm.guided_decoding_backend"
    if backend != "xgrammar":
        yield f"{key}: {backend} is not known to the C++ backend. Write xgrammar"
    if build.guided_tokenizer_info is None:
        yield f"{key}: the build holds no tokenizer information for xgrammar. Remove the key, or use lane trtllm_llmapi"
