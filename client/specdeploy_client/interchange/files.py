"""One way in and one way out: which tool wrote a file, and a run written for another tool."""

from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from specdeploy.errors import ConfigError, Violation
from specdeploy.run_contract import CellSummary, RequestRecord, RunSummary
from specdeploy_client.interchange.aiperf import import_aiperf_records, import_aiperf_statistics
from specdeploy_client.interchange.aiperf_export import export_aiperf
from specdeploy_client.interchange.aiperf_format import RECORDS_NAME, STATISTICS_NAME
from specdeploy_client.interchange.guidellm import RESULT_NAME, import_guidellm
from specdeploy_client.interchange.imported import ImportedRun, ImportLabels, parse_json, read_text
from specdeploy_client.interchange.vllm_bench import import_vllm_bench
from specdeploy_client.interchange.vllm_export import export_vllm_bench
from specdeploy_client.records.table import RecordTable
from specdeploy_client.summary import summarise_arm


class ExportFormat(StrEnum):
    """Tools a run can be written for."""

    AIPERF = "aiperf"
    VLLM = "vllm"


def import_file(path: Path, labels: ImportLabels) -> ImportedRun:
    """A result file of another tool, told by what is in it; of a folder, the most detailed file of AIPerf or GuideLLM.

    Raises `ConfigError` for a file that none of them wrote or that is damaged, `RequestError` where the load is needed.
    """
    if path.is_dir():
        path = _file_in(path)
    text = read_text(path)
    first = _first_object(text, path)
    if "completed" in first and "request_rate" in first:  # before others: its --metadata adds keys of any name
        return import_vllm_bench(path, labels)
    if "metadata" in first and "metrics" in first:
        return import_aiperf_records(path, labels)
    if "metadata" in first and "benchmarks" in first:
        return import_guidellm(path, labels)
    if "request_count" in first or "error_request_count" in first:
        return import_aiperf_statistics(path, labels)
    keys = ", ".join(list(first)[:8]) or "none"
    remedy = (
        f"Give {RECORDS_NAME} or {STATISTICS_NAME} of AIPerf, {RESULT_NAME} of GuideLLM, or the result JSON of "
        "`vllm bench serve --save-result`"
    )
    raise ConfigError([Violation(str(path), "", f"is of no known tool (keys: {keys})", remedy)])


def summarise_import(run: ImportedRun, source: str) -> RunSummary:
    """A RunSummary of one imported file, `source` its name; it has one arm, so nothing is compared in it.

    Percentiles are computed from the records where there are some, as they are for our own runs; rates per second are
    what the file states.
    """
    cells = run.cells or tuple(
        _with_stated(summarise_arm(key, arm, columns), run)
        for key, arms in RecordTable.from_records(run.records).cells.items()
        for arm, columns in arms.items()
    )
    levels = [cell.concurrency for cell in cells if cell.concurrency is not None]
    notes = {f"import note {number}": note for number, note in enumerate(run.notes, start=1)}
    return RunSummary(
        deployment=run.model or "imported",
        build_id=None,
        lane=None,
        method=None,
        max_draft_len=None,
        dtype=None,
        server_threads=None,
        budget="imported",
        random_seed=0,
        started_at=run.started_at,
        duration_s=run.duration_s,
        expected_concurrency=max(levels, default=1),
        slos=(),
        planned=(),
        cells=cells,
        comparisons=(),
        environment={"imported from": source, "measured by": run.tool, **notes},
        switch="one arm only",
        load_kind="closed loop" if levels else "open loop",
    )


def export_run(
    run_format: ExportFormat, summary: RunSummary, records: Iterable[RequestRecord], folder: Path
) -> tuple[Path, ...]:
    """Write `summary` and its records for another tool; returns the paths. Raises `ClientError` without records."""
    if run_format is ExportFormat.AIPERF:
        return export_aiperf(summary, records, folder)
    return export_vllm_bench(summary, records, folder)


def _with_stated(cell: CellSummary, run: ImportedRun) -> CellSummary:
    """What the tool counted over the whole run, where single requests do not say or would mislead."""
    stated = {name: rate for name, rate in asdict(run.rates).items() if rate is not None}
    if cell.acceptance is None and run.acceptance is not None:
        return cell.model_copy(update={**stated, "acceptance": run.acceptance})
    return cell.model_copy(update=stated)


def _file_in(folder: Path) -> Path:
    for name in (RECORDS_NAME, STATISTICS_NAME, RESULT_NAME):
        if (folder / name).is_file():
            return folder / name
    reason = f"holds none of {RECORDS_NAME}, {STATISTICS_NAME}, {RESULT_NAME}"
    raise ConfigError([Violation(str(folder), "", reason, "Give the result file itself")])


def _first_object(text: str, path: Path) -> dict[str, Any]:
    """The object of a JSON file, or of the first line of a JSONL file."""
    stripped = text.lstrip()
    if not stripped:
        raise ConfigError([Violation(str(path), "", "is empty", "The tool wrote nothing: measure again")])
    line = stripped.split("\n", 1)[0]
    is_lines = line.startswith("{") and line.rstrip().endswith("}")
    data = parse_json(line if is_lines else text, str(path))
    if not isinstance(data, dict):
        reason = f"holds a {type(data).__name__}, not an object"
        raise ConfigError([Violation(str(path), "", reason, "Give a result file, not its inputs or an outputs list")])
    return data
