"""A dry run of a TensorRT-LLM lane: everything a build would do, as files, on a machine that has none of it.

engines/dry-run/<deployment>/
  commands.sh        the commands by hand, in order, with expected sizes
  steps.json         the same as data
  llm_args*.yaml     arguments of the LLM objects (lane trtllm_llmapi)
  manifest.json      what the build would record, as far as it is known before
  triton_repo/       the model repository as it would be packed
  UNCHECKED.md       what could not be checked here, and what is unresolved

Equal inputs give equal bytes: paths are those inside the container, and nothing holds a date or a path of this machine.
"""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from specdeploy.builders.dry_run_script import (
    PLANNED_ROOT,
    HandStep,
    ScriptInputs,
    engine_steps,
    llmapi_steps,
    render_script,
)
from specdeploy.builders.dry_run_unchecked import find_blocker, list_always_unchecked, rank_sentence
from specdeploy.builders.engine_inspection import without_bare_snapshots
from specdeploy.builders.engine_plan import plan_engine_build
from specdeploy.builders.llmapi_plan import LlmapiBuildPlan, llmapi_section, plan_llmapi_build
from specdeploy.builders.pair import Consent
from specdeploy.builders.trtllm_commands import UNKNOWN_FAMILY_NOTE
from specdeploy.builders.trtllm_installation import TrtllmInstallation
from specdeploy.builders.trtllm_snapshot import Snapshot, find_snapshots, is_hub_reference
from specdeploy.builders.trtllm_warmup import reason_without_warmup
from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import BuildCheck, ContractModel, EngineRecord, Lane, MemoryBudget
from specdeploy.errors import BuildError, PackagingError
from specdeploy.packager.cross_checks import cross_check
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.repository import check_repository, render_repository
from specdeploy.trtllm.probe_record import ProbeRecord, load_probe, probe_path
from specdeploy.trtllm.versions import container_of, image_of, parse_version

DRY_RUN_FOLDER = "dry-run"
COMMANDS_NAME, STEPS_NAME, PLANNED_NAME, UNCHECKED_NAME = "commands.sh", "steps.json", "manifest.json", "UNCHECKED.md"
REPOSITORY_FOLDER = "triton_repo"
_WITHOUT_TOKENS = "max_tokens_in_paged_kv_cache: is missing"
_TOLD = ("warning ", "arguments note", "note on ", "not shown by any page")  # checks that a reader should not miss


@dataclass(frozen=True, slots=True)
class DryRun:
    """What was written to `folder`; `files` are relative to it, sorted.

    `not_checked` in the order in which it matters, `told` what was found and should not be missed, `blocker` why
    commands.sh cannot run as it stands, None when it can.
    """

    folder: Path
    files: tuple[str, ...]
    not_checked: tuple[str, ...]
    unresolved: tuple[str, ...]
    told: tuple[BuildCheck, ...]
    blocker: str | None

    def describe(self) -> list[str]:
        """What a person should read, what matters first; the folder before and after it."""
        place = f"{self.folder} ({len(self.files)} files; read {UNCHECKED_NAME}, then {COMMANDS_NAME})"
        lines = [] if self.blocker is None else [self.blocker]
        lines += [f"unresolved: {sentence}" for sentence in self.unresolved]
        lines += [f"{check.name}: {check.detail}" for check in self.told]
        return [place, *lines, *(f"not checked here: {sentence}" for sentence in self.not_checked), place]


class PlannedCheckpoint(ContractModel):
    """A checkpoint that the build would use: `folder` inside the container, `num_bytes` of its weights if known."""

    role: Literal["target", "draft"]
    reference: str
    revision: str | None
    folder: str
    num_bytes: NonNegativeInt | None


class PlannedBuild(ContractModel):
    """`manifest.json` of a dry run: `EngineManifest` without what only a build knows (id, digests, files, time)."""

    schema_version: Literal[1] = 1
    deployment: str
    lane: Lane
    image: str | None
    versions: dict[str, str]
    checkpoints: tuple[PlannedCheckpoint, ...]
    engines: tuple[EngineRecord, ...]
    memory: MemoryBudget | None
    checks: tuple[BuildCheck, ...]
    not_checked: tuple[str, ...]
    unresolved: tuple[str, ...]


class PlannedSteps(ContractModel):
    """`steps.json`."""

    schema_version: Literal[1] = 1
    deployment: str
    steps: tuple[HandStep, ...]


