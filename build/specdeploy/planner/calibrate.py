"""From observed steps to a Calibration: an engine measured as a whole, or its overheads on top of kernel tables.

Both are least squares of relative errors with coefficients that are never negative: a step may cost nothing more for
something, but never less. Held-out observations are predicted and never fitted to.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Protocol

import numpy as np

from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.least_squares import bounded, non_negative
from specdeploy.planner.observed_steps import CalibrationSubject, StepObservation, hold_out
from specdeploy.planner.step_curve import captured, curve_of, curve_points, ramps
from specdeploy.planner.step_times import StepLoad, StepTime
from specdeploy.planner_contract import (
    CalibratedRange,
    Calibration,
    MeasuredDraft,
    MeasuredTarget,
    Overheads,
    Residual,
)

__all__ = [
    "CalibrationSubject",
    "KernelTimes",
    "StepObservation",
    "fit_measured",
    "fit_overheads",
    "hold_out",
    "with_residuals",
]

_DRAFT_FEATURES = 5
_MIN_MEASURED = 6  # below that a curve, rows and a drafter are guesses
_MAX_TARGET_SCALE = 10.0


class KernelTimes(Protocol):
    """Kernels of a step without any overheads, the target's and the drafter's apart."""

    def target_kernels(self, load: StepLoad) -> StepTime:
        """The target's pass."""
        ...

    def draft_kernels(self, load: StepLoad) -> StepTime:
        """All passes of the drafter; nothing where the load drafts nothing."""
        ...


# --- measured as a whole --------------------------------------------------------------------------------------------


def fit_measured(
    observations: Sequence[StepObservation], subject: CalibrationSubject, *, captured_tokens: tuple[int, ...] = ()
) -> Calibration:
    """Target and drafter measured as a whole; `captured_tokens` as in `Calibration`.

    Where `draft_seconds` are known, drafter and target are fitted to their own parts. Raises ConfigError that names
    what is missing.
    """
    fitted = [one for one in observations if not one.is_held_out]
    _refuse(subject, _missing_for_measured(fitted))
    points = curve_points([round(captured(one.num_tokens, captured_tokens)) for one in fitted])
    equations: list[tuple[list[float], float, float]] = []  # features, seconds, scale
    for one in fitted:
        scale = one.weight**0.5 / one.seconds
        target, draft = _target_features(one, points, captured_tokens), _draft_features(one)
        if one.draft_seconds is None:
            equations.append((target + draft, one.seconds, scale))
        else:
            equations.append((target + [0.0] * _DRAFT_FEATURES, one.seconds - one.draft_seconds, scale))
            equations.append(([0.0] * len(target) + draft, one.draft_seconds, scale))
    coefficients = non_negative(equations)
    curve, rest = coefficients[: len(points)], coefficients[len(points) : -_DRAFT_FEATURES]
    row_s, kv_token_s, pair_s = (float(value) for value in rest)
    if not curve[0] > 0:
        _refuse(subject, ["steps of few tokens: those seen say that the smallest takes no time"])
    idle_s, first_s, depth_s, token_s, prefill_token_s = (float(value) for value in coefficients[-_DRAFT_FEATURES:])
    calibration = _calibration(
        subject,
        observations,
        target=MeasuredTarget(
            curve_tokens=points,
            curve_s=curve_of(curve),
            row_s=row_s,
            kv_token_s=kv_token_s,
            pair_s=pair_s,
        ),
        draft=MeasuredDraft(
            idle_s=idle_s, first_s=first_s, depth_s=depth_s, token_s=token_s, prefill_token_s=prefill_token_s
        ),
        captured_tokens=captured_tokens,
    )
    features = [_target_features(one, points, captured_tokens) + _draft_features(one) for one in observations]
    return with_residuals(calibration, observations, [float(np.dot(row, coefficients)) for row in features])


def _target_features(one: StepObservation, points: Sequence[int], sizes: Sequence[int]) -> list[float]:
    """[n + 3]: the curve's pieces, further rows, cached tokens, pairs of a token read and a token cached before it."""
    tokens_per_row = 1 + one.num_draft_tokens / one.num_rows if one.num_rows else 1.0
    pairs = one.kv_tokens * tokens_per_row + one.prefill_context * one.prefill_tokens
    rows = float(max(one.num_rows - 1, 0))
    return [*ramps(captured(one.num_tokens, sizes), points), rows, one.kv_tokens + one.prefill_context, pairs]


def _draft_features(one: StepObservation) -> list[float]:
    """[5]: every step, steps that draft, depth, draft tokens, prompt tokens."""
    return [1.0, float(one.num_draft_tokens > 0), one.depth, one.num_draft_tokens, one.draft_prefill_tokens]


def _missing_for_measured(fitted: Sequence[StepObservation]) -> list[str]:
    missing: list[str] = []
    if len(fitted) < _MIN_MEASURED:
        missing.append(f"observations: {len(fitted)} to fit to, at least {_MIN_MEASURED} are needed")
    if not any(one.num_draft_tokens == 0 for one in fitted):
        missing.append("steps without drafts, which drafting is compared with")
    if len({round(one.num_tokens) for one in fitted}) < 2:
        missing.append("steps of different sizes in tokens")
    return missing


# --- overheads on top of kernels ------------------------------------------------------------------------------------


