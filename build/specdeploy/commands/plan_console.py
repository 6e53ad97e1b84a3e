"""The story of a plan on one screen: the verdict, the numbers it rests on, and why."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from specdeploy.planner.crossover import describe_crossover
from specdeploy.planner.ranges import in_words
from specdeploy.planner.reasons import memory_costs, show
from specdeploy.planner_contract import (
    AcceptanceOrigin,
    ArithmeticLine,
    PlannedSegment,
    PlanReport,
    PlanVerdict,
    Sensitivity,
)
from specdeploy.run_contract import MetricName, Percentile
from specdeploy.units import format_bytes

WIDTH = 100
_MAX_REASONS = 2  # of one segment; all of them are in plan.json
_MAX_ASSUMPTIONS = 2
_MAX_ALTERNATIVES = 3
_MAX_SOURCE = 130
_DASH = "-"


def render_plan(report: PlanReport, files: Sequence[str] = ()) -> str:
    """At most about 40 lines of 100 columns for three segments. `files`: what was written, to be named at the end."""
    sections = [
        _head(report),
        list(_segments(report.segments, report.ridge_tokens)),
        list(_levels(report.segments)),
        list(_why(report.segments)),
        list(_plan(report)),
        list(_rest(report)),
        [line for name in files for line in _wrap("wrote   ", name)],
    ]
    return "\n".join("\n".join(section) for section in sections if section) + "\n"


def _head(report: PlanReport) -> list[str]:
    facts = f"{report.method}, K up to {report.plan.max_draft_len}, {report.engine} on {report.hardware}"
    if report.draft_cost_ratio is not None:
        facts += f"; a draft step reads {report.draft_cost_ratio:.2g} of the target's active parameters"
    return [*_wrap("", f"{report.deployment}: {report.headline}"), *_wrap("", facts), *_wrap("", _legend(report))]


def _legend(report: PlanReport) -> str:
    levels = [level for segment in report.segments for level in segment.levels]
    if all(level.e2e_ratio is None for level in levels):
        return "no load lies inside what was calibrated, and no other calibration can be borrowed: no ratio is known"
    text = (
        "ratios are on/off times, below 1 is faster; intervals hold the acceptance's bounds and the model's own error"
    )
    parts = []
    if any(level.is_promised for level in levels):
        parts.append(f"{report.model_error:.0%} ({report.model_error_source})")
    if any(level.is_indicative for level in levels):
        parts.append(f"{report.indicative_error:.0%} where marked ~: indicative, from elsewhere, and decides nothing")
    text += f", {'; '.join(parts)}"
    if report.ridge_tokens is not None:
        text += f"; a step is compute-bound where it verifies more than {report.ridge_tokens:.0f} tokens (roofline)"
    return text


# --- tables ---------------------------------------------------------------------------------------------------------


def _segments(segments: Sequence[PlannedSegment], ridge: float | None) -> Iterator[str]:
    """`tokens` that a row gains by a step; `verified`: tokens of a step / where it becomes compute-bound."""
    head = ("segment", "verdict", "load", "K", "e2e on/off", "TTFT", "tokens", "verified", "crossover")
    rows = [head, *(_segment_row(segment, ridge) for segment in segments)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _segment_row(segment: PlannedSegment, ridge: float | None) -> tuple[str, ...]:
    level = next(one for one in segment.levels if one.concurrency == segment.expected_concurrency)
    mark = _mark(level.is_indicative)
    return (
        segment.segment,
        "measure" if segment.verdict is PlanVerdict.MEASURE_FIRST else segment.verdict.value,
        str(segment.expected_concurrency),
        str(segment.draft_len) if segment.draft_len else "off",
        _DASH if level.e2e_ratio is None else mark + show(level.e2e_ratio),
        _DASH if level.ttft_ratio is None else f"{mark}{level.ttft_ratio.value:.2f}",
        _DASH if level.e2e_ratio is None else f"{level.tokens_per_step:.2f}",
        _DASH if level.e2e_ratio is None or ridge is None else f"{level.verified_tokens}/{ridge:.0f}",
        describe_crossover(segment.crossover),
    )


def _mark(is_indicative: bool) -> str:
    return "~" if is_indicative else ""


def _levels(segments: Sequence[PlannedSegment]) -> Iterator[str]:
    """e2e ratio of the best K by load; * where the rows or the memory queue requests."""
    if all(level.e2e_ratio is None for segment in segments for level in segment.levels):
        return
    loads = [level.concurrency for level in segments[0].levels]
    width = max(len(segment.segment) for segment in segments) + len("e2e on/off, ")
    width = max(width - len("e2e on/off, "), len("e2e by load"))
    yield "e2e by load".ljust(width) + "".join(f"{load:>8}" for load in loads)
    for segment in segments:
        cells = []
        for level in segment.levels:
            text = _DASH if level.e2e_ratio is None else f"{_mark(level.is_indicative)}{level.e2e_ratio.value:.2f}"
            cells.append(f"{text}{'*' if level.is_queued else ' '}".rjust(9)[1:])
        yield segment.segment.ljust(width) + "".join(cells).rstrip()
    if any(level.is_queued for segment in segments for level in segment.levels):
        yield "  * requests queue: more are in flight than are decoded together"


# --- words ----------------------------------------------------------------------------------------------------------


def _why(segments: Sequence[PlannedSegment]) -> Iterator[str]:
    """The first reasons of each segment; what is the same for several is said once."""
    yield "why"
    grouped: dict[tuple[str, ...], list[str]] = {}
    for segment in segments:
        grouped.setdefault(segment.reasons[:_MAX_REASONS], []).append(segment.segment)
    told: set[str] = set()
    for reasons, names in grouped.items():
        new = [reason for reason in reasons if reason not in told and _kind(reason) not in told]
        told.update(new, map(_kind, new))
        yield from _wrap(f"  {', '.join(names)}: ", "; ".join(new))
    by_source: dict[str, list[PlannedSegment]] = {}
    for segment in segments:
        by_source.setdefault(_shortened(segment.acceptance.source), []).append(segment)
    for source, alike in by_source.items():
        if alike[0].acceptance.origin is AcceptanceOrigin.UNKNOWN:
            continue  # a reason already
        of_whom = "" if len(by_source) == 1 else f" of {', '.join(one.segment for one in alike)}"
        yield from _wrap(f"  acceptance{of_whom}: ", f"{alike[0].acceptance.origin.value}, {source}")


def _kind(reason: str) -> str:
    """What is about the same for every segment is said of the first; numbers of the others stand in the table."""
    if reason.startswith("no verdict: "):
        return reason.split("; with ")[0]
    return "TTFT" if reason.startswith("TTFT grows") else reason


def _shortened(source: str) -> str:
    """Sources may be as long as a paragraph; the whole one is in plan.json."""
    return source if len(source) <= _MAX_SOURCE else source[: _MAX_SOURCE - 4].rsplit(" ", 1)[0] + " ..."


def _plan(report: PlanReport) -> Iterator[str]:
    yield "plan"
    by_words: dict[str, list[str]] = {}
    for plan, segment in zip(report.plan.segments, report.segments, strict=True):
        is_own = segment.verdict is PlanVerdict.MEASURE_FIRST and not any(level.is_promised for level in segment.levels)
        words = in_words(plan) + (" (the deployment's own)" if is_own else "")
        by_words.setdefault(words, []).append(plan.segment)
    for words, names in by_words.items():
        yield from _wrap(f"  {', '.join(names)}: ", words)


def _rest(report: PlanReport) -> Iterator[str]:
    yield from _memory(report)
    yield from _traffic(report)
    yield from _sensitivities(report.sensitivities)
    unsure = [segment for segment in report.segments if segment.alternatives]
    for text in unsure[0].alternatives[:_MAX_ALTERNATIVES] if unsure else ():
        yield from _wrap("try     ", f"{unsure[0].segment}: {text}" if len(unsure) > 1 else text)
    for text in report.assumptions[:_MAX_ASSUMPTIONS]:
        yield from _wrap("assumed ", text)
    if (more := len(report.assumptions) - _MAX_ASSUMPTIONS) > 0:
        yield f"assumed {more} more, in plan.json"


def _memory(report: PlanReport) -> Iterator[str]:
    memory = report.memory
    if memory is None:
        return
    budget = memory.budget
    if memory.misfit is not None:
        yield from _wrap("memory  ", f"DOES NOT FIT {budget.gpu}, {format_bytes(budget.num_bytes)}: {memory.misfit}")
        return
    tokens = min(budget.kv_tokens.values(), default=0)
    text = (
        f"{format_bytes(budget.kv_bytes)} of {format_bytes(budget.num_bytes)} for caches on the fullest device: "
        f"{tokens} tokens, {memory.num_requests} requests of {memory.request_tokens} tokens"
    )
    if costs := memory_costs(memory):
        text += f" ({costs})"
    if report.max_rows is not None and report.max_rows < memory.num_requests:
        text += f"; serving.max_rows {report.max_rows} limits first"
    yield from _wrap("memory  ", text)


def _traffic(report: PlanReport) -> Iterator[str]:
    traffic = report.traffic
    if traffic is None:
        return
    off, on = traffic.off, traffic.on

    def both(metric: MetricName, percentile: Percentile) -> str | None:
        times = [arm.latency_s.get(metric, {}).get(percentile) for arm in (off, on)]
        if times[0] is None or times[1] is None:
            return None
        return f"{metric} {percentile} {_seconds(times[0])} -> {_seconds(times[1])}"

    parts = [
        both(MetricName.E2E, Percentile.P50),
        both(MetricName.E2E, Percentile.P99),
        both(MetricName.TTFT, Percentile.P99),
    ]
    text = f"{traffic.traffic}: " + ", ".join(part for part in parts if part is not None)
    text += f", {off.output_throughput:.0f} -> {on.output_throughput:.0f} tokens/s"
    if off.goodput is not None and on.goodput is not None:
        text += f", goodput {off.goodput:.2f} -> {on.goodput:.2f}/s"
    if refused := max(off.num_refused, on.num_refused):
        text += f"; {refused} refused"
    text += "; OVERLOADED" if traffic.is_overloaded else ""
    if traffic.range_problem is not None:
        text += f"; its peaks are extrapolated: {traffic.range_problem}"
    yield from _wrap("traffic ", text)


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _sensitivities(sensitivities: Sequence[Sensitivity]) -> Iterator[str]:
    by_segment: dict[str, list[str]] = {}
    for one in sensitivities:
        if all(other.ratio is None for other in sensitivities if other.segment == one.segment):
            continue
        ratio = _DASH if one.ratio is None else f"{_mark(one.is_indicative)}{one.ratio.value:.2f}"
        verdict = "" if one.is_indicative else f" {one.verdict}"
        by_segment.setdefault(one.segment, []).append(f"{one.change} {ratio}{verdict}")
    alike: dict[str, list[str]] = {}
    for segment, parts in by_segment.items():
        alike.setdefault(", ".join(parts), []).append(segment)
    for text, names in alike.items():
        yield from _wrap("if      ", f"{', '.join(names)}: {text}")


def _wrap(label: str, text: str) -> Iterable[str]:
    """`label` and the text behind it, wrapped and indented to it."""
    indent = " " * min(len(label), 12)
    return textwrap.wrap(
        text, WIDTH, initial_indent=label, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


# --- --explain ------------------------------------------------------------------------------------------------------


def render_arithmetic(lines: Sequence[ArithmeticLine]) -> str:
    """Every number of the decision, one line each: subject, value, and the formula it comes from."""
    width = max((len(line.subject) for line in lines), default=0)
    return "".join(f"{line.subject:<{width}}  {_value(line):>14}  {line.formula}\n" for line in lines)


def _value(line: ArithmeticLine) -> str:
    if line.unit == "s":
        return f"{line.value * 1000:.4g} ms"
    return f"{line.value:.4g} {line.unit}"


EXIT_OF_VERDICT = {PlanVerdict.GO: 0, PlanVerdict.NO_GO: 1, PlanVerdict.MEASURE_FIRST: 2}
