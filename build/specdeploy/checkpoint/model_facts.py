"""Facts of a decoder-only transformer from its config.json, generation_config.json, tokenizer settings and headers.

Attributes are found by name, whatever the family calls them. What no known name states is None and listed; where a
family's own definition gives it (head_dim = hidden_size / heads of llama) the family is named here.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specdeploy.checkpoint.json_text import ObjectReader, load_json_object, read_regular_file
from specdeploy.checkpoint.safetensors_header import DTYPE_BITS, TensorEntry
from specdeploy.checkpoint_contract import MoeShape, Quantization, RopeScaling, SpecialTokens

# Families whose definition is head_dim = hidden_size / heads, and kv heads = heads, where config.json has no such key.
_HEAD_DIM_BY_DIVISION = {
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "phi3",
    "phi",
    "gpt2",
    "gpt_neox",
    "olmo2",
}
_KV_HEADS_LIKE_HEADS = {"llama", "phi3", "phi", "olmo2", "gpt2", "gpt_neox"}
_TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3", "gemma3_text", "gpt2"}

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# One routed expert, or all of a layer in one tensor. Shared experts and routers are not.
_ROUTED_EXPERT = re.compile(r"\.experts\.")
_EXPERT_OF_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\..*\.experts\.")
# Scales, zero points and buffers: numbers about parameters, not parameters.
_NO_PARAMETER = re.compile(
    r"(?:scales?|scale_inv|scale_2|qzeros|zero_point|weight_shape|g_idx|weight_g_idx|inv_freq|masked_bias|absmax"
    r"|quant_map|quant_state\..*|d2t|t2d|e_score_correction_bias)$"
)
_PACKED = re.compile(r"(?:qweight|weight_packed|_blocks)$")
_UNPACKED_DTYPES = ("BF16", "F16", "F32", "F64", "F8_", "I8")
_DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1}


# --- config.json ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Shapes as config.json states them, and where it is silent as the headers show them."""

    num_layers: int | None
    hidden_size: int | None
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    intermediate_size: int | None
    vocab_size: int | None
    max_positions: int | None
    sliding_window: int | None
    tie_word_embeddings: bool | None


def text_config(config: ObjectReader) -> ObjectReader:
    """The part of config.json about the language model: of a multimodal checkpoint the nested one."""
    for key in ("text_config", "llm_config", "language_config"):
        if config.content.get(key) is not None and config.content.get("hidden_size") is None:
            return config.nested(key)
    return config


