"""A build of many commands, as data: which step needs which, and the content address of what each one makes.

Nothing runs here. `step_runner` runs a graph; a dry run prints `describe` and `shell_line`.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from specdeploy.errors import BuildError
from specdeploy.units import format_bytes

KEY_LENGTH = 32  # hex digits: 128 bits of a SHA-256
STEP_RECORD_NAME = "step.json"  # marker of a finished step inside its folder
KEY_SCHEMA_VERSION = 1  # counts up when the meaning of a key changes, so that older finished steps are not picked up


@dataclass(frozen=True, slots=True)
class OutputPath:
    """Path of output `name` of the very step whose command holds it."""

    name: str


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Path of output `name` of another step. The steps it orders; the key of that step enters the key of this one."""

    step: str
    name: str


@dataclass(frozen=True, slots=True)
class SourcePath:
    """Path of the source `role`, a checkpoint folder. Its digest, not its path, enters the key."""

    role: str


@dataclass(frozen=True, slots=True)
class ToolPath:
    """A program or script of the installation (`trtllm-build`, `convert_checkpoint.py`, the interpreter).

    `name` (what it is, the same on every machine) and `digest` enter the key, `path` does not. `digest` is that of a
    script, which people patch; which build of a program it is belongs into `StepGraph.versions`. `path` may be a bare
    program name, looked up in PATH.
    """

    name: str
    path: Path
    digest: str | None = None


Argument = str | OutputPath | StepOutput | SourcePath | ToolPath


@dataclass(frozen=True, slots=True)
class GraphStep:
    """One command.

    `argv` the command, references unresolved. `outputs` the names (one path component) of the files or folders that it
    must have written below its own step folder; `required_files` globs below the step folder, each of which must match
    a file that is not empty. `environment` is added to the environment of the child AND enters the key, so it holds
    only what decides the bytes. `num_bytes` expected size of all outputs, for the disk check; None = not known.
    `needs_gpu` steps never run beside each other. `versions` decide the bytes of this step and not of others, beside
    those of the graph. `note` is one sentence for people, part of `describe` only.
    """

    name: str
    argv: tuple[Argument, ...]
    outputs: tuple[str, ...]
    required_files: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    num_bytes: int | None = None
    needs_gpu: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the steps whose outputs it reads, without repeats, in the order of the command."""
        return tuple(dict.fromkeys(argument.step for argument in self.argv if isinstance(argument, StepOutput)))

    @property
    def slug(self) -> str:
        """The name as a folder name."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.")


