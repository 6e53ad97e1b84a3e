"""Facts of a decoder-only transformer from its config.json, generation_config.json, tokenizer settings and headers.

Attributes are found by name, whatever the family calls them. What no known name states is None and listed; where a
family's own definition gives it (head_dim = hidden_size / heads of llama) the family is named here.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdeploy.checkpoint.json_text import FETCH_AGAIN, ObjectReader, is_present, load_json_object, read_regular_file
from specdeploy.checkpoint.safetensors_header import DTYPE_BITS, TensorEntry
from specdeploy.checkpoint.tensor_names import (
    attention_layers,
    has_state_layers,
    is_like_expert,
    is_mtp_tensor,
    is_routed_expert,
    layer_of,
)
from specdeploy.checkpoint_contract import MoeShape, Quantization, RopeScaling, SpecialTokens
from specdeploy.errors import CheckpointError

# Far above every model, and few enough to count through.
MAX_LAYERS = 10_000
MAX_HEADS = 100_000
MAX_EXPERTS = 100_000

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
    "dbrx",
}
_KV_HEADS_LIKE_HEADS = {"llama", "phi3", "phi", "olmo2", "gpt2", "gpt_neox"}
_TIED_BY_DEFAULT = {"gemma", "gemma2", "gemma3", "gemma3_text", "gpt2"}

_EXPERT_COUNT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_USED_EXPERTS_KEYS = (
    "num_experts_per_tok",
    "experts_per_token",
    "num_experts_per_token",
    "moe_top_k",
    "moe_topk",
    "moe_k",
    "top_k_experts",
)
# A count of experts by whatever name: `moe_num_primary_experts`, `num_routed_expert`.
_LIKE_EXPERT_COUNT = re.compile(r"(?:num|n)_(?!.*(?:per_|shared|group|limited|top_?k)).*experts?\b")
# Keys of models some of whose layers keep a state instead of a cache.
_LIKE_HYBRID = re.compile(
    r"mamba|ssm|hybrid|rwkv|linear_(?:attn|attention|conv|num)|conv_L_cache|layers_block_type|attn_type_list"
    r"|attn_layer_indices|full_attn"
)
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
    if config.content.get("thinker_config") is not None and config.content.get("hidden_size") is None:
        config = config.nested("thinker_config")
    for key in ("text_config", "llm_config", "language_config"):
        if config.content.get(key) is not None and config.content.get("hidden_size") is None:
            return config.nested(key)
    return config


def decoder_shape(config: ObjectReader, model_type: str | None, tensors: Mapping[str, TensorEntry]) -> DecoderShape:
    """Sizes of the decoder; problems and what is not found are left in `config`."""
    heads = config.wanted_size("num_attention_heads", "n_head", "n_heads", "num_heads", maximum=MAX_HEADS)
    hidden = config.wanted_size("hidden_size", "n_embd", "d_model", "dim")
    # Of multi-head latent attention it is the width of a value; `head_dim` is then something else.
    head_dim = config.size(*(("v_head_dim", "head_dim") if config.content.get("kv_lora_rank") else ("head_dim",)))
    query = _projection_rows(tensors, "q_proj")
    if head_dim is None and heads and query and query % heads == 0:
        head_dim = query // heads
    elif head_dim is None and heads and hidden and model_type in _HEAD_DIM_BY_DIVISION and hidden % heads == 0:
        head_dim = hidden // heads
    kv_heads = config.size(
        "num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "multi_query_group_num", maximum=MAX_HEADS
    )
    if kv_heads is None and config.content.get("attn_config") is not None:
        kv_heads = config.nested("attn_config").size("kv_n_heads", maximum=MAX_HEADS)
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
        num_layers=config.wanted_size("num_hidden_layers", "n_layer", "n_layers", "num_layers", maximum=MAX_LAYERS),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=config.size("intermediate_size", "ffn_hidden_size", "n_inner", "hidden_dim"),
        vocab_size=config.wanted_size("vocab_size", "padded_vocab_size", "n_vocab"),
        max_positions=config.wanted_size(
            "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len"
        ),
        sliding_window=None if config.flag("use_sliding_window") is False else config.size("sliding_window"),
        tie_word_embeddings=_is_tied(config, model_type, tensors),
    )


def _projection_rows(tensors: Mapping[str, TensorEntry], name: str) -> int | None:
    """Rows of the first layer's projection `name`, None where it is not stored as a plain matrix."""
    for layer in ("layers.0", "h.0", "midlayer"):
        entry = tensors.get(f"{layer}.self_attn.{name}.weight")
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
            method=_quantization_method(stated),
            bits=stated.size("bits", "w_bit") or _bits_of_groups(stated) or _bits_of_flags(stated),
            kv_cache_dtype=_kv_dtype(stated.text("kv_cache_quant_algo"))
            or ("fp8" if kv_scheme.get("type") == "float" else None),
            source="config.json: quantization_config",
        )
    path = folder / "hf_quant_config.json"
    if not is_present(path):
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


