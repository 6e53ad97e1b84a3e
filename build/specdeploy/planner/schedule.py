"""DeploymentConfig -> DeploymentPlan: K by load per segment, as the user wrote it.

Every load is covered: loads outside the given ranges get an explicit K of 0, so that a reader of the plan needs no
rule besides the plan.
"""

from specdeploy.config.schema import DeploymentConfig, SegmentConfig
from specdeploy.contract import OTHER_SEGMENT, DeploymentPlan, DraftLenRange, SegmentPlan

OFF_BY_LOAD = "load"  # K is 0 at this load, not by nature of the segment


def plan_from_config(config: DeploymentConfig) -> DeploymentPlan:
    """The plan a config states by itself, before anything is measured or simulated."""
    ranges = config.speculation.draft_len_by_in_flight
    max_draft_len = config.speculation.max_draft_len
    return DeploymentPlan(
        deployment=config.name,
        source="config",
        method=config.speculation.method,
        max_draft_len=max_draft_len,
        constrained=config.speculation.constrained,
        segments=tuple(_plan_segment(segment, ranges, max_draft_len) for segment in config.traffic.segments),
        default=_plan_by_load(OTHER_SEGMENT, ranges, max_draft_len),
    )


def _plan_segment(segment: SegmentConfig, ranges: tuple[DraftLenRange, ...], max_draft_len: int) -> SegmentPlan:
    if not segment.speculate:
        never = DraftLenRange(min_in_flight=1, max_in_flight=None, draft_len=0)
        return SegmentPlan(segment=segment.name, ranges=(never,), off_reason=segment.off_reason)
    return _plan_by_load(segment.name, segment.draft_len_by_in_flight or ranges, max_draft_len)


def _plan_by_load(segment: str, ranges: tuple[DraftLenRange, ...], max_draft_len: int) -> SegmentPlan:
    if not ranges:
        ranges = (DraftLenRange(min_in_flight=1, max_in_flight=None, draft_len=max_draft_len),)
    covered = _fill_gaps(ranges)
    off_reason = OFF_BY_LOAD if any(entry.draft_len == 0 for entry in covered) else None
    return SegmentPlan(segment=segment, ranges=covered, off_reason=off_reason)


def _fill_gaps(ranges: tuple[DraftLenRange, ...]) -> tuple[DraftLenRange, ...]:
    """Ordered ranges, with a K of 0 wherever they leave a load out."""
    covered: list[DraftLenRange] = []
    next_load: int | None = 1
    for entry in ranges:
        if next_load is not None and next_load < entry.min_in_flight:
            covered.append(DraftLenRange(min_in_flight=next_load, max_in_flight=entry.min_in_flight - 1, draft_len=0))
        covered.append(entry)
        next_load = None if entry.max_in_flight is None else entry.max_in_flight + 1
    if next_load is not None:
        covered.append(DraftLenRange(min_in_flight=next_load, max_in_flight=None, draft_len=0))
    return tuple(covered)
