"""The whole path of a measurement on a real Triton server: commands in, files out."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from integration.conftest import Deployed, deploy
from specdeploy.run_contract import Arm, FailureKind, RunSummary
from specdeploy.serving.server import stop_server
from specdeploy.verdict_contract import IntegrityReport, Status
from specdeploy_client.cli import main
from specdeploy_client.records.files import load_records

pytestmark = pytest.mark.integration

MEASURED = (0, 2)  # 2: the machine was too busy for latencies, or the model too fast; the records are what is looked at
QUICK = ["--segments", "chat", "--concurrency", "1,2", "--request-count", "12", "--ui", "none"]


def _arguments(deployed: Deployed, folder: Path) -> list[str]:
    engines = str(deployed.root / "engines")
    return ["--deployment", str(deployed.loaded.path), "--engines-root", engines, "--artifact-dir", str(folder)]


def _summary(folder: Path) -> RunSummary:
    return RunSummary.model_validate_json((folder / "run_summary.json").read_text())


def test_a_closed_loop_agrees_with_the_servers_own_counters(deployed: Deployed, tmp_path: Path) -> None:
    assert main(["bench", *_arguments(deployed, tmp_path), *QUICK]) in MEASURED
    summary = _summary(tmp_path)
    assert (summary.deployment, summary.method, summary.switch) == ("tiny", "ngram", "per request")
    assert {(cell.concurrency, cell.arm, cell.num_requests) for cell in summary.cells} == {
        (level, arm, 12) for level in (1, 2) for arm in (Arm.OFF, Arm.ON)
    }
    for conditions in summary.conditions:
        assert conditions.num_draft_tokens
        assert conditions.counter_mismatch is None
        assert set(conditions.cold_ttft_ms) == {Arm.OFF, Arm.ON}
    # Two levels of twelve requests and their warm-up fit into the 24 prompts only by asking some again.
    records = load_records(tmp_path / "records.jsonl")
    assert all(record.connect_ns is not None for record in records)
    assert main(["verify", "--from-run", *_arguments(deployed, tmp_path)]) == 0


def test_smoke_over_http_ends_with_a_verdict(
    deployed: Deployed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    arguments = [*_arguments(deployed, tmp_path), *QUICK, "--endpoint-type", "triton-http"]
    assert main(["smoke", *arguments]) in (0, 1, 2)
    integrity = IntegrityReport.model_validate_json((tmp_path / "integrity.json").read_text())
    assert integrity.status is Status.PASS, integrity
    assert (tmp_path / "verdict.junit.xml").is_file()
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_an_open_loop_keeps_its_times_whatever_the_server_does(deployed: Deployed, tmp_path: Path) -> None:
    load = ["--segments", "chat", "--request-rate", "20", "--request-count", "20", "--ui", "none"]
    assert main(["bench", *_arguments(deployed, tmp_path), *load]) in MEASURED
    summary = _summary(tmp_path)
    assert summary.load_kind == "open loop, poisson arrivals"
    assert {cell.request_rate for cell in summary.cells} == {20.0}
    records = load_records(tmp_path / "records.jsonl")
    offsets = {
        arm: [r.scheduled_ns - min(o.scheduled_ns for o in records if (o.arm, o.block) == (arm, r.block))
              for r in sorted(records, key=lambda r: r.index) if r.arm == arm]
        for arm in (Arm.OFF, Arm.ON)
    }  # fmt: skip
    assert offsets[Arm.OFF] == offsets[Arm.ON]
    assert all(record.send_ns >= record.scheduled_ns for record in records)


def test_made_prompts_have_exactly_their_length_on_the_server(deployed: Deployed, tmp_path: Path) -> None:
    lengths = ["--isl", "40", "--osl", "6", "--segments", "chat", "--concurrency", "2", "--request-count", "8"]
    assert main(["bench", *_arguments(deployed, tmp_path), *lengths, "--ui", "none"]) in MEASURED
    records = load_records(tmp_path / "records.jsonl")
    assert {record.input_token_count for record in records} == {40}
    assert {record.output_token_count for record in records} == {6}
    assert len({record.prompt_id for record in records}) == 8


def test_a_wrong_model_name_is_inconclusive(
    deployed: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *_arguments(deployed, tmp_path), *QUICK, "--model", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err
    assert not (tmp_path / "run_summary.json").exists()


def test_a_server_killed_mid_run_leaves_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    victim = deploy(tmp_path, "victim")
    records_file = tmp_path / "run" / "records.jsonl"

    def kill_when_measuring() -> None:
        deadline = time.monotonic() + 60
        while not (records_file.is_file() and records_file.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(victim.state.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_measuring)
    killer.start()
    try:
        load = ["--segments", "chat", "--concurrency", "2", "--request-count", "600", "--max-tokens", "60"]
        code = main(["smoke", *_arguments(victim, tmp_path / "run"), *load, "--ui", "none"])
    finally:
        killer.join()
        stop_server(tmp_path / "state", "victim")
    assert code == 2, capsys.readouterr()
    records = load_records(records_file)
    assert [record for record in records if record.error is None]
    assert {record.failure for record in records if record.error} == {FailureKind.UNREACHABLE}
    summary = _summary(tmp_path / "run")
    assert summary.interrupted is not None
    assert "chat at concurrency 2" in summary.interrupted
    assert json.loads((tmp_path / "run" / "verdict.json").read_text())["status"] == "inconclusive"
    assert (tmp_path / "run" / "report.html").is_file()
