"""Arguments of the LLM API for one deployment, one version and one instance, with nothing in them that was guessed."""

from collections.abc import Mapping
from dataclasses import dataclass

import yaml
from packaging.version import Version

from specdeploy.config.schema import DeploymentConfig, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import EngineModel, Method
from specdeploy.errors import BuildError
from specdeploy.trtllm.argument_draft import ArgumentDraft
from specdeploy.trtllm.decoding import (
    UNRESOLVED,
    argument_fields,
    check_probe,
    class_fields,
    group_fields,
    mtp_depth_key,
    read_name,
    spelling,
    unresolved_reason,
)
from specdeploy.trtllm.facts import Field, llm_args_column, speculative_column, type_sources
from specdeploy.trtllm.llm_args_check import validate_llm_args
from specdeploy.trtllm.llm_args_combinations import guides_exclude_drafting, needs_plain_scheduler
from specdeploy.trtllm.load_limits import put_load_limits
from specdeploy.trtllm.probe_record import ProbeRecord
from specdeploy.trtllm.sampling_arguments import put_drafting_sampling, put_plain_sampling

__all__ = ["UNRESOLVED", "RenderedArgs", "render_llm_args", "render_yaml", "validate_llm_args"]

# Accepted from 1.0.0 to main; the newer name only since 1.2.1 (speculative_config of the versions read).
_DRAFT_KEYS = ("speculative_model_dir", "speculative_model")


@dataclass(frozen=True, slots=True)
class RenderedArgs:
    """`arguments` of `LLM(**arguments)` as JSON-like values. `unresolved`: what only a probe can settle, one sentence
    each (the value then starts with `UNRESOLVED`); `notes`: what was left out or decided, and why; `known_from`: where
    the names were read, a few words each."""

    arguments: dict[str, object]
    unresolved: tuple[str, ...]
    notes: tuple[str, ...]
    known_from: tuple[str, ...]


def render_llm_args(
    config: DeploymentConfig,
    *,
    version: Version,
    probe: ProbeRecord | None,
    model: EngineModel,
    target_path: str,
    draft_path: str | None,
    kv_tokens: int | None,
) -> RenderedArgs:
    """The arguments of one instance: `TARGET` speculates, `TARGET_PLAIN` does not.

    Every key is one that the facts of `version` (or `probe`) have; `kv_tokens` bounds the key/value cache in tokens.
    Raises `BuildError` for a config without `tensorrt_llm`, for `DRAFT`, for a version nothing is known of, a probe of
    another version, a method or a draft path that is missing.
    """
    if (settings := config.tensorrt_llm) is None:
        raise BuildError("tensorrt_llm: the LLM API needs this section. Name at least version and gpu")
    if model is EngineModel.DRAFT:
        raise BuildError(
            "the LLM API loads the draft inside the target's instance: there are no arguments for it alone"
        )
    check_probe(version, probe)
    draft = ArgumentDraft(version)
    names = argument_fields(version, probe)
    for key, value in _top_level(config, settings, target_path).items():
        draft.require(draft.arguments, key, value, names, "")
    if settings.trust_remote_code:
        draft.put(draft.arguments, "trust_remote_code", True, names, "")
    kv_cache = _kv_cache(draft, settings, probe, kv_tokens)
    draft.require(draft.arguments, "kv_cache_config", kv_cache, names, "")
    _put_guided_decoding(draft, settings, names, model)
    if model is EngineModel.TARGET:
        _put_speculation(draft, config, settings, probe, draft_path)
        if needs_plain_scheduler(config.speculation.method, version):
            draft.require(draft.arguments, "disable_overlap_scheduler", True, names, "")
    else:
        put_plain_sampling(draft, names)
    draft.raise_if_missing()
    known_from = _note_sources(draft, probe)
    return RenderedArgs(draft.arguments, tuple(draft.unresolved), tuple(draft.notes), known_from)


def _top_level(config: DeploymentConfig, settings: TensorRtLlmConfig, target_path: str) -> dict[str, object]:
    """Limits and GPUs: with a default in place of one of them another deployment would be served, or none."""
    arguments: dict[str, object] = {
        "model": target_path,
        "dtype": config.dtype.value,
        "tensor_parallel_size": settings.tensor_parallel,
        "pipeline_parallel_size": settings.pipeline_parallel,
        "max_batch_size": config.serving.max_rows,
        "max_num_tokens": settings.max_num_tokens,
        "max_seq_len": config.serving.max_seq_len,
    }
    if settings.expert_parallel is not None:
        arguments["moe_expert_parallel_size"] = settings.expert_parallel
    if settings.num_nodes > 1:
        # Its default is the number of visible GPUs, which says nothing of ranks on other nodes.
        arguments["gpus_per_node"] = settings.num_gpus // settings.num_nodes
    if config.serving.max_seq_len > settings.max_num_tokens:
        # Without it no step has room for the longest prompt that the server admits.
        arguments["enable_chunked_prefill"] = True
    return arguments


