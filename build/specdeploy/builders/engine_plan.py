"""What a build of lane `trtllm_engine` would do, with every reason why it must not: nothing is run, nothing written but
the digests of files that were read for it."""

from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import InvalidVersion, Version

from specdeploy.builders.engine_disk import estimate_commands
from specdeploy.builders.engine_identity import (
    build_versions,
    find_missing_tools,
    graph_source,
    graph_versions,
    pin_checkpoint,
    plan_digest,
    short_digest,
    with_script_digests,
)
from specdeploy.builders.engine_inspection import (
    SourceFiles,
    find_block_scales,
    find_file_problems,
    find_lost_settings,
    judge_pair,
    read_sources,
    without_bare_snapshots,
)
from specdeploy.builders.engine_limits import find_build_limits, find_unconvertible
from specdeploy.builders.engine_memory import find_misfit, plan_memory, with_kv_tokens
from specdeploy.builders.engine_records import EngineInputs, EngineTools, plan_engines
from specdeploy.builders.pair import Consent
from specdeploy.builders.step_graph import StepGraph
from specdeploy.builders.trtllm_commands import plan_commands
from specdeploy.builders.trtllm_installation import TrtllmInstallation, check_installation
from specdeploy.builders.trtllm_snapshot import Snapshot, find_snapshots, is_hub_reference
from specdeploy.checkpoint.pair import check_allowed_codes
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import TensorRtLlmConfig
from specdeploy.contract import BuildCheck, CheckpointSource, EngineRecord, Lane, MemoryBudget
from specdeploy.errors import BuildError, CheckpointError, ConfigError, Violation
from specdeploy.manifest import build_id_of
from specdeploy.planner.hardware import HARDWARE
from specdeploy.planner.memory import describe_budget
from specdeploy.trtllm.facts import build_flags_notes
from specdeploy.trtllm.refusals import DeploymentFacts, find_notes, find_refusals
from specdeploy.trtllm.versions import parse_version

# Raise it when equal commands would be put together to another build than before.
BUILDER_VERSION = "1"
WORK_SHOWN = "work"


@dataclass(frozen=True, slots=True)
class EngineBuildPlan:
    """A build before it runs. `graph` are its commands, `engines` what must come out of them.

    `checks` what was checked and seen; `not_checked` what could not be, a sentence each: empty but for a dry run.
    `checkpoints` and `versions` make the build id; `target_folder` is None where the target is not on this machine.
    """

    graph: StepGraph
    engines: tuple[EngineRecord, ...]
    memory: MemoryBudget | None
    checks: tuple[BuildCheck, ...]
    not_checked: tuple[str, ...]
    checkpoints: tuple[CheckpointSource, ...]
    versions: dict[str, str]
    gpu_architecture: str
    target_folder: Path | None
    expert_parallel: int = 1

    @property
    def pair_versions(self) -> dict[str, str]:
        """What of `versions` decides the outputs of a pair: not how its memory is shared out."""
        return {**self.graph.versions, "commands": short_digest(sorted(self.graph.keys().items()))}

    @property
    def build_id(self) -> str:
        """Of the build that this plan makes; preliminary in a dry run, which hashes no weights."""
        return build_id_of(Lane.TRTLLM_ENGINE, self.checkpoints, self.versions)

    def describe(self) -> list[str]:
        """What a dry run prints: steps, their commands for copy and paste, engines, memory, and what is not checked."""
        lines = [f"{check.name}: {check.detail}" for check in self.checks]
        lines += self.graph.describe()
        lines += [self.graph.shell_line(step, work=WORK_SHOWN) for step in self.graph.order()]
        lines += [_describe_engine(engine) for engine in self.engines]
        lines += describe_budget(self.memory) if self.memory is not None else []
        return lines + [f"not checked: {sentence}" for sentence in self.not_checked]


def _describe_engine(engine: EngineRecord) -> str:
    room = f", {engine.kv_tokens} tokens of cache" if engine.kv_tokens is not None else ""
    return (
        f"{engine.folder}: {engine.decoding or 'plain'}, draft tokens {engine.max_draft_len}, rows "
        f"{engine.max_batch_size}, tp {engine.tensor_parallel} x pp {engine.pipeline_parallel}, "
        f"{engine.quantization or engine.dtype}{room}"
    )


