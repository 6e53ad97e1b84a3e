"""What the template shows of a run, computed from its summary: cards, heat maps, voids, conditions. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from markupsafe import Markup

from specdeploy.run_contract import (
    Arm,
    CellConditions,
    CellSummary,
    Comparison,
    Load,
    MetricName,
    Percentile,
    PlannedDraftLen,
    RunSummary,
    VoidReason,
)
from specdeploy.verdict_contract import SegmentDecision, Verdict
from specdeploy_client.comparison.wording import describe_voids, format_comparison, format_range
from specdeploy_client.judging.run_lookup import decision_loads, find_cell, find_comparison, measured_arms
from specdeploy_client.reporting.definitions import METRIC_NAMES, VOID_REMEDIES
from specdeploy_client.reporting.headline import (
    describe_change,
    describe_crossover,
    join_words,
    reported_loads,
    reported_segments,
)
from specdeploy_client.reporting.plots.ratios import describe, forest_plot, ratio_bounds

_TAILS = (Percentile.P99, Percentile.P95, Percentile.P90)
_ACTIONS = {"faster": "speculate", "slower": "switch off"}  # where no gate has judged


@dataclass(frozen=True, slots=True)
class CardRow:
    """One interval on a decision card."""

    name: str
    outcome: str
    plot: Markup
    interval: str
    change: str


@dataclass(frozen=True, slots=True)
class DecisionCard:
    """One segment: what to do, why, and up to which load. `is_judged`: by a gate, not by the interval alone."""

    segment: str
    load: Load
    action: str
    is_judged: bool
    detail: str
    rows: tuple[CardRow, ...]
    crossover: str | None
    plan: str | None
    num_pairs_needed: int | None


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One field of a heat map. `strength`: how much of its colour it gets, in percent."""

    outcome: str
    ratio: str
    interval: str
    strength: int
    reasons: tuple[str, ...]
    tip: str
    is_queued: bool


@dataclass(frozen=True, slots=True)
class HeatMap:
    """on/off ratios of one metric and percentile, segments down and loads across; None: not measured."""

    metric: MetricName
    percentile: Percentile
    loads: tuple[Load, ...]
    rows: tuple[tuple[str, tuple[HeatCell | None, ...], str | None], ...]  # segment, cells, crossover

    @property
    def title(self) -> str:
        """`e2e p50`."""
        return f"{METRIC_NAMES[self.metric]} {self.percentile}"

    @property
    def num_valid(self) -> int:
        """Cells that hold a ratio."""
        return sum(cell is not None and cell.outcome != "void" for _, cells, _ in self.rows for cell in cells)

    @property
    def has_crossovers(self) -> bool:
        """Whether the last column has anything to say."""
        return any(crossover for _, _, crossover in self.rows)


@dataclass(frozen=True, slots=True)
class VoidRow:
    """One reason in one cell, with the comparisons it voids."""

    segment: str
    load: Load
    reason: VoidReason
    metrics: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ConditionsRow:
    """What surrounded one cell. Milliseconds; None: not measured."""

    conditions: CellConditions
    send_lag_p99: float | None
    num_pairs: int | None


def decision_cards(summary: RunSummary, verdict: Verdict | None) -> tuple[DecisionCard, ...]:
    """A card per segment and load it is decided at, in the order of the verdict or of the run."""
    judged = {
        (decision.segment, Load(decision.concurrency, decision.request_rate)): decision
        for decision in (verdict.decisions if verdict else ())
    }
    unjudged = [
        (segment, load)
        for segment in reported_segments(summary)
        if segment not in {segment for segment, _ in judged}
        for load in decision_loads(summary, segment)
    ]
    shown = {key: _card_comparisons(summary, *key) for key in [*judged, *unjudged]}
    bounds = ratio_bounds(c for comparisons in shown.values() for _, c in comparisons)
    return tuple(_card(summary, key, judged.get(key), shown[key], bounds) for key in shown)