def _quantization_method(stated: ObjectReader) -> str:
    """The tool and, where it is stated, the algorithm or format: `modelopt NVFP4`, `compressed-tensors nvfp4-pack`."""
    names = (stated.text("quant_method"), stated.text("quant_algo"), stated.text("format"))
    return " ".join(dict.fromkeys(name for name in names if name)) or "unnamed"


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
    return _bits_of_name(_quantization_method(stated))


def _bits_of_name(name: str | None) -> int | None:
    match = re.search(r"(?:fp|nvfp|mxfp|int|w)(\d+)", (name or "").lower())
    return int(match[1]) if match and match[1] in ("2", "3", "4", "6", "8", "16") else None


def _kv_dtype(algorithm: str | None) -> str | None:
    return algorithm.lower() if algorithm and algorithm.lower() not in ("none", "auto") else None


# --- special tokens and chat template -------------------------------------------------------------------------------


def special_tokens(readers: Sequence[ObjectReader], folder: Path) -> SpecialTokens:
    """Ids by the first of `readers` that has them (generation_config.json first); hash of the chat template's text."""

    def ids(key: str) -> tuple[int, ...]:
        return next((found for reader in readers if (found := reader.token_ids(key)) is not None), ())

    return SpecialTokens(
        bos_token_id=next(iter(ids("bos_token_id")), None),
        eos_token_ids=ids("eos_token_id"),
        pad_token_id=next(iter(ids("pad_token_id")), None),
        chat_template_sha256=_chat_template_sha256(folder),
    )


def _chat_template_sha256(folder: Path) -> str | None:
    """SHA-256 of the template's text; chat_template.jinja wins over the others, as in transformers."""
    path = folder / "chat_template.jinja"
    if is_present(path):
        return hashlib.sha256(read_regular_file(path, max_bytes=4 << 20)).hexdigest()
    for name in ("chat_template.json", "tokenizer_config.json"):
        path = folder / name
        if not is_present(path):
            continue
        template = _default_template(load_json_object(path).get("chat_template"), path)
        if template is not None:
            return hashlib.sha256(template.encode("utf-8")).hexdigest()
    return None


# `Any` is what JSON gives; every other form than the two known ones is refused here.
def _default_template(template: Any, path: Path) -> str | None:
    """The template of a chat, which is one text or the one named default among several."""
    if template is None or isinstance(template, str):
        return template
    named: dict[str, str] = {}
    for entry in template if isinstance(template, list) else [template]:
        name, text = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            reason = "must be a text, or a list of objects whose name and template are texts"
            raise CheckpointError(f"{path}: chat_template: {reason}. {FETCH_AGAIN}")
        named[name] = text
    return named.get("default")


# --- mixture of experts, KV cache, MTP ------------------------------------------------------------------------------


def moe_shape(config: ObjectReader, num_layers: int | None, tensors: Mapping[str, TensorEntry]) -> MoeShape | None:
    """Experts and in which layers they are: by the headers where there are any, else by the keys of each family."""
    places = _moe_places(config)
    experts = _first_size(places, _EXPERT_COUNT_KEYS, maximum=MAX_EXPERTS)
    if experts is None or experts < 2 or num_layers is None:
        return None
    used = _first_size(places, _USED_EXPERTS_KEYS, maximum=MAX_EXPERTS)
    if not used:
        config.not_found.append(" or ".join(f"{config.prefix}{name}" for name in _USED_EXPERTS_KEYS))
        return None
    moe_layers = {layer_of(name) for name in tensors if is_routed_expert(name)} - {None}
    count = len([layer for layer in moe_layers if layer is not None and layer < num_layers])
    count = count or _moe_layers_by_config(config, num_layers)
    shared_size = _first_size(places, ("shared_expert_intermediate_size", "shared_intermediate_size")) or None
    shared = _first_size(places, ("n_shared_experts", "num_shared_experts"), maximum=MAX_EXPERTS)
    shared = shared or (1 if shared_size else 0)
    sizes = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size")
    expert_size = next((size for key in sizes if (size := _first_size(places, (key,)))), None)
    return MoeShape(
        num_experts=experts,
        num_experts_per_token=min(used, experts),
        num_shared_experts=shared,
        num_moe_layers=count,
        num_dense_layers=num_layers - count,
        expert_intermediate_size=expert_size,
        shared_intermediate_size=shared_size or (shared * expert_size if shared and expert_size else None),
    )


