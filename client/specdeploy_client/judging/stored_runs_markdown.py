"""Two stored runs in Markdown, as `compare` prints and writes them: what is judged first, milliseconds last."""

from collections.abc import Callable

from specdeploy.run_contract import CellSummary, MetricName, Percentile
from specdeploy_client.comparison.wording import DASH, describe_intervals, format_comparison, format_interval
from specdeploy_client.judging.markdown_text import escape, markdown_table
from specdeploy_client.judging.run_lookup import metric_percentiles
from specdeploy_client.judging.stored_runs import RatioChange, RunComparison

_WORDS = {
    "lower": "**lower**: speculation gains more",
    "higher": "**higher**: speculation gains less",
    "none shown": "none shown",
    "not comparable": "not comparable",
}


def render_run_comparison(comparison: RunComparison) -> str:
    """The whole page."""
    before, after = comparison.before, comparison.after
    intervals = describe_intervals((*before.comparisons, *after.comparisons))
    names = [f"{escape(run.deployment)} ({escape(run.started_at)})" for run in (before, after)]
    parts = [
        f"## {names[0]} against {names[1]}",
        _headline(comparison),
        *([_cautions(comparison)] if comparison.cautions else []),
        *_section("What changed", _changes(comparison)),
        *_section(f"on/off ratios and their {intervals}s, below 1 is faster", _ratios(comparison)),
        *_section("Crossover", _crossovers(comparison)),
        *_section("Milliseconds at the median, for looking at", _milliseconds(comparison)),
    ]
    return "\n\n".join(parts) + "\n"


def _headline(comparison: RunComparison) -> str:
    judged = [ratio for ratio in comparison.ratios if ratio.difference != "not comparable"]
    if not judged:
        return "No ratio was measured in both runs."
    exceeding = comparison.exceeding
    if not exceeding:
        return f"None of {len(judged)} ratios changed by more than the intervals of both runs allow."
    names = ", ".join(_name(ratio) for ratio in exceeding)
    return f"{len(exceeding)} of {len(judged)} ratios changed by more than the intervals of both runs allow: {names}."


def _cautions(comparison: RunComparison) -> str:
    return "\n".join(f"- {escape(caution)}" for caution in comparison.cautions)


def _changes(comparison: RunComparison) -> str:
    rows = [
        (escape(change.name), escape(change.before or DASH), escape(change.after or DASH))
        for change in comparison.changes
    ]
    return markdown_table(("", "before", "after"), rows)


def _ratios(comparison: RunComparison) -> str:
    rows = [
        (
            escape(ratio.segment),
            str(ratio.load),
            f"{ratio.metric} {ratio.percentile}",
            format_comparison(ratio.before),
            format_comparison(ratio.after),
            format_interval(ratio.change, ratio.ci_low, ratio.ci_high),
            _WORDS[ratio.difference] + (", reversed" if ratio.is_reversed else ""),
        )
        for ratio in comparison.ratios
    ]
    return markdown_table(("segment", "load", "metric", "before", "after", "after / before", "difference"), rows)


def _crossovers(comparison: RunComparison) -> str:
    rows = [
        (escape(pair.segment), pair.metric.value, str(pair.before or DASH), str(pair.after or DASH))
        for pair in comparison.crossovers
    ]
    return markdown_table(("segment", "metric", "before", "after"), rows)


def _milliseconds(comparison: RunComparison) -> str:
    """Medians of every arm and cell, before and after; acceptance beside them."""
    rows = [
        (
            escape(pair.segment),
            str(pair.load),
            pair.arm.value,
            *(_beside(pair.before, pair.after, _median_of(metric)) for metric in MetricName),
            _beside(pair.before, pair.after, _accepted),
        )
        for pair in comparison.cells
    ]
    head = ("segment", "load", "arm", *(f"{metric} ms" for metric in MetricName), "tokens per step")
    return markdown_table(head, rows)


def _median_of(metric: MetricName) -> Callable[[CellSummary], float | None]:
    return lambda cell: metric_percentiles(cell, metric).value(Percentile.P50)


def _accepted(cell: CellSummary) -> float | None:
    return None if cell.acceptance is None else cell.acceptance.mean_acceptance_length


def _beside(
    before: CellSummary | None, after: CellSummary | None, value_of: Callable[[CellSummary], float | None]
) -> str:
    values = [None if cell is None else value_of(cell) for cell in (before, after)]
    if values == [None, None]:
        return DASH
    return " / ".join(DASH if value is None else f"{value:.2f}" for value in values)


def _name(ratio: RatioChange) -> str:
    return f"{escape(ratio.segment)} {ratio.metric} {ratio.percentile} at {ratio.load}"


def _section(title: str, table: str) -> list[str]:
    return [f"### {title}\n\n{table}"] if table else []
