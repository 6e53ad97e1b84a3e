"""The planner's pictures: ratio by concurrency, memory of the fullest rank, latencies of the traffic off and on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from specdeploy.charts.ratio_panel import Crossing, Queue, RatioPoint, ratio_panel
from specdeploy.charts.scales import duration_scale, duration_ticks
from specdeploy.charts.svg import Point, group, line, polygon, polyline, rect, svg, text
from specdeploy.contract import MemoryBudget
from specdeploy.planner_contract import (
    Estimate,
    LevelPrediction,
    PlannedSegment,
    PredictedCrossover,
    SimulatedArm,
    TrafficPrediction,
)
from specdeploy.run_contract import MetricName, Percentile
from specdeploy.units import format_bytes

_BAR_WIDTH, _BAR_HEIGHT = 900, 92
_BAR_LEFT, _BAR_RIGHT, _BAR_TOP, _BAR_BOTTOM = 2.0, 898.0, 8.0, 52.0
_HIST_WIDTH, _HIST_HEIGHT = 900, 240
_HIST_LEFT, _HIST_RIGHT, _HIST_TOP, _HIST_BOTTOM = 48.0, 886.0, 26.0, 190.0
_CHARACTER = 7.3  # width of a bold one of 12 units' height
_NUM_TONES = 6
DASH = "\N{EN DASH}"


Tone = Literal["faster", "slower", "undecided", "void"]


def outcome(ratio: Estimate | None, *, is_indicative: bool = False) -> Tone:
    """What the interval says of speculation; an indicative one says nothing for sure."""
    if ratio is None:
        return "void"
    if is_indicative:
        return "undecided"
    if ratio.high < 1:
        return "faster"
    return "slower" if ratio.low > 1 else "undecided"


def in_words(ratio: Estimate | None, *, is_indicative: bool = False) -> str:
    """`0.71 [0.62, 0.83]`, `~` before an indicative one, or a dash where nothing is known."""
    if ratio is None:
        return DASH
    return f"{'~' if is_indicative else ''}{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def level_point(segment: str, level: LevelPrediction) -> RatioPoint:
    """The e2e ratio of one level; none where nothing is known."""
    k = f"K {level.draft_len}" if level.draft_len else f"off ({level.off_reason})"
    head = f"{segment}, {level.concurrency} at once, {k}: "
    ratio = level.e2e_ratio
    if ratio is None:
        reason = level.range_problem or "not predicted"
        return RatioPoint(level.concurrency, None, "void", head + reason, "not calibrated")
    interval = (ratio.value, ratio.low, ratio.high)
    if level.is_indicative:
        tip = f"{head}indicative e2e on/off {in_words(ratio)} with K {level.best_static_draft_len}"
        return RatioPoint(level.concurrency, interval, "undecided", tip, is_indicative=True)
    tip = f"{head}e2e on/off {in_words(ratio)}, {outcome(ratio)}, {level.verified_tokens} tokens verified a step"
    return RatioPoint(level.concurrency, interval, outcome(ratio), tip)


def segment_panel(segment: PlannedSegment, bounds: Sequence[float], name: str) -> Markup:
    """e2e on/off by concurrency, at the K that is best at each."""
    queued = [level.concurrency for level in segment.levels if level.is_queued]
    fitting = [level.concurrency for level in segment.levels if not level.is_queued]
    return ratio_panel(
        [level_point(segment.segment, level) for level in segment.levels],
        bounds,
        label=f"{segment.segment}: predicted e2e on/off by concurrency",
        axis_title="requests at once",
        name=name,
        expected=segment.expected_concurrency,
        crossing=_crossing(segment.segment, segment.crossover),
        queue=Queue(max(fitting, default=1), "more requests than run at once: they wait") if queued else None,
    )


def ratio_bounds(segments: Sequence[PlannedSegment]) -> list[float]:
    """Ratios and interval ends of all levels that have one: what panels that share a scale must enclose."""
    return [
        value
        for segment in segments
        for level in segment.levels
        if level.e2e_ratio is not None
        for value in (level.e2e_ratio.value, level.e2e_ratio.low, level.e2e_ratio.high)
    ]


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One part of the memory bar, with the class of its colour."""

    subject: str
    formula: str
    num_bytes: int
    tone: str


def memory_parts(budget: MemoryBudget) -> list[MemoryPart]:
    """The lines of a budget and its key/value caches, largest weights first as listed."""
    parts = [
        MemoryPart(entry.subject, entry.formula, entry.num_bytes, f"part-{number % _NUM_TONES}")
        for number, entry in enumerate(budget.lines)
    ]
    tokens = ", ".join(f"{count:,} tokens for {model}" for model, count in budget.kv_tokens.items())
    return [*parts, MemoryPart("key/value caches", tokens, max(budget.kv_bytes, 0), "part-kv")]