@dataclass(frozen=True, slots=True)
class _Planned:
    """What both lanes plan."""

    snapshots: tuple[Snapshot, ...]
    engines: tuple[EngineRecord, ...]
    memory: MemoryBudget | None
    checks: tuple[BuildCheck, ...]
    not_checked: tuple[str, ...]
    unresolved: tuple[str, ...]
    steps: tuple[HandStep, ...]
    argument_files: Mapping[str, str]

    @property
    def reads_snapshots(self) -> bool:
        """Whether the server reads weights from the checkpoints themselves: LLM objects do, engines hold them."""
        return bool(self.argument_files)


def write_dry_run(
    loaded: LoadedDeployment,
    engines_root: Path,
    *,
    consent: Consent,
    probe: ProbeRecord | None,
    installation: TrtllmInstallation | None = None,
) -> DryRun:
    """Plan the build of `loaded` and write `engines_root`/dry-run/<deployment>/, replacing what stood there.

    Neither TensorRT-LLM nor the checkpoints need to be on this machine; what is there is checked as for a build.
    `probe` None = the record in `engines_root`, if one of that version is there. Raises `ConfigError`,
    `CheckpointError`, `BuildError` or `PackagingError` with everything that forbids the build.
    """
    version = _version(loaded)
    if probe is None and probe_path(engines_root, version).is_file():
        probe = load_probe(probe_path(engines_root, version))
    snapshots = without_bare_snapshots(find_snapshots(loaded, is_dry_run=True), [])
    checkpoints = tuple(_planned_checkpoint(snapshot) for snapshot in snapshots)
    inputs = ScriptInputs(
        deployment=loaded.config.name,
        snapshots=snapshots,
        hub_roles=tuple(one.role for one in snapshots if is_hub_reference(one.source, loaded.path.parent)),
        num_bytes={one.role: one.num_bytes for one in checkpoints},
    )
    if loaded.config.lane is Lane.TRTLLM_LLMAPI:
        plan = plan_llmapi_build(
            loaded, installation=None, probe=probe, consent=consent, engines_root=engines_root, is_dry_run=True
        )
        planned = _planned_llmapi(loaded, plan, inputs)
    else:
        planned = _planned_engines(loaded, inputs, engines_root, consent, installation)
    image = container_of(parse_version(version))
    repository, contradictions = _render_repository(loaded, planned, version)
    specific = sorted([*planned.not_checked, *contradictions], key=rank_sentence)
    not_checked = (*specific, *list_always_unchecked(loaded, version, probe))
    blocker = find_blocker(COMMANDS_NAME, snapshots, planned.steps)
    build = PlannedBuild(
        deployment=loaded.config.name,
        lane=loaded.config.lane,
        image=None if image is None else image_of(image),
        versions={"tensorrt_llm": version},
        checkpoints=checkpoints,
        engines=planned.engines,
        memory=planned.memory,
        checks=planned.checks,
        not_checked=not_checked,
        unresolved=planned.unresolved,
    )
    steps = PlannedSteps(deployment=loaded.config.name, steps=planned.steps)
    texts = {
        COMMANDS_NAME: render_script(
            loaded.config, build.image, planned.steps, planned.memory, allowed=consent.allow, blocker=blocker
        ),
        STEPS_NAME: steps.model_dump_json(indent=2) + "\n",
        PLANNED_NAME: build.model_dump_json(indent=2) + "\n",
        UNCHECKED_NAME: _render_unchecked(build, blocker),
        **planned.argument_files,
        **{f"{REPOSITORY_FOLDER}/{name}": _as_planned(text, loaded) for name, text in repository.items()},
    }
    texts = {name: _without_machine_paths(text, snapshots) for name, text in texts.items()}
    folder = _replace_folder(engines_root / DRY_RUN_FOLDER, loaded.config.name, texts)
    return DryRun(folder, tuple(sorted(texts)), not_checked, planned.unresolved, _told(build), blocker)


# --- planning -------------------------------------------------------------------------------------------------------


def _version(loaded: LoadedDeployment) -> str:
    if loaded.config.tensorrt_llm is None:
        raise BuildError(f"{loaded.path}: lane: {loaded.config.lane} has no dry run of files; it builds on any machine")
    return loaded.config.tensorrt_llm.version


def _planned_checkpoint(snapshot: Snapshot) -> PlannedCheckpoint:
    weights = [] if snapshot.folder is None else list(snapshot.folder.glob("*.safetensors"))
    return PlannedCheckpoint(
        role=snapshot.role,
        reference=snapshot.source.checkpoint,
        revision=snapshot.source.revision,
        folder=snapshot.container_folder,
        num_bytes=sum(path.stat().st_size for path in weights) or None,
    )


