"""The gate's truth table."""

import pytest

from specdeploy.run_contract import Percentile, PlannedDraftLen, RunSummary
from specdeploy.verdict_contract import GateConfig, GateFinding, IntegrityCheck, IntegrityReport, Status, Verdict
from specdeploy_client.judging.gate import judge
from unit.specdeploy_client.fabricate import make_cell, make_slo, make_summary

GATE = GateConfig(name="test")
FASTER, SLOWER, EQUAL = 1.6, 0.7, 1.0
ON = PlannedDraftLen(segment="chat", draft_len=4)
OFF = PlannedDraftLen(segment="chat", draft_len=0, off_reason="measured slower")


def _integrity(
    status: Status = Status.PASS, build_id: str | None = "b1", deployment: str = "demo", dtype: str = "float32"
) -> IntegrityReport:
    check = IntegrityCheck(name="output tokens on = off", status=status, detail="seen")
    return IntegrityReport(
        deployment=deployment, build_id=build_id, dtype=dtype, created_at="now", status=status, checks=(check,)
    )


def _judge(summary: RunSummary, integrity: IntegrityReport | None = None, gate: GateConfig = GATE) -> Verdict:
    return judge(summary, integrity or _integrity(), gate)


def _finding(verdict: Verdict, subject: str) -> GateFinding:
    (found,) = [finding for finding in verdict.findings if finding.subject.startswith(subject)]
    return found


@pytest.mark.parametrize(
    ("planned", "speedup", "status", "action"),
    [
        (ON, FASTER, Status.PASS, "speculate"),
        (ON, SLOWER, Status.FAIL, "switch off"),
        (ON, EQUAL, Status.INCONCLUSIVE, "measure more"),
        (OFF, FASTER, Status.PASS, "speculate"),
        (OFF, SLOWER, Status.PASS, "switch off"),
        (OFF, EQUAL, Status.PASS, "measure more"),
    ],
)
def test_plan_against_measurement(planned: PlannedDraftLen, speedup: float, status: Status, action: str) -> None:
    verdict = _judge(make_summary(make_cell(concurrency=4, speedup=speedup), planned=[planned]))
    (decision,) = verdict.decisions
    assert (verdict.status, decision.action) == (status, action)
    assert "e2e on/off" in decision.detail


def test_planned_off_where_on_would_be_faster_says_so() -> None:
    verdict = _judge(make_summary(make_cell(concurrency=4, speedup=FASTER), planned=[OFF]))
    assert _finding(verdict, "plan for chat").detail.endswith("speculation would be faster here")


def test_another_concurrency_than_the_expected_one_decides_nothing() -> None:
    summary = make_summary(make_cell(concurrency=1, speedup=FASTER), slos=[make_slo(1000)])
    verdict = _judge(summary)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.decisions[0].detail == "not measured at concurrency 4"
    assert _finding(verdict, "SLO").detail == "not measured at the expected concurrency 4 (measured: concurrency 1)"


def test_a_level_that_queues_decides_nothing_however_fast_it_looks() -> None:
    records = make_cell(concurrency=4, speedup=FASTER)
    verdict = _judge(make_summary(records, planned=[ON], effective_concurrency=3))
    (decision,) = verdict.decisions
    assert (verdict.status, decision.action) == (Status.INCONCLUSIVE, "measure more")
    assert "4 requests may queue: the server decodes 3 of full length at once (serving.max_rows)" in decision.detail
    assert _judge(make_summary(records, planned=[ON], effective_concurrency=4)).status is Status.PASS


@pytest.mark.parametrize("planned", [ON, OFF])
def test_nothing_passes_at_a_level_that_queues(planned: PlannedDraftLen) -> None:
    slo = make_slo(max_ms=1e9)
    summary = make_summary(
        make_cell(concurrency=4, speedup=EQUAL), planned=[planned], slos=[slo], effective_concurrency=3
    )
    verdict = _judge(summary)
    assert verdict.status is Status.INCONCLUSIVE
    assert {_finding(verdict, "plan for chat").status, _finding(verdict, "SLO").status} == {Status.INCONCLUSIVE}


def test_a_void_comparison_is_measured_again_with_its_reason() -> None:
    verdict = _judge(make_summary(make_cell(concurrency=4, num_pairs=5)))
    assert verdict.decisions[0].action == "measure more"
    assert "too few pairs" in verdict.decisions[0].detail


