"""Every series predicted and scored."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cells import Cell, Exclusion, read_cells, read_exclusions
from evaluating import FittedArm, Speedup, predictions_of, score_of, score_series, speedups_of
from fitting import Fitted, fit_plain, fit_series, kernel_times
from plain_series import (
    GPT_FAST,
    TRTLLM_H200,
    fit_plain_overheads,
    plain_calibration,
    predict_plain,
    with_speculation,
)
from scoring import Prediction, SeriesScore
from setups import SETUPS, Setup
from shapes import QWEN3_8B, eagle3
from step_curves import DRAFT, VERIFY, fit_curves, predict_curves

from specdeploy.planner.calibrate import StepObservation, with_residuals
from specdeploy.planner_contract import Calibration, Overheads


@dataclass(frozen=True, slots=True)
class Transfer:
    """A series predicted by what an arm of another series, `source`, was fitted to."""

    setup: Setup
    source: str
    arm: str


@dataclass(frozen=True, slots=True)
class Results:
    """`predictions` and `speedups` by series; `calibrations` to keep in files; `taus` fitted, by series and arm."""

    scores: tuple[SeriesScore, ...]
    predictions: dict[str, tuple[Prediction, ...]]
    speedups: dict[str, tuple[Speedup, ...]]
    calibrations: tuple[Calibration, ...]
    taus: dict[str, str]
    exclusions: tuple[Exclusion, ...]


def predict_everything(cells: Sequence[Cell] | None = None) -> Results:
    """Fits every series to its part and predicts all of it."""
    by_series: dict[str, list[Cell]] = {}
    for cell in read_cells() if cells is None else cells:
        by_series.setdefault(cell.series, []).append(cell)
    results = Results((), {}, {}, (), {}, read_exclusions())
    scores: list[SeriesScore] = []
    calibrations: dict[str, Calibration] = {}
    all_fitted: dict[str, dict[str, Fitted]] = {}
    gpt_fast = fit_plain_overheads(GPT_FAST, by_series["gpt-fast-a100"])
    curves = fit_curves(by_series[VERIFY.series], by_series[DRAFT.series])
    for setup in (VERIFY, DRAFT):
        predictions = predict_curves(by_series[setup.series], curves)
        results.predictions[setup.series] = predictions
        scores.append(score_of(setup.series, setup.title, setup.kind, predictions))
    for setup in SETUPS:
        own = by_series[setup.series]
        fitted = all_fitted[setup.series] = fit_series(setup, own, _plain_steps(setup, by_series, gpt_fast))
        arms = {arm: one.arm for arm, one in fitted.items()}
        results.predictions[setup.series] = predictions_of(own, arms)
        results.speedups[setup.series] = speedups_of(own, arms)
        scores.append(score_series(setup.series, setup.title, setup.kind, own, arms))
        calibrations |= {name: fitted[arm].calibration for arm, name in setup.names.items()}
        results.taus.update(_fitted_taus(setup, own, fitted))
    for name, transfer in _transfers().items():
        own, arms = by_series[name], {transfer.arm: _moved(transfer, all_fitted[transfer.source][transfer.arm])}
        results.predictions[name] = predictions_of(own, arms)
        results.speedups[name] = speedups_of(own, arms)
        scores.append(score_series(name, transfer.setup.title, transfer.setup.kind, own, arms))
    plain = predict_plain(GPT_FAST, by_series["gpt-fast-a100"], gpt_fast)
    results.predictions["gpt-fast-a100"] = plain
    scores.append(score_of("gpt-fast-a100", "plain steps of 7B to 70B on one to eight A100, gpt-fast", "tpot", plain))
    score, predictions, calibration = _tensorrt_llm_h200(by_series, calibrations["tensorrt-llm-b200-mtp"])
    results.predictions["trtllm-h200"] = predictions
    scores.append(score)
    kept = (*calibrations.values(), calibration)
    return replace(results, scores=tuple(scores), calibrations=kept)


def _plain_steps(setup: Setup, by_series: dict[str, list[Cell]], gpt_fast: Overheads) -> Calibration | None:
    """Plain steps of a series that published ratios alone."""
    if setup.plain_of is None:
        return None
    if setup.plain_of == "gpt-fast-a100":
        return plain_calibration("gpt-fast", GPT_FAST, gpt_fast, 1, "README of gpt-fast")
    source = next(one for one in SETUPS if one.series == setup.plain_of)
    return fit_plain(source, by_series[source.series])


def _fitted_taus(setup: Setup, cells: Sequence[Cell], fitted: dict[str, Fitted]) -> dict[str, str]:
    """Tokens per step that were fitted or assumed, by K."""
    found = {}
    for arm, one in fitted.items():
        own = next((cell for cell in cells if cell.arm == arm and not cell.taus), None)
        lengths = sorted({cell.draft_len for cell in cells if cell.arm == arm} - {0})
        if own is not None and lengths:
            taus = ", ".join(f"K {length}: {one.arm.tau_of(own, length):.2f}" for length in lengths)
            found[f"{setup.series}, {arm}"] = f"{taus} ({setup.tau.value})"
    return found


def _transfers() -> dict[str, Transfer]:
    """Series that nothing was fitted to."""
    setups = {setup.series: setup for setup in SETUPS}
    title = "Qwen3-8B by the calibration of Llama-3.1-8B, one H100, SGLang, chain of 3, one request"
    other_target = replace(setups["sglang-h100-8b"], title=title, target=QWEN3_8B, drafts={"EAGLE-3": eagle3(QWEN3_8B)})
    title = "Llama-2-7B with TinyLlama on eight H100, by the calibration and acceptance of eight A100"
    other_device = replace(setups["magicdec-7b"], title=title, hardware="h100-sxm")
    return {
        "sglang-h100-qwen3-8b": Transfer(other_target, "sglang-h100-8b", "EAGLE-3"),
        "magicdec-7b-h100": Transfer(other_device, "magicdec-7b", "draft_model"),
    }


def _moved(transfer: Transfer, fitted: Fitted) -> FittedArm:
    setup = transfer.setup
    return FittedArm(kernel_times(setup, setup.drafts[transfer.arm], fitted.calibration), fitted.arm.tau_of)


def _tensorrt_llm_h200(
    by_series: dict[str, list[Cell]], drafting: Calibration
) -> tuple[SeriesScore, tuple[Prediction, ...], Calibration]:
    """Plain steps of 405B fitted to, of 70B predicted; drafting's host work is that of the same engine on B200."""
    cells = [cell for name in ("trtllm-405b", "trtllm-70b") for cell in by_series[name] if cell.arm == "plain"]
    plain = fit_plain_overheads(TRTLLM_H200, cells)
    predictions = predict_plain(TRTLLM_H200, cells, plain)
    overheads = with_speculation(plain, drafting.overheads or Overheads())
    limits = drafting.range
    source = (
        f"{cells[0].source} (plain steps of 405B fp8), and drafting's host work from tensorrt-llm-b200-mtp; "
        "fitted by benchmarks/planner/published.py. No drafting on H200 was fitted to"
    )
    calibration = plain_calibration(
        "tensorrt-llm-h200", TRTLLM_H200, overheads, limits.max_rows, source, limits.max_draft_len
    )
    observations = [
        StepObservation(1, 0, 0, cell.context, 0, 1 / cell.value, is_held_out=cell.split == "held_out")
        for cell in cells
    ]
    calibration = with_residuals(calibration, observations, [1 / one.predicted for one in predictions])
    title = "plain steps of 405B (fitted to) and 70B in fp8, four and one H200, TensorRT-LLM"
    return score_of("trtllm-h200", title, "tpot", predictions), predictions, calibration