@dataclass(slots=True)
class _Findings:
    """What planning has seen so far; whatever forbids the build is raised together."""

    violations: list[Violation] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    checks: list[BuildCheck] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)

    def raise_if_any(self) -> None:
        """One error with everything."""
        if self.violations and not self.errors:
            raise ConfigError(list(dict.fromkeys(self.violations)))
        if self.errors and not self.violations:
            raise CheckpointError("\n".join(self.errors))
        if self.errors:
            raise BuildError("\n".join([*map(str, dict.fromkeys(self.violations)), *self.errors]))


def plan_engine_build(
    loaded: LoadedDeployment,
    *,
    installation: TrtllmInstallation | None,
    consent: Consent,
    engines_root: Path,
    is_dry_run: bool = False,
) -> EngineBuildPlan:
    """Find and check everything that a build needs.

    A dry run needs neither TensorRT-LLM nor the checkpoints on this machine; `not_checked` says what that leaves open.
    Otherwise checkpoints of the model hub are fetched, unless the build is refused without them. Raises `ConfigError`,
    `CheckpointError` or `BuildError` with all problems.
    """
    check_allowed_codes(consent.allow)
    found = _Findings()
    _look_at_installation(loaded, installation, found, is_dry_run=is_dry_run)
    version = parse_version(_section(loaded).version)
    installation = installation if _is_of(installation, version) else None  # in a dry run: another one says nothing
    snapshots = _find_snapshots(loaded, version, engines_root, found, is_dry_run=is_dry_run)
    read = read_sources(snapshots, found.errors)
    inputs, engines, memory = _examine(loaded, read, _tools(installation), consent, found)
    checkpoints = tuple(
        pin_checkpoint(snapshot, read, engines_root, found.not_checked, is_dry_run=is_dry_run) for snapshot in snapshots
    )
    steps = with_script_digests(plan_commands(inputs, engines))
    if not is_dry_run and (missing := find_missing_tools(steps)):
        raise BuildError("\n".join(missing))
    unread = "".join(f"; {note}" for note in build_flags_notes(version))
    found.checks += [BuildCheck(name="commands", detail=f"{len(steps)} commands match the flags of {version}{unread}")]
    found.checks += _find_raised_steps(inputs.section, engines)
    found.checks += [BuildCheck(name=f"note on {step.name}", detail=step.note) for step in steps if step.note]
    versions = build_versions(inputs.section, installation, version)
    sources = {str(snapshot.role): graph_source(snapshot, checkpoints) for snapshot in snapshots}
    graph = StepGraph(steps, sources, graph_versions(versions))
    return EngineBuildPlan(
        graph=graph,
        engines=engines,
        memory=memory,
        checks=tuple(found.checks),
        not_checked=tuple(found.not_checked),
        checkpoints=checkpoints,
        versions={**versions, "builder": BUILDER_VERSION, "plan": plan_digest(graph, engines, memory)},
        gpu_architecture=HARDWARE[inputs.section.gpu].architecture,
        target_folder=read["target"].folder if "target" in read else None,
        expert_parallel=inputs.section.expert_parallel or 1,
    )


def _examine(
    loaded: LoadedDeployment,
    read: dict[str, SourceFiles],
    tools: EngineTools,
    consent: Consent,
    found: _Findings,
) -> tuple[EngineInputs, tuple[EngineRecord, ...], MemoryBudget | None]:
    """Judge config and checkpoints by every rule, then raise everything that was found, or give what to build."""
    config, file, section = loaded.config, str(loaded.path), _section(loaded)
    version = parse_version(section.version)
    target, draft = (read[role].info if role in read else None for role in ("target", "draft"))
    inputs = EngineInputs(config, section, version, target, draft, tools)
    facts = DeploymentFacts(config, version, target, draft, file)
    found.violations += [*find_refusals(facts), *find_unconvertible(inputs, file), *find_build_limits(inputs, file)]
    found.violations += find_block_scales(facts, read)
    found.errors += find_file_problems(config, read)
    engines = plan_engines(inputs)
    memory = _plan_memory(inputs, engines, found, file)
    _judge_pair(loaded, read, engines, consent, found)
    found.raise_if_any()
    found.checks += [BuildCheck(name="not shown by any page", detail=note) for note in find_notes(facts)]
    found.checks += find_lost_settings(config, target, draft)
    return inputs, with_kv_tokens(engines, memory), memory


