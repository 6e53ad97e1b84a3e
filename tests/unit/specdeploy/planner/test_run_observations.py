"""A client run as observed steps, and the cells that say nothing of a step."""

import pytest

from helpers.run_summaries import cell, comparison, percentiles, run_summary, void
from specdeploy.planner.run_observations import observations_of
from specdeploy.run_contract import Acceptance, Arm, CellSummary, Load, RunSummary, VoidCode

ACCEPTED = Acceptance(
    num_steps=100, num_draft_tokens=300, num_accepted_tokens=150, acceptance_rate=0.5, mean_acceptance_length=2.5
)


def measured(arm: Arm, concurrency: int, tpot_ms: float, acceptance: Acceptance | None) -> CellSummary:
    plain = cell(arm, Load(concurrency), num_input_tokens=4000, num_output_tokens=1280, acceptance=acceptance)
    return plain.model_copy(update={"tpot_ms": percentiles(tpot_ms)})


def off(concurrency: int) -> CellSummary:
    return measured(Arm.OFF, concurrency, 20.0, None)


def on(concurrency: int) -> CellSummary:
    return measured(Arm.ON, concurrency, 12.0, ACCEPTED)


def left_out_of(summary: RunSummary) -> str:
    seen = observations_of(summary)
    assert seen.observations == ()
    return "\n".join(seen.left_out)


def test_a_step_takes_tpot_times_what_it_accepts() -> None:
    plain, drafting = observations_of(run_summary(cells=[off(1), on(1)])).observations
    assert (plain.num_rows, plain.num_draft_tokens, plain.depth) == (1, 0, 0)
    assert (drafting.num_rows, drafting.num_draft_tokens, drafting.depth) == (1, 3, 3)
    assert (plain.seconds, drafting.seconds) == pytest.approx((0.020, 0.030))
    assert plain.kv_tokens == 100 + 32 / 2


def test_other_prompts_are_read_in_the_mean_step() -> None:
    plain, drafting = observations_of(run_summary(cells=[off(4), on(4)])).observations
    assert plain.prefill_tokens == round(3 * 100 / 32)
    assert drafting.prefill_tokens == drafting.draft_prefill_tokens == round(3 * 100 / (32 / 2.5))
    assert plain.draft_prefill_tokens == 0


def test_a_message_per_step_is_timed_as_a_step() -> None:
    per_step = {"icl_ms": percentiles(31.0), "tokens_per_message": 2.49}
    (drafting,) = observations_of(run_summary(cells=[on(4).model_copy(update=per_step)])).observations
    assert drafting.seconds == pytest.approx(0.031)
    assert drafting.prefill_tokens == 0


def test_messages_of_single_tokens_are_no_steps() -> None:
    per_token = {"icl_ms": percentiles(0.1), "tokens_per_message": 1.0}
    (drafting,) = observations_of(run_summary(cells=[on(4).model_copy(update=per_token)])).observations
    assert drafting.seconds == pytest.approx(0.030)


def test_queued_levels_are_left_out_and_named() -> None:
    text = left_out_of(run_summary(cells=[off(8), on(8)], effective_concurrency=4))
    assert "chat at concurrency 8, on: more than the 4 requests" in text


def test_void_cells_are_left_out_and_named() -> None:
    reasons = [void(VoidCode.ERRORS, "3 of 40")]
    summary = run_summary([comparison(load=Load(2), voids=reasons)], cells=[off(2), on(2)])
    assert "void (requests failed: 3 of 40)" in left_out_of(summary)


def test_an_open_loop_has_no_rows() -> None:
    assert "open loop" in left_out_of(run_summary(cells=[cell(Arm.OFF, Load(None, 2.0))]))


def test_without_counts_of_acceptance_steps_are_unknown() -> None:
    assert "how many tokens a step accepted" in left_out_of(run_summary(cells=[cell(Arm.ON, Load(2))]))


def test_the_noise_floor_is_no_arm_of_its_own() -> None:
    assert left_out_of(run_summary(cells=[cell(Arm.FLOOR, Load(2))])) == ""
