"""`specdeploy-client`: ask, measure, check and judge a deployed server.

Exit codes: 0 pass, 1 fail, 2 inconclusive, 64 usage or config, 70 internal, 130 interrupted.
"""

import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer
from rich.console import Console

from specdeploy.config.load import load_deployment, load_yaml_model
from specdeploy.errors import ConfigError, RequestError, SpecDeployError
from specdeploy.run_contract import GateConfig, IntegrityReport, RunSummary, Status, Verdict
from specdeploy_client.artifacts import (
    INTEGRITY_FILE,
    RECORDS_FILE,
    REPORT_FILE,
    RUN_SUMMARY_FILE,
    SERVER_COUNTERS_FILE,
    VERDICT_FILE,
    load_model,
    write_model,
    write_text,
)
from specdeploy_client.bench import BUDGETS, VERIFY_BUDGET, BenchOptions, BenchResult, load_counters
from specdeploy_client.chat import ChatTemplate, find_chat_template, load_chat_template
from specdeploy_client.console import (
    integrity_panel,
    methods_table,
    run_table,
    truth_line,
    verdict_panel,
    void_notes,
)
from specdeploy_client.gate import judge
from specdeploy_client.integrity import check_integrity, integrity_path, write_integrity
from specdeploy_client.methods import compare_methods
from specdeploy_client.records import load_records
from specdeploy_client.report import ReportInput, render_report
from specdeploy_client.session import Session, answer, check_prompt, measure, parse_levels
from specdeploy_client.transport import GenerationRequest

EXIT_CODES = {Status.PASS: 0, Status.FAIL: 1, Status.INCONCLUSIVE: 2}
EXIT_FAILED, EXIT_USAGE, EXIT_INTERNAL, EXIT_INTERRUPTED = 1, 64, 70, 130
# typer carries its own copy of click in newer versions; its base class of usage errors is found without naming either.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    help="Ask, measure, check and judge a deployed server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
# A log file has no width of its own; 120 columns hold every table.
stdout = Console(width=None if sys.stdout.isatty() else 120)
stderr = Console(stderr=True)

Deployment = Annotated[str, typer.Option(help="Name in configs/deployments, or the path of a YAML file.")]
Url = Annotated[str | None, typer.Option("--url", "-u", help="host:port of gRPC. Default: the config's.")]
MetricsUrl = Annotated[str | None, typer.Option(help="Address of the metrics page. Default: the config's.")]
EnginesRoot = Annotated[Path, typer.Option(help="Where builds and integrity reports live.")]
ArtifactDir = Annotated[Path | None, typer.Option(help="Where results go. Default: artifacts/<deployment>.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds for one whole request.")]
Template = Annotated[Path | None, typer.Option("--chat-template", help="A jinja chat template. Default: the build's.")]
Raw = Annotated[bool, typer.Option("--raw", help="Send prompts without a chat template.")]
Budget = Annotated[str, typer.Option(help=f"How much to measure: {', '.join(BUDGETS)}.")]
Segments = Annotated[str, typer.Option(help="Comma-separated segments. Default: the budget's.")]
Concurrency = Annotated[str, typer.Option(help="Comma-separated levels, for example 1,2,4,8. Default: the budget's.")]
RequestCount = Annotated[int | None, typer.Option(min=1, help="Requests per arm and cell. Default: the budget's.")]
WarmupCount = Annotated[
    int | None, typer.Option("--warmup-request-count", min=1, help="Per arm and cell. Default: one per worker.")
]
RandomSeed = Annotated[int, typer.Option(min=0, help="Chooses prompts and resamples.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Output tokens per request. Default: the segment's.")]
Gate = Annotated[Path, typer.Option("--gate", help="What the deployment must show.")]
Also = Annotated[list[Path] | None, typer.Option(help="Artifact folder of a further run to show in the report.")]

DEFAULT_ENGINES = Path("engines")
DEFAULT_GATE = Path("configs/gates/default.yaml")