def decoder_shape(config: ObjectReader, model_type: str | None, tensors: Mapping[str, TensorEntry]) -> DecoderShape:
    """Sizes of the decoder; problems and what is not found are left in `config`."""
    heads = config.wanted_size("num_attention_heads", "n_head", "n_heads", "num_heads")
    hidden = config.wanted_size("hidden_size", "n_embd", "d_model", "dim")
    # Of multi-head latent attention it is the width of a value; `head_dim` is then something else.
    head_dim = config.size(*(("v_head_dim", "head_dim") if config.content.get("kv_lora_rank") else ("head_dim",)))
    query = _projection_rows(tensors, "q_proj")
    if head_dim is None and heads and query and query % heads == 0:
        head_dim = query // heads
    elif head_dim is None and heads and hidden and model_type in _HEAD_DIM_BY_DIVISION and hidden % heads == 0:
        head_dim = hidden // heads
    kv_heads = config.size("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query_group_num")
    keys = _projection_rows(tensors, "k_proj")
    if kv_heads is None and head_dim and keys and keys % head_dim == 0:
        kv_heads = keys // head_dim
    elif kv_heads is None and model_type in _KV_HEADS_LIKE_HEADS:
        kv_heads = heads
    if head_dim is None:
        config.not_found.append(f"{config.prefix}head_dim")
    if kv_heads is None:
        config.not_found.append(f"{config.prefix}num_key_value_heads")
    return DecoderShape(
        num_layers=config.wanted_size("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=config.size("intermediate_size", "ffn_hidden_size", "n_inner", "hidden_dim"),
        vocab_size=config.wanted_size("vocab_size", "padded_vocab_size", "n_vocab"),
        max_positions=config.wanted_size("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"),
        sliding_window=None if config.flag("use_sliding_window") is False else config.size("sliding_window"),
        tie_word_embeddings=_is_tied(config, model_type, tensors),
    )


def _projection_rows(tensors: Mapping[str, TensorEntry], name: str) -> int | None:
    """Rows of the first layer's projection `name`, None where it is not stored as a plain matrix."""
    for layer in ("layers.0", "h.0", "midlayer"):
        for tensor in (f"model.{layer}.self_attn.{name}.weight", f"{layer}.self_attn.{name}.weight"):
            entry = tensors.get(tensor)
            if entry is not None and len(entry.shape) == 2 and entry.dtype.startswith(_UNPACKED_DTYPES):
                return entry.shape[0]
    return None


def _is_tied(config: ObjectReader, model_type: str | None, tensors: Mapping[str, TensorEntry]) -> bool | None:
    stated = config.flag("tie_word_embeddings")
    if stated is not None:
        return stated
    if model_type in _TIED_BY_DEFAULT:
        return True
    return not any(name.endswith("lm_head.weight") for name in tensors) if tensors else None


def rope_scaling(config: ObjectReader) -> RopeScaling | None:
    """`rope_scaling`, or the newer `rope_parameters` (of the full-attention layers where it differs by layer type)."""
    key = "rope_scaling" if config.content.get("rope_scaling") is not None else "rope_parameters"
    rope = config.nested(key)
    if isinstance(rope.content.get("full_attention"), dict):
        rope = rope.nested("full_attention")
    theta = rope.number("rope_theta") or config.number("rope_theta")
    if not rope.content and theta is None:
        return None
    return RopeScaling(
        type=rope.text("rope_type", "type") or "default",
        factor=rope.number("factor"),
        original_max_positions=rope.size("original_max_position_embeddings"),
        theta=theta,
    )


def quantization(config: ObjectReader, folder: Path) -> Quantization | None:
    """What config.json's quantization_config says, or ModelOpt's hf_quant_config.json beside it."""
    if config.content.get("quantization_config") is not None:
        stated = config.nested("quantization_config")
        kv_scheme = stated.nested("kv_cache_scheme").content if stated.content.get("kv_cache_scheme") else {}
        return Quantization(
            method=stated.text("quant_method", "quant_algo") or "unnamed",
            bits=stated.size("bits", "w_bit") or _bits_of_groups(stated) or _bits_of_flags(stated),
            kv_cache_dtype=_kv_dtype(stated.text("kv_cache_quant_algo"))
            or ("fp8" if kv_scheme.get("type") == "float" else None),
            source="config.json: quantization_config",
        )
    path = folder / "hf_quant_config.json"
    if not path.exists():
        return None
    beside = ObjectReader(load_json_object(path), str(path)).nested("quantization")
    algorithm = beside.text("quant_algo")
    kv_dtype = _kv_dtype(beside.text("kv_cache_quant_algo"))
    beside.check()
    if algorithm is None and kv_dtype is None:
        return None
    return Quantization(
        method=algorithm or "none",
        bits=_bits_of_name(algorithm),
        kv_cache_dtype=kv_dtype,
        source="hf_quant_config.json",
    )


def _bits_of_groups(stated: ObjectReader) -> int | None:
    """compressed-tensors: config_groups.*.weights.num_bits, the smallest."""
    groups = stated.nested("config_groups")
    bits = [groups.nested(key).nested("weights").size("num_bits") for key in groups.content]
    return min((count for count in bits if count is not None), default=None)


def _bits_of_flags(stated: ObjectReader) -> int | None:
    if stated.flag("load_in_4bit"):
        return 4
    if stated.flag("load_in_8bit"):
        return 8
    return _bits_of_name(stated.text("quant_method", "quant_algo"))


def _bits_of_name(name: str | None) -> int | None:
    match = re.search(r"(?:fp|nvfp|mxfp|int|w)(\d+)", (name or "").lower())
    return int(match[1]) if match and match[1] in ("2", "3", "4", "6", "8", "16") else None


def _kv_dtype(algorithm: str | None) -> str | None:
    return algorithm.lower() if algorithm and algorithm.lower() not in ("none", "auto") else None


# --- special tokens and chat template -------------------------------------------------------------------------------


def special_tokens(config: ObjectReader, generation: ObjectReader, folder: Path) -> SpecialTokens:
    """Ids by generation_config.json, where it is silent by config.json; hash of the chat template's text."""

    def ids(key: str) -> tuple[int, ...]:
        return next((found for reader in (generation, config) if (found := reader.sizes(key)) is not None), ())

    return SpecialTokens(
        bos_token_id=next(iter(ids("bos_token_id")), None),
        eos_token_ids=ids("eos_token_id"),
        pad_token_id=next(iter(ids("pad_token_id")), None),
        chat_template_sha256=_chat_template_sha256(folder),
    )


def _chat_template_sha256(folder: Path) -> str | None:
    """SHA-256 of the template's text; chat_template.jinja wins over the others, as in transformers."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return hashlib.sha256(read_regular_file(path, max_bytes=4 << 20)).hexdigest()
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        if not path.exists():
            continue
        template = load_json_object(path).get("chat_template")
        if isinstance(template, list):  # several by name
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        if isinstance(template, str):
            return hashlib.sha256(template.encode("utf-8")).hexdigest()
    return None


# --- mixture of experts, KV cache, MTP ------------------------------------------------------------------------------


def moe_shape(config: ObjectReader, num_layers: int | None, tensors: Mapping[str, TensorEntry]) -> MoeShape | None:
    """Experts and in which layers they are: by the headers where there are any, else by the keys of each family."""
    experts = config.size("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    if experts is None or experts < 2 or num_layers is None:
        return None
    used = config.wanted_size(
        "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_top_k", "moe_topk"
    )
    if used is None:
        return None
    moe_layers = {int(match[1]) for name in tensors if (match := _EXPERT_OF_LAYER.search(name))}
    count = len([layer for layer in moe_layers if layer < num_layers]) or _moe_layers_by_config(config, num_layers)
    shared_size = config.size("shared_expert_intermediate_size")
    shared = config.size("n_shared_experts", "num_shared_experts", minimum=0) or (1 if shared_size else 0)
    expert_size = config.size("moe_intermediate_size", "expert_intermediate_size") or config.size("intermediate_size")
    return MoeShape(
        num_experts=experts,
        num_experts_per_token=min(used, experts),
        num_shared_experts=shared,
        num_moe_layers=count,
        num_dense_layers=num_layers - count,
        expert_intermediate_size=expert_size,
        shared_intermediate_size=shared_size or (shared * expert_size if shared and expert_size else None),
    )


def _moe_layers_by_config(config: ObjectReader, num_layers: int) -> int:
    """Layers with experts: DeepSeek's first_k_dense_replace and moe_layer_freq, Qwen's decoder_sparse_step."""
    first = config.size("first_k_dense_replace", minimum=0) or 0
    every = config.size("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    dense = set(config.sizes("mlp_only_layers") or ())
    by_step = "decoder_sparse_step" in config.content or "interleave_moe_layer_step" in config.content
    layers = [
        layer
        for layer in range(first, num_layers)
        if layer not in dense and (layer + 1 if by_step else layer) % every == 0
    ]
    return max(len(layers), 1)


def kv_elements_per_token(config: ObjectReader, shape: DecoderShape) -> int | None:
    """Elements that one token keeps over all layers: K and V of every head, or MLA's latent and rotary part."""
    layers = shape.num_layers
    layer_types = config.texts("layer_types")
    if layer_types and layers == len(layer_types):  # hybrids: linear attention and Mamba keep a state, not a cache
        layers = sum("attention" in kind and "linear" not in kind for kind in layer_types)
    latent, rotary = config.size("kv_lora_rank"), config.size("qk_rope_head_dim", minimum=0)
    if layers is not None and latent and rotary is not None:
        return layers * (latent + rotary)
    if layers is None or shape.num_kv_heads is None or shape.head_dim is None:
        return None
    return layers * 2 * shape.num_kv_heads * shape.head_dim


def kv_cache_dtype(config: ObjectReader, stored: Mapping[str, int], quantized: Quantization | None) -> str | None:
    """Dtype of the cache that the checkpoint itself asks for: its quantised one, else that of its activations."""
    return (quantized.kv_cache_dtype if quantized else None) or compute_dtype(config, stored)


def compute_dtype(config: ObjectReader, stored: Mapping[str, int]) -> str | None:
    """config.json's dtype, else the 16- or 32-bit dtype that most bytes have."""
    if (stated := config.text("dtype", "torch_dtype")) is not None:
        return stated.removeprefix("torch.")
    named = [(num_bytes, _DTYPE_NAMES[dtype]) for dtype, num_bytes in stored.items() if dtype in _DTYPE_NAMES]
    return max(named)[1] if named else None


def dtype_bytes(dtype: str | None) -> int | None:
    """Bytes per element of a dtype by name; None for one that is unknown here."""
    return _DTYPE_BYTES.get(dtype or "")


def num_mtp_layers(config: ObjectReader, num_layers: int | None, tensors: Mapping[str, TensorEntry]) -> int:
    """Multi-token-prediction modules whose tensors are there; without any headers, those that config.json states.

    DeepSeek stores them as the layers after the last, others under `mtp.`.
    """
    stated = config.size("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", minimum=0) or 0
    if not tensors:
        return stated
    present: set[str] = set()
    for name in tensors:
        if is_mtp_tensor(name, num_layers):
            layer = _LAYER.search(name)
            present.add(layer[1] if layer else "0")
    return len(present)


def is_mtp_tensor(name: str, num_layers: int | None) -> bool:
    """Whether a tensor belongs to an MTP module rather than to the decoder."""
    if name.startswith(("mtp.", "mtp_layers.")) or ".mtp." in name:
        return True
    layer = _LAYER.search(name)
    return layer is not None and num_layers is not None and int(layer[1]) >= num_layers


# --- parameters -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """All parameters, those one token uses, and bytes on disk by dtype."""

    total: int
    active: int
    stored_dtypes: dict[str, int]


def count_stored(
    tensors: Iterable[TensorEntry],
    *,
    moe: MoeShape | None = None,
    num_layers: int | None = None,
    quantized: Quantization | None = None,
    is_tied: bool = False,
) -> ParameterCounts:
    """Parameters by the headers. Packed weights count unpacked; scales, maps, buffers and MTP modules do not count."""
    total = routed = 0
    stored: Counter[str] = Counter()
    for entry in tensors:
        stored[entry.dtype] += entry.num_bytes
        if _NO_PARAMETER.search(entry.name) or is_mtp_tensor(entry.name, num_layers):
            continue
        if is_tied and entry.name.endswith("lm_head.weight"):
            continue
        elements = entry.num_elements
        if quantized and _is_packed(entry):
            elements = elements * DTYPE_BITS[entry.dtype] // (quantized.bits or 4)
        total += elements
        if _ROUTED_EXPERT.search(entry.name):
            routed += elements
    unused = 0 if moe is None else routed * (moe.num_experts - moe.num_experts_per_token) // moe.num_experts
    return ParameterCounts(total, total - unused, dict(stored))


def _is_packed(entry: TensorEntry) -> bool:
    if _PACKED.search(entry.name):
        return True
    return entry.dtype in ("U8", "I32") and entry.name.endswith(".weight")


def count_by_config(config: ObjectReader, shape: DecoderShape, moe: MoeShape | None) -> ParameterCounts | None:
    """Parameters by shape: gated MLPs, RMS norms; biases and norms of heads are left out (below 0.1 %)."""
    layers, hidden, heads, vocab = shape.num_layers, shape.hidden_size, shape.num_heads, shape.vocab_size
    attention = _attention_parameters(config, shape)
    if layers is None or hidden is None or heads is None or vocab is None or attention is None:
        return None
    dense_layers = layers if moe is None else moe.num_dense_layers
    if dense_layers and shape.intermediate_size is None:
        return None
    embeddings = vocab * hidden * (1 if shape.tie_word_embeddings else 2)
    total = embeddings + hidden + layers * (attention + 2 * hidden)
    total += dense_layers * 3 * hidden * (shape.intermediate_size or 0)
    if moe is None:
        return ParameterCounts(total, total, {})
    if moe.expert_intermediate_size is None:
        return None
    shared = 3 * hidden * (moe.shared_intermediate_size or 0)
    total += moe.num_moe_layers * (shared + hidden * moe.num_experts)
    expert = moe.num_moe_layers * 3 * hidden * moe.expert_intermediate_size
    return ParameterCounts(total + expert * moe.num_experts, total + expert * moe.num_experts_per_token, {})


def _attention_parameters(config: ObjectReader, shape: DecoderShape) -> int | None:
    """Of one layer: grouped-query attention, or multi-head latent attention where config.json has kv_lora_rank."""
    hidden, heads = shape.hidden_size, shape.num_heads
    if hidden is None or heads is None:
        return None
    latent, rotary = config.size("kv_lora_rank"), config.size("qk_rope_head_dim", minimum=0)
    plain, value = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    if latent and rotary is not None and plain and value:
        query_rank = config.size("q_lora_rank")
        query_width = heads * (plain + rotary)
        query = query_rank * (hidden + query_width) if query_rank else hidden * query_width
        return query + hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden
    if shape.num_kv_heads is None or shape.head_dim is None:
        return None
    return 2 * hidden * shape.head_dim * (heads + shape.num_kv_heads)
