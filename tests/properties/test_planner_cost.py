"""Laws of the planner's cost model: more work is never faster, more bandwidth never slower."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cost_models import (
    LLAMA_8B,
    bare_record,
    bare_times,
    calibration_of,
    eagle3_head,
    measured_times,
    slower_tables,
)
from specdeploy.checkpoint_contract import MoeShape
from specdeploy.contract import Method
from specdeploy.planner.cost import KernelStepTimes
from specdeploy.planner.draft_shape import DraftShape, draft_shape_of
from specdeploy.planner.model_shape import ModelShape
from specdeploy.planner.step_times import StepLoad, StepTime
from specdeploy.planner_contract import Overheads

MIXTURE = replace(
    LLAMA_8B,
    moe=MoeShape(
        num_experts=64, num_experts_per_token=4, num_moe_layers=30, num_dense_layers=2, expert_intermediate_size=1024
    ),
)
TARGETS = {"dense": LLAMA_8B, "mixture": MIXTURE}
METHODS = [Method.EAGLE3, Method.EAGLE, Method.MTP, Method.MEDUSA, Method.NGRAM, Method.LAYER_SKIP, Method.REDRAFTER]
DEVICES = ["h100-sxm", "l40s", "h100-pcie"]
SOME_OVERHEADS = Overheads(target_scale=1.1, step_s=1e-3, row_s=1e-5, speculation_s=1e-4, speculation_row_s=1e-5)


def draft_of(method: Method, target: ModelShape) -> DraftShape:
    return eagle3_head(target) if method is Method.EAGLE3 else draft_shape_of(method, None, target)


@cache
def times_of(target: str, method: Method, device: str) -> KernelStepTimes:
    shape = TARGETS[target]
    return measured_times(shape, draft_of(method, shape), hardware=device, overheads=SOME_OVERHEADS)


all_times = st.builds(times_of, st.sampled_from(sorted(TARGETS)), st.sampled_from(METHODS), st.sampled_from(DEVICES))
rows = st.integers(1, 300)
depths = st.integers(0, 12)
prompts = st.integers(0, 3000)


def chain(num_rows: int, depth: int, prompt: int = 0) -> StepLoad:
    return StepLoad(num_rows, num_rows * depth, depth, prompt, prompt)


def is_no_faster(slow: StepTime, fast: StepTime) -> bool:
    """In every part, up to rounding."""
    pairs = (
        (slow.fixed_s, fast.fixed_s),
        (slow.kv_token_s, fast.kv_token_s),
        (slow.prefill_context_s, fast.prefill_context_s),
    )
    return all(left >= right * (1 - 1e-9) for left, right in pairs)


@settings(max_examples=60, deadline=None)
@given(times=all_times, num_rows=rows, depth=depths, prompt=prompts, more=st.integers(1, 64))
def test_more_rows_are_never_faster(times: KernelStepTimes, num_rows: int, depth: int, prompt: int, more: int) -> None:
    assert is_no_faster(times.time(chain(num_rows + more, depth, prompt)), times.time(chain(num_rows, depth, prompt)))


@settings(max_examples=60, deadline=None)
@given(times=all_times, num_rows=rows, depth=depths, prompt=prompts)
def test_a_deeper_draft_is_never_faster(times: KernelStepTimes, num_rows: int, depth: int, prompt: int) -> None:
    assert is_no_faster(times.time(chain(num_rows, depth + 1, prompt)), times.time(chain(num_rows, depth, prompt)))


@settings(max_examples=60, deadline=None)
@given(times=all_times, num_rows=rows, depth=depths, prompt=prompts, more=st.integers(1, 500))
def test_more_prompt_tokens_are_never_faster(
    times: KernelStepTimes, num_rows: int, depth: int, prompt: int, more: int
) -> None:
    assert is_no_faster(times.time(chain(num_rows, depth, prompt + more)), times.time(chain(num_rows, depth, prompt)))


@settings(max_examples=40, deadline=None)
@given(times=all_times, num_rows=rows, depth=depths, prompt=prompts, cached=st.integers(0, 10**6))
def test_parts_and_lines_add_up(times: KernelStepTimes, num_rows: int, depth: int, prompt: int, cached: int) -> None:
    load = chain(num_rows, depth, prompt)
    parts, whole = times.parts(load), times.time(load)
    assert sum(part.fixed_s for part in parts) == pytest.approx(whole.fixed_s)
    assert all(part.fixed_s >= 0 and part.kv_token_s >= 0 and part.prefill_context_s >= 0 for part in parts)
    lines = times.explain(num_rows, depth, cached)
    assert sum(line.value for line in lines) == pytest.approx(times.time(chain(num_rows, depth)).seconds(cached))


@settings(max_examples=40, deadline=None)
@given(target=st.sampled_from(sorted(TARGETS)), method=st.sampled_from(METHODS), num_rows=rows)
def test_without_drafting_a_drafter_costs_nothing(target: str, method: Method, num_rows: int) -> None:
    drafting = times_of(target, method, "h100-sxm")
    plain = measured_plain(target)
    assert drafting.time(StepLoad(num_rows)) == plain.time(StepLoad(num_rows))


@cache
def measured_plain(target: str) -> KernelStepTimes:
    return measured_times(TARGETS[target], overheads=SOME_OVERHEADS)


@settings(max_examples=60, deadline=None)
@given(
    target=st.sampled_from(sorted(TARGETS)),
    num_rows=rows,
    depth=depths,
    bandwidth=st.floats(5e11, 8e12),
    factor=st.floats(1.0, 4.0),
)
def test_more_bandwidth_or_arithmetic_is_never_slower(
    target: str, num_rows: int, depth: int, bandwidth: float, factor: float
) -> None:
    shape = TARGETS[target]
    draft, load = eagle3_head(shape), chain(num_rows, depth, 100)
    slow = bare_times(shape, draft, record=bare_record(bandwidth)).time(load)
    wide = bare_times(shape, draft, record=bare_record(bandwidth * factor)).time(load)
    strong = bare_times(shape, draft, record=bare_record(bandwidth, 1e15 * factor)).time(load)
    assert is_no_faster(slow, wide)
    assert is_no_faster(slow, strong)


@settings(max_examples=30, deadline=None)
@given(num_rows=rows, depth=depths, factor=st.floats(1.0, 3.0))
def test_slower_kernels_are_never_faster(num_rows: int, depth: int, factor: float) -> None:
    times = times_of("dense", Method.EAGLE3, "h100-sxm")
    tables = slower_tables(times.device.tables, factor)
    calibration = calibration_of(overheads=SOME_OVERHEADS)
    slower = KernelStepTimes(LLAMA_8B, eagle3_head(LLAMA_8B), times.device.record, tables, 1, calibration)
    load = chain(num_rows, depth)
    assert is_no_faster(slower.time(load), times.time(load))
