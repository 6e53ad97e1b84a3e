"""What a person sees in the terminal: tables and panels, from the same types the report is made of."""

from collections.abc import Sequence

from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from specdeploy.run_contract import (
    Arm,
    CellSummary,
    Comparison,
    Load,
    MetricName,
    Percentile,
    Percentiles,
    RequestRecord,
    RunSummary,
)
from specdeploy.units import ns_to_ms
from specdeploy.verdict_contract import IntegrityReport, Status, Verdict
from specdeploy_client.comparison.wording import DASH, describe_intervals, format_comparison, format_range
from specdeploy_client.judging.run_lookup import describe_queue, find_cell, find_comparison
from specdeploy_client.metrics import e2e_ns, mean_acceptance_length, num_tokens, samples_needed, tpot_ns, ttft_ns
from specdeploy_client.reporting.headline import crossover_lines, headline
from specdeploy_client.reporting.methods import MethodRow, Outcome

STYLES = {Status.PASS: "green", Status.FAIL: "red", Status.INCONCLUSIVE: "yellow"}
OUTCOME_STYLES: dict[Outcome, str] = {"pays": "green", "does not pay": "red", "not decided": "yellow"}
MISSING = "n/a"
SHOWN_PERCENTILES = (Percentile.P50, Percentile.P90, Percentile.P99)


def run_table(summary: RunSummary) -> Table:
    """One row per cell; off above on; p50/p90/p99 in ms: a dash where the sample is too small for one of them, the mean
    where it is too small for all. Below it what the heads leave open."""
    loads = {cell.load for cell in summary.cells}
    is_open = any(load.request_rate is not None for load in loads)
    has_means_only = bool(summary.cells) and all(latency.p50 is None for latency in _latencies(summary))
    values = "mean" if has_means_only else "p50/p90/p99"
    table = Table(
        title=f"{summary.deployment}: {values} in ms at {'r requests/s' if is_open else 'c concurrent requests'}",
        title_justify="left",
        caption=_table_notes(summary),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_lines=False,
    )
    names = ["segment", "r" if is_open else "c", "arm", "TTFT", "TPOT", "e2e", "tok/s", "e2e on/off", "accepted"]
    if summary.objectives:
        names.insert(-2, "goodput")
    for name in names:
        is_short = name in ("e2e on/off", "accepted")  # of these a folded line would not be understood
        justify: JustifyMethod = "left" if name in ("segment", "arm") else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=is_short)
    for segment, load in dict.fromkeys((cell.segment, cell.load) for cell in summary.cells):
        found = {arm: find_cell(summary, segment, load, arm) for arm in Arm}
        cells = [cell for cell in found.values() if cell is not None]
        on = found[Arm.ON]
        table.add_row(
            segment,
            f"{load.value:g}\nqueued" if summary.is_queued(load.concurrency) else f"{load.value:g}",
            "\n".join(cell.arm for cell in cells),
            "\n".join(_percentiles(cell.ttft_ms, has_means_only=has_means_only) for cell in cells),
            "\n".join(_percentiles(cell.tpot_ms, has_means_only=has_means_only) for cell in cells),
            "\n".join(_percentiles(cell.e2e_ms, has_means_only=has_means_only) for cell in cells),
            "\n".join(_rate(cell.output_throughput, 1) for cell in cells),
            *(["\n".join(_rate(cell.goodput, 2) for cell in cells)] if summary.objectives else []),
            _ratio(summary, segment, load),
            _acceptance(on) if on is not None else "",
        )
    return table


def void_notes(summary: RunSummary) -> list[str]:
    """One line per void cell with its reasons, and one per level that queues."""
    levels = {cell.concurrency for cell in summary.cells if summary.is_queued(cell.concurrency)}
    queued = sorted(level for level in levels if level is not None)
    return [
        f"{c.segment} at {c.load} is void: {'; '.join(map(str, c.void_reasons))}"
        for c in summary.comparisons
        if c.metric is MetricName.E2E and c.void_reasons
    ] + [describe_queue(summary, level) for level in queued]


def run_notes(summary: RunSummary) -> list[str]:
    """What must not be overlooked beside the table: how the run ended, crossovers, voids, counters that disagree."""
    ended = [] if summary.interrupted is None else [f"the run ended early: {summary.interrupted}"]
    disagreeing = [
        f"{c.segment} at {c.load}: the server's counters and the answers disagree: {c.counter_mismatch}"
        for c in summary.conditions
        if c.counter_mismatch
    ]
    stopped = [
        f"{c.segment} at {c.load}: decided after {c.stopped_after} pairs, stopped early"
        for c in summary.conditions
        if c.stopped_after
    ]
    return [*ended, *crossover_lines(summary), *void_notes(summary), *disagreeing, *stopped]


def verdict_line(summary: RunSummary, verdict: Verdict) -> Text:
    """The verdict in one line, the last of a command."""
    passed = sum(finding.status is Status.PASS for finding in verdict.findings)
    return Text.assemble(
        (f"{verdict.status}", f"bold {STYLES[verdict.status]}"),
        f": {headline(summary, verdict)} ({passed} of {len(verdict.findings)} findings passed)",
    )


def progress_columns() -> tuple[ProgressColumn, ...]:
    """The bar while measuring: where it is, how much is done, how long it took and will take."""
    return (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
    )


