"""The single questions of the gate; each function answers one and says why. Pure."""

from collections.abc import Mapping

from specdeploy.run_contract import (
    Arm,
    Comparison,
    Crossover,
    Load,
    MetricName,
    Percentile,
    PlannedDraftLen,
    RunSummary,
    Slo,
)
from specdeploy.verdict_contract import GateConfig, GateFinding, IntegrityReport, SegmentDecision, Status
from specdeploy_client.comparison.stats import RatioInterval, pairs_needed
from specdeploy_client.comparison.wording import describe_ratio, describe_voids
from specdeploy_client.judging.run_lookup import (
    arm_voids,
    describe_queue,
    find_cell,
    find_comparison,
    measured_loads,
    metric_percentiles,
)
from specdeploy_client.metrics import samples_needed

_VERIFY = "run `specdeploy-client verify`"
_NO_BUILD = (
    "the server names no build, so no integrity report can be known to be of it. Judge such a server by a gate with "
    "require_integrity: false and no required_checks"
)


def judge_errors(summary: RunSummary, gate: GateConfig) -> GateFinding:
    """Failed requests of the whole run against the allowed rate. Short answers are named; they are not failures."""
    num_errors = sum(cell.num_errors for cell in summary.cells)
    num_requests = sum(cell.num_requests for cell in summary.cells)
    num_short = sum(cell.num_short for cell in summary.cells)
    if not num_requests:
        return GateFinding(subject="errors", status=Status.INCONCLUSIVE, detail="no request was measured")
    short = f"; {num_short} ended with fewer tokens than asked for" if num_short else ""
    return GateFinding(
        subject="errors",
        status=Status.FAIL if num_errors / num_requests > gate.max_error_rate else Status.PASS,
        detail=f"{num_errors} of {num_requests} requests failed, {gate.max_error_rate:.1%} allowed{short}",
    )


def judge_integrity(summary: RunSummary, integrity: IntegrityReport | None, gate: GateConfig) -> list[GateFinding]:
    """The integrity report as a whole, if the gate requires it, and every check that it requires by name."""
    if not gate.require_integrity and not gate.required_checks:
        return []
    if summary.build_id is None:
        return [_no_integrity(_NO_BUILD)]
    if integrity is None:
        return [_no_integrity(f"no integrity report: {_VERIFY}")]
    if problem := _mismatch(summary, integrity):
        return [_no_integrity(problem)]
    findings = [_whole_report(integrity)] if gate.require_integrity else []
    by_name = {check.name: check for check in integrity.checks}
    for name in gate.required_checks:
        check = by_name.get(name)
        status = Status.INCONCLUSIVE if check is None else check.status
        detail = f"not in the integrity report: {_VERIFY} again" if check is None else check.detail
        findings.append(GateFinding(subject=f"check {name}", status=status, detail=detail))
    return findings


def judge_one_arm(summary: RunSummary, segment: str) -> GateFinding:
    """A segment without a plan, measured with one arm: nothing says what speculation does to it."""
    arms = " and ".join(dict.fromkeys(cell.arm.value for cell in summary.cells if cell.segment == segment))
    detail = (
        f"nothing was compared: only arm {arms} was measured. Give `bench` a server or model without speculation "
        "(--off-url, --off-model)"
    )
    return GateFinding(subject=f"speculation for {segment}", status=Status.INCONCLUSIVE, detail=detail)


def judge_plan(
    summary: RunSummary, planned: PlannedDraftLen | None, decision: SegmentDecision, status: Status
) -> GateFinding:
    """Whether what the plan does for a segment is what the measurement says. `planned` None: no plan is known.

    `status`: whether the on/off ratio keeps the gate's limit, as a plan that speculates needs it.
    """
    load = Load(decision.concurrency, decision.request_rate)
    if planned is not None and planned.draft_len == 0:
        return _judge_planned_off(summary, planned, decision, load)
    says = {
        Status.PASS: "measured faster: ",
        Status.FAIL: "measured slower, switch it off: " if decision.action == "switch off" else "",
        Status.INCONCLUSIVE: "undecided, measure more: ",
    }[status]
    subject, plan = f"speculation for {decision.segment}", f"at {load}"
    if planned is not None:
        subject, plan = f"plan for {decision.segment}", f"planned K = {planned.draft_len} at {load}"
    return GateFinding(subject=subject, status=status, detail=f"{plan}, {says}{decision.detail}")


