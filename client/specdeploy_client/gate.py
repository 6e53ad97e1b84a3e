"""The gate: RunSummary + IntegrityReport + GateConfig -> Verdict. Pure: no clock, no file, no server.

"Switch it off" is an ordinary answer, given with the numbers that say why.
"""

from specdeploy.run_contract import (
    Arm,
    CellSummary,
    Comparison,
    GateConfig,
    GateFinding,
    IntegrityReport,
    Load,
    MetricName,
    Percentile,
    Percentiles,
    PlannedDraftLen,
    RunSummary,
    SegmentDecision,
    Slo,
    Status,
    Verdict,
)
from specdeploy_client.integrity import worst
from specdeploy_client.metrics import samples_needed


def judge(summary: RunSummary, integrity: IntegrityReport | None, gate: GateConfig) -> Verdict:
    """The verdict; its status is the worst of its findings."""
    decisions = tuple(decide_segment(summary, planned.segment, gate) for planned in summary.planned)
    findings = [_judge_errors(summary, gate)]
    if gate.require_integrity:
        findings.append(_judge_integrity(summary, integrity))
    is_queued = summary.is_queued(summary.expected_concurrency)
    findings += [
        _judge_plan(planned, decision, is_queued=is_queued)
        for planned, decision in zip(summary.planned, decisions, strict=True)
    ]
    if gate.require_slos:
        findings += [_judge_slo(summary, slo) for slo in summary.slos]
    return Verdict(
        deployment=summary.deployment,
        status=worst([finding.status for finding in findings]),
        findings=tuple(findings),
        decisions=decisions,
    )


def decide_segment(summary: RunSummary, segment: str, gate: GateConfig) -> SegmentDecision:
    """What the on/off interval of the gate's metric says at the expected concurrency."""
    concurrency = summary.expected_concurrency
    comparison = find_comparison(summary, segment, Load(concurrency), gate.decide_metric)
    action, detail = "measure more", f"not measured at concurrency {concurrency}"
    if summary.is_queued(concurrency):
        detail = describe_queue(summary, concurrency)
    elif comparison is not None and comparison.void_reasons:
        detail = "the measurement is void: " + "; ".join(map(str, comparison.void_reasons))
    elif comparison is not None and comparison.ci_low is not None and comparison.ci_high is not None:
        detail = describe_ratio(comparison, gate.max_ratio)
        if comparison.ci_high < gate.max_ratio:
            action = "speculate"
        elif comparison.ci_low > gate.max_ratio:
            action = "switch off"
    return SegmentDecision.model_validate(
        {"segment": segment, "concurrency": concurrency, "action": action, "detail": detail}
    )


def describe_queue(summary: RunSummary, concurrency: int) -> str:
    """Why a level says nothing of speculation: requests may wait for others, and both arms then measure that queue."""
    limit = summary.concurrency_limit or "it does not say why"
    return (
        f"{concurrency} requests may queue: the server decodes {summary.effective_concurrency} of full length at once "
        f"({limit}). Raise that limit or lower traffic.expected_concurrency"
    )


def find_comparison(
    summary: RunSummary, segment: str, load: Load, metric: MetricName, percentile: Percentile = Percentile.P50
) -> Comparison | None:
    """The comparison of one metric in one cell, or None when that cell was not measured."""
    return next(
        (
            c
            for c in summary.comparisons
            if (c.segment, c.load, c.metric, c.percentile) == (segment, load, metric, percentile)
        ),
        None,
    )


def find_cell(summary: RunSummary, segment: str, load: Load, arm: Arm) -> CellSummary | None:
    """One arm of one cell, or None when it was not measured."""
    return next((c for c in summary.cells if (c.segment, c.load, c.arm) == (segment, load, arm)), None)


def describe_ratio(comparison: Comparison, max_ratio: float = 1.0) -> str:
    """`e2e on/off 0.62 [0.58, 0.67]` and, unless it is 1, the limit it is held against."""
    if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return f"{comparison.metric} on/off not measured"
    limit = "" if max_ratio == 1.0 else f", limit {max_ratio:g}"
    return (
        f"{comparison.metric} on/off {comparison.ratio:.2f} "
        f"[{comparison.ci_low:.2f}, {comparison.ci_high:.2f}] over {comparison.num_pairs} pairs{limit}"
    )


