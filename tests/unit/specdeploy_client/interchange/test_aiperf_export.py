"""Runs written for AIPerf."""

import json
from pathlib import Path

import pytest

from helpers.exported_runs import export, exported_record, exported_summary, failed_record
from specdeploy.run_contract import Arm, Load
from specdeploy.units import NS_PER_MS, NS_PER_S
from specdeploy_client.interchange.files import ExportFormat, import_file
from specdeploy_client.interchange.imported import ImportLabels

LABELS = ImportLabels(segment="chat")


def test_aiperf_statistics_have_aiperfs_names_and_units(tmp_path: Path) -> None:
    records = [
        *(exported_record(index, Arm.ON) for index in range(3)),
        failed_record(3).model_copy(update={"arm": Arm.ON}),
    ]
    _, path = export(ExportFormat.AIPERF, tmp_path, records)
    content = json.loads(path.read_text())
    assert content["inter_token_latency"]["avg"] == pytest.approx(50 / 3)
    assert content["inter_chunk_latency"] | {"count": 6, "min": 20.0, "max": 30.0} == content["inter_chunk_latency"]
    assert content["request_count"] == {"unit": "requests", "avg": 3}
    assert content["error_request_count"] == {"unit": "requests", "avg": 1}
    assert content["total_osl"] == {"unit": "tokens", "avg": 12}
    assert content["total_accepted_draft_tokens"] == {"unit": "tokens", "avg": 44}
    assert content["error_summary"] == [{"error_details": {"message": "refused: too long"}, "count": 1}]
    (phase,) = content["input_config"]["phases"]
    assert (phase["type"], phase["concurrency"], phase["requests"]) == ("concurrency", 4, 4)
    assert content["is_complete"] is True
    imported = import_file(path, LABELS).cells[0]
    assert imported.acceptance is not None
    assert imported.acceptance.mean_acceptance_length == 3.2


@pytest.mark.parametrize(
    ("kind", "word"),
    [("open loop, poisson", "poisson"), ("open loop, gamma 2", "gamma"), ("open loop, constant", "constant")],
)
def test_aiperf_is_told_how_requests_arrived(tmp_path: Path, kind: str, word: str) -> None:
    load = Load(None, 2.5)
    _, path = export(
        ExportFormat.AIPERF, tmp_path, [exported_record(load=load)], exported_summary(load, load_kind=kind)
    )
    (phase,) = json.loads(path.read_text())["input_config"]["phases"]
    assert (phase["type"], phase["rate"]) == (word, 2.5)


def test_aiperf_times_are_of_the_wall_clock(tmp_path: Path) -> None:
    path, _ = export(ExportFormat.AIPERF, tmp_path, [exported_record(5), exported_record(6)])
    first, second = [json.loads(line)["metadata"] for line in path.read_text().splitlines()]
    assert first["request_start_ns"] == 1767268800 * NS_PER_S  # 2026-01-01T12:00:00Z, the start of the run
    assert second["request_start_ns"] - first["request_start_ns"] == NS_PER_S
    assert first["request_start_ns"] - first["credit_issued_ns"] == 2 * NS_PER_MS


def test_an_interrupted_run_is_not_complete_for_aiperf(tmp_path: Path) -> None:
    _, path = export(
        ExportFormat.AIPERF, tmp_path, [exported_record()], exported_summary(interrupted="the server is gone")
    )
    content = json.loads(path.read_text())
    assert (content["was_cancelled"], content["is_complete"]) == (True, False)
    assert content["incomplete_reason"] == "the server is gone"
