"""Deployments of the LLM API lane and probe records, as data."""

from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel, Method
from specdeploy.trtllm.decoding import SPELLINGS
from specdeploy.trtllm.facts import llm_args_column, llm_args_fields, speculative_column, speculative_types
from specdeploy.trtllm.llm_args import RenderedArgs, render_llm_args
from specdeploy.trtllm.probe_record import ProbeRecord

LLMAPI_METHODS = (Method.EAGLE3, Method.DRAFT_MODEL, Method.NGRAM, Method.MTP)
BY_LOAD = [
    {"min_in_flight": 1, "max_in_flight": 3, "draft_len": 4},
    {"min_in_flight": 4, "max_in_flight": 7, "draft_len": 2},
]
ONE_CUT = [{"min_in_flight": 1, "max_in_flight": 16, "draft_len": 4}]
SWAP = {"plain_instance": "swap"}


def make_deployment(method: str = "eagle3", **changes: Any) -> DeploymentConfig:
    """A deployment with `method`; `speculation`, `serving`, `tensorrt_llm`, `traffic` replace keys of their section."""
    speculation: dict[str, Any] = {"method": method, "max_draft_len": 4}
    if method in ("eagle3", "draft_model"):
        speculation["draft"] = {"checkpoint": "draft"}
    settings: dict[str, Any] = {
        "schema_version": 1,
        "name": "llm",
        "lane": "trtllm_llmapi",
        "dtype": "bfloat16",
        "target": {"checkpoint": "target"},
        "speculation": speculation | changes.get("speculation", {}),
        "serving": {"max_rows": 64, "max_seq_len": 4096} | changes.get("serving", {}),
        "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"} | changes.get("tensorrt_llm", {}),
        "traffic": {"expected_concurrency": 8, "segments": [{"name": "chat", "prompts": "prompts.jsonl"}]}
        | changes.get("traffic", {}),
    }
    return DeploymentConfig.model_validate(settings)


def make_probe(version: str, spellings: Mapping[str, str | None] | None = None) -> ProbeRecord:
    """What a package of a version that was read would answer: its column's fields under the given spellings."""
    types = speculative_types(speculative_column(Version(version)))
    column = llm_args_column(Version(version))
    accepted: dict[str, str | None] = {
        method.value: next(name for name in names if name in types) for method, names in SPELLINGS.items()
    }
    own = dict(accepted)
    accepted |= spellings or {}
    fields: dict[str, tuple[str, ...]] = {}
    for method, spelled in accepted.items():
        if spelled is not None:
            table = types[own[method] or ""]
            fields[spelled] = tuple(name for field in table.values() for name in field.accepted_names)
    groups = {group: tuple(llm_args_fields(column, group)) for group in ("base", "torch", "kv_cache_config")}
    return ProbeRecord(
        version=version,
        spellings=accepted,
        speculative_fields=fields,
        llm_args_fields=(*groups["base"], *groups["torch"]),
        kv_cache_fields=groups["kv_cache_config"],
        how="made for a test",
        created_at="2026-11-29T00:00:00+00:00",
    )


def render(
    config: DeploymentConfig,
    version: str,
    probe: ProbeRecord | None = None,
    model: EngineModel = EngineModel.TARGET,
    kv_tokens: int | None = 40_000,
) -> RenderedArgs:
    """The arguments of `config` for `version`, with made-up folders; the draft's only where the method has one."""
    has_draft = config.speculation.method in (Method.EAGLE3, Method.DRAFT_MODEL)
    return render_llm_args(
        config,
        version=Version(version),
        probe=probe,
        model=model,
        target_path="/engines/b/target",
        draft_path="/engines/b/draft" if has_draft else None,
        kv_tokens=kv_tokens,
    )


def section(arguments: Mapping[str, object], key: str) -> dict[str, Any]:
    """One nested section of rendered arguments, as a dictionary that a test may change."""
    value = arguments[key]
    assert isinstance(value, dict)
    return value


PROBES_121 = [
    make_probe("1.2.1", {"eagle3": eagle, "draft_model": draft})
    for eagle in ("Eagle", "Eagle3")
    for draft in ("DraftTarget", "Draft_Target")
]
