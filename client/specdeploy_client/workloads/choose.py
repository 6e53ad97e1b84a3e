"""Which workload a command asks for: the deployment's prompt files, a file of the user's, a trace, or made prompts."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from specdeploy.config.load import LoadedDeployment
from specdeploy.errors import ConfigError, RequestError, Violation
from specdeploy_client.workloads.aiperf_inputs import load_aiperf_inputs, load_aiperf_lines
from specdeploy_client.workloads.base import BLOCK_TOKENS, Workload
from specdeploy_client.workloads.corpus import TextKind
from specdeploy_client.workloads.line_files import Findings, json_objects, parse_json, read_text, short_digest
from specdeploy_client.workloads.mooncake import SOURCE_KEYS, load_mooncake_trace
from specdeploy_client.workloads.prompt_file import group_by_segment, load_prompts
from specdeploy_client.workloads.prompt_writer import PromptWriter
from specdeploy_client.workloads.recorded import (
    WHOLE_TRACE,
    RecordedTraffic,
    TraceWindow,
    UnfitPolicy,
    cut_window,
    fit_target,
)
from specdeploy_client.workloads.render import Rendering
from specdeploy_client.workloads.sessions import Session, SessionWorkload
from specdeploy_client.workloads.sharegpt import load_sharegpt
from specdeploy_client.workloads.synthetic import Lengths, SyntheticWorkload
from specdeploy_client.workloads.traces import load_csv_trace

_DEFAULT_SEGMENT = "default"
_FORMATS = "prompt JSONL, Azure CSV, Mooncake JSONL, AIPerf single_turn, multi_turn and inputs.json, ShareGPT JSON"


class FileFormat(StrEnum):
    """Formats of files that requests are read from."""

    PROMPTS = "prompts"
    CSV_TRACE = "CSV trace"
    MOONCAKE = "Mooncake trace"
    AIPERF_LINES = "AIPerf input"
    AIPERF_INPUTS = "AIPerf inputs.json"
    SHAREGPT = "ShareGPT"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChoice:
    """What the command line says of the work; lengths in tokens, times in seconds.

    `segments` empty: all that there are prompts for. `block_tokens`: what one of a trace's `hash_ids` stands for.
    """

    segments: tuple[str, ...] = ()
    random_seed: int = 0
    input_file: Path | None = None
    isl: int | None = None
    isl_stddev: float = 0.0
    osl: int | None = None
    osl_stddev: float = 0.0
    text: TextKind = TextKind.PROSE
    trace: Path | None = None
    window: TraceWindow = WHOLE_TRACE
    unfit: UnfitPolicy = UnfitPolicy.REFUSE
    block_tokens: int = BLOCK_TOKENS


def open_workload(choice: WorkloadChoice, rendering: Rendering, deployment: LoadedDeployment | None = None) -> Workload:
    """The workload of `choice`; without a file, a trace or a length the prompt files of `deployment`.

    `rendering`: how the target's prompts are made and counted. Raises `ConfigError` for options that contradict each
    other and for bad files, `RequestError` for one option, `ClientError` where the tokenizer is needed and not known.
    """
    _check_options(choice, deployment)
    if choice.isl is not None:
        return _open_synthetic(choice, choice.isl, rendering, deployment)
    if choice.trace is not None:
        return _open_recorded(choice, choice.trace, detect_format(choice.trace), rendering, deployment)
    if choice.input_file is not None:
        found = detect_format(choice.input_file)
        if found is FileFormat.PROMPTS:
            return _open_prompt_file(choice, choice.input_file, deployment)
        return _open_recorded(choice, choice.input_file, found, rendering, deployment)
    if deployment is None:
        raise RequestError("--input-file", "is missing: nothing says what to ask", "Give it, or --trace, or --isl")
    return _open_deployment_prompts(choice, deployment)


def detect_format(path: Path) -> FileFormat:
    """What kind of file `path` is, by its ending and its first entry. Raises `ConfigError` for an unknown one."""
    text = read_text(path, f"Files of requests are {_FORMATS}")
    if path.suffix == ".csv":
        return FileFormat.CSV_TRACE
    if text.lstrip().startswith("["):
        return FileFormat.SHAREGPT
    first = _first_object(text)
    if first is None or "prompt" in first or ("id" in first and "turns" in first):
        return FileFormat.PROMPTS  # its loader names every line that is none
    for keys, found in (
        (("data",), FileFormat.AIPERF_INPUTS),
        (("conversations",), FileFormat.SHAREGPT),
        (SOURCE_KEYS, FileFormat.MOONCAKE),
        (("text", "texts", "turns"), FileFormat.AIPERF_LINES),
        (("id",), FileFormat.PROMPTS),
    ):
        if any(key in first for key in keys):
            return found
    reason = f"is of no known format: its first entry has {', '.join(first) or 'no keys'}"
    raise ConfigError([Violation(str(path), "", reason, f"Known are {_FORMATS}")])


def _first_object(text: str) -> dict[str, object] | None:
    """The whole document, or else the first line that is not blank, where it is an object."""
    first_line = next(line for line in text.split("\n") if line.strip())
    for candidate in (first_line, text):
        try:
            content = parse_json(candidate)
        except ValueError:
            continue
        return content if isinstance(content, dict) else None
    return None


def _check_options(choice: WorkloadChoice, deployment: LoadedDeployment | None) -> None:
    """Raise `ConfigError` with every option that contradicts another one or lacks it."""
    problems: list[Violation] = []

    def add(option: str, reason: str, remedy: str) -> None:
        problems.append(Violation(option, "", reason, remedy))

    given = {"--input-file": choice.input_file, "--trace": choice.trace, "--isl": choice.isl}
    named = [option for option, value in given.items() if value is not None]
    if len(named) > 1:
        add(named[0], f"stands beside {' and '.join(named[1:])}", "Give one source of requests")
    if choice.isl is None:
        for option, value in (("--isl-stddev", choice.isl_stddev), ("--osl", choice.osl)):
            if value:
                add(option, "belongs to prompts made to a length", "Give --isl, or --max-tokens for other prompts")
    if choice.osl is None and choice.osl_stddev:
        add("--osl-stddev", "has no --osl to spread", "Give --osl")
    if choice.trace is None and not choice.window.is_whole and choice.input_file is None:
        add("--trace-speedup", "belongs to recorded arrivals", "Give --trace")
    if choice.trace is None and choice.block_tokens != BLOCK_TOKENS and choice.input_file is None:
        add("--trace-block-tokens", "belongs to a trace with hash_ids", "Give --trace")
    if deployment is not None:
        known = [segment.name for segment in deployment.config.traffic.segments]
        if unknown := [name for name in choice.segments if name not in known]:
            reason = f"{deployment.config.name} has no segment {', '.join(unknown)}"
            add("--segments", reason, f"It has {', '.join(known)}")
    if problems:
        raise ConfigError(problems)


def _open_synthetic(
    choice: WorkloadChoice, isl: int, rendering: Rendering, deployment: LoadedDeployment | None
) -> SyntheticWorkload:
    return SyntheticWorkload(
        choice.segments or ("synthetic",),
        PromptWriter(rendering, choice.text, choice.random_seed),
        Lengths(isl, choice.isl_stddev),
        None if choice.osl is None else Lengths(choice.osl, choice.osl_stddev),
        choice.random_seed,
        _most_tokens(deployment),
    )


def _open_recorded(
    choice: WorkloadChoice,
    path: Path,
    found: FileFormat,
    rendering: Rendering,
    deployment: LoadedDeployment | None,
) -> SessionWorkload:
    option = "--input-file" if choice.trace is None else "--trace"
    loaders: dict[FileFormat, Callable[[Path], RecordedTraffic]] = {
        FileFormat.CSV_TRACE: load_csv_trace,
        FileFormat.MOONCAKE: lambda file: load_mooncake_trace(file, choice.block_tokens),
        FileFormat.AIPERF_LINES: load_aiperf_lines,
        FileFormat.AIPERF_INPUTS: load_aiperf_inputs,
        FileFormat.SHAREGPT: load_sharegpt,
    }
    if found not in loaders:
        _require_json_lines(path)
        raise RequestError(
            option, f"{path} is no recorded traffic", f"Known are {_FORMATS}; prompts go to --input-file"
        )
    if len(choice.segments) > 1:
        raise RequestError("--segments", f"{path} is the traffic of one segment", "Name one")
    traffic = cut_window(loaders[found](path), choice.window)
    writer = None
    if traffic.has_made_text:
        writer = PromptWriter(rendering, choice.text, choice.random_seed)
        traffic = fit_target(traffic, writer.least_tokens, _most_tokens(deployment), choice.unfit, option)
    segment = choice.segments[0] if choice.segments else _only_segment(deployment) or "recorded"
    return SessionWorkload(
        traffic.source,
        "; ".join((f"{_file(path)}, {traffic.source}, {traffic.num_requests} requests", *traffic.notes)),
        {segment: traffic.sessions},
        choice.random_seed,
        order="recorded" if traffic.has_arrivals else "shuffled",
        writer=writer,
        counter=rendering.counter,
        block_tokens=choice.block_tokens,
    )


def _require_json_lines(path: Path) -> None:
    """Raise `ConfigError` with the lines of `path` that are no JSON objects: a broken first one hides the format."""
    findings = Findings(path)
    deque(json_objects(read_text(path, f"Files of requests are {_FORMATS}"), findings), maxlen=0)
    findings.raise_if_any()


def _open_prompt_file(choice: WorkloadChoice, path: Path, deployment: LoadedDeployment | None) -> SessionWorkload:
    """A prompt file of the user's: the segments that its lines name, or the one of all."""
    if not choice.window.is_whole:
        raise RequestError("--trace-speedup", f"{path} says no arrival times", "Leave out the --trace-... options")
    known = None if deployment is None else tuple(segment.name for segment in deployment.config.traffic.segments)
    default = choice.segments[0] if len(choice.segments) == 1 else _only_segment(deployment)
    if deployment is None and not choice.segments:
        default = _DEFAULT_SEGMENT
    prompts = load_prompts(path, known)
    sessions = group_by_segment(prompts, path, default)
    if missing := [name for name in choice.segments if name not in sessions]:
        raise RequestError(
            "--segments", f"{path} has no prompts for {', '.join(missing)}", f"It has some for {', '.join(sessions)}"
        )
    chosen = {name: sessions[name] for name in choice.segments or sessions}
    description = f"{_file(path)}, {len(prompts)} prompts"
    return SessionWorkload("prompt file", description, chosen, choice.random_seed)


