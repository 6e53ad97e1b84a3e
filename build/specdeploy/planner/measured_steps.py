"""Step times that were measured on one GPU, as `configs/hardware/<gpu>.measured.json` holds them.

Written by `make gpu-check`. Times are of bare steps replayed as CUDA graphs: no sampling, no Python between them.
"""

import re
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, NonNegativeInt, PositiveFloat, PositiveInt

from specdeploy.contract import ContractModel, Dtype


class MeasuredGpu(ContractModel):
    """The machine and its software. Clocks in MHz and the power limit in watts at the start; None where unknown."""

    name: str
    memory_bytes: PositiveInt
    driver: str | None
    cuda: str | None
    torch: str
    sm_clock_mhz: PositiveInt | None
    max_sm_clock_mhz: PositiveInt | None
    memory_clock_mhz: PositiveInt | None
    power_limit_w: PositiveFloat | None


class MeasuredModel(ContractModel):
    """A model of random weights. `step_weight_bytes`: what one step reads of them, without other tokens' embeddings."""

    name: str
    dtype: Dtype
    step_weight_bytes: PositiveInt
    kv_bytes_per_token: PositiveInt


class StepCell(ContractModel):
    """One measured step: `num_tokens` tokens in each of `num_rows` rows, each `context` tokens long afterwards.

    `num_tokens` is 1 for a plain step and K + 1 to verify K. `median_s` None: not measured, for the reason in
    `skipped`. `attention`: how keys were read (`paged`, `gathered`).
    """

    role: Literal["target", "draft"]
    num_rows: PositiveInt
    context: PositiveInt
    num_tokens: PositiveInt
    median_s: PositiveFloat | None = None
    num_replays: NonNegativeInt = 0
    attention: Literal["paged", "gathered"] | None = None
    skipped: str | None = None


class StepRatios(ContractModel):
    """c = draft step / plain step, and v = verify step / plain step by K, at one batch and context."""

    num_rows: PositiveInt
    context: PositiveInt
    draft_cost_ratio: PositiveFloat | None
    verify_cost_ratio: dict[PositiveInt, PositiveFloat]


class WeightFloor(ContractModel):
    """The plain step of one row against the time of reading its weights at the bandwidth of a copy.

    `ratio` = step_s / floor_s; `has_passed` says whether it is at most `max_ratio` (None: not judged).
    """

    step_s: PositiveFloat
    floor_s: PositiveFloat
    ratio: PositiveFloat
    max_ratio: PositiveFloat
    has_passed: bool | None


class OutputCheck(ContractModel):
    """One comparison of outputs on the GPU."""

    name: str
    has_passed: bool
    detail: str


class MeasuredSteps(ContractModel):
    """Everything one run of the check saw. `copy_bytes_per_s` counts what a copy reads and what it writes."""

    schema_version: Literal[1] = 1
    measured_at: AwareDatetime
    command: str
    is_dry_run: bool
    gpu: MeasuredGpu
    target: MeasuredModel
    draft: MeasuredModel
    copy_bytes_per_s: PositiveFloat
    floor: WeightFloor | None
    cells: tuple[StepCell, ...]
    ratios: tuple[StepRatios, ...]
    checks: tuple[OutputCheck, ...]


def measured_path(folder: Path, gpu_name: str) -> Path:
    """Where the steps of a GPU are kept: `NVIDIA H200` -> nvidia-h200.measured.json."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")
    return folder / f"{slug}.measured.json"


def step_ratios(cells: tuple[StepCell, ...]) -> tuple[StepRatios, ...]:
    """c and v of every batch and context whose plain step was measured."""
    times = {
        (cell.role, cell.num_rows, cell.context, cell.num_tokens): cell.median_s
        for cell in cells
        if cell.median_s is not None
    }
    ratios = []
    for (role, num_rows, context, num_tokens), plain_s in times.items():
        if role != "target" or num_tokens != 1:
            continue
        draft_s = times.get(("draft", num_rows, context, 1))
        verify = {
            tokens - 1: verify_s / plain_s
            for (other, rows, length, tokens), verify_s in times.items()
            if (other, rows, length) == ("target", num_rows, context) and tokens > 1
        }
        ratios.append(
            StepRatios(
                num_rows=num_rows,
                context=context,
                draft_cost_ratio=None if draft_s is None else draft_s / plain_s,
                verify_cost_ratio=dict(sorted(verify.items())),
            )
        )
    return tuple(ratios)
