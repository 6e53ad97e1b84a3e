"""Sizes of the published models and drafters, from their public config.json files."""

from dataclasses import replace

from specdeploy.checkpoint_contract import MoeShape
from specdeploy.contract import Method
from specdeploy.planner.draft_shape import DraftShape, draft_shape_of
from specdeploy.planner.model_shape import BFLOAT16, FP4, FP8, ModelShape
from specdeploy.planner_contract import DraftForm

EAGLE3_ROWS = 32000  # EAGLE-3 heads of these posts have an output layer of 32000 tokens


def _dense(
    layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocab: int, head_dim: int = 128
) -> ModelShape:
    return ModelShape(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        kv_elements_per_token=2 * layers * kv_heads * head_dim,
        intermediate_size=inner,
        vocab_size=vocab,
        lm_head_rows=vocab,
        attention_input=hidden,
    )


LLAMA_2_7B = _dense(32, 4096, 32, 32, 11008, 32000)
LLAMA_2_70B = _dense(80, 8192, 64, 8, 28672, 32000)
LLAMA_3_1B = replace(_dense(16, 2048, 32, 8, 8192, 128256, head_dim=64), is_tied=True)
LLAMA_3_3B = replace(_dense(28, 3072, 24, 8, 8192, 128256), is_tied=True)
LLAMA_3_8B = _dense(32, 4096, 32, 8, 14336, 128256)
LLAMA_3_70B = _dense(80, 8192, 64, 8, 28672, 128256)
LLAMA_3_405B = _dense(126, 16384, 128, 8, 53248, 128256)
QWEN3_8B = _dense(36, 4096, 32, 8, 12288, 151936)
TINYLLAMA = _dense(22, 2048, 32, 4, 5632, 32000, head_dim=64)

# Latent attention: 1536 + 576 outputs read the hidden state, and the second projections (1536 -> 24576, 512 -> 32768)
# have as many weights as 7606 more. In nvidia/DeepSeek-R1-FP4 only the experts are fp4.
DEEPSEEK_R1_FP4 = ModelShape(
    num_layers=61,
    hidden_size=7168,
    num_heads=128,
    num_kv_heads=128,
    head_dim=128,
    kv_elements_per_token=61 * 576,
    intermediate_size=18432,
    vocab_size=129280,
    lm_head_rows=129280,
    moe=MoeShape(
        num_experts=256,
        num_experts_per_token=8,
        num_shared_experts=1,
        num_moe_layers=58,
        num_dense_layers=3,
        expert_intermediate_size=2048,
    ),
    experts=FP4,
    attention_input=7168,
    latent_in=1536 + 576 + 7606,
)

GPT_OSS_120B = replace(
    _dense(36, 2880, 64, 8, 2880, 201088, head_dim=64),
    moe=MoeShape(
        num_experts=128,
        num_experts_per_token=4,
        num_moe_layers=36,
        num_dense_layers=0,
        expert_intermediate_size=2880,
    ),
    experts=FP4,
)


def in_fp8(shape: ModelShape) -> ModelShape:
    """The same model with layers in fp8."""
    return replace(shape, weights=FP8, experts=FP8)


def eagle(target: ModelShape) -> DraftShape:
    """A head of one layer like the target's and the target's output layer."""
    return draft_shape_of(Method.EAGLE, None, target)


def eagle3(target: ModelShape, form: DraftForm = DraftForm.CHAIN) -> DraftShape:
    """A head of one layer with an output layer of its own."""
    return draft_shape_of(Method.EAGLE3, None, target, form=form).with_lm_head_rows(EAGLE3_ROWS)


def mtp(target: ModelShape) -> DraftShape:
    """The target's own module, its experts in bfloat16."""
    return draft_shape_of(Method.MTP, None, replace(target, experts=BFLOAT16))


def draft_model(shape: ModelShape) -> DraftShape:
    """A small model as the drafter."""
    return DraftShape(
        Method.DRAFT_MODEL, DraftForm.CHAIN, shape, shape.hidden_size, shape.lm_head_rows, reads_prompts=True
    )
