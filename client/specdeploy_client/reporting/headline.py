"""A run in sentences, for the head of the report and the last lines in a terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence

from specdeploy.run_contract import Arm, Comparison, Crossover, Load, MetricName, RunSummary, SegmentDecision, Verdict
from specdeploy_client.judging.run_lookup import decision_loads, find_comparison, measured_segments
from specdeploy_client.reporting.definitions import DASH, METRIC_NAMES

_ACTIONS = {
    "speculate": "speculate for",
    "switch off": "switch it off for",
    "measure more": "measure more for",
}
_SHORT = ("faster", "slower", "undecided")
_OUTCOMES = {
    "faster": "speculation answers faster on",
    "slower": "speculation answers slower on",
    "undecided": "no difference is proven on",
    "void": "the measurement is void on",
    "not measured": "nothing was measured on",
}


def reported_segments(summary: RunSummary) -> list[str]:
    """Every segment of the run, measured or planned, in order."""
    return list(dict.fromkeys([*measured_segments(summary), *(planned.segment for planned in summary.planned)]))


def reported_loads(summary: RunSummary) -> list[Load]:
    """The loads of all cells, in order; those that only the floor arm was measured at are left out."""
    loads = {cell.load for cell in summary.cells if cell.arm is not Arm.FLOOR}
    return sorted(loads, key=lambda load: (load.request_rate is not None, load.value))


def headline(summary: RunSummary, verdict: Verdict | None) -> str:
    """The answer in one line."""
    if verdict is None or not verdict.decisions:
        return _outcomes_in_short(summary)
    names = Counter(decision.segment for decision in verdict.decisions)
    groups = {
        words: [_decided(d, is_repeated=names[d.segment] > 1) for d in verdict.decisions if d.action == action]
        for action, words in _ACTIONS.items()
    }
    clauses = [f"{words} {join_words(names)}" for words, names in groups.items() if names]
    if clauses[0].startswith(_ACTIONS["switch off"]):
        clauses[0] = clauses[0].replace("it off", "speculation off", 1)
    line = "; ".join(clauses)
    return line[0].upper() + line[1:]


def describe_run(summary: RunSummary) -> tuple[str, str]:
    """Two sentences in plain words: what was measured, and what came out where it is decided."""
    return _describe_measurement(summary), _describe_outcomes(summary)


def describe_crossover(crossover: Crossover) -> str:
    """`faster up to 11.6 at once [8.4, 14.9]`, or what can be said instead."""
    if crossover.kind == "crosses":
        return f"faster up to {crossover} at once"
    if crossover.kind == "none up to":
        return f"faster at every level, up to {crossover.max_concurrency} at once"
    if crossover.kind == "never faster":
        return "not faster at any level"
    return f"undecided up to {crossover.max_concurrency} at once"


def crossover_lines(summary: RunSummary, metric: MetricName = MetricName.E2E) -> list[str]:
    """One line per segment: up to which concurrency speculation is faster."""
    return [
        f"{found.segment}: speculation is {describe_crossover(found)} ({METRIC_NAMES[metric]}), "
        f"{summary.expected_concurrency} are expected"
        for found in summary.crossovers
        if found.metric is metric
    ]


def format_interval(comparison: Comparison) -> str:
    """`0.62 [0.58, 0.67]`, or a dash where there is no ratio."""
    if comparison.ratio is None or comparison.ci_low is None or comparison.ci_high is None:
        return DASH
    return f"{comparison.ratio:.2f} [{comparison.ci_low:.2f}, {comparison.ci_high:.2f}]"


def describe_change(ratio: float) -> str:
    """`38 % less time`, `12 % more time` or `the same time`."""
    percent = round(100 * (ratio - 1))
    if percent == 0:
        return "the same time"
    return f"{abs(percent)} % {'less' if percent < 0 else 'more'} time"


def join_words(words: Iterable[str]) -> str:
    """`a, b and c`."""
    listed = list(words)
    if len(listed) < 2:
        return listed[0] if listed else "none"
    return f"{', '.join(listed[:-1])} and {listed[-1]}"


def _describe_measurement(summary: RunSummary) -> str:
    segments = list(dict.fromkeys(cell.segment for cell in summary.cells))
    num_requests = sum(cell.num_requests for cell in summary.cells)
    method = summary.method or "unknown method"
    if summary.max_draft_len is not None:
        method += f", up to {summary.max_draft_len} drafted tokens per step"
    return (
        f"{num_requests:,} requests of {len(segments)} traffic segment{'s' if len(segments) != 1 else ''} "
        f"({', '.join(segments)}) were answered with speculative decoding ({method}) and without it, interleaved, at "
        f"{_levels(reported_loads(summary))}, in {summary.dtype or 'an unreported dtype'}."
    )


def _levels(loads: Sequence[Load]) -> str:
    values = join_words(f"{load.value:g}" for load in loads)
    is_open = any(load.request_rate is not None for load in loads)
    return f"{values} requests/s" if is_open else f"concurrency {values}"


def _describe_outcomes(summary: RunSummary) -> str:
    by_load: dict[Load, dict[str, list[str]]] = {}
    for segment in reported_segments(summary):
        for load in decision_loads(summary, segment):
            comparison = find_comparison(summary, segment, load, MetricName.E2E)
            outcome: str = "not measured" if comparison is None else comparison.outcome
            if comparison is not None and summary.is_queued(load.concurrency):
                outcome, comparison = "queued", None  # a ratio of two queues is not shown in the headline
            by_load.setdefault(load, {}).setdefault(outcome, []).append(_with_ratio(segment, comparison))
    if not by_load:
        return "Nothing was measured."
    return " ".join(f"At {_place(load)}, {_clauses(summary, outcomes)}." for load, outcomes in by_load.items())


def _outcomes_in_short(summary: RunSummary) -> str:
    """`Speculation is faster on chat, undecided on code_edit`: what the intervals say where no gate has judged."""
    outcomes: dict[str, list[str]] = {}
    for segment in reported_segments(summary):
        found = [find_comparison(summary, segment, load, MetricName.E2E) for load in decision_loads(summary, segment)]
        told = {
            "undecided" if c is None or c.outcome == "void" or summary.is_queued(c.concurrency) else c.outcome
            for c in found
        }
        outcomes.setdefault(told.pop() if len(told) == 1 else "undecided", []).append(segment)
    clauses = [f"{outcome} on {join_words(outcomes[outcome])}" for outcome in _SHORT if outcome in outcomes]
    return f"Speculation is {', '.join(clauses)}" if clauses else "Nothing was measured"


def _clauses(summary: RunSummary, outcomes: dict[str, list[str]]) -> str:
    queued = f"only {summary.effective_concurrency} requests of full length run at once, so nothing is decided on"
    words = {**_OUTCOMES, "queued": queued}
    return "; ".join(f"{words[outcome]} {join_words(names)}" for outcome, names in sorted(outcomes.items()))


def _place(load: Load) -> str:
    return str(load) if load.concurrency is None else f"the expected concurrency of {load.concurrency}"


def _decided(decision: SegmentDecision, *, is_repeated: bool) -> str:
    if not is_repeated:
        return decision.segment
    return f"{decision.segment} at {Load(decision.concurrency, decision.request_rate)}"


def _with_ratio(segment: str, comparison: Comparison | None) -> str:
    if comparison is None or comparison.ratio is None:
        return segment
    return f"{segment} (e2e on/off {format_interval(comparison)})"
