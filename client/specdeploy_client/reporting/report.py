"""RunSummary, records as columns, IntegrityReport and Verdict -> one self-contained HTML page: no script, no font, no
file beside it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from specdeploy.charts.pages import page_environment
from specdeploy.run_contract import Arm, CellSummary, Load, MetricName, Percentile, Percentiles, RunSummary
from specdeploy.verdict_contract import IntegrityReport, Status, Verdict
from specdeploy_client.comparison.pairing import paired_values
from specdeploy_client.comparison.wording import DASH, describe_intervals, format_comparison
from specdeploy_client.judging.run_lookup import find_comparison
from specdeploy_client.records.table import ArmColumns, CellKey, RecordTable
from specdeploy_client.reporting.definitions import DEFINITIONS, METRIC_NAMES
from specdeploy_client.reporting.headline import (
    describe_crossover,
    describe_run,
    full_stop,
    headline,
    reported_loads,
)
from specdeploy_client.reporting.methods import MeasuredRun, MethodRow, compare_methods, marginal_acceptance
from specdeploy_client.reporting.plots.distributions import common_edges, distribution_plot, spread_ratios
from specdeploy_client.reporting.plots.latencies import LatencySeries, format_ms, latency_plot
from specdeploy_client.reporting.plots.positions import positions_plot
from specdeploy_client.reporting.plots.ratios import ratio_bounds, ratio_plot
from specdeploy_client.reporting.report_views import (
    ConditionsRow,
    DecisionCard,
    HeatMap,
    VoidRow,
    conditions_rows,
    decision_cards,
    heat_maps,
    split_tails,
    void_rows,
)

RowT = TypeVar("RowT")
# The latencies that are drawn, each with what others call it.
_LATENCIES = {"e2e": "", "TTFT": "", "TPOT": "called ITL by AIPerf", "ICL": "called ITL by vLLM"}


@dataclass(frozen=True, slots=True)
class ReportInput:
    """One run for the page, with what is known about it. `table` None: the run left no records."""

    summary: RunSummary
    integrity: IntegrityReport | None = None
    verdict: Verdict | None = None
    table: RecordTable | None = None

    @property
    def measured(self) -> MeasuredRun:
        """The part that methods are compared by."""
        return MeasuredRun(self.summary, self.table)


@dataclass(frozen=True, slots=True)
class Panel:
    """One small plot with its heading."""

    title: str
    note: str
    plot: Markup


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """The latency panels of one segment."""

    segment: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class CellRow:
    """One line of the cell table."""

    cell: CellSummary
    num_arms: int  # lines of the same (segment, load), on its first line, else 0


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
    cards: tuple[DecisionCard, ...]
    ratios: tuple[Panel, ...]
    heat_maps: tuple[HeatMap, ...]
    tail_maps: tuple[HeatMap, ...]
    latencies: tuple[LatencyRow, ...]
    spreads: tuple[Panel, ...]
    positions: tuple[Panel, ...]
    voids: tuple[VoidRow, ...]
    acceptance: tuple[tuple[CellSummary, ...], ...]  # by segment
    conditions: tuple[tuple[ConditionsRow, ...], ...]  # by segment
    cells: tuple[CellRow, ...]

    @property
    def has_levels(self) -> bool:
        """Whether there is more than one load to draw against."""
        return len(reported_loads(self.source.summary)) > 1


def render_report(main: ReportInput, further: Sequence[ReportInput] = ()) -> str:
    """The page; `main` carries the verdict, `further` runs (another dtype, say) follow below it."""
    environment = page_environment("specdeploy_client.reporting")
    environment.filters.update(
        {"ms": format_ms, "number": _format_number, "interval": format_comparison, "full_stop": full_stop}
    )
    return environment.get_template("report.html.j2").render(
        main=_view(main, "run-0"),
        further=[_view(run, f"run-{number}") for number, run in enumerate(further, start=1)],
        headline=headline(main.summary, main.verdict),
        sentences=describe_run(main.summary),
        intervals=describe_intervals(main.summary.comparisons),
        method_cells=_method_cells([main, *further]),
        definitions=DEFINITIONS,
        metric_names=METRIC_NAMES,
        status_symbols={Status.PASS: "\N{CHECK MARK}", Status.FAIL: "\N{MULTIPLICATION X}", Status.INCONCLUSIVE: "?"},
        on=Arm.ON,
        dash=DASH,
    )


def request_ratios(off: ArmColumns, on: ArmColumns) -> npt.NDArray[np.float64]:
    """The e2e on/off ratio [pairs] of every request that both arms answered."""
    pairs = paired_values(off, on, MetricName.E2E)
    return np.asarray(pairs.on / pairs.off, dtype=np.float64)


def _view(source: ReportInput, name: str) -> RunView:
    summary = source.summary
    shown, tails = split_tails(heat_maps(summary))
    return RunView(
        source=source,
        cards=decision_cards(summary, source.verdict),
        ratios=_ratio_panels(summary, name),
        heat_maps=shown,
        tail_maps=tails,
        latencies=_latency_rows(summary),
        spreads=_spread_panels(source, name),
        positions=_position_panels(summary),
        voids=void_rows(summary),
        acceptance=_by_segment([cell for cell in summary.cells if cell.arm is Arm.ON], lambda cell: cell.segment),
        conditions=_by_segment(conditions_rows(summary), lambda row: row.conditions.segment),
        cells=_cell_rows(summary),
    )


def _cell_rows(summary: RunSummary) -> tuple[CellRow, ...]:
    """The arms of a (segment, load) below each other, in the order of their first."""
    keyed: dict[CellKey, list[CellSummary]] = {}
    for cell in summary.cells:
        keyed.setdefault((cell.segment, cell.load), []).append(cell)
    return tuple(
        CellRow(cell, 0 if number else len(cells)) for cells in keyed.values() for number, cell in enumerate(cells)
    )


def _by_segment(rows: Iterable[RowT], segment_of: Callable[[RowT], str]) -> tuple[tuple[RowT, ...], ...]:
    """Rows of the same segment together, in the order of their first."""
    grouped: dict[str, list[RowT]] = {}
    for row in rows:
        grouped.setdefault(segment_of(row), []).append(row)
    return tuple(map(tuple, grouped.values()))


def _ratio_panels(summary: RunSummary, name: str) -> tuple[Panel, ...]:
    compared = [c for c in summary.comparisons if (c.metric, c.percentile) == (MetricName.E2E, Percentile.P50)]
    crossovers = {c.segment: c for c in summary.crossovers if c.metric is MetricName.E2E}
    bounds = ratio_bounds(compared)
    panels: list[Panel] = []
    for number, segment in enumerate(dict.fromkeys(c.segment for c in compared)):
        crossover = crossovers.get(segment)
        own = [c for c in compared if c.segment == segment]
        plot = ratio_plot(summary, own, crossover, bounds, f"{name}-ratio-{number}")
        panels.append(Panel(segment, describe_crossover(crossover) if crossover else "", plot))
    return tuple(panels)


def _latency_rows(summary: RunSummary) -> tuple[LatencyRow, ...]:
    rows: list[LatencyRow] = []
    for segment in dict.fromkeys(cell.segment for cell in summary.cells):
        cells = [cell for cell in summary.cells if cell.segment == segment]
        panels = []
        for metric, alias in _LATENCIES.items():
            arms = (Arm.OFF, Arm.ON)
            off, on = ({c.load: v for c in cells if c.arm is arm and (v := _percentiles(c, metric))} for arm in arms)
            if off or on:
                plot = latency_plot(LatencySeries(segment, metric, off, on))
                panels.append(Panel(f"{metric}, ms", alias, plot))
        rows.append(LatencyRow(segment, tuple(panels)))
    return tuple(rows)


def _percentiles(cell: CellSummary, metric: str) -> Percentiles | None:
    return {"e2e": cell.e2e_ms, "TTFT": cell.ttft_ms, "TPOT": cell.tpot_ms, "ICL": cell.icl_ms}[metric]


def _spread_panels(source: ReportInput, name: str) -> tuple[Panel, ...]:
    """Ratios of single requests, of the cells whose comparison holds."""
    ratios: dict[CellKey, npt.NDArray[np.float64]] = {}
    for key, arms in (source.table.cells if source.table else {}).items():
        comparison = find_comparison(source.summary, *key, MetricName.E2E)
        if comparison is not None and comparison.outcome != "void" and Arm.OFF in arms and Arm.ON in arms:
            found = request_ratios(arms[Arm.OFF], arms[Arm.ON])
            if len(found):
                ratios[key] = found
    if not ratios:
        return ()
    edges = common_edges(ratios.values())
    panels: list[Panel] = []
    for number, segment in enumerate(dict.fromkeys(segment for segment, _ in ratios)):
        keys = sorted((key for key in ratios if key[0] == segment), key=lambda key: key[1].value)
        rows = [spread_ratios(key[1], ratios[key], edges) for key in keys]
        panels.append(Panel(segment, "", distribution_plot(segment, rows, edges, f"{name}-spread-{number}")))
    return tuple(panels)


def _position_panels(summary: RunSummary) -> tuple[Panel, ...]:
    """Empty where the server of the run counts by position nowhere."""
    segments = dict.fromkeys(cell.segment for cell in summary.cells)
    rates = {segment: marginal_acceptance(summary, segment) for segment in segments}
    if not any(rates.values()):
        return ()
    return tuple(Panel(segment, "", positions_plot(segment, rates[segment])) for segment in segments)


def _method_cells(runs: Sequence[ReportInput]) -> tuple[MethodCell, ...]:
    grouped: dict[CellKey, list[MethodRow]] = {}
    for row in compare_methods([run.measured for run in runs]):
        grouped.setdefault((row.segment, row.load), []).append(row)
    return tuple(MethodCell(segment, load, tuple(rows)) for (segment, load), rows in grouped.items())


def _format_number(value: float | None, digits: int = 2) -> str:
    return DASH if value is None else f"{value:,.{digits}f}"
