"""Which lane serves what: every answer has a reason, and what nobody documented is unknown."""

import pytest

from specdeploy.checkpoint.lane_fit import PairShape, fit_lanes, is_unknown
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, LaneFit, Quantization
from specdeploy.contract import SUPPORTED, Lane, Method


def info(architecture: str = "LlamaForCausalLM", **facts: object) -> CheckpointInfo:
    return CheckpointInfo.model_validate(
        {"reference": "m", "folder": "m", "kind": CheckpointKind.CAUSAL_LM, "architecture": architecture, **facts}
    )


def answers(shape: PairShape, method: Method) -> dict[Lane, LaneFit]:
    return {fit.lane: fit for fit in fit_lanes(shape, method)}


def test_every_lane_answers_every_method_with_a_reason() -> None:
    for method in Method:
        fits = fit_lanes(PairShape(info(), info()), method)
        assert [fit.lane for fit in fits] == list(Lane)
        assert all(fit.reason and (fit.versions is not None) is fit.can_serve for fit in fits)


@pytest.mark.parametrize(
    ("method", "architecture", "lane", "expected"),
    [
        (Method.DRAFT_MODEL, "LlamaForCausalLM", Lane.TRTLLM_ENGINE, "yes"),
        (Method.DRAFT_MODEL, "LlamaForCausalLM", Lane.TORCH, "yes"),
        (Method.DRAFT_MODEL, "Qwen3MoeForCausalLM", Lane.TORCH, "no"),
        (Method.EAGLE, "LlamaForCausalLM", Lane.TRTLLM_ENGINE, "yes"),
        (Method.EAGLE, "Qwen2ForCausalLM", Lane.TRTLLM_ENGINE, "unknown"),
        (Method.EAGLE, "LlamaForCausalLM", Lane.TRTLLM_LLMAPI, "no"),
        (Method.EAGLE3, "LlamaForCausalLM", Lane.TRTLLM_ENGINE, "no"),
        (Method.EAGLE3, "LlamaForCausalLM", Lane.TRTLLM_LLMAPI, "yes"),
        (Method.EAGLE3, "GptOssForCausalLM", Lane.TRTLLM_LLMAPI, "yes"),
        (Method.EAGLE3, "DeepseekV3ForCausalLM", Lane.TRTLLM_LLMAPI, "no"),
        (Method.EAGLE3, "MistralForCausalLM", Lane.TRTLLM_LLMAPI, "unknown"),
        (Method.MEDUSA, "Qwen2ForCausalLM", Lane.TRTLLM_ENGINE, "yes"),
        (Method.MEDUSA, "GemmaForCausalLM", Lane.TRTLLM_ENGINE, "no"),
        (Method.MEDUSA, "LlamaForCausalLM", Lane.TRTLLM_LLMAPI, "no"),
        (Method.NGRAM, "LlamaForCausalLM", Lane.TRTLLM_ENGINE, "no"),
        (Method.LOOKAHEAD, "LlamaForCausalLM", Lane.TRTLLM_ENGINE, "yes"),
        (Method.LOOKAHEAD, "LlamaForCausalLM", Lane.TRTLLM_LLMAPI, "no"),
    ],
)
def test_documented_answers(method: Method, architecture: str, lane: Lane, expected: str) -> None:
    fit = answers(PairShape(info(architecture), info()), method)[lane]
    seen = "yes" if fit.can_serve else "unknown" if is_unknown(fit) else "no"
    assert seen == expected, fit.reason


def test_mtp_needs_its_module_in_the_target() -> None:
    with_module = PairShape(info("DeepseekV3ForCausalLM", num_mtp_layers=1), None)
    assert answers(with_module, Method.MTP)[Lane.TRTLLM_LLMAPI].can_serve
    without = answers(PairShape(info("DeepseekV3ForCausalLM"), None), Method.MTP)[Lane.TRTLLM_LLMAPI]
    assert without.reason == "the target holds no MTP module"


def test_fp4_is_refused_on_hopper_whatever_the_method() -> None:
    fp4 = info(quantization=Quantization(method="NVFP4", bits=4, source="hf_quant_config.json"))
    for shape in (PairShape(fp4, info()), PairShape(info(), fp4)):
        fits = answers(shape, Method.DRAFT_MODEL)
        assert not any(fit.can_serve for fit in fits.values())
        assert "Blackwell" in fits[Lane.TRTLLM_LLMAPI].reason


@pytest.mark.parametrize("where", ["checkpoint", "cache"])
def test_an_fp4_cache_is_refused_on_hopper_like_fp4_weights(where: str) -> None:
    quantized = Quantization(method="FP8", bits=8, kv_cache_dtype="nvfp4", source="hf_quant_config.json")
    fp4 = info(quantization=quantized) if where == "checkpoint" else info(kv_dtype="NVFP4")

    fits = answers(PairShape(fp4, info()), Method.DRAFT_MODEL)

    for lane in (Lane.TRTLLM_ENGINE, Lane.TRTLLM_LLMAPI):
        assert not fits[lane].can_serve
        assert not is_unknown(fits[lane])
        assert "target KV cache is nvfp4: FP4 needs Blackwell" in fits[lane].reason


def test_mxfp4_is_unknown_and_nvfp4_beside_it_still_no() -> None:
    mxfp4 = info("GptOssForCausalLM", quantization=Quantization(method="mxfp4", bits=4, source="config.json"))
    nvfp4 = info(quantization=Quantization(method="NVFP4", bits=4, source="hf_quant_config.json"))

    assert is_unknown(answers(PairShape(mxfp4, info()), Method.EAGLE3)[Lane.TRTLLM_LLMAPI])
    unread = answers(PairShape(mxfp4, info()), Method.LOOKAHEAD)[Lane.TRTLLM_ENGINE]
    assert not unread.can_serve
    assert not is_unknown(unread)
    assert "no converter of the engine flow has a flag for it" in unread.reason
    refused = answers(PairShape(mxfp4, nvfp4), Method.EAGLE3)[Lane.TRTLLM_LLMAPI]
    assert not refused.can_serve
    assert not is_unknown(refused)


def test_a_trimmed_draft_model_is_for_the_torch_lane_alone() -> None:
    fits = answers(PairShape(info(), info(), has_trimmed_draft_model=True), Method.DRAFT_MODEL)
    assert [lane for lane, fit in fits.items() if fit.can_serve] == [Lane.TORCH]


def test_a_lane_serves_no_method_that_the_table_of_lanes_lacks() -> None:
    """Each answers another question, and a yes here beside a no there would send a person in circles."""
    target = info("DeepseekV3ForCausalLM", num_mtp_layers=1)
    for method in Method:
        for shape in (PairShape(info(), info()), PairShape(target, None)):
            served = {fit.lane for fit in fit_lanes(shape, method) if fit.can_serve}
            assert served <= {lane for lane in Lane if (lane, method) in SUPPORTED}, method
