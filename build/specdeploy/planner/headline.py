"""The plan in one sentence that says what to do."""

from collections.abc import Sequence

from specdeploy.contract import DeploymentPlan, SegmentPlan
from specdeploy.planner_contract import AcceptanceOrigin, PlannedSegment, PlanVerdict


def headline(verdict: PlanVerdict, segments: Sequence[PlannedSegment], plan: DeploymentPlan) -> str:
    """`Speculate with K 3 up to 48 requests at once`, `Switch speculation off: ..`, `Measure first: ..`; what holds for
    some segments only names them. `segments` in the order of the deployment."""
    sentences = {
        PlanVerdict.GO: lambda chosen: _speculate([plan.segment(one.segment) for one in chosen]),
        PlanVerdict.NO_GO: lambda chosen: f"switch speculation off: {_brief(chosen[0].reasons)}",
        PlanVerdict.MEASURE_FIRST: lambda chosen: f"measure first: {_unknown(chosen)}",
    }
    parts = []
    for one_verdict in (verdict, *(other for other in sentences if other is not verdict)):
        chosen = [one for one in segments if one.verdict is one_verdict]
        if chosen:
            names = "" if len(chosen) == len(segments) else f"for {', '.join(one.segment for one in chosen)} "
            parts.append(names + sentences[one_verdict](chosen))
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def _speculate(plans: Sequence[SegmentPlan]) -> str:
    """The K and the load of plans that are alike; else that they are not."""
    if any(one.ranges != plans[0].ranges for one in plans):
        return "speculate, with another K by load for each segment"
    drafting = [entry for entry in plans[0].ranges if entry.draft_len]
    if not drafting:
        return "speculate at no load"
    lens = [entry.draft_len for entry in drafting]
    k = f"K {lens[0]}" if len(set(lens)) == 1 else f"K {max(lens)} to {min(lens)} by load"
    last = drafting[-1].max_in_flight
    start = "" if drafting[0].min_in_flight == 1 else f" from {drafting[0].min_in_flight}"
    if last is None and not start:
        return f"speculate with {k}" + ("" if len(set(lens)) > 1 else " at any load")
    return f"speculate with {k}{start}" + ("" if last is None else f" up to {last}") + " requests at once"


def _unknown(segments: Sequence[PlannedSegment]) -> str:
    """What a measurement has to settle: of the first segment, with the ratios of all."""
    segment = segments[0]
    expected = segment.expected_concurrency
    level = next(one for one in segment.levels if one.concurrency == expected)
    ratio = level.e2e_ratio
    if level.range_problem is not None:
        missing = f"this engine was not calibrated for {expected} requests at once"
        return missing if ratio is None else f"{missing} (indicative: e2e {_indicative(segments)} of plain)"
    if segment.acceptance.origin is AcceptanceOrigin.UNKNOWN:
        return "nobody measured how many drafted tokens this pair accepts"
    if ratio is not None and ratio.low < 1 <= ratio.high:
        return f"it may gain or lose at {expected} requests at once (e2e {ratio.low:.2f} to {ratio.high:.2f} of plain)"
    return _brief(segment.reasons)


def _indicative(segments: Sequence[PlannedSegment]) -> str:
    """`0.56`, or `0.56 to 0.97` where segments differ."""
    ratios = [
        level.e2e_ratio.value
        for segment in segments
        for level in segment.levels
        if level.concurrency == segment.expected_concurrency and level.is_indicative and level.e2e_ratio is not None
    ]
    shown = sorted({f"{ratio:.2f}" for ratio in ratios})
    return shown[0] if len(shown) == 1 else f"{shown[0]} to {shown[-1]}"


def _brief(reasons: Sequence[str]) -> str:
    """The first reason without its numbers."""
    reason = reasons[0]
    for mark in (": ", "; ", " ("):
        reason = reason.split(mark)[0]
    return reason
