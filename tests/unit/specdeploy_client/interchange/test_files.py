"""Which tool wrote a file, the summary of an imported run, and runs that come back from their export."""

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.exported_runs import export, exported_record, exported_summary, failed_record
from specdeploy.errors import ClientError, ConfigError
from specdeploy.run_contract import Arm, FailureKind, Load, RunSummary
from specdeploy.units import NS_PER_MS
from specdeploy.verdict_contract import GateConfig, Status
from specdeploy_client.interchange.files import ExportFormat, import_file, summarise_import
from specdeploy_client.interchange.imported import ImportLabels
from specdeploy_client.judging.gate import judge
from specdeploy_client.judging.stored_runs import compare_runs
from specdeploy_client.metrics import e2e_ns, icl_ns, is_cancelled, tpot_ns, ttft_ns
from specdeploy_client.records.table import RecordTable
from specdeploy_client.summary import summarise_arm

DATA = Path(__file__).parent / "data"
LABELS = ImportLabels(segment="chat")


@pytest.mark.parametrize(
    ("file", "tool", "has_records"),
    [
        ("aiperf/profile_export.jsonl", "AIPerf 0.13.0", True),
        ("aiperf/profile_export_aiperf.json", "AIPerf 0.13.0", False),
        ("aiperf", "AIPerf 0.13.0", True),
        ("guidellm/benchmarks.json", "GuideLLM 0.8.1", False),
        ("guidellm", "GuideLLM 0.8.1", False),
    ],
)
def test_files_are_told_by_what_is_in_them(file: str, tool: str, has_records: bool) -> None:
    run = import_file(DATA / file, LABELS)
    assert (run.tool, bool(run.records)) == (tool, has_records)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is empty"),
        ("[1, 2]", "holds a list, not an object"),
        ('{"a": 1}', r"is of no known tool \(keys: a\)"),
        ("{}", r"is of no known tool \(keys: none\)"),
        ('{"metadata": ', "is not JSON"),
        ("time,ttft\n1,2\n", "is not JSON"),
        ('{"a": ' * 100_000, "is not JSON"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "is nested too deeply"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=complaint) as raised:
        import_file(path, LABELS)
    assert str(path) in str(raised.value)


def test_a_result_of_vllm_may_have_keys_of_any_name(tmp_path: Path) -> None:
    (path, *_) = export(ExportFormat.VLLM, tmp_path, [exported_record()])
    path.write_text(json.dumps({**json.loads(path.read_text()), "metadata": "x", "metrics": "y", "benchmarks": "z"}))
    assert import_file(path, LABELS).tool == "vllm bench serve"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        import_file(tmp_path / "none.json", LABELS)
    with pytest.raises(ConfigError, match=r"holds none of profile_export\.jsonl"):
        import_file(tmp_path, LABELS)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        import_file(tmp_path / "bytes.json", LABELS)


def _summary(file: str, **labels: Any) -> RunSummary:
    return summarise_import(import_file(DATA / file, ImportLabels(segment="chat", **labels)), file)


def test_a_summary_of_records_is_computed_as_for_our_own() -> None:
    summary = _summary("aiperf")
    (cell,) = summary.cells
    lines = (DATA / "aiperf" / "profile_export.jsonl").read_text().splitlines()
    profiled = [json.loads(line) for line in lines if '"profiling"' in line]
    assert (cell.load, cell.arm, cell.num_requests) == (Load(4), Arm.OFF, len(profiled))
    latencies = [line["metrics"]["request_latency"]["value"] for line in profiled]
    assert cell.e2e_ms.mean == pytest.approx(sum(latencies) / len(latencies), abs=1e-5)
    assert cell.num_output_tokens == sum(line["metrics"]["output_sequence_length"]["value"] for line in profiled)
    assert (summary.deployment, summary.expected_concurrency) == ("llm", 4)
    assert summary.environment["measured by"] == "AIPerf 0.13.0"
    assert summary.environment["import note 1"] == "2 requests of the warm-up left out"


def test_a_summary_of_statistics_keeps_them() -> None:
    summary = _summary("guidellm")
    assert [cell.load for cell in summary.cells] == [Load(1), Load(2)]
    assert summary.expected_concurrency == 2
    assert RunSummary.model_validate_json(summary.model_dump_json()) == summary


def test_an_open_loop_stays_one() -> None:
    summary = _summary("aiperf/profile_export.jsonl", load=Load(None, 2.0))
    assert (summary.load_kind, summary.cells[0].load) == ("open loop", Load(None, 2.0))


def test_the_arm_of_the_user_goes_before_the_file() -> None:
    assert _summary("aiperf", arm=Arm.ON).cells[0].arm is Arm.ON


def test_an_imported_run_can_be_judged_and_compared() -> None:
    summary = _summary("aiperf")
    verdict = judge(summary, None, GateConfig(name="lenient", require_integrity=False))
    assert (verdict.status, verdict.decisions) == (Status.INCONCLUSIVE, ())
    assert [finding.status for finding in verdict.findings] == [Status.PASS, Status.INCONCLUSIVE]
    compared = compare_runs(summary, _summary("guidellm"))
    assert compared.ratios == ()
    assert "one of the runs has no ratios (one arm only): nothing can be judged" in compared.cautions


