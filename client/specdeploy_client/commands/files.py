"""Commands that need no server: gate, report, compare, import, export."""

from pathlib import Path
from typing import Annotated

import typer

from specdeploy.config.load import load_yaml_model
from specdeploy.run_contract import Arm, Load
from specdeploy.verdict_contract import GateConfig
from specdeploy_client.artifacts import RECORDS_FILE, RUN_SUMMARY_FILE, empty_run_folder, write_model, write_text
from specdeploy_client.commands.option_values import OptionProblems, parse_levels, parse_rates
from specdeploy_client.commands.options import (
    DEFAULT_DEPLOYMENT,
    DEFAULT_ENGINES,
    DEFAULT_GATE,
    Also,
    ArtifactDir,
    Deployment,
    EnginesRoot,
    Gate,
)
from specdeploy_client.commands.terminal import EXIT_CODES, print_note, stdout
from specdeploy_client.interchange.files import ExportFormat, export_run, import_file, summarise_import
from specdeploy_client.interchange.imported import ImportLabels
from specdeploy_client.judging.stored_runs import compare_runs
from specdeploy_client.judging.stored_runs_markdown import render_run_comparison
from specdeploy_client.records.files import RecordWriter, load_records
from specdeploy_client.reporting.console import run_notes, run_table
from specdeploy_client.reporting.console_runs import stored_runs_view
from specdeploy_client.run_folder import default_artifact_dir, judge_run, load_summary, write_report
from specdeploy_client.user_input import as_user_input


def gate(
    deployment: Deployment = DEFAULT_DEPLOYMENT,
    gate_file: Gate = DEFAULT_GATE,
    summary: Annotated[Path | None, typer.Option(help="A run_summary.json. Default: the deployment's.")] = None,
    integrity: Annotated[
        Path | None, typer.Option(help="An integrity report. Default: the run's, else the build's.")
    ] = None,
    engines_root: EnginesRoot = DEFAULT_ENGINES,
    artifact_dir: ArtifactDir = None,
) -> None:
    """Judge a run from its files; write verdict.json, verdict.junit.xml and verdict.md. Talks to no server."""
    folder = artifact_dir or (summary.parent if summary else default_artifact_dir(deployment))
    load_summary(summary or folder / RUN_SUMMARY_FILE)  # its absence is said before that of a gate
    verdict = judge_run(
        folder,
        load_yaml_model(gate_file, GateConfig),
        engines_root,
        summary_file=summary,
        integrity_file=integrity,
    )
    raise typer.Exit(EXIT_CODES[verdict.status])


def report(
    deployment: Deployment = DEFAULT_DEPLOYMENT,
    artifact_dir: ArtifactDir = None,
    also: Also = None,
    output: Annotated[Path | None, typer.Option(help="Default: report.html in the artifact folder.")] = None,
    engines_root: EnginesRoot = DEFAULT_ENGINES,
) -> None:
    """Write one HTML page from the files of a run; --also adds further runs and compares their methods."""
    write_report(artifact_dir or default_artifact_dir(deployment), also or [], engines_root, output)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="run_summary.json files or folders of runs; the first is held against the others."),
    ],
    output: Annotated[Path | None, typer.Option(help="Markdown file to write the comparison to.")] = None,
) -> None:
    """Show runs beside each other. Their ratios compare; milliseconds of separate runs do not."""
    summaries = [load_summary(path) for path in runs]
    for summary in summaries:
        stdout.print(run_table(summary))
        for note in run_notes(summary):
            stdout.print(note, soft_wrap=True, highlight=False)
    pages: list[str] = []
    for path, other in zip(runs[1:], summaries[1:], strict=True):
        comparison = compare_runs(summaries[0], other)
        pages.append(render_run_comparison(comparison))
        stdout.rule(f"{runs[0]} before, {path} after", align="left")
        stdout.print(stored_runs_view(comparison))
    if output is not None:
        write_text(output, "\n".join(pages))
        stdout.print(f"comparison: {output}", soft_wrap=True)


def import_results(
    file: Annotated[Path, typer.Argument(help="Result file, or folder, of AIPerf, GuideLLM or `vllm bench serve`.")],
    artifact_dir: Annotated[Path | None, typer.Option(help="Where it goes. Default: artifacts/<name of FILE>.")] = None,
    segment: Annotated[str, typer.Option(help="What kind of traffic it was.")] = "imported",
    arm: Annotated[Arm | None, typer.Option(help="Whether speculation was on. Default: as the file says.")] = None,
    concurrency: Annotated[str, typer.Option(help="The load, where the file does not say it.")] = "",
    request_rate: Annotated[str, typer.Option(help="The load, where the file does not say it.")] = "",
) -> None:
    """Read what another tool measured; write run_summary.json and, as far as the file has them, records.jsonl."""
    labels = ImportLabels(segment, arm, _single_load(concurrency, request_rate))
    with as_user_input():
        run = import_file(file, labels)
    folder = artifact_dir or Path("artifacts") / file.resolve().stem
    summary = summarise_import(run, file.name)
    empty_run_folder(folder)
    if run.records:
        with RecordWriter(folder / RECORDS_FILE) as writer:
            for record in run.records:
                writer.write(record)
    write_model(folder / RUN_SUMMARY_FILE, summary)
    stdout.print(run_table(summary))
    for note in run.notes:
        stdout.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)
    stdout.print(f"results: {folder}", soft_wrap=True)


def export_results(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run. Default: the deployment's.")] = None,
    export_format: Annotated[ExportFormat, typer.Option("--format", help="For which tool.")] = ExportFormat.AIPERF,
    output: Annotated[
        Path | None, typer.Option(help="Folder to write to. Default: export-<format> in the run's.")
    ] = None,
    deployment: Deployment = DEFAULT_DEPLOYMENT,
) -> None:
    """Write a run as the files of another tool, one set for every arm of every cell."""
    folder = run or default_artifact_dir(deployment)
    summary = load_summary(folder)
    with as_user_input():
        records = load_records(folder / RECORDS_FILE, print_note)
        paths = export_run(export_format, summary, records, output or folder / f"export-{export_format}")
    for path in paths:
        stdout.print(str(path), soft_wrap=True, markup=False, highlight=False)


def _single_load(concurrency: str, request_rate: str) -> Load | None:
    problems = OptionProblems()
    levels = problems.collect(parse_levels, concurrency, ())
    rates = problems.collect(parse_rates, request_rate, ())
    if len(levels) + len(rates) > 1:
        problems.add("--concurrency", "a file has one load", "Give one level or one rate")
    problems.raise_if_any()
    if levels:
        return Load(levels[0])
    return Load(None, rates[0]) if rates else None
