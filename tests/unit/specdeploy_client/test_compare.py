"""Cells pair by prompt, and void themselves with a named reason instead of printing a ratio that misleads."""

import pytest

from specdeploy.run_contract import Arm, Comparison, Load, MetricName, RequestRecord, VoidCode
from specdeploy_client.compare import compare_arms, group_cells, pair_by_prompt, summarise_arm
from unit.specdeploy_client.fabricate import make_cell, make_record


def _compare(records: list[RequestRecord], metric: MetricName = MetricName.E2E) -> Comparison:
    arms = group_cells(records)["chat", Load(1)]
    return compare_arms(("chat", Load(1)), arms[Arm.OFF], arms[Arm.ON], metric, 0)


def _with(records: list[RequestRecord], arm: Arm, **changes: object) -> list[RequestRecord]:
    return [record.model_copy(update=changes) if record.arm is arm else record for record in records]


@pytest.mark.parametrize("metric", [MetricName.E2E, MetricName.TPOT])
def test_a_faster_on_arm_is_faster(metric: MetricName) -> None:
    comparison = _compare(make_cell(speedup=2.0), metric)
    assert comparison.void_reasons == ()
    assert comparison.outcome == "faster"
    assert comparison.num_pairs == 20
    assert comparison.ratio == pytest.approx(0.5, abs=0.05)


def test_a_slower_on_arm_is_slower() -> None:
    assert _compare(make_cell(speedup=0.7)).outcome == "slower"


def test_nothing_drafted_voids_the_cell() -> None:
    comparison = _compare(_with(make_cell(), Arm.ON, num_draft_tokens=0, num_accepted_tokens=0))
    assert comparison.outcome == "void"
    assert _codes(comparison) == [VoidCode.NOTHING_DRAFTED]
    assert comparison.ratio is None


def test_where_drafts_cannot_be_counted_the_servers_word_counts() -> None:
    uncounted = _with(make_cell(), Arm.ON, num_draft_tokens=None, num_accepted_tokens=None)
    assert _compare(uncounted).outcome == "faster"
    assert _compare(_with(uncounted, Arm.ON, speculation="off:load")).outcome == "void"


def test_a_drafting_off_arm_voids_the_cell() -> None:
    assert _codes(_compare(_with(make_cell(), Arm.OFF, num_draft_tokens=3))) == [VoidCode.OFF_ARM_DRAFTED]


def test_any_error_voids_the_cell() -> None:
    records = make_cell()
    records[0] = records[0].model_copy(update={"error": "timeout"})
    assert str(*_compare(records).void_reasons) == "requests failed: 1 of 40"


def test_different_output_lengths_void_the_cell() -> None:
    records = make_cell(num_tokens=9)
    shorter = [
        record.model_copy(
            update={"message_ns": record.message_ns[:-1], "message_tokens": (record.message_tokens or ())[:-1]}
        )
        if record.arm is Arm.ON
        else record
        for record in records
    ]
    reason = str(*_compare(shorter).void_reasons)
    assert reason == "output lengths differ: by more than 2 %: 180 tokens off, 140 on"


def test_too_few_pairs_void_the_cell() -> None:
    comparison = _compare(make_cell(num_pairs=7))
    assert str(*comparison.void_reasons) == "too few pairs: 7, at least 8 are needed"


def test_pairs_meet_by_block_and_prompt_and_repeats_meet_in_order() -> None:
    off = [make_record(prompt_id="a", block=0, send_ms=1), make_record(prompt_id="a", block=0, send_ms=2)]
    on = [
        make_record(prompt_id="a", block=0, send_ms=4, arm=Arm.ON),
        make_record(prompt_id="a", block=0, send_ms=3, arm=Arm.ON),
        make_record(prompt_id="b", block=0, arm=Arm.ON),
    ]
    pairs = pair_by_prompt(off, on, same_block=True)
    assert [(left.send_ns, right.send_ns) for left, right in pairs] == [(1e6, 3e6), (2e6, 4e6)]


def test_failed_requests_count_as_errors_and_never_as_latencies() -> None:
    records = [make_record(arm=Arm.ON) for _ in range(20)] + [make_record((9e6,), (1,), arm=Arm.ON, error="refused")]
    summary = summarise_arm("chat", Load(1), Arm.ON, records)
    assert (summary.num_requests, summary.num_errors, summary.e2e_ms.num_samples) == (21, 1, 20)
    assert summary.e2e_ms.p50 == 70.0
    assert summary.e2e_ms.p90 is None


def _codes(comparison: Comparison) -> list[VoidCode]:
    return [reason.code for reason in comparison.void_reasons]
