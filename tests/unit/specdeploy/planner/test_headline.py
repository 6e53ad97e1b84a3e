"""One sentence that tells what to do."""

from typing import Any

import pytest

from helpers.plan_reports import level, planned_segment
from specdeploy.contract import DeploymentPlan, DraftLenRange, Method, SegmentPlan
from specdeploy.planner.headline import headline
from specdeploy.planner_contract import AcceptanceOrigin, PlannedSegment, PlanVerdict

LIMITED = ((1, 48, 3), (49, None, 0))


def plan(**ranges: tuple[tuple[int, int | None, int], ...]) -> DeploymentPlan:
    segments = tuple(
        SegmentPlan(
            segment=name,
            ranges=tuple(DraftLenRange(min_in_flight=a, max_in_flight=b, draft_len=k) for a, b, k in entries),
            off_reason="load",
        )
        for name, entries in ranges.items()
    )
    return DeploymentPlan(
        deployment="d", source="planner", method=Method.EAGLE3, max_draft_len=4, segments=segments, default=segments[0]
    )


def segment(name: str, verdict: PlanVerdict, **changes: Any) -> PlannedSegment:
    return planned_segment(name, verdict).model_copy(update=changes)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        (LIMITED, "Speculate with K 3 up to 48 requests at once"),
        (((1, None, 2),), "Speculate with K 2 at any load"),
        (((1, 8, 4), (9, 48, 2), (49, None, 0)), "Speculate with K 4 to 2 by load up to 48 requests at once"),
        (((1, 8, 4), (9, None, 2)), "Speculate with K 4 to 2 by load"),
        (((1, 3, 0), (4, None, 2)), "Speculate with K 2 from 4 requests at once"),
    ],
)
def test_a_go_says_k_and_load(ranges: tuple[tuple[int, int | None, int], ...], words: str) -> None:
    assert headline(PlanVerdict.GO, [segment("chat", PlanVerdict.GO)], plan(chat=ranges)) == words


def test_a_no_go_says_why_without_its_numbers() -> None:
    off = segment("chat", PlanVerdict.NO_GO, reasons=("loses at 64 at once: e2e 1.20 of plain with K 1",))
    assert headline(PlanVerdict.NO_GO, [off], plan(chat=((1, None, 0),))) == (
        "Switch speculation off: loses at 64 at once"
    )


def test_measure_first_says_what_nobody_knows() -> None:
    base = segment("chat", PlanVerdict.MEASURE_FIRST)

    def words(one: PlannedSegment) -> str:
        return headline(PlanVerdict.MEASURE_FIRST, [one], plan(chat=LIMITED))

    def at_16(**changes: Any) -> PlannedSegment:
        levels = tuple(one.model_copy(update=changes) if one.concurrency == 16 else one for one in base.levels)
        return base.model_copy(update={"levels": levels})

    nothing = level(16, None)
    assert words(at_16(range_problem="beyond")).startswith("Measure first: this engine was not calibrated for 16 ")
    assert "indicative: e2e 0.80 of plain" in words(at_16(range_problem="beyond"))
    worse = at_16(range_problem="beyond", e2e_ratio=level(16, 0.97).e2e_ratio)
    both = headline(PlanVerdict.MEASURE_FIRST, [at_16(range_problem="beyond"), worse], plan(chat=LIMITED))
    assert "indicative: e2e 0.80 to 0.97 of plain" in both
    assert words(at_16(range_problem="beyond", e2e_ratio=nothing.e2e_ratio)).endswith("for 16 requests at once")
    unknown = base.acceptance.model_copy(update={"origin": AcceptanceOrigin.UNKNOWN})
    assert "nobody measured how many" in words(base.model_copy(update={"acceptance": unknown}))
    wide = at_16(e2e_ratio=level(16, 1.02).e2e_ratio)
    assert "it may gain or lose at 16 requests at once (e2e 0.92 to 1.12 of plain)" in words(wide)


def test_segments_that_differ_are_named() -> None:
    go, off = segment("code", PlanVerdict.GO), segment("chat", PlanVerdict.NO_GO, reasons=("loses at 8 at once: x",))
    assert headline(PlanVerdict.GO, [go, off], plan(code=LIMITED, chat=((1, None, 0),))) == (
        "For code speculate with K 3 up to 48 requests at once; for chat switch speculation off: loses at 8 at once"
    )
    other = segment("text", PlanVerdict.GO)
    both = headline(PlanVerdict.GO, [go, other], plan(code=LIMITED, text=((1, None, 1),)))
    assert both == "Speculate, with another K by load for each segment"
