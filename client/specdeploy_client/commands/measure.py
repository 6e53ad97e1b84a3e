"""Commands that talk to a server: query, bench, verify, smoke."""

import asyncio
import shlex
import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from specdeploy.config.load import load_deployment, load_yaml_model
from specdeploy.errors import ClientError
from specdeploy.verdict_contract import GateConfig
from specdeploy_client.bench import BenchResult
from specdeploy_client.bench_plan import VERIFY_BUDGET
from specdeploy_client.commands.option_values import OptionProblems
from specdeploy_client.commands.options import (
    DEFAULT_BUDGET,
    DEFAULT_DEPLOYMENT,
    DEFAULT_GATE,
    Also,
    Budget,
    EndpointOptions,
    Gate,
    LoadOptions,
    ResultOptions,
    SwitchOptions,
    WorkloadOptions,
)
from specdeploy_client.commands.terminal import (
    EXIT_CODES,
    EXIT_FAILED,
    EXIT_INCONCLUSIVE,
    print_error,
    print_note,
    stderr,
    stdout,
)
from specdeploy_client.measuring import answer, check_prompt, measure, plan_measurement
from specdeploy_client.reporting.console import run_notes, run_table, truth_line
from specdeploy_client.run_folder import (
    default_artifact_dir,
    judge_run,
    verify_run,
    write_report,
)
from specdeploy_client.session import open_session
from specdeploy_client.transport import GenerationRequest

# `ui` is of what is shown while measuring: nothing.
_USED_BY_FROM_RUN = frozenset({"deployment", "engines_root", "artifact_dir", "ui"})


def query(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask; - reads it from standard input.")],
    endpoint: EndpointOptions,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens at most.")] = 128,
    num_draft_tokens: Annotated[int | None, typer.Option(min=0, help="K; 0 = off. Default: the plan's.")] = None,
    segment: Annotated[str | None, typer.Option(help="Traffic label.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 or absent: greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0)] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the server's sampling.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop text; may be repeated.")] = None,
) -> None:
    """Stream one answer; the last line says what it took."""
    text = check_prompt(sys.stdin.read() if prompt == "-" else prompt)
    session = open_session(endpoint)
    _print_notes(session.notes)
    request = GenerationRequest(
        prompt=session.rendering.prompt(text),
        turns=(text,),
        max_tokens=max_tokens,
        num_draft_tokens=num_draft_tokens,
        segment=segment,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_words=tuple(stop or ()),
    )
    try:
        record = asyncio.run(answer(session, request, lambda piece: stdout.out(piece, end="", highlight=False)))
    except ClientError as error:  # there is nothing to judge that could be inconclusive
        print_error(f"error: {error}")
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt:
        stdout.out("")  # the answer stands as far as it came
        raise
    stdout.out("")
    stdout.out(truth_line(record), style="dim", highlight=False)


def bench(
    endpoint: EndpointOptions,
    switch: SwitchOptions,
    workload: WorkloadOptions,
    load: LoadOptions,
    results: ResultOptions,
    budget: Budget = DEFAULT_BUDGET,
    gate_file: Annotated[
        Path | None, typer.Option("--gate", help="What will judge the run: pairs still needed are counted for it.")
    ] = None,
) -> None:
    """Measure speculation off and on, interleaved; write records.jsonl and run_summary.json.

    Exits 2 where requests failed, the run ended early, or nothing of it can be compared.
    """
    gate = None if gate_file is None else load_yaml_model(gate_file, GateConfig)
    result, folder = _measure(endpoint, switch, workload, load, results, gate=gate, budget=budget)
    stdout.print(f"results: {folder}", soft_wrap=True)
    if not (result.is_whole and result.is_comparable):
        raise typer.Exit(EXIT_INCONCLUSIVE)


