"""What a build of lane `trtllm_llmapi` would do, with every reason why it must not."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from specdeploy.builders.engine_inspection import HEADS_CODE, without_bare_snapshots
from specdeploy.builders.pair import Consent, check_pair
from specdeploy.builders.trtllm_installation import TrtllmInstallation, check_installation
from specdeploy.builders.trtllm_llm_objects import (
    DeploymentParts,
    budget_llm_objects,
    find_misfits,
    kv_tokens_of,
    record_instance,
)
from specdeploy.builders.trtllm_snapshot import Snapshot, find_snapshots, pin_source
from specdeploy.builders.trtllm_warmup import ARGUMENT_FILES
from specdeploy.checkpoint.digest_cache import open_digest_cache
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint.pair import PairSettings, check_allowed_codes, inspect_pair
from specdeploy.checkpoint.pinned_sources import PinnedSource
from specdeploy.checkpoint.source import tokenizer_problems
from specdeploy.checkpoint_contract import CheckpointInfo, PairReport
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import TensorRtLlmConfig
from specdeploy.contract import BuildCheck, EngineModel, EngineRecord, Lane, MemoryBudget
from specdeploy.errors import BuildError, CheckpointError, ConfigError, Violation
from specdeploy.trtllm.decoding import probe_mismatch
from specdeploy.trtllm.facts import UNREAD_REMEDY, unread_reason
from specdeploy.trtllm.llm_args import RenderedArgs, render_llm_args, render_yaml, validate_llm_args
from specdeploy.trtllm.probe_record import PROBE_COMMAND, ProbeRecord, probe_path
from specdeploy.trtllm.refusals import DeploymentFacts, find_notes, find_refusals
from specdeploy.trtllm.versions import FIRST_KNOWN, parse_version

ARGUMENTS_CHECK = "arguments against the facts of their version"


@dataclass(frozen=True, slots=True)
class LlmapiBuildPlan:
    """What a build would do. `files` name -> text, `arguments` the same as values.

    `checks` what was checked and seen; `not_checked` what could not be, `unresolved` what only a probe of the installed
    package can settle, each a sentence. Both are empty but for a dry run, which in turn pins nothing.
    """

    files: Mapping[str, str]
    arguments: Mapping[EngineModel, Mapping[str, object]]
    engines: tuple[EngineRecord, ...]
    memory: MemoryBudget | None
    snapshots: tuple[Snapshot, ...]
    pinned: tuple[PinnedSource, ...]
    checks: tuple[BuildCheck, ...]
    not_checked: tuple[str, ...]
    unresolved: tuple[str, ...]


@dataclass(slots=True)
class _Findings:
    """What planning found so far; everything that forbids the build is reported at once.

    `violations` of the deployment's file, `errors` of its checkpoints.
    """

    violations: list[Violation]
    errors: list[str]
    checks: list[BuildCheck]
    not_checked: list[str]

    def raise_if_any(self) -> None:
        """One error for all of it."""
        violations = list(dict.fromkeys(self.violations))
        if violations and not self.errors:
            raise ConfigError(violations)
        if self.errors and not violations:
            raise CheckpointError("\n".join(self.errors))
        if violations:
            raise BuildError("\n".join([*map(str, violations), *self.errors]))


def plan_llmapi_build(
    loaded: LoadedDeployment,
    *,
    installation: TrtllmInstallation | None,
    probe: ProbeRecord | None,
    consent: Consent,
    engines_root: Path,
    is_dry_run: bool = False,
) -> LlmapiBuildPlan:
    """Find and check everything; nothing is written but the digests of files that were read for it.

    A dry run needs no TensorRT-LLM and no checkpoint on this machine and writes the paths that hold inside the
    container. Raises `ConfigError`, `CheckpointError` or `BuildError` with all problems.
    """
    section = llmapi_section(loaded)
    version = parse_version(section.version)
    check_allowed_codes(consent.allow)
    found = _Findings([], [], [], [])
    if not is_dry_run:
        found.violations += check_installation(loaded.config, installation, file=str(loaded.path))
    found.violations += _version_violations(loaded, version, probe, engines_root)
    snapshots = _find_snapshots(loaded, version, found, is_dry_run=is_dry_run)
    infos = _read_infos(loaded, snapshots, consent, found)
    parts = DeploymentParts(loaded.config, section, infos.get("target"), infos.get("draft"))
    facts = DeploymentFacts(loaded.config, version, parts.target, parts.draft, str(loaded.path))
    found.violations += find_refusals(facts)
    found.checks += [BuildCheck(name="not shown by any page", detail=note) for note in find_notes(facts)]
    memory = _count_memory(parts, found, str(loaded.path))
    found.raise_if_any()
    try:
        rendered = {
            instance: _render(loaded, version, probe, instance, snapshots, kv_tokens_of(memory, instance), is_dry_run)
            for instance in parts.instances
        }
    except BuildError as error:
        raise BuildError("\n".join(f"{loaded.path}: {line}" for line in str(error).splitlines())) from error
    unresolved = tuple(dict.fromkeys(sentence for one in rendered.values() for sentence in one.unresolved))
    if problems := _argument_problems(loaded, version, probe, rendered, unresolved if is_dry_run else ()):
        raise BuildError("\n".join(problems))
    names = [f"{len(one.arguments)} keys for {instance}" for instance, one in rendered.items()]
    sources = dict.fromkeys(source for one in rendered.values() for source in one.known_from)
    detail = f"{', '.join(names)}, known from {', '.join(sources)}"
    found.checks.append(BuildCheck(name=ARGUMENTS_CHECK, detail=detail))
    notes = dict.fromkeys(note for one in rendered.values() for note in one.notes)
    found.checks += [BuildCheck(name="arguments note", detail=note) for note in notes]
    writer = "Planned by a dry run" if is_dry_run else "Written by `specdeploy build`"
    header = (
        f"LLM arguments of {loaded.config.name}, TensorRT-LLM {version}. {writer}; "
        f"change configs/deployments/{loaded.config.name}.yaml instead."
    )
    return LlmapiBuildPlan(
        files={ARGUMENT_FILES[instance]: render_yaml(one, header) for instance, one in rendered.items()},
        arguments={instance: one.arguments for instance, one in rendered.items()},
        engines=tuple(
            record_instance(parts, instance, one.arguments, kv_tokens_of(memory, instance))
            for instance, one in rendered.items()
        ),
        memory=memory,
        snapshots=snapshots,
        pinned=() if is_dry_run else _pin(snapshots, engines_root),
        checks=tuple(found.checks),
        not_checked=tuple(found.not_checked),
        unresolved=unresolved,
    )


def llmapi_section(loaded: LoadedDeployment) -> TensorRtLlmConfig:
    """The section `tensorrt_llm`; raises `BuildError` for a deployment of another lane."""
    if loaded.config.tensorrt_llm is None or loaded.config.lane is not Lane.TRTLLM_LLMAPI:
        raise BuildError(f"{loaded.path}: lane: {loaded.config.lane} is not built by the LLM API builder")
    return loaded.config.tensorrt_llm


def _find_snapshots(
    loaded: LoadedDeployment, version: Version, found: _Findings, *, is_dry_run: bool
) -> tuple[Snapshot, ...]:
    """Target and draft; hundreds of GB are not fetched for a build that is refused anyway."""
    facts = DeploymentFacts(loaded.config, version, None, None, str(loaded.path))
    is_refused = bool(found.violations or find_refusals(facts))
    try:
        snapshots = find_snapshots(loaded, is_dry_run=is_dry_run or is_refused)
    except CheckpointError as error:
        found.errors.append(str(error))
        return ()
    told = len(found.not_checked)
    if is_dry_run:
        snapshots = without_bare_snapshots(snapshots, found.not_checked)
    bare = found.not_checked[told:]
    found.not_checked += [
        f"{one.role} {one.source.checkpoint}: not on this machine, so nothing of it was read"
        for one in snapshots
        if one.folder is None and not any(sentence.startswith(f"{one.role} ") for sentence in bare)
    ]
    return snapshots


def _read_infos(
    loaded: LoadedDeployment, snapshots: tuple[Snapshot, ...], consent: Consent, found: _Findings
) -> dict[str, CheckpointInfo]:
    """Facts of the checkpoints that are here; the pair is compared when it is complete."""
    folders = {one.role: one.folder for one in snapshots if one.folder is not None}
    references = {one.role: one.source.checkpoint for one in snapshots}
    needs_draft = loaded.config.speculation.draft is not None
    try:
        if "target" not in folders or (needs_draft and "draft" not in folders):
            found.not_checked += ["pair: target and draft were not compared"] if needs_draft else []
            return {role: inspect_checkpoint(path, reference=references[role]) for role, path in folders.items()}
        found.errors += tokenizer_problems(folders["target"])
        report = inspect_pair(
            folders["target"],
            folders.get("draft"),
            _pair_settings(loaded),
            target_reference=references["target"],
            draft_reference=references.get("draft"),
        )
        infos = {"target": report.target, **({"draft": report.draft} if report.draft is not None else {})}
        found.errors += [
            f"{role} {info.reference}: its folder holds no *.safetensors file"
            for role, info in infos.items()
            if info.num_bytes is None
        ]
        _judge_pair(report, consent, found)
    except CheckpointError as error:
        found.errors.append(str(error))
        return {}
    return infos


def _judge_pair(report: PairReport, consent: Consent, found: _Findings) -> None:
    """Heads that do not divide are left to the rules, which name the key; the facts stay known whatever is found."""
    others = tuple(one for one in report.findings if one.code != HEADS_CODE)
    try:
        found.checks += check_pair(report.model_copy(update={"findings": others}), consent)
    except CheckpointError as error:
        found.errors.append(str(error))


def _version_violations(
    loaded: LoadedDeployment, version: Version, probe: ProbeRecord | None, engines_root: Path
) -> list[Violation]:
    """A version of which nothing is known, or a probe that is of another one."""
    file, key = str(loaded.path), "tensorrt_llm.version"
    if (mismatch := probe_mismatch(version, probe)) is not None:
        path = probe_path(engines_root, llmapi_section(loaded).version)
        remedy = f"Remove {path} and run `{PROBE_COMMAND}` where {version} is installed."
        return [Violation(file, key, f"{mismatch} ({path})", remedy)]
    # What is older than the first known version is refused by a rule, whatever a probe says.
    if probe is None and version >= FIRST_KNOWN and (reason := unread_reason(version)) is not None:
        return [Violation(file, key, f"{version} {reason}", f"{UNREAD_REMEDY}.")]
    return []


def _count_memory(parts: DeploymentParts, found: _Findings, file: str) -> MemoryBudget | None:
    try:
        memory = budget_llm_objects(parts)
    except CheckpointError as error:
        found.errors.append(str(error))
        return None
    if memory is None:
        sentence = "memory: not every checkpoint is on this machine, so their sizes were not counted"
        if len(parts.instances) > 1:
            sentence += "; two instances share a GPU by fraction alone therefore, and may not fit beside each other"
        found.not_checked.append(sentence)
        return None
    found.violations += find_misfits(parts, memory, file)
    tokens = ", ".join(f"{model} {count}" for model, count in memory.kv_tokens.items())
    detail = f"{memory.gpu}: tokens of the key/value caches {tokens}; estimated, not measured on a GPU"
    found.checks.append(BuildCheck(name="memory", detail=detail))
    return memory


def _pin(snapshots: tuple[Snapshot, ...], engines_root: Path) -> tuple[PinnedSource, ...]:
    cache = open_digest_cache(engines_root)
    try:
        return tuple(pin_source(one, one.folder, cache.sha256) for one in snapshots if one.folder is not None)
    finally:
        cache.save()


def _pair_settings(loaded: LoadedDeployment) -> PairSettings:
    return PairSettings(
        method=loaded.config.speculation.method,
        lane=loaded.config.lane,
        max_seq_len=loaded.config.serving.max_seq_len,
        tensor_parallel=llmapi_section(loaded).tensor_parallel,
    )


def _render(
    loaded: LoadedDeployment,
    version: Version,
    probe: ProbeRecord | None,
    instance: EngineModel,
    snapshots: tuple[Snapshot, ...],
    kv_tokens: int | None,
    is_dry_run: bool,
) -> RenderedArgs:
    paths = {one.role: one.container_folder if is_dry_run else str(one.folder) for one in snapshots}
    return render_llm_args(
        loaded.config,
        version=version,
        probe=probe,
        model=instance,
        target_path=paths["target"],
        draft_path=paths.get("draft"),
        kv_tokens=kv_tokens,
    )


def _argument_problems(
    loaded: LoadedDeployment,
    version: Version,
    probe: ProbeRecord | None,
    rendered: Mapping[EngineModel, RenderedArgs],
    accepted: tuple[str, ...],
) -> list[str]:
    """What this version would refuse, but for the sentences in `accepted`."""
    return [
        f"{ARGUMENT_FILES[instance]}: {problem}"
        for instance, one in rendered.items()
        for problem in validate_llm_args(
            one.arguments, version=version, probe=probe, config=loaded.config, model=instance
        )
        if problem not in accepted
    ]
