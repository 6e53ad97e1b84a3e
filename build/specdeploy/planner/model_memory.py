"""What one model takes on one GPU: its share of the weights, its activations, its bytes of cache per token.

Weights and caches follow from shapes; activations are an estimate whose assumption stands in its line.
"""

import math
from dataclasses import dataclass

from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind
from specdeploy.contract import EngineModel, MemoryLine
from specdeploy.errors import CheckpointError
from specdeploy.planner.weight_bytes import num_norm_elements, num_table_elements

_LOGITS_BYTES = 4  # logits are float32
_LOGITS_COPIES = 2  # logits, and the probabilities that sampling makes of them


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One engine (or LLM instance, or draft head) as it will lie in memory.

    `gpu_ids` in the order of ranks (rank = stage x tensor_parallel + shard); only the first
    tensor_parallel x pipeline_parallel of them are used, and without any the ranks count from 0.
    `weight_bytes_override` are the bytes of all weights where they are not those of the checkpoint (cast or quantised:
    `estimate_weight_bytes`; heads added). `kv_element_bytes` is 2 for 16 bit, 1 for fp8.
    `shards_embedding`: whether tensor parallelism splits the token embedding; the converters of the engine flow do so
    with `--use_parallel_embedding` only. `reserves` are further lines on each of its GPUs.
    """

    model: EngineModel
    info: CheckpointInfo
    tensor_parallel: int
    pipeline_parallel: int
    gpu_ids: tuple[int, ...]
    weight_bytes_override: int | None
    kv_element_bytes: float
    shards_embedding: bool = True
    reserves: tuple[MemoryLine, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """GPU of each rank."""
        world = self.tensor_parallel * self.pipeline_parallel
        return self.gpu_ids[:world] or tuple(range(world))


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Sizes of one step, the same for every engine."""

    max_num_tokens: int
    num_logit_rows: int


# --- weights --------------------------------------------------------------------------------------------------------


def weights_line(model: LoadedModel, gpu_id: int) -> MemoryLine:
    """Weights of one rank: shards of all but the norms, its stage's layers, embedding first and output layer last."""
    info, shards, stages = model.info, model.tensor_parallel, model.pipeline_parallel
    total = _weight_bytes(model)
    table, head = _table_bytes(model, total)
    norms = min(num_norm_elements(info) * _element_bytes(model, total), total - table - head)
    layers = total - table - head - norms
    stage = model.ranks.index(gpu_id) // shards
    part, text = layers, f"{layers} B of layers"
    if stages > 1:
        num_layers = _fact(info, "num_layers")
        part = math.ceil(layers * math.ceil(num_layers / stages) / num_layers)
        text = f"{part} B of layers in stage {stage + 1} of {stages}"
    # A tied table serves as output layer too. Whether an engine keeps one copy or two is not stated: two are counted.
    second = table if info.tie_word_embeddings else head
    own_table, own_head = (table if stage == 0 else 0), (second if stage == stages - 1 else 0)
    sharded = part + own_head + (own_table if model.shards_embedding else 0)
    whole = norms + (0 if model.shards_embedding else own_table)
    text += f" + embedding {own_table}" if model.shards_embedding else ""
    text += f" + output layer {own_head}" + (" (tied, counted again)" if info.tie_word_embeddings and own_head else "")
    copied = f"norms {norms}" + ("" if model.shards_embedding else f" + embedding {own_table}")
    return MemoryLine(
        subject=f"weights of {model.model}",
        formula=f"({text}) / {shards} + {copied}",
        num_bytes=math.ceil(sharded / shards) + whole,
    )


def _weight_bytes(model: LoadedModel) -> int:
    if model.weight_bytes_override is not None:
        return model.weight_bytes_override
    if model.info.num_bytes is not None:
        return model.info.num_bytes
    return _fact(model.info, "num_parameters") * 2


def _element_bytes(model: LoadedModel, total: int) -> int:
    """Bytes of a weight that is not quantised: 4 where the whole checkpoint is that wide, else 2."""
    parameters = model.info.num_parameters
    return 4 if parameters and total > 3 * parameters else 2


