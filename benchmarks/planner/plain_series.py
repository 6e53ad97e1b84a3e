"""Plain decoding on kernel tables alone: one target fitted to, other targets and numbers of GPUs predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cells import Cell
from fitting import kernel_times
from scipy.optimize import lsq_linear
from scoring import Prediction
from setups import Setup, TauRule
from shapes import LLAMA_2_7B, LLAMA_2_70B, LLAMA_3_8B, LLAMA_3_70B, LLAMA_3_405B, in_fp8

from specdeploy.planner.model_shape import ModelShape
from specdeploy.planner.step_times import StepLoad
from specdeploy.planner_contract import CalibratedRange, Calibration, Overheads

SHAPES: Mapping[str, ModelShape] = {
    "Llama-2-7B": LLAMA_2_7B,
    "Llama-2-70B": LLAMA_2_70B,
    "Llama-3.1-8B": LLAMA_3_8B,
    "Llama-3.1-70B": LLAMA_3_70B,
}
FP8_SHAPES: Mapping[str, ModelShape] = {
    "Llama-3.1-405B": in_fp8(LLAMA_3_405B),
    "Llama-3.3-70B": in_fp8(LLAMA_3_70B),
}


@dataclass(frozen=True, slots=True)
class PlainSeries:
    """Plain steps of several targets on one device and engine."""

    engine: str
    hardware: str
    shapes: Mapping[str, ModelShape]


GPT_FAST = PlainSeries("gpt_fast", "a100-sxm-80gb", SHAPES)
TRTLLM_H200 = PlainSeries("tensorrt_llm", "h200-sxm", FP8_SHAPES)


def kernel_seconds(series: PlainSeries, cell: Cell) -> float:
    """Kernels of the cell's plain step, without the engine."""
    setup = Setup(
        series=cell.series,
        title="",
        kind="step",
        engine=series.engine,
        hardware=series.hardware,
        tau=TauRule.PUBLISHED,
        target=series.shapes[cell.target],
        tensor_parallel=cell.num_gpus,
    )
    times = kernel_times(setup, None, plain_calibration("none", series, Overheads(), 1, ""))
    rows = round(cell.rows)
    return times.time(StepLoad(rows)).seconds(rows * cell.context)


def fit_plain_overheads(series: PlainSeries, cells: Sequence[Cell]) -> Overheads:
    """`target_scale` (1 or more) and `step_s` of the cells that may be fitted to; a single one is all scale."""
    own = [cell for cell in cells if cell.split == "fit"]
    seconds = np.array([cell.rows / cell.value for cell in own])
    kernels = np.array([kernel_seconds(series, cell) for cell in own])
    if len(own) == 1:
        return Overheads(target_scale=max(float(seconds[0] / kernels[0]), 1.0))
    matrix = np.stack([kernels, np.ones(len(own))], axis=1) / seconds[:, None]
    size = float(seconds.mean())
    found = lsq_linear(matrix * [1, size], np.ones(len(own)), ([1, 0], [10, np.inf]), method="bvls").x
    return Overheads(target_scale=float(found[0]), step_s=float(found[1] * size))


def predict_plain(series: PlainSeries, cells: Sequence[Cell], overheads: Overheads) -> tuple[Prediction, ...]:
    """Tokens per second of every cell."""
    return tuple(
        Prediction(cell, cell.rows / (overheads.target_scale * kernel_seconds(series, cell) + overheads.step_s))
        for cell in cells
    )


def plain_calibration(
    name: str, series: PlainSeries, overheads: Overheads, max_rows: int, source: str, max_draft_len: int = 0
) -> Calibration:
    """Overheads as a calibration without residuals."""
    return Calibration(
        name=name,
        hardware=series.hardware,
        engine=series.engine,
        overheads=overheads,
        range=CalibratedRange(
            max_rows=max_rows, max_draft_len=max_draft_len, max_step_tokens=max_rows * (max_draft_len + 1)
        ),
        median_relative_error=0.0,
        p90_relative_error=0.0,
        source=source or "kernels alone",
    )


def with_speculation(plain: Overheads, drafting: Overheads) -> Overheads:
    """The first one's plain steps, the second one's host work for drafting."""
    return plain.model_copy(
        update={
            "speculation_s": drafting.speculation_s,
            "speculation_row_s": drafting.speculation_row_s,
            "draft_step_s": drafting.draft_step_s,
        }
    )
