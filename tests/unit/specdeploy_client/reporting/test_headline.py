"""A run in sentences: what was measured, what came out, and where it stops paying."""

from collections.abc import Sequence

import pytest

from helpers.run_summaries import cell, run_summary
from specdeploy.run_contract import Arm, Crossover, Load, MetricName, PlannedDraftLen, RequestRecord
from specdeploy.verdict_contract import SegmentDecision, Status, Verdict
from specdeploy_client.reporting.headline import (
    crossover_lines,
    describe_change,
    describe_crossover,
    describe_run,
    full_stop,
    headline,
    join_words,
    reported_loads,
)
from unit.specdeploy_client.fabricate import make_cell, make_summary

PLANNED = (
    PlannedDraftLen(segment="code_edit", draft_len=4),
    PlannedDraftLen(segment="chat", draft_len=4),
    PlannedDraftLen(segment="summarisation", draft_len=0, off_reason="no gain"),
)


@pytest.fixture(scope="module")
def records() -> list[RequestRecord]:
    return [
        *make_cell("code_edit", 1, speedup=1.9),
        *make_cell("code_edit", 4, speedup=1.4),
        *make_cell("chat", 1, speedup=1.1),
        *make_cell("chat", 4, speedup=0.8),
    ]


def _verdict(*decisions: tuple[str, str, Load], too_small: Sequence[str] = ()) -> Verdict:
    return Verdict(
        deployment="demo",
        status=Status.PASS,
        findings=(),
        decisions=tuple(
            SegmentDecision.model_validate(
                {
                    "segment": segment,
                    "action": action,
                    "detail": "",
                    "is_gain_too_small": segment in too_small,
                    **load._asdict(),
                }
            )
            for segment, action, load in decisions
        ),
    )


def test_two_sentences_say_what_was_measured_and_found(records: list[RequestRecord]) -> None:
    first, second = describe_run(make_summary(records, planned=PLANNED))
    assert first.startswith("160 requests of 2 traffic segments (code_edit, chat) at concurrency 1 and 4 were answered")
    assert "ngram, up to 4 drafted tokens per step" in first
    assert first.endswith("and without it, interleaved, in float32.")
    assert second.startswith(
        "At the expected concurrency of 4, speculation answers faster on code_edit (e2e on/off 0.7"
    )
    assert "speculation answers slower on chat" in second
    assert "nothing was measured on summarisation" in second
    assert second.endswith("In brackets: 99 % intervals.")


def test_ratios_of_queues_are_not_in_the_headline(records: list[RequestRecord]) -> None:
    _, second = describe_run(make_summary(records, planned=PLANNED[:1], effective_concurrency=2))
    assert "only 2 requests of full length run at once, so nothing is decided on code_edit and chat" in second
    assert "0.7" not in second


def test_every_rate_of_an_open_loop_has_its_sentence(records: list[RequestRecord]) -> None:
    rates = {1: 0.5, 4: 2.5}
    open_loop = [
        record.model_copy(update={"concurrency": None, "request_rate": rates[record.concurrency or 0]})
        for record in records
        if record.segment == "code_edit"
    ]
    summary = make_summary(open_loop, planned=())
    first, second = describe_run(summary)
    assert "at 0.5 and 2.5 requests/s" in first
    assert "At 0.5 requests/s, speculation answers faster on code_edit" in second
    assert "At 2.5 requests/s, speculation answers faster on code_edit" in second
    assert reported_loads(summary) == [Load(None, 0.5), Load(None, 2.5)]


def test_an_empty_run_measured_nothing() -> None:
    summary = make_summary([], planned=())
    assert describe_run(summary)[1] == "Nothing was measured."
    assert headline(summary, None) == "Nothing was measured"


def test_a_run_that_ended_before_its_first_request_says_so_whatever_was_planned() -> None:
    summary = make_summary([], planned=PLANNED)
    assert describe_run(summary) == ("No request was measured.", "Nothing was measured.")
    assert headline(summary, None) == "Nothing was measured"


@pytest.mark.parametrize(("arm", "word"), [(Arm.OFF, "without"), (Arm.ON, "with")])
def test_one_arm_alone_is_not_called_both(arm: Arm, word: str) -> None:
    summary = make_summary([record for record in make_cell(concurrency=4) if record.arm is arm])
    first, second = describe_run(summary)
    assert first.startswith(
        f"20 requests of 1 traffic segment (chat) at concurrency 4 were answered {word} speculative"
    )
    assert "the only arm that was measured" in first
    assert "interleaved" not in first
    assert second == f"Only the arm {word} speculation was measured, so nothing was compared."
    assert headline(summary, None) == f"Only the arm {word} speculation was measured: nothing was compared"
    assert headline(summary, _verdict()) == headline(summary, None)


def test_an_imported_run_says_where_it_comes_from_and_not_that_it_was_interleaved() -> None:
    source = {"imported from": "profile_export.jsonl", "measured by": "AIPerf 0.13.0"}
    summary = run_summary((), [cell(Arm.OFF)], planned=(), environment=source, dtype=None)
    first, second = describe_run(summary)
    assert first == (
        "40 requests of 1 traffic segment (chat) at concurrency 4 were answered without speculative decoding, as far "
        "as the file says, in an unreported dtype; imported from profile_export.jsonl, measured by AIPerf 0.13.0."
    )
    assert second == "The imported file holds one arm, so nothing was compared."


