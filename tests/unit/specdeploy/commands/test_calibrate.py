"""`specdeploy calibrate` as a person types it: from a finished run, and from an engine that is or is not built."""

from pathlib import Path

import pytest

from helpers.deployment_files import write_deployment
from helpers.run_summaries import cell, percentiles, run_summary
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy import cli
from specdeploy.planner.calibration_files import load_calibration
from specdeploy.planner_contract import Calibration
from specdeploy.run_contract import Acceptance, Arm, CellSummary, Load

Capture = pytest.CaptureFixture[str]
_ACCEPTANCE = Acceptance(
    num_steps=100, num_draft_tokens=300, num_accepted_tokens=100, acceptance_rate=1 / 3, mean_acceptance_length=2.0
)


def run_cell(arm: Arm, rows: int) -> CellSummary:
    is_on = arm is Arm.ON
    step_ms = 20.0 + rows * (4 if is_on else 1) + (5.0 if is_on else 0.0)
    tokens = {"num_input_tokens": 40, "num_output_tokens": 1280}
    plain = cell(arm, Load(rows), acceptance=_ACCEPTANCE if is_on else None)
    return plain.model_copy(update={"tpot_ms": percentiles(step_ms / (2.0 if is_on else 1.0)), **tokens})


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run of `tiny` at four levels, the highest of which queues."""
    cells = [run_cell(arm, rows) for rows in (1, 2, 4, 8, 16) for arm in (Arm.OFF, Arm.ON)]
    folder = tmp_path / "run"
    folder.mkdir()
    summary = run_summary(cells=cells, deployment="tiny", effective_concurrency=8)
    (folder / "run_summary.json").write_text(summary.model_dump_json())
    return folder


def calibrate(root: Path, *arguments: str) -> int:
    roots = ["--configs-root", str(root), "--engines-root", str(root / "engines")]
    return cli.run(["calibrate", "tiny", *roots, *arguments])


def test_a_run_becomes_a_calibration(tmp_path: Path, run_folder: Path, capsys: Capture) -> None:
    write_deployment(tmp_path)
    assert calibrate(tmp_path, "--run", str(run_folder), "--held-out", "0") == 0
    printed = capsys.readouterr()
    path = tmp_path / "engines" / "calibrations" / "tiny.calibration.json"
    calibration = load_calibration(path)
    assert calibration.p90_relative_error < 0.02
    assert calibration.range.max_rows == 8
    assert "rows   K  context  prompt  measured ms  predicted ms   error  held out" in printed.out
    assert "error of all 8 steps: median 0." in printed.out
    assert f"wrote {path}" in printed.out
    assert "left out: chat at concurrency 16, on: more than the 8 requests" in printed.err


def test_json_is_the_calibration(tmp_path: Path, run_folder: Path, capsys: Capture) -> None:
    write_deployment(tmp_path)
    output = tmp_path / "mine.json"
    assert calibrate(tmp_path, "--run", str(run_folder), "--json", "--output", str(output)) == 0
    assert Calibration.model_validate_json(capsys.readouterr().out) == load_calibration(output)


def test_a_run_of_another_deployment(tmp_path: Path, run_folder: Path, capsys: Capture) -> None:
    write_deployment(tmp_path)
    (run_folder / "run_summary.json").write_text(run_summary(cells=[]).model_dump_json())
    assert calibrate(tmp_path, "--run", str(run_folder)) == cli.EXIT_USAGE
    assert "is a run of 'demo', not of 'tiny'" in capsys.readouterr().err


def test_an_engine_that_was_never_built(tmp_path: Path, capsys: Capture) -> None:
    write_deployment(tmp_path)
    assert calibrate(tmp_path) == cli.EXIT_FAIL
    assert "Run `make engines DEPLOYMENT=tiny`" in capsys.readouterr().err


def test_a_built_engine_is_measured(tmp_path: Path, capsys: Capture) -> None:
    write_deployment(tmp_path, overrides={"target": {"checkpoint": str(make_checkpoint(tmp_path / "checkpoint"))}})
    roots = ["--configs-root", str(tmp_path), "--engines-root", str(tmp_path / "engines")]
    assert cli.run(["build", "tiny", *roots]) == 0
    assert calibrate(tmp_path, "--seconds", "1") == 0
    printed = capsys.readouterr()
    assert "round 2: " in printed.err
    calibration = load_calibration(tmp_path / "engines" / "calibrations" / "tiny.calibration.json")
    assert calibration.target is not None
    assert calibration.draft is not None
    assert calibration.range.max_draft_len == 4
    assert any(one.is_held_out for one in calibration.residuals)
