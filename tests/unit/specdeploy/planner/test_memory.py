"""Budgets worked out by hand for published shapes, and the rules behind them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, MoeShape, Quantization, VocabularySizes
from specdeploy.config.schema import Gpu
from specdeploy.contract import Dtype, EngineModel, MemoryBudget
from specdeploy.errors import CheckpointError
from specdeploy.planner.hardware import HARDWARE
from specdeploy.planner.memory import budget_memory, describe_budget
from specdeploy.planner.model_memory import LoadedModel
from specdeploy.planner.weight_bytes import estimate_weight_bytes

VOCABULARY = 128_256


def llama(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, mlp: int, parameters: int, **changes: Any
) -> CheckpointInfo:
    settings: dict[str, Any] = {
        "reference": "meta/llama",
        "folder": "/checkpoints/llama",
        "kind": CheckpointKind.CAUSAL_LM,
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": mlp,
        "num_parameters": parameters,
        "num_bytes": 2 * parameters,
        "vocabulary": VocabularySizes(config_vocab_size=VOCABULARY, embedding_rows=VOCABULARY),
        "tie_word_embeddings": False,
        "kv_elements_per_token": 2 * layers * kv_heads * head_dim,
        **changes,
    }
    return CheckpointInfo.model_validate(settings)


LLAMA_8B = llama(32, 4096, 32, 8, 128, 14_336, 8_030_261_248)
LLAMA_70B = llama(80, 8192, 64, 8, 128, 28_672, 70_553_706_496)
LLAMA_405B = llama(126, 16_384, 128, 8, 128, 53_248, 405_853_388_800)
LLAMA_1B = llama(16, 2048, 32, 8, 64, 8192, 1_235_814_400, tie_word_embeddings=True)
LLAMA_3B = llama(28, 3072, 24, 8, 128, 8192, 3_212_749_824, tie_word_embeddings=True)


def loaded(info: CheckpointInfo, model: EngineModel = EngineModel.TARGET, **changes: Any) -> LoadedModel:
    settings: dict[str, Any] = {
        "model": model,
        "info": info,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "gpu_ids": (),
        "weight_bytes_override": None,
        "kv_element_bytes": 2.0,
        **changes,
    }
    return LoadedModel(**settings)


def budget(gpu: Gpu, *models: LoadedModel, **changes: Any) -> MemoryBudget:
    settings: dict[str, Any] = {
        "kv_cache_fraction": 0.85,
        "max_num_tokens": 8192,
        "max_seq_len": 8192,
        "max_rows": 8,
        "is_draft_pair": False,
        **changes,
    }
    return budget_memory(HARDWARE[gpu], models, **settings)


def line(found: MemoryBudget, subject: str) -> int:
    return next(entry.num_bytes for entry in found.lines if entry.subject == subject)


def test_8b_on_one_h100() -> None:
    found = budget(Gpu.H100, loaded(LLAMA_8B))

    assert line(found, "weights of target") == 16_060_522_496
    # 8192 x (2 x 4096 + 48 x 128 + 3 x 14336) x 2 + 8 x 128256 x 4 x 2
    assert line(found, "activations of target") == 939_524_096 + 8_208_384
    assert line(found, "runtime of target") == 2_147_483_648
    assert found.kv_bytes == 55_819_385_651  # 85% of the 65 669 865 472 left
    assert found.kv_bytes_per_token == {EngineModel.TARGET: 131_072}  # 2 x 32 x 8 x 128 x 2
    assert found.kv_tokens == {EngineModel.TARGET: 425_856}  # 425 868 in whole blocks of 32
    assert (found.max_sequences, found.max_sequences_without_draft) == (51, 51)


def test_70b_fp8_with_1b_on_one_h200() -> None:
    weights = estimate_weight_bytes(LLAMA_70B, Dtype.BFLOAT16, is_fp8_quantized=True)
    # embedding, output layer and norms stay in 16 bit: 70 553 706 496 + 2 x 128256 x 8192 + 161 x 8192
    assert weights == 72_656_371_712
    found = budget(
        Gpu.H200,
        loaded(LLAMA_70B, weight_bytes_override=weights),
        loaded(LLAMA_1B, EngineModel.DRAFT),
        max_rows=16,
        max_draft_tokens=5,
        is_draft_pair=True,
    )

    assert line(found, "weights of target") == 72_656_371_712
    assert line(found, "weights of draft") == 2_471_628_800 + 525_336_576  # the tied table twice
    assert line(found, "activations of target") == 1_845_493_760 + 98_500_608  # 96 rows of logits
    assert line(found, "activations of draft") == 520_093_696 + 98_500_608
    assert found.kv_bytes == 49_715_740_902  # 85% of 58 489 106 944
    assert found.kv_bytes_per_token == {EngineModel.TARGET: 327_680, EngineModel.DRAFT: 32_768}
    assert found.kv_tokens == {EngineModel.TARGET: 137_920, EngineModel.DRAFT: 137_920}
    assert (found.max_sequences, found.max_sequences_without_draft) == (16, 20)


def test_405b_fp8_on_four_h200_with_3b_on_one_of_them() -> None:
    target = loaded(
        LLAMA_405B,
        tensor_parallel=4,
        gpu_ids=(0, 1, 2, 3),
        weight_bytes_override=410_000_000_000,
        shards_embedding=False,
    )
    draft = loaded(LLAMA_3B, EngineModel.DRAFT, gpu_ids=(0,))
    found = budget(Gpu.H200, target, draft, max_rows=16, max_draft_tokens=8, is_draft_pair=True)

    assert found.gpu == "H200 SXM (GPU 0)"  # the rank that holds the draft as well
    # (401 586 324 480 of layers + 4 202 692 608 of output layer) / 4 + norms 8 290 304 + embedding 4 202 692 608
    assert line(found, "weights of target") == 105_658_237_184
    assert line(found, "weights of draft") == 7_213_504_512
    assert line(found, "activations of target") == 1_266_679_808 + 147_750_912
    assert found.kv_bytes == 18_431_320_793  # 85% of 21 683 906 816
    assert found.kv_bytes_per_token == {EngineModel.TARGET: 129_024, EngineModel.DRAFT: 114_688}
    assert found.kv_tokens == {EngineModel.TARGET: 75_616, EngineModel.DRAFT: 75_616}
    # Without the draft 31 779 848 448 are left on every GPU: 209 344 tokens.
    assert found.max_sequences_without_draft == 25


def test_a_draft_on_all_ranks_leaves_more_than_on_one() -> None:
    target = loaded(LLAMA_405B, tensor_parallel=4, weight_bytes_override=410_000_000_000)
    on_all = budget(Gpu.H200, target, loaded(LLAMA_3B, EngineModel.DRAFT, tensor_parallel=4), is_draft_pair=True)
    on_one = budget(Gpu.H200, target, loaded(LLAMA_3B, EngineModel.DRAFT, gpu_ids=(2,)), is_draft_pair=True)

    assert on_one.gpu == "H200 SXM (GPU 2)"
    assert on_all.kv_tokens[EngineModel.TARGET] > on_one.kv_tokens[EngineModel.TARGET]


def test_two_engines_that_are_no_pair_share_the_bytes_equally() -> None:
    alone = budget(Gpu.H100, loaded(LLAMA_8B))
    both = budget(Gpu.H100, loaded(LLAMA_8B), loaded(LLAMA_8B, EngineModel.TARGET_PLAIN))

    assert both.kv_tokens[EngineModel.TARGET] == both.kv_tokens[EngineModel.TARGET_PLAIN]
    assert both.kv_tokens[EngineModel.TARGET] * 2 * 131_072 <= both.kv_bytes
    assert both.max_sequences_without_draft == alone.max_sequences


@pytest.mark.parametrize(
    ("kv_heads", "tensor_parallel", "per_gpu"),
    [(8, 1, 8), (8, 4, 2), (8, 8, 1), (2, 4, 1), (6, 4, 2)],  # fewer heads than shards are copied
)
def test_shared_heads_are_divided_or_copied(kv_heads: int, tensor_parallel: int, per_gpu: int) -> None:
    info = llama(4, 1024, 8, kv_heads, 128, 2048, 100_000_000)
    found = budget(Gpu.H100, loaded(info, tensor_parallel=tensor_parallel))

    assert found.kv_bytes_per_token[EngineModel.TARGET] == 2 * 4 * per_gpu * 128 * 2


def test_a_quantised_cache_and_pipeline_stages() -> None:
    found = budget(Gpu.H100, loaded(LLAMA_70B, pipeline_parallel=4, kv_element_bytes=1.0))

    assert found.kv_bytes_per_token[EngineModel.TARGET] == 2 * 20 * 8 * 128
    # Layers of a stage are a quarter; the first also holds the embedding, the last the output layer.
    layers = 2 * (70_553_706_496 - 2 * VOCABULARY * 8192 - 161 * 8192)
    assert line(found, "weights of target") == layers // 4 + 2 * VOCABULARY * 8192 + 2 * 161 * 8192


def test_tied_embeddings_are_counted_as_embedding_and_as_output_layer() -> None:
    tied = budget(Gpu.H100, loaded(LLAMA_1B))
    untied = budget(Gpu.H100, loaded(LLAMA_1B.model_copy(update={"tie_word_embeddings": False})))

    table = VOCABULARY * 2048 * 2
    assert line(tied, "weights of target") - line(untied, "weights of target") == table
    assert "tied, counted again" in tied.lines[0].formula


def test_a_latent_cache_is_whole_on_every_shard() -> None:
    info = llama(61, 7168, 128, 128, 128, 18_432, 671_000_000_000, kv_elements_per_token=61 * 576)
    found = budget(Gpu.H200, loaded(info, tensor_parallel=8, weight_bytes_override=700_000_000_000))

    assert found.kv_bytes_per_token[EngineModel.TARGET] == 61 * 576 * 2


def test_experts_widen_the_activations() -> None:
    moe = MoeShape(
        num_experts=8, num_experts_per_token=2, num_moe_layers=32, num_dense_layers=0, expert_intermediate_size=14_336
    )
    dense, mixed = (budget(Gpu.H100, loaded(LLAMA_8B.model_copy(update={"moe": shape}))) for shape in (None, moe))

    assert line(mixed, "activations of target") - line(dense, "activations of target") == 8192 * 3 * 14_336 * 2


def test_medusa_heads_cache_nothing() -> None:
    heads = CheckpointInfo(reference="heads", folder="/heads", kind=CheckpointKind.MEDUSA, num_bytes=1_000_000)
    found = budget(Gpu.H100, loaded(LLAMA_8B), loaded(heads, EngineModel.DRAFT), is_draft_pair=True)

    assert found.kv_bytes_per_token == {EngineModel.TARGET: 131_072, EngineModel.DRAFT: 0}
    assert found.kv_tokens[EngineModel.TARGET] > 0


def test_what_does_not_fit_is_a_budget_with_nothing_left() -> None:
    found = budget(Gpu.H100, loaded(LLAMA_70B))

    assert found.kv_bytes < 0
    assert found.kv_tokens == {EngineModel.TARGET: 0}
    assert found.max_sequences == 0
    assert "DOES NOT FIT" in "\n".join(describe_budget(found))


def test_a_fact_that_the_files_do_not_state_is_named() -> None:
    info = LLAMA_8B.model_copy(update={"kv_elements_per_token": None})
    with pytest.raises(CheckpointError, match="meta/llama: kv_elements_per_token is not stated"):
        budget(Gpu.H100, loaded(info))


def test_the_description_names_every_line_and_the_tokens() -> None:
    found = budget(Gpu.H100, loaded(LLAMA_8B))
    text = "\n".join(describe_budget(found))

    assert all(entry.subject in text and entry.formula in text for entry in found.lines)
    assert "target: 425856 tokens x 131072 B = 52.0 GiB" in text
    assert "full-length requests at once: 51 (51 with the target alone)" in text


@pytest.mark.parametrize(
    ("dtype", "is_fp8", "changes", "due"),
    [
        (Dtype.BFLOAT16, False, {"num_bytes": 4 * 8_030_261_248}, 2 * 8_030_261_248),  # stored in float32
        (Dtype.FLOAT32, False, {}, 4 * 8_030_261_248),
        (Dtype.FLOAT16, False, {"quantization": Quantization(method="fp8", source="x"), "num_bytes": 9}, 9),
        (Dtype.FLOAT16, False, {"num_parameters": None, "num_bytes": 7}, 7),
        # 8 030 261 248 + 2 x 128256 x 4096 + 65 x 4096
        (Dtype.FLOAT16, True, {}, 9_081_200_640),
    ],
)
def test_weights_once_loaded(dtype: Dtype, is_fp8: bool, changes: dict[str, Any], due: int) -> None:
    info = LLAMA_8B.model_copy(update=changes)
    assert estimate_weight_bytes(info, dtype, is_fp8_quantized=is_fp8) == due


@given(
    fraction=st.floats(0.05, 0.99),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    draft_ranks=st.sampled_from([1, 2, 4, 8]),
    max_rows=st.integers(1, 256),
    tree=st.integers(0, 100),
)
def test_lines_add_up_and_tokens_fit_on_every_gpu(
    fraction: float, tensor_parallel: int, draft_ranks: int, max_rows: int, tree: int
) -> None:
    found = budget(
        Gpu.H200,
        loaded(LLAMA_70B, tensor_parallel=tensor_parallel),
        loaded(LLAMA_3B, EngineModel.DRAFT, tensor_parallel=min(draft_ranks, tensor_parallel)),
        kv_cache_fraction=fraction,
        max_rows=max_rows,
        max_draft_tokens=tree,
        is_draft_pair=True,
    )
    assert sum(entry.num_bytes for entry in found.lines) + found.kv_bytes == found.num_bytes
    used = sum(found.kv_tokens[model] * found.kv_bytes_per_token[model] for model in found.kv_tokens)
    assert used <= max(found.kv_bytes, 0)
    assert found.max_sequences <= found.max_sequences_without_draft
