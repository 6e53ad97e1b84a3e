"""A finished build of the engine lane on disk: manifest and pointer, no engines."""

from collections.abc import Mapping
from pathlib import Path

from helpers.engine_builds import make_build, make_config
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import CheckpointSource, EngineManifest
from specdeploy.manifest import (
    MANIFEST_NAME,
    CurrentBuild,
    build_id_of,
    hash_folder,
    sha256_file,
    write_current_build,
    write_manifest,
)
from specdeploy.planner.schedule import plan_from_config

VERSIONS = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48", "cuda": "13.1.0.036"}
INSTALLED: Mapping[str, str | None] = {**VERSIONS, "gpu_architecture": "sm90"}


def write_engine_build(
    engines_root: Path,
    *,
    config: DeploymentConfig | None = None,
    versions: Mapping[str, str] = VERSIONS,
    files: Mapping[str, str] | None = None,
    config_digest: str = "digest",
) -> str:
    """A build of `config` holding `files`, which its deployment points to; gives the build id."""
    config = config or make_config()
    build = make_build(config.speculation.method)
    sources = (CheckpointSource(role="target", reference="target", digest="0" * 64, folder="target"),)
    build_id = build_id_of(config.lane, sources, versions)
    folder = engines_root / build_id
    (folder / "target").mkdir(parents=True)
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    manifest = EngineManifest(
        build_id=build_id,
        lane=config.lane,
        checkpoints=sources,
        files=hash_folder(folder),
        versions=dict(versions),
        checks=(),
        created_at="2026-01-01T00:00:00",
        engines=build.engines,
        memory=build.memory,
        gpu_architecture="sm90",
    )
    write_manifest(folder, manifest)
    current = CurrentBuild(
        deployment=config.name,
        build_id=build_id,
        target_folder=f"{build_id}/target",
        draft_folder=None,
        manifest_sha256=sha256_file(folder / MANIFEST_NAME),
        config_digest=config_digest,
        config=config,
        plan=plan_from_config(config),
    )
    write_current_build(engines_root, current)
    return build_id
