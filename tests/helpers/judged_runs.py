"""A run and the verdict on it, with one finding of every status."""

from helpers.run_summaries import comparison, crosses, run_summary, void
from specdeploy.run_contract import CellConditions, MetricName, Percentile, RunSummary, VoidCode
from specdeploy.verdict_contract import GateFinding, SegmentDecision, Status, Verdict

VERDICT = Verdict(
    deployment="demo",
    status=Status.FAIL,
    findings=(
        GateFinding(subject="errors", status=Status.PASS, detail="0 of 80 requests failed"),
        GateFinding(subject="plan for chat", status=Status.FAIL, detail="measured slower: 1.3 [1.2, 1.4] & <rising>"),
        GateFinding(subject="SLO chat", status=Status.INCONCLUSIVE, detail="40 samples do not support p99"),
    ),
    decisions=(SegmentDecision(segment="chat", concurrency=4, action="switch off", detail="e2e on/off 1.30"),),
)


def judged_summary() -> RunSummary:
    """A slower cell with a void metric, a crossover and a mismatch of counters."""
    return run_summary(
        [
            comparison((1.2, 1.3, 1.4)),
            comparison((1.0, 1.1, 1.2), percentile=Percentile.P99),
            comparison(None, MetricName.TTFT, voids=[void(VoidCode.SENT_LATE, "p99 lag 5 ms")]),
        ],
        crossovers=(crosses(1.5, 2.0, 3.0),),
        conditions=(CellConditions(segment="chat", concurrency=4, counter_mismatch="server 90, client 80"),),
    )
