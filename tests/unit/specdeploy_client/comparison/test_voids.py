"""Every reason against comparing a cell is found where it is planted, and what a server does not report is none."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from specdeploy.run_contract import Arm, FailureKind, MetricName, Percentile, RequestRecord, VoidCode
from specdeploy_client.comparison.voids import CHECKS, VoidFacts, few_pairs, void_reasons
from specdeploy_client.records.table import ArmColumns
from unit.specdeploy_client.fabricate import make_cell, make_columns, make_record

Change = Callable[[RequestRecord], dict[str, object]]
MS = 1_000_000


def _reasons(
    off: Sequence[RequestRecord] | ArmColumns, on: Sequence[RequestRecord] | ArmColumns, facts: VoidFacts | None = None
) -> list[str]:
    columns = [arm if isinstance(arm, ArmColumns) else make_columns(arm) for arm in (off, on)]
    return [str(reason) for reason in void_reasons(columns[0], columns[1], facts or VoidFacts())]


def _arms(num_pairs: int = 20, **options: int | float) -> tuple[list[RequestRecord], list[RequestRecord]]:
    records = make_cell(num_pairs=num_pairs, **options)  # type: ignore[arg-type]
    return [r for r in records if r.arm is Arm.OFF], [r for r in records if r.arm is Arm.ON]


def _changed(records: Sequence[RequestRecord], change: Change | dict[str, object]) -> list[RequestRecord]:
    return [r.model_copy(update=change(r) if callable(change) else change) for r in records]


def test_a_clean_cell_has_no_reason() -> None:
    assert _reasons(*_arms()) == []


def test_every_code_has_its_question() -> None:
    # The two that are not asked of whole cells' columns by themselves: pairs belong to single percentiles.
    assert set(VoidCode) - set(CHECKS) == {VoidCode.TOO_FEW_PAIRS}


def test_too_few_pairs_are_named_with_metric_and_percentile() -> None:
    assert few_pairs(8, 8, MetricName.E2E, Percentile.P50) == ()
    assert [str(reason) for reason in few_pairs(7, 8, MetricName.E2E, Percentile.P50)] == [
        "too few pairs: 7 with e2e in both arms, at least 8 are needed for p50"
    ]


def test_failed_requests() -> None:
    off, on = _arms()
    on[3] = on[3].model_copy(update={"error": "gone", "failure": FailureKind.TIMEOUT})
    assert _reasons(off, on) == ["requests failed: 1 of 40"]
    assert _reasons(off, on, VoidFacts(max_error_rate=0.05)) == []


def test_a_request_that_the_client_gave_up_did_not_fail() -> None:
    off, on = _arms()
    on[3] = on[3].model_copy(update={"error": "stopped", "failure": FailureKind.CANCELLED})
    assert _reasons(off, on) == []


def test_answers_too_short_to_tell() -> None:
    assert "too few tokens: half of the answers off have fewer than 4" in _reasons(*_arms(num_tokens=3))


def test_answers_shorter_than_asked_for() -> None:
    off, on = (_changed(arm, {"max_tokens": 64, "ignore_eos": True}) for arm in _arms())
    assert _reasons(off, on) == ["too few tokens: 20 of 20 answers off are shorter than asked for"]


def test_nothing_drafted() -> None:
    off, on = _arms()
    assert _reasons(off, _changed(on, {"num_draft_tokens": 0, "num_accepted_tokens": 0})) == [
        "nothing drafted: in the on arm"
    ]


@pytest.mark.parametrize("num_steps", [33, 32])  # the step that reads the prompt is counted, or not
def test_drafts_of_which_not_one_was_kept_are_no_speculation(num_steps: int) -> None:
    off, _ = _arms()
    on = _changed(off, {"arm": Arm.ON, "num_draft_tokens": 10, "num_accepted_tokens": 0, "num_steps": num_steps})
    assert _reasons(off, on) == [
        f"nothing drafted: that was of use: 200 tokens in {20 * num_steps} steps, which gave 660 tokens"
    ]


def test_a_drafter_that_rarely_helps_still_speculates() -> None:
    off, _ = _arms()
    on = _changed(off, {"arm": Arm.ON, "num_draft_tokens": 10, "num_accepted_tokens": 0, "num_steps": 33})
    on[5] = on[5].model_copy(update={"num_accepted_tokens": 1, "num_steps": 32})
    assert _reasons(off, on) == []


def test_a_counter_that_says_zero_is_not_believed_where_steps_gave_more_than_a_token() -> None:
    off, on = _arms()
    assert _reasons(off, _changed(on, {"num_accepted_tokens": 0})) == []


def test_where_drafts_are_not_counted_the_servers_word_counts() -> None:
    off, on = _arms()
    uncounted: dict[str, object] = {"num_draft_tokens": None, "num_accepted_tokens": None}
    assert _reasons(off, _changed(on, uncounted)) == []
    assert _reasons(off, _changed(on, {**uncounted, "speculation": "off:load"})) == [
        "nothing drafted: the server says that 20 of 20 requests were decoded plainly"
    ]


def test_a_server_that_says_nothing_of_drafting_is_not_voided_for_it() -> None:
    silent: dict[str, object] = {
        "num_draft_tokens": None,
        "num_accepted_tokens": None,
        "num_steps": None,
        "speculation": None,
        "input_token_count": None,
        "cached_token_count": None,
    }
    off, on = (_changed(arm, silent) for arm in _arms())
    assert _reasons(off, on) == []


def test_the_off_arm_drafted() -> None:
    off, on = _arms()
    off[0] = off[0].model_copy(update={"num_draft_tokens": 3})
    assert _reasons(off, on) == ["off arm drafted: in 1 of 20 requests; it must be plain decoding"]


def _answers(arm: Arm, lengths: Sequence[int]) -> list[RequestRecord]:
    drafted, steps = (8, 2) if arm is Arm.ON else (0, None)
    return [
        make_record(
            np.linspace(20, 20 + 10 * length, length).tolist(),
            [1] * length,
            arm=arm,
            index=i,
            block=i // 4,
            prompt_id=f"p{i}",
            send_ms=1000.0 * i,
            drafted=drafted,
            steps=steps,
        )
        for i, length in enumerate(lengths)
    ]


def test_output_lengths_differ_in_sum() -> None:
    assert _reasons(_answers(Arm.OFF, [50] * 20), _answers(Arm.ON, [52] * 20)) == [
        "output lengths differ: by more than 2%: 1000 tokens off, 1040 on"
    ]
    assert _reasons(_answers(Arm.OFF, [50] * 20), _answers(Arm.ON, [51] * 20)) == []


def test_output_lengths_of_the_same_sum_differ_in_their_spread() -> None:
    assert _reasons(_answers(Arm.OFF, [50] * 20), _answers(Arm.ON, [25, 75] * 10)) == [
        "output lengths differ: by more than 2%: the sorted lengths by 50.0% of an answer on average"
    ]


def test_lengths_that_flip_by_chance_do_not_differ() -> None:
    lengths = np.random.default_rng(2).integers(20, 80, 40)
    swapped = lengths.copy()
    swapped[:8], swapped[8:16] = lengths[8:16], lengths[:8]
    swapped[20] += 15
    swapped[21] -= 15
    assert _reasons(_answers(Arm.OFF, lengths.tolist()), _answers(Arm.ON, swapped.tolist())) == []


def test_a_prefix_cache_that_answered() -> None:
    off, on = _arms()
    on = _changed(on, {"cached_token_count": 1})
    off = _changed(off, {"cached_token_count": 0})
    warm = "prefix cache warm: 0.0% of the prompt tokens off, 10.0% on came from it"
    assert _reasons(off, on) == [warm]
    assert _reasons(off, on, VoidFacts(expects_reuse=True)) == [
        "prefix cache warm: 0.0% of the prompt tokens off, 10.0% on: not the same in both arms"
    ]
    assert _reasons(_changed(off, {"cached_token_count": 1}), on, VoidFacts(expects_reuse=True)) == []


def _ordered(num_pairs: int, second_ttft: float) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """Pairs whose arms take turns in going first; in the second, first tokens take `second_ttft` of the time."""
    rng = np.random.default_rng(3)
    arms: dict[Arm, list[RequestRecord]] = {Arm.OFF: [], Arm.ON: []}
    for index in range(num_pairs):
        block = index // 5
        order = (Arm.OFF, Arm.ON) if block % 2 == 0 else (Arm.ON, Arm.OFF)
        for place, arm in enumerate(order):
            ttft = 100 * rng.lognormal(0, 0.05) * (second_ttft if place else 1.0)
            times = [ttft + 20 * step for step in range(8)]
            record = make_record(times, [1] * 8, arm=arm, index=index, block=block, prompt_id=f"p{index % 10}")
            shifted = replace_times(record, (1000 * block + 5 * place) * 100 * MS + index * 1000 * MS)
            drafted = 8 if arm is Arm.ON else 0
            arms[arm].append(shifted.model_copy(update={"num_draft_tokens": drafted}))
    return arms[Arm.OFF], arms[Arm.ON]


def replace_times(record: RequestRecord, by_ns: int) -> RequestRecord:
    """The same request, `by_ns` later."""
    return record.model_copy(
        update={
            "scheduled_ns": record.scheduled_ns + by_ns,
            "send_ns": record.send_ns + by_ns,
            "end_ns": record.end_ns + by_ns,
            "message_ns": tuple(at + by_ns for at in record.message_ns),
        }
    )


def test_a_cache_that_nobody_counts_shows_in_the_arm_that_comes_second() -> None:
    off, on = _ordered(40, second_ttft=0.3)
    reasons = _reasons(off, on)
    assert [reason.split(":")[0] for reason in reasons] == ["prefix cache warm", "prompts repeated"]
    assert "in 30% of the time in the arm that sends it second" in reasons[0]
    assert _reasons(off, on, VoidFacts(prefix_cache="off")) == []


def test_repeated_prompts_are_allowed_where_nothing_is_remembered() -> None:
    off, on = _ordered(40, second_ttft=1.0)
    asked = "prompts repeated: 30 of 40 requests off, 30 of 40 on, and "
    # The times of this cell show that the server keeps nothing.
    assert _reasons(off, on) == []
    assert _reasons(off, on, VoidFacts(prefix_cache="on")) == [asked + "the server keeps a prefix cache"]
    remembering = VoidFacts(prefix_cache="off", remembers_outputs=True)
    assert _reasons(off, on, remembering) == [asked + "the drafter learns from answers"]
    assert _reasons(off, on, VoidFacts(prefix_cache="on", expects_reuse=True)) == []
    # Too few pairs to show anything.
    (few,) = _reasons(off[:12], on[:12])
    assert few.endswith("it does not say, and the times do not exclude it")


def test_prompts_that_are_not_as_long_as_asked() -> None:
    off, on = (_changed(arm, {"expected_input_tokens": 10}) for arm in _arms())
    assert _reasons(off, on) == []
    on[4] = on[4].model_copy(update={"input_token_count": 11})
    assert _reasons(off, on) == ["wrong prompt length: 1 of 40 prompts, one of 10 tokens arrived as 11"]
    assert _reasons(_changed(off, {"input_token_count": None}), _changed(on, {"input_token_count": None})) == []


def test_answers_that_run_in_circles() -> None:
    off, on = _arms()
    looping = _changed(on[:3], {"output_ids": (1, 2, 3) * 11})
    assert _reasons(off, [*looping, *on[3:]]) == ["degenerate output: 3 of 20 answers on run in circles"]
    assert _reasons(off, [*looping[:2], *on[2:]]) == []


def test_a_client_without_time_left() -> None:
    arms = _arms()
    assert _reasons(*arms, VoidFacts(client_cpu_share=0.7, wake_up_lag_p99_ms=1.0)) == []
    assert _reasons(*arms, VoidFacts(client_cpu_share=0.93)) == [
        "client saturated: 93% of a core, at most 80% is trusted"
    ]
    (late,) = _reasons(*arms, VoidFacts(wake_up_lag_p99_ms=20.0))
    # 5 % of the median ttft, about 130 ms here.
    assert late.startswith("client saturated: it woke up 20.0 ms late (p99), at most 6.")


def test_requests_sent_late() -> None:
    off, on = _arms(num_pairs=40)
    on[7] = on[7].model_copy(update={"send_ns": on[7].send_ns + 50 * MS})
    assert _reasons(off, on) == []
    on[9] = on[9].model_copy(update={"send_ns": on[9].send_ns + 90 * MS})
    (late,) = _reasons(off, on)
    assert late.startswith("sent late: 2 of 40 requests on by over 6.")
    assert late.endswith(" ms, up to 90.0 ms")


def _slower(record: RequestRecord, factor: float) -> dict[str, object]:
    times = tuple(record.scheduled_ns + round((at - record.scheduled_ns) * factor) for at in record.message_ns)
    return {"message_ns": times, "end_ns": times[-1]}


def test_a_server_that_is_still_warming() -> None:
    off, on = _arms(num_pairs=40)
    cold = _changed(on[:10], lambda record: _slower(record, 1.6))
    (warming,) = _reasons(off, [*cold, *on[10:]])
    assert warming.startswith("server still warming: on, the first quarter took 1.6 times as long as the last half")


def test_a_first_request_that_compiles() -> None:
    off, on = _arms(num_pairs=40)
    times = on[0].message_ns
    late = (on[0].scheduled_ns + 2500 * MS, *(at + 2500 * MS for at in times[1:]))
    on[0] = on[0].model_copy(update={"message_ns": late, "end_ns": late[-1]})
    (warming,) = _reasons(off, on, VoidFacts(concurrency=1))
    assert warming.startswith("server still warming: on, first tokens came after 2500 ms in the first round, ")
    # With four workers it is one of four in its round.
    assert _reasons(off, on, VoidFacts(concurrency=4)) == []


def test_messages_held_back() -> None:
    off, on = _arms()

    def in_one_burst(record: RequestRecord) -> dict[str, object]:
        times = tuple(record.message_ns[-1] + 1000 * i for i in range(len(record.message_ns)))
        return {"message_ns": times, "end_ns": times[-1]}

    assert _reasons(off, [*_changed(on[:1], in_one_burst), *on[1:]]) == []
    (buffered,) = _reasons(_changed(off, in_one_burst), _changed(on, in_one_burst))
    assert buffered == "messages buffered: 20 of 20 answers off came held back or in bursts"


def test_a_run_that_ended_in_this_cell() -> None:
    assert _reasons(*_arms(), VoidFacts(interrupted="the server went away")) == [
        "run interrupted: the server went away"
    ]


def test_an_arm_without_answers_has_no_reason_but_that() -> None:
    off, on = _arms()
    failed: dict[str, object] = {
        "error": "gone",
        "failure": FailureKind.UNREACHABLE,
        "message_ns": (),
        "message_tokens": (),
    }
    facts = replace(VoidFacts(), concurrency=1)
    assert _reasons(off, _changed(on, {**failed, "output_ids": ()}), facts) == ["requests failed: 20 of 40"]


@pytest.mark.parametrize(("share", "is_void"), [(None, False), (0.009, False), (0.4, True)])
def test_cached_tokens_that_only_the_servers_counters_know(share: float | None, is_void: bool) -> None:
    reasons = _reasons(*_arms(), VoidFacts(cached_share=share, prefix_cache="on"))
    assert reasons == (["prefix cache warm: 40.0% of the prompt tokens came from it"] if is_void else [])
    assert _reasons(*_arms(), VoidFacts(cached_share=share, expects_reuse=True)) == []


def test_lengths_that_are_unknown_are_not_compared() -> None:
    off, on = _arms()
    unknown: dict[str, object] = {"message_tokens": None, "output_token_count": None}
    assert _reasons(off, [*_changed(on[:5], unknown), *on[5:]]) == []