@app.command()
def query(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask; - reads it from standard input.")],
    deployment: Deployment = "demo",
    url: Url = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens at most.")] = 128,
    num_draft_tokens: Annotated[int | None, typer.Option(min=0, help="K; 0 = off. Default: the plan's.")] = None,
    segment: Annotated[str | None, typer.Option(help="Traffic label.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 or absent: greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0)] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the server's sampling.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop text; may be repeated.")] = None,
    engines_root: EnginesRoot = DEFAULT_ENGINES,
    chat_template: Template = None,
    raw: Raw = False,
    timeout: Timeout = 300.0,
) -> None:
    """Stream one answer; the last line says what it took."""
    text = check_prompt(sys.stdin.read() if prompt == "-" else prompt)
    session = _open_session(deployment, url, None, engines_root, None, timeout, chat_template, raw)
    request = GenerationRequest(
        prompt=session.render(text),
        max_tokens=max_tokens,
        num_draft_tokens=num_draft_tokens,
        segment=segment,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop_words=tuple(stop or ()),
    )
    record = asyncio.run(answer(session, request, lambda piece: stdout.out(piece, end="", highlight=False)))
    stdout.out("")
    stdout.out(truth_line(record), style="dim", highlight=False)


@app.command()
def bench(
    deployment: Deployment = "demo",
    budget: Budget = "quick",
    segments: Segments = "",
    concurrency: Concurrency = "",
    request_count: RequestCount = None,
    warmup_request_count: WarmupCount = None,
    random_seed: RandomSeed = 0,
    max_tokens: MaxTokens = None,
    url: Url = None,
    metrics_url: MetricsUrl = None,
    engines_root: EnginesRoot = DEFAULT_ENGINES,
    artifact_dir: ArtifactDir = None,
    chat_template: Template = None,
    raw: Raw = False,
    timeout: Timeout = 300.0,
) -> None:
    """Measure speculation off and on, interleaved; write records.jsonl and run_summary.json."""
    options = _bench_options(
        budget, segments, concurrency, request_count, warmup_request_count, random_seed, max_tokens
    )
    session = _open_session(deployment, url, metrics_url, engines_root, artifact_dir, timeout, chat_template, raw)
    result = asyncio.run(measure(session, options, _command(), stderr))
    _show_run(result.summary)
    stdout.print(f"results: {session.artifact_dir}", soft_wrap=True)


@app.command()
def verify(
    deployment: Deployment = "demo",
    from_run: Annotated[
        bool, typer.Option("--from-run", help="Check the records of the last bench; no server.")
    ] = False,
    request_count: RequestCount = None,
    concurrency: Concurrency = "",
    segments: Segments = "",
    random_seed: RandomSeed = 0,
    max_tokens: MaxTokens = None,
    url: Url = None,
    metrics_url: MetricsUrl = None,
    engines_root: EnginesRoot = DEFAULT_ENGINES,
    artifact_dir: ArtifactDir = None,
    chat_template: Template = None,
    raw: Raw = False,
    timeout: Timeout = 300.0,
) -> None:
    """Check outputs on against off; write integrity.json and engines/integrity/<build id>.json."""
    if from_run:
        folder = artifact_dir or _default_artifact_dir(load_deployment(deployment).config.name)
        result = _load_result(folder)
    else:
        options = _bench_options(
            VERIFY_BUDGET.name, segments, concurrency, request_count, None, random_seed, max_tokens
        )
        session = _open_session(deployment, url, metrics_url, engines_root, artifact_dir, timeout, chat_template, raw)
        # Its own folder: the records of the last bench stay as they are.
        folder = session.artifact_dir / "verify"
        result = asyncio.run(measure(replace(session, artifact_dir=folder), options, _command(), stderr))
    report = _check_and_write(result, folder, engines_root)
    raise typer.Exit(EXIT_CODES[report.status])


@app.command()
def gate(
    deployment: Deployment = "demo",
    gate_file: Gate = DEFAULT_GATE,
    summary: Annotated[Path | None, typer.Option(help="A run_summary.json. Default: the deployment's.")] = None,
    integrity: Annotated[
        Path | None, typer.Option(help="An integrity report. Default: the run's, else the build's.")
    ] = None,
    engines_root: EnginesRoot = DEFAULT_ENGINES,
    artifact_dir: ArtifactDir = None,
) -> None:
    """Judge a run from its files; write verdict.json. Talks to no server."""
    folder = artifact_dir or (summary.parent if summary else _default_artifact_dir(deployment))
    run = _load_summary(summary or folder / RUN_SUMMARY_FILE)
    beside = folder / INTEGRITY_FILE
    if integrity is None and beside.is_file():
        integrity = beside
    verdict = judge(run, _load_integrity(run, integrity, engines_root), load_yaml_model(gate_file, GateConfig))
    write_model(folder / VERDICT_FILE, verdict)
    stdout.print(verdict_panel(verdict))
    raise typer.Exit(EXIT_CODES[verdict.status])