def _open_deployment_prompts(choice: WorkloadChoice, deployment: LoadedDeployment) -> SessionWorkload:
    """The prompt file of each segment; several segments may share one whose lines name theirs."""
    segments = deployment.config.traffic.segments
    known = tuple(segment.name for segment in segments)
    sessions: dict[str, tuple[Session, ...]] = {}
    sources: list[str] = []
    violations: list[Violation] = []
    for segment in segments:
        if choice.segments and segment.name not in choice.segments:
            continue
        path = deployment.path.parent / segment.prompts
        try:
            prompts = load_prompts(path, known)
        except ConfigError as error:
            violations += error.violations
            continue
        own = tuple(prompt.session for prompt in prompts if prompt.segment in (None, segment.name))
        if not own:
            violations.append(Violation(str(path), "segment", f"no line is for {segment.name}", "Add some"))
        sessions[segment.name] = own
        sources.append(f"{segment.name}: {_file(path)}, {len(own)} prompts")
    if violations:
        raise ConfigError(violations)
    return SessionWorkload("prompt files", "; ".join(sources), sessions, choice.random_seed)


def _only_segment(deployment: LoadedDeployment | None) -> str | None:
    segments = () if deployment is None else deployment.config.traffic.segments
    return segments[0].name if len(segments) == 1 else None


def _most_tokens(deployment: LoadedDeployment | None) -> int | None:
    return None if deployment is None else deployment.config.serving.max_seq_len


def _file(path: Path) -> str:
    return f"{path.name} (sha256 {short_digest(path)})"
