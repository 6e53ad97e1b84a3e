"""Seconds of drafters: passes, heads, prompts and caches."""

from dataclasses import replace

import pytest

from helpers.cost_models import LLAMA_3B, LLAMA_8B, bare_times, eagle3_head, small_draft
from specdeploy.contract import Method
from specdeploy.planner.cost import KernelStepTimes
from specdeploy.planner.draft_shape import draft_shape_of
from specdeploy.planner.step_times import StepLoad, uniform_load
from specdeploy.planner_contract import DraftForm


def drafting_s(times: KernelStepTimes, load: StepLoad) -> float:
    return sum(part.fixed_s for part in times.parts(load) if part.subject.startswith("draft"))


def test_a_chain_costs_a_pass_per_depth_and_copied_text_none() -> None:
    times = bare_times(LLAMA_8B, small_draft(LLAMA_3B))
    one, four = (drafting_s(times, uniform_load(4, depth)) for depth in (1, 4))
    assert four == pytest.approx(4 * one, rel=0.02)
    assert drafting_s(bare_times(LLAMA_8B, draft_shape_of(Method.NGRAM, None, LLAMA_8B)), uniform_load(4, 4)) == 0


def test_a_block_is_drafted_in_one_pass() -> None:
    block = draft_shape_of(Method.EAGLE3, None, LLAMA_8B, form=DraftForm.BLOCK)
    chain = draft_shape_of(Method.EAGLE3, None, LLAMA_8B)
    load = uniform_load(1, 6)
    assert drafting_s(bare_times(LLAMA_8B, block), load) < 0.4 * drafting_s(bare_times(LLAMA_8B, chain), load)


def test_medusa_pays_for_every_head() -> None:
    times = bare_times(LLAMA_8B, draft_shape_of(Method.MEDUSA, None, LLAMA_8B))
    one, three = (drafting_s(times, uniform_load(2, depth)) for depth in (1, 3))
    assert three == pytest.approx(3 * one)


def test_a_trimmed_output_layer_is_cheaper_by_its_rows() -> None:
    whole = draft_shape_of(Method.EAGLE3, None, LLAMA_8B)
    load = uniform_load(1, 4)
    saved = drafting_s(bare_times(LLAMA_8B, whole), load)
    saved -= drafting_s(bare_times(LLAMA_8B, whole.with_lm_head_rows(32000)), load)
    rows, bandwidth = 128256 - 32000, 0.75 * 3e12
    assert saved == pytest.approx(4 * rows * 4096 * 2 / bandwidth, rel=1e-3)


def test_prompts_that_join_are_read_by_drafters_with_a_cache() -> None:
    prompts = StepLoad(4, prefill_tokens=512, draft_prefill_tokens=512)
    assert drafting_s(bare_times(LLAMA_8B, small_draft(LLAMA_3B)), prompts) > 0
    assert drafting_s(bare_times(LLAMA_8B, draft_shape_of(Method.MEDUSA, None, LLAMA_8B)), prompts) == 0
    assert drafting_s(bare_times(LLAMA_8B, small_draft(LLAMA_3B)), replace(prompts, draft_prefill_tokens=0)) == 0


def test_a_draft_reads_its_own_cache_in_every_pass() -> None:
    draft = small_draft(LLAMA_3B)
    times = bare_times(LLAMA_8B, draft)
    plain, drafting = times.time(StepLoad(4)), times.time(uniform_load(4, 3))
    bytes_each = 2 * 28 * 8 * 128 * 2
    assert drafting.kv_token_s - plain.kv_token_s == pytest.approx(3 * bytes_each / (0.75 * 3e12))


def test_medusa_heads_read_one_state_of_a_row_whatever_its_tree() -> None:
    times = bare_times(LLAMA_8B, draft_shape_of(Method.MEDUSA, None, LLAMA_8B))
    chain, tree = StepLoad(64, 64 * 4, 4), StepLoad(64, 64 * 63, 4)
    assert drafting_s(times, tree) == pytest.approx(drafting_s(times, chain))


def test_states_of_prompts_are_fused_whether_or_not_rows_draft() -> None:
    times = bare_times(LLAMA_8B, eagle3_head(LLAMA_8B))
    prompts = {part.subject: part.fixed_s for part in times.parts(StepLoad(0, 0, 0, 2048, 2048))}
    assert prompts["draft: fused states"] == pytest.approx(2 * 2048 * 4096 * 3 * 4096 / 0.7e15)
    beside = times.time(StepLoad(1, 3, 3, 2048, 2048)).fixed_s - times.time(StepLoad(1, 3, 3)).fixed_s
    alone = times.time(StepLoad(0, 0, 0, 2048, 2048)).fixed_s
    assert beside < alone  # weights read once


def test_rows_that_do_not_draft_keep_their_cache_out_of_the_drafters_passes() -> None:
    times = bare_times(LLAMA_8B, small_draft(LLAMA_3B))
    plain = times.time(StepLoad(8)).kv_token_s
    every, half = (times.time(StepLoad(8, 3 * rows, 3)).kv_token_s - plain for rows in (8, 4))
    assert half == pytest.approx(every / 2)
