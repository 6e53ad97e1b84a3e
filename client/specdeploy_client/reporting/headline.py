"""A run in sentences, for the head of the report and the last lines in a terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence

from specdeploy.run_contract import Arm, Comparison, Crossover, Load, MetricName, RunSummary
from specdeploy.verdict_contract import SegmentDecision, Verdict
from specdeploy_client.comparison.wording import describe_intervals, format_comparison
from specdeploy_client.judging.run_lookup import decision_loads, find_comparison, measured_arms, measured_segments
from specdeploy_client.reporting.definitions import METRIC_NAMES

# By action, and whether what is gained is too little for the gate.
_ACTIONS = {
    ("speculate", False): "speculate for",
    ("speculate", True): "speculation is faster, but by less than the gate asks, on",
    ("switch off", False): "switch it off for",
    ("measure more", True): "speculation is not faster by what the gate asks on",
    ("measure more", False): "measure more for",
}
_SHORT = ("faster", "slower", "undecided")
_OUTCOMES = {
    "faster": "speculation answers faster on",
    "slower": "speculation answers slower on",
    "undecided": "no difference is proven on",
    "void": "the measurement is void on",
    "not measured": "nothing was measured on",
    "off": "only the arm without speculation was measured on",
    "on": "only the arm with speculation was measured on",
}
# Of RunSummary.environment, where they are known.
_IMPORTED_FROM, _MEASURED_BY, _NOT_INTERLEAVED = "imported from", "measured by", "arms not interleaved"


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
        words: [
            _decided(d, is_repeated=names[d.segment] > 1)
            for d in verdict.decisions
            if (d.action, d.is_gain_too_small) == which
        ]
        for which, words in _ACTIONS.items()
    }
    clauses = [f"{words} {join_words(decided)}" for words, decided in groups.items() if decided]
    if clauses[0].startswith("switch it off"):
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
    return f"not shown to be faster at every level up to {crossover.max_concurrency} at once"


def crossover_lines(summary: RunSummary, metric: MetricName = MetricName.E2E) -> list[str]:
    """One line per segment: up to which concurrency speculation is faster."""
    return [
        f"{found.segment}: speculation is {describe_crossover(found)} ({METRIC_NAMES[metric]}), "
        f"{summary.expected_concurrency} are expected"
        for found in summary.crossovers
        if found.metric is metric
    ]


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


def full_stop(text: str) -> str:
    """`text` as a sentence that another one can follow, whether it brought its own full stop or not."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _describe_measurement(summary: RunSummary) -> str:
    """Counts answers: what failed was not answered by either arm."""
    cells = [cell for cell in summary.cells if cell.arm is not Arm.FLOOR]
    num_requests = sum(cell.num_requests for cell in cells)
    if not num_requests:
        return "No request was measured."
    num_failed = sum(cell.num_errors for cell in cells)
    segments = list(dict.fromkeys(cell.segment for cell in cells))
    where = (
        f"of {len(segments)} traffic segment{'s' if len(segments) != 1 else ''} ({', '.join(segments)}) "
        f"at {_levels(reported_loads(summary))}"
    )
    how = f"{_describe_arms(summary)}, in {summary.dtype or 'an unreported dtype'}{_describe_source(summary)}"
    if num_failed == num_requests:
        return f"All {num_requests:,} requests {where} failed: {how}."
    failed = f"; {num_failed:,} more failed" if num_failed else ""
    return f"{num_requests - num_failed:,} requests {where} were answered {how}{failed}."