def _kv_cache(
    draft: ArgumentDraft, settings: TensorRtLlmConfig, probe: ProbeRecord | None, kv_tokens: int | None
) -> dict[str, object]:
    """All but block reuse is part of the memory as it was counted."""
    names = group_fields("kv_cache_config", draft.version, probe)
    rendered: dict[str, object] = {}
    draft.require(rendered, "free_gpu_memory_fraction", settings.kv_cache_fraction, names, "kv_cache_config.")
    draft.put(rendered, "enable_block_reuse", settings.kv_cache_reuse, names, "kv_cache_config.")
    if kv_tokens is not None:
        draft.require(rendered, "max_tokens", kv_tokens, names, "kv_cache_config.")
    if settings.kv_cache_dtype != "auto":
        draft.require(rendered, "dtype", settings.kv_cache_dtype, names, "kv_cache_config.")
    return rendered


def _put_guided_decoding(
    draft: ArgumentDraft, settings: TensorRtLlmConfig, names: Mapping[str, Field], model: EngineModel
) -> None:
    if settings.guided_decoding_backend is None:
        return
    if model is EngineModel.TARGET and guides_exclude_drafting(draft.version):
        draft.notes.append(
            f"guided_decoding_backend is left out where drafting is on: TensorRT-LLM {draft.version} refuses both"
        )
        return
    draft.put(draft.arguments, "guided_decoding_backend", settings.guided_decoding_backend, names, "")


def _put_speculation(
    draft: ArgumentDraft,
    config: DeploymentConfig,
    settings: TensorRtLlmConfig,
    probe: ProbeRecord | None,
    draft_path: str | None,
) -> None:
    method = config.speculation.method
    decoding_type = spelling(method, draft.version, probe)
    names = class_fields(decoding_type, draft.version, probe)
    if names is None:
        raise BuildError(
            f"speculation.method: TensorRT-LLM {draft.version} does not serve {method} on its PyTorch backend."
            " Choose another method or another version"
        )
    if decoding_type.startswith(UNRESOLVED) and (reason := unresolved_reason(decoding_type, draft.version, probe)):
        draft.unresolved.append(f"speculative_config.decoding_type: {reason}")
    rendered: dict[str, object] = {"decoding_type": decoding_type}
    for key, value in _method_fields(config, draft.version, names, draft_path).items():
        draft.require(rendered, key, value, names, "speculative_config.")
    if method is Method.NGRAM and config.speculation.ngram.min_matching_ngram_size > 1:
        draft.notes.append(
            "speculation.ngram.min_matching_ngram_size has no counterpart in the LLM API: it drafts from 1 on"
        )
    put_load_limits(draft, rendered, config, settings, names)
    has_plain = settings.plain_instance is PlainInstance.BESIDE
    put_drafting_sampling(draft, rendered, method, names, has_plain=has_plain)
    draft.require(draft.arguments, "speculative_config", rendered, argument_fields(draft.version, probe), "")


def _method_fields(
    config: DeploymentConfig, version: Version, names: Mapping[str, Field], draft_path: str | None
) -> dict[str, object]:
    """What the method itself needs. `max_draft_len` and the n-gram size are always written: their defaults differ."""
    speculation = config.speculation
    if speculation.method is Method.MTP:
        return {mtp_depth_key(version, names): speculation.max_draft_len}
    if speculation.method is Method.NGRAM:
        fields: dict[str, object] = {
            "max_draft_len": speculation.max_draft_len,
            "max_matching_ngram_size": speculation.ngram.max_matching_ngram_size,
        }
        if "is_public_pool" in names:
            # Its default lets the n-grams of one request serve the next: text must not cross between requests.
            fields["is_public_pool"] = False
        return fields
    if draft_path is None:
        raise BuildError(f"speculation.draft: method {speculation.method} needs the folder of its draft checkpoint")
    key = next((name for name in _DRAFT_KEYS if name in names), _DRAFT_KEYS[0])
    return {"max_draft_len": speculation.max_draft_len, key: draft_path}


def _note_sources(draft: ArgumentDraft, probe: ProbeRecord | None) -> tuple[str, ...]:
    """Note where the names come from, when not from the source of exactly this version; returns it in a few words."""
    if probe is not None:
        draft.notes.append(
            f"names are those that TensorRT-LLM {probe.version} accepted when it was probed: {probe.how}"
        )
        return (f"the probe of the installed {probe.version}",)
    arguments = llm_args_column(draft.version)
    if arguments.note:
        draft.notes.append(f"LLM arguments: {arguments.note}")
    known_from = [f"the LLM arguments of {' and '.join(arguments.sources)}"]
    speculative = draft.arguments.get("speculative_config")
    if isinstance(speculative, Mapping):
        column = speculative_column(draft.version)
        if column.note:
            draft.notes.append(f"speculative_config: {column.note}")
        name = read_name(str(speculative["decoding_type"]), column)
        keys = type_sources(column, name)
        if set(keys) != set(column.sources):
            read = " and ".join(keys)
            draft.notes.append(f"speculative_config: class {name} was read in {read}, not in {draft.version}")
        known_from.append(f"class {name} of {' and '.join(keys)}")
    return tuple(known_from)


def render_yaml(rendered: RenderedArgs, header: str) -> str:
    """The arguments as YAML; `header`, what is unresolved and the notes go before them as comments."""
    lines = [*header.splitlines(), *(f"UNRESOLVED: {line}" for line in rendered.unresolved)]
    lines += [f"note: {note}" for note in rendered.notes]
    comments = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return comments + yaml.safe_dump(rendered.arguments, sort_keys=False, default_flow_style=False)
