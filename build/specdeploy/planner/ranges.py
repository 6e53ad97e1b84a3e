"""Levels -> K by requests in flight, as routers and builds read it.

K of a level holds from the level below it on: between two levels the K of the higher load is the careful one. Above the
highest level K stays only where more requests merely queue (all rows are busy); else it is 0, because nothing was
predicted there.
"""

from collections.abc import Sequence

from specdeploy.contract import OTHER_SEGMENT, DraftLenRange, SegmentPlan
from specdeploy.planner_contract import LevelPrediction


def ranges_of(levels: Sequence[LevelPrediction], max_rows: int) -> tuple[DraftLenRange, ...]:
    """Ranges without gaps from 1 to infinity, equal neighbours merged."""
    ranges: list[DraftLenRange] = []
    for level in levels:
        start = 1 if not ranges else (ranges[-1].max_in_flight or 0) + 1
        _extend(ranges, DraftLenRange(min_in_flight=start, max_in_flight=level.concurrency, draft_len=level.draft_len))
    last = levels[-1]
    stays = last.draft_len if last.concurrency >= max_rows or last.is_queued else 0
    _extend(ranges, DraftLenRange(min_in_flight=last.concurrency + 1, max_in_flight=None, draft_len=stays))
    return tuple(ranges)


def _extend(ranges: list[DraftLenRange], entry: DraftLenRange) -> None:
    if ranges and ranges[-1].draft_len == entry.draft_len:
        ranges[-1] = ranges[-1].model_copy(update={"max_in_flight": entry.max_in_flight})
    else:
        ranges.append(entry)


def always_off(segment: str, reason: str) -> SegmentPlan:
    """K 0 at any load."""
    never = DraftLenRange(min_in_flight=1, max_in_flight=None, draft_len=0)
    return SegmentPlan(segment=segment, ranges=(never,), off_reason=reason)


def lowest_of(plans: Sequence[SegmentPlan]) -> SegmentPlan:
    """For traffic that no segment covers: at every load the smallest K of all segments."""
    starts = sorted({entry.min_in_flight for plan in plans for entry in plan.ranges})
    ranges: list[DraftLenRange] = []
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        draft_len = min(plan.draft_len(start) for plan in plans)
        end = None if following is None else following - 1
        _extend(ranges, DraftLenRange(min_in_flight=start, max_in_flight=end, draft_len=draft_len))
    reasons = [plan.off_reason for plan in plans if plan.off_reason]
    is_off = any(entry.draft_len == 0 for entry in ranges)
    return SegmentPlan(
        segment=OTHER_SEGMENT, ranges=tuple(ranges), off_reason=reasons[0] if is_off and reasons else None
    )


def in_words(plan: SegmentPlan) -> str:
    """`K 3 to 16 at once, 1 to 64, then off`."""
    parts = []
    for entry in plan.ranges:
        what = f"K {entry.draft_len}" if entry.draft_len else "off"
        if entry.max_in_flight is not None:
            parts.append(f"{what} up to {entry.max_in_flight}")
        else:
            parts.append(f"{what} above" if parts else f"{what} at any load")
    return ", ".join(parts)