def heat_maps(summary: RunSummary) -> tuple[HeatMap, ...]:
    """A heat map of every metric and percentile that was compared: medians first, e2e before the rest."""
    compared = {(c.metric, c.percentile) for c in summary.comparisons}
    order = [(m, p) for p in Percentile for m in (MetricName.E2E, MetricName.TPOT, MetricName.TTFT)]
    return tuple(_heat_map(summary, *which) for which in order if which in compared)


def split_tails(maps: Sequence[HeatMap]) -> tuple[tuple[HeatMap, ...], tuple[HeatMap, ...]]:
    """The maps to show at once, medians and the tail of e2e that most cells support, and the rest."""
    e2e_tails = [found for found in maps if found.metric is MetricName.E2E and found.percentile is not Percentile.P50]
    main_tail = max(reversed(e2e_tails), key=lambda found: found.num_valid, default=None)
    shown = tuple(found for found in maps if found.percentile is Percentile.P50 or found is main_tail)
    return shown, tuple(found for found in maps if found not in shown)


def void_rows(summary: RunSummary) -> tuple[VoidRow, ...]:
    """Every reason of every void cell, once."""
    found: dict[tuple[str, Load, VoidReason], list[str]] = {}
    compared: dict[tuple[str, Load], int] = {}
    for c in summary.comparisons:
        compared[c.segment, c.load] = compared.get((c.segment, c.load), 0) + 1
        for reason in c.void_reasons:
            found.setdefault((c.segment, c.load, reason), []).append(f"{METRIC_NAMES[c.metric]} {c.percentile}")
    return tuple(
        VoidRow(
            segment=segment,
            load=load,
            reason=reason,
            metrics="everything" if len(metrics) == compared[segment, load] else join_words(metrics),
            remedy=VOID_REMEDIES[reason.code],
        )
        for (segment, load, reason), metrics in found.items()
    )


def conditions_rows(summary: RunSummary) -> tuple[ConditionsRow, ...]:
    """The conditions of every cell, with the send lag of its worse arm."""
    rows: list[ConditionsRow] = []
    for conditions in summary.conditions:
        key = (conditions.segment, conditions.load)
        arms = [cell for arm in (Arm.OFF, Arm.ON) if (cell := find_cell(summary, *key, arm)) is not None]
        compared = find_comparison(summary, *key, MetricName.E2E)
        rows.append(ConditionsRow(conditions, _worst_lag(arms), None if compared is None else compared.num_pairs))
    return tuple(rows)


def _worst_lag(cells: Sequence[CellSummary]) -> float | None:
    """p99 of the send lag in the worse arm; where the sample does not support it, the highest that it does."""
    lags = [lag for cell in cells if (lag := cell.send_lag_ms) is not None]
    for percentile in (Percentile.P99, Percentile.P95, Percentile.P90, Percentile.P50):
        values = [value for lag in lags if (value := lag.value(percentile)) is not None]
        if values:
            return max(values)
    return None


def _card_comparisons(summary: RunSummary, segment: str, load: Load) -> list[tuple[str, Comparison]]:
    """Medians of every metric and the highest supported tail of e2e, where the segment is decided."""
    wanted = [(metric, Percentile.P50) for metric in (MetricName.E2E, MetricName.TPOT, MetricName.TTFT)]
    tails = [
        tail
        for tail in _TAILS
        if (c := find_comparison(summary, segment, load, MetricName.E2E, tail)) is not None and c.outcome != "void"
    ]
    wanted[1:1] = [(MetricName.E2E, tail) for tail in tails[:1]]
    return [
        (f"{METRIC_NAMES[metric]} {percentile}", found)
        for metric, percentile in wanted
        if (found := find_comparison(summary, segment, load, metric, percentile)) is not None
    ]