@app.command()
def report(
    deployment: Deployment = "demo",
    artifact_dir: ArtifactDir = None,
    also: Also = None,
    output: Annotated[Path | None, typer.Option(help="Default: report.html in the artifact folder.")] = None,
    engines_root: EnginesRoot = DEFAULT_ENGINES,
) -> None:
    """Write one HTML page from the files of a run; --also adds further runs and compares their methods."""
    folder = artifact_dir or _default_artifact_dir(deployment)
    runs = _report_inputs(folder, also or [], engines_root)
    path = output or folder / REPORT_FILE
    write_text(path, render_report(runs[0], runs[1:]))
    if len(runs) > 1:
        stdout.print(methods_table(compare_methods([run.measured for run in runs])))
    stdout.print(f"report: {path}", soft_wrap=True)


@app.command()
def smoke(
    deployment: Deployment = "demo",
    budget: Budget = "quick",
    segments: Segments = "",
    concurrency: Concurrency = "",
    request_count: RequestCount = None,
    warmup_request_count: WarmupCount = None,
    random_seed: RandomSeed = 0,
    max_tokens: MaxTokens = None,
    url: Url = None,
    metrics_url: MetricsUrl = None,
    engines_root: EnginesRoot = DEFAULT_ENGINES,
    artifact_dir: ArtifactDir = None,
    gate_file: Gate = DEFAULT_GATE,
    also: Also = None,
    chat_template: Template = None,
    raw: Raw = False,
    timeout: Timeout = 300.0,
) -> None:
    """The latency smoke test: bench, verify on the same records, gate, report."""
    gate_config = load_yaml_model(gate_file, GateConfig)  # before minutes of measuring
    options = _bench_options(
        budget, segments, concurrency, request_count, warmup_request_count, random_seed, max_tokens
    )
    session = _open_session(deployment, url, metrics_url, engines_root, artifact_dir, timeout, chat_template, raw)
    result = asyncio.run(measure(session, options, _command(), stderr))
    _show_run(result.summary)
    integrity = _check_and_write(result, session.artifact_dir, engines_root)
    verdict = judge(result.summary, integrity, gate_config)
    write_model(session.artifact_dir / VERDICT_FILE, verdict)
    stdout.print(verdict_panel(verdict))
    runs = _report_inputs(session.artifact_dir, also or [], engines_root)
    path = session.artifact_dir / REPORT_FILE
    write_text(path, render_report(runs[0], runs[1:]))
    stdout.print(f"report: {path}", soft_wrap=True)
    raise typer.Exit(EXIT_CODES[verdict.status])


@app.command()
def compare(
    summaries: Annotated[list[Path], typer.Argument(help="Two or more run_summary.json files.")],
) -> None:
    """Show runs below each other. Their ratios compare; milliseconds of separate runs do not."""
    for path in summaries:
        _show_run(_load_summary(path))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    try:
        result = app(args=None if argv is None else list(argv), prog_name="specdeploy-client", standalone_mode=False)
    except _UsageError as error:
        cast(Any, error).show()
        return EXIT_USAGE
    except (ConfigError, RequestError) as error:
        return _fail(error, EXIT_USAGE)
    except SpecDeployError as error:
        return _fail(error, EXIT_FAILED)
    except (KeyboardInterrupt, typer.Abort):
        stderr.print("interrupted")
        return EXIT_INTERRUPTED
    except Exception:
        stderr.print_exception()
        stderr.print("This is a defect of specdeploy-client, not of your input.")
        return EXIT_INTERNAL
    return result if isinstance(result, int) else 0


def _fail(error: SpecDeployError, exit_code: int) -> int:
    stderr.print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
    return exit_code


def _usage(option: str, reason: str, remedy: str) -> NoReturn:
    raise RequestError(option, reason, remedy)


def _open_session(
    reference: str,
    url: str | None,
    metrics_url: str | None,
    engines_root: Path,
    artifact_dir: Path | None,
    timeout_s: float,
    chat_template: Path | None,
    raw: bool,
) -> Session:
    deployment = load_deployment(reference)
    serving = deployment.config.serving
    return Session(
        deployment=deployment,
        url=url or f"{serving.host}:{serving.grpc_port}",
        metrics_url=metrics_url or f"http://{serving.host}:{serving.metrics_port}/metrics",
        engines_root=engines_root,
        artifact_dir=artifact_dir or _default_artifact_dir(deployment.config.name),
        timeout_s=timeout_s,
        template=_chosen_template(deployment.config.name, engines_root, chat_template, raw),
    )