def test_max_ratio_asks_for_more_than_faster() -> None:
    summary = make_summary(make_cell(concurrency=4, speedup=1.2))
    assert _judge(summary).status is Status.PASS
    strict = _judge(summary, gate=GateConfig(name="strict", max_ratio=0.5))
    assert strict.decisions[0].action == "speculate"  # it gains, only less than is asked
    assert strict.status is Status.FAIL
    assert "faster, but by less than the gate asks: e2e on/off 0.8" in _finding(strict, "plan for chat").detail


@pytest.mark.parametrize(
    ("max_ms", "percentile", "status"),
    [
        (1000, Percentile.P50, Status.PASS),
        (1, Percentile.P50, Status.FAIL),
        (1000, Percentile.P90, Status.INCONCLUSIVE),
    ],
)
def test_slos(max_ms: float, percentile: Percentile, status: Status) -> None:
    slo = make_slo(max_ms, percentile)
    verdict = _judge(make_summary(make_cell(concurrency=4, speedup=FASTER), slos=[slo]))
    finding = _finding(verdict, "SLO")
    assert (finding.status, verdict.status) == (status, status)
    if percentile is Percentile.P90:
        assert finding.detail == "20 samples do not support p90; 100 are needed"


@pytest.mark.parametrize(("planned", "arm"), [(ON, "on"), (OFF, "off")])
def test_slos_hold_for_the_arm_the_plan_uses(planned: PlannedDraftLen, arm: str) -> None:
    summary = make_summary(make_cell(concurrency=4, speedup=2.0), planned=[planned], slos=[make_slo(35)])
    finding = _finding(_judge(summary), "SLO")
    assert finding.status is (Status.PASS if arm == "on" else Status.FAIL)
    assert finding.detail.endswith(f"speculation {arm}")


@pytest.mark.parametrize(
    ("integrity", "status"),
    [
        (_integrity(), Status.PASS),
        (_integrity(Status.FAIL), Status.FAIL),
        (_integrity(Status.INCONCLUSIVE), Status.INCONCLUSIVE),
        (_integrity(build_id="older"), Status.INCONCLUSIVE),
        (_integrity(deployment="demo-bf16", dtype="bfloat16"), Status.INCONCLUSIVE),  # shares the build id
        (None, Status.INCONCLUSIVE),
    ],
)
def test_integrity(integrity: IntegrityReport | None, status: Status) -> None:
    summary = make_summary(make_cell(concurrency=4, speedup=FASTER))
    assert judge(summary, integrity, GATE).status is status
    relaxed = judge(summary, integrity, GateConfig(name="relaxed", require_integrity=False))
    assert relaxed.status is Status.PASS


@pytest.mark.parametrize("integrity", [_integrity(build_id=None), _integrity(), None])
def test_a_server_that_names_no_build_is_not_vouched_for(integrity: IntegrityReport | None) -> None:
    finding = _finding(judge(make_summary(make_cell(concurrency=4), build_id=None), integrity, GATE), "integrity")
    assert finding.status is Status.INCONCLUSIVE
    assert finding.detail.startswith("the server names no build, so no integrity report can be known to be of it")
    assert "verify" not in finding.detail  # it would not help


@pytest.mark.parametrize(
    ("integrity", "detail"),
    [
        (_integrity(build_id="older"), "the report is of build older (measured: b1): run `specdeploy-client verify`"),
        (_integrity(dtype="bfloat16"), "the report is of dtype bfloat16 (measured: float32): run"),
        (_integrity(build_id=None), "the report names no build, and so vouches for none"),
        (_integrity().model_copy(update={"checks": ()}), "the report holds no check: run"),
        (None, "no integrity report: run"),
    ],
)
def test_why_a_report_vouches_for_nothing(integrity: IntegrityReport | None, detail: str) -> None:
    finding = _finding(judge(make_summary(make_cell(concurrency=4)), integrity, GATE), "integrity")
    assert finding.status is Status.INCONCLUSIVE
    assert finding.detail.startswith(detail)


def test_errors_beyond_the_allowed_rate_fail() -> None:
    records = make_cell(concurrency=4)
    records[0] = records[0].model_copy(update={"error": "refused"})
    finding = _finding(_judge(make_summary(records)), "errors")
    assert (finding.status, finding.detail) == (Status.FAIL, "1 of 40 requests failed, 0.0% allowed")
    tolerant = _judge(make_summary(records), gate=GateConfig(name="tolerant", max_error_rate=0.1))
    assert _finding(tolerant, "errors").status is Status.PASS


def test_an_empty_run_is_inconclusive() -> None:
    assert _judge(make_summary([])).status is Status.INCONCLUSIVE