def _find_raised_steps(section: TensorRtLlmConfig, engines: tuple[EngineRecord, ...]) -> list[BuildCheck]:
    """Engines whose steps are larger than the config says, because trtllm-build would raise them by itself."""
    return [
        BuildCheck(
            name=f"note on build {engine.model}",
            detail=f"max_num_tokens is {engine.max_num_tokens}, not {section.max_num_tokens}: one step must hold a "
            "draft with its token for every row. Write that, or lower serving.max_rows",
        )
        for engine in engines
        if engine.max_num_tokens > section.max_num_tokens
    ]


def _section(loaded: LoadedDeployment) -> TensorRtLlmConfig:
    section = loaded.config.tensorrt_llm
    if section is None:
        remedy = "Name at least version (such as 1.2.1) and gpu (h100 or h200)"
        reason = f"lane {loaded.config.lane} needs this section"
        raise ConfigError([Violation(str(loaded.path), "tensorrt_llm", reason, remedy)])
    return section


def _look_at_installation(
    loaded: LoadedDeployment, installation: TrtllmInstallation | None, found: _Findings, *, is_dry_run: bool
) -> None:
    problems = check_installation(loaded.config, installation, file=str(loaded.path))
    if not is_dry_run:
        found.violations += problems
        return
    found.not_checked += [f"this machine could not build it: {problem.reason}" for problem in problems]
    found.not_checked.append("no command was run: whether the converters read these weights shows when they do")


def _find_snapshots(
    loaded: LoadedDeployment, version: Version, engines_root: Path, found: _Findings, *, is_dry_run: bool
) -> tuple[Snapshot, ...]:
    """Nothing is fetched for a build that is refused anyway; folders that are not there are said all the same."""
    facts = DeploymentFacts(loaded.config, version, None, None, str(loaded.path))
    is_refused = bool(found.violations or find_refusals(facts))
    draft = loaded.config.speculation.draft
    named = [loaded.config.target, *([] if draft is None else [draft])]
    would_fetch = any(is_hub_reference(source, loaded.path.parent) for source in named)
    inputs = EngineInputs(loaded.config, _section(loaded), version, None, None, EngineTools())
    try:
        snapshots = find_snapshots(
            loaded,
            is_dry_run=is_dry_run or (is_refused and would_fetch),
            then=lambda downloads: estimate_commands(inputs, downloads, engines_root),
        )
    except CheckpointError as error:
        found.errors.append(str(error))
        return ()
    return without_bare_snapshots(snapshots, found.not_checked) if is_dry_run else snapshots


def _is_of(installation: TrtllmInstallation | None, version: Version) -> bool:
    try:
        return installation is not None and Version(installation.version) == version
    except InvalidVersion:
        return False


def _tools(installation: TrtllmInstallation | None) -> EngineTools:
    default = EngineTools()
    if installation is None:
        return default
    return EngineTools(
        python=installation.python,
        trtllm_build=installation.trtllm_build or default.trtllm_build,
        examples_root=installation.examples_root or default.examples_root,
    )


def _plan_memory(
    inputs: EngineInputs, engines: tuple[EngineRecord, ...], found: _Findings, file: str
) -> MemoryBudget | None:
    try:
        memory = plan_memory(inputs, engines)
    except CheckpointError as error:
        found.errors.append(str(error))
        return None
    if memory is None:
        found.not_checked.append(_uncounted(engines))
        return None
    found.violations += find_misfit(inputs, memory, file)
    tokens = ", ".join(f"{model} {count}" for model, count in memory.kv_tokens.items())
    detail = f"{memory.gpu}: tokens of the key/value caches {tokens}; estimated, not measured on a GPU"
    found.checks.append(BuildCheck(name="memory", detail=detail))
    return memory


def _uncounted(engines: tuple[EngineRecord, ...]) -> str:
    sentence = "memory: not every checkpoint is on this machine, so their sizes were not counted"
    if len(engines) > 1:
        names = " and ".join(str(engine.model) for engine in engines)
        sentence += f"; {names} lack max_tokens_in_paged_kv_cache therefore, without which two engines fight for a GPU"
    return sentence


def _judge_pair(
    loaded: LoadedDeployment,
    read: dict[str, SourceFiles],
    engines: tuple[EngineRecord, ...],
    consent: Consent,
    found: _Findings,
) -> None:
    has_draft = loaded.config.speculation.draft is not None
    if "target" not in read or (has_draft and "draft" not in read):
        found.not_checked.append("the pair: not every checkpoint is on this machine, so they were not compared")
        return
    try:
        found.checks += judge_pair(loaded.config, read, engines, consent)
    except CheckpointError as error:
        found.errors.append(str(error))
