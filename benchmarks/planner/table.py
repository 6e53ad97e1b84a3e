"""The errors of every series as a markdown table, and what was left out."""

from collections.abc import Sequence
from math import isnan

from cells import Exclusion
from scoring import SeriesScore

GOALS = {
    "tpot": ("TPOT of one request, tau given", 0.05),
    "step": ("time of a step", 0.10),
    "throughput": ("throughput over the batch", 0.15),
}
MAX_DOUBLINGS = 1.0
MAX_LENGTH_DISTANCE = 1
MIN_SIGN_SHARE = 0.95


def score_table(scores: Sequence[SeriesScore]) -> str:
    """Markdown. A goal that is missed is printed bold."""
    columns = (
        "series", "what", "fitted / held out", "error of the fit, median", "held out: median (goal)", "worst",
        "wrong signs", "crossover, doublings", "best K, places",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for score in scores:
        goal = GOALS[score.kind][1]
        crossovers = [
            _bold(f"{one.doublings:.2f}", one.doublings > MAX_DOUBLINGS) + f" ({_pair(one.published, one.predicted)})"
            for one in score.crossovers
            if one.published or one.predicted
        ]
        quiet = len(score.crossovers) - len(crossovers)
        if quiet:
            crossovers.append(f"none, as published ({quiet})")
        lengths = [
            _bold(str(one.distance), one.distance > MAX_LENGTH_DISTANCE) + f" ({one.published}; {one.predicted})"
            for one in score.best_lengths
        ]
        signs = f"{len(score.sign_errors)} of {score.num_signs}" if score.num_signs else "-"
        lines.append(
            f"| {score.series} | {score.title} | {score.num_fit} / {score.num_held_out} | {_percent(score.fit_median)} "
            f"| {_bold(_percent(score.held_out_median), score.held_out_median > goal)} ({goal:.0%}) "
            f"| {_percent(score.held_out_worst)} | {_bold(signs, bool(score.sign_errors))} "
            f"| {', '.join(crossovers) or '-'} | {', '.join(lengths) or '-'} |"
        )
    return "\n".join(lines)


def goal_table(scores: Sequence[SeriesScore]) -> str:
    """Markdown: the goals over all series, from held-out cells."""
    lines = ["| goal | reached in | median of the series' medians | worst series |", "|---|---|---|---|"]
    for kind, (name, goal) in GOALS.items():
        errors = sorted(
            (one.held_out_median, one.series) for one in scores if one.kind == kind and not isnan(one.held_out_median)
        )
        if not errors:
            continue
        reached = sum(error <= goal for error, _ in errors)
        lines.append(
            f"| {name} within {goal:.0%} | {reached} of {len(errors)} series | {_percent(errors[len(errors) // 2][0])} "
            f"| {errors[-1][1]}, {_percent(errors[-1][0])} |"
        )
    signs, wrong = sum(one.num_signs for one in scores), sum(len(one.sign_errors) for one in scores)
    lines.append(f"| right side of 1 in {MIN_SIGN_SHARE:.0%} of the cells | {signs - wrong} of {signs} cells | - | - |")
    slow, found = sum(one.num_slowdowns for one in scores), sum(one.num_slowdowns_found for one in scores)
    lines.append(f"| of these, slow-downs seen as such | {found} of {slow} cells | - | - |")
    crossovers = [one for score in scores for one in score.crossovers]
    for name, chosen in (
        ("crossover within one doubling, where one was published", [one for one in crossovers if one.published]),
        ("no crossover, where none was published", [one for one in crossovers if not one.published]),
    ):
        near = sum(one.doublings <= MAX_DOUBLINGS and bool(one.published) == bool(one.predicted) for one in chosen)
        lines.append(f"| {name} | {near} of {len(chosen)} | - | - |")
    lengths = [one for score in scores for one in score.best_lengths]
    near = sum(one.distance <= MAX_LENGTH_DISTANCE for one in lengths)
    lines.append(f"| best K within one place | {near} of {len(lengths)} | - | - |")
    return "\n".join(lines)


def miss_list(scores: Sequence[SeriesScore]) -> str:
    """Markdown: every sign, crossover and best K that is wrong, by name."""
    lines = [f"- {score.series}: wrong side of 1: {text}" for score in scores for text in score.sign_errors]
    for score in scores:
        lines += [
            f"- {score.series}: crossover of {one.name}: {_pair(one.published, one.predicted)} requests"
            for one in score.crossovers
            if one.doublings > MAX_DOUBLINGS or bool(one.published) != bool(one.predicted)
        ]
        lines += [
            f"- {score.series}: best K of {one.name}: {one.published}, predicted {one.predicted}"
            for one in score.best_lengths
            if one.distance > MAX_LENGTH_DISTANCE
        ]
    return "\n".join(lines)


def exclusion_table(exclusions: Sequence[Exclusion]) -> str:
    """Markdown: rows that are in the files but not predicted."""
    lines = ["| series | rows | why not |", "|---|---|---|"]
    lines += [f"| {one.series} | {one.num_rows} | {one.reason} |" for one in exclusions]
    return "\n".join(lines)


def _percent(value: float) -> str:
    return "-" if isnan(value) else f"{value:.1%}"


def _bold(text: str, is_missed: bool) -> str:
    return f"**{text}**" if is_missed else text


def _pair(published: float | None, predicted: float | None) -> str:
    return "; ".join("none" if one is None else f"{one:.0f}" for one in (published, predicted))
