"""Sizes of a model as far as they decide how long its passes take."""

from dataclasses import dataclass

from specdeploy.checkpoint_contract import CheckpointInfo, MoeShape, Quantization
from specdeploy.contract import Dtype
from specdeploy.errors import CheckpointError
from specdeploy.planner_contract import Precision

# Bytes per weight with its scale: one byte per 16 weights in nvfp4, per 32 in mxfp4, 2.5 (zero points) per 128 in int4.
_NVFP4_BYTES = 0.5 + 1 / 16
_MXFP4_BYTES = 0.5 + 1 / 32
_INT4_BYTES = 0.5 + 2.5 / 128
# Where no parameters are counted, a latent attention's projections over those of its output alone (DeepSeek-V3: 1.6).
_LATENT_OVER_OUTPUT = 1.6


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored (bytes each, scales included) and in what arithmetic they are multiplied."""

    bytes_per_element: float
    precision: Precision


BFLOAT16 = WeightFormat(2.0, Precision.BFLOAT16)
FLOAT32 = WeightFormat(4.0, Precision.FLOAT32)
FP8 = WeightFormat(1.0, Precision.FP8)
FP4 = WeightFormat(_NVFP4_BYTES, Precision.FP4)
MXFP4 = WeightFormat(_MXFP4_BYTES, Precision.FP4)
INT4 = WeightFormat(_INT4_BYTES, Precision.BFLOAT16)
INT8 = WeightFormat(1.0, Precision.BFLOAT16)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder, in counts and elements.

    `attention_input` features that queries, keys and values are made of (an EAGLE-3 layer reads two states at once).
    `latent_in` is set for multi-head latent attention: outputs of the projections that read the hidden state.
    `intermediate_size` is of dense layers, all taken to be gated (three matrices). `kv_elements_per_token` over all
    layers. `weights` of the layers, `experts` of routed and shared experts, `lm_head` of the output layer.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_elements_per_token: int
    intermediate_size: int
    vocab_size: int
    lm_head_rows: int
    is_tied: bool = False
    moe: MoeShape | None = None
    weights: WeightFormat = BFLOAT16
    experts: WeightFormat = BFLOAT16
    lm_head: WeightFormat = BFLOAT16
    kv_element_bytes: float = 2.0
    attention_input: int = 0
    latent_in: int | None = None

    @property
    def num_dense_layers(self) -> int:
        return self.num_layers if self.moe is None else self.moe.num_dense_layers

    @property
    def num_moe_layers(self) -> int:
        return 0 if self.moe is None else self.moe.num_moe_layers

    @property
    def num_caching_layers(self) -> int:
        """Layers that attend to a cache; the others of a hybrid keep a state."""
        row = 2 * self.num_kv_heads * self.head_dim
        if self.latent_in is None and row and self.kv_elements_per_token % row == 0:
            return min(self.kv_elements_per_token // row, self.num_layers)
        return self.num_layers

    @property
    def expert_size(self) -> int:
        """Inner width of one routed expert."""
        return 0 if self.moe is None else self.moe.expert_intermediate_size or self.intermediate_size

    @property
    def shared_size(self) -> int:
        """Inner width of all shared experts together."""
        if self.moe is None:
            return 0
        return self.moe.shared_intermediate_size or self.moe.num_shared_experts * self.expert_size


def shape_of(
    info: CheckpointInfo,
    *,
    dtype: Dtype | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
) -> ModelShape:
    """The decoder of a checkpoint as an engine runs it: in `dtype` (None = its own) or quantised.

    `quantization` None or "none" = as the checkpoint is; "fp8" while converting, or any name a quantised checkpoint
    states. Embeddings and output layer stay in 16 bit. `kv_cache_dtype` "auto" = what the checkpoint asks for. Raises
    `CheckpointError` naming a size that the files do not state.
    """
    hidden = _fact(info, "hidden_size")
    plain = FLOAT32 if _dtype(info, dtype) is Dtype.FLOAT32 else BFLOAT16
    weights, experts = _formats(info, quantization, plain)
    kv_dtype = (info.kv_dtype if kv_cache_dtype == "auto" else kv_cache_dtype) or ""
    vocab = info.vocabulary.config_vocab_size or info.vocabulary.tokenizer_length or _missing(info, "vocab_size")
    heads, head_dim = _fact(info, "num_heads"), _fact(info, "head_dim")
    kv_heads, layers = info.num_kv_heads or heads, _fact(info, "num_layers")
    kv_elements = info.kv_elements_per_token or 2 * layers * kv_heads * head_dim
    is_narrow_cache = kv_dtype.startswith(("fp8", "float8", "int8"))
    is_latent = kv_elements < layers * 2 * head_dim * kv_heads and kv_elements % (2 * head_dim * kv_heads) != 0
    return ModelShape(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        kv_elements_per_token=kv_elements,
        intermediate_size=_intermediate_size(info),
        vocab_size=vocab,
        lm_head_rows=info.vocabulary.lm_head_rows or info.vocabulary.embedding_rows or vocab,
        is_tied=bool(info.tie_word_embeddings),
        moe=info.moe,
        weights=weights,
        experts=experts,
        lm_head=plain,
        kv_element_bytes=1.0 if is_narrow_cache else plain.bytes_per_element,
        attention_input=hidden,
        latent_in=_latent_in(info, heads * head_dim) if is_latent else None,
    )


def weight_format(name: str, bits: int | None, plain: WeightFormat) -> WeightFormat:
    """Stored bytes and arithmetic of a quantisation by its name; `plain` for one that is only known to be there."""
    name = name.lower()
    if "fp4" in name:
        return MXFP4 if "mxfp4" in name else FP4
    if any(part in name for part in ("fp8", "float-quantized", "w8a8", "smooth")):
        return FP8
    if bits == 4 or any(part in name for part in ("int4", "w4a16", "awq", "gptq", "nf4")):
        return INT4 if bits in (None, 4) else INT8
    if bits == 8 or "int8" in name or "w8a16" in name:
        return INT8
    return plain


def _formats(info: CheckpointInfo, quantization: str | None, plain: WeightFormat) -> tuple[WeightFormat, WeightFormat]:
    stated: Quantization | None = info.quantization
    if quantization not in (None, "none"):
        whole = weight_format(str(quantization), None, plain)
        return whole, whole
    if stated is None:
        return plain, plain
    narrow = weight_format(stated.method, stated.bits, plain)
    # gpt-oss: `modules_to_not_convert` of its config.json are attention, router, embeddings and output layer.
    return (plain if stated.method.lower().startswith("mxfp4") else narrow), narrow


def _dtype(info: CheckpointInfo, dtype: Dtype | None) -> Dtype:
    if dtype is not None:
        return dtype
    return Dtype.FLOAT32 if info.dtype == "float32" else Dtype.BFLOAT16


def _intermediate_size(info: CheckpointInfo) -> int:
    if info.intermediate_size is not None:
        return info.intermediate_size
    if info.moe is not None and not info.moe.num_dense_layers:
        return info.moe.expert_intermediate_size or _missing(info, "intermediate_size")
    return _missing(info, "intermediate_size")


def _latent_in(info: CheckpointInfo, output_width: int) -> int:
    """Features that latent attention's first projections would put out if all of its parameters but those of the
    output projection read the hidden state: as many weights, in one layer."""
    hidden, layers = _fact(info, "hidden_size"), _fact(info, "num_layers")
    output = hidden * output_width
    if info.num_parameters is None:
        return round(output * (_LATENT_OVER_OUTPUT - 1) / hidden)
    vocab = info.vocabulary.config_vocab_size or 0
    others = vocab * hidden * (1 if info.tie_word_embeddings else 2)
    if info.moe is None:
        others += layers * 3 * hidden * (info.intermediate_size or 0)
    else:
        expert = info.moe.expert_intermediate_size or 0
        shared = info.moe.shared_intermediate_size or info.moe.num_shared_experts * expert
        others += (
            info.moe.num_moe_layers * hidden * (3 * (info.moe.num_experts * expert + shared) + info.moe.num_experts)
        )
        others += info.moe.num_dense_layers * 3 * hidden * (info.intermediate_size or 0)
    rest = (info.num_parameters - others) / layers - output
    return round(rest / hidden) if rest > 0 else round(output * (_LATENT_OVER_OUTPUT - 1) / hidden)


def _fact(info: CheckpointInfo, name: str) -> int:
    value: int | None = getattr(info, name)
    return _missing(info, name) if value is None else value


def _missing(info: CheckpointInfo, name: str) -> int:
    raise CheckpointError(
        f"{info.reference}: {name} is not stated by its files, and the time of a step cannot be computed without it. "
        "Complete its config.json"
    )
