"""The files of one run in their folder: each step from records to a report reads what the step before it wrote."""

from collections.abc import Sequence
from pathlib import Path

from specdeploy.errors import ClientError, ConfigError, Violation
from specdeploy.run_contract import RunSummary
from specdeploy.verdict_contract import GateConfig, IntegrityReport, Verdict
from specdeploy_client.artifacts import (
    INTEGRITY_FILE,
    RECORDS_FILE,
    REPORT_FILE,
    RUN_SUMMARY_FILE,
    SERVER_COUNTERS_FILE,
    VERDICT_FILE,
    load_model,
    write_text,
)
from specdeploy_client.commands.terminal import print_note, stdout
from specdeploy_client.judging.gate import judge
from specdeploy_client.judging.integrity import check_integrity, integrity_path, write_integrity
from specdeploy_client.judging.verdict_files import write_verdict_files
from specdeploy_client.records.files import load_records
from specdeploy_client.records.table import RecordTable
from specdeploy_client.reporting.console import integrity_panel, methods_table, verdict_line, verdict_panel
from specdeploy_client.reporting.methods import compare_methods
from specdeploy_client.reporting.report import ReportInput, render_report
from specdeploy_client.server_counters import load_counters
from specdeploy_client.user_input import as_user_input


def default_artifact_dir(deployment: str) -> Path:
    """Where the results of a deployment (a name or the path of its YAML file) go unless told otherwise."""
    return Path("artifacts") / Path(deployment).stem


def load_summary(path: Path) -> RunSummary:
    """The summary in `path`, a file or the folder of a run. Raises `ConfigError`."""
    is_folder = path.is_dir() or not (path.is_file() or path.suffix == ".json")
    file = path / RUN_SUMMARY_FILE if is_folder else path
    if not file.exists() and (records := file.with_name(RECORDS_FILE)).is_file():
        reason = f"is missing, but {records} holds {_num_lines(records)} records of a run that was killed"
        remedy = "What they measured can be read there, one request a line; for a summary measure again"
        raise ConfigError([Violation(str(file), "", reason, remedy)])
    return load_model(file, RunSummary, "Measure with `specdeploy-client bench`")


def verify_run(folder: Path, engines_root: Path) -> IntegrityReport:
    """Check the records in `folder`; print the report and write it there and, for a known build, beside the build."""
    summary = load_summary(folder / RUN_SUMMARY_FILE)
    with as_user_input():
        records = load_records(folder / RECORDS_FILE, print_note)
    report = check_integrity(
        records,
        deployment=summary.deployment,
        build_id=summary.build_id,
        dtype=summary.dtype,
        server_counters=load_counters(folder / SERVER_COUNTERS_FILE),
        created_at=summary.started_at,
    )
    write_integrity(report, folder, engines_root)
    stdout.print(integrity_panel(report))
    return report


def judge_run(
    folder: Path,
    gate: GateConfig,
    engines_root: Path,
    *,
    summary_file: Path | None = None,
    integrity_file: Path | None = None,
) -> Verdict:
    """Judge the run in `folder`; print and write the verdict. The integrity report is the one named, else the run's,
    else the build's."""
    summary = load_summary(summary_file or folder / RUN_SUMMARY_FILE)
    integrity = _load_integrity(summary, integrity_file or _if_there(folder / INTEGRITY_FILE), engines_root)
    verdict = judge(summary, integrity, gate)
    write_verdict_files(folder, summary, verdict)
    stdout.print(verdict_panel(verdict))
    stdout.print(verdict_line(summary, verdict))
    return verdict


def write_report(folder: Path, also: Sequence[Path], engines_root: Path, output: Path | None = None) -> Path:
    """Write the page of the run in `folder`; runs in `also` are shown beside it, and their methods compared."""
    runs = [_report_input(path, engines_root) for path in (folder, *also)]
    path = output or folder / REPORT_FILE
    write_text(path, render_report(runs[0], runs[1:]))
    if len(runs) > 1:
        stdout.print(methods_table(compare_methods([run.measured for run in runs])))
    stdout.print(f"report: {path}", soft_wrap=True)
    return path


def _report_input(folder: Path, engines_root: Path) -> ReportInput:
    summary = load_summary(folder / RUN_SUMMARY_FILE)
    verdict, records = _if_there(folder / VERDICT_FILE), _if_there(folder / RECORDS_FILE)
    return ReportInput(
        summary=summary,
        integrity=_load_integrity(summary, _if_there(folder / INTEGRITY_FILE), engines_root),
        verdict=load_model(verdict, Verdict, "Judge again with `specdeploy-client gate`") if verdict else None,
        table=_load_table(records) if records else None,
    )


def _load_table(path: Path) -> RecordTable | None:
    """The records in `path`, with their notes printed; None, and said so, where a line of them is bad: a page needs
    them only for what it shows of single requests."""
    try:
        table = RecordTable.load(path)
    except ClientError as error:
        print_note(f"the report goes without single requests: {error}")
        return None
    for note in table.notes:
        print_note(note)
    return table


def _num_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _load_integrity(run: RunSummary, path: Path | None, engines_root: Path) -> IntegrityReport | None:
    """The report in `path`, or the one of the build, or None."""
    if path is None and run.build_id is not None:
        path = _if_there(integrity_path(engines_root, run.build_id, run.deployment))
    return load_model(path, IntegrityReport, "Write it with `specdeploy-client verify`") if path else None


def _if_there(path: Path) -> Path | None:
    return path if path.is_file() else None
