"""Every drafter of a series fitted to the cells that may be fitted to: a Calibration and its tokens per step.

A drafter's calibration is fitted together with the plain decoding of its series. Where the source gives ratios alone,
plain steps are first taken from elsewhere, and the ratios stand for so many times as much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cells import Cell
from evaluating import FittedArm
from predicting import TauOf, load_of, observed_seconds, published_tau, step_seconds
from scipy.optimize import minimize, minimize_scalar
from setups import Setup, TauRule

from specdeploy.errors import ConfigError
from specdeploy.planner.calibrate import (
    CalibrationSubject,
    StepObservation,
    fit_measured,
    fit_overheads,
    with_residuals,
)
from specdeploy.planner.closed_form import expected_tokens
from specdeploy.planner.cost import KernelStepTimes
from specdeploy.planner.draft_shape import DraftShape
from specdeploy.planner.hardware_records import load_hardware, load_kernel_tables
from specdeploy.planner.kernel_tables import KernelTables
from specdeploy.planner.measured_times import MeasuredStepTimes
from specdeploy.planner.step_times import StepLoad, StepTime, StepTimes, uniform_load
from specdeploy.planner_contract import CalibratedRange, Calibration, HardwareRecord, Overheads

REPOSITORY = Path(__file__).parents[2]
CONFIGS = REPOSITORY / "configs"
# A plain step that is taken as known weighs as many observations.
_ANCHOR_WEIGHT = 25.0
_MAX_FREE_TAU = 12.0
_IMPOSSIBLE = 1e3


@dataclass(frozen=True, slots=True)
class Fitted:
    """An arm, and the calibration that predicts it."""

    arm: FittedArm
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class BareKernels:
    """Kernels without an engine, the target's and the drafter's apart."""

    plain: KernelStepTimes
    drafting: KernelStepTimes

    def target_kernels(self, load: StepLoad) -> StepTime:
        return self.plain.time(load)

    def draft_kernels(self, load: StepLoad) -> StepTime:
        whole, target = self.drafting.time(load), self.plain.time(load)
        return StepTime(whole.fixed_s - target.fixed_s, whole.kv_token_s - target.kv_token_s)


def fit_series(setup: Setup, cells: Sequence[Cell], plain: Calibration | None = None) -> dict[str, Fitted]:
    """By arm; "plain" too where it was published. `plain` gives the plain steps of a series that has only ratios."""
    arms = [arm for arm in dict.fromkeys(cell.arm for cell in cells) if arm != "plain"]
    fitted: dict[str, Fitted] = {}
    for arm in arms:
        own = [cell for cell in cells if cell.arm in (arm, "plain")]
        fitted[arm] = _fit_arm(setup, arm, own, plain)
    if any(cell.arm == "plain" for cell in cells):
        fitted["plain"] = fitted[arms[0]] if arms else _fit_arm(setup, "plain", cells, plain)
    return fitted


def fit_plain(setup: Setup, cells: Sequence[Cell]) -> Calibration:
    """Plain decoding alone, on kernel tables."""
    own = [cell for cell in cells if cell.arm == "plain" and cell.split == "fit"]
    observations = [_observation(cell, 0, cell.value and observed_seconds(cell, 1.0, None)) for cell in own]
    if len(observations) == 1:  # one number tells one constant
        observations *= 2
    return fit_overheads(_bare(setup, None), observations, _subject(setup, "plain", own))


def _fit_arm(setup: Setup, arm: str, cells: Sequence[Cell], plain: Calibration | None) -> Fitted:
    free = [cell for cell in cells if cell.arm != "plain" and cell.split == "fit"]

    def fitted(tau_of: TauOf) -> Fitted:
        calibration = _calibrated(setup, arm, cells, tau_of, plain)
        return Fitted(FittedArm(_times(setup, arm, calibration), tau_of), calibration)

    def misfit(tau_of: TauOf) -> float:
        try:
            residuals = _calibrated(setup, arm, cells, tau_of, plain).residuals
        except ConfigError:  # no step can be as short as this tau says
            return _IMPOSSIBLE
        return sum(one.relative_error**2 for one in residuals if not one.is_held_out)

    match setup.tau:
        case TauRule.PUBLISHED:
            return fitted(published_tau)
        case TauRule.ASSUMED:
            assumed = setup.assumed_tau or 1.0
            return fitted(lambda _, draft_len: assumed if draft_len else 1.0)
        case TauRule.PER_ARM:
            highest = min(max(cell.draft_len for cell in free) + 1.0, _MAX_FREE_TAU)
            found = minimize_scalar(lambda tau: misfit(_constant(tau)), bounds=(1.05, highest), method="bounded")
            return fitted(_constant(float(found.x)))
        case TauRule.ALPHA:
            found = minimize_scalar(lambda alpha: misfit(_independent(alpha)), bounds=(0.05, 0.99), method="bounded")
            return fitted(_independent(float(found.x)))
        case TauRule.DECAYING:
            best = minimize(
                lambda point: misfit(_decaying(*point)) if _is_decaying(*point) else _IMPOSSIBLE,
                [0.75, 0.95],
                method="Nelder-Mead",
                options={"xatol": 1e-4, "fatol": 1e-6},
            )
            return fitted(_decaying(*(float(value) for value in best.x)))


def _constant(tau: float) -> TauOf:
    return lambda _, draft_len: tau if draft_len else 1.0


def _independent(alpha: float) -> TauOf:
    return lambda _, draft_len: expected_tokens(alpha, draft_len)


def _is_decaying(first: float, decay: float) -> bool:
    return 0 < first < 1 and 0.3 < decay <= 1.0


def _decaying(first: float, decay: float) -> TauOf:
    """Position i is accepted after i - 1 accepted ones with probability first x decay^(i - 1)."""

    def tau_of(_: Cell, draft_len: int) -> float:
        survival, tau = 1.0, 1.0
        for position in range(draft_len):
            survival *= first * decay**position
            tau += survival
        return tau

    return tau_of


def _calibrated(setup: Setup, arm: str, cells: Sequence[Cell], tau_of: TauOf, plain: Calibration | None) -> Calibration:
    subject = _subject(setup, arm, cells)
    plain_times = None if plain is None else _times(setup, arm, plain)
    observations = [_observed(cell, tau_of, plain_times) for cell in cells]
    if setup.target is None:
        return fit_measured(observations, subject)
    anchors = []
    if plain_times is not None:
        rows = sorted({round(cell.rows) for cell in cells if cell.metric == "ratio" and cell.split == "fit"})
        anchors = [_anchor(plain_times, num_rows, cells[0].context) for num_rows in rows]
    calibration = fit_overheads(_bare(setup, setup.drafts[arm]), [*observations, *anchors], subject)
    times = _times(setup, arm, calibration)
    seconds = [times.time(one.load).seconds(one.kv_tokens) for one in observations]
    return with_residuals(calibration, observations, seconds)


def _observed(cell: Cell, tau_of: TauOf, plain_times: StepTimes | None) -> StepObservation:
    # Of several K the source took the best; the shortest is what it was here, or the search for a better would begin.
    draft_len = _observed_length(cell)
    plain_s = step_seconds(plain_times, cell, 0) if cell.metric == "ratio" and plain_times is not None else None
    return _observation(cell, draft_len, observed_seconds(cell, tau_of(cell, draft_len), plain_s))


def _observed_length(cell: Cell) -> int:
    if len(cell.draft_lens) == 1:
        return cell.draft_len
    return max(cell.draft_lens) if cell.depth == 1 else min(cell.draft_lens)


def _observation(cell: Cell, draft_len: int, seconds: float) -> StepObservation:
    load = load_of(cell, draft_len, max(round(cell.rows), 1))
    return StepObservation(
        num_rows=load.num_rows,
        num_draft_tokens=load.num_draft_tokens,
        depth=load.depth,
        kv_tokens=load.num_rows * cell.context,
        prefill_tokens=0,
        seconds=seconds,
        is_held_out=cell.split == "held_out",
    )


def _anchor(times: StepTimes, num_rows: int, context: int) -> StepObservation:
    seconds = times.time(uniform_load(num_rows, 0)).seconds(num_rows * context)
    return StepObservation(num_rows, 0, 0, num_rows * context, 0, seconds, weight=_ANCHOR_WEIGHT)


def _subject(setup: Setup, arm: str, cells: Sequence[Cell]) -> CalibrationSubject:
    sources = sorted({cell.source for cell in cells})
    return CalibrationSubject(
        name=setup.names.get(arm, f"{setup.series}, {arm}"),
        hardware=setup.hardware,
        engine=setup.engine,
        source=f"{'; '.join(sources)}; fitted by benchmarks/planner/published.py, series {setup.series}, {arm}",
        target_reference=setup.target_reference,
        method=setup.methods.get(arm),
        dtype="bfloat16" if setup.target is not None else None,
    )


def _times(setup: Setup, arm: str, calibration: Calibration) -> StepTimes:
    if setup.target is None:
        return MeasuredStepTimes(calibration)
    return kernel_times(setup, setup.drafts.get(arm), calibration)


def kernel_times(setup: Setup, draft: DraftShape | None, calibration: Calibration) -> KernelStepTimes:
    """The cost model of a series with known shapes."""
    if setup.target is None:
        raise ValueError(f"{setup.series} has no shapes")
    record, tables = _device(setup.hardware, setup.engine)
    return KernelStepTimes(setup.target, draft, record, tables, setup.tensor_parallel, calibration)


@cache
def _device(name: str, engine: str) -> tuple[HardwareRecord, KernelTables]:
    return load_hardware(name, CONFIGS), load_kernel_tables(load_hardware(name, CONFIGS), CONFIGS / "hardware", engine)


def _bare(setup: Setup, draft: DraftShape | None) -> BareKernels:
    nothing = Calibration(
        name="none",
        hardware=setup.hardware,
        engine=setup.engine,
        overheads=Overheads(),
        range=CalibratedRange(max_rows=1, max_draft_len=0, max_step_tokens=1),
        median_relative_error=0.0,
        p90_relative_error=0.0,
        source="kernels alone",
    )
    return BareKernels(kernel_times(setup, None, nothing), kernel_times(setup, draft, nothing))
