"""How many tokens the key/value caches of a deployment may hold: bytes of one GPU, counted line by line.

    memory of the GPU
      - weights of every engine on it
      - activations of every engine on it
      - runtime reserve of every engine on it
      - what `kv_cache_fraction` keeps free
      = key/value caches, shared out in tokens

Every GPU is counted, and the one that allows the fewest tokens decides: a draft on one rank of its target makes that
rank the full one. Nothing here was measured on a GPU. Weights and caches follow from shapes; activations and the
reserve are estimates whose assumption stands in their line.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind
from specdeploy.contract import Dtype, EngineModel, MemoryBudget, MemoryLine
from specdeploy.errors import CheckpointError
from specdeploy.planner.hardware import Hardware
from specdeploy.units import BYTES_PER_GIB, format_bytes

# Paged caches are handed out in blocks of this many tokens (`trtllm-build --tokens_per_block`, default 32).
TOKENS_PER_BLOCK = 32
# Assumption, per engine and GPU: CUDA context, loaded kernels, NCCL buffers, workspaces and decoder state.
RUNTIME_RESERVE_BYTES = 2 * BYTES_PER_GIB
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
    with `--use_parallel_embedding` only.
    """

    model: EngineModel
    info: CheckpointInfo
    tensor_parallel: int
    pipeline_parallel: int
    gpu_ids: tuple[int, ...]
    weight_bytes_override: int | None
    kv_element_bytes: float
    shards_embedding: bool = True

    @property
    def ranks(self) -> tuple[int, ...]:
        """GPU of each rank."""
        world = self.tensor_parallel * self.pipeline_parallel
        return self.gpu_ids[:world] or tuple(range(world))


@dataclass(frozen=True, slots=True)
class _Share:
    """What one engine needs on one GPU."""

    model: EngineModel
    lines: tuple[MemoryLine, ...]
    kv_bytes_per_token: int

    @property
    def fixed_bytes(self) -> int:
        return sum(line.num_bytes for line in self.lines)


@dataclass(frozen=True, slots=True)
class _Step:
    """Sizes of one step, the same for every engine."""

    max_num_tokens: int
    num_logit_rows: int


@dataclass(frozen=True, slots=True)
class _GpuBudget:
    """One GPU counted: room is what its engines leave, kv the part of it that caches may use."""

    gpu_id: int
    shares: tuple[_Share, ...]
    room_bytes: int
    kv_bytes: int
    kv_tokens: Mapping[EngineModel, int]

    @property
    def fewest_tokens(self) -> int:
        return min(self.kv_tokens.values(), default=0)


def budget_memory(
    hardware: Hardware,
    models: Sequence[LoadedModel],
    *,
    kv_cache_fraction: float,
    max_num_tokens: int,
    max_seq_len: int,
    max_rows: int,
    is_draft_pair: bool,
    max_draft_tokens: int = 0,
) -> MemoryBudget:
    """Tokens for every engine's key/value cache, from the GPU that allows the fewest.

    `is_draft_pair`: target and draft hold the same tokens, so both get the same number; otherwise several engines share
    the bytes equally. `max_draft_tokens` are the tokens one step may verify besides the target's own (nodes of a tree):
    they add rows of logits. Token counts are whole blocks of 32. Lines plus `kv_bytes` give the GPU's memory exactly;
    `kv_bytes` <= 0 means that it does not fit, which callers refuse with the lines. Raises `CheckpointError` when the
    files do not say what a formula needs.
    """
    step = _Step(max_num_tokens, max_rows * (1 + max_draft_tokens))
    budgets = _count_gpus(hardware, models, step, kv_cache_fraction, is_draft_pair=is_draft_pair)
    fullest = min(budgets, key=lambda budget: (budget.fewest_tokens, budget.kv_bytes))
    kept_free = MemoryLine(
        subject="kept free",
        formula=f"(1 - kv_cache_fraction {kv_cache_fraction:g}) x {fullest.room_bytes} left",
        num_bytes=fullest.room_bytes - fullest.kv_bytes,
    )
    alone = [model for model in models if model.model is EngineModel.TARGET] or list(models)
    without_draft = _count_gpus(hardware, alone, step, kv_cache_fraction, is_draft_pair=False)
    kv_tokens = {model: min(b.kv_tokens[model] for b in budgets if model in b.kv_tokens) for model in _names(models)}
    if is_draft_pair:
        kv_tokens = dict.fromkeys(kv_tokens, min(kv_tokens.values()))
    return MemoryBudget(
        gpu=f"{hardware.name} (GPU {fullest.gpu_id})",
        num_bytes=hardware.memory_bytes,
        lines=(*(line for share in fullest.shares for line in share.lines), kept_free),
        kv_bytes=fullest.kv_bytes,
        kv_bytes_per_token={model.model: _kv_bytes_per_token(model) for model in models},
        kv_tokens=kv_tokens,
        max_sequences=min(kv_tokens.values()) // max_seq_len,
        max_sequences_without_draft=min(budget.fewest_tokens for budget in without_draft) // max_seq_len,
    )


