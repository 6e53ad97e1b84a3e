"""Fits find the truth behind observed steps, judge themselves by held-out ones, and say what is missing."""

from dataclasses import replace

import pytest

from helpers.observed_steps import (
    SUBJECT,
    TRUE_DRAFT,
    TRUE_KV_TOKEN_S,
    TRUE_PAIR_S,
    TRUE_ROW_S,
    MadeUpKernels,
    true_curve_s,
    whole_observations,
)
from specdeploy.errors import ConfigError
from specdeploy.planner.calibrate import StepObservation, fit_measured, fit_overheads, hold_out
from specdeploy.planner.measured_times import MeasuredStepTimes
from specdeploy.planner.step_curve import captured
from specdeploy.planner.step_times import StepLoad, uniform_load
from specdeploy.planner_contract import Calibration, Overheads


def rising_curve(calibration: Calibration) -> tuple[float, ...]:
    assert calibration.target is not None
    return calibration.target.curve_s


# --- measured as a whole --------------------------------------------------------------------------------------------


def test_a_known_engine_is_found_again() -> None:
    calibration = fit_measured(tuple(whole_observations()), SUBJECT)
    target, draft = calibration.target, calibration.draft
    assert target is not None
    assert draft is not None
    assert (target.row_s, target.kv_token_s, target.pair_s) == pytest.approx(
        (TRUE_ROW_S, TRUE_KV_TOKEN_S, TRUE_PAIR_S), rel=0.02
    )
    assert draft.model_dump() == pytest.approx(TRUE_DRAFT, rel=1e-3)
    assert [*target.curve_s] == pytest.approx([true_curve_s(tokens) for tokens in target.curve_tokens], rel=0.01)
    assert calibration.p90_relative_error < 0.01


def test_held_out_steps_are_predicted_through_noise_and_never_fitted_to() -> None:
    seen = hold_out(tuple(whole_observations(noise=0.05)), 0.3)
    calibration = fit_measured(seen, SUBJECT)
    held_out = [one for one in calibration.residuals if one.is_held_out]
    assert len(held_out) == round(0.3 * len(seen))
    assert len(calibration.residuals) == len(seen)
    assert calibration.median_relative_error < 0.04
    assert calibration.p90_relative_error < 0.08
    spoiled = [replace(one, seconds=9.0, draft_seconds=1.0) if one.is_held_out else one for one in seen]
    assert fit_measured(spoiled, SUBJECT).target == calibration.target


def test_steps_that_are_padded_are_fitted_by_what_is_computed() -> None:
    sizes = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256)
    padded = []
    for one in whole_observations():
        gap_s = true_curve_s(captured(one.num_tokens, sizes)) - true_curve_s(one.num_tokens)
        padded.append(replace(one, seconds=one.seconds + gap_s))
    calibration = fit_measured(hold_out(padded, 0.3), SUBJECT, captured_tokens=sizes)
    assert calibration.captured_tokens == sizes
    assert calibration.p90_relative_error < 0.02
    assert fit_measured(hold_out(padded, 0.3), SUBJECT).p90_relative_error > calibration.p90_relative_error


def test_the_whole_step_alone_tells_the_whole_step() -> None:
    calibration = fit_measured(hold_out(tuple(whole_observations(knows_draft=False)), 0.3), SUBJECT)
    assert calibration.p90_relative_error < 0.02


def test_a_curve_never_falls_whatever_was_seen() -> None:
    falling = [replace(one, seconds=1.0 / (1 + one.num_tokens), draft_seconds=None) for one in whole_observations()]
    curve = rising_curve(fit_measured(falling, SUBJECT))
    assert list(curve) == sorted(curve)


def test_a_calibration_promises_what_was_seen() -> None:
    limits = fit_measured(tuple(whole_observations()), SUBJECT).range
    assert (limits.max_rows, limits.max_draft_len, limits.max_step_tokens) == (8, 4, 130)


@pytest.mark.parametrize(
    ("chosen", "missing"),
    [
        (
            lambda one: False,
            r"a test: no calibration without observations: 0 to fit to, at least 6 are needed\. Measure",
        ),
        (lambda one: one.num_draft_tokens > 0, "steps without drafts"),
        (lambda one: one.num_tokens == 8, "steps of different sizes"),
    ],
)
def test_what_is_missing_is_named(chosen: object, missing: str) -> None:
    assert callable(chosen)
    with pytest.raises(ConfigError, match=missing):
        fit_measured([one for one in whole_observations() if chosen(one)], SUBJECT)


def test_the_ends_are_never_held_out() -> None:
    seen = hold_out(tuple(whole_observations()), 0.6, random_seed=3)
    kept = [one for one in seen if not one.is_held_out]
    for key in ("num_tokens", "num_rows", "num_draft_tokens", "kv_tokens"):
        values = [getattr(one, key) for one in seen]
        assert {min(values), max(values)} <= {getattr(one, key) for one in kept}


def test_the_same_seed_holds_out_the_same() -> None:
    seen = tuple(whole_observations())
    assert hold_out(seen, 0.3, random_seed=1) == hold_out(seen, 0.3, random_seed=1)
    assert hold_out(seen, 0.3, random_seed=1) != hold_out(seen, 0.3, random_seed=2)


# --- overheads ------------------------------------------------------------------------------------------------------

TRUE_OVERHEADS = Overheads(
    target_scale=1.2, step_s=1e-3, row_s=2e-5, speculation_s=8e-4, speculation_row_s=4e-5, draft_step_s=3e-4
)


