"""RunSummary, IntegrityReport and Verdict -> one self-contained HTML page: no script, no font, no file beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specdeploy.run_contract import (
    Arm,
    CellSummary,
    Comparison,
    IntegrityReport,
    Load,
    MetricName,
    RequestRecord,
    RunSummary,
    Status,
    Verdict,
)
from specdeploy_client.gate import find_comparison
from specdeploy_client.methods import MeasuredRun, MethodRow, compare_methods
from specdeploy_client.plots import medians_plot, ratio_plot
from specdeploy_client.server_facts import SegmentCounters

DASH = "\N{EN DASH}"
DEFINITIONS = (
    ("TTFT", "Time to first token: from sending the request to the first message that carries a token."),
    (
        "TPOT",
        (
            "Time per output token after the first: (e2e - TTFT) / (tokens - 1), per request. Called ITL by AIPerf. "
            "Not the gap between messages: with speculation one message carries several tokens."
        ),
    ),
    ("e2e", "From sending the request to its last message."),
    (
        "on/off ratio",
        (
            "Median with speculation / median without, same prompts, both arms interleaved in one run. Below 1 is "
            "faster. The interval is a paired bootstrap, 95 %."
        ),
    ),
    ("acceptance rate", "Accepted draft tokens / drafted tokens."),
    (
        "mean acceptance length",
        "Output tokens per step of the target: 1 + accepted / steps; the target's own token is counted.",
    ),
    (
        "tokens per step",
        (
            "In the table of methods: 1 + accepted / steps, counted after the first token; the step that gives it "
            "verifies no draft."
        ),
    ),
    (
        "step on/off",
        (
            "Median over requests of (e2e - TTFT) / (steps - 1), with drafting / without. It contains drafting and "
            "verifying; minus 1 it is the break-even in accepted tokens per step."
        ),
    ),
    ("tokens per message", "Tokens / streamed messages that carry tokens: the client's own view of acceptance."),
    ("throughput", "Output tokens per second of all workers of a cell together."),
    (
        "percentiles",
        (
            f"Shown only where ten samples lie beyond them, n >= 10 / (1 - q): p50 from 20 requests, p90 from 100, p99 "
            f"from 1000. Otherwise {DASH}."
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class ReportInput:
    """One run for the page, with what is known about it."""

    summary: RunSummary
    integrity: IntegrityReport | None = None
    verdict: Verdict | None = None
    records: tuple[RequestRecord, ...] = ()
    counters: Mapping[str, SegmentCounters] | None = None

    @property
    def measured(self) -> MeasuredRun:
        """The part that methods are compared by."""
        return MeasuredRun(self.summary, self.records, self.counters)


@dataclass(frozen=True, slots=True)
class CellRow:
    """One line of the cell table. `comparisons` by metric, on the line of the on arm."""

    cell: CellSummary
    comparisons: Mapping[str, Comparison]
    num_arms: int  # lines of the same (segment, concurrency), on its first line, else 0


@dataclass(frozen=True, slots=True)
class MethodCell:
    """The methods of one cell, below each other in the table of methods."""

    segment: str
    load: Load
    rows: tuple[MethodRow, ...]


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as the template shows it."""

    source: ReportInput
    rows: tuple[CellRow, ...]
    ratio_svg: Markup
    e2e_svg: Markup
    tpot_svg: Markup