def verify(
    endpoint: EndpointOptions,
    switch: SwitchOptions,
    workload: WorkloadOptions,
    load: LoadOptions,
    results: ResultOptions,
    from_run: Annotated[
        bool, typer.Option("--from-run", help="Check the records of the last bench; no server.")
    ] = False,
) -> None:
    """Check outputs on against off; write integrity.json and engines/integrity/<build id>.json."""
    if from_run:
        _require_no_measuring(endpoint, switch, workload, load, results)
        name = load_deployment(endpoint.deployment or DEFAULT_DEPLOYMENT).config.name
        folder = results.artifact_dir or default_artifact_dir(name)
    else:
        # Its own folder: the records of the last bench stay as they are.
        _, folder = _measure(
            endpoint, switch, workload, load, results, budget=VERIFY_BUDGET.name, subfolder="verify", is_shown=False
        )
    report = verify_run(folder, endpoint.engines_root)
    raise typer.Exit(EXIT_CODES[report.status])


def smoke(
    endpoint: EndpointOptions,
    switch: SwitchOptions,
    workload: WorkloadOptions,
    load: LoadOptions,
    results: ResultOptions,
    budget: Budget = DEFAULT_BUDGET,
    gate_file: Gate = DEFAULT_GATE,
    also: Also = None,
) -> None:
    """The latency smoke test: bench, verify on the same records, gate, report."""
    gate = load_yaml_model(gate_file, GateConfig)  # before minutes of measuring
    _, folder = _measure(endpoint, switch, workload, load, results, gate=gate, budget=budget)
    verify_run(folder, endpoint.engines_root)
    verdict = judge_run(folder, gate, endpoint.engines_root)
    write_report(folder, also or [], endpoint.engines_root)
    raise typer.Exit(EXIT_CODES[verdict.status])


def _measure(
    endpoint: EndpointOptions,
    switch: SwitchOptions,
    workload: WorkloadOptions,
    load: LoadOptions,
    results: ResultOptions,
    *,
    budget: str,
    gate: GateConfig | None = None,
    subfolder: str = "",
    is_shown: bool = True,
) -> tuple[BenchResult, Path]:
    """Measure into the session's folder, or a folder in it, and say what came out."""
    session = open_session(endpoint, switch, results.artifact_dir)
    session = replace(session, artifact_dir=session.artifact_dir / subfolder)
    _print_notes(session.notes)
    measurement = plan_measurement(session, workload, load, results, gate=gate, budget=budget)
    command = shlex.join(["specdeploy-client", *sys.argv[1:]])
    stopped: list[BenchResult] = []
    try:
        result = asyncio.run(measure(measurement, command, stderr, stopped.append))
    except KeyboardInterrupt:
        for partial in stopped:
            show_run(partial)
            print_error(f"what was measured until then is in {session.artifact_dir}")
        raise
    if is_shown:
        show_run(result)
    return result, session.artifact_dir


def show_run(result: BenchResult) -> None:
    """The table of a run that was just measured, what is void and what is missing."""
    if result.summary.cells:
        stdout.print(run_table(result.summary))
    for note in run_notes(result.summary):
        stdout.print(note, soft_wrap=True, highlight=False)
    for name, value in result.summary.environment.items():
        if name.startswith(("prompts of", "segments not", "server facts", "probe")):
            stdout.print(f"note: {name}: {value}", soft_wrap=True, highlight=False)
    for failure in result.warm_up_failures:
        print_note(failure)
    for shortcoming in result.shortcomings:
        print_error(f"not whole: {shortcoming}")


def _print_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        print_note(note)


def _require_no_measuring(*groups: object) -> None:
    """Raise `ConfigError` for options that `verify --from-run`, which sends nothing, would drop without a word."""
    problems = OptionProblems()
    for group in groups:
        assert is_dataclass(group)  # noqa: S101 - a group of options
        for field in fields(group):
            if field.name not in _USED_BY_FROM_RUN and getattr(group, field.name) != field.default:
                option = "--" + field.name.replace("_", "-")
                problems.add(option, "says how to measure, and --from-run measures nothing", "Leave out one of them")
    problems.raise_if_any()
