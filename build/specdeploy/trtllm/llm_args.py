"""Arguments of the LLM API for one deployment, one version and one instance, with nothing in them that was guessed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml
from packaging.version import Version

from specdeploy.config.schema import DeploymentConfig, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import EngineModel, Method
from specdeploy.errors import BuildError
from specdeploy.trtllm.decoding import (
    UNRESOLVED,
    argument_fields,
    check_probe,
    class_fields,
    group_fields,
    spelling,
    unresolved_reason,
)
from specdeploy.trtllm.draft_len_schedule import (
    SCHEDULED_METHODS,
    LoadStep,
    drafts_inside_target,
    load_steps,
    obeys_max_concurrency,
    render_schedule,
    schedule_meaning,
    single_cut,
)
from specdeploy.trtllm.facts import Field, llm_args_column, speculative_column
from specdeploy.trtllm.llm_args_check import validate_llm_args
from specdeploy.trtllm.probe_record import ProbeRecord

__all__ = ["UNRESOLVED", "RenderedArgs", "render_llm_args", "render_yaml", "validate_llm_args"]

# Accepted from 1.0.0 to main; the newer name only since 1.2.1 (speculative_config of the versions read).
_DRAFT_KEYS = ("speculative_model_dir", "speculative_model")


@dataclass(frozen=True, slots=True)
class RenderedArgs:
    """`arguments` of `LLM(**arguments)` as JSON-like values. `unresolved`: what only a probe can settle, one sentence
    each (the value then starts with `UNRESOLVED`); `notes`: what was left out or decided, and why."""

    arguments: dict[str, object]
    unresolved: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """Arguments while they are collected: a key that the version does not have is left out and noted."""

    version: Version
    arguments: dict[str, object] = field(default_factory=dict)
    unresolved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def put(
        self, into: dict[str, object], key: str, value: object, names: Mapping[str, Field] | None, where: str
    ) -> None:
        if names is not None and key in names:
            into[key] = value
        else:
            self.notes.append(f"{where}{key} is left out: TensorRT-LLM {self.version} is not known to have it")


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
    draft = _Draft(version)
    names = argument_fields(version, probe)
    for key, value in _top_level(config, settings, target_path).items():
        draft.put(draft.arguments, key, value, names, "")
    draft.put(draft.arguments, "kv_cache_config", {}, names, "")
    if "kv_cache_config" in draft.arguments:
        draft.arguments["kv_cache_config"] = _kv_cache(draft, settings, probe, kv_tokens)
    _put_guided_decoding(draft, settings, names, model)
    if model is EngineModel.TARGET:
        _put_speculation(draft, config, settings, probe, draft_path)
        if _needs_plain_scheduler(config.speculation.method, version):
            draft.put(draft.arguments, "disable_overlap_scheduler", True, names, "")
    _note_sources(draft, probe)
    return RenderedArgs(draft.arguments, tuple(draft.unresolved), tuple(draft.notes))


def _top_level(config: DeploymentConfig, settings: TensorRtLlmConfig, target_path: str) -> dict[str, object]:
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
    if settings.trust_remote_code:
        arguments["trust_remote_code"] = True
    return arguments


def _kv_cache(
    draft: _Draft, settings: TensorRtLlmConfig, probe: ProbeRecord | None, kv_tokens: int | None
) -> dict[str, object]:
    names = group_fields("kv_cache_config", draft.version, probe)
    values: dict[str, object] = {
        "free_gpu_memory_fraction": settings.kv_cache_fraction,
        "enable_block_reuse": settings.kv_cache_reuse,
    }
    if kv_tokens is not None:
        values["max_tokens"] = kv_tokens
    if settings.kv_cache_dtype != "auto":
        values["dtype"] = settings.kv_cache_dtype
    rendered: dict[str, object] = {}
    for key, value in values.items():
        draft.put(rendered, key, value, names, "kv_cache_config.")
    return rendered


def _put_guided_decoding(
    draft: _Draft, settings: TensorRtLlmConfig, names: Mapping[str, Field], model: EngineModel
) -> None:
    if settings.guided_decoding_backend is None:
        return
    if model is EngineModel.TARGET and draft.version.release[:2] <= (1, 0):
        # TensorRT-LLM docs/source/release-notes.md@001eaece: the two go together from 1.1 on.
        draft.notes.append(
            f"guided_decoding_backend is left out where drafting is on: TensorRT-LLM {draft.version} refuses both"
        )
        return
    draft.put(draft.arguments, "guided_decoding_backend", settings.guided_decoding_backend, names, "")


def _needs_plain_scheduler(method: Method, version: Version) -> bool:
    """Whether the overlap scheduler must be off: never with NGram; with a draft model known to work from 1.3.0rc27 on.

    TensorRT-LLM docs/source/features/feature-combination-matrix.md@01edceae; samples up to 1.2.1 switch it off.
    """
    return method is Method.NGRAM or (method is Method.DRAFT_MODEL and version < Version("1.3.0rc27"))


def _put_speculation(
    draft: _Draft,
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
    for key, value in _method_fields(config, names, draft_path).items():
        draft.put(rendered, key, value, names, "speculative_config.")
    if method is Method.NGRAM and config.speculation.ngram.min_matching_ngram_size > 1:
        draft.notes.append(
            "speculation.ngram.min_matching_ngram_size has no counterpart in the LLM API: it drafts from 1 on"
        )
    _put_load_limits(draft, rendered, config, settings, names)
    draft.put(draft.arguments, "speculative_config", rendered, argument_fields(draft.version, probe), "")


def _method_fields(config: DeploymentConfig, names: Mapping[str, Field], draft_path: str | None) -> dict[str, object]:
    """What the method itself needs. `max_draft_len` and the n-gram size are always written: their defaults differ."""
    speculation = config.speculation
    if speculation.method is Method.MTP:
        # From mid 2026 on the depth is max_draft_len and the old name is only moved over; before, the old name sets it.
        depth = "num_nextn_predict_layers" if "num_nextn_predict_layers" in names else "max_draft_len"
        return {depth: speculation.max_draft_len}
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


def _put_load_limits(
    draft: _Draft,
    rendered: dict[str, object],
    config: DeploymentConfig,
    settings: TensorRtLlmConfig,
    names: Mapping[str, Field],
) -> None:
    """`draft_len_schedule` or `max_concurrency` from `draft_len_by_in_flight`, where no router switches by load."""
    speculation = config.speculation
    steps = load_steps(speculation.draft_len_by_in_flight, speculation.max_draft_len, config.serving.max_rows)
    if settings.plain_instance is PlainInstance.BESIDE:
        if any(0 < step.draft_len < speculation.max_draft_len for step in steps):
            draft.notes.append(
                "the router switches drafting on or off by load; a K in between is served as max_draft_len"
            )
        return
    if any(segment.draft_len_by_in_flight or not segment.speculate for segment in config.traffic.segments):
        draft.notes.append("K by segment is not kept: one instance drafts alike for all requests of a step")
    if [step.draft_len for step in steps] == [speculation.max_draft_len]:
        return
    limits = _load_limits(steps, speculation.method, speculation.max_draft_len, draft.version, names)
    rendered.update(limits)
    if limits and steps[-1].draft_len == 0 and drafts_inside_target(speculation.method, draft.version):
        draft.notes.append(
            f"from {steps[-1].first} requests on the plan drafts nothing; TensorRT-LLM {draft.version} either drafts"
            " one token there, or accepts fewer drafts afterwards for requests in flight (its pull request 16888)"
        )
    if not limits:
        draft.notes.append(
            f"speculation.draft_len_by_in_flight is not kept: TensorRT-LLM {draft.version} cannot vary the draft length"
            f" of {speculation.method} this way, it drafts {speculation.max_draft_len} tokens at every load"
        )


def _load_limits(
    steps: tuple[LoadStep, ...], method: Method, max_draft_len: int, version: Version, names: Mapping[str, Field]
) -> dict[str, object]:
    meaning = schedule_meaning(version)
    if "draft_len_schedule" in names and meaning is not None and method in SCHEDULED_METHODS[meaning]:
        schedule = render_schedule(steps, meaning, max_draft_len)
        if schedule is not None:
            return {"draft_len_schedule": schedule}
    cut = single_cut(steps, max_draft_len)
    if "max_concurrency" in names and cut is not None and obeys_max_concurrency(method, version):
        return {"max_concurrency": cut}
    return {}


def _note_sources(draft: _Draft, probe: ProbeRecord | None) -> None:
    """Where the names come from, when not from the source of exactly this version."""
    if probe is not None:
        draft.notes.append(
            f"names are those that TensorRT-LLM {probe.version} accepted when it was probed: {probe.how}"
        )
        return
    for what, column in (
        ("LLM arguments", llm_args_column(draft.version)),
        ("speculative_config", speculative_column(draft.version)),
    ):
        if column.note:
            draft.notes.append(f"{what}: {column.note}")


def render_yaml(rendered: RenderedArgs, header: str) -> str:
    """The arguments as YAML; `header`, what is unresolved and the notes go before them as comments."""
    lines = [*header.splitlines(), *(f"UNRESOLVED: {line}" for line in rendered.unresolved)]
    lines += [f"note: {note}" for note in rendered.notes]
    comments = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return comments + yaml.safe_dump(rendered.arguments, sort_keys=False, default_flow_style=False)