def _describe_arms(summary: RunSummary) -> str:
    """Which arms there were; interleaved is what our own runs of both are, unless their records say otherwise."""
    method = summary.method or "unknown method"
    if summary.max_draft_len is not None:
        method += f", up to {summary.max_draft_len} drafted tokens per step"
    on = f"with speculative decoding ({method})"
    arms = measured_arms(summary)
    if arms == (Arm.ON,):
        return f"{on}, the only arm that was measured"
    if arms == (Arm.OFF,):
        # Another tool's file says that it drafted, or nothing.
        is_foreign = _IMPORTED_FROM in summary.environment
        return (
            "without speculative decoding, as far as the file says"
            if is_foreign
            else "without speculative decoding, the only arm that was measured"
        )
    order = "not interleaved everywhere" if _NOT_INTERLEAVED in summary.environment else "interleaved"
    return f"{on} and without it, {order}"


def _describe_source(summary: RunSummary) -> str:
    """`; imported from profile_export.jsonl, measured by AIPerf 0.13.0`."""
    facts = [
        f"{key} {summary.environment[key]}" for key in (_IMPORTED_FROM, _MEASURED_BY) if key in summary.environment
    ]
    return f"; {', '.join(facts)}" if _IMPORTED_FROM in summary.environment else ""


def _levels(loads: Sequence[Load]) -> str:
    values = join_words(f"{load.value:g}" for load in loads)
    is_open = any(load.request_rate is not None for load in loads)
    return f"{values} requests/s" if is_open else f"concurrency {values}"


def _describe_outcomes(summary: RunSummary) -> str:
    if not any(cell.num_requests for cell in summary.cells):
        return "Nothing was measured."
    if not summary.comparisons:
        return f"{_only_one_arm(summary)}, so nothing was compared."
    by_load: dict[Load, dict[str, list[str]]] = {}
    shown: list[Comparison] = []
    for segment in reported_segments(summary):
        for load in decision_loads(summary, segment):
            comparison = find_comparison(summary, segment, load, MetricName.E2E)
            outcome = _outcome_without_ratio(summary, segment, load) if comparison is None else comparison.outcome
            if comparison is not None and summary.is_queued(load.concurrency):
                outcome, comparison = "queued", None  # a ratio of two queues is not shown in the headline
            if comparison is not None and comparison.ratio is not None:
                shown.append(comparison)
            by_load.setdefault(load, {}).setdefault(outcome, []).append(_with_ratio(segment, comparison))
    sentences = [f"At {_place(load)}, {_clauses(summary, outcomes)}." for load, outcomes in by_load.items()]
    return " ".join([*sentences, *([f"In brackets: {describe_intervals(shown)}s."] if shown else [])])


def _outcome_without_ratio(summary: RunSummary, segment: str, load: Load) -> str:
    arms = measured_arms(summary, segment, load)
    return arms[0].value if len(arms) == 1 else "not measured"


def _only_one_arm(summary: RunSummary) -> str:
    """What was measured of a run that has nothing to compare."""
    arms = measured_arms(summary)
    if len(arms) != 1:
        return "The arms were measured in different cells"
    if _IMPORTED_FROM in summary.environment:
        return "The imported file holds one arm"
    return f"Only the arm {'with' if arms[0] is Arm.ON else 'without'} speculation was measured"


def _outcomes_in_short(summary: RunSummary) -> str:
    """`Speculation is faster on chat, undecided on code_edit`: what the intervals say where no gate has judged."""
    if not any(cell.num_requests for cell in summary.cells):
        return "Nothing was measured"
    if not summary.comparisons:
        return f"{_only_one_arm(summary)}: nothing was compared"
    outcomes: dict[str, list[str]] = {}
    for segment in reported_segments(summary):
        found = [find_comparison(summary, segment, load, MetricName.E2E) for load in decision_loads(summary, segment)]
        told = {
            "undecided" if c is None or c.outcome == "void" or summary.is_queued(c.concurrency) else c.outcome
            for c in found
        }
        outcomes.setdefault(told.pop() if len(told) == 1 else "undecided", []).append(segment)
    clauses = [f"{outcome} on {join_words(outcomes[outcome])}" for outcome in _SHORT if outcome in outcomes]
    return f"Speculation is {', '.join(clauses)}"


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
    return f"{segment} (e2e on/off {format_comparison(comparison)})"