@dataclass(frozen=True, slots=True)
class GraphSource:
    """A checkpoint folder and the digest of what is in it."""

    path: Path
    digest: str


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Steps, the checkpoints they read by role, and the versions (TensorRT-LLM, TensorRT, GPU) that decide bytes."""

    steps: tuple[GraphStep, ...]
    sources: Mapping[str, GraphSource]
    versions: Mapping[str, str]

    def order(self) -> tuple[GraphStep, ...]:
        """The steps, each after those it needs, else as they are listed.

        Raises `BuildError` with everything wrong at once: repeated names, unknown steps, outputs or sources, names that
        leave the step folder, absolute paths written as plain text, cycles.
        """
        if problems := list(_find_problems(self)):
            raise BuildError("the build graph is wrong: " + "; ".join(problems))
        by_name = {step.name: step for step in self.steps}
        ordered: dict[str, GraphStep] = {}
        while len(ordered) < len(self.steps):
            ready = next(
                (step for step in self.steps if step.name not in ordered and set(step.needs) <= ordered.keys()), None
            )
            if ready is None:
                cycle = ", ".join(name for name in by_name if name not in ordered)
                raise BuildError(f"the build graph is wrong: these steps wait for each other: {cycle}")
            ordered[ready.name] = ready
        return tuple(ordered.values())

    def keys(self) -> dict[str, str]:
        """Step name -> content address (32 hex digits) of what the step makes.

        It covers the command with its references replaced by keys and digests, outputs, required files, environment
        and versions; never the name of the step nor a path of this machine. Equal keys mean equal results.
        """
        keys: dict[str, str] = {}
        for step in self.order():
            content = {
                "schema_version": KEY_SCHEMA_VERSION,
                "argv": [self._argument_content(argument, keys) for argument in step.argv],
                "outputs": list(step.outputs),
                "required_files": list(step.required_files),
                "environment": dict(step.environment),
                "versions": {**self.versions, **step.versions},
            }
            text = json.dumps(content, sort_keys=True, separators=(",", ":"))
            keys[step.name] = hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]
        return keys

    def describe(self) -> list[str]:
        """One line per step, in order: what goes in, what comes out, how large."""
        steps = self.order()
        return [f"[{number}/{len(steps)}] {self._describe_step(step)}" for number, step in enumerate(steps, start=1)]

    def shell_line(self, step: GraphStep, *, work: str) -> str:
        """The command of `step` for copy and paste into a POSIX shell, run in the order of `order`.

        Every step writes below `work`/<step>/, sources keep their paths.
        """
        by_name = {each.name: each for each in self.steps}
        folders = {name: f"{work}/{each.slug}" for name, each in by_name.items()}
        argv = resolve_argv(step, folders, self.sources)
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(step.environment.items())]
        return f"mkdir -p {shlex.quote(folders[step.name])} && {' '.join([*variables, shlex.join(argv)])}"

    def _argument_content(self, argument: Argument, keys: Mapping[str, str]) -> dict[str, str]:
        match argument:
            case OutputPath(name):
                return {"output": name}
            case StepOutput(step, name):
                return {"step": keys[step], "output": name}
            case SourcePath(role):
                return {"source": self.sources[role].digest}
            case ToolPath(name, _, digest):
                return {"tool": name} if digest is None else {"tool": name, "digest": digest}
            case text:
                return {"text": text}

    def _describe_step(self, step: GraphStep) -> str:
        inputs = [
            f"{argument.role} ({self.sources[argument.role].digest[:12]})"
            if isinstance(argument, SourcePath)
            else f"{argument.step}/{argument.name}"
            for argument in dict.fromkeys(step.argv)
            if isinstance(argument, SourcePath | StepOutput)
        ]
        facts = [f"about {format_bytes(step.num_bytes)}"] if step.num_bytes is not None else []
        facts += ["needs a GPU"] if step.needs_gpu else []
        facts += [step.note] if step.note else []
        return f"{step.name}: {', '.join(inputs) or 'nothing'} -> {', '.join(step.outputs)}" + (
            f" ({'; '.join(facts)})" if facts else ""
        )


def resolve_argv(step: GraphStep, folders: Mapping[str, Path | str], sources: Mapping[str, GraphSource]) -> list[str]:
    """The command of `step` with every reference replaced by a path; `folders` maps step name -> its folder."""
    resolved = []
    for argument in step.argv:
        match argument:
            case OutputPath(name):
                resolved.append(f"{folders[step.name]}/{name}")
            case StepOutput(other, name):
                resolved.append(f"{folders[other]}/{name}")
            case SourcePath(role):
                resolved.append(str(sources[role].path))
            case ToolPath(path=path):
                resolved.append(str(path))
            case text:
                resolved.append(text)
    return resolved


def with_absolute_paths(graph: StepGraph, step: GraphStep) -> tuple[GraphStep, dict[str, GraphSource]]:
    """`step` and its sources with relative paths made absolute, since children run in their step folder.

    A tool that is a bare name stays one: it is looked up in PATH.
    """
    argv = tuple(
        replace(each, path=each.path.absolute()) if isinstance(each, ToolPath) and len(each.path.parts) > 1 else each
        for each in step.argv
    )
    sources = {role: replace(source, path=source.path.absolute()) for role, source in graph.sources.items()}
    return replace(step, argv=argv), sources


def _find_problems(graph: StepGraph) -> Iterator[str]:
    if not graph.steps:
        yield "it has no step"
    slugs: dict[str, str] = {}
    for step in graph.steps:
        if not step.slug:
            yield f"a step is called {step.name!r}: give it a name with letters or digits"
        elif step.slug in slugs:
            yield f"two steps are called {step.name!r}" + (
                "" if slugs[step.slug] == step.name else f" and {slugs[step.slug]!r}, one folder name"
            )
        slugs.setdefault(step.slug, step.name)
        yield from (f"step {step.name}: {problem}" for problem in _find_step_problems(step, graph))


def _find_step_problems(step: GraphStep, graph: StepGraph) -> Iterator[str]:
    if not step.argv:
        yield "it has no command"
    if not step.outputs:
        yield "it names no output"
    for name in step.outputs:
        if PurePosixPath(name).name != name or name in ("", "..", STEP_RECORD_NAME):
            yield f"output {name!r} is not a plain name"
    for glob in step.required_files:
        if PurePosixPath(glob).is_absolute() or ".." in PurePosixPath(glob).parts:
            yield f"required file {glob!r} lies outside the step folder"
    outputs = {each.name: each.outputs for each in graph.steps}
    for argument in dict.fromkeys(step.argv):
        if problem := _argument_problem(argument, step, outputs, graph.sources):
            yield problem


def _argument_problem(
    argument: Argument, step: GraphStep, outputs: Mapping[str, tuple[str, ...]], sources: Mapping[str, GraphSource]
) -> str | None:
    match argument:
        case OutputPath(name) if name not in step.outputs:
            return f"output {name!r} is used but not listed"
        case StepOutput(other, _) if other not in outputs:
            return f"there is no step {other!r}"
        case StepOutput(other, name) if name not in outputs[other]:
            return f"step {other} has no output {name!r}"
        case SourcePath(role) if role not in sources:
            return f"there is no source {role!r}"
        case str() if argument.startswith("/"):
            return f"{argument!r} is a path of this machine: pass it as ToolPath or SourcePath"
    return None