def is_unclear_mixture(config: ObjectReader, moe: MoeShape | None, names: Iterable[str]) -> bool:
    """Whether there are signs of routed experts that give no shape: what one token uses is then unknown."""
    names = list(names)
    if moe is not None:
        return bool(names) and not any(is_routed_expert(name) for name in names)
    places = _moe_places(config)
    experts = _first_size(places, _EXPERT_COUNT_KEYS, maximum=MAX_EXPERTS)
    if experts is not None and experts > 1:
        return True
    if experts == 1:
        return False
    return any(map(is_like_expert, names)) or any(
        _LIKE_EXPERT_COUNT.search(key) and isinstance(value, int) and value > 1
        for place in places
        for key, value in place.content.items()
        if key not in _EXPERT_COUNT_KEYS
    )


def _moe_places(config: ObjectReader) -> list[ObjectReader]:
    """The config and, in DBRX, its ffn_config."""
    return [config, *([config.nested("ffn_config")] if isinstance(config.content.get("ffn_config"), dict) else [])]


def _first_size(places: Sequence[ObjectReader], names: Sequence[str], maximum: int = (1 << 53) - 1) -> int | None:
    """`ObjectReader.size` of the first place that states it; of a list by layer the value, if all have the same."""
    for place in places:
        found = place.first(names)
        if found is not None and isinstance(found[1], list) and found[1]:
            values = place.sizes(found[0], max_length=MAX_LAYERS) or ()
            if len(set(values)) == 1 and values[0] <= maximum:
                return values[0]
        elif found is not None:
            return place.size(found[0], minimum=0, maximum=maximum)
    return None


