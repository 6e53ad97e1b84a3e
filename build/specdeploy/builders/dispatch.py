"""`build`: the lane of a deployment decides which builder runs, then the deployment points to the finished build."""

from pathlib import Path

from specdeploy.builders.base import BuildResult, Report
from specdeploy.builders.pair import Consent
from specdeploy.checkpoint.hf_config import inspect_architecture
from specdeploy.checkpoint.json_text import ObjectReader, load_json_object
from specdeploy.checkpoint.model_facts import rope_scaling
from specdeploy.checkpoint.pair_serving import context_limit
from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import ConstrainedPolicy, Lane, unsupported_reason
from specdeploy.errors import BuildError, ConfigError, Violation
from specdeploy.manifest import MANIFEST_NAME, CurrentBuild, recorded_manifests, sha256_file, write_current_build
from specdeploy.planner.schedule import plan_from_config


def build_deployment(
    loaded: LoadedDeployment, engines_root: Path, *, report: Report, consent: Consent | None = None
) -> BuildResult:
    """Build what `loaded` asks for, or reuse it, and make it the current build of the deployment.

    A pair that does not fit is refused before anything is built; `consent` says which warnings are accepted.
    Relative checkpoint folders start from the folder of the YAML file. The pointer `engines/<deployment>.json` is
    written afresh every time, because a change of the YAML alone needs no new build; the manifest of a reused build is
    checked against what was recorded of it before.
    """
    _check_lane(loaded)
    from specdeploy.builders.torch import build_torch

    result = build_torch(loaded.config, engines_root, loaded.path.parent, report=report, consent=consent)
    _check_context_length(loaded, result)
    roles = {source.role: source.folder for source in result.manifest.checkpoints}
    build_id = result.manifest.build_id
    recorded = recorded_manifests(engines_root, build_id)  # all the same, or `run_build` had refused
    current = CurrentBuild(
        deployment=loaded.config.name,
        build_id=build_id,
        target_folder=f"{build_id}/{roles['target']}",
        draft_folder=f"{build_id}/{roles['draft']}" if "draft" in roles else None,
        pair_digest=result.manifest.pair_digest,
        manifest_sha256=next(iter(recorded.values()), None) or sha256_file(result.build_folder / MANIFEST_NAME),
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
    if config.speculation.constrained is not ConstrainedPolicy.OFF:
        raise BuildError(
            f"{loaded.path}: speculation.constrained: {config.speculation.constrained} is not served by this version: "
            "requests with guided decoding are refused. Write off"
        )
    if config.lane is not Lane.TORCH:
        raise BuildError(f"{loaded.path}: lane: {config.lane} cannot be built by this version")


def _check_context_length(loaded: LoadedDeployment, result: BuildResult) -> None:
    """The longest request must fit the positions that every checkpoint can use (see `context_limit`)."""
    max_seq_len = loaded.config.serving.max_seq_len
    violations = []
    for source in result.manifest.checkpoints:
        folder = result.build_folder / source.folder
        stated = inspect_architecture(folder).max_position_embeddings
        path = folder / "config.json"
        positions = context_limit(stated, rope_scaling(ObjectReader(load_json_object(path), str(path)))) or stated
        if max_seq_len > positions:
            reason = f"{max_seq_len} exceeds the {positions} positions of {source.role} {source.reference}"
            violations.append(Violation(str(loaded.path), "serving.max_seq_len", reason, f"Write at most {positions}"))
    if violations:
        raise ConfigError(violations)