def _planned_llmapi(loaded: LoadedDeployment, plan: LlmapiBuildPlan, inputs: ScriptInputs) -> _Planned:
    without_warmup = reason_without_warmup(llmapi_section(loaded))
    return _Planned(
        snapshots=plan.snapshots,
        engines=plan.engines,
        memory=plan.memory,
        checks=plan.checks,
        not_checked=plan.not_checked,
        unresolved=plan.unresolved,
        steps=llmapi_steps(inputs, plan.files, is_unresolved=bool(plan.unresolved), without_warmup=without_warmup),
        argument_files=plan.files,
    )


def _planned_engines(
    loaded: LoadedDeployment,
    inputs: ScriptInputs,
    engines_root: Path,
    consent: Consent,
    installation: TrtllmInstallation | None,
) -> _Planned:
    plan = plan_engine_build(
        loaded, installation=installation, consent=consent, engines_root=engines_root, is_dry_run=True
    )
    return _Planned(
        snapshots=inputs.snapshots,
        engines=plan.engines,
        memory=plan.memory,
        checks=plan.checks,
        not_checked=plan.not_checked,
        unresolved=(),
        steps=engine_steps(inputs, plan.graph, plan.engines),
        argument_files={},
    )


def _render_repository(
    loaded: LoadedDeployment, planned: _Planned, version: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The repository, and what contradicts itself in it only because a checkpoint is not here.

    Raises `PackagingError` for contradictions that a build would have too.
    """
    build = PackagedBuild(
        folder=f"{PLANNED_ROOT}/{loaded.config.name}",
        engines=planned.engines,
        memory=planned.memory,
        versions={"tensorrt_llm": version},
        unresolved=planned.unresolved,
        checkpoint_folders=tuple(one.container_folder for one in planned.snapshots) if planned.reads_snapshots else (),
    )
    files = render_repository(loaded.config, build)
    problems = [one for one in cross_check(loaded.config, build, files) if not one.startswith("unresolved: ")]
    if problems and planned.memory is not None:
        raise PackagingError("\n".join(f"{loaded.config.name}: {problem}" for problem in problems))
    told = [one for one in problems if _WITHOUT_TOKENS not in one]  # what follows when memory is not counted
    return files, tuple(f"repository: {problem}" for problem in told)


# --- files ----------------------------------------------------------------------------------------------------------


def _as_planned(text: str, loaded: LoadedDeployment) -> str:
    """The heading of a packed repository says who wrote it; a plan is neither packed nor served."""
    name = loaded.config.name
    return text.replace(
        f"Written by `make repo DEPLOYMENT={name}`;", f"Planned by a dry run of {name}, not to be served;"
    )


def _told(build: PlannedBuild) -> tuple[BuildCheck, ...]:
    told = (check for check in build.checks if check.name.startswith(_TOLD))
    return tuple(check for check in told if check.detail != UNKNOWN_FAMILY_NOTE)  # the blocker says so


def _render_unchecked(build: PlannedBuild, blocker: str | None) -> str:
    lines = [
        f"# What the dry run of {build.deployment} could not check",
        "",
        *([] if blocker is None else [f"{blocker}.", ""]),
        f"Lane {build.lane}, TensorRT-LLM {build.versions['tensorrt_llm']}, "
        + (f"container {build.image}." if build.image else "and no known container carries that version."),
    ]
    if build.unresolved:
        lines += [
            "",
            "## Unresolved",
            "",
            "A build on a machine that has this TensorRT-LLM asks it and fills these in.",
            "",
        ]
        lines += [f"- {sentence}" for sentence in build.unresolved]
    if told := _told(build):
        lines += ["", "## Known and worth a look", "", *(f"- {check.name}: {check.detail}" for check in told)]
    lines += ["", "## Not checked here", "", *(f"- {sentence}" for sentence in build.not_checked)]
    return "\n".join(lines) + "\n"


def _without_machine_paths(text: str, snapshots: Iterable[Snapshot]) -> str:
    """Messages about a checkpoint name its folder here; the reader of a dry run has it elsewhere."""
    for snapshot in snapshots:
        if snapshot.folder is not None:
            text = text.replace(str(snapshot.folder), snapshot.container_folder)
    return text


def _replace_folder(root: Path, name: str, texts: Mapping[str, str]) -> Path:
    """Write beside the place, then rename into it: a reader sees the old dry run or the new one."""
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f".{name}.*.partial"):  # of a run that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".partial", dir=root))
    try:
        fresh = work / "new"
        for relative, text in texts.items():
            path = fresh / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if path.suffix in (".sh", ".slurm") else 0o644)
        check_repository(fresh / REPOSITORY_FOLDER)
        if (root / name).exists():
            (root / name).rename(work / "old")
        fresh.rename(root / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return root / name