def _table_bytes(model: LoadedModel, total: int) -> tuple[int, int]:
    """Bytes of the token embedding and of the output layer (0 when tied); 0, 0 for a head, which borrows both."""
    info = model.info
    if info.kind is not CheckpointKind.CAUSAL_LM:
        return 0, 0
    table = min(num_table_elements(info) * _element_bytes(model, total), total)
    head = 0 if info.tie_word_embeddings else min(table, total - table)
    return table, head


# --- activations and caches -----------------------------------------------------------------------------------------


def activations_line(model: LoadedModel, step: StepSizes) -> MemoryLine:
    """Activations of one decoder block at the largest step, 16 bit, plus logits.

    One block, because buffers are used again from layer to layer, and linear in the tokens of a step
    (NVIDIA/TensorRT-LLM docs/source/reference/memory.md@5a211b91). The factors are an estimate: residual stream and its
    norm, queries, keys and values, gate and up projection with their product.
    """
    info, shards = model.info, model.tensor_parallel
    if info.kind is CheckpointKind.MEDUSA:
        return MemoryLine(subject=f"activations of {model.model}", formula="counted with its target", num_bytes=0)
    hidden = _fact(info, "hidden_size")
    heads, kv_heads = info.num_heads or 0, info.num_kv_heads or info.num_heads or 0
    qkv = math.ceil((heads + 2 * kv_heads) * (info.head_dim or 0) / shards)
    mlp = math.ceil(3 * _intermediate_size(info) / shards)
    block = step.max_num_tokens * (2 * hidden + qkv + mlp) * 2
    trimmed = info.head.draft_vocab_size if info.head is not None else None
    vocabulary = info.vocabulary.lm_head_rows or trimmed or info.vocabulary.config_vocab_size or 0
    logits = step.num_logit_rows * vocabulary * _LOGITS_BYTES * _LOGITS_COPIES
    return MemoryLine(
        subject=f"activations of {model.model}",
        formula=(
            f"estimated: {step.max_num_tokens} tokens x (2 x {hidden} + {qkv} + {mlp}) x 2 B + {step.num_logit_rows} "
            f"rows x {vocabulary} logits x {_LOGITS_BYTES} B x {_LOGITS_COPIES}"
        ),
        num_bytes=block + logits,
    )


def _intermediate_size(info: CheckpointInfo) -> int:
    """Width of the feed-forward part that one token passes: of all its experts together in a mixture."""
    dense = info.intermediate_size or 0
    if info.moe is None:
        return dense
    experts = info.moe.num_experts_per_token * (info.moe.expert_intermediate_size or dense)
    return max(dense, experts + (info.moe.shared_intermediate_size or 0))


def kv_bytes_per_token(model: LoadedModel) -> int:
    """2 x layers x ceil(kv_heads / tp) x head_dim x bytes on one GPU; fewer heads than shards are copied.

    A latent cache (MLA) is whole on every shard. Medusa heads keep none.
    """
    info = model.info
    if info.kind is CheckpointKind.MEDUSA:
        return 0
    elements = _fact(info, "kv_elements_per_token")
    row = 2 * (info.num_kv_heads or 0) * (info.head_dim or 0)
    if row and elements % row == 0 and elements // row <= (info.num_layers or 0):
        kv_heads = info.num_kv_heads or 0
        stage_layers = math.ceil(elements // row / model.pipeline_parallel)
        per_gpu = 2 * stage_layers * math.ceil(kv_heads / model.tensor_parallel) * (info.head_dim or 0)
    else:
        per_gpu = math.ceil(elements / model.pipeline_parallel)
    return math.ceil(per_gpu * model.kv_element_bytes)


def _fact(info: CheckpointInfo, name: str) -> int:
    value: int | None = getattr(info, name)
    if value is None:
        raise CheckpointError(
            f"{info.reference}: {name} is not stated by its files, and the memory of an engine cannot be counted "
            "without it. Complete its config.json"
        )
    return value
