"""The commands of a dry run: what `specdeploy build` does on the GPU machine, to be read and run by hand."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt

from specdeploy.builders.step_graph import GraphSource, StepGraph
from specdeploy.builders.trtllm_commands import PLACEHOLDERS
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
    place = [line for name in files for line in _copy_arguments(name, folder)]
    lines = [f"python3 -m specdeploy.builders.trtllm_probe {PLANNED_ROOT}"]
    if is_unresolved:
        advice = "write into it what the probe printed, then run this again"
        lines.append(f"""if grep -n ' unresolved:' "$here"/llm_args*.yaml; then echo '{advice}' >&2; exit 1; fi""")
    probe = HandStep(
        name="probe",
        kind="check",
        lines=tuple(lines),
        outputs=(f"{PLANNED_ROOT}/probes",),
        note="prints how the installed version spells each method",
    )
    return (*_downloads(inputs), probe, _place(inputs, place), _warmup(folder, without_warmup))


def _copy_arguments(name: str, folder: str) -> tuple[str, str]:
    """A copy that was edited is not written over: what is edited is the file beside the script."""
    copy = shlex.quote(f"{folder}/{name}")
    advice = shlex.quote(f"{folder}/{name} differs from the {name} beside this script: edit that one, remove the copy")
    source = f'"$here/{name}"'
    return f"if [[ -e {copy} ]] && ! cmp -s {source} {copy}; then echo {advice} >&2; exit 1; fi", f"cp {source} {copy}"


def _warmup(folder: str, without_warmup: str | None) -> HandStep:
    if without_warmup is not None:
        return HandStep(name="warm-up", kind="check", lines=(), note=without_warmup)
    return HandStep(
        name="warm-up",
        kind="check",
        lines=(f"python3 -m specdeploy.builders.trtllm_warmup {shlex.quote(folder)}",),
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
    places = {engine.model: shlex.quote(f"{inputs.build_folder}/{engine.folder}") for engine in engines}
    place = [f"mv -T {built[f'build {model}']}/engine {folder}" for model, folder in places.items()]
    return (_refuse_old_engines(places.values()), *_downloads(inputs), *commands, _place(inputs, place))


def _refuse_old_engines(folders: Iterable[str]) -> HandStep:
    """Before hours of work: engines of an earlier run are neither written over nor nested into."""
    refuse = 'echo "$folder is there already: move it away first" >&2; exit 1'
    return HandStep(
        name="look for engines of an earlier run",
        kind="check",
        lines=(f'for folder in {" ".join(folders)}; do if [[ -e "$folder" ]]; then {refuse}; fi; done',),
    )


def find_placeholders(steps: Iterable[HandStep]) -> tuple[str, ...]:
    """Words in angle brackets that no shell could run, each once: what only a checkpoint tells."""
    lines = [line for step in steps for line in step.lines]
    return tuple(word for word in PLACEHOLDERS if any(word in line for line in lines))


def render_script(
    config: DeploymentConfig,
    image: str | None,
    steps: Iterable[HandStep],
    memory: MemoryBudget | None,
    *,
    allowed: Sequence[str] = (),
    blocker: str | None = None,
) -> str:
    """`commands.sh`: how the project does the same by itself, then every step with its size and note as comments.

    `allowed`: codes of warnings that the build needs consent to, or was given. `blocker`: why the commands cannot run
    as they stand; the script then says so and ends before it fetches anything.
    """
    lines = [*_script_head(config, image, allowed), "set -euo pipefail", 'here="$(cd -- "$(dirname -- "$0")" && pwd)"']
    if blocker is not None:
        lines += ["", f"echo {shlex.quote(blocker)} >&2; exit 1"]
    for number, step in enumerate(steps, start=1):
        facts = [f"about {format_bytes(step.num_bytes)}"] if step.num_bytes is not None else []
        facts += ["needs a GPU"] if step.needs_gpu else []
        lines += ["", f"# {number}. {step.name}" + (f" ({', '.join(facts)})" if facts else "")]
        lines += [f"# {step.note}"] if step.note else []
        lines += step.lines
    if memory is not None:
        lines += ["", "# Memory as it was counted:", *(f"#   {line}" for line in describe_budget(memory))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _script_head(config: DeploymentConfig, image: str | None, allowed: Sequence[str]) -> list[str]:
    """What to know before the first of these commands: most people should run none of them."""
    name = shlex.quote(config.name)
    consent = "".join(f" --allow {code}" for code in allowed)
    section = config.tensorrt_llm
    version = "TensorRT-LLM" if section is None else f"TensorRT-LLM {section.version}"
    unknown = f"where {version} is installed; no known container carries it"
    where = f"with {version} inside {image}" if image else unknown
    gpus = "" if section is None else f" on {section.num_gpus} x {section.gpu.value.upper()}"
    options = '--gpus all --ipc=host -v /mnt/disk:/workspace -v "$PWD":/project -w /project -e HF_TOKEN'
    enter = []
    if image is not None:
        enter.append("# To get there, from the folder of this project, with a large disk as /workspace:")
        enter.append(f"#   docker run -it {options} {image} bash")
    return [
        "#!/usr/bin/env bash",
        f"# {config.name} by hand, as `specdeploy build {config.name}` does it. Never run before: see UNCHECKED.md.",
        f"# Run it{gpus} {where}.",
        *enter,
        "#   python3 -m pip install -e '.[serve]'",
        "#",
        "# What these commands make cannot be served: the model `llm` reads what only a build records. To serve, let",
        "# the project do them instead; it resumes where it was interrupted, verifies what it made and writes it down:",
        f"#   specdeploy build {name}{consent} && specdeploy repo {name} && specdeploy serve {name}",
        "# It fetches checkpoints into the cache of the model hub; to have it read the folders below, name those in",
        f"# configs/deployments/{config.name}.yaml.",
    ]


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
