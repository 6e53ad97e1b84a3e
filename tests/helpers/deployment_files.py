"""Deployment YAML files in a temporary folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def write_deployment(configs_root: Path, name: str = "tiny", overrides: Mapping[str, Any] | None = None) -> Path:
    """`configs_root/deployments/<name>.yaml` with one segment; `overrides` replaces whole top-level sections."""
    deployments = configs_root / "deployments"
    deployments.mkdir(parents=True, exist_ok=True)
    (deployments / "prompts.jsonl").write_text('{"id": "a", "prompt": "Hello"}\n')
    settings: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "lane": "torch",
        "dtype": "float32",
        "target": {"checkpoint": "checkpoint"},
        "speculation": {"method": "ngram", "max_draft_len": 4},
        "serving": {"max_seq_len": 128},
        "traffic": {"expected_concurrency": 1, "segments": [{"name": "chat", "prompts": "prompts.jsonl"}]},
        **(overrides or {}),
    }
    path = deployments / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path