def describe_budget(budget: MemoryBudget) -> list[str]:
    """The budget as aligned lines of text: what is taken, what is left, and how many tokens that makes."""
    rows = [(f"memory of {budget.gpu}", budget.num_bytes, "")]
    rows += [(f"- {line.subject}", line.num_bytes, line.formula) for line in budget.lines]
    rows.append(("= key/value caches", budget.kv_bytes, "" if budget.kv_bytes > 0 else "DOES NOT FIT"))
    width = max(len(subject) for subject, _, _ in rows)
    lines = [
        f"{subject:<{width}}  {_signed(num_bytes):>10}  {formula}".rstrip() for subject, num_bytes, formula in rows
    ]
    lines += [
        f"{model}: {tokens} tokens x {budget.kv_bytes_per_token[model]} B = "
        f"{format_bytes(tokens * budget.kv_bytes_per_token[model])}"
        for model, tokens in budget.kv_tokens.items()
    ]
    lines.append(
        f"full-length requests at once: {budget.max_sequences} "
        f"({budget.max_sequences_without_draft} with the target alone)"
    )
    return lines


def estimate_weight_bytes(info: CheckpointInfo, dtype: Dtype, *, is_fp8_quantized: bool) -> int | None:
    """Bytes of all weights once loaded: cast to `dtype`, or fp8 with embedding, output layer and norms in `dtype`.

    A checkpoint that is quantised already keeps its size. None = the files do not say.
    """
    if info.quantization is not None or info.num_parameters is None:
        return info.num_bytes
    element_bytes = 4 if dtype is Dtype.FLOAT32 else 2
    if not is_fp8_quantized:
        return info.num_parameters * element_bytes
    table = (info.vocabulary.embedding_rows or info.vocabulary.config_vocab_size or 0) * (info.hidden_size or 0)
    head = 0 if info.tie_word_embeddings else table
    kept = min(info.num_parameters, table + head + _num_norm_elements(info))
    return (info.num_parameters - kept) + kept * element_bytes


# --- one GPU --------------------------------------------------------------------------------------------------------


def _count_gpus(
    hardware: Hardware, models: Sequence[LoadedModel], step: _Step, kv_cache_fraction: float, *, is_draft_pair: bool
) -> list[_GpuBudget]:
    gpu_ids = sorted({gpu_id for model in models for gpu_id in model.ranks})
    return [
        _count_gpu(hardware, gpu_id, models, step, kv_cache_fraction, is_draft_pair=is_draft_pair) for gpu_id in gpu_ids
    ]


def _count_gpu(
    hardware: Hardware,
    gpu_id: int,
    models: Sequence[LoadedModel],
    step: _Step,
    kv_cache_fraction: float,
    *,
    is_draft_pair: bool,
) -> _GpuBudget:
    shares = tuple(_share(model, gpu_id, step) for model in models if gpu_id in model.ranks)
    room = hardware.memory_bytes - sum(share.fixed_bytes for share in shares)
    kv_bytes = math.floor(room * kv_cache_fraction) if room > 0 else room
    if is_draft_pair:
        per_token = sum(share.kv_bytes_per_token for share in shares)
        tokens = {share.model: _whole_blocks(kv_bytes, per_token) for share in shares}
    else:
        tokens = {share.model: _whole_blocks(kv_bytes // len(shares), share.kv_bytes_per_token) for share in shares}
    return _GpuBudget(gpu_id, shares, room, kv_bytes, tokens)


def _share(model: LoadedModel, gpu_id: int, step: _Step) -> _Share:
    lines = (
        _weights_line(model, gpu_id),
        _activations_line(model, step),
        MemoryLine(
            subject=f"runtime of {model.model}",
            formula="assumed: CUDA context, kernels, NCCL, workspaces, decoder state",
            num_bytes=RUNTIME_RESERVE_BYTES,
        ),
    )
    return _Share(model.model, lines, _kv_bytes_per_token(model))


def _whole_blocks(num_bytes: int, bytes_per_token: int) -> int:
    """Tokens that fit, rounded down to whole blocks of the paged cache."""
    if num_bytes <= 0 or bytes_per_token <= 0:
        return 0
    return num_bytes // bytes_per_token // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK


def _names(models: Sequence[LoadedModel]) -> Iterator[EngineModel]:
    yield from (model.model for model in models)


# --- weights --------------------------------------------------------------------------------------------------------


def _weights_line(model: LoadedModel, gpu_id: int) -> MemoryLine:
    """Weights of one rank: shards of all but the norms, its stage's layers, embedding first and output layer last."""
    info, shards, stages = model.info, model.tensor_parallel, model.pipeline_parallel
    total = _weight_bytes(model)
    table, head = _table_bytes(model, total)
    norms = min(_num_norm_elements(info) * _element_bytes(model, total), total - table - head)
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
    rows = info.vocabulary.embedding_rows or info.vocabulary.config_vocab_size or 0
    table = min(rows * (info.hidden_size or 0) * _element_bytes(model, total), total)
    head = 0 if info.tie_word_embeddings else min(table, total - table)
    return table, head


def _num_norm_elements(info: CheckpointInfo) -> int:
    """Two norms a layer and one at the end, each as wide as the model."""
    return (2 * (info.num_layers or 0) + 1) * (info.hidden_size or 0)


# --- activations and caches -----------------------------------------------------------------------------------------


def _activations_line(model: LoadedModel, step: _Step) -> MemoryLine:
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
    vocabulary = info.vocabulary.lm_head_rows or info.vocabulary.config_vocab_size or 0
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


def _kv_bytes_per_token(model: LoadedModel) -> int:
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


def _signed(num_bytes: int) -> str:
    return format_bytes(num_bytes) if num_bytes >= 0 else f"-{format_bytes(-num_bytes)}"
