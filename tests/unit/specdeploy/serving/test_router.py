"""K for a request: explicit, planned, or off with its reason."""

import pytest

from specdeploy.contract import ConstrainedPolicy, DeploymentPlan, DraftLenRange, Method, SegmentPlan
from specdeploy.serving.router import route

PLAN = DeploymentPlan(
    deployment="d",
    source="config",
    method=Method.NGRAM,
    max_draft_len=5,
    segments=(
        SegmentPlan(
            segment="edit",
            ranges=(
                DraftLenRange(min_in_flight=1, max_in_flight=4, draft_len=5),
                DraftLenRange(min_in_flight=5, max_in_flight=16, draft_len=2),
            ),
        ),
        SegmentPlan(
            segment="chat",
            ranges=(DraftLenRange(min_in_flight=1, max_in_flight=None, draft_len=0),),
            off_reason="measured slower",
        ),
    ),
    default=SegmentPlan(segment="other", ranges=(DraftLenRange(min_in_flight=1, max_in_flight=None, draft_len=3),)),
)


@pytest.mark.parametrize(("in_flight", "draft_len"), [(1, 5), (4, 5), (5, 2), (16, 2), (17, 0)])
def test_the_plan_decides_by_load(in_flight: int, draft_len: int) -> None:
    routed = route(PLAN, segment="edit", num_draft_tokens=None)
    assert routed.draft_len(in_flight) == draft_len
    assert routed.off_reason == "load"


def test_an_off_segment_says_why() -> None:
    routed = route(PLAN, segment="chat", num_draft_tokens=None)
    assert (routed.draft_len(1), routed.off_reason) == (0, "measured slower")


def test_unknown_segments_get_the_default() -> None:
    assert route(PLAN, segment="never heard of", num_draft_tokens=None).draft_len(9) == 3


@pytest.mark.parametrize(("asked", "draft_len"), [(0, 0), (2, 2), (99, 5)])
def test_an_explicit_number_decides_alone_and_is_capped(asked: int, draft_len: int) -> None:
    routed = route(PLAN, segment="chat", num_draft_tokens=asked)
    assert routed.draft_len(1) == routed.draft_len(1000) == draft_len
    assert routed.off_reason == "requested"


@pytest.mark.parametrize(
    ("policy", "asked", "is_canary", "draft_len", "off_reason"),
    [
        ("off", None, False, 0, "constrained"),
        ("off", 4, True, 0, "constrained"),
        ("off", 0, False, 0, "requested"),
        ("canary", None, False, 0, "constrained"),
        ("canary", None, True, 0, "constrained"),
        ("canary", 4, False, 0, "constrained"),
        ("canary", 4, True, 4, "requested"),
        ("canary", 0, True, 0, "requested"),
        ("on", None, False, 5, "load"),
        ("on", 4, False, 4, "requested"),
        ("on", 0, False, 0, "requested"),
    ],
)
def test_constrained_requests_are_drafted_for_as_the_policy_says(
    policy: str, asked: int | None, is_canary: bool, draft_len: int, off_reason: str
) -> None:
    plan = PLAN.model_copy(update={"constrained": ConstrainedPolicy(policy)})
    routed = route(plan, segment="edit", num_draft_tokens=asked, is_constrained=True, is_canary=is_canary)
    assert (routed.draft_len(1), routed.off_reason) == (draft_len, off_reason)
    plain = route(plan, segment="edit", num_draft_tokens=asked, is_canary=is_canary)
    assert plain.draft_len(1) == (5 if asked is None else asked)
