"""The commands of a dry run: what `specdeploy build` does on the GPU machine, to be read and run by hand."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from specdeploy.builders.step_graph import GraphSource, StepGraph
from specdeploy.builders.trtllm_snapshot import Snapshot
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import ContractModel, EngineRecord, MemoryBudget
from specdeploy.planner.memory import describe_budget
from specdeploy.units import format_bytes

PLANNED_ROOT = "/workspace/engines"  # engines root inside the container
_WORK_ROOT = "/workspace/work"
_TEXT_FILES = "*.json *.model *.txt *.jinja"


class HandStep(ContractModel):
    """One step: shell lines for the container. `num_bytes` is the expected size of what it leaves behind, if known."""

    name: str
    kind: Literal["download", "command", "place", "check"]
    lines: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    num_bytes: NonNegativeInt | None = None
    needs_gpu: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class ScriptInputs:
    """What the commands are about. `hub_roles` checkpoints that are downloaded, `num_bytes` of weights by role."""

    deployment: str
    snapshots: tuple[Snapshot, ...]
    hub_roles: tuple[str, ...]
    num_bytes: Mapping[str, int | None]

    @property
    def build_folder(self) -> str:
        """Where the build by hand is put together."""
        return f"{PLANNED_ROOT}/{self.deployment}"


def llmapi_steps(
    inputs: ScriptInputs, files: Iterable[str], *, is_unresolved: bool, without_warmup: str | None
) -> tuple[HandStep, ...]:
    """Download, ask the package, put the arguments in their place, try them. Nothing is compiled.

    `without_warmup` says why they cannot be tried on one machine.
    """
    folder = inputs.build_folder
    place = [f'cp "$here/{name}" {shlex.quote(folder)}/' for name in files]
    probe = HandStep(
        name="probe",
        kind="check",
        lines=(f"python3 -m specdeploy.builders.trtllm_probe {PLANNED_ROOT}",),
        outputs=(f"{PLANNED_ROOT}/probes",),
        note="prints how the installed version spells each method",
    )
    return (*_downloads(inputs), probe, _place(inputs, place), _warmup(folder, is_unresolved, without_warmup))


def _warmup(folder: str, is_unresolved: bool, without_warmup: str | None) -> HandStep:
    lines = []
    if is_unresolved:
        check = f"if grep -n ' unresolved:' {shlex.quote(folder)}/llm_args*.yaml; then"
        lines.append(f"{check} echo 'write there what the probe printed, then go on from here'; exit 1; fi")
    if without_warmup is not None:
        return HandStep(name="warm-up", kind="check", lines=tuple(lines), note=without_warmup)
    return HandStep(
        name="warm-up",
        kind="check",
        lines=(*lines, f"python3 -m specdeploy.builders.trtllm_warmup {shlex.quote(folder)}"),
        outputs=(f"{folder}/warmup.json",),
        needs_gpu=True,
        note="loads the LLM objects and generates a few tokens with and without drafting",
    )


def engine_steps(inputs: ScriptInputs, graph: StepGraph, engines: Iterable[EngineRecord]) -> tuple[HandStep, ...]:
    """Download, the steps of the graph, and the engines in their place."""
    work = f"{_WORK_ROOT}/{inputs.deployment}"
    folders = {str(one.role): one.container_folder for one in inputs.snapshots}
    here = {role: GraphSource(Path(folders[role]), source.digest) for role, source in graph.sources.items()}
    graph = replace(graph, sources=here)
    commands = [
        HandStep(
            name=step.name,
            kind="command",
            lines=(
                graph.shell_line(step, work=work),
                *(f"ls -l {work}/{step.slug}/{glob}" for glob in step.required_files),
            ),
            outputs=tuple(f"{work}/{step.slug}/{output}" for output in step.outputs),
            num_bytes=step.num_bytes,
            needs_gpu=step.needs_gpu,
            note=step.note,
        )
        for step in graph.order()
    ]
    built = {step.name: f"{work}/{step.slug}" for step in graph.steps}
    place = [
        f"mv {built[f'build {engine.model}']}/engine {shlex.quote(inputs.build_folder)}/{engine.folder}"
        for engine in engines
    ]
    return (*_downloads(inputs), *commands, _place(inputs, place))


def render_script(
    config: DeploymentConfig,
    image: str | None,
    steps: Iterable[HandStep],
    memory: MemoryBudget | None,
    *,
    allowed: Sequence[str] = (),
) -> str:
    """`commands.sh`: every step with its size and note as comments, then how the project does the same by itself.

    `allowed`: codes of warnings that the build needs consent to, or was given.
    """
    name = shlex.quote(config.name)
    consent = "".join(f" --allow {code}" for code in allowed)
    section = config.tensorrt_llm
    version = "TensorRT-LLM" if section is None else f"TensorRT-LLM {section.version}"
    unknown = f"where {version} is installed; no known container carries it"
    where = f"with {version} inside {image}" if image else unknown
    gpus = "" if section is None else f" on {section.num_gpus} x {section.gpu.value.upper()}"
    lines = [
        "#!/usr/bin/env bash",
        f"# {config.name} by hand, as `specdeploy build {config.name}` does it. Never run before: see UNCHECKED.md.",
        f"# Run it{gpus} {where},",
        "# with this project installed there (python3 -m pip install <its folder>).",
        "set -euo pipefail",
        'here="$(cd -- "$(dirname -- "$0")" && pwd)"',
    ]
    for number, step in enumerate(steps, start=1):
        facts = [f"about {format_bytes(step.num_bytes)}"] if step.num_bytes is not None else []
        facts += ["needs a GPU"] if step.needs_gpu else []
        lines += ["", f"# {number}. {step.name}" + (f" ({', '.join(facts)})" if facts else "")]
        lines += [f"# {step.note}"] if step.note else []
        lines += step.lines
    if memory is not None:
        lines += ["", "# Memory as it was counted:", *(f"#   {line}" for line in describe_budget(memory))]
    lines += [
        "",
        "# The model `llm` reads what only a build records. To serve, let the project do the steps above instead; it",
        "# resumes where it was interrupted, verifies what it made and writes it down:",
        f"#   specdeploy build {name}{consent} && specdeploy repo {name} && specdeploy serve {name}",
        "# It fetches checkpoints into the cache of the model hub; to have it read the folders above, name those in",
        f"# configs/deployments/{config.name}.yaml.",
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _downloads(inputs: ScriptInputs) -> tuple[HandStep, ...]:
    steps = []
    for one in inputs.snapshots:
        folder = one.container_folder
        if one.role in inputs.hub_roles:
            revision = ["--revision", one.source.revision] if one.source.revision is not None else []
            # Repositories of Meta hold the weights twice, the second time below original/.
            argv = [
                "hf",
                "download",
                one.source.checkpoint,
                *revision,
                "--exclude",
                "original/*",
                "--local-dir",
                folder,
            ]
            lines, note = (shlex.join(argv),), ""
        else:
            lines = (f"test -f {shlex.quote(folder)}/config.json",)
            note = f"copy or mount the folder {one.source.checkpoint} to {folder}"
        steps.append(
            HandStep(
                name=f"fetch {one.role} {one.source.checkpoint}",
                kind="download",
                lines=lines,
                outputs=(folder,),
                num_bytes=inputs.num_bytes.get(one.role),
                note=note,
            )
        )
    return tuple(steps)


def _place(inputs: ScriptInputs, lines: Iterable[str]) -> HandStep:
    """Config and tokenizer of the target, which the serving front reads, and what was made."""
    folder = shlex.quote(inputs.build_folder)
    target = next(one for one in inputs.snapshots if one.role == "target").container_folder
    copy = f"for file in {' '.join(f'{shlex.quote(target)}/{glob}' for glob in _TEXT_FILES.split())}; do"
    return HandStep(
        name="put together",
        kind="place",
        lines=(
            f"mkdir -p {folder}/target",
            f'{copy} if [[ -f "$file" ]]; then cp "$file" {folder}/target/; fi; done',
            *lines,
        ),
        outputs=(inputs.build_folder,),
    )