def _chosen_template(deployment: str, engines_root: Path, override: Path | None, raw: bool) -> ChatTemplate | None:
    """The template to use; the absence of one is said aloud, because raw prompts lower acceptance and quality."""
    if raw and override is not None:
        _usage("--raw", "contradicts --chat-template", "Give one of them")
    if raw:
        return None
    template = load_chat_template(override) if override else find_chat_template(deployment, engines_root)
    if template is None:
        stderr.print(
            f"note: no chat template in the current build of {deployment}: prompts are sent raw", soft_wrap=True
        )
    return template


def _bench_options(
    budget: str,
    segments: str,
    concurrency: str,
    request_count: int | None,
    warmup_request_count: int | None,
    random_seed: int,
    max_tokens: int | None,
) -> BenchOptions:
    budgets = {**BUDGETS, VERIFY_BUDGET.name: VERIFY_BUDGET}
    if budget not in budgets:
        _usage("--budget", f"{budget!r} is not a budget", f"Use one of {', '.join(BUDGETS)}")
    return BenchOptions(
        budget=budgets[budget],
        random_seed=random_seed,
        segments=tuple(name.strip() for name in segments.split(",") if name.strip()),
        concurrencies=parse_levels(concurrency) if concurrency else (),
        request_count=request_count,
        warmup_request_count=warmup_request_count,
        max_tokens=max_tokens,
    )


def _default_artifact_dir(deployment: str) -> Path:
    return Path("artifacts") / Path(deployment).stem


def _command() -> str:
    return shlex.join(["specdeploy-client", *sys.argv[1:]])


def _show_run(summary: RunSummary) -> None:
    stdout.print(run_table(summary))
    for note in void_notes(summary):
        stdout.print(note, soft_wrap=True, highlight=False)
    for name, value in summary.environment.items():
        if name.startswith(("prompts of", "segments not", "server facts")):
            stdout.print(f"note: {name}: {value}", soft_wrap=True, highlight=False)


def _check_and_write(result: BenchResult, folder: Path, engines_root: Path) -> IntegrityReport:
    """Integrity of the records of a run, printed and written to both of its places."""
    report = check_integrity(
        result.records,
        deployment=result.summary.deployment,
        build_id=result.summary.build_id,
        dtype=result.summary.dtype,
        server_counters=result.server_counters,
        created_at=result.summary.started_at,
    )
    write_integrity(report, folder, engines_root)
    stdout.print(integrity_panel(report))
    return report


def _load_result(folder: Path) -> BenchResult:
    return BenchResult(
        summary=_load_summary(folder / RUN_SUMMARY_FILE),
        records=load_records(folder / RECORDS_FILE),
        server_counters=load_counters(folder / SERVER_COUNTERS_FILE),
    )


def _load_summary(path: Path) -> RunSummary:
    return load_model(path, RunSummary, "Measure with `specdeploy-client bench`")


def _load_integrity(run: RunSummary, path: Path | None, engines_root: Path) -> IntegrityReport | None:
    """The report named on the command line, or the one of the build, or None."""
    if path is None and run.build_id is not None:
        default = integrity_path(engines_root, run.build_id, run.deployment)
        path = default if default.is_file() else None
    return None if path is None else load_model(path, IntegrityReport, "Write it with `specdeploy-client verify`")


def _report_inputs(folder: Path, also: Sequence[Path], engines_root: Path) -> list[ReportInput]:
    return [_report_input(path, engines_root) for path in (folder, *also)]


def _report_input(folder: Path, engines_root: Path) -> ReportInput:
    summary = _load_summary(folder / RUN_SUMMARY_FILE)
    beside = folder / INTEGRITY_FILE
    verdict, records, counters = (folder / name for name in (VERDICT_FILE, RECORDS_FILE, SERVER_COUNTERS_FILE))
    return ReportInput(
        summary=summary,
        integrity=_load_integrity(summary, beside if beside.is_file() else None, engines_root),
        verdict=load_model(verdict, Verdict, "Judge again with `specdeploy-client gate`")
        if verdict.is_file()
        else None,
        records=load_records(records) if records.is_file() else (),
        counters=load_counters(counters) if counters.is_file() else None,
    )


if __name__ == "__main__":
    sys.exit(main())