def methods_table(rows: Sequence[MethodRow]) -> Table:
    """Methods below each other, by traffic: what they gain and why, for a reader who saw nothing before."""
    intervals = describe_intervals(row.comparison for row in rows if row.comparison is not None)
    table = Table(
        title=f"Methods side by side: latency with drafting / without and its {intervals}, below 1 is faster",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("method", "e2e on/off", "accepted", "does it pay, and why"):
        table.add_column(name, justify="right" if name == "accepted" else "left", no_wrap=name == "e2e on/off")
    last: tuple[str, Load] | None = None
    for row in rows:
        if last != (last := (row.segment, row.load)):
            table.add_section()
            table.add_row(Text(f"{row.segment}, {row.load.in_words}", style="bold"))
        table.add_row(
            Text(row.name),
            format_comparison(row.comparison),
            DASH if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}",
            Text.assemble((row.outcome, OUTCOME_STYLES[row.outcome]), f": {row.reason}"),
        )
    return table


def verdict_panel(verdict: Verdict) -> Panel:
    """Decisions first, then every finding with its reason."""
    findings = _findings([(f.status, f.subject, f.detail) for f in verdict.findings])
    decisions = Table.grid(padding=(0, 2))
    for decision in verdict.decisions:
        decisions.add_row(Text(decision.segment, style="bold"), decision.action, Text(decision.detail))
    return Panel(
        Group(decisions, Text(), findings) if verdict.decisions else findings,
        title=f"verdict: {verdict.status}",
        title_align="left",
        border_style=STYLES[verdict.status],
    )


def integrity_panel(report: IntegrityReport) -> Panel:
    """Every check with what it saw."""
    return Panel(
        _findings([(check.status, check.name, check.detail) for check in report.checks]),
        title=f"integrity: {report.status}",
        title_align="left",
        border_style=STYLES[report.status],
    )


def truth_line(record: RequestRecord) -> str:
    """The one line that ends a query; counts the server did not report are n/a."""
    steps, drafted, accepted = record.num_steps, record.num_draft_tokens, record.num_accepted_tokens
    length = None
    if steps is not None and drafted is not None and accepted is not None:
        length = mean_acceptance_length(steps, drafted, accepted)
    parts = (
        f"tokens {_count(num_tokens(record))}",
        f"steps {_count(steps)}",
        f"drafted {_count(drafted)}",
        f"accepted {_count(accepted)}",
        f"mean acceptance length {MISSING if length is None else f'{length:.2f}'}",
        f"TTFT {_milliseconds(ttft_ns(record))}",
        f"TPOT {_milliseconds(tpot_ns(record))}",
        f"e2e {_milliseconds(e2e_ns(record))}",
        f"speculation {record.speculation or MISSING}",
    )
    return " | ".join(parts)


def _findings(rows: list[tuple[Status, str, str]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for status, subject, detail in rows:
        table.add_row(Text(status, style=STYLES[status]), Text(subject), Text(detail))
    return table


def _percentiles(percentiles: Percentiles, *, has_means_only: bool) -> str:
    values = [percentiles.value(percentile) for percentile in SHOWN_PERCENTILES]
    if not any(value is not None for value in values) and percentiles.mean is not None:
        return f"{'' if has_means_only else 'mean '}{percentiles.mean:.0f}"
    return "/".join(DASH if value is None else f"{value:.0f}" for value in values)


def _table_notes(summary: RunSummary) -> str | None:
    """What a dash in a cell of the table means and what its intervals are; None where there are neither."""
    shown = _latencies(summary)
    notes = []
    if any(latency.value(percentile) is None for latency in shown for percentile in SHOWN_PERCENTILES):
        mark = DASH if any(latency.p50 is not None for latency in shown) else "mean"
        needed = ", ".join(f"{percentile} {samples_needed(percentile)}" for percentile in SHOWN_PERCENTILES)
        notes.append(f"{mark}: too few requests for {'a' if mark == 'mean' else 'this'} percentile ({needed})")
    compared = [c for c in summary.comparisons if _is_shown(c) and c.ratio is not None]
    if compared:
        notes.append(f"e2e on/off: ratio of medians with its {describe_intervals(compared)}, below 1 is faster")
    return "\n".join(notes) or None


def _latencies(summary: RunSummary) -> list[Percentiles]:
    """Those that the table shows."""
    return [latency for cell in summary.cells for latency in (cell.ttft_ms, cell.tpot_ms, cell.e2e_ms)]


def _is_shown(comparison: Comparison) -> bool:
    return (comparison.metric, comparison.percentile) == (MetricName.E2E, Percentile.P50)


def _ratio(summary: RunSummary, segment: str, load: Load) -> str:
    comparison = find_comparison(summary, segment, load, MetricName.E2E)
    if comparison is None:
        return ""
    if comparison.void_reasons or comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return format_comparison(comparison)
    return f"{comparison.ratio:.2f}\n{format_range(comparison.ci_low, comparison.ci_high)}"


def _acceptance(cell: CellSummary) -> str:
    if cell.acceptance is None:
        return MISSING
    rate, length = cell.acceptance.acceptance_rate, cell.acceptance.mean_acceptance_length
    if rate is None or length is None:
        return "nothing drafted"
    return f"{rate:.0%}\n{length:.2f}/step"


def _rate(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:,.{digits}f}"


def _count(value: int | None) -> str:
    return MISSING if value is None else str(value)


def _milliseconds(value_ns: float | None) -> str:
    return MISSING if value_ns is None else f"{ns_to_ms(value_ns):.0f} ms"
