"""Keys that the TensorRT-LLM lanes do not read are refused there, and are optional in lane torch."""

from pathlib import Path
from typing import Any

import pytest

from helpers.deployment_files import write_deployment
from specdeploy.config.load import load_deployment
from specdeploy.errors import ConfigError

NGRAM = {"method": "ngram", "max_draft_len": 4}
KEYS: list[tuple[str, dict[str, Any]]] = [
    ("speculation.dynamic_draft_len", {"speculation": {**NGRAM, "dynamic_draft_len": True}}),
    ("speculation.dynamic_draft_len", {"speculation": {**NGRAM, "dynamic_draft_len": False}}),
    ("serving.kv_cache_tokens", {"serving": {"kv_cache_tokens": 4096}}),
    ("serving.thinking_end", {"serving": {"thinking_end": "</think>"}}),
]


@pytest.mark.parametrize(("key", "overrides"), KEYS)
def test_lane_torch_reads_it(tmp_path: Path, key: str, overrides: dict[str, Any]) -> None:
    config = load_deployment(write_deployment(tmp_path, overrides=overrides)).config
    section, name = key.split(".")
    assert getattr(getattr(config, section), name) == overrides[section][name]


@pytest.mark.parametrize("lane", ["trtllm_engine", "trtllm_llmapi"])
@pytest.mark.parametrize(("key", "overrides"), KEYS)
def test_other_lanes_refuse_it(tmp_path: Path, lane: str, key: str, overrides: dict[str, Any]) -> None:
    engine = {"version": "1.2.1", "gpu": "h100"}
    with pytest.raises(ConfigError) as caught:
        load_deployment(write_deployment(tmp_path, overrides={"lane": lane, "tensorrt_llm": engine, **overrides}))
    reasons = {violation.key: violation.reason for violation in caught.value.violations}
    assert reasons[key] == f"lane {lane} does not read it"


def test_both_default_to_what_the_engine_decides(tmp_path: Path) -> None:
    config = load_deployment(write_deployment(tmp_path)).config
    assert config.speculation.dynamic_draft_len is None
    assert config.serving.kv_cache_tokens is None


def test_no_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"serving\.kv_cache_tokens"):
        load_deployment(write_deployment(tmp_path, overrides={"serving": {"kv_cache_tokens": 1}}))