def render_report(main: ReportInput, further: Sequence[ReportInput] = ()) -> str:
    """The page; `main` carries the verdict, `further` runs (another dtype, say) follow below it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update({"ms": _format_ms, "number": _format_number, "interval": format_interval})
    template = environment.from_string(
        files("specdeploy_client").joinpath("templates/report.html.j2").read_text(encoding="utf-8")
    )
    return template.render(
        main=_view(main),
        further=[_view(run) for run in further],
        sentences=describe_run(main.summary),
        method_cells=_method_cells([main, *further]),
        definitions=DEFINITIONS,
        status_symbols={Status.PASS: "\N{CHECK MARK}", Status.FAIL: "\N{MULTIPLICATION X}", Status.INCONCLUSIVE: "?"},
        on=Arm.ON,
    )


def describe_run(summary: RunSummary) -> tuple[str, str]:
    """Two sentences in plain words: what was measured, and what came out at the expected concurrency."""
    loads = sorted({cell.load for cell in summary.cells}, key=lambda load: load.value)
    is_open = any(load.request_rate is not None for load in loads)
    levels = _join([f"{load.value:g}" for load in loads])
    levels = f"{levels} requests/s" if is_open else f"concurrency {levels}"
    segments = list(dict.fromkeys(cell.segment for cell in summary.cells))
    num_requests = sum(cell.num_requests for cell in summary.cells)
    method = f"{summary.method or 'unknown method'}, up to {summary.max_draft_len} drafted tokens per step"
    first = (
        f"{num_requests} requests of {len(segments)} traffic segment{'s' if len(segments) != 1 else ''} "
        f"({', '.join(segments)}) were answered with speculative decoding ({method}) and without it, interleaved, at "
        f"{levels}, in {summary.dtype or 'an unreported dtype'}."
    )
    outcomes: dict[str, list[str]] = {}
    for planned in summary.planned:
        comparison = find_comparison(summary, planned.segment, Load(summary.expected_concurrency), MetricName.E2E)
        outcome: str = "not measured" if comparison is None else comparison.outcome
        if comparison is not None and summary.is_queued(summary.expected_concurrency):
            outcome, comparison = "queued", None  # a ratio of two queues is not shown in the headline
        outcomes.setdefault(outcome, []).append(_with_ratio(planned.segment, comparison))
    words = {
        "faster": "speculation answers faster on",
        "slower": "speculation answers slower on",
        "undecided": "no difference is proven on",
        "void": "the measurement is void on",
        "not measured": "nothing was measured on",
        "queued": f"only {summary.effective_concurrency} requests of full length run at once, so nothing is decided on",
    }
    clauses = [f"{words[outcome]} {_join(names)}" for outcome, names in sorted(outcomes.items())]
    second = f"At the expected concurrency of {summary.expected_concurrency}, " + "; ".join(clauses) + "."
    return first, second


def format_interval(comparison: Comparison) -> str:
    """`0.62 [0.58, 0.67]`, or a dash where the comparison is void."""
    if comparison.ratio is None:
        return DASH
    return f"{comparison.ratio:.2f} [{comparison.ci_low:.2f}, {comparison.ci_high:.2f}]"


def _view(source: ReportInput) -> RunView:
    summary = source.summary
    keys = [(cell.segment, cell.load) for cell in summary.cells]
    rows = tuple(
        CellRow(
            cell=cell,
            comparisons=_comparisons(summary, cell) if cell.arm is Arm.ON else {},
            num_arms=keys.count(key) if keys.index(key) == index else 0,
        )
        for index, (cell, key) in enumerate(zip(summary.cells, keys, strict=True))
    )
    return RunView(
        source=source,
        rows=rows,
        ratio_svg=ratio_plot(summary),
        e2e_svg=medians_plot(summary, MetricName.E2E),
        tpot_svg=medians_plot(summary, MetricName.TPOT),
    )


def _method_cells(runs: Sequence[ReportInput]) -> tuple[MethodCell, ...]:
    rows = compare_methods([run.measured for run in runs])
    return tuple(
        MethodCell(segment, load, tuple(cell))
        for (segment, load), cell in groupby(rows, key=lambda row: (row.segment, row.load))
    )


def _comparisons(summary: RunSummary, cell: CellSummary) -> dict[str, Comparison]:
    found = {metric: find_comparison(summary, cell.segment, cell.load, metric) for metric in MetricName}
    return {metric.value: comparison for metric, comparison in found.items() if comparison is not None}


def _with_ratio(segment: str, comparison: Comparison | None) -> str:
    if comparison is None or comparison.ratio is None:
        return segment
    return f"{segment} (e2e on/off {format_interval(comparison)})"


def _join(words: Sequence[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "none"


def _format_ms(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _format_number(value: float | None, digits: int = 2) -> str:
    return DASH if value is None else f"{value:,.{digits}f}"
