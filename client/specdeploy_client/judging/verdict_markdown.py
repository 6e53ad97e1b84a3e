"""A verdict in Markdown, for the comment of a pull request: what was decided, then the numbers, then what was not."""

from collections.abc import Sequence

from specdeploy.run_contract import Comparison, Crossover, Load, MetricName, Percentile, RunSummary
from specdeploy.verdict_contract import Status, Verdict
from specdeploy_client.comparison.wording import describe_intervals, format_comparison
from specdeploy_client.judging.markdown_text import escape, inline_code, markdown_table
from specdeploy_client.judging.run_lookup import decision_loads

_SYMBOLS = {Status.PASS: "✅", Status.FAIL: "❌", Status.INCONCLUSIVE: "⚠️"}
_HEADLINES = {
    Status.PASS: "may take traffic",
    Status.FAIL: "must not take traffic as planned",
    Status.INCONCLUSIVE: "measure more before it takes traffic",
}


def render_markdown(summary: RunSummary, verdict: Verdict) -> str:
    """The whole comment. Tables of GitHub's flavour; every text of the run is escaped."""
    intervals = describe_intervals(summary.comparisons)
    parts = [
        f"## {_SYMBOLS[verdict.status]} {escape(verdict.deployment)}: {verdict.status}, {_HEADLINES[verdict.status]}",
        _describe_run(summary),
        *([f"**The run ended early:** {escape(summary.interrupted)}"] if summary.interrupted else []),
        *_section("Decisions", _decisions(verdict)),
        *_section("Findings", _findings(verdict)),
        *_section(f"Latency with speculation / without, {intervals}s", _ratios(summary)),
        *_section("Crossover", _crossovers(summary.crossovers)),
        *_section("Not compared", _voids(summary.comparisons)),
        *_section("Counters that disagree", _mismatches(summary)),
    ]
    return "\n\n".join(parts) + "\n"


def _describe_run(summary: RunSummary) -> str:
    facts = {
        "build": summary.build_id,
        "lane": summary.lane,
        "method": summary.method,
        "K": None if summary.max_draft_len is None else str(summary.max_draft_len),
        "dtype": summary.dtype,
        "load": summary.load_kind,
        "arms told apart": summary.switch,
        "measured": f"{summary.started_at}, {summary.duration_s:.0f} s",
    }
    return ", ".join(f"{name} {inline_code(value)}" for name, value in facts.items() if value)


def _decisions(verdict: Verdict) -> str:
    rows = [
        (
            escape(decision.segment),
            str(Load(decision.concurrency, decision.request_rate)),
            f"**{decision.action}**",
            escape(decision.detail),
        )
        for decision in verdict.decisions
    ]
    return markdown_table(("segment", "load", "decision", "why"), rows)


def _findings(verdict: Verdict) -> str:
    # What needs attention comes first; within a status the gate's own order stays.
    order = (Status.FAIL, Status.INCONCLUSIVE, Status.PASS)
    findings = sorted(verdict.findings, key=lambda finding: order.index(finding.status))
    rows = [
        (f"{_SYMBOLS[finding.status]} {finding.status}", escape(finding.subject), escape(finding.detail))
        for finding in findings
    ]
    return markdown_table(("", "finding", "detail"), rows)


def _ratios(summary: RunSummary) -> str:
    """A row per cell; ratios of medians and, where they were compared, of p99. Below 1 is faster."""
    keys = dict.fromkeys((c.segment, c.load) for c in summary.comparisons)
    columns = [
        (metric, percentile)
        for metric in (MetricName.E2E, MetricName.TTFT, MetricName.TPOT)
        for percentile in (Percentile.P50, Percentile.P99)
        if any((c.metric, c.percentile) == (metric, percentile) and c.ratio is not None for c in summary.comparisons)
    ]
    if not columns:
        return ""
    found = {(c.segment, c.load, c.metric, c.percentile): c for c in summary.comparisons}
    rows = []
    for segment, load in keys:
        is_expected = load in decision_loads(summary, segment)
        place = f"**{load}**" if is_expected else str(load)
        cells = [_ratio(found.get((segment, load, metric, percentile))) for metric, percentile in columns]
        rows.append((escape(segment), place, *cells))
    return markdown_table(("segment", "load", *(f"{metric} {percentile}" for metric, percentile in columns)), rows)


def _crossovers(crossovers: Sequence[Crossover]) -> str:
    rows = [(escape(found.segment), found.metric.value, str(found)) for found in crossovers]
    return markdown_table(("segment", "metric", "not faster from concurrency"), rows)


def _voids(comparisons: Sequence[Comparison]) -> str:
    """Each cell with its reasons once, whichever metrics they void."""
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for comparison in comparisons:
        for reason in comparison.void_reasons:
            reasons.setdefault((comparison.segment, str(comparison.load)), {})[str(reason)] = None
    rows = [(escape(segment), load, escape("; ".join(texts))) for (segment, load), texts in reasons.items()]
    return markdown_table(("segment", "load", "why"), rows)


def _mismatches(summary: RunSummary) -> str:
    rows = [
        (escape(condition.segment), str(condition.load), escape(condition.counter_mismatch))
        for condition in summary.conditions
        if condition.counter_mismatch is not None
    ]
    return markdown_table(("segment", "load", "server against client"), rows)


def _ratio(comparison: Comparison | None) -> str:
    outcome = "" if comparison is None or comparison.outcome == "void" else f" {comparison.outcome}"
    return f"{format_comparison(comparison)}{outcome}"


def _section(title: str, table: str) -> list[str]:
    return [f"### {title}\n\n{table}"] if table else []
