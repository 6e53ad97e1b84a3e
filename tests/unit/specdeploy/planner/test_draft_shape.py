"""What drafters run, by method."""

from dataclasses import replace

import pytest

from helpers.cost_models import CONFIGS, LLAMA_8B, LLAMA_70B_FP8
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint_contract import MoeShape
from specdeploy.contract import Method
from specdeploy.planner.draft_shape import Linear, draft_shape_of
from specdeploy.planner.model_shape import BFLOAT16, FP8
from specdeploy.planner_contract import DraftForm

MODELS = CONFIGS / "models"
MOE = MoeShape(
    num_experts=64, num_experts_per_token=8, num_moe_layers=30, num_dense_layers=2, expert_intermediate_size=512
)


@pytest.mark.parametrize("method", [Method.NGRAM, Method.SUFFIX, Method.LOOKAHEAD])
def test_text_is_copied_without_a_pass(method: Method) -> None:
    draft = draft_shape_of(method, None, LLAMA_8B)
    assert (draft.form, draft.model, draft.num_passes(5)) == (DraftForm.LOOKUP, None, 0)


def test_eagle3_fuses_states_once_and_has_a_trimmed_output_layer() -> None:
    info = inspect_checkpoint(MODELS / "yuhuili--EAGLE3-LLaMA3.1-Instruct-8B")
    draft = draft_shape_of(Method.EAGLE3, info, LLAMA_8B)
    assert draft.first_linears == (Linear(4096, 3 * 4096),)
    assert (draft.linears, draft.lm_head_rows, draft.num_layers) == ((), 32000, 1)
    assert draft.model is not None
    assert draft.model.attention_input == 2 * 4096
    assert draft.reads_verified
    assert draft.reads_prompts
    assert draft.num_passes(4) == 4


def test_eagle_reads_token_and_state_in_every_pass_with_the_targets_output_layer() -> None:
    info = inspect_checkpoint(MODELS / "yuhuili--EAGLE-LLaMA3-Instruct-8B")
    draft = draft_shape_of(Method.EAGLE, info, LLAMA_8B)
    assert (draft.linears, draft.first_linears) == ((Linear(4096, 8192),), ())
    assert draft.lm_head_rows == LLAMA_8B.lm_head_rows


def test_heads_are_in_16_bit_whatever_the_target_is() -> None:
    draft = draft_shape_of(Method.EAGLE3, None, LLAMA_70B_FP8)
    assert draft.model is not None
    assert (draft.model.weights, LLAMA_70B_FP8.weights) == (BFLOAT16, FP8)


def test_an_eagle_head_of_a_mixture_is_dense_and_its_mtp_module_is_a_mixture() -> None:
    target = replace(LLAMA_8B, moe=MOE)
    eagle, mtp = draft_shape_of(Method.EAGLE, None, target), draft_shape_of(Method.MTP, None, target)
    assert eagle.model is not None
    assert mtp.model is not None
    assert eagle.model.moe is None
    assert (mtp.model.num_moe_layers, mtp.model.num_dense_layers) == (1, 0)
    assert mtp.linears == (Linear(4096, 8192),)
    assert mtp.num_passes(3) == 3


def test_medusa_has_heads_side_by_side_and_no_cache() -> None:
    info = inspect_checkpoint(MODELS / "FasterDecoding--medusa-vicuna-7b-v1.3")
    draft = draft_shape_of(Method.MEDUSA, info, LLAMA_8B)
    assert (draft.form, draft.num_passes(4), draft.reads_prompts) == (DraftForm.BLOCK, 1, False)
    assert draft.linears == (Linear(4096, 4096),)


def test_skipping_layers_takes_the_first_ones_the_dense_ones_of_a_mixture_before() -> None:
    draft = draft_shape_of(Method.LAYER_SKIP, None, replace(LLAMA_8B, moe=MOE), exit_layer=6)
    assert draft.model is not None
    assert (draft.model.num_layers, draft.model.num_dense_layers, draft.model.num_moe_layers) == (6, 2, 4)
    assert not draft.reads_prompts
    whole = draft_shape_of(Method.LAYER_SKIP, None, LLAMA_8B)
    assert whole.num_layers == 8


def test_a_draft_model_is_a_whole_model_and_auto_is_what_its_files_are() -> None:
    info = inspect_checkpoint(MODELS / "meta-llama--Llama-3.2-1B-Instruct")
    for method in (Method.DRAFT_MODEL, Method.AUTO):
        draft = draft_shape_of(method, info, LLAMA_8B)
        assert (draft.num_layers, draft.hidden_size, draft.lm_head_rows) == (16, 2048, 128256)
    head = inspect_checkpoint(MODELS / "yuhuili--EAGLE3-LLaMA3.1-Instruct-8B")
    auto = draft_shape_of(Method.AUTO, head, LLAMA_8B)
    assert (auto.method, auto.lm_head_rows) == (Method.AUTO, 32000)


def test_the_output_layer_can_be_trimmed_and_the_form_chosen() -> None:
    draft = draft_shape_of(Method.EAGLE3, None, LLAMA_8B, form=DraftForm.BLOCK)
    assert (draft.num_passes(7), draft.num_passes(0)) == (1, 0)
    assert draft.with_lm_head_rows(8000).lm_head_rows == 8000
    assert draft_shape_of(Method.REDRAFTER, None, LLAMA_8B).num_passes(3) == 3


def test_a_draft_model_without_files_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="draft_model"):
        draft_shape_of(Method.DRAFT_MODEL, None, LLAMA_8B)
