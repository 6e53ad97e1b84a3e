"""GuideLLM's report as GuideLLM wrote it, and what is made of damaged ones."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from specdeploy.errors import ConfigError, RequestError
from specdeploy.run_contract import Arm, Load
from specdeploy_client.interchange.guidellm import RESULT_NAME, import_guidellm
from specdeploy_client.interchange.imported import ImportLabels

FILE = Path(__file__).parent / "data" / "guidellm" / RESULT_NAME
LABELS = ImportLabels(segment="chat")
Report = dict[str, Any]


def _changed(folder: Path, change: Callable[[Report], object]) -> Path:
    report = json.loads(FILE.read_text())
    change(report)
    path = folder / RESULT_NAME
    path.write_text(json.dumps(report))
    return path


def test_every_benchmark_is_a_cell_of_its_load() -> None:
    run = import_guidellm(FILE, LABELS)
    assert (run.tool, run.model, run.records) == ("GuideLLM 0.8.1", "llm", ())
    assert [cell.load for cell in run.cells] == [Load(1), Load(2)]
    assert {(cell.segment, cell.arm, cell.num_requests, cell.num_errors) for cell in run.cells} == {
        ("chat", Arm.OFF, 24, 0)
    }


def test_percentiles_are_over_single_requests() -> None:
    cell = import_guidellm(FILE, LABELS).cells[0]
    benchmark = json.loads(FILE.read_text())["benchmarks"][0]
    requests = benchmark["requests"]["successful"]
    assert cell.ttft_ms.p50 == pytest.approx(median(request["time_to_first_token_ms"] for request in requests))
    assert cell.tpot_ms.p50 == pytest.approx(median(request["inter_token_latency_ms"] for request in requests))
    timings = [request["info"]["timings"] for request in requests]
    e2e = [1e3 * (one["last_token_iteration"] - one["request_start"]) for one in timings]
    assert cell.e2e_ms.p50 == pytest.approx(median(e2e))
    assert cell.e2e_ms.p50 < median(1e3 * request["request_latency"] for request in requests)
    assert cell.ttft_ms.num_samples == 24
    assert cell.icl_ms is None
    assert cell.num_output_tokens == 384
    assert cell.output_throughput == benchmark["metrics"]["output_tokens_per_second"]["successful"]["mean"]


def test_a_sample_of_the_requests_is_not_taken_for_all(tmp_path: Path) -> None:
    def drop(report: Report) -> None:
        del report["benchmarks"][0]["requests"]["successful"][5:]

    run = import_guidellm(_changed(tmp_path, drop), LABELS)
    own = json.loads(FILE.read_text())["benchmarks"][0]["metrics"]
    assert run.cells[0].ttft_ms.p50 == own["time_to_first_token_ms"]["successful"]["percentiles"]["p50"]
    assert run.cells[0].e2e_ms.p50 == 1e3 * own["request_latency"]["successful"]["percentiles"]["p50"]
    assert run.cells[0].tpot_ms.num_samples == 24  # and not the 360 tokens it is weighed by
    assert any("holds 5 of 24 requests" in note for note in run.notes)


@pytest.mark.parametrize(
    ("strategy", "load"),
    [
        ({"type_": "synchronous"}, Load(1)),
        ({"type_": "throughput", "max_concurrency": 32}, Load(32)),
        ({"type_": "constant", "rate": 2.5}, Load(None, 2.5)),
        ({"type_": "poisson", "rate": 4.0, "max_concurrency": 9}, Load(None, 4.0)),
        ({"type_": "throughput"}, None),
        ({"type_": "trace", "time_scale": 1.0}, None),
    ],
)
def test_loads_of_every_strategy(tmp_path: Path, strategy: dict[str, Any], load: Load | None) -> None:
    def one(report: Report) -> None:
        del report["benchmarks"][1:]
        report["benchmarks"][0]["config"]["strategy"] = strategy

    path = _changed(tmp_path, one)
    if load is None:
        with pytest.raises(RequestError, match="does not say under which load"):
            import_guidellm(path, LABELS)
        assert import_guidellm(path, ImportLabels(load=Load(7))).cells[0].load == Load(7)
    else:
        assert import_guidellm(path, LABELS).cells[0].load == load


def _at_a_rate(report: Report) -> None:
    """Every request 0.25 s late."""
    del report["benchmarks"][1:]
    report["benchmarks"][0]["config"]["strategy"] = {"type_": "poisson", "rate": 2.0}
    for request in report["benchmarks"][0]["requests"]["successful"]:
        timings = request["info"]["timings"]
        timings["targeted_start"] = timings["request_start"] - 0.25


def test_in_an_open_loop_latencies_run_from_when_a_request_was_due(tmp_path: Path) -> None:
    closed = import_guidellm(FILE, LABELS).cells[0]
    run = import_guidellm(_changed(tmp_path, _at_a_rate), LABELS)
    (cell,) = run.cells
    for ours, sent in ((cell.ttft_ms, closed.ttft_ms), (cell.e2e_ms, closed.e2e_ms)):
        assert ours.p50 == pytest.approx((sent.p50 or 0.0) + 250.0, abs=1e-3)
    assert cell.tpot_ms == closed.tpot_ms
    assert any("2 requests/s: latencies run from when each request was due" in note for note in run.notes)


def test_an_open_loop_without_due_times_is_measured_from_the_send(tmp_path: Path) -> None:
    def forget_one(report: Report) -> None:
        _at_a_rate(report)
        del report["benchmarks"][0]["requests"]["successful"][3]["info"]["timings"]["targeted_start"]

    run = import_guidellm(_changed(tmp_path, forget_one), LABELS)
    assert run.cells[0].ttft_ms == import_guidellm(FILE, LABELS).cells[0].ttft_ms
    assert "2 requests/s: latencies run from when each request was sent" in run.notes


def test_cut_off_requests_are_named_and_failed_ones_counted(tmp_path: Path) -> None:
    def fail(report: Report) -> None:
        report["benchmarks"][0]["metrics"]["request_totals"].update(errored=3, incomplete=2)

    run = import_guidellm(_changed(tmp_path, fail), LABELS)
    assert (run.cells[0].num_requests, run.cells[0].num_errors) == (27, 3)
    assert "concurrency 1: 2 requests cut off by GuideLLM are left out" in run.notes


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda report: report["metadata"].update(version=1), "metadata.version: report version 1 is not 2"),
        (lambda report: report.update(benchmarks=[]), "benchmarks: Tuple should have at least 1 item"),
        (lambda report: report["benchmarks"][1].pop("metrics"), "benchmarks.1.metrics: Field required"),
        (
            lambda report: report["benchmarks"][0]["config"]["strategy"].update(streams=2),
            "2 benchmarks have the same load",
        ),
        (
            lambda report: report["benchmarks"][0]["scheduler_metrics"].update(measure_start_time=1e18),
            "scheduler_metrics.measure_start_time: Input should be less than",
        ),
        (
            lambda report: report["benchmarks"][0]["requests"]["successful"][0].update(request_latency=float("inf")),
            "request_latency: Input should be",
        ),
        (
            lambda report: report["benchmarks"][0]["metrics"]["request_latency"]["successful"].update(mean="fast"),
            "benchmarks.0.metrics.request_latency.successful.mean",
        ),
    ],
)
def test_damaged_reports_are_named(tmp_path: Path, change: Callable[[Report], object], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        import_guidellm(_changed(tmp_path, change), LABELS)
    assert complaint in str(raised.value)