@pytest.mark.parametrize("run_format", list(ExportFormat))
def test_what_was_measured_comes_back(tmp_path: Path, run_format: ExportFormat) -> None:
    records = [exported_record(index) for index in range(4)]
    (first, *_) = export(run_format, tmp_path, records)
    run = import_file(first, LABELS)
    assert run.model == "demo"
    assert len(run.records) == 4
    for ours, theirs in zip(records, run.records, strict=True):
        assert ttft_ns(theirs) == pytest.approx(50 * NS_PER_MS, abs=2)  # from the send, as they measure it
        assert e2e_ns(theirs) == pytest.approx(100 * NS_PER_MS, abs=2)
        assert tpot_ns(theirs) == pytest.approx(tpot_ns(ours), abs=2)
        assert icl_ns(theirs) == pytest.approx(icl_ns(ours), abs=2)
        assert (theirs.load, theirs.output_token_count, theirs.input_token_count) == (Load(4), 4, 10)


@pytest.mark.parametrize("run_format", list(ExportFormat))
def test_the_throughput_of_a_run_whose_arms_took_turns_comes_back(tmp_path: Path, run_format: ExportFormat) -> None:
    """Two blocks of 1.1 s with the other arm's minute between them: 16 tokens in 2.2 s, not in 61."""
    later = [exported_record(index, block=1) for index in (60, 61)]
    records = [exported_record(index, block=0) for index in (0, 1)] + later
    (first, *_) = export(run_format, tmp_path, records)
    (ours,) = RecordTable.from_records(records).cells.values()
    expected = summarise_arm(("chat", Load(4)), Arm.OFF, ours[Arm.OFF])
    summary = summarise_import(import_file(first, LABELS), first.name)
    assert expected.output_throughput == pytest.approx(16 / 2.2)
    assert summary.cells[0].output_throughput == pytest.approx(expected.output_throughput)
    assert summary.cells[0].request_throughput == pytest.approx(expected.request_throughput)
    assert summary.cells[0].goodput == 3.5  # as the exported summary has it
    assert summary.duration_s == pytest.approx(2.2)


def test_without_a_file_of_statistics_rates_are_of_the_requests(tmp_path: Path) -> None:
    path, statistics = export(ExportFormat.AIPERF, tmp_path, [exported_record(index) for index in (0, 1)])
    statistics.unlink()
    summary = summarise_import(import_file(path, ImportLabels(load=Load(4))), path.name)
    assert summary.cells[0].output_throughput == pytest.approx(8 / 1.1)
    assert summary.duration_s == pytest.approx(1.1)


@pytest.mark.parametrize("run_format", list(ExportFormat))
def test_in_an_open_loop_the_wait_for_the_send_comes_back_too(tmp_path: Path, run_format: ExportFormat) -> None:
    load = Load(None, 2.5)
    (first, *_) = export(
        run_format, tmp_path, [exported_record(load=load)], exported_summary(load, load_kind="open loop, poisson")
    )
    (record,) = import_file(first, LABELS).records
    assert record.load == load
    assert ttft_ns(record) == pytest.approx(52 * NS_PER_MS, abs=2)


@pytest.mark.parametrize("run_format", list(ExportFormat))
def test_failures_are_exported_as_failures(tmp_path: Path, run_format: ExportFormat) -> None:
    (first, *_) = export(run_format, tmp_path, [exported_record(0), failed_record(1)])
    good, failed = import_file(first, LABELS).records
    assert good.error is None
    assert failed.error is not None
    assert "too long" in failed.error


def test_every_arm_and_cell_has_files_of_its_own(tmp_path: Path) -> None:
    records = [
        exported_record(index, arm, load) for index in (0, 1) for arm in Arm for load in (Load(4), Load(None, 2.5))
    ]
    paths = export(ExportFormat.AIPERF, tmp_path / "aiperf", records)
    names = {path.parent.name for path in paths}
    places = [f"{place}-{arm}" for place in ("concurrency4", "rate2.5") for arm in ("off", "on", "floor")]
    assert names == {f"chat-{place}" for place in places}
    assert all(path.is_file() for path in paths)
    assert sorted(path.name for path in export(ExportFormat.VLLM, tmp_path / "vllm", records)) == sorted(
        f"{name}.json" for name in names
    )


def test_cancelled_requests_are_cancelled_for_aiperf_and_absent_for_vllm(tmp_path: Path) -> None:
    cancelled = exported_record(1, failure=FailureKind.CANCELLED)
    path, statistics = export(ExportFormat.AIPERF, tmp_path, [exported_record(0), cancelled])
    assert [is_cancelled(record) for record in import_file(path, LABELS).records] == [False, True]
    assert json.loads(statistics.read_text())["request_count"]["avg"] == 1
    (result,) = export(ExportFormat.VLLM, tmp_path, [exported_record(0), cancelled])
    assert json.loads(result.read_text())["num_prompts"] == 1


@pytest.mark.parametrize("run_format", list(ExportFormat))
def test_without_records_there_is_nothing_to_export(tmp_path: Path, run_format: ExportFormat) -> None:
    with pytest.raises(ClientError, match="demo: no records to export"):
        export(run_format, tmp_path, [])
