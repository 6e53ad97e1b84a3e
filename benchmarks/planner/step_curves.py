"""The published curves of one engine's verify step and parallel drafter, with its jump beyond the recorded graphs.

A target and its drafter measured as a whole, fitted to sizes that are powers of two; every other size is predicted.
"""

from collections.abc import Sequence
from dataclasses import replace

from cells import Cell
from scoring import Prediction
from setups import Setup, TauRule

from specdeploy.planner.calibrate import CalibrationSubject, StepObservation, fit_measured
from specdeploy.planner.measured_times import MeasuredStepTimes
from specdeploy.planner.step_times import StepLoad, uniform_load
from specdeploy.planner_contract import Calibration

VERIFY = Setup(
    series="dspark-verify",
    title="DeepSeek-V4-Flash, four B300, vLLM: verify step of 1 to 16384 tokens",
    kind="step",
    engine="vllm",
    hardware="b300",
    tau=TauRule.PUBLISHED,
)
DRAFT = replace(VERIFY, series="dspark-draft", title="the same: parallel drafter for 1 to 256 requests")
LARGEST_GRAPH = 1024  # the post: graphs up to 1024 tokens, beyond them without


def fit_curves(verify: Sequence[Cell], draft: Sequence[Cell]) -> Calibration:
    """One calibration of both: recorded sizes as published, and the seconds more of a step beyond the last."""
    recorded = [_verify(cell) for cell in verify if cell.rows <= LARGEST_GRAPH]
    subject = CalibrationSubject(VERIFY.series, VERIFY.hardware, VERIFY.engine, verify[0].source)
    inside = fit_measured(recorded, subject).model_copy(update={"draft": _fit_drafter(draft, subject).draft})
    beyond = [cell for cell in verify if cell.rows > LARGEST_GRAPH and cell.split == "fit"]
    # The first size beyond the graphs says what leaving them costs; the curve goes on behind that jump.
    first = min(beyond, key=lambda cell: cell.rows)
    eager_s = first.value - MeasuredStepTimes(inside).time(StepLoad(round(first.rows))).seconds(0)
    target = inside.target
    if target is None:
        raise ValueError("a calibration that was measured as a whole has a target")
    tokens, seconds = [*target.curve_tokens], [*target.curve_s]
    for cell in sorted(beyond, key=lambda cell: cell.rows):
        tokens.append(round(cell.rows))
        seconds.append(max(cell.value - eager_s, seconds[-1]))
    return inside.model_copy(
        update={
            "target": target.model_copy(update={"curve_tokens": tuple(tokens), "curve_s": tuple(seconds)}),
            "captured_tokens": tuple(sorted(round(cell.rows) for cell in verify if cell.rows <= LARGEST_GRAPH)),
            "eager_step_s": eager_s,
        }
    )


def predict_curves(cells: Sequence[Cell], calibration: Calibration) -> tuple[Prediction, ...]:
    """Verify steps are the target's pass, draft steps the drafter's."""
    times = MeasuredStepTimes(calibration)
    found = []
    for cell in cells:
        rows = round(cell.rows)
        if cell.draft_len:
            found.append(Prediction(cell, times.draft_s(replace(uniform_load(rows, cell.draft_len), depth=1))))
        else:
            found.append(Prediction(cell, times.time(StepLoad(rows)).seconds(0)))
    return tuple(found)


def _verify(cell: Cell) -> StepObservation:
    # The post varies tokens and says nothing of rows or cached tokens: all cost goes into the curve over tokens.
    held_out = cell.split == "held_out"
    return StepObservation(round(cell.rows), 0, 0, 0, 0, cell.value, is_held_out=held_out)


def _fit_drafter(draft: Sequence[Cell], subject: CalibrationSubject) -> Calibration:
    """The drafter beside a target that takes as long whatever it does: only the drafter's part is kept."""
    target_s = 1.0
    observations = [StepObservation(rows, 0, 0, 0, 0, target_s, 0.0) for rows in (1, 2)]
    for cell in draft:
        rows, held_out = round(cell.rows), cell.split == "held_out"
        # Relative to the drafter's own time, not to the step's: a step counts by one over its seconds.
        weight = ((target_s + cell.value) / cell.value) ** 2
        observations.append(
            StepObservation(rows, rows * cell.draft_len, 1, 0, 0, target_s + cell.value, cell.value, weight, held_out)
        )
    return fit_measured(observations, subject)
