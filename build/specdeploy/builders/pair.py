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
from specdeploy.checkpoint.safetensors_header import read_header
from specdeploy.checkpoint.source import locate_folder, resolve_checkpoint
from specdeploy.checkpoint_contract import PairFinding, PairReport, Severity
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import DeploymentConfig, TargetConfig
from specdeploy.contract import BuildCheck, EngineManifest
from specdeploy.errors import BuildError, CheckpointError
from specdeploy.manifest import CurrentBuild, load_current_build, load_manifest, sha256_file


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person accepts of a pair, by code.

    A build needs consent to the warnings of `CONSENT_CODES`, with `is_strict` to every warning. The others are printed
    and recorded without asking. Failures cannot be accepted.
    """

    is_strict: bool = False
    allow: tuple[str, ...] = ()


def check_pair(pair: PairReport, consent: Consent) -> tuple[BuildCheck, ...]:
    """What the manifest records of a pair that may be built: its verdict, and each warning or padding by its code.

    Raises `CheckpointError` with everything that forbids the build.
    """
    if blocking := blocking_findings(pair, strict=consent.is_strict, allow=consent.allow, for_build=True):
        hint = ""
        if all(one.severity is Severity.WARNING for one in blocking):
            codes = " ".join(f"--allow {code}" for code in dict.fromkeys(one.code for one in blocking))
            hint = f"\nTo build it nevertheless: {codes}"
        raise CheckpointError(describe_blocking(blocking) + hint)
    recorded = [one for one in pair.findings if one.severity is Severity.WARNING or one.code == "vocabulary-padded"]
    checks = [BuildCheck(name=f"{one.severity} {one.code}", detail=_describe_recorded(one)) for one in recorded]
    accepted = sorted({one.code for one in recorded} & set(consent.allow))
    verdict = str(pair.verdict) + (f", accepted by name: {', '.join(accepted)}" if accepted else "")
    return (BuildCheck(name="pair", detail=verdict), *checks) if pair.draft is not None else tuple(checks)


def _describe_recorded(found: PairFinding) -> str:
    advice = f". {found.remedy}" if found.severity is Severity.WARNING else ""
    return f"{found.subject}: {found.detail}{advice}"


def inspect_deployment(
    loaded: LoadedDeployment,
    engines_root: Path,
    *,
    tensor_parallel: int | None = None,
    max_draft_cost_ratio: float = MAX_DRAFT_COST_RATIO,
) -> PairReport:
    """The pair of a deployment, at its own `tensorrt_llm.tensor_parallel` unless another is given.

    A checkpoint inside a wheel is looked at where it was built.

    The report carries the pair digest of the current build as long as its sources look as they did then: same
    references, revisions and lane, small files equal, weights of the same sizes and headers. No weights are hashed.
    """
    config, section = loaded.config, loaded.config.tensorrt_llm
    current, manifest = _built(config.name, engines_root)
    draft = config.speculation.draft
    settings = PairSettings(
        method=config.speculation.method,
        lane=config.lane,
        max_seq_len=config.serving.max_seq_len,
        tensor_parallel=tensor_parallel or (section.tensor_parallel if section else 1),
        draft_tensor_parallel=None if tensor_parallel or section is None else section.draft_tensor_parallel,
        max_draft_cost_ratio=max_draft_cost_ratio,
    )
    folders = {"target": _locate(loaded, "target", config.target, manifest, engines_root)}
    if draft is not None:
        folders["draft"] = _locate(loaded, "draft", draft, manifest, engines_root)
    report = inspect_pair(
        folders["target"],
        folders.get("draft"),
        settings,
        target_reference=config.target.checkpoint,
        draft_reference=None if draft is None else draft.checkpoint,
    )
    if current is None or manifest is None or not _are_sources_of(config, current, manifest):
        return report
    if not all(_is_unchanged(role, folder, manifest, engines_root) for role, folder in folders.items()):
        return report
    return report.model_copy(update={"digest": manifest.pair_digest})


def _built(deployment: str, engines_root: Path) -> tuple[CurrentBuild | None, EngineManifest | None]:
    """What the deployment serves now and its manifest, if it was ever built."""
    try:
        current = load_current_build(engines_root, deployment)
        return current, load_manifest(engines_root, current.build_id)
    except BuildError:
        return None, None


def locate_built(deployment: str, role: str, source: TargetConfig, engines_root: Path) -> Path | None:
    """Where the current build of a deployment keeps the checkpoint `source`; None where there is no such build."""
    _, manifest = _built(deployment, engines_root)
    for built in manifest.checkpoints if manifest is not None else ():
        if manifest is not None and (built.role, built.reference) == (role, source.checkpoint):
            folder = engines_root / manifest.build_id / built.folder
            return folder if folder.is_dir() else None
    return None


def _are_sources_of(config: DeploymentConfig, current: CurrentBuild, manifest: EngineManifest) -> bool:
    """Whether the deployment still names the checkpoints that the build was made of, for the same lane."""
    named = [(role, source.checkpoint, source.revision) for role, source in _sources(config)]
    built = [(role, source.checkpoint, source.revision) for role, source in _sources(current.config)]
    recorded = [(source.role, source.reference) for source in manifest.checkpoints]
    return named == built and recorded == [(role, name) for role, name, _ in named] and manifest.lane is config.lane


def _sources(config: DeploymentConfig) -> list[tuple[str, TargetConfig]]:
    draft = config.speculation.draft
    return [("target", config.target), *([] if draft is None else [("draft", draft)])]


def _is_unchanged(role: str, folder: Path, manifest: EngineManifest, engines_root: Path) -> bool:
    """Whether the files of a checkpoint are those the manifest records, as far as it shows without hashing weights."""
    place = next(source.folder for source in manifest.checkpoints if source.role == role)
    recorded = {file.path: file for file in manifest.files if file.path.startswith(f"{place}/")}
    try:
        files = resolve_checkpoint(str(folder), base=folder).files
        if {f"{place}/{path.name}" for path in files} != recorded.keys():
            return False
        for path in files:
            entry = recorded[f"{place}/{path.name}"]
            if path.stat().st_size != entry.num_bytes:
                return False
            if path.suffix != ".safetensors":
                if sha256_file(path) != entry.sha256:
                    return False
            elif not _has_header_of(path, engines_root / manifest.build_id / entry.path):
                return False
    except (CheckpointError, BuildError, OSError):
        return False
    return True


def _has_header_of(path: Path, built: Path) -> bool:
    """Whether two weight files hold the same tensors at the same places; a hard link is one file."""
    if path.samefile(built):
        return True
    both = (read_header(path), read_header(built))
    ours, theirs = ({name: (e.dtype, e.shape, e.begin, e.end) for name, e in header.items()} for header in both)
    return ours == theirs


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
