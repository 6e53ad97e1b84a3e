"""Seconds of steps from kernels: published absolutes, the engine's share, and the arithmetic that is shown."""

from dataclasses import replace

import pytest

from helpers.cost_models import (
    LLAMA_8B,
    LLAMA_70B_FP8,
    LLAMA_405B_FP8,
    bare_times,
    calibration_of,
    dense_shape,
    eagle3_head,
    measured_times,
)
from specdeploy.checkpoint_contract import MoeShape
from specdeploy.contract import Method
from specdeploy.planner.cost import KernelStepTimes
from specdeploy.planner.draft_shape import draft_shape_of
from specdeploy.planner.model_shape import FP4, FP8, INT4, ModelShape
from specdeploy.planner.step_times import StepLoad, uniform_load
from specdeploy.planner_contract import MeasuredTarget, Overheads

LLAMA_2_7B = dense_shape(32, 4096, 32, 32, 11008, 32000)
LLAMA_2_70B = dense_shape(80, 8192, 64, 8, 28672, 32000)


def milliseconds(times: KernelStepTimes, num_rows: int = 1, draft_len: int = 0, context: int = 300) -> float:
    return 1e3 * times.time(uniform_load(num_rows, draft_len)).seconds(num_rows * context)


# --- published steps ------------------------------------------------------------------------------------------------


def test_kernels_of_8b_on_an_h100_take_less_than_the_step_of_both_engines() -> None:
    """7.07 ms in vLLM, 6.32 ms in SGLang: kernels are 82 % and 91 % of them."""
    assert 0.85 * 6.32 < milliseconds(measured_times(LLAMA_8B)) < 0.95 * 6.32


@pytest.mark.parametrize(
    ("target", "num_gpus", "published_ms"),
    [
        (LLAMA_2_7B, 1, 9.53),
        (LLAMA_8B, 1, 10.65),
        (LLAMA_2_70B, 2, 46.6),
        (LLAMA_2_70B, 4, 25.7),
        (LLAMA_2_70B, 8, 15.2),
    ],
)
def test_gpt_fast_on_a100_adds_next_to_nothing(target: ModelShape, num_gpus: int, published_ms: float) -> None:
    """104.9 and 93.9 tokens/s; tensor parallel 1482, 1341 and 1135 GB/s on each GPU: within 4 %."""
    times = measured_times(target, hardware="a100-sxm-80gb", tensor_parallel=num_gpus)
    assert milliseconds(times) == pytest.approx(published_ms, rel=0.04)


@pytest.mark.parametrize(
    ("target", "num_gpus", "published_ms"), [(LLAMA_70B_FP8, 1, 19.55), (LLAMA_405B_FP8, 4, 29.89)]
)
def test_tensorrt_llm_in_fp8_on_h200(target: ModelShape, num_gpus: int, published_ms: float) -> None:
    """The tables' fp8 kernels are vLLM's and quantise their input as well: 2 to 5 % above TensorRT-LLM's whole step."""
    times = measured_times(target, hardware="h200-sxm", tensor_parallel=num_gpus, engine="tensorrt_llm")
    assert milliseconds(times) == pytest.approx(published_ms, rel=0.06)


# Median of large bfloat16 layers on an H100, relative to one token.
@pytest.mark.parametrize(("tokens", "published"), [(16, 1.02), (64, 1.05), (128, 1.06), (256, 1.17), (512, 1.77)])
def test_verifying_costs_what_linear_layers_cost(tokens: int, published: float) -> None:
    times = measured_times(LLAMA_8B)
    ratio = times.time(StepLoad(1, tokens - 1, tokens - 1)).fixed_s / times.time(StepLoad(1)).fixed_s
    assert ratio == pytest.approx(published, rel=0.06)


def test_the_output_layer_is_half_of_an_untrimmed_eagle_head() -> None:
    """FR-Spec: 49 % of the draft's time on an 8B target, the layer 33 %."""
    times = measured_times(LLAMA_8B, draft_shape_of(Method.EAGLE, None, LLAMA_8B), hardware="a100-sxm-80gb")
    parts = {part.subject: part.fixed_s for part in times.parts(StepLoad(1, 5, 5)) if part.subject.startswith("draft")}
    assert 0.45 < parts["draft: output layer"] / sum(parts.values()) < 0.75


def test_the_ridge_is_where_the_peaks_meet() -> None:
    assert measured_times(LLAMA_8B).ridge_tokens == pytest.approx(295, abs=1)
    assert measured_times(LLAMA_70B_FP8, hardware="h200-sxm").ridge_tokens == pytest.approx(206, abs=1)
    assert measured_times(replace(LLAMA_8B, weights=INT4)).ridge_tokens == pytest.approx(77, abs=1)