def fit_overheads(
    kernels: KernelTimes,
    observations: Sequence[StepObservation],
    subject: CalibrationSubject,
    *,
    min_target_scale: float = 1.0,
    draft_scale: float | None = 1.0,
    captured_tokens: tuple[int, ...] = (),
    passes_of: Callable[[float], float] = lambda depth: depth,
) -> Calibration:
    """What the engine adds to its kernels.

    Kernels are not faster in an engine than alone, so their scale starts at `min_target_scale`. `draft_scale` None is
    fitted too. `passes_of` a depth: the drafter's passes one after the other, as many as deep for a chain. What the
    observations cannot tell apart for want of variation stays 0: costs per row where all have as many rows, costs per
    drafter pass where all draft as deep. Raises ConfigError that names what is missing.
    """
    fitted = [one for one in observations if not one.is_held_out]
    _refuse(subject, [] if len(fitted) >= 2 else [f"observations: {len(fitted)} to fit to, at least 2 are needed"])
    target_s = [_kernel_seconds(kernels.target_kernels(one.load), one) for one in observations]
    draft_s = [_kernel_seconds(kernels.draft_kernels(one.load), one) for one in observations]
    passes = [passes_of(one.depth) for one in observations]
    features = [_overhead_features(*each) for each in zip(observations, target_s, draft_s, passes, strict=True)]
    lower, upper = [min_target_scale] + [0.0] * 6, [max(_MAX_TARGET_SCALE, 2 * min_target_scale)] + [np.inf] * 6
    for index in _untold(fitted, {passes_of(one.depth) for one in fitted if one.num_draft_tokens > 0}):
        upper[index] = 0.0
    if draft_scale is not None:
        lower[5] = upper[5] = draft_scale
    scales = np.array([one.weight**0.5 / one.seconds for one in fitted])
    matrix = np.array([row for row, one in zip(features, observations, strict=True) if not one.is_held_out])
    found = bounded(matrix * scales[:, None], np.array([one.seconds for one in fitted]) * scales, lower, upper)
    overheads = Overheads(
        target_scale=found[0],
        step_s=found[1],
        row_s=found[2],
        speculation_s=found[3],
        speculation_row_s=found[4],
        draft_scale=found[5],
        draft_step_s=found[6],
    )
    calibration = _calibration(subject, observations, overheads=overheads, captured_tokens=captured_tokens)
    return with_residuals(calibration, observations, [float(np.dot(row, found)) for row in features])


def _kernel_seconds(time: StepTime, one: StepObservation) -> float:
    return time.seconds(one.kv_tokens, one.prefill_context)


def _overhead_features(one: StepObservation, target_s: float, draft_s: float, passes: float) -> list[float]:
    """[7], in the order of the fields of `Overheads`."""
    drafts = float(one.num_draft_tokens > 0)
    return [target_s, 1.0, one.num_rows, drafts, drafts * one.num_rows, draft_s, passes]


def _untold(fitted: Sequence[StepObservation], passes: Set[float]) -> list[int]:
    """Coefficients that these observations, drafting in so many passes, cannot tell from another one."""
    drafting = [one for one in fitted if one.num_draft_tokens > 0]
    untold: list[int] = []
    if len({one.num_rows for one in fitted}) < 2:
        untold.append(2)
    if not drafting:
        untold.append(3)
    if len({one.num_rows for one in drafting}) < 2:
        untold.append(4)
    if len(passes) < 2:
        untold.append(6)
    return untold


# --- both -----------------------------------------------------------------------------------------------------------


def _calibration(
    subject: CalibrationSubject,
    observations: Sequence[StepObservation],
    *,
    overheads: Overheads | None = None,
    target: MeasuredTarget | None = None,
    draft: MeasuredDraft | None = None,
    captured_tokens: tuple[int, ...] = (),
) -> Calibration:
    return Calibration(
        name=subject.name,
        hardware=subject.hardware,
        engine=subject.engine,
        engine_version=subject.engine_version,
        target_reference=subject.target_reference,
        method=subject.method,
        dtype=subject.dtype,
        threads=subject.threads,
        overheads=overheads,
        target=target,
        draft=draft,
        captured_tokens=captured_tokens,
        range=CalibratedRange(
            max_rows=max(max(one.num_rows for one in observations), 1),
            max_draft_len=max(round(one.depth) for one in observations),
            max_step_tokens=max(round(one.num_tokens) for one in observations),
        ),
        median_relative_error=0.0,
        p90_relative_error=0.0,
        source=subject.source,
    )


def with_residuals(
    calibration: Calibration, observations: Sequence[StepObservation], predicted_s: Iterable[float]
) -> Calibration:
    """The calibration with every observation's residual, and the errors of the held-out ones (of all where none is)."""
    residuals = tuple(
        Residual(
            num_rows=one.num_rows,
            draft_len=round(one.depth),
            context=round(one.kv_tokens / one.num_rows) if one.num_rows else round(one.prefill_context),
            prefill_tokens=one.prefill_tokens,
            measured_s=one.seconds,
            predicted_s=seconds,
            is_held_out=one.is_held_out,
        )
        for one, seconds in zip(observations, predicted_s, strict=True)
    )
    judged = [one for one in residuals if one.is_held_out] or residuals
    errors = [abs(one.relative_error) for one in judged]
    return calibration.model_copy(
        update={
            "residuals": residuals,
            "median_relative_error": float(np.median(errors)),
            "p90_relative_error": float(np.percentile(errors, 90)),
        }
    )


def _refuse(subject: CalibrationSubject, missing: Sequence[str]) -> None:
    if missing:
        remedy = "Measure more loads: several concurrencies, with and without speculation."
        raise ConfigError([Violation(subject.source, "", f"no calibration without {one}", remedy) for one in missing])