def _moe_layers_by_config(config: ObjectReader, num_layers: int) -> int:
    """Layers with experts: DeepSeek's first_k_dense_replace and moe_layer_freq, Qwen's decoder_sparse_step."""
    if isinstance(by_layer := config.content.get("moe_layer_freq"), list):  # 1 for a layer with experts, 0 without
        return min(max(sum(config.sizes("moe_layer_freq") or ()), 1), num_layers) if by_layer else num_layers
    first = config.size("first_k_dense_replace", minimum=0) or 0
    every = config.size("decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    dense = set(config.sizes("mlp_only_layers") or ())
    by_step = "decoder_sparse_step" in config.content or "interleave_moe_layer_step" in config.content
    period, offset = config.size("expert_layer_period"), config.size("expert_layer_offset", minimum=0) or 0
    layers = [
        layer
        for layer in range(first, num_layers)
        if layer not in dense
        and (layer + 1 if by_step else layer) % every == 0
        and (period is None or layer % period == offset)
    ]
    return max(len(layers), 1)


def num_attention_layers(config: ObjectReader, num_layers: int, tensors: Mapping[str, TensorEntry]) -> int | None:
    """Layers that cache keys and values; linear attention and Mamba keep a state instead. None where it is unclear."""
    stated = _attention_layers_by_config(config, num_layers)
    if stated is not None:
        return stated
    found = len(attention_layers(tensors, num_layers))
    is_hybrid = has_state_layers(tensors) or any(
        value and _LIKE_HYBRID.search(key) for key, value in config.content.items()
    )
    # Neither is a list of kinds that does not fit the number of layers.
    is_hybrid = is_hybrid or any("attention" not in kind or "linear" in kind for kind in config.texts("layer_types"))
    if is_hybrid or found:
        return found or None
    return num_layers


def _attention_layers_by_config(config: ObjectReader, num_layers: int) -> int | None:
    """Stated by layer (`layer_types`; a pattern with one sign per layer, `*` for attention) or by a rule."""
    for key in ("layer_types", "layers_block_type"):
        kinds = config.texts(key)
        if len(kinds) == num_layers:
            return sum(("attention" in kind and "linear" not in kind) or kind == "hybrid" for kind in kinds)
    pattern = config.text("hybrid_override_pattern")
    if pattern is not None and len(pattern) == num_layers:
        return pattern.count("*")
    interval = config.size("full_attention_interval")
    if interval is not None:
        return num_layers // interval
    period, offset = config.size("attn_layer_period"), config.size("attn_layer_offset", minimum=0) or 0
    if period is not None:
        return sum(layer % period == offset for layer in range(num_layers))
    return None


def kv_elements_per_token(config: ObjectReader, shape: DecoderShape, num_caching_layers: int | None) -> int | None:
    """Elements that one token keeps over all layers: K and V of every head, or MLA's latent and rotary part."""
    latent, rotary = config.size("kv_lora_rank"), config.size("qk_rope_head_dim", minimum=0)
    if num_caching_layers is not None and latent and rotary is not None:
        return num_caching_layers * (latent + rotary)
    if num_caching_layers is None or shape.num_kv_heads is None or shape.head_dim is None:
        return None
    return num_caching_layers * 2 * shape.num_kv_heads * shape.head_dim


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
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
    stated = config.size(*keys, minimum=0, maximum=MAX_LAYERS) or 0
    if not tensors:
        return stated
    return len({_module_of(name) for name in tensors if is_mtp_tensor(name, num_layers)})


def _module_of(name: str) -> str:
    layer = re.search(r"(?:^|\.)layers\.(\d{1,9})\.", name)
    return layer[1] if layer else "0"


# --- parameters -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """All parameters of the text decoder and those one token uses (None = unclear); `left_out` those of other parts."""

    total: int
    active: int | None
    left_out: dict[str, int]


def count_stored(
    tensors: Mapping[str, TensorEntry],
    others: Mapping[str, Sequence[TensorEntry]],
    *,
    moe: MoeShape | None = None,
    is_unclear: bool = False,
    num_layers: int | None = None,
    quantized: Quantization | None = None,
    is_tied: bool = False,
) -> ParameterCounts:
    """Parameters by the headers. Packed weights count unpacked; scales, maps and buffers do not count.

    `tensors` of the decoder by name without its prefix; MTP modules among them and `others` are left out.
    """
    total = routed = 0
    left_out = {prefix: sum(_num_parameters(entry, quantized) for entry in group) for prefix, group in others.items()}
    for name, entry in tensors.items():
        elements = _num_parameters(entry, quantized)
        if is_mtp_tensor(name, num_layers):
            left_out["mtp"] = left_out.get("mtp", 0) + elements
            continue
        if is_tied and name.endswith("lm_head.weight"):
            continue
        total += elements
        if is_routed_expert(name):
            routed += elements
    unused = 0 if moe is None else routed * (moe.num_experts - moe.num_experts_per_token) // moe.num_experts
    active = None if is_unclear or (moe is not None and routed == 0) else total - unused
    return ParameterCounts(total, active, left_out)


def stored_dtypes(tensors: Iterable[TensorEntry]) -> dict[str, int]:
    """Bytes on disk by safetensors dtype."""
    stored: Counter[str] = Counter()
    for entry in tensors:
        stored[entry.dtype] += entry.num_bytes
    return dict(stored)


def _num_parameters(entry: TensorEntry, quantized: Quantization | None) -> int:
    if _NO_PARAMETER.search(entry.name):
        return 0
    if quantized and _is_packed(entry):
        return entry.num_elements * DTYPE_BITS[entry.dtype] // (quantized.bits or 4)
    return entry.num_elements


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
    dense = 3 * hidden * (shape.intermediate_size or 0)
    embeddings = vocab * hidden * (1 if shape.tie_word_embeddings else 2)
    total = embeddings + hidden + layers * (attention + 2 * hidden) + dense_layers * dense
    if moe is None:
        return ParameterCounts(total, total, _mtp_by_config(config, hidden, attention + dense))
    if moe.expert_intermediate_size is None:
        return None
    beside = 3 * hidden * (moe.shared_intermediate_size or 0) + hidden * moe.num_experts
    expert = 3 * hidden * moe.expert_intermediate_size
    mixture = beside + moe.num_experts * expert
    total += moe.num_moe_layers * mixture
    active = total - moe.num_moe_layers * (moe.num_experts - moe.num_experts_per_token) * expert
    return ParameterCounts(total, active, _mtp_by_config(config, hidden, attention + mixture))


def _mtp_by_config(config: ObjectReader, hidden: int, layer: int) -> dict[str, int]:
    """Multi-token prediction modules: a layer like the last one with its norms, and the projection of token and state
    side by side with two norms (arXiv:2412.19437, 2.2). Their tables are the model's own."""
    modules = num_mtp_layers(config, None, {})
    return {"mtp": modules * (layer + 2 * hidden + 2 * hidden * hidden + 3 * hidden)} if modules else {}


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
