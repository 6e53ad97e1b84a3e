"""What a gate asks beyond the plan: tails, first tokens, crossovers, voids, checks by name, open loops."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from helpers.run_summaries import PLANNED_OFF, PLANNED_ON, cell, comparison, crosses, percentiles, run_summary, void
from specdeploy.config.load import load_yaml_model
from specdeploy.errors import ConfigError
from specdeploy.run_contract import (
    Arm,
    CellSummary,
    Crossover,
    Load,
    MetricName,
    Percentile,
    PlannedDraftLen,
    RunSummary,
    Slo,
    VoidCode,
)
from specdeploy.verdict_contract import (
    GateConfig,
    GateFinding,
    IntegrityCheck,
    IntegrityReport,
    SegmentGate,
    Status,
    Verdict,
)
from specdeploy_client.judging.gate import judge
from specdeploy_client.judging.gate_names import CHECK_NAMES

FASTER, SLOWER, EQUAL = (0.58, 0.62, 0.67), (1.2, 1.3, 1.4), (0.9, 1.0, 1.1)
GATES = Path(__file__).parents[4] / "configs" / "gates"


def _integrity(statuses: dict[str, Status] | None = None) -> IntegrityReport:
    checks = tuple(
        IntegrityCheck(name=name, status=status, detail=f"{name} seen")
        for name, status in (statuses or {CHECK_NAMES[0]: Status.PASS}).items()
    )
    status = Status.FAIL if any(check.status is Status.FAIL for check in checks) else Status.PASS
    return IntegrityReport(
        deployment="demo", build_id="b1", dtype="float32", created_at="now", status=status, checks=checks
    )


def _judge(summary: RunSummary, integrity: IntegrityReport | None = None, **gate: Any) -> Verdict:
    return judge(summary, integrity or _integrity(), GateConfig(name="test", **gate))


def _findings(verdict: Verdict, subject: str) -> list[GateFinding]:
    return [finding for finding in verdict.findings if finding.subject.startswith(subject)]


def _statuses(verdict: Verdict, subject: str) -> list[Status]:
    return [finding.status for finding in _findings(verdict, subject)]


def _with_ttft(p50: tuple[float, float, float] | None, p99: tuple[float, float, float] | None = None) -> RunSummary:
    return run_summary(
        [
            comparison(FASTER),
            comparison(p50, MetricName.TTFT),
            comparison(p99, MetricName.TTFT, Percentile.P99),
        ]
    )


@pytest.mark.parametrize(
    ("interval", "status"),
    [
        ((1.21, 1.3, 1.4), Status.FAIL),
        ((1.1, 1.25, 1.3), Status.INCONCLUSIVE),  # may be on either side
        ((0.9, 1.1, 2.5), Status.INCONCLUSIVE),
        ((0.9, 1.0, 1.2), Status.PASS),
        (None, Status.INCONCLUSIVE),
    ],
)
def test_first_tokens_are_judged_on_their_own(interval: tuple[float, float, float] | None, status: Status) -> None:
    verdict = _judge(_with_ttft(interval), max_regression={MetricName.TTFT: 1.2})
    (finding,) = _findings(verdict, "regression")
    assert finding.subject == "regression chat ttft p50 <= 1.2"
    assert (finding.status, verdict.status) == (status, status)
    assert verdict.decisions[0].action == "speculate"  # however fast the whole answer is


def test_an_open_question_says_how_many_pairs_would_answer_it() -> None:
    verdict = _judge(_with_ttft((0.95, 1.1, 1.3)), max_regression={MetricName.TTFT: 1.2})
    # (log(1.3 / 1.1) / log(1.1 / 1.2))^2 * 40 pairs
    assert _findings(verdict, "regression")[0].detail == (
        "at concurrency 4: ttft on/off 1.10 [0.95, 1.30] at 99 % over 40 pairs, may be above 1.2; "
        "about 148 pairs would decide"
    )


def test_a_number_is_a_limit_of_the_median_only() -> None:
    gate = GateConfig.model_validate({"name": "g", "max_regression": {"ttft": 1.2, "e2e": {"p50": 1.0, "p99": 1.5}}})
    assert gate.max_regression == {
        MetricName.TTFT: {Percentile.P50: 1.2},
        MetricName.E2E: {Percentile.P50: 1.0, Percentile.P99: 1.5},
    }
    assert GateConfig.model_validate_json(gate.model_dump_json()) == gate
    verdict = _judge(_with_ttft(EQUAL, (1.3, 1.5, 1.9)), max_regression={MetricName.TTFT: 1.2})
    assert _statuses(verdict, "regression chat ttft") == [Status.PASS]
    refused: tuple[dict[str, object], ...] = (
        {"ttft": {}},
        {"ttft": {"p42": 1.0}},
        {"ttft": 0},
        {"ttft": "much"},
        {"ttft": {"p99": -1.0}},
    )
    for wrong in refused:
        with pytest.raises(ValidationError, match=r"max_regression\.ttft"):
            GateConfig.model_validate({"name": "g", "max_regression": wrong})


@pytest.mark.parametrize(
    ("percentile", "num_pairs", "detail"),
    [
        (Percentile.P99, 40, "40 pairs do not support p99; 1000 are needed"),
        (Percentile.P90, 40, "40 pairs do not support p90; 100 are needed"),
        (Percentile.P90, 100, "p90 was not compared: measure with --metric-percentiles 90"),
    ],
)
def test_a_percentile_that_was_not_measured_does_not_pass(percentile: Percentile, num_pairs: int, detail: str) -> None:
    median = comparison(FASTER, MetricName.TTFT).model_copy(update={"num_pairs": num_pairs})
    limits = {MetricName.TTFT: {Percentile.P50: 1.0, percentile: 1.2}}
    verdict = _judge(run_summary([comparison(FASTER), median]), max_regression=limits)
    assert _statuses(verdict, "regression") == [Status.PASS, Status.INCONCLUSIVE]
    assert _findings(verdict, "regression")[1].detail == detail
    assert verdict.status is Status.INCONCLUSIVE


def test_a_tail_can_fail_where_the_median_does_not() -> None:
    limits = {MetricName.TTFT: {Percentile.P50: 1.2, Percentile.P99: 1.2}}
    verdict = _judge(_with_ttft(EQUAL, (1.3, 1.5, 1.9)), max_regression=limits)
    assert _statuses(verdict, "regression chat ttft") == [Status.PASS, Status.FAIL]
    tail = _findings(verdict, "regression chat ttft p99")[0]
    assert tail.detail == "at concurrency 4: ttft p99 on/off 1.50 [1.30, 1.90] at 99 % over 40 pairs, wholly above 1.2"


def test_a_void_regression_is_named() -> None:
    summary = run_summary(
        [comparison(FASTER), comparison(None, MetricName.TTFT, voids=[void(VoidCode.SENT_LATE, "p99 lag 5 ms")])]
    )
    (finding,) = _findings(_judge(summary, max_regression={MetricName.TTFT: 1.2}), "regression")
    assert (finding.status, finding.detail) == (
        Status.INCONCLUSIVE,
        "the measurement is void: sent late: p99 lag 5 ms",
    )


def test_nothing_regresses_where_the_plan_is_off() -> None:
    summary = run_summary([comparison(SLOWER), comparison(SLOWER, MetricName.TTFT)], planned=[PLANNED_OFF])
    verdict = _judge(summary, max_regression={MetricName.TTFT: 1.05})
    assert verdict.status is Status.PASS
    assert not _findings(verdict, "regression")


def test_a_segment_has_limits_of_its_own() -> None:
    planned = (PLANNED_ON, PlannedDraftLen(segment="code", draft_len=4))
    both = [comparison((0.7, 0.75, 0.8), segment=segment) for segment in ("chat", "code")]
    first_tokens = [comparison((1.1, 1.15, 1.2), MetricName.TTFT, segment=segment) for segment in ("chat", "code")]
    own = SegmentGate(name="code", max_ratio=0.6, max_regression={MetricName.TTFT: {Percentile.P50: 1.05}})
    verdict = _judge(
        run_summary([*both, *first_tokens], planned=planned), segments=(own,), max_regression={MetricName.TTFT: 1.25}
    )
    assert _statuses(verdict, "plan for chat") == [Status.PASS]
    assert _statuses(verdict, "plan for code") == [Status.FAIL]
    assert _statuses(verdict, "regression chat") == [Status.PASS]
    assert _statuses(verdict, "regression code ttft p50 <= 1.05") == [Status.FAIL]


@pytest.mark.parametrize(
    ("crossover", "interval", "status"),
    [
        (crosses(1.5, 2.0, 3.0), SLOWER, Status.FAIL),
        (crosses(6.0, 8.0, 12.0), FASTER, Status.PASS),
        (crosses(3.0, 4.5, 6.0), FASTER, Status.PASS),  # measured faster at 4 itself
        (crosses(3.0, 4.5, 6.0), EQUAL, Status.INCONCLUSIVE),
        (crosses(None, 3.0, None), EQUAL, Status.INCONCLUSIVE),
    ],
)
def test_the_expected_concurrency_beside_the_crossover(
    crossover: Crossover, interval: tuple[float, float, float], status: Status
) -> None:
    verdict = _judge(run_summary([comparison(interval)], crossovers=(crossover,)))
    assert _statuses(verdict, "crossover chat") == [status]


@pytest.mark.parametrize(
    ("kind", "max_concurrency", "status"),
    [
        ("none up to", 16, Status.PASS),
        ("none up to", 2, Status.INCONCLUSIVE),
        ("never faster", 16, Status.FAIL),
        ("undecided", 16, Status.INCONCLUSIVE),
    ],
)
def test_crossovers_without_a_number(kind: Any, max_concurrency: int, status: Status) -> None:
    found = Crossover(segment="chat", metric=MetricName.E2E, kind=kind, max_concurrency=max_concurrency)
    verdict = _judge(run_summary([comparison(EQUAL)], crossovers=(found,)))
    assert _statuses(verdict, "crossover chat") == [status]


def test_beyond_the_crossover_passes_where_the_plan_switches_off_there() -> None:
    summary = run_summary([comparison(SLOWER)], planned=[PLANNED_OFF], crossovers=(crosses(1.5, 2.0, 3.0),))
    verdict = _judge(summary)
    assert verdict.status is Status.PASS
    assert _findings(verdict, "crossover chat")[0].detail == (
        "e2e crossover: 2.0 [1.5, 3.0]; expected concurrency 4, where the plan switches off"
    )


def test_a_queue_at_the_expected_concurrency_leaves_the_crossover_unjudged() -> None:
    summary = run_summary([comparison(SLOWER)], crossovers=(crosses(1.5, 2.0, 3.0),), effective_concurrency=3)
    verdict = _judge(summary)
    assert verdict.status is Status.INCONCLUSIVE
    assert not _findings(verdict, "crossover")


def test_an_interrupted_run_is_inconclusive_whatever_it_measured() -> None:
    failing = [cell(Arm.OFF, num_errors=9), cell(Arm.ON, num_errors=8)]
    summary = run_summary([comparison(SLOWER)], failing, interrupted="the server at localhost:8001 is gone")
    verdict = _judge(summary)
    assert verdict.status is Status.INCONCLUSIVE
    assert Status.FAIL not in {finding.status for finding in verdict.findings}
    (decision,) = verdict.decisions
    assert decision.action == "measure more"
    assert decision.detail.startswith("the run ended early; until then: e2e on/off 1.30")
    assert _findings(verdict, "run")[0].detail.startswith("the run ended early: the server at localhost:8001 is gone")
    assert _findings(verdict, "errors")[0].detail.startswith("17 of 80 requests failed, 0.0% allowed; would fail")


def test_an_interrupted_run_does_not_recommend_speculation_either() -> None:
    verdict = _judge(run_summary([comparison(FASTER)], interrupted="Ctrl-C"))
    assert [decision.action for decision in verdict.decisions] == ["measure more"]


def test_an_interrupted_run_does_not_excuse_wrong_outputs() -> None:
    summary = run_summary([comparison(FASTER)], interrupted="Ctrl-C")
    assert _judge(summary, _integrity({CHECK_NAMES[1]: Status.FAIL})).status is Status.FAIL


@pytest.mark.parametrize("planned", [PLANNED_ON, PLANNED_OFF])
def test_a_void_at_the_expected_load_is_inconclusive_with_its_reason(planned: PlannedDraftLen) -> None:
    reason = void(VoidCode.CLIENT_SATURATED, "0.97 of a core")
    verdict = _judge(run_summary([comparison(None, voids=[reason])], planned=[planned]))
    assert verdict.status is Status.INCONCLUSIVE
    assert "client saturated: 0.97 of a core" in _findings(verdict, "plan for chat")[0].detail


def test_a_plan_that_is_off_needs_no_draft() -> None:
    reason = void(VoidCode.NOTHING_DRAFTED, "in the on arm")
    verdict = _judge(run_summary([comparison(None, voids=[reason])], planned=[PLANNED_OFF]))
    assert verdict.status is Status.PASS


def test_an_objective_of_a_void_cell_is_not_judged() -> None:
    slo = Slo(segment="chat", metric=MetricName.E2E, percentile=Percentile.P50, max_ms=1.0)
    reason = void(VoidCode.PREFIX_CACHE_WARM, "12 % of the prompt tokens")
    verdict = _judge(run_summary([comparison(None, voids=[reason])]), slos=(slo,))
    assert _statuses(verdict, "SLO") == [Status.INCONCLUSIVE]


def test_the_objectives_of_the_gate_come_on_top_and_hold_without_those_of_the_deployment() -> None:
    own = Slo(segment="chat", metric=MetricName.TTFT, percentile=Percentile.P50, max_ms=40.0)
    deployment = Slo(segment="chat", metric=MetricName.E2E, percentile=Percentile.P50, max_ms=1000.0)
    summary = run_summary([comparison(FASTER)], slos=(deployment,))
    both = _judge(summary, slos=(own, deployment))
    assert [finding.subject for finding in _findings(both, "SLO")] == [
        "SLO chat e2e p50 <= 1000 ms",
        "SLO chat ttft p50 <= 40 ms",
    ]
    assert _statuses(both, "SLO chat ttft") == [Status.FAIL]
    assert len(_findings(_judge(summary, slos=(own,), require_slos=False), "SLO")) == 1


def test_required_checks_must_be_there_and_pass() -> None:
    required = CHECK_NAMES[:3]
    report = _integrity({CHECK_NAMES[0]: Status.PASS, CHECK_NAMES[1]: Status.FAIL})
    verdict = _judge(run_summary([comparison(FASTER)]), report, required_checks=required, require_integrity=False)
    assert _statuses(verdict, "check ") == [Status.PASS, Status.FAIL, Status.INCONCLUSIVE]
    assert not _findings(verdict, "integrity")


def test_required_checks_need_a_report() -> None:
    gate = GateConfig(name="test", require_integrity=False, required_checks=CHECK_NAMES[:1])
    verdict = judge(run_summary([comparison(FASTER)]), None, gate)
    assert _statuses(verdict, "integrity") == [Status.INCONCLUSIVE]


def test_a_gate_with_an_unknown_name_judges_nothing() -> None:
    with pytest.raises(ConfigError, match="there is no segment 'cat'"):
        _judge(run_summary([comparison()]), segments=(SegmentGate(name="cat"),))


def _open_loop(*intervals: tuple[Load, tuple[float, float, float]], **changes: Any) -> RunSummary:
    return run_summary([comparison(interval, load=load) for load, interval in intervals], **changes)


def test_an_open_loop_decides_at_its_rate() -> None:
    slo = Slo(segment="chat", metric=MetricName.E2E, percentile=Percentile.P50, max_ms=1000.0)
    verdict = _judge(_open_loop((Load(None, 2.5), FASTER), slos=(slo,)))
    (decision,) = verdict.decisions
    assert (decision.concurrency, decision.request_rate, decision.action) == (None, 2.5, "speculate")
    assert _findings(verdict, "plan for chat")[0].detail.startswith("planned K = 4 at 2.5 requests/s, measured faster")
    assert _findings(verdict, "SLO")[0].detail == "700.0 ms at 2.5 requests/s, speculation on"
    assert verdict.status is Status.PASS


def test_several_rates_are_judged_one_by_one() -> None:
    verdict = _judge(_open_loop((Load(None, 2.0), FASTER), (Load(None, 8.0), SLOWER)))
    assert [decision.action for decision in verdict.decisions] == ["speculate", "switch off"]
    assert verdict.status is Status.FAIL


def test_more_pairs_are_asked_for_by_number() -> None:
    # (log(1.05 / 0.97) / log(0.97))^2 * 40 pairs
    verdict = _judge(run_summary([comparison((0.9, 0.97, 1.05))]))
    assert verdict.decisions[0].detail.endswith("over 40 pairs; about 271 pairs would decide")


def test_the_pairs_still_needed_are_those_of_the_gate_that_judges() -> None:
    measured_for_another = comparison((0.9, 0.97, 1.05), num_pairs_needed=999)
    verdict = _judge(run_summary([measured_for_another]), max_ratio=0.95)
    # (log(0.97 / 0.9) / log(0.97 / 0.95))^2 * 40 pairs
    assert verdict.decisions[0].detail.endswith("over 40 pairs, limit 0.95; about 517 pairs would decide")


@pytest.mark.parametrize(
    ("interval", "action", "words"),
    [
        ((0.91, 0.93, 0.95), "speculate", "faster, but by less than the gate asks"),
        ((0.95, 0.99, 1.04), "measure more", "not faster by what the gate asks"),
        ((1.02, 1.1, 1.2), "switch off", "measured slower, switch it off"),
    ],
)
def test_too_little_gain_fails_and_is_not_called_slower(
    interval: tuple[float, float, float], action: str, words: str
) -> None:
    verdict = _judge(run_summary([comparison(interval)]), max_ratio=0.9)
    (plan,) = _findings(verdict, "plan for chat")
    assert (plan.status, verdict.decisions[0].action) == (Status.FAIL, action)
    assert plan.detail.startswith(f"planned K = 4 at concurrency 4, {words}: e2e on/off")
    assert verdict.decisions[0].detail.startswith("e2e" if action == "switch off" else words)
    assert verdict.decisions[0].is_gain_too_small == (action != "switch off")


def test_a_crossover_of_too_little_gain_is_not_called_slower_either() -> None:
    found = Crossover(segment="chat", metric=MetricName.E2E, kind="never faster", max_concurrency=16)
    verdict = _judge(run_summary([comparison((0.91, 0.93, 0.95))], crossovers=(found,)), max_ratio=0.9)
    (finding,) = _findings(verdict, "crossover chat")
    assert finding.status is Status.FAIL
    assert finding.detail.endswith("speculation was faster at no level by what the gate asks")


@pytest.mark.parametrize("cells", [[], [cell(Arm.ON)], [cell(Arm.OFF, Load(1)), cell(Arm.ON, Load(1))]])
def test_a_segment_that_is_planned_off_and_was_not_measured_does_not_pass(cells: list[CellSummary]) -> None:
    verdict = _judge(run_summary((), [cell(Arm.OFF, segment="code"), *cells], planned=[PLANNED_OFF]))
    (plan,) = _findings(verdict, "plan for chat")
    assert (plan.status, verdict.status) == (Status.INCONCLUSIVE, Status.INCONCLUSIVE)
    seen = "only arm on was measured" if any(found.load == Load(4) for found in cells) else "not measured"
    assert plan.detail == f"planned off at concurrency 4 (measured slower); {seen} at concurrency 4"


def test_where_several_loads_are_judged_every_subject_says_which() -> None:
    slo = Slo(segment="chat", metric=MetricName.E2E, percentile=Percentile.P50, max_ms=1000.0)
    loads = [Load(None, 2.0), Load(None, 8.0)]
    measured = [comparison(FASTER, metric, load=load) for load in loads for metric in MetricName]
    verdict = _judge(run_summary(measured, slos=(slo,)), max_regression={MetricName.TTFT: 1.2})
    subjects = [finding.subject for finding in verdict.findings]
    assert len(subjects) == len(set(subjects))
    for subject in ("plan for chat", "regression chat ttft p50 <= 1.2", "SLO chat e2e p50 <= 1000 ms"):
        assert [found for found in subjects if found.startswith(subject)] == [
            f"{subject} at 2 requests/s",
            f"{subject} at 8 requests/s",
        ]


def test_a_foreign_endpoint_without_a_plan_is_judged_as_one_that_speculates() -> None:
    def of(interval: Sequence[float]) -> list[Status]:
        low, ratio, high = interval
        verdict = _judge(run_summary([comparison((low, ratio, high))], planned=()), require_integrity=False)
        return _statuses(verdict, "speculation for chat")

    assert [of(interval) for interval in (FASTER, SLOWER, EQUAL)] == [
        [Status.PASS],
        [Status.FAIL],
        [Status.INCONCLUSIVE],
    ]


def test_one_arm_alone_has_nothing_to_decide_and_does_not_pass() -> None:
    slo = Slo(segment="chat", metric=MetricName.TTFT, percentile=Percentile.P99, max_ms=90.0)
    lone = cell(Arm.OFF, ttft=percentiles(50.0, 80.0, 1000))
    verdict = _judge(run_summary((), [lone], planned=(), slos=(slo,)), require_integrity=False)
    assert (verdict.decisions, verdict.status) == ((), Status.INCONCLUSIVE)
    assert _statuses(verdict, "SLO") == [Status.PASS]
    (finding,) = _findings(verdict, "speculation for chat")
    assert finding.detail.startswith("nothing was compared: only arm off was measured")


def test_short_answers_are_named_beside_the_errors() -> None:
    summary = run_summary([comparison(FASTER)], [cell(Arm.OFF), cell(Arm.ON, num_short=3)])
    assert _findings(_judge(summary), "errors")[0].detail.endswith("; 3 ended with fewer tokens than asked for")


@pytest.mark.parametrize("name", ["default", "strict"])
def test_the_gates_that_are_shipped(name: str) -> None:
    gate = load_yaml_model(GATES / f"{name}.yaml", GateConfig)
    good = [comparison(FASTER, metric, percentile) for metric in MetricName for percentile in Percentile]
    report = _integrity(dict.fromkeys(CHECK_NAMES, Status.PASS))
    assert gate.name == name
    assert judge(run_summary(good), report, gate).status is Status.PASS
    late = [comparison(FASTER), comparison((1.3, 1.4, 1.5), MetricName.TTFT), comparison(FASTER, MetricName.TPOT)]
    assert judge(run_summary(late), report, gate).status is Status.FAIL


def test_the_strict_gate_wants_tails_measured() -> None:
    gate = load_yaml_model(GATES / "strict.yaml", GateConfig)
    report = _integrity(dict.fromkeys(CHECK_NAMES, Status.PASS))
    verdict = judge(run_summary([comparison(FASTER, metric) for metric in MetricName]), report, gate)
    assert verdict.status is Status.INCONCLUSIVE
    assert [f.subject for f in verdict.findings if f.status is not Status.PASS] == [
        "regression chat ttft p99 <= 1.25",
        "regression chat e2e p99 <= 1",
    ]


def test_the_strict_gate_wants_a_tenth_less_time() -> None:
    gate = load_yaml_model(GATES / "strict.yaml", GateConfig)
    report = _integrity(dict.fromkeys(CHECK_NAMES, Status.PASS))
    little = [comparison((0.92, 0.94, 0.96), metric) for metric in MetricName]
    assert judge(run_summary(little), report, gate).status is Status.FAIL


@pytest.mark.parametrize("reason", ["nobody answers on port 16", "nobody answers on port 16."])
def test_the_reason_of_an_early_end_may_bring_its_own_full_stop(reason: str) -> None:
    verdict = _judge(run_summary([comparison((0.91, 0.93, 0.95))], interrupted=reason), max_ratio=0.9)
    assert verdict.findings[0].detail.startswith("the run ended early: nobody answers on port 16. What was measured")
    assert not verdict.decisions[0].is_gain_too_small  # nothing is decided


def test_a_lone_arm_is_not_called_unmeasured() -> None:
    verdict = _judge(run_summary((), [cell(Arm.OFF)]))
    assert verdict.decisions[0].detail == "only arm off was measured at concurrency 4"
