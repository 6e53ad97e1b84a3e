"""What a build of the engine lane leaves in an engines root, without having built anything: pointer and manifest."""

import shutil
from pathlib import Path
from typing import Any

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineManifest, EngineModel, EngineRecord, Lane
from specdeploy.manifest import CurrentBuild, write_current_build, write_manifest
from specdeploy.planner.schedule import plan_from_config

BUILD_ID = "0123456789abcdef"


def engine_record(
    model: EngineModel, *, max_draft_len: int = 0, max_seq_len: int = 128, decoding: str | None = None
) -> EngineRecord:
    """`decoding` None: for external drafts where there is room for any, else plain."""
    return EngineRecord(
        model=model,
        folder=f"{model}_engine",
        decoding=decoding or ("draft_tokens_external" if max_draft_len else None),
        max_draft_len=max_draft_len,
        max_batch_size=4,
        max_seq_len=max_seq_len,
        max_num_tokens=256,
        dtype="float32",
    )


def engine_config(name: str = "tiny", **overrides: Any) -> DeploymentConfig:
    """A deployment of the engine lane with draft_model and K 3; `overrides` replace whole sections."""
    return DeploymentConfig.model_validate(
        {
            "schema_version": 1,
            "name": name,
            "lane": "trtllm_engine",
            "dtype": "float32",
            "target": {"checkpoint": "unused"},
            "speculation": {"method": "draft_model", "max_draft_len": 3, "draft": {"checkpoint": "unused"}},
            "serving": {"max_rows": 4, "max_queue": 3, "max_seq_len": 128},
            "tensorrt_llm": {"version": "1.2.1", "gpu": "h100"},
            "traffic": {
                "expected_concurrency": 2,
                "segments": [
                    {"name": "chat", "prompts": "chat.jsonl"},
                    {"name": "quiet", "prompts": "q.jsonl", "speculate": False, "off_reason": "measured slower"},
                ],
            },
            **overrides,
        }
    )


def write_engine_build(
    engines_root: Path,
    config: DeploymentConfig,
    *,
    target: Path,
    draft: Path | None,
    engines: tuple[EngineRecord, ...],
    config_digest: str = "0",
) -> CurrentBuild:
    """Copies the checkpoints' configs and tokenizers; the stand-ins read the weights where they are."""
    folder = engines_root / BUILD_ID
    shutil.copytree(target, folder / "target", ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    if draft is not None:
        shutil.copytree(draft, folder / "draft", ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)
    manifest = EngineManifest(
        build_id=BUILD_ID,
        lane=Lane.TRTLLM_ENGINE,
        checkpoints=(),
        files=(),
        versions={"tensorrt_llm": "1.2.1"},
        checks=(),
        created_at="2026-01-01T00:00:00+00:00",
        engines=engines,
    )
    write_manifest(folder, manifest)
    build = CurrentBuild(
        deployment=config.name,
        build_id=BUILD_ID,
        target_folder=f"{BUILD_ID}/target",
        draft_folder=None if draft is None else f"{BUILD_ID}/draft",
        config_digest=config_digest,
        config=config,
        plan=plan_from_config(config),
    )
    write_current_build(engines_root, build)
    return build
