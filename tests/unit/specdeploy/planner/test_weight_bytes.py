"""Weights by parameters, where no file is there to be weighed."""

import pytest

from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, MoeShape, Quantization, VocabularySizes
from specdeploy.contract import Dtype
from specdeploy.planner.weight_bytes import estimate_weight_bytes

# embedding and output layer 1000 x 64 each, norms 5 x 64, the rest 900 000 - 128 320 = 771 680
SMALL = CheckpointInfo(
    reference="small",
    folder="/small",
    kind=CheckpointKind.CAUSAL_LM,
    num_layers=2,
    hidden_size=64,
    num_parameters=900_000,
    vocabulary=VocabularySizes(config_vocab_size=1000),
    tie_word_embeddings=False,
)


def quantized(method: str, bits: int | None) -> CheckpointInfo:
    stated = Quantization(method=method, bits=bits, source="config.json")
    return SMALL.model_copy(update={"quantization": stated})


@pytest.mark.parametrize(
    ("info", "num_bytes"),
    [
        (SMALL, 1_800_000),
        (quantized("fp8", 8), 771_680 + 2 * 128_320),
        (quantized("modelopt NVFP4", 4), round(771_680 * 4.5 / 8) + 2 * 128_320),
        (quantized("awq", 4), round(771_680 * 4.16 / 8) + 2 * 128_320),
        (quantized("gptq", 3), round(771_680 * 3 / 8) + 2 * 128_320),
        (quantized("unheard of", None), None),
    ],
)
def test_without_files(info: CheckpointInfo, num_bytes: int | None) -> None:
    assert estimate_weight_bytes(info, Dtype.BFLOAT16, is_fp8_quantized=False) == num_bytes


def test_files_win_over_arithmetic() -> None:
    info = quantized("fp8", 8).model_copy(update={"num_bytes": 123})
    assert estimate_weight_bytes(info, Dtype.BFLOAT16, is_fp8_quantized=False) == 123


def test_the_modules_of_a_quantised_checkpoint_are_loaded_with_it() -> None:
    info = quantized("fp8", 8).model_copy(update={"left_out_parameters": {"mtp": 10_000, "model.visual": 99}})
    assert estimate_weight_bytes(info, Dtype.BFLOAT16, is_fp8_quantized=False) == 771_680 + 10_000 + 2 * 128_320


def test_mxfp4_narrows_the_experts_alone() -> None:
    moe = MoeShape(
        num_experts=4, num_experts_per_token=1, num_moe_layers=2, num_dense_layers=0, expert_intermediate_size=128
    )
    info = quantized("mxfp4", 4).model_copy(update={"moe": moe})
    experts = 2 * 4 * 3 * 64 * 128

    assert estimate_weight_bytes(info, Dtype.BFLOAT16, is_fp8_quantized=False) == round(experts * 4.25 / 8) + 2 * (
        900_000 - experts
    )
