"""Two stored runs in the terminal: what changed between them, and which ratios did."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdeploy_client.comparison.wording import DASH, describe_intervals, format_comparison, format_interval
from specdeploy_client.judging.stored_runs import Difference, RatioChange, RunComparison
from specdeploy_client.reporting.definitions import METRIC_NAMES
from specdeploy_client.reporting.headline import describe_crossover

_STYLES: dict[Difference, str] = {"lower": "green", "higher": "red", "none shown": "", "not comparable": "dim"}
_WORDS: dict[Difference, str] = {
    "lower": "gains more",
    "higher": "gains less",
    "none shown": "no difference shown",
    "not comparable": "not comparable",
}


def stored_runs_view(comparison: RunComparison) -> RenderableType:
    """Facts that differ, cautions, ratios beside each other, crossovers. Milliseconds are left to the reports."""
    parts: list[RenderableType] = [_changes(comparison)]
    parts += [Text(f"caution: {caution}", style="yellow") for caution in comparison.cautions]
    parts.append(_ratios(comparison))
    if comparison.crossovers:
        parts.append(_crossovers(comparison))
    exceeding = comparison.exceeding
    parts.append(
        Text(f"{len(exceeding)} of {len(comparison.ratios)} ratios differ by more than the intervals of both runs")
    )
    return Group(*parts)


def _changes(comparison: RunComparison) -> RenderableType:
    if not comparison.changes:
        return Text("The runs say the same of deployment, build and environment.")
    table = _table("What differs between the runs", "fact", "before", "after")
    for change in comparison.changes:
        table.add_row(change.name, change.before or DASH, change.after or DASH)
    return table


def _ratios(comparison: RunComparison) -> Table:
    names = ("segment", "load", "metric", "before", "after", "after / before", "says")
    intervals = describe_intervals((*comparison.before.comparisons, *comparison.after.comparisons))
    table = _table(f"on/off ratios and their {intervals}s, below 1 is faster", *names)
    for ratio in comparison.ratios:
        table.add_row(
            ratio.segment,
            str(ratio.load),
            f"{METRIC_NAMES[ratio.metric]} {ratio.percentile}",
            format_comparison(ratio.before),
            format_comparison(ratio.after),
            format_interval(ratio.change, ratio.ci_low, ratio.ci_high),
            Text(_says(ratio), style=_STYLES[ratio.difference]),
        )
    return table


def _crossovers(comparison: RunComparison) -> Table:
    table = _table("Crossovers", "segment", "metric", "before", "after")
    for pair in comparison.crossovers:
        table.add_row(
            pair.segment,
            METRIC_NAMES[pair.metric],
            DASH if pair.before is None else describe_crossover(pair.before),
            DASH if pair.after is None else describe_crossover(pair.after),
        )
    return table


def _table(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _says(ratio: RatioChange) -> str:
    words = _WORDS[ratio.difference]
    return f"{words}, reversed" if ratio.is_reversed else words
