"""The gate: RunSummary + IntegrityReport + GateConfig -> Verdict. Pure: no clock, no file, no server.

"Switch it off" is an ordinary answer, given with the numbers that say why. A run that ended early, a void cell and a
level at which requests queue are inconclusive: they never pass, and of themselves they never fail.
"""

from collections.abc import Iterable
from typing import Literal

from specdeploy.run_contract import Load, MetricName, Percentile, RunSummary
from specdeploy.verdict_contract import (
    GateConfig,
    GateFinding,
    IntegrityReport,
    SegmentDecision,
    SegmentGate,
    Status,
    Verdict,
)
from specdeploy_client.comparison.wording import describe_ratio, describe_voids
from specdeploy_client.judging.gate_findings import (
    describe_pairs_needed,
    judge_crossover,
    judge_errors,
    judge_integrity,
    judge_one_arm,
    judge_plan,
    judge_regressions,
    judge_slo,
)
from specdeploy_client.judging.gate_names import CHECK_NAMES, check_gate_names
from specdeploy_client.judging.integrity import worst
from specdeploy_client.judging.run_lookup import (
    decision_loads,
    describe_queue,
    find_comparison,
    measured_arms,
    measured_segments,
)

Action = Literal["speculate", "switch off", "measure more"]
_TOO_LITTLE: dict[Action, str] = {
    "speculate": "faster, but by less than the gate asks",
    "measure more": "not faster by what the gate asks",
}


def judge(summary: RunSummary, integrity: IntegrityReport | None, gate: GateConfig) -> Verdict:
    """The verdict; its status is the worst of its findings.

    Raises `ConfigError` when the gate names a segment or an integrity check that does not exist.
    """
    segments = tuple(dict.fromkeys((*(planned.segment for planned in summary.planned), *measured_segments(summary))))
    reported = () if integrity is None else tuple(check.name for check in integrity.checks)
    check_gate_names(gate, segments, tuple(dict.fromkeys((*CHECK_NAMES, *reported))))
    decisions: list[SegmentDecision] = []
    measured = [judge_errors(summary, gate)]
    for segment in segments:
        decided, findings = _judge_segment(summary, segment, gate)
        decisions += decided
        measured += findings
    measured += _judge_slos(summary, gate)
    if summary.interrupted is not None:
        measured = [_interrupted(summary.interrupted), *map(_soften, measured)]
        decisions = list(map(_reopen, decisions))
    findings = [*measured, *judge_integrity(summary, integrity, gate)]
    return Verdict(
        deployment=summary.deployment,
        status=worst([finding.status for finding in findings]),
        findings=tuple(findings),
        decisions=tuple(decisions),
    )


def _judge_segment(
    summary: RunSummary, segment: str, gate: GateConfig
) -> tuple[list[SegmentDecision], list[GateFinding]]:
    """The decisions of one segment, one per load of decision, and all that follows from them.

    A segment without a plan (a foreign endpoint) is judged as one that speculates; where only one arm was measured
    there is nothing to decide.
    """
    planned = next((plan for plan in summary.planned if plan.segment == segment), None)
    if planned is None and not any(comparison.segment == segment for comparison in summary.comparisons):
        return [], [judge_one_arm(summary, segment)]
    decisions: list[SegmentDecision] = []
    findings: list[GateFinding] = []
    for load in decision_loads(summary, segment):
        decision, status = _decide(summary, segment, gate, load)
        decisions.append(decision)
        found = [judge_plan(summary, planned, decision, status)]
        if planned is None or planned.draft_len > 0:
            found += judge_regressions(summary, segment, load, _max_regression(gate, segment))
        findings += _named_by_load(summary, segment, load, found)
    crossover = judge_crossover(summary, segment, planned, decisions[0], gate.decide_metric)
    return decisions, findings if crossover is None else [*findings, crossover]