def test_a_segment_of_one_arm_beside_one_of_two_is_named_as_that() -> None:
    only_off = [record for record in make_cell("code_edit", 4) if record.arm is Arm.OFF]
    _, second = describe_run(make_summary([*make_cell("chat", 4), *only_off]))
    assert "only the arm without speculation was measured on code_edit" in second


def test_failed_requests_are_not_counted_as_answered() -> None:
    some = [cell(Arm.OFF, num_errors=10), cell(Arm.ON)]
    assert describe_run(run_summary((), some))[0].startswith("70 requests of 1 traffic segment (chat)")
    assert describe_run(run_summary((), some))[0].endswith("; 10 more failed.")
    none = [cell(arm, num_errors=40) for arm in (Arm.OFF, Arm.ON)]
    first, _ = describe_run(run_summary((), none))
    assert first.startswith("All 80 requests of 1 traffic segment (chat) at concurrency 4 failed: with speculative")
    assert "answered" not in first


def test_the_floor_arm_is_no_part_of_the_comparison() -> None:
    cells = [cell(Arm.OFF), cell(Arm.ON), cell(Arm.FLOOR, Load(8))]
    assert describe_run(run_summary((), cells))[0].startswith(
        "80 requests of 1 traffic segment (chat) at concurrency 4 "
    )


def test_arms_that_ran_one_after_the_other_are_not_called_interleaved() -> None:
    note = {"arms not interleaved": "one block of each arm, in chat at concurrency 4"}
    first, _ = describe_run(run_summary((), [cell(Arm.OFF), cell(Arm.ON)], environment=note))
    assert "without it, not interleaved everywhere" in first


def test_a_gain_too_small_for_the_gate_is_no_bare_speculate() -> None:
    at = Load(4)
    verdict = _verdict(("a", "speculate", at), ("b", "speculate", at), ("c", "measure more", at), too_small="ac")
    assert headline(make_summary([]), verdict) == (
        "Speculate for b; speculation is faster, but by less than the gate asks, on a; "
        "speculation is not faster by what the gate asks on c"
    )


def test_a_full_stop_is_never_doubled() -> None:
    assert [full_stop(text) for text in ("gone", "gone.", "gone! ")] == ["gone.", "gone.", "gone!"]


def test_the_headline_is_the_answer() -> None:
    summary = make_summary([])
    at = Load(4)
    assert headline(summary, _verdict(("chat", "speculate", at))) == "Speculate for chat"
    assert headline(summary, _verdict(("chat", "switch off", at))) == "Switch speculation off for chat"
    assert (
        headline(
            summary,
            _verdict(
                ("a", "switch off", at), ("b", "speculate", at), ("c", "measure more", at), ("d", "speculate", at)
            ),
        )
        == "Speculate for b and d; switch it off for a; measure more for c"
    )


def test_a_segment_with_several_rates_names_them() -> None:
    verdict = _verdict(("chat", "speculate", Load(None, 0.5)), ("chat", "switch off", Load(None, 8)))
    assert headline(make_summary([]), verdict) == (
        "Speculate for chat at 0.5 requests/s; switch it off for chat at 8 requests/s"
    )


def test_without_a_verdict_the_headline_is_what_the_intervals_say(records: list[RequestRecord]) -> None:
    summary = make_summary(records, planned=PLANNED)
    assert headline(summary, None) == ("Speculation is faster on code_edit, slower on chat, undecided on summarisation")


@pytest.mark.parametrize(
    ("kind", "at", "words"),
    [
        ("crosses", (11.6, 8.4, 14.9), "faster up to 11.6 [8.4, 14.9] at once"),
        ("crosses", (3.0, None, None), "faster up to 3.0 [below, above 32] at once"),
        ("none up to", (None, None, None), "faster at every level, up to 32 at once"),
        ("never faster", (None, None, None), "not faster at any level"),
        ("undecided", (None, None, None), "not shown to be faster at every level up to 32 at once"),
    ],
)
def test_a_crossover_in_words(kind: str, at: tuple[float | None, float | None, float | None], words: str) -> None:
    crossover = Crossover.model_validate(
        {
            "segment": "chat",
            "metric": "e2e",
            "kind": kind,
            "concurrency": at[0],
            "ci_low": at[1],
            "ci_high": at[2],
            "max_concurrency": 32,
        }
    )
    assert describe_crossover(crossover) == words
    summary = make_summary([]).model_copy(update={"crossovers": (crossover,)})
    assert crossover_lines(summary) == [f"chat: speculation is {words} (e2e), 4 are expected"]
    assert crossover_lines(summary, MetricName.TTFT) == []


def test_words() -> None:
    assert [join_words(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "none",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert [describe_change(ratio) for ratio in (0.62, 1.2, 1.001)] == [
        "38 % less time",
        "20 % more time",
        "the same time",
    ]
