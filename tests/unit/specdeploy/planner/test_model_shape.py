"""Sizes of models, as far as steps depend on them."""

import pytest

from helpers.cost_models import CONFIGS, LLAMA_8B
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, MoeShape, Quantization, VocabularySizes
from specdeploy.contract import Dtype
from specdeploy.errors import CheckpointError
from specdeploy.planner.model_shape import BFLOAT16, FLOAT32, FP4, FP8, INT4, INT8, MXFP4, shape_of, weight_format


def info_of(**changes: object) -> CheckpointInfo:
    """Llama-3.1-8B as its files state it."""
    fields: dict[str, object] = {
        "reference": "llama",
        "folder": "llama",
        "kind": CheckpointKind.CAUSAL_LM,
        "num_layers": 32,
        "hidden_size": 4096,
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "vocabulary": VocabularySizes(config_vocab_size=128256, lm_head_rows=128256),
        "kv_elements_per_token": 2 * 32 * 8 * 128,
    }
    return CheckpointInfo.model_validate(fields | changes)


def test_a_dense_model() -> None:
    assert shape_of(info_of()) == LLAMA_8B


def test_dtype_and_cache_can_be_chosen() -> None:
    assert shape_of(info_of(), dtype=Dtype.FLOAT32).weights == FLOAT32
    assert shape_of(info_of(dtype="float32")).kv_element_bytes == 4
    assert shape_of(info_of(), dtype=Dtype.FLOAT16).weights == BFLOAT16
    assert shape_of(info_of(), kv_cache_dtype="fp8").kv_element_bytes == 1
    assert shape_of(info_of(kv_dtype="fp8")).kv_element_bytes == 1


def test_quantised_while_converting_or_before() -> None:
    converted = shape_of(info_of(), quantization="fp8")
    assert (converted.weights, converted.experts, converted.lm_head) == (FP8, FP8, BFLOAT16)
    stored = Quantization(method="awq", bits=4, source="config.json")
    assert shape_of(info_of(quantization=stored), quantization="none").weights == INT4


def test_only_experts_are_narrow_in_mxfp4() -> None:
    stored = Quantization(method="mxfp4", source="config.json")
    shape = shape_of(info_of(quantization=stored))
    assert (shape.weights, shape.experts) == (BFLOAT16, MXFP4)


@pytest.mark.parametrize(
    ("name", "bits", "expected"),
    [
        ("fp8", None, FP8),
        ("compressed-tensors float-quantized", 8, FP8),
        ("modelopt NVFP4", None, FP4),
        ("gptq", 4, INT4),
        ("gptq", 8, INT8),
        ("awq", None, INT4),
        ("bitsandbytes", 8, INT8),
        ("unnamed", None, BFLOAT16),
    ],
)
def test_names_of_quantisations(name: str, bits: int | None, expected: object) -> None:
    assert weight_format(name, bits, BFLOAT16) == expected


def test_a_latent_cache_is_told_by_its_size() -> None:
    """DeepSeek-V3: projections that read the hidden state, by the parameters counted, are 187e6 - 117e6 a layer."""
    shape = shape_of(inspect_checkpoint(CONFIGS / "models" / "deepseek-ai--DeepSeek-V3"))
    assert shape.latent_in == pytest.approx(9720, rel=0.01)
    assert (shape.num_dense_layers, shape.num_moe_layers, shape.num_caching_layers) == (3, 58, 61)
    assert shape.kv_elements_per_token == 61 * 576
    assert shape.weights == FP8


def test_a_mixture_without_dense_layers_needs_no_intermediate_size() -> None:
    moe = MoeShape(
        num_experts=128, num_experts_per_token=8, num_moe_layers=32, num_dense_layers=0, expert_intermediate_size=768
    )
    shape = shape_of(info_of(moe=moe, intermediate_size=None))
    assert (shape.expert_size, shape.shared_size, shape.num_dense_layers) == (768, 0, 0)


def test_shared_experts_count_together() -> None:
    moe = MoeShape(
        num_experts=8,
        num_experts_per_token=2,
        num_shared_experts=2,
        num_moe_layers=32,
        num_dense_layers=0,
        expert_intermediate_size=100,
    )
    assert shape_of(info_of(moe=moe)).shared_size == 200


def test_layers_without_a_cache_do_not_attend() -> None:
    assert shape_of(info_of(kv_elements_per_token=2 * 8 * 8 * 128)).num_caching_layers == 8


@pytest.mark.parametrize("name", ["hidden_size", "num_layers", "num_heads", "head_dim", "intermediate_size"])
def test_a_size_that_is_not_stated_is_named(name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        shape_of(info_of(**{name: None}))