def _decide(summary: RunSummary, segment: str, gate: GateConfig, load: Load) -> tuple[SegmentDecision, Status]:
    """What the on/off interval of the gate's metric says of speculation at `load`, and whether the gate's limit holds.

    The two differ where speculation gains less than the gate asks: that fails, and is no reason to switch it off.
    """
    max_ratio = _max_ratio(gate, segment)
    comparison = find_comparison(summary, segment, load, gate.decide_metric)
    action: Action = "measure more"
    status, detail = Status.INCONCLUSIVE, _why_no_comparison(summary, segment, load)
    is_gain_too_small = False
    if load.concurrency is not None and summary.is_queued(load.concurrency):
        detail = describe_queue(summary, load.concurrency)
    elif comparison is not None and comparison.void_reasons:
        detail = describe_voids(comparison.void_reasons)
    elif comparison is not None:
        detail = describe_ratio(comparison, max_ratio)
        if comparison.ci_low is not None and comparison.ci_high is not None:
            action, status = _read_interval(comparison.ci_low, comparison.ci_high, max_ratio)
            if status is Status.INCONCLUSIVE:
                detail += describe_pairs_needed(comparison, max_ratio)
            elif status is Status.FAIL and action != "switch off":
                is_gain_too_small, detail = True, f"{_TOO_LITTLE[action]}: {detail}"
    decision = SegmentDecision(
        segment=segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        action=action,
        detail=detail,
        is_gain_too_small=is_gain_too_small,
    )
    return decision, status


def _why_no_comparison(summary: RunSummary, segment: str, load: Load) -> str:
    arms = measured_arms(summary, segment, load)
    return f"only arm {arms[0]} was measured at {load}" if len(arms) == 1 else f"not measured at {load}"


def _read_interval(low: float, high: float, max_ratio: float) -> tuple[Action, Status]:
    if high < max_ratio:
        return "speculate", Status.PASS
    if low <= max_ratio:
        return "measure more", Status.INCONCLUSIVE
    if low > 1.0:
        return "switch off", Status.FAIL
    return "speculate" if high < 1.0 else "measure more", Status.FAIL


def _judge_slos(summary: RunSummary, gate: GateConfig) -> list[GateFinding]:
    """The gate's objectives and, if it requires them, the deployment's; each once, at every load of decision."""
    deployment_slos = summary.slos if gate.require_slos else ()
    return [
        finding
        for slo in dict.fromkeys((*deployment_slos, *gate.slos))
        for load in decision_loads(summary, slo.segment)
        for finding in _named_by_load(summary, slo.segment, load, [judge_slo(summary, slo, load)])
    ]


def _named_by_load(summary: RunSummary, segment: str, load: Load, findings: Iterable[GateFinding]) -> list[GateFinding]:
    """`findings` with the load in their subjects where a segment is judged at several: none must stand for another."""
    if len(decision_loads(summary, segment)) == 1:
        return list(findings)
    return [finding.model_copy(update={"subject": f"{finding.subject} at {load}"}) for finding in findings]


def _interrupted(reason: str) -> GateFinding:
    detail = f"the run ended early: {reason.rstrip('.')}. What was measured until then is kept; measure again"
    return GateFinding(subject="run", status=Status.INCONCLUSIVE, detail=detail)


def _soften(finding: GateFinding) -> GateFinding:
    """A run that ended early proves no failure: what failed may be what ended it."""
    if finding.status is not Status.FAIL:
        return finding
    detail = f"{finding.detail}; would fail, but the run ended early"
    return finding.model_copy(update={"status": Status.INCONCLUSIVE, "detail": detail})


def _reopen(decision: SegmentDecision) -> SegmentDecision:
    """Nor does it decide anything."""
    detail = f"the run ended early; until then: {decision.detail}"
    return decision.model_copy(update={"action": "measure more", "detail": detail, "is_gain_too_small": False})


def _segment_gate(gate: GateConfig, segment: str) -> SegmentGate | None:
    return next((own for own in gate.segments if own.name == segment), None)


def _max_ratio(gate: GateConfig, segment: str) -> float:
    own = _segment_gate(gate, segment)
    return gate.max_ratio if own is None or own.max_ratio is None else own.max_ratio


def _max_regression(gate: GateConfig, segment: str) -> dict[tuple[MetricName, Percentile], float]:
    own = _segment_gate(gate, segment)
    return {
        (metric, percentile): limit
        for source in (gate.max_regression, {} if own is None else own.max_regression)
        for metric, limits in source.items()
        for percentile, limit in limits.items()
    }
