"""`build`: the lane of a deployment decides which builder runs, then the deployment points to the finished build."""

from collections.abc import Callable, Mapping
from pathlib import Path

from specdeploy.builders.base import BuildResult, Report
from specdeploy.builders.pair import Consent
from specdeploy.checkpoint.hf_config import inspect_architecture
from specdeploy.checkpoint.json_text import ObjectReader, load_json_object
from specdeploy.checkpoint.model_facts import rope_scaling
from specdeploy.checkpoint.pair_serving import context_limit
from specdeploy.checkpoint.pinned_sources import find_changed_sources
from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import DeploymentPlan, Lane
from specdeploy.errors import ConfigError, PackagingError, Violation
from specdeploy.manifest import (
    MANIFEST_NAME,
    CurrentBuild,
    find_damages,
    find_other_manifest,
    load_current_build,
    load_manifest,
    recorded_manifests,
    sha256_file,
    write_current_build,
)
from specdeploy.packager.cross_checks import effective_concurrency
from specdeploy.packager.packaged_build import PackagedBuild, load_packaged_build
from specdeploy.planner.schedule import plan_from_config


def build_deployment(
    loaded: LoadedDeployment,
    engines_root: Path,
    *,
    report: Report,
    consent: Consent | None = None,
    plan: DeploymentPlan | None = None,
) -> BuildResult:
    """Build what `loaded` asks for, or reuse it, and make it the current build of the deployment.

    A pair that does not fit is refused before anything is built; `consent` says which warnings are accepted.
    Relative checkpoint folders start from the folder of the YAML file. The pointer `engines/<deployment>.json` is
    written afresh every time, because a change of the YAML alone needs no new build; the manifest of a reused build is
    checked against what was recorded of it before.

    `plan`: what the planner decided, already applied to `loaded` (`planned.with_plan`); None = as the config says.
    """
    result = _BUILDERS[loaded.config.lane](loaded, engines_root, report, consent or Consent())
    roles = {source.role: source.folder for source in result.manifest.checkpoints}
    build_id = result.manifest.build_id
    limit = effective_concurrency(loaded.config, result.manifest.engines)
    recorded = recorded_manifests(engines_root, build_id)  # all the same, or `run_build` had refused
    current = CurrentBuild(
        deployment=loaded.config.name,
        build_id=build_id,
        target_folder=f"{build_id}/{roles['target']}",
        draft_folder=_folder_of(result, roles.get("draft")),
        pair_digest=result.manifest.pair_digest,
        manifest_sha256=next(iter(recorded.values()), None) or sha256_file(result.build_folder / MANIFEST_NAME),
        config_digest=loaded.digest,
        config=loaded.config,
        plan=plan or plan_from_config(loaded.config),
        effective_concurrency=limit.num_requests,
        concurrency_limit=limit.limit,
    )
    write_current_build(engines_root, current)
    return result


def describe_build(loaded: LoadedDeployment, consent: Consent | None = None) -> list[str]:
    """What `build_deployment` would do in lane torch, one line per step. Checks the sources, writes nothing."""
    from specdeploy.builders.torch import plan_torch_build

    recipe = plan_torch_build(loaded.config, loaded.path.parent, consent)
    checks = [f"{check.name}: {check.detail}" for check in recipe.checks]
    return [f"build {recipe.build_id}", *checks, *(step.describe() for step in recipe.steps)]


def _build_torch(loaded: LoadedDeployment, engines_root: Path, report: Report, consent: Consent) -> BuildResult:
    from specdeploy.builders.torch import build_torch

    result = build_torch(loaded.config, engines_root, loaded.path.parent, report=report, consent=consent)
    _check_context_length(loaded, result)
    return result


def _build_engine(loaded: LoadedDeployment, engines_root: Path, report: Report, consent: Consent) -> BuildResult:
    from specdeploy.builders.trtllm_engine import build_trtllm_engine

    return build_trtllm_engine(loaded, engines_root, report=report, consent=consent)


def _build_llmapi(loaded: LoadedDeployment, engines_root: Path, report: Report, consent: Consent) -> BuildResult:
    from specdeploy.builders.trtllm_llmapi import build_trtllm_llmapi

    return build_trtllm_llmapi(loaded, engines_root, report=report, consent=consent)


_BUILDERS: Mapping[Lane, Callable[[LoadedDeployment, Path, Report, Consent], BuildResult]] = {
    Lane.TORCH: _build_torch,
    Lane.TRTLLM_ENGINE: _build_engine,
    Lane.TRTLLM_LLMAPI: _build_llmapi,
}


def _folder_of(result: BuildResult, folder: str | None) -> str | None:
    """Relative to the engines root; None where the build keeps no files of that checkpoint."""
    if folder is None or not (result.build_folder / folder).is_dir():
        return None
    return f"{result.manifest.build_id}/{folder}"


def packaged_build(loaded: LoadedDeployment, engines_root: Path) -> PackagedBuild | None:
    """The build that `make repo` packs, read again from disk; None in lane torch, whose repository names no build.

    Raises `PackagingError` listing every engine that is not what its record says, weights that are not those the build
    pinned, and a manifest that was edited; `BuildError` where there is no build.
    """
    if loaded.config.lane is Lane.TORCH:
        return None
    current = load_current_build(engines_root, loaded.config.name)
    if current.config_digest != loaded.digest:
        raise PackagingError(
            f"{loaded.path}: changed since it was built. Run: make engines DEPLOYMENT={loaded.config.name}"
        )
    folder = engines_root / current.build_id
    manifest = load_manifest(engines_root, current.build_id)
    problems = [
        f"{folder / MANIFEST_NAME}: {fault}. Remove {folder} and run: make engines DEPLOYMENT={loaded.config.name}"
        for fault in find_other_manifest(engines_root, current.build_id)
    ]
    problems += [f"{folder}: {damage}. Build again" for damage in find_damages(engines_root, current.build_id)]
    if loaded.config.lane is Lane.TRTLLM_ENGINE:
        from specdeploy.builders.engine_config import engine_config_problems

        for record in manifest.engines:
            problems += engine_config_problems(folder / record.folder, record)
    else:
        problems += find_changed_sources(folder, engines_root)
    if problems:
        raise PackagingError("\n".join(problems))
    return load_packaged_build(engines_root, loaded.config.name)


def _check_context_length(loaded: LoadedDeployment, result: BuildResult) -> None:
    """The longest request must fit the positions that the target can use (see `context_limit`); where the draft's end,
    rows are decoded undrafted."""
    max_seq_len = loaded.config.serving.max_seq_len
    source = next(source for source in result.manifest.checkpoints if source.role == "target")
    folder = result.build_folder / source.folder
    stated = inspect_architecture(folder).max_position_embeddings
    path = folder / "config.json"
    positions = context_limit(stated, rope_scaling(ObjectReader(load_json_object(path), str(path)))) or stated
    if max_seq_len > positions:
        reason = f"{max_seq_len} exceeds the {positions} positions of {source.role} {source.reference}"
        remedy = f"Write at most {positions}"
        raise ConfigError([Violation(str(loaded.path), "serving.max_seq_len", reason, remedy)])