def _judge_errors(summary: RunSummary, gate: GateConfig) -> GateFinding:
    num_errors = sum(cell.num_errors for cell in summary.cells)
    num_requests = sum(cell.num_requests for cell in summary.cells)
    if not num_requests:
        return GateFinding(subject="errors", status=Status.INCONCLUSIVE, detail="no request was measured")
    rate = num_errors / num_requests
    return GateFinding(
        subject="errors",
        status=Status.FAIL if rate > gate.max_error_rate else Status.PASS,
        detail=f"{num_errors} of {num_requests} requests failed, {gate.max_error_rate:.1%} allowed",
    )


def _judge_integrity(summary: RunSummary, integrity: IntegrityReport | None) -> GateFinding:
    subject = "integrity"
    remedy = "run `specdeploy-client verify`"
    if integrity is None:
        return GateFinding(subject=subject, status=Status.INCONCLUSIVE, detail=f"no integrity report: {remedy}")
    # Deployments that differ only in dtype or method share a build: its id alone does not say what was checked.
    checked = (integrity.deployment, integrity.build_id, integrity.dtype)
    measured = (summary.deployment, summary.build_id, summary.dtype)
    if integrity.build_id is None or checked != measured:
        said = ", ".join(map(str, checked))
        detail = f"the report is of {said}, measured was {', '.join(map(str, measured))}: {remedy}"
        return GateFinding(subject=subject, status=Status.INCONCLUSIVE, detail=detail)
    bad = [f"{check.name}: {check.detail}" for check in integrity.checks if check.status is not Status.PASS]
    return GateFinding(
        subject=subject,
        status=integrity.status,
        detail="; ".join(bad) if bad else f"all {len(integrity.checks)} checks passed",
    )


def _judge_plan(planned: PlannedDraftLen, decision: SegmentDecision, *, is_queued: bool) -> GateFinding:
    """Whether what the plan does for a segment is what the measurement says. A level that queues says nothing."""
    subject = f"plan for {planned.segment}"
    at = f"at concurrency {decision.concurrency}"
    if planned.draft_len == 0:
        note = "; speculation would be faster here" if decision.action == "speculate" else ""
        detail = f"planned off {at} ({planned.off_reason or 'no reason given'}); {decision.detail}{note}"
        status = Status.INCONCLUSIVE if is_queued else Status.PASS
        return GateFinding(subject=subject, status=status, detail=detail)
    status, says = {
        "speculate": (Status.PASS, "measured faster"),
        "switch off": (Status.FAIL, "measured slower, switch it off"),
        "measure more": (Status.INCONCLUSIVE, "undecided, measure more"),
    }[decision.action]
    detail = f"planned K = {planned.draft_len} {at}, {says}: {decision.detail}"
    return GateFinding(subject=subject, status=status, detail=detail)


def _judge_slo(summary: RunSummary, slo: Slo) -> GateFinding:
    """One objective, in the arm the plan uses at the expected concurrency."""
    subject = f"SLO {slo.segment} {slo.metric} {slo.percentile} <= {slo.max_ms:g} ms"
    concurrency = summary.expected_concurrency
    is_on = any(p.segment == slo.segment and p.draft_len > 0 for p in summary.planned)
    arm = Arm.ON if is_on else Arm.OFF
    cell = find_cell(summary, slo.segment, Load(concurrency), arm)
    if cell is None:
        measured = ", ".join(map(str, _measured_levels(summary, slo.segment))) or "none"
        detail = f"not measured at the expected concurrency {concurrency} (measured: {measured})"
        return GateFinding(subject=subject, status=Status.INCONCLUSIVE, detail=detail)
    if summary.is_queued(concurrency):
        return GateFinding(subject=subject, status=Status.INCONCLUSIVE, detail=describe_queue(summary, concurrency))
    percentiles = metric_percentiles(cell, slo.metric)
    value = percentiles.value(slo.percentile)
    if value is None:
        needed = samples_needed(slo.percentile)
        detail = f"{percentiles.num_samples} samples do not support {slo.percentile}; {needed} are needed"
        return GateFinding(subject=subject, status=Status.INCONCLUSIVE, detail=detail)
    return GateFinding(
        subject=subject,
        status=Status.PASS if value <= slo.max_ms else Status.FAIL,
        detail=f"{value:.1f} ms at concurrency {concurrency}, speculation {arm}",
    )


def metric_percentiles(cell: CellSummary, metric: MetricName) -> Percentiles:
    """The percentiles of one metric of a cell."""
    return {MetricName.TTFT: cell.ttft_ms, MetricName.TPOT: cell.tpot_ms, MetricName.E2E: cell.e2e_ms}[metric]


def _measured_levels(summary: RunSummary, segment: str) -> list[Load]:
    return sorted({cell.load for cell in summary.cells if cell.segment == segment}, key=lambda load: load.value)
