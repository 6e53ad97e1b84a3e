"""Which calibration is borrowed, and how far it is lent."""

from pathlib import Path
from typing import Any

from specdeploy.contract import Method
from specdeploy.planner.borrowed import (
    TRANSFER_ERROR,
    Wanted,
    borrowed_error,
    describe_source,
    host_work_notes,
    lent,
    nearest,
)
from specdeploy.planner.calibration_files import load_calibration
from specdeploy.planner_contract import CalibratedRange, Calibration, MeasuredTarget, Overheads

SHIPPED = Path(__file__).parents[4] / "configs" / "calibrations"


def calibration(name: str, *, rows: int = 64, draft_len: int = 3, error: float = 0.05, **changes: Any) -> Calibration:
    values: dict[str, Any] = {
        "name": name,
        "hardware": "h100-sxm",
        "engine": "sglang",
        "method": Method.EAGLE3,
        "overheads": Overheads(),
        "range": CalibratedRange(max_rows=rows, max_draft_len=draft_len, max_step_tokens=rows * (draft_len + 1)),
        "median_relative_error": error,
        "p90_relative_error": error,
        "source": "a test",
        **changes,
    }
    return Calibration(**values)


def wanted(method: Method = Method.EAGLE3, rows: int = 16, draft_len: int = 3) -> Wanted:
    return Wanted("tensorrt_llm", "h200-sxm", method, rows, draft_len)


def test_one_that_covers_the_load_comes_before_one_that_is_closer() -> None:
    close = calibration("a", rows=1, engine="tensorrt_llm", hardware="h200-sxm")
    assert nearest([close, calibration("b")], wanted()) == calibration("b")
    assert nearest([close, calibration("b")], wanted(rows=1)) == close


def test_then_method_form_engine_device_name() -> None:
    by_rank = [
        calibration("e", method=Method.EAGLE3),
        calibration("d", method=Method.EAGLE, engine="tensorrt_llm", hardware="h200-sxm"),
        calibration("c", method=Method.EAGLE, hardware="h200-sxm"),
        calibration("b", method=Method.EAGLE),
        calibration("a", method=Method.NGRAM, engine="tensorrt_llm", hardware="h200-sxm"),
    ]
    for index in range(len(by_rank)):
        assert nearest(list(reversed(by_rank[index:])), wanted()) == by_rank[index]


def test_a_machine_measured_as_a_whole_is_nobody_elses() -> None:
    whole = calibration("cpu", overheads=None, target=MeasuredTarget(curve_tokens=(1,), curve_s=(0.01,)))
    assert nearest([whole], wanted()) is None
    assert nearest([], wanted()) is None


def test_k_limits_drafters_that_run_pass_after_pass_only() -> None:
    chained = lent(calibration("a"), "h200-sxm", draft_len=8, is_chained=True)
    at_once = lent(calibration("a"), "h200-sxm", draft_len=8, is_chained=False)
    assert (chained.hardware, chained.range.max_draft_len) == ("h200-sxm", 3)
    assert (at_once.range.max_draft_len, at_once.range.max_rows, at_once.range.max_step_tokens) == (8, 64, 256)


def test_the_error_is_that_of_transfers_at_least() -> None:
    assert borrowed_error(calibration("a")) == TRANSFER_ERROR
    assert borrowed_error(calibration("a", error=0.4)) == 0.4


def test_what_it_is_and_what_it_gets_wrong_is_said() -> None:
    assert describe_source(calibration("a")) == "SGLang's overheads of eagle3 on h100-sxm (calibration a)"
    assert host_work_notes(calibration("a"), Method.EAGLE3) == ()
    assert "a lookup in the text takes less" in host_work_notes(calibration("a"), Method.NGRAM)[0]


def test_the_shipped_ones_serve_the_shipped_eagle3_deployment() -> None:
    found = nearest([load_calibration(path) for path in sorted(SHIPPED.glob("*.json"))], wanted())
    assert found is not None
    assert found.name == "sglang-h100-eagle3"
