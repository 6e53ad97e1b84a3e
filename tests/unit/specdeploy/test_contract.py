"""Rules that live in the contract types themselves."""

import pytest
from pydantic import ValidationError

from specdeploy.contract import SUPPORTED, DraftLenRange, FileDigest, Lane, Method, SegmentPlan, unsupported_reason
from specdeploy.run_contract import Comparison, MetricName, Percentile, Percentiles, VoidCode, VoidReason


def test_types_are_frozen_and_refuse_unknown_keys() -> None:
    digest = FileDigest(path="a", sha256="00", num_bytes=1)
    with pytest.raises(ValidationError, match="frozen"):
        digest.path = "b"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        FileDigest.model_validate({"path": "a", "sha256": "00", "num_bytes": 1, "size": 1})


def test_every_lane_and_method_is_served_or_refused_by_name() -> None:
    for lane in Lane:
        for method in Method:
            reason = unsupported_reason(lane, method)
            assert (reason is None) == ((lane, method) in SUPPORTED)
            assert reason is None or (lane in reason and method in reason)


def test_the_lanes_that_are_made_for_gpus_serve_what_upstream_documents() -> None:
    methods = {lane: {method for served, method in SUPPORTED if served is lane} for lane in Lane}
    assert {str(method) for method in methods[Lane.TRTLLM_ENGINE]} == {
        "draft_model",
        "medusa",
        "eagle",
        "redrafter",
        "lookahead",
    }
    assert {str(method) for method in methods[Lane.TRTLLM_LLMAPI]} == {"eagle3", "draft_model", "ngram", "mtp"}
    assert set(Method) - methods[Lane.TORCH] == {Method.REDRAFTER, Method.LOOKAHEAD}


def test_draft_len_is_zero_outside_every_range() -> None:
    ranges = (
        DraftLenRange(min_in_flight=2, max_in_flight=4, draft_len=3),
        DraftLenRange(min_in_flight=8, max_in_flight=None, draft_len=1),
    )
    plan = SegmentPlan(segment="chat", ranges=ranges)
    assert [plan.draft_len(load) for load in (1, 2, 4, 5, 8, 999)] == [0, 3, 3, 0, 1, 1]


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (0.5, 0.9, "faster"),
        (1.1, 1.2, "slower"),
        (0.9, 1.1, "undecided"),
        (0.5, 1.0, "undecided"),
        (None, None, "void"),
    ],
)
def test_what_an_interval_says(low: float | None, high: float | None, outcome: str) -> None:
    comparison = Comparison(
        segment="chat",
        concurrency=1,
        metric=MetricName.E2E,
        ratio=low,
        ci_low=low,
        ci_high=high,
        confidence=0.95,
        num_pairs=9,
    )
    assert comparison.outcome == outcome
    assert (
        comparison.model_copy(update={"void_reasons": (VoidReason(code=VoidCode.ERRORS, detail="1 of 2"),)}).outcome
        == "void"
    )


def test_percentiles() -> None:
    values = Percentiles(p50=1.0, p90=2.0, p99=None, num_samples=20)
    assert [values.value(percentile) for percentile in Percentile] == [1.0, 2.0, None, None]
    assert [percentile.quantile for percentile in Percentile] == [0.5, 0.9, 0.95, 0.99]
