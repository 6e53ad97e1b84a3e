"""Models, drafters, devices and calibrations for tests of the planner's cost model."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from specdeploy.contract import Method
from specdeploy.planner.cost import KernelStepTimes
from specdeploy.planner.draft_shape import DraftShape, draft_shape_of
from specdeploy.planner.hardware_records import load_hardware, load_kernel_tables
from specdeploy.planner.kernel_tables import NO_TABLES, KernelTables
from specdeploy.planner.linear_table import LinearTable
from specdeploy.planner.model_shape import FP8, ModelShape
from specdeploy.planner_contract import CalibratedRange, Calibration, DraftForm, HardwareRecord, Overheads, Precision

CONFIGS = Path(__file__).parents[2] / "configs"


def dense_shape(layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocab: int = 128256) -> ModelShape:
    """A dense decoder in bfloat16 with heads of 128."""
    return ModelShape(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=128,
        kv_elements_per_token=2 * layers * kv_heads * 128,
        intermediate_size=inner,
        vocab_size=vocab,
        lm_head_rows=vocab,
        attention_input=hidden,
    )


LLAMA_8B = dense_shape(32, 4096, 32, 8, 14336)
LLAMA_70B_FP8 = replace(dense_shape(80, 8192, 64, 8, 28672), weights=FP8, experts=FP8)
LLAMA_405B_FP8 = replace(dense_shape(126, 16384, 128, 8, 53248), weights=FP8, experts=FP8)
LLAMA_3B = dense_shape(28, 3072, 24, 8, 8192)


def eagle3_head(target: ModelShape) -> DraftShape:
    """One layer like the target's, output layer of 32000 tokens."""
    return draft_shape_of(Method.EAGLE3, None, target).with_lm_head_rows(32000)


def small_draft(model: ModelShape) -> DraftShape:
    """A whole model as the drafter."""
    return DraftShape(
        Method.DRAFT_MODEL,
        DraftForm.CHAIN,
        model,
        model.hidden_size,
        model.lm_head_rows,
        reads_prompts=True,
    )


def calibration_of(hardware: str = "h100-sxm", **changes: object) -> Calibration:
    """A calibration that adds nothing, up to 256 rows, K 8 and 2048 tokens in a step."""
    fields: dict[str, object] = {
        "name": "none",
        "hardware": hardware,
        "engine": "test",
        "overheads": Overheads(),
        "range": CalibratedRange(max_rows=256, max_draft_len=8, max_step_tokens=2048),
        "median_relative_error": 0.0,
        "p90_relative_error": 0.0,
        "source": "test",
    }
    return Calibration.model_validate(fields | changes)


def measured_times(
    target: ModelShape,
    draft: DraftShape | None = None,
    *,
    hardware: str = "h100-sxm",
    tensor_parallel: int = 1,
    engine: str = "vllm",
    **calibration: object,
) -> KernelStepTimes:
    """Step times from the shipped tables of `hardware`."""
    record, tables = _device(hardware, engine)
    return KernelStepTimes(target, draft, record, tables, tensor_parallel, calibration_of(hardware, **calibration))


@cache
def _device(hardware: str, engine: str) -> tuple[HardwareRecord, KernelTables]:
    record = load_hardware(hardware, CONFIGS)
    return record, load_kernel_tables(record, CONFIGS / "hardware", engine)


def bare_record(bandwidth: float = 3e12, flops: float = 1e15) -> HardwareRecord:
    """A device of which nothing was measured."""
    return HardwareRecord(
        name="bare",
        device="bare",
        memory_bytes=2**36,
        bandwidth=bandwidth,
        peak_flops={Precision.BFLOAT16: flops, Precision.FP8: 2 * flops},
        link_bandwidth=4e11,
        source="test",
    )


def bare_times(
    target: ModelShape,
    draft: DraftShape | None = None,
    *,
    record: HardwareRecord | None = None,
    tensor_parallel: int = 1,
) -> KernelStepTimes:
    """Step times of a device of which nothing was measured."""
    record = record or bare_record()
    return KernelStepTimes(target, draft, record, NO_TABLES, tensor_parallel, calibration_of(record.name))


def slower_tables(tables: KernelTables, factor: float) -> KernelTables:
    """Every linear layer takes `factor` times as long."""
    linear = {
        precision: LinearTable(table.features_out, table.features_in, table.tokens, table.log_seconds + np.log(factor))
        for precision, table in tables.linear.items()
    }
    return replace(tables, linear=linear)