def judge_regressions(
    summary: RunSummary, segment: str, load: Load, limits: Mapping[tuple[MetricName, Percentile], float]
) -> list[GateFinding]:
    """Percentiles of metrics that may not get slower than a limit, however fast the rest is.

    An interval that does not exceed the limit passes, one wholly above it fails; one that contains it is inconclusive,
    and so is a percentile that was not measured.
    """
    findings: list[GateFinding] = []
    for (metric, percentile), limit in limits.items():
        status, detail = _judge_regression(summary, segment, load, metric, percentile, limit)
        subject = f"regression {segment} {metric} {percentile} <= {limit:g}"
        findings.append(GateFinding(subject=subject, status=status, detail=detail))
    return findings


def judge_crossover(
    summary: RunSummary,
    segment: str,
    planned: PlannedDraftLen | None,
    decision: SegmentDecision,
    metric: MetricName,
) -> GateFinding | None:
    """Whether the expected concurrency lies beyond the crossover although the plan speculates there.

    None where there is no crossover to judge: an open loop, a single level, or a queue at the expected concurrency
    (which `judge_plan` reports). Inside the crossover's interval what was measured at the level itself decides.
    """
    found = [c for c in summary.crossovers if (c.segment, c.metric) == (segment, metric)]
    expected = decision.concurrency
    if not found or expected is None or summary.is_queued(expected):
        return None
    crossover = found[0]
    subject = f"crossover {segment}"
    said = f"{metric} crossover: {crossover}; expected concurrency {expected}"
    if planned is not None and planned.draft_len == 0:
        return GateFinding(subject=subject, status=Status.PASS, detail=f"{said}, where the plan switches off")
    status, why = _place_beside(crossover, expected, decision)
    return GateFinding(subject=subject, status=status, detail=f"{said} {why}")


def judge_slo(summary: RunSummary, slo: Slo, load: Load) -> GateFinding:
    """One objective at one load, in the arm the plan uses there."""
    subject = f"SLO {slo.segment} {slo.metric} {slo.percentile} <= {slo.max_ms:g} ms"

    def inconclusive(detail: str) -> GateFinding:
        return GateFinding(subject=subject, status=Status.INCONCLUSIVE, detail=detail)

    arm = _planned_arm(summary, slo.segment, load)
    cell = find_cell(summary, slo.segment, load, arm)
    if cell is None:
        loads = measured_loads(summary, slo.segment)
        if load in loads:
            return inconclusive(f"not measured at {load} with speculation {arm}")
        measured = ", ".join(map(str, loads)) or "none"
        expected = "the expected " if load.request_rate is None else ""
        return inconclusive(f"not measured at {expected}{load} (measured: {measured})")
    if load.concurrency is not None and summary.is_queued(load.concurrency):
        return inconclusive(describe_queue(summary, load.concurrency))
    if voids := arm_voids(summary, slo.segment, load, arm):
        return inconclusive(describe_voids(voids))
    percentiles = metric_percentiles(cell, slo.metric)
    value = percentiles.value(slo.percentile)
    if value is None:
        needed = samples_needed(slo.percentile)
        return inconclusive(f"{percentiles.num_samples} samples do not support {slo.percentile}; {needed} are needed")
    return GateFinding(
        subject=subject,
        status=Status.PASS if value <= slo.max_ms else Status.FAIL,
        detail=f"{value:.1f} ms at {load}, speculation {arm}",
    )


def describe_pairs_needed(comparison: Comparison, limit: float) -> str:
    """`; about 320 pairs would decide`, or nothing where no affordable number would.

    Counted for `limit`, which need not be the one that the run was measured for.
    """
    if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return ""
    interval = RatioInterval(comparison.ratio, comparison.ci_low, comparison.ci_high, comparison.num_pairs)
    needed = pairs_needed(interval, limit)
    return "" if needed is None else f"; about {needed} pairs would decide"


def _planned_arm(summary: RunSummary, segment: str, load: Load) -> Arm:
    """The arm users will get; without a plan the one with speculation, if it was measured."""
    planned = next((plan for plan in summary.planned if plan.segment == segment), None)
    is_on = find_cell(summary, segment, load, Arm.ON) is not None if planned is None else planned.draft_len > 0
    return Arm.ON if is_on else Arm.OFF


def _no_integrity(detail: str) -> GateFinding:
    return GateFinding(subject="integrity", status=Status.INCONCLUSIVE, detail=detail)