def memory_bar(budget: MemoryBudget) -> Markup:
    """The memory of the fullest rank from left to right; what does not fit runs over its end."""
    parts = memory_parts(budget)
    total = max(budget.num_bytes, sum(part.num_bytes for part in parts))
    scale = (_BAR_RIGHT - _BAR_LEFT) / total
    drawn: list[str] = []
    left = _BAR_LEFT
    for part in parts:
        width = part.num_bytes * scale
        label = []
        if width >= 12 + _CHARACTER * max(len(part.subject), 8):
            label = [
                text(left + 6, _BAR_TOP + 18, part.subject, "bar-label", "start"),
                text(left + 6, _BAR_TOP + 35, format_bytes(part.num_bytes), "tick", "start"),
            ]
        box = rect(left, _BAR_TOP, width - 1, _BAR_BOTTOM - _BAR_TOP, part.tone)
        drawn.append(group([box, *label], f"{part.subject}: {format_bytes(part.num_bytes)} ({part.formula})"))
        left += width
    end = _BAR_LEFT + budget.num_bytes * scale
    drawn.append(line(end, _BAR_TOP - 6, end, _BAR_BOTTOM + 6, "one"))
    drawn.append(text(end, _BAR_BOTTOM + 22, f"{format_bytes(budget.num_bytes)} of {budget.gpu}", "tick strong", "end"))
    return svg(_BAR_WIDTH, _BAR_HEIGHT, f"memory of {budget.gpu}, part by part", drawn)


def latency_histogram(traffic: TrafficPrediction) -> Markup:
    """How long whole answers take, off (outlined) and on (filled): shares of requests over a log axis of seconds."""
    edges = traffic.off.histogram_edges_s
    known = [edge for edge in edges if edge > 0]
    if len(known) < 2:
        return Markup('<p class="empty">No request was answered.</p>')
    x = duration_scale([known[0], known[-1]], _HIST_LEFT, _HIST_RIGHT)
    highest = max((max(_shares(arm), default=0) for arm in (traffic.off, traffic.on)), default=0) or 1
    parts = [
        part
        for tick in duration_ticks(x, 46)
        for part in (
            line(x.at(tick), _HIST_TOP, x.at(tick), _HIST_BOTTOM, "grid"),
            text(x.at(tick), _HIST_BOTTOM + 17, format_seconds(tick)),
        )
    ]
    outlines: dict[str, list[Point]] = {}
    for arm in (traffic.off, traffic.on):
        steps: list[Point] = [(x.at(max(edges[0], x.low)), _HIST_BOTTOM)]
        for left, right, share in zip(edges, edges[1:], _shares(arm), strict=False):
            top = _HIST_BOTTOM - (_HIST_BOTTOM - _HIST_TOP) * share / highest
            steps += [(x.at(max(left, x.low)), top), (x.at(max(right, x.low)), top)]
        outlines[arm.arm] = [*steps, (x.at(edges[-1]), _HIST_BOTTOM)]
    parts.append(polygon(outlines["on"], "bars on"))
    parts.append(polyline(outlines["off"], "outline off"))
    parts.append(line(_HIST_LEFT, _HIST_BOTTOM, _HIST_RIGHT, _HIST_BOTTOM, "axis"))
    parts += _median(traffic.off, x.at, "start")
    parts += _median(traffic.on, x.at, "end")
    parts.append(text((_HIST_LEFT + _HIST_RIGHT) / 2, _HIST_BOTTOM + 37, "time to the whole answer", "tick title"))
    return svg(_HIST_WIDTH, _HIST_HEIGHT, f"{traffic.traffic}: predicted e2e latencies off and on", parts)


def format_seconds(value: float | None) -> str:
    """`12 ms`, `1.5 s`, or a dash."""
    if value is None:
        return DASH
    return f"{value * 1000:,.3g} ms" if value < 1 else f"{value:,.3g} s"


def _median(arm: SimulatedArm, place: Callable[[float], float], anchor: Literal["start", "end"]) -> list[str]:
    """A line with its value: to the left of it for one arm, to the right for the other."""
    median = arm.latency_s.get(MetricName.E2E, {}).get(Percentile.P50)
    if not median:
        return []
    at = place(median)
    words = f"p50 {arm.arm} {format_seconds(median)}"
    label = text(at + (5 if anchor == "start" else -5), _HIST_TOP - 12, words, f"tick median-{arm.arm}", anchor)
    return [line(at, _HIST_TOP - 20, at, _HIST_BOTTOM, f"middle {arm.arm}"), label]


def _shares(arm: SimulatedArm) -> list[float]:
    total = sum(arm.histogram_counts) or 1
    return [count / total for count in arm.histogram_counts]


def _crossing(segment: str, crossover: PredictedCrossover) -> Crossing | None:
    if crossover.kind != "crosses" or crossover.concurrency is None:
        return None
    word = "indicative" if crossover.is_indicative else "predicted"
    tip = f"{segment}: {word} crossover at {crossover_in_words(crossover)} requests at once"
    return Crossing(crossover.concurrency, crossover.low, crossover.high, tip)


def crossover_in_words(crossover: PredictedCrossover) -> str:
    """`23.4 [12.1, above 64]`, `none up to 64`, `never faster`, `undecided`; `~` before an indicative one."""
    return ("~" if crossover.is_indicative else "") + _crossover_in_words(crossover)


def _crossover_in_words(crossover: PredictedCrossover) -> str:
    if crossover.kind == "none up to":
        return f"none up to {crossover.max_concurrency}"
    if crossover.kind != "crosses" or crossover.concurrency is None:
        return crossover.kind
    low = "below 1" if crossover.low is None else f"{crossover.low:.1f}"
    high = f"above {crossover.max_concurrency}" if crossover.high is None else f"{crossover.high:.1f}"
    return f"{crossover.concurrency:.1f} [{low}, {high}]"
