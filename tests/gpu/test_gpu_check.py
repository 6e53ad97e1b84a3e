"""The whole check with tiny models on the CPU: every cell, every comparison, and the file it writes."""

import json
from pathlib import Path

import pytest
import torch

from gpu import gpu_check, lossless_checks
from gpu.step_times import Budget, Grid, measure
from specdeploy.planner.measured_steps import MeasuredSteps, OutputCheck, StepCell, measured_path, step_ratios
from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters import NgramDrafter
from specdeploy.runtime.graphed_model import GraphedModel
from specdeploy.runtime.static_step import StaticSteps


def test_the_dry_run_measures_checks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--dry-run-cpu", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.iterdir()
    result = MeasuredSteps.model_validate_json(path.read_text())
    assert path == measured_path(tmp_path, result.gpu.name)
    assert result.is_dry_run
    assert {(c.role, c.num_rows, c.num_tokens) for c in result.cells} == {
        *(("target", rows, tokens) for rows in (1, 2) for tokens in (1, 2, 5)),
        ("draft", 1, 1),
        ("draft", 2, 1),
    }
    assert all(cell.median_s is not None and cell.skipped is None for cell in result.cells)
    assert [(row.num_rows, sorted(row.verify_cost_ratio)) for row in result.ratios] == [(1, [1, 4]), (2, [1, 4])]
    assert len(result.checks) == 10
    assert all(check.has_passed for check in result.checks)
    assert result.floor is not None
    assert result.floor.has_passed is None
    printed = capsys.readouterr().out
    assert "| context | batch |" in printed
    assert "not judged" in printed
    assert "missing" not in printed


def test_a_dry_run_never_writes_where_measurements_lie() -> None:
    for arguments in (["--dry-run-cpu"], ["--dry-run-cpu", "--output", str(gpu_check.HARDWARE_FOLDER)]):
        with pytest.raises(SystemExit):
            gpu_check.main(arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 2
    captured = capsys.readouterr()
    assert captured.err == gpu_check.NO_GPU + "\n"
    assert captured.out == ""


def test_cells_that_time_or_memory_leave_out_carry_the_reason() -> None:
    plan = gpu_check.dry_run_plan()
    target = plan.target.build(dtype=plan.dtype, device=plan.device, max_seq_len=64, seed=0)
    cells = measure(target, target, Grid((1,), (64,), (1,), num_replays=1), Budget(0.0))
    assert [(cell.role, cell.num_tokens, cell.median_s, cell.skipped) for cell in cells] == [
        ("target", 1, None, "out of time"),
        ("target", 2, None, "out of time"),
        ("draft", 1, None, "out of time"),
    ]
    assert step_ratios(cells) == ()


def test_ratios_compare_the_same_batch_and_context() -> None:
    def cell(role: str, rows: int, tokens: int, median_s: float | None) -> StepCell:
        return StepCell.model_validate(
            {"role": role, "num_rows": rows, "context": 1024, "num_tokens": tokens, "median_s": median_s}
        )

    cells = (
        cell("target", 1, 1, 0.01),
        cell("target", 1, 5, 0.012),
        cell("target", 1, 3, None),
        cell("draft", 1, 1, 0.002),
    )
    (first, second) = step_ratios((*cells, cell("target", 2, 1, 0.02)))
    assert first.draft_cost_ratio == pytest.approx(0.2)
    assert first.verify_cost_ratio == {4: pytest.approx(1.2)}
    assert (second.num_rows, second.draft_cost_ratio, second.verify_cost_ratio) == (2, None, {})


def test_the_floor_is_judged_at_the_shortest_context() -> None:
    cells = [
        StepCell(role="target", num_rows=1, context=context, num_tokens=1, median_s=step_s)
        for context, step_s in ((8192, 0.006), (1024, 0.004))
    ]
    passed = gpu_check.weight_floor(cells, 0.0035, is_judged=True)
    assert passed is not None
    assert (passed.step_s, passed.has_passed) == (0.004, True)
    failed = gpu_check.weight_floor(cells, 0.003, is_judged=True)
    assert failed is not None
    assert failed.has_passed is False
    assert gpu_check.weight_floor([], 0.003, is_judged=True) is None


def test_a_failed_check_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = OutputCheck(name="something", has_passed=False, detail="1 of 2")
    monkeypatch.setattr(gpu_check, "run_checks", lambda device: (failed,))
    assert gpu_check.main(["--dry-run-cpu", "--output", str(tmp_path)]) == 1
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["checks"][0]["has_passed"] is False


def test_the_argmax_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = lossless_checks.decode

    def wrong_once(*arguments: object) -> lossless_checks.Texts:
        texts = decode(*arguments)  # type: ignore[arg-type]
        next(iter(texts.values()))[7] ^= 1
        return texts

    device = torch.device("cpu")
    target = GraphedModel.of(lossless_checks.build(lossless_checks.TARGET, torch.float32, device))
    prompts = lossless_checks.make_prompts()
    drafter = NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3)
    monkeypatch.setattr(lossless_checks, "decode", wrong_once)
    assert not lossless_checks.check_argmax("wrong", target, drafter, prompts).has_passed


def test_a_step_that_raises_fails_the_run_and_the_other_cells_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = StaticSteps.run

    def fails_for_two_rows(self: StaticSteps, token_ids: list[int], spans: list[Span], positions: list[int]) -> object:
        if len(spans) == 2:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return run(self, token_ids, spans, positions)

    monkeypatch.setattr(gpu_check, "run_checks", lambda device: ())
    monkeypatch.setattr(StaticSteps, "run", fails_for_two_rows)
    assert gpu_check.main(["--dry-run-cpu", "--output", str(tmp_path)]) == 1
    (path,) = tmp_path.iterdir()
    result = MeasuredSteps.model_validate_json(path.read_text())
    reasons = {cell.skipped for cell in result.cells if cell.num_rows == 2}
    assert reasons == {"failed: operation not permitted when stream is capturing"}
    assert all(cell.median_s is not None for cell in result.cells if cell.num_rows == 1)
    assert "missing: target batch 2" in capsys.readouterr().out
