"""Integrity checks pass, fail or stay inconclusive for the right reasons."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from specdeploy.run_contract import Arm, FailureKind, RequestRecord
from specdeploy.verdict_contract import Status
from specdeploy_client.judging import integrity
from specdeploy_client.server_facts import SegmentCounters
from unit.specdeploy_client.fabricate import make_record

SAME = (5, 6, 7)
OTHER = (5, 9, 7)


def _arm(
    arm: Arm, num_prompts: int, *, num_other: int = 0, concurrency: int = 1, ids: Sequence[int] = SAME
) -> list[RequestRecord]:
    drafted = 4 if arm is Arm.ON else 0
    return [
        make_record(
            arm=arm,
            concurrency=concurrency,
            prompt_id=f"p{index}",
            ids=OTHER if index < num_other else ids,
            steps=3,
            drafted=drafted,
            accepted=drafted // 4,
            speculation="on" if drafted else "off:request",
        )
        for index in range(num_prompts)
    ]


def test_float32_identity_passes() -> None:
    check = integrity.check_outputs(_arm(Arm.OFF, 9) + _arm(Arm.ON, 9), "float32")
    assert (check.status, check.num_compared, check.num_different) == (Status.PASS, 9, 0)


def test_float32_fails_on_one_difference_and_names_its_place() -> None:
    check = integrity.check_outputs(_arm(Arm.OFF, 9) + _arm(Arm.ON, 9, num_other=1), "float32")
    assert (check.status, check.num_different) == (Status.FAIL, 1)
    assert "chat at concurrency 1, prompt p0, token 1: off 6, on 9" in check.detail


def test_an_answer_that_ends_early_is_a_difference() -> None:
    on = [r.model_copy(update={"output_ids": SAME[:2]}) for r in _arm(Arm.ON, 9)]
    check = integrity.check_outputs(_arm(Arm.OFF, 9) + on, "float32")
    assert "token 2: off 7, on the end" in check.detail


def test_bfloat16_without_floor_is_inconclusive_when_answers_differ() -> None:
    records = _arm(Arm.OFF, 9) + _arm(Arm.ON, 9, num_other=2)
    check = integrity.check_outputs(records, "bfloat16")
    assert check.status is Status.INCONCLUSIVE
    assert "no floor" in check.detail
    assert integrity.check_outputs(_arm(Arm.OFF, 9) + _arm(Arm.ON, 9), "bfloat16").status is Status.PASS


def test_bfloat16_beside_a_floor_of_the_same_rate_passes_with_both_rates() -> None:
    records = _arm(Arm.OFF, 20) + _arm(Arm.ON, 20, num_other=8) + _arm(Arm.FLOOR, 20, num_other=7, concurrency=4)
    check = integrity.check_outputs(records, "bfloat16")
    assert check.status is Status.PASS
    assert "8 of 20 answers differ on/off, 7 of 20 differ off/off" in check.detail


def test_bfloat16_clearly_above_the_floor_fails() -> None:
    records = _arm(Arm.OFF, 20) + _arm(Arm.ON, 20, num_other=18) + _arm(Arm.FLOOR, 20, num_other=2, concurrency=4)
    check = integrity.check_outputs(records, "bfloat16")
    assert check.status is Status.FAIL
    assert "first divergence" in check.detail


def test_the_off_arm_at_two_concurrencies_is_a_floor_too() -> None:
    records = [
        *_arm(Arm.OFF, 9),
        *_arm(Arm.ON, 9, num_other=3),
        *_arm(Arm.OFF, 9, num_other=3, concurrency=4),
        *_arm(Arm.ON, 9, num_other=3, concurrency=4),
    ]
    assert integrity.check_outputs(records, "bfloat16").status is Status.PASS


def test_unknown_dtype_or_nothing_to_compare_is_inconclusive() -> None:
    assert integrity.check_outputs(_arm(Arm.OFF, 9) + _arm(Arm.ON, 9), None).status is Status.INCONCLUSIVE
    assert integrity.check_outputs(_arm(Arm.ON, 9), "float32").status is Status.INCONCLUSIVE


def test_same_tokens_with_another_text_fail() -> None:
    on = [r.model_copy(update={"text": "hell\N{REPLACEMENT CHARACTER}"}) for r in _arm(Arm.ON, 9)]
    check = integrity.check_texts(_arm(Arm.OFF, 9) + on)
    assert check.status is Status.FAIL
    assert "text differs at character 4" in check.detail
    assert integrity.check_texts(_arm(Arm.OFF, 9) + _arm(Arm.ON, 9)).status is Status.PASS


def test_same_tokens_with_another_finish_reason_fail() -> None:
    on = [r.model_copy(update={"finish_reason": "stop"}) for r in _arm(Arm.ON, 9)]
    assert "finish_reason is stop on, length off" in integrity.check_texts(_arm(Arm.OFF, 9) + on).detail


@pytest.mark.parametrize(("reported", "status"), [(3, Status.PASS), (4, Status.FAIL), (None, Status.INCONCLUSIVE)])
def test_delivered_tokens_must_be_the_reported_ones(reported: int | None, status: Status) -> None:
    assert integrity.check_reported_lengths([make_record(reported=reported)]).status is status


def test_message_sizes_must_sum_to_the_ids() -> None:
    assert integrity.check_reported_lengths([make_record(sizes=(1, 1, 2), ids=SAME)]).status is Status.FAIL


def test_arms_must_be_what_they_claim() -> None:
    assert integrity.check_drafting(_arm(Arm.OFF, 9) + _arm(Arm.ON, 9)).status is Status.PASS
    lazy = [r.model_copy(update={"num_draft_tokens": 0, "speculation": "off:load"}) for r in _arm(Arm.ON, 9)]
    check = integrity.check_drafting(_arm(Arm.OFF, 9) + lazy)
    assert check.status is Status.FAIL
    assert "off:load" in check.detail
    idle = [r.model_copy(update={"num_draft_tokens": 0, "speculation": "on"}) for r in _arm(Arm.ON, 9)]
    assert integrity.check_drafting(_arm(Arm.OFF, 9) + idle).status is Status.INCONCLUSIVE
    eager = [r.model_copy(update={"num_draft_tokens": 2}) for r in _arm(Arm.OFF, 9)]
    assert "off arm drafted" in integrity.check_drafting(eager + _arm(Arm.ON, 9)).detail


def test_server_counters_must_equal_client_sums() -> None:
    records = _arm(Arm.OFF, 9) + _arm(Arm.ON, 9)
    right = {
        "chat": SegmentCounters(num_drafts=9, num_draft_tokens=36, num_accepted_tokens=9),
        "other": SegmentCounters(5),
    }
    assert integrity.check_server_counters(records, right).status is Status.PASS
    wrong = {"chat": SegmentCounters(num_drafts=9, num_draft_tokens=36, num_accepted_tokens=8)}
    check = integrity.check_server_counters(records, wrong)
    assert check.status is Status.FAIL
    assert "counted 36 drafted and 8 accepted, told this client 36 and 9" in check.detail


def test_server_counters_that_cannot_be_compared_are_inconclusive() -> None:
    records = _arm(Arm.OFF, 9)
    assert integrity.check_server_counters(records, None).status is Status.INCONCLUSIVE
    failed = [*records, make_record(error="timeout")]
    assert integrity.check_server_counters(failed, {}).status is Status.INCONCLUSIVE
    more = {"chat": SegmentCounters(num_drafts=99, num_draft_tokens=360, num_accepted_tokens=90)}
    check = integrity.check_server_counters(_arm(Arm.ON, 9), more)
    assert check.status is Status.INCONCLUSIVE
    assert "another client" in check.detail
    uncounted = [make_record(drafted=None, accepted=None)]
    assert integrity.check_server_counters(uncounted, {}).status is Status.INCONCLUSIVE


def test_the_report_is_the_worst_of_its_checks_and_lands_in_both_places(tmp_path: Path) -> None:
    records = _arm(Arm.OFF, 9) + _arm(Arm.ON, 9, num_other=1)
    counters = {"chat": SegmentCounters(9, 36, 9)}
    report = integrity.check_integrity(
        records, deployment="demo", build_id="b1", dtype="float32", server_counters=counters, created_at="now"
    )
    assert report.status is Status.FAIL
    paths = integrity.write_integrity(report, tmp_path / "artifacts", tmp_path / "engines")
    assert paths == (tmp_path / "artifacts/integrity.json", tmp_path / "engines/integrity/b1-demo.json")
    assert {path.read_text() for path in paths} == {report.model_dump_json(indent=2) + "\n"}


def test_no_records_prove_nothing() -> None:
    report = integrity.check_integrity(
        [], deployment="demo", build_id=None, dtype="float32", server_counters={}, created_at="now"
    )
    assert report.status is Status.INCONCLUSIVE


def test_a_server_that_went_away_proves_nothing_and_a_refusal_fails() -> None:
    def with_failure(failure: FailureKind | None) -> Status:
        changes = {"error": "gone", "failure": failure}
        records = _arm(Arm.OFF, 3)
        return integrity.check_requests_finished([*records, records[0].model_copy(update=changes)]).status

    assert with_failure(FailureKind.UNREACHABLE) is Status.INCONCLUSIVE
    assert with_failure(FailureKind.CANCELLED) is Status.INCONCLUSIVE
    assert with_failure(FailureKind.REFUSED) is Status.FAIL
    assert with_failure(FailureKind.STREAM_CLOSED) is Status.FAIL


def test_without_token_ids_answers_are_compared_as_texts() -> None:
    def textual(records: list[RequestRecord], text: str = "same") -> list[RequestRecord]:
        return [record.model_copy(update={"output_ids": (), "text": text}) for record in records]

    off, on = textual(_arm(Arm.OFF, 9)), textual(_arm(Arm.ON, 9))
    check = integrity.check_outputs(off + on, "float32")
    assert (check.status, check.num_compared) == (Status.PASS, 9)
    assert "the server sends no token ids" in check.detail
    check = integrity.check_outputs(off + textual(_arm(Arm.ON, 9), "some"), "float32")
    assert (check.status, check.num_different) == (Status.FAIL, 9)
    assert "text differs at character 1: 'ome' on, 'ame' off" in check.detail
    assert integrity.check_texts(off + on).status is Status.INCONCLUSIVE
    assert integrity.check_reported_lengths(off + on).status is Status.PASS


def test_a_server_that_says_nothing_of_drafts_is_no_proof_against_them() -> None:
    silent = {"num_draft_tokens": None, "num_accepted_tokens": None, "num_steps": None, "speculation": None}
    records = [record.model_copy(update=silent) for record in _arm(Arm.OFF, 3) + _arm(Arm.ON, 3)]
    check = integrity.check_drafting(records)
    assert check.status is Status.INCONCLUSIVE
    assert "server says: nothing" in check.detail