# --- what the engine adds -------------------------------------------------------------------------------------------

OVERHEADS = Overheads(
    target_scale=1.1,
    step_s=1e-3,
    row_s=1e-5,
    speculation_s=2e-4,
    speculation_row_s=3e-5,
    draft_scale=1.2,
    draft_step_s=1e-4,
)


def test_overheads_follow_the_contracts_formula() -> None:
    draft = eagle3_head(LLAMA_8B)
    bare = measured_times(LLAMA_8B, draft)
    whole = measured_times(LLAMA_8B, draft, overheads=OVERHEADS)
    rows, depth, cached = 8, 3, 4000.0
    load = uniform_load(rows, depth)
    target = sum(p.fixed_s + p.kv_token_s * cached for p in bare.parts(load) if p.subject.startswith("target"))
    drafter = sum(p.fixed_s + p.kv_token_s * cached for p in bare.parts(load) if p.subject.startswith("draft"))
    expected = 1.1 * target + 1e-3 + 1e-5 * rows + 2e-4 + 3e-5 * rows + 1.2 * drafter + 1e-4 * depth
    assert whole.time(load).seconds(cached) == pytest.approx(expected)
    plain = whole.time(StepLoad(rows)).seconds(cached)
    assert plain == pytest.approx(1.1 * bare.time(StepLoad(rows)).seconds(cached) + 1e-3 + 1e-5 * rows)


def test_a_step_is_padded_to_the_next_recorded_size_and_pays_beyond_the_last() -> None:
    times = measured_times(LLAMA_8B, captured_tokens=(1, 8, 64), eager_step_s=5e-3)
    free = measured_times(LLAMA_8B)
    linear = {part.subject: part.fixed_s for part in times.parts(StepLoad(9))}["target: linear layers"]
    padded = {part.subject: part.fixed_s for part in free.parts(StepLoad(64))}["target: linear layers"]
    assert linear == pytest.approx(padded)
    assert times.time(StepLoad(65)).fixed_s == pytest.approx(free.time(StepLoad(65)).fixed_s + 5e-3)
    assert times.time(StepLoad(64)).fixed_s == pytest.approx(free.time(StepLoad(64)).fixed_s)


def test_a_calibration_measured_as_a_whole_adds_nothing() -> None:
    device = measured_times(LLAMA_8B).device
    whole = calibration_of(overheads=None, target=MeasuredTarget(curve_tokens=(1,), curve_s=(1.0,)))
    times = KernelStepTimes(LLAMA_8B, None, device.record, device.tables, 1, whole)
    assert milliseconds(times) == pytest.approx(milliseconds(measured_times(LLAMA_8B)))


# --- mixtures, prompts, GPUs ----------------------------------------------------------------------------------------

MIXTURE = replace(
    dense_shape(48, 2048, 32, 4, 6144, 151936),
    moe=MoeShape(
        num_experts=128, num_experts_per_token=8, num_moe_layers=48, num_dense_layers=0, expert_intermediate_size=768
    ),
)


def test_a_mixture_pays_for_every_expert_that_a_draft_touches() -> None:
    """Four tokens in a row touch 22 of 128 experts instead of 8: at batch 1 verifying is not free."""
    dense, mixture = bare_times(LLAMA_8B), bare_times(MIXTURE)
    assert milliseconds(dense, draft_len=3) / milliseconds(dense) < 1.02
    assert 1.5 < milliseconds(mixture, draft_len=3) / milliseconds(mixture) < 2.6


def test_with_all_experts_touched_a_mixture_verifies_for_little() -> None:
    mixture = bare_times(MIXTURE)
    assert milliseconds(mixture, 128, 1, context=0) / milliseconds(mixture, 128, context=0) < 1.2


def test_prompt_tokens_attend_to_each_other_and_to_what_lies_before() -> None:
    times = bare_times(LLAMA_8B)
    short, long = times.time(StepLoad(0, prefill_tokens=1024)), times.time(StepLoad(0, prefill_tokens=2048))
    assert long.prefill_context_s == pytest.approx(2 * short.prefill_context_s)
    assert short.kv_token_s == 0
    assert long.fixed_s > 2 * short.fixed_s * 0.98
    flops = 2 * (32 * (4096 * 6144 + 4096**2 + 3 * 4096 * 14336)) * 2048
    assert long.fixed_s > flops / (0.7 * 1e15)


def test_the_ridge_of_a_mixture_lies_where_its_experts_are_full() -> None:
    experts_alone = 333 * 128 / 8
    assert bare_times(LLAMA_8B).ridge_tokens == pytest.approx(333, abs=1)
    assert 0.5 * experts_alone < bare_times(MIXTURE).ridge_tokens < experts_alone