def engine_observations(own: Overheads = TRUE_OVERHEADS) -> list[StepObservation]:
    kernels = MadeUpKernels()
    seen = []
    for rows in (1, 4, 16, 64):
        for k in (0, 1, 3, 5):
            load, kv_tokens = uniform_load(rows, k), 1000.0 * rows
            seconds = own.target_scale * kernels.target_kernels(load).seconds(kv_tokens) + own.step_s + own.row_s * rows
            if k:
                seconds += own.speculation_s + own.speculation_row_s * rows + own.draft_step_s * k
                seconds += own.draft_scale * kernels.draft_kernels(load).seconds(kv_tokens)
            seen.append(StepObservation(rows, rows * k, k, kv_tokens, 0, seconds))
    return seen


def overheads_of(calibration: Calibration) -> Overheads:
    assert calibration.overheads is not None
    return calibration.overheads


def test_known_overheads_are_found_again() -> None:
    calibration = fit_overheads(MadeUpKernels(), hold_out(engine_observations(), 0.3), SUBJECT)
    assert overheads_of(calibration).model_dump() == pytest.approx(TRUE_OVERHEADS.model_dump(), rel=1e-6)
    assert calibration.p90_relative_error < 1e-6


def test_kernels_are_not_faster_in_an_engine_than_alone() -> None:
    faster = engine_observations(Overheads(target_scale=0.5))
    assert overheads_of(fit_overheads(MadeUpKernels(), faster, SUBJECT)).target_scale == 1.0
    lower = fit_overheads(MadeUpKernels(), faster, SUBJECT, min_target_scale=0.1)
    assert overheads_of(lower).target_scale == pytest.approx(0.5)


def test_the_drafters_scale_is_fitted_when_asked_for() -> None:
    own = TRUE_OVERHEADS.model_copy(update={"draft_scale": 2.5, "draft_step_s": 0.0})
    fitted = fit_overheads(MadeUpKernels(), engine_observations(own), SUBJECT, draft_scale=None)
    assert overheads_of(fitted).draft_scale == pytest.approx(2.5, rel=1e-3)


def test_what_cannot_be_told_apart_stays_zero() -> None:
    one_row = [one for one in engine_observations() if one.num_rows == 4 and one.depth in (0, 3)]
    fitted = overheads_of(fit_overheads(MadeUpKernels(), one_row, SUBJECT))
    assert (fitted.row_s, fitted.speculation_row_s, fitted.draft_step_s) == (0.0, 0.0, 0.0)
    assert fitted.speculation_s > 0


def test_a_block_drafter_makes_one_pass_however_deep() -> None:
    observations = engine_observations()
    fitted = fit_overheads(MadeUpKernels(), observations, SUBJECT, passes_of=lambda depth: min(depth, 1.0))
    assert overheads_of(fitted).draft_step_s == 0.0  # one pass everywhere: the same as speculation_s


def test_overheads_need_two_observations() -> None:
    with pytest.raises(ConfigError, match="1 to fit to, at least 2"):
        fit_overheads(MadeUpKernels(), engine_observations()[:1], SUBJECT)


# --- as a cost model ------------------------------------------------------------------------------------------------


def test_a_measured_engine_answers_as_it_was_measured() -> None:
    seen = tuple(whole_observations())
    times = MeasuredStepTimes(fit_measured(seen, SUBJECT))
    for one in seen:
        assert times.time(one.load).seconds(one.kv_tokens, one.prefill_context) == pytest.approx(one.seconds, rel=0.02)


def test_the_arithmetic_adds_up() -> None:
    times = MeasuredStepTimes(fit_measured(tuple(whole_observations()), SUBJECT))
    *parts, step = times.explain(4, 3, 400.0)
    assert step.value == pytest.approx(sum(part.value for part in parts))
    assert step.value == pytest.approx(times.time(uniform_load(4, 3)).seconds(400.0))


def test_beyond_what_was_seen_nothing_is_promised() -> None:
    times = MeasuredStepTimes(fit_measured(tuple(whole_observations()), SUBJECT))
    assert times.range_problem(8, 4) is None
    assert times.range_problem(9, 0) == "9 rows: the calibration saw at most 8"
    assert times.range_problem(1, 5) == "5 draft tokens per row: the calibration saw at most 4"


def test_the_ridge_is_where_a_step_takes_twice_its_start() -> None:
    times = MeasuredStepTimes(fit_measured(tuple(whole_observations()), SUBJECT))
    assert times.ridge_tokens == pytest.approx((2 * true_curve_s(1) - 0.024) / 0.0005, rel=0.05)


def test_steps_are_rounded_up_to_recorded_graphs_and_dearer_beyond_them() -> None:
    plain = fit_measured(tuple(whole_observations()), SUBJECT)
    captured = MeasuredStepTimes(plain.model_copy(update={"captured_tokens": (8, 16), "eager_step_s": 0.5}))
    assert captured.target_s(StepLoad(5, 5)) == pytest.approx(captured.target_s(StepLoad(5, 11)))
    assert captured.target_s(StepLoad(5, 12)) > 0.5


def test_overheads_alone_are_no_cost_model() -> None:
    with pytest.raises(ValueError, match="holds overheads"):
        MeasuredStepTimes(fit_overheads(MadeUpKernels(), engine_observations(), SUBJECT))