def _card(
    summary: RunSummary,
    key: tuple[str, Load],
    decision: SegmentDecision | None,
    comparisons: Sequence[tuple[str, Comparison]],
    bounds: Sequence[float],
) -> DecisionCard:
    segment, load = key
    main = find_comparison(summary, segment, load, MetricName.E2E)
    crossover = next((c for c in summary.crossovers if (c.segment, c.metric) == (segment, MetricName.E2E)), None)
    planned = next((planned for planned in summary.planned if planned.segment == segment), None)
    is_queued = summary.is_queued(load.concurrency)
    unjudged = "measure more" if main is None or is_queued else _ACTIONS.get(main.outcome, "measure more")
    return DecisionCard(
        segment=segment,
        load=load,
        action=decision.action if decision else unjudged,
        is_judged=decision is not None,
        detail=decision.detail if decision else _unjudged_detail(summary, key, main),
        rows=tuple(_card_row(name, comparison, bounds) for name, comparison in comparisons),
        crossover=describe_crossover(crossover) if crossover else None,
        plan=_describe_plan(planned),
        num_pairs_needed=main.num_pairs_needed if main else None,
    )


def _card_row(name: str, comparison: Comparison, bounds: Sequence[float]) -> CardRow:
    is_void = comparison.outcome == "void"
    return CardRow(
        name=name,
        outcome=comparison.outcome,
        plot=forest_plot(comparison, bounds),
        interval=format_comparison(comparison),
        change="" if is_void or comparison.ratio is None else describe_change(comparison.ratio),
    )


def _unjudged_detail(summary: RunSummary, key: tuple[str, Load], comparison: Comparison | None) -> str:
    if comparison is None:
        arms = measured_arms(summary, *key)
        return f"only arm {arms[0]} was measured" if len(arms) == 1 else "not measured where it is decided"
    if summary.is_queued(comparison.concurrency):
        return "requests wait for each other at this level: both arms measure that queue"
    if comparison.void_reasons:
        return describe_voids(comparison.void_reasons)
    return f"e2e is {comparison.outcome}, over {comparison.num_pairs} pairs"


def _describe_plan(planned: PlannedDraftLen | None) -> str | None:
    if planned is None:
        return None
    if planned.draft_len:
        return f"planned with K = {planned.draft_len}"
    return f"planned off: {planned.off_reason or 'no reason given'}"


def _heat_map(summary: RunSummary, metric: MetricName, percentile: Percentile) -> HeatMap:
    loads = tuple(reported_loads(summary))
    crossovers = (
        {c.segment: c for c in summary.crossovers if c.metric is metric} if percentile is Percentile.P50 else {}
    )
    rows = []
    for segment in dict.fromkeys(cell.segment for cell in summary.cells):
        found = (find_comparison(summary, segment, load, metric, percentile) for load in loads)
        cells = tuple(None if c is None else _heat_cell(c, is_queued=summary.is_queued(c.concurrency)) for c in found)
        crossover = crossovers.get(segment)
        rows.append((segment, cells, str(crossover) if crossover else None))
    return HeatMap(metric, percentile, loads, tuple(rows))


def _heat_cell(comparison: Comparison, *, is_queued: bool) -> HeatCell:
    ratio, low, high = comparison.ratio, comparison.ci_low, comparison.ci_high
    is_void = comparison.outcome == "void" or ratio is None or low is None or high is None
    reasons = tuple(dict.fromkeys(reason.code.value for reason in comparison.void_reasons))
    return HeatCell(
        outcome="void" if is_void else comparison.outcome,
        ratio="void" if is_void else f"{ratio:.2f}",
        interval="" if is_void or low is None or high is None else format_range(low, high),
        # A factor of two gets the full colour; half an octave is already half of it.
        strength=0 if is_void or not ratio else round(14 + 32 * min(1.0, abs(log2(ratio)))),
        reasons=reasons if reasons or not is_void else ("not measurable",),
        tip=describe(comparison),
        is_queued=is_queued,
    )
