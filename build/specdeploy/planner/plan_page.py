"""PlanReport -> one self-contained HTML page."""

from dataclasses import dataclass

from markupsafe import Markup

from specdeploy.charts.pages import page_environment
from specdeploy.charts.ratio_panel import RatioPoint, forest_row
from specdeploy.planner.plan_plots import (
    MemoryPart,
    crossover_in_words,
    format_seconds,
    in_words,
    latency_histogram,
    memory_bar,
    memory_parts,
    outcome,
    ratio_bounds,
    segment_panel,
)
from specdeploy.planner.reasons import memory_costs
from specdeploy.planner_contract import Estimate, LevelPrediction, PlannedSegment, PlanReport, PlanVerdict, Sensitivity
from specdeploy.run_contract import MetricName, Percentile
from specdeploy.units import format_bytes

# Words of the style sheet that the client's report uses for the same three answers.
_BADGES = {PlanVerdict.GO: "pass", PlanVerdict.NO_GO: "fail", PlanVerdict.MEASURE_FIRST: "inconclusive"}
_CARDS = {PlanVerdict.GO: "speculate", PlanVerdict.NO_GO: "switch-off", PlanVerdict.MEASURE_FIRST: "measure-more"}
_SYMBOLS = {PlanVerdict.GO: "\N{CHECK MARK}", PlanVerdict.NO_GO: "\N{MULTIPLICATION X}", PlanVerdict.MEASURE_FIRST: "?"}


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One ratio of a card or of the sensitivities."""

    name: str
    plot: Markup
    interval: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment as the template shows it."""

    plan: PlannedSegment
    css_class: str
    rows: tuple[RatioRow, ...]
    panel: Markup
    crossover: str
    survivals: str
    what_ifs: tuple[RatioRow, ...]


@dataclass(frozen=True, slots=True)
class PercentileRow:
    """One percentile of one metric of the simulated traffic, in words."""

    metric: MetricName
    percentile: Percentile
    off: str
    on: str
    ratio: str
    outcome: str


def render_plan_page(report: PlanReport) -> str:
    """The page of plan.json: no script, no font, no file beside it."""
    bounds = ratio_bounds(report.segments)
    changes = [
        value
        for entry in report.sensitivities
        if entry.ratio is not None
        for value in (entry.ratio.value, entry.ratio.low, entry.ratio.high)
    ]
    environment = page_environment("specdeploy.planner")
    environment.filters.update({"bytes": format_bytes, "seconds": format_seconds, "estimate": in_words})
    return environment.get_template("plan.html.j2").render(
        report=report,
        badges=_BADGES,
        symbols=_SYMBOLS,
        segments=[
            _view(segment, report, bounds, [*bounds, *changes], number)
            for number, segment in enumerate(report.segments)
        ],
        memory_bar=memory_bar(report.memory.budget) if report.memory else None,
        memory_parts=memory_parts(report.memory.budget) if report.memory else list[MemoryPart](),
        histogram=latency_histogram(report.traffic) if report.traffic else None,
        percentiles=_percentiles(report),
        outcome=outcome,
        has_promised=any(level.is_promised for segment in report.segments for level in segment.levels),
        has_indicative=any(level.is_indicative for segment in report.segments for level in segment.levels),
        costs=memory_costs(report.memory) if report.memory else "",
    )


def _view(
    segment: PlannedSegment, report: PlanReport, bounds: list[float], row_bounds: list[float], number: int
) -> SegmentView:
    own = [entry for entry in report.sensitivities if entry.segment == segment.segment]
    return SegmentView(
        plan=segment,
        css_class=_CARDS[segment.verdict],
        rows=_card_rows(segment, row_bounds),
        panel=segment_panel(segment, bounds, f"ratio-{number}"),
        crossover=crossover_in_words(segment.crossover),
        survivals=", ".join(f"{share:.0%}" for share in segment.acceptance.survivals),
        what_ifs=tuple(_what_if(entry, row_bounds) for entry in own),
    )


def _card_rows(segment: PlannedSegment, bounds: list[float]) -> tuple[RatioRow, ...]:
    """The ratios at the expected concurrency; none where nothing is known."""
    level = expected_level(segment)
    if level is None or level.e2e_ratio is None:
        return ()
    named = (("e2e", level.e2e_ratio), ("TPOT", level.tpot_ratio), ("TTFT", level.ttft_ratio))
    return tuple(
        _row(name, ratio, bounds, f"{segment.segment}, {name} on/off", is_indicative=level.is_indicative)
        for name, ratio in named
    )


def expected_level(segment: PlannedSegment) -> LevelPrediction | None:
    """The level that the decision was made at."""
    return next((level for level in segment.levels if level.concurrency == segment.expected_concurrency), None)


def _what_if(entry: Sensitivity, bounds: list[float]) -> RatioRow:
    k = f"K {entry.draft_len}" if entry.draft_len else "off"
    detail = "indicative" if entry.is_indicative else f"{k}: {entry.verdict}"
    subject = f"{entry.segment}, {entry.change}"
    return _row(entry.change, entry.ratio, bounds, subject, detail, is_indicative=entry.is_indicative)


def _row(
    name: str, ratio: Estimate | None, bounds: list[float], subject: str, detail: str = "", *, is_indicative: bool
) -> RatioRow:
    words, tone = in_words(ratio, is_indicative=is_indicative), outcome(ratio, is_indicative=is_indicative)
    interval = None if ratio is None else (ratio.value, ratio.low, ratio.high)
    point = RatioPoint(1, interval, tone, f"{subject}: {words}", is_indicative=is_indicative)
    return RatioRow(name, forest_row(point, bounds), words, tone, detail)


def _percentiles(report: PlanReport) -> list[PercentileRow]:
    if report.traffic is None:
        return []
    off, on = report.traffic.off.latency_s, report.traffic.on.latency_s
    rows = []
    for metric in MetricName:
        for percentile in Percentile:
            before, after = off.get(metric, {}).get(percentile), on.get(metric, {}).get(percentile)
            if before and after is not None:
                ratio = after / before
                tone = "faster" if ratio < 1 else "slower" if ratio > 1 else "undecided"
                rows.append(
                    PercentileRow(
                        metric, percentile, format_seconds(before), format_seconds(after), f"{ratio:.2f}", tone
                    )
                )
    return rows
