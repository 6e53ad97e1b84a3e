"""Runs written as `vllm bench serve` writes them."""

import json
from pathlib import Path

import pytest

from helpers.exported_runs import export, exported_record
from specdeploy.run_contract import Arm
from specdeploy_client.interchange.files import ExportFormat
from specdeploy_client.interchange.imported import ImportLabels

LABELS = ImportLabels(segment="chat")


def test_vllm_results_have_vllms_keys(tmp_path: Path) -> None:
    records = [exported_record(index, Arm.ON) for index in range(4)]
    (path,) = export(ExportFormat.VLLM, tmp_path, records)
    content = json.loads(path.read_text())
    assert content["date"] == "20260101-120000"
    assert (content["request_rate"], content["max_concurrency"], content["label"]) == ("inf", 4, "chat-on")
    # Two blocks of two requests, each from its first send to its last answer.
    assert content["duration"] == pytest.approx(2 * 1.1)
    assert content["request_throughput"] == pytest.approx(4 / 2.2)
    assert content["total_token_throughput"] == pytest.approx((4 * 10 + 4 * 4) / 2.2)
    assert content["median_itl_ms"] == pytest.approx(25.0)
    assert content["std_tpot_ms"] == pytest.approx(0.0)
    assert content["p99_e2el_ms"] == pytest.approx(100.0)
    assert content["itls"][0] == pytest.approx([0.02, 0.03])
    assert content["queue_times"] == [0.0] * 4  # a worker's next request waits for nobody
    assert content["spec_decode_acceptance_rate"] == pytest.approx(55.0)
    assert content["spec_decode_per_position_acceptance_rates"] == [0.9, 0.6]


def test_vllm_results_without_drafts_say_nothing_of_them(tmp_path: Path) -> None:
    (path,) = export(ExportFormat.VLLM, tmp_path, [exported_record()])
    content = json.loads(path.read_text())
    assert not [name for name in content if name.startswith("spec_decode")]
    assert content["request_goodput"] == 3.5