def test_prompts_expand_a_latent_cache_and_decoding_multiplies_it_whole() -> None:
    """DeepSeek-V3: 192 + 128 wide against 576 + 512."""
    latent = replace(LLAMA_8B, num_kv_heads=32, kv_elements_per_token=32 * 576, latent_in=8192)
    times = bare_times(latent)
    prompt = {part.subject: part for part in times.parts(StepLoad(0, prefill_tokens=4096))}["target: attention"]
    assert prompt.fixed_s == pytest.approx(32 * 32 * 4096**2 / 2 * 2 * (192 + 128) / 0.7e15)
    decoded = times.time(StepLoad(1, 99, 1)).kv_token_s
    assert decoded == pytest.approx(32 * 32 * 100 * 4 * 576 / 0.7e15)


def test_more_gpus_share_the_work_and_talk() -> None:
    one, four = (bare_times(LLAMA_8B, tensor_parallel=gpus) for gpus in (1, 4))
    parts = {part.subject: part.fixed_s for part in four.parts(StepLoad(1))}
    whole = {part.subject: part.fixed_s for part in one.parts(StepLoad(1))}
    assert parts["target: linear layers"] == pytest.approx(whole["target: linear layers"] / 4)
    assert parts["target: all-reduce"] > 0
    assert "target: all-reduce" not in whole
    assert four.time(StepLoad(1)).kv_token_s == pytest.approx(one.time(StepLoad(1)).kv_token_s / 4)


# --- what is said ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_rows", "draft_len"), [(1, 0), (8, 3), (200, 2)])
def test_the_lines_shown_add_up_to_the_step(num_rows: int, draft_len: int) -> None:
    times = measured_times(
        LLAMA_8B,
        eagle3_head(LLAMA_8B),
        overheads=OVERHEADS,
        captured_tokens=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        eager_step_s=4e-3,
    )
    lines = times.explain(num_rows, draft_len, 12000)
    total = times.time(uniform_load(num_rows, draft_len)).seconds(12000)
    assert sum(line.value for line in lines) == pytest.approx(total)
    assert {line.unit for line in lines} == {"s"}
    assert "32 layers x" in lines[0].formula
    assert any("12000 cached tokens" in line.formula for line in lines)


def test_loads_beyond_the_calibration_are_named() -> None:
    times = measured_times(LLAMA_8B, eagle3_head(LLAMA_8B))
    assert times.range_problem(64, 3) is None
    assert "ends at 256" in str(times.range_problem(257, 0))
    assert "K 9" in str(times.range_problem(1, 9))
    assert "2304 tokens" in str(times.range_problem(256, 8))


def test_kernels_that_were_not_measured_are_named() -> None:
    assert "bare in bfloat16 were not measured" in str(bare_times(LLAMA_8B).range_problem(1, 0))
    assert "4 bits in bfloat16" in str(measured_times(replace(LLAMA_8B, weights=INT4)).range_problem(1, 0))
    eight_bits = measured_times(replace(LLAMA_8B, weights=FP8), hardware="a100-sxm-80gb")
    assert "8 bits in bfloat16" in str(eight_bits.range_problem(1, 0))
    assert measured_times(replace(LLAMA_8B, weights=FP4), hardware="b200-sxm").range_problem(1, 0) is None
    narrow_draft = eagle3_head(LLAMA_8B)
    assert narrow_draft.model is not None
    narrow_draft = replace(narrow_draft, model=replace(narrow_draft.model, weights=INT4))
    times = measured_times(LLAMA_8B, narrow_draft)
    assert times.range_problem(1, 0) is None
    assert times.range_problem(1, 2) is not None


def test_attention_and_all_reduces_that_were_not_measured_are_named() -> None:
    narrow_cache = replace(LLAMA_8B, kv_element_bytes=1.0)
    assert measured_times(narrow_cache).range_problem(1, 0) is None
    assert "cache in fp8" in str(measured_times(narrow_cache, hardware="a100-sxm-80gb").range_problem(1, 0))
    assert measured_times(LLAMA_8B, tensor_parallel=8).range_problem(1, 0) is None
    assert "for 8 GPUs at most, not for 16" in str(measured_times(LLAMA_8B, tensor_parallel=16).range_problem(1, 0))


def test_a_calibration_of_another_device_is_named() -> None:
    times = measured_times(LLAMA_8B)
    other = KernelStepTimes(LLAMA_8B, None, times.device.record, times.device.tables, 1, calibration_of("h200-sxm"))
    assert "is of h200-sxm, not of h100-sxm" in str(other.range_problem(1, 0))


def test_answers_are_remembered() -> None:
    times = measured_times(LLAMA_8B)
    assert times.time(StepLoad(7, 14, 2)) is times.time(StepLoad(7, 14, 2))
