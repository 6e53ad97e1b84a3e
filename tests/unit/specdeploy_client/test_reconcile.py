"""The server's counters and the sums over the answers: a difference is said, a missing source is none."""

import pytest

from specdeploy.run_contract import Arm, CellConditions, RequestRecord
from specdeploy_client.reconcile import CounterIncrease, counter_increase, counter_mismatch, reconcile
from specdeploy_client.records.table import ArmColumns
from specdeploy_client.server_facts import SegmentCounters, ServerFacts
from unit.specdeploy_client.fabricate import make_cell, make_columns, make_record

RECORDS = make_cell(num_pairs=4)
DRAFTED = sum(record.num_draft_tokens or 0 for record in RECORDS)
ACCEPTED = sum(record.num_accepted_tokens or 0 for record in RECORDS)
STEPS = sum(record.num_steps or 0 for record in RECORDS)


def _arms(records: list[RequestRecord]) -> dict[Arm, ArmColumns]:
    return {arm: make_columns([record for record in records if record.arm is arm]) for arm in (Arm.OFF, Arm.ON)}


def _conditions(drafts: int | None, drafted: int | None, accepted: int | None) -> CellConditions:
    return CellConditions(
        segment="chat",
        concurrency=1,
        num_drafts=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        accepted_per_pos=None,
    )


def test_equal_counts_agree() -> None:
    conditions = _conditions(17, DRAFTED, ACCEPTED)
    assert counter_mismatch(conditions, _arms(RECORDS)) is None
    assert reconcile(conditions, _arms(RECORDS)) == conditions


def test_every_difference_is_said_with_both_numbers() -> None:
    text = counter_mismatch(_conditions(STEPS + 1, DRAFTED + 5, 0), _arms(RECORDS))
    assert text == (
        f"drafted tokens: {DRAFTED + 5} counted by the server, {DRAFTED} in the answers; "
        f"accepted tokens: 0 counted by the server, {ACCEPTED} in the answers; "
        f"drafts: {STEPS + 1} counted by the server in {STEPS} steps of the answers"
    )
    assert reconcile(_conditions(0, DRAFTED + 5, ACCEPTED), _arms(RECORDS)).counter_mismatch is not None


def test_a_server_without_counters_is_no_mismatch() -> None:
    assert counter_mismatch(_conditions(None, None, None), _arms(RECORDS)) is None


def test_answers_without_counts_are_no_mismatch() -> None:
    uncounted = [record.model_copy(update={"num_draft_tokens": None}) for record in RECORDS]
    assert counter_mismatch(_conditions(17, 999, ACCEPTED), _arms(uncounted)) is None


@pytest.mark.parametrize(("more", "is_mismatch"), [(7, False), (0, False), (-1, True)])
def test_failed_requests_let_the_server_count_more_but_not_less(more: int, is_mismatch: bool) -> None:
    failed = make_record(arm=Arm.ON, error="timeout", index=99)
    text = counter_mismatch(_conditions(STEPS + 3, DRAFTED + more, ACCEPTED), _arms([*RECORDS, failed]))
    assert (text is not None) is is_mismatch


def test_increase_of_one_segment() -> None:
    before = ServerFacts(counters={"chat": SegmentCounters(10, 40, 15, (10, 5)), "other": SegmentCounters(3, 9, 9)})
    after = ServerFacts(counters={"chat": SegmentCounters(12, 48, 20, (12, 8)), "other": SegmentCounters(9, 9, 9)})
    assert counter_increase(before, after, "chat") == CounterIncrease(2, 8, 5, (2, 3))


def test_increase_of_a_server_without_segments_is_that_of_everything() -> None:
    before = ServerFacts(whole_server={"num_draft_tokens": 5}, whole_server_per_pos=(1,))
    after = ServerFacts(whole_server={"num_draft_tokens": 9, "num_accepted_tokens": 3}, whole_server_per_pos=(4, 2))
    assert counter_increase(before, after, "chat") == CounterIncrease(None, 4, 3, (3, 2))
    assert counter_increase(ServerFacts(), ServerFacts(), "chat") == CounterIncrease()


def test_the_share_of_cached_tokens_is_that_of_the_cell() -> None:
    before = ServerFacts(num_prompt_tokens=1000, num_cached_tokens=900)
    after = ServerFacts(num_prompt_tokens=1400, num_cached_tokens=1000)
    assert counter_increase(before, after, "chat").cached_share == pytest.approx(100 / 400)
    again = ServerFacts(num_prompt_tokens=1400, num_cached_tokens=100)
    assert counter_increase(before, again, "chat").cached_share is None


def test_a_server_that_was_started_again_says_nothing() -> None:
    before = ServerFacts(counters={"chat": SegmentCounters(10, 40, 15)})
    after = ServerFacts(counters={"chat": SegmentCounters(2, 60, 1)})
    assert counter_increase(before, after, "chat") == CounterIncrease()