def _mismatch(summary: RunSummary, integrity: IntegrityReport) -> str | None:
    """Why the report vouches for nothing here, or None."""
    if integrity.build_id is None:
        return f"the report names no build, and so vouches for none: {_VERIFY} against a server that names its own"
    # Deployments that differ only in dtype or method share a build: its id alone does not say what was checked.
    facts = (
        ("deployment", integrity.deployment, summary.deployment),
        ("build", integrity.build_id, summary.build_id),
        ("dtype", integrity.dtype, summary.dtype),
    )
    others = [
        f"{name} {checked or 'unknown'} (measured: {seen or 'unknown'})"
        for name, checked, seen in facts
        if checked != seen
    ]
    return f"the report is of {', '.join(others)}: {_VERIFY}" if others else None


def _whole_report(integrity: IntegrityReport) -> GateFinding:
    if not integrity.checks:
        return _no_integrity(f"the report holds no check: {_VERIFY} again")
    bad = [f"{check.name}: {check.detail}" for check in integrity.checks if check.status is not Status.PASS]
    detail = "; ".join(bad) if bad else f"all {len(integrity.checks)} checks passed"
    return GateFinding(subject="integrity", status=integrity.status, detail=detail)


def _judge_planned_off(
    summary: RunSummary, planned: PlannedDraftLen, decision: SegmentDecision, load: Load
) -> GateFinding:
    """A plan that does not speculate claims no gain; it only needs a measurement that is not void as such."""
    is_measured = find_cell(summary, planned.segment, load, Arm.OFF) is not None
    is_void = bool(arm_voids(summary, planned.segment, load, Arm.OFF))
    note = "; speculation would be faster here" if decision.action == "speculate" else ""
    reason = planned.off_reason or "no reason given"
    return GateFinding(
        subject=f"plan for {planned.segment}",
        status=Status.INCONCLUSIVE
        if is_void or not is_measured or summary.is_queued(load.concurrency)
        else Status.PASS,
        detail=f"planned off at {load} ({reason}); {decision.detail}{note}",
    )


def _judge_regression(
    summary: RunSummary, segment: str, load: Load, metric: MetricName, percentile: Percentile, limit: float
) -> tuple[Status, str]:
    if load.concurrency is not None and summary.is_queued(load.concurrency):
        return Status.INCONCLUSIVE, describe_queue(summary, load.concurrency)
    comparison = find_comparison(summary, segment, load, metric, percentile)
    median = comparison or find_comparison(summary, segment, load, metric)
    if median is None:
        return Status.INCONCLUSIVE, f"not measured at {load}"
    if median.void_reasons:
        return Status.INCONCLUSIVE, describe_voids(median.void_reasons)
    if comparison is None or comparison.ci_low is None or comparison.ci_high is None:
        return Status.INCONCLUSIVE, _not_compared(median, percentile)
    detail = f"at {load}: {describe_ratio(comparison)}"
    if comparison.ci_high <= limit:
        return Status.PASS, detail
    if comparison.ci_low > limit:
        return Status.FAIL, f"{detail}, wholly above {limit:g}"
    return Status.INCONCLUSIVE, f"{detail}, may be above {limit:g}{describe_pairs_needed(comparison, limit)}"


def _not_compared(median: Comparison, percentile: Percentile) -> str:
    needed = samples_needed(percentile)
    if median.num_pairs < needed:
        return f"{median.num_pairs} pairs do not support {percentile}; {needed} are needed"
    return f"{percentile} was not compared: measure with --metric-percentiles {percentile.value.removeprefix('p')}"


def _place_beside(crossover: Crossover, expected: int, decision: SegmentDecision) -> tuple[Status, str]:
    """Status and reason of an expected concurrency at which the plan speculates."""
    is_faster_there = decision.action == "speculate"
    if crossover.kind == "never faster":
        remedy = ". Switch it off" if decision.action == "switch off" else " by what the gate asks"
        return Status.FAIL, f"lies beyond it: speculation was faster at no level{remedy}"
    if crossover.kind == "none up to":
        if expected <= crossover.max_concurrency:
            return Status.PASS, "lies below it"
        return Status.INCONCLUSIVE, "lies beyond what was measured"
    if crossover.kind == "crosses":
        if crossover.ci_high is not None and expected > crossover.ci_high:
            return Status.FAIL, "lies beyond it. Let the plan switch off there (speculation.draft_len_by_in_flight)"
        if crossover.ci_low is not None and expected < crossover.ci_low:
            return Status.PASS, "lies below it"
    if is_faster_there:
        return Status.PASS, "was measured faster itself"
    return Status.INCONCLUSIVE, "may lie on either side of it"
