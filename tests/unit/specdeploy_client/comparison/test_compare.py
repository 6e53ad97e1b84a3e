"""Cells compare by pairs, and void themselves with a named reason instead of printing a ratio that misleads."""

from collections.abc import Sequence

import pytest

from specdeploy.run_contract import (
    Arm,
    Comparison,
    FailureKind,
    Load,
    MetricName,
    Percentile,
    RequestRecord,
    VoidCode,
    VoidReason,
)
from specdeploy_client.comparison.compare import compare_arms, compare_cell, group_cells, has_drafted, pair_by_prompt
from specdeploy_client.comparison.stats import CONFIDENCE
from specdeploy_client.comparison.voids import VoidFacts
from unit.specdeploy_client.fabricate import make_cell, make_columns, make_record

KEY = ("chat", Load(1))


def _arms(records: Sequence[RequestRecord]) -> tuple[Sequence[RequestRecord], Sequence[RequestRecord]]:
    (arms,) = group_cells(records).values()
    return arms[Arm.OFF], arms[Arm.ON]


def _compare(records: Sequence[RequestRecord], **facts: object) -> tuple[Comparison, ...]:
    off, on = map(make_columns, _arms(records))
    return compare_cell(KEY, off, on, facts=VoidFacts(**facts), seed=0)  # type: ignore[arg-type]


def _median(comparisons: Sequence[Comparison], metric: MetricName = MetricName.E2E) -> Comparison:
    (found,) = (c for c in comparisons if (c.metric, c.percentile) == (metric, Percentile.P50))
    return found


@pytest.mark.parametrize("metric", [MetricName.E2E, MetricName.TPOT])
def test_a_faster_on_arm_is_faster(metric: MetricName) -> None:
    comparison = _median(_compare(make_cell(speedup=2.0)), metric)
    assert comparison.void_reasons == ()
    assert comparison.outcome == "faster"
    assert (comparison.num_pairs, comparison.confidence, comparison.load) == (20, CONFIDENCE, Load(1))
    assert comparison.ratio == pytest.approx(0.5, abs=0.05)
    assert comparison.median_request_ratio == pytest.approx(0.5, abs=0.05)
    assert comparison.num_pairs_needed is None


def test_a_slower_on_arm_is_slower() -> None:
    assert _median(_compare(make_cell(speedup=0.7))).outcome == "slower"


def test_an_undecided_cell_says_how_many_pairs_would_decide_it() -> None:
    comparison = _median(_compare(make_cell(speedup=1.01)), MetricName.TPOT)
    assert comparison.outcome == "undecided"
    assert comparison.num_pairs_needed is not None
    assert comparison.num_pairs_needed > 20


def test_pairs_are_still_needed_for_the_limit_that_a_gate_asks_for() -> None:
    off, on = map(make_columns, _arms(make_cell(speedup=2.0)))
    ratio = compare_arms(KEY, off, on, MetricName.E2E, seed=0).ratio
    assert ratio is not None
    strict = compare_arms(KEY, off, on, MetricName.E2E, seed=0, limit=1.003 * ratio)
    limits = {MetricName.E2E: 1.003 * ratio}
    assert _median(compare_cell(KEY, off, on, facts=VoidFacts(), seed=0, limits=limits)) == strict
    assert strict.outcome == "faster"
    assert strict.num_pairs_needed is not None
    assert strict.num_pairs_needed > 20


def test_percentiles_are_compared_where_the_pairs_support_them() -> None:
    few, more = make_cell(num_pairs=20), make_cell(num_pairs=100, num_tokens=5)
    assert {c.percentile for c in _compare(few)} == {Percentile.P50}
    assert {c.percentile for c in _compare(more)} == {Percentile.P50, Percentile.P90}
    off, on = map(make_columns, _arms(more))
    wanted = compare_cell(KEY, off, on, facts=VoidFacts(), seed=0, percentiles=(Percentile.P99,))
    assert {c.percentile for c in wanted} == {Percentile.P50}
    refused = compare_arms(KEY, off, on, MetricName.TTFT, Percentile.P99, seed=0)
    assert refused.ratio is None
    assert str(*refused.void_reasons) == ("too few pairs: 100 with ttft in both arms, at least 1000 are needed for p99")


def test_too_few_pairs_void_the_comparison() -> None:
    comparison = _median(_compare(make_cell(num_pairs=7)))
    assert comparison.outcome == "void"
    assert str(*comparison.void_reasons) == "too few pairs: 7 with e2e in both arms, at least 8 are needed for p50"


def test_a_void_cell_has_no_ratio_for_any_metric() -> None:
    records = make_cell()
    records[0] = records[0].model_copy(update={"error": "too long", "failure": FailureKind.REFUSED})
    for comparison in _compare(records):
        assert str(*comparison.void_reasons) == "requests failed: 1 of 40"
        assert (comparison.ratio, comparison.ci_low, comparison.ci_high) == (None, None, None)
        assert comparison.num_pairs == 19


def test_reasons_given_are_kept_and_none_is_named_twice() -> None:
    off, on = map(make_columns, _arms(make_cell(num_pairs=7)))
    given = VoidReason(code=VoidCode.SENT_LATE, detail="all of them")
    few = compare_arms(KEY, off, on, MetricName.E2E, seed=0).void_reasons
    comparison = compare_arms(KEY, off, on, MetricName.E2E, seed=0, reasons=(given, *few))
    assert comparison.void_reasons == (given, *few)


def test_an_open_loop_keeps_its_rate() -> None:
    off, on = map(make_columns, _arms(make_cell(concurrency=None, request_rate=2.5)))
    comparison = compare_arms(("chat", Load(None, 2.5)), off, on, MetricName.E2E, seed=0)
    assert comparison.load == Load(None, 2.5)


def test_pairs_by_prompt_meet_by_block_and_repeats_meet_in_order() -> None:
    off = [make_record(prompt_id="a", block=0, send_ms=1), make_record(prompt_id="a", block=0, send_ms=2)]
    on = [
        make_record(prompt_id="a", block=0, send_ms=4, arm=Arm.ON),
        make_record(prompt_id="a", block=0, send_ms=3, arm=Arm.ON),
        make_record(prompt_id="b", block=0, arm=Arm.ON),
    ]
    pairs = pair_by_prompt(off, on, same_block=True)
    assert [(left.send_ns, right.send_ns) for left, right in pairs] == [(1e6, 3e6), (2e6, 4e6)]


def test_only_answers_are_paired_by_prompt() -> None:
    off = [make_record(prompt_id="a", error="refused"), make_record(prompt_id="b")]
    on = [make_record(prompt_id="a", arm=Arm.ON), make_record(prompt_id="b", arm=Arm.ON, failure=FailureKind.CANCELLED)]
    assert pair_by_prompt(off, on, same_block=True) == []


def test_drafting_is_seen_in_counts_or_in_the_servers_word() -> None:
    assert has_drafted([make_record(drafted=4), make_record(drafted=0)])
    assert not has_drafted([make_record(drafted=0, speculation="on")])
    assert has_drafted([make_record(speculation="on")])
    assert not has_drafted([make_record(speculation="on"), make_record(speculation="off:load")])
