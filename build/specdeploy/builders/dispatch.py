"""`build`: the lane of a deployment decides which builder runs, then the deployment points to the finished build."""

from pathlib import Path

from specdeploy.builders.base import BuildResult, Report
from specdeploy.builders.pair import Consent
from specdeploy.checkpoint.hf_config import inspect_architecture
from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import Lane, unsupported_reason
from specdeploy.errors import BuildError, ConfigError, Violation
from specdeploy.manifest import MANIFEST_NAME, CurrentBuild, sha256_file, write_current_build
from specdeploy.planner.schedule import plan_from_config


def build_deployment(
    loaded: LoadedDeployment, engines_root: Path, *, report: Report, consent: Consent | None = None
) -> BuildResult:
    """Build what `loaded` asks for, or reuse it, and make it the current build of the deployment.

    A pair that does not fit is refused before anything is built; `consent` says which warnings are accepted.
    Relative checkpoint folders start from the folder of the YAML file. The pointer `engines/<deployment>.json` is
    written afresh every time, because a change of the YAML alone needs no new build.
    """
    _check_lane(loaded)
    from specdeploy.builders.torch import build_torch

    result = build_torch(loaded.config, engines_root, loaded.path.parent, report=report, consent=consent)
    _check_context_length(loaded, result)
    roles = {source.role: source.folder for source in result.manifest.checkpoints}
    build_id = result.manifest.build_id
    current = CurrentBuild(
        deployment=loaded.config.name,
        build_id=build_id,
        target_folder=f"{build_id}/{roles['target']}",
        draft_folder=f"{build_id}/{roles['draft']}" if "draft" in roles else None,
        pair_digest=result.manifest.pair_digest,
        manifest_sha256=sha256_file(result.build_folder / MANIFEST_NAME),
        config_digest=loaded.digest,
        config=loaded.config,
        plan=plan_from_config(loaded.config),
    )
    write_current_build(engines_root, current)
    return result


def describe_build(loaded: LoadedDeployment, consent: Consent | None = None) -> list[str]:
    """What `build_deployment` would do, one line per step. Checks the sources, writes nothing."""
    _check_lane(loaded)
    from specdeploy.builders.torch import plan_torch_build

    recipe = plan_torch_build(loaded.config, loaded.path.parent, consent)
    checks = [f"{check.name}: {check.detail}" for check in recipe.checks]
    return [f"build {recipe.build_id}", *checks, *(step.describe() for step in recipe.steps)]


def _check_lane(loaded: LoadedDeployment) -> None:
    config = loaded.config
    if reason := unsupported_reason(config.lane, config.speculation.method):
        raise BuildError(f"{loaded.path}: speculation.method: {reason}")
    if config.lane is not Lane.TORCH:
        raise BuildError(f"{loaded.path}: lane: {config.lane} cannot be built by this version")


def _check_context_length(loaded: LoadedDeployment, result: BuildResult) -> None:
    """The longest request must fit the positions that every checkpoint was trained for."""
    max_seq_len = loaded.config.serving.max_seq_len
    violations = []
    for source in result.manifest.checkpoints:
        positions = inspect_architecture(result.build_folder / source.folder).max_position_embeddings
        if max_seq_len > positions:
            reason = f"{max_seq_len} exceeds the {positions} positions of {source.role} {source.reference}"
            violations.append(Violation(str(loaded.path), "serving.max_seq_len", reason, f"Write at most {positions}"))
    if violations:
        raise ConfigError(violations)
