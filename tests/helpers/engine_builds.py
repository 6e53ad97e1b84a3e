"""Configs and builds of the TensorRT-LLM lanes as the packager and `serve` meet them, without any checkpoint."""

from collections.abc import Mapping
from typing import Any

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel, EngineRecord, MemoryBudget, MemoryLine
from specdeploy.packager.packaged_build import PackagedBuild

BUILD_FOLDER = "/srv/engines/0123456789abcdef"
KV_TOKENS = 100_000
_SPECULATION: Mapping[str, dict[str, Any]] = {
    "draft_model": {"draft": {"checkpoint": "draft"}, "max_draft_len": 5},
    "medusa": {"draft": {"checkpoint": "heads"}, "max_draft_len": 4},
    "eagle": {"draft": {"checkpoint": "head"}, "max_draft_len": 4},
    "redrafter": {"draft": {"checkpoint": "drafter"}, "max_draft_len": 5},
    "lookahead": {"max_draft_len": 83},
    "eagle3": {"draft": {"checkpoint": "head"}, "max_draft_len": 3},
    "ngram": {"max_draft_len": 4},
}
_ENGINES: Mapping[str, tuple[tuple[EngineModel, str | None, int], ...]] = {
    "draft_model": ((EngineModel.TARGET, "draft_tokens_external", 5), (EngineModel.DRAFT, None, 0)),
    "medusa": ((EngineModel.TARGET, "medusa", 63), (EngineModel.TARGET_PLAIN, None, 0)),
    "eagle": ((EngineModel.TARGET, "eagle", 63), (EngineModel.TARGET_PLAIN, None, 0)),
    "redrafter": ((EngineModel.TARGET, "explicit_draft_tokens", 25), (EngineModel.TARGET_PLAIN, None, 0)),
    "lookahead": ((EngineModel.TARGET, "lookahead_decoding", 83),),
}
ENGINE_METHODS = tuple(_ENGINES)


def make_config(
    method: str = "draft_model", *, speculation: Mapping[str, Any] | None = None, **sections: Any
) -> DeploymentConfig:
    """A deployment called `big`, by default in the engine lane; `sections` replace or extend top-level sections."""
    is_llmapi = method in ("eagle3", "ngram")
    settings: dict[str, Any] = {
        "schema_version": 1,
        "name": "big",
        "lane": "trtllm_llmapi" if is_llmapi else "trtllm_engine",
        "dtype": "bfloat16",
        "target": {"checkpoint": "target"},
        "speculation": {"method": method, **_SPECULATION[method], **(speculation or {})},
        "serving": {"max_rows": 8, "max_seq_len": 2048, "http_port": 9000, "grpc_port": 9001, "metrics_port": 9002},
        "tensorrt_llm": {"version": "1.2.1", "gpu": "h100", **sections.pop("tensorrt_llm", {})},
        "traffic": {"expected_concurrency": 4, "segments": [{"name": "chat", "prompts": "chat.jsonl"}]},
        **sections,
    }
    return DeploymentConfig.model_validate(settings)


def make_record(model: EngineModel, decoding: str | None, max_draft_len: int, **changes: Any) -> EngineRecord:
    """An engine of one GPU that fits `make_config`."""
    settings: dict[str, Any] = {
        "model": model,
        "folder": f"{model}_engine",
        "decoding": decoding,
        "max_draft_len": max_draft_len,
        "max_batch_size": 8,
        "max_seq_len": 2048,
        "max_num_tokens": 8192,
        "dtype": "bfloat16",
        "kv_tokens": KV_TOKENS,
        "gpu_ids": (0,),
        **changes,
    }
    return EngineRecord.model_validate(settings)


def make_build(method: str = "draft_model", *, has_plain_instance: bool = True, **changes: Any) -> PackagedBuild:
    """The build of `make_config(method)`; `changes` apply to every engine."""
    engines: tuple[EngineRecord, ...]
    if method in ("eagle3", "ngram"):
        engines = (make_record(EngineModel.TARGET, "NGram", 4, folder="target").model_copy(update=changes),)
    else:
        wanted = [entry for entry in _ENGINES[method] if has_plain_instance or entry[0] is not EngineModel.TARGET_PLAIN]
        engines = tuple(make_record(*entry).model_copy(update=changes) for entry in wanted)
    return PackagedBuild(BUILD_FOLDER, engines, make_budget(engines), {"tensorrt_llm": "1.2.1"})


def make_budget(engines: tuple[EngineRecord, ...]) -> MemoryBudget:
    """A budget whose lines add up: 20 GB of weights, 60 GB for caches."""
    return MemoryBudget(
        gpu="H100 SXM (GPU 0)",
        num_bytes=80_000_000_000,
        lines=(MemoryLine(subject="weights of target", formula="10e9 x 2 B", num_bytes=20_000_000_000),),
        kv_bytes=60_000_000_000,
        kv_bytes_per_token={record.model: 131_072 for record in engines},
        kv_tokens={record.model: record.kv_tokens or 0 for record in engines},
        max_sequences=48,
        max_sequences_without_draft=96,
    )
