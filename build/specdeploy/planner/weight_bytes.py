"""Bytes of a model's weights once they are loaded, by its parameters where its files are not there to be weighed."""

from specdeploy.checkpoint_contract import CheckpointInfo, Quantization
from specdeploy.contract import Dtype

# Bits of a weight with its share of the scales: 8 per block of 32 in mxfp4 and of 16 in nvfp4 (OCP MX formats; NVIDIA's
# ModelOpt); 16 and a zero point per group of 128 in the integer formats. Of 8-bit formats scales are below 0.1 %.
_SCALED_BITS = {"mxfp4": 4.25, "nvfp4": 4.5}
_INT4_BITS = 4.16
# Modules that DeepSeek's checkpoints store after the last layer; they are loaded with the rest.
MTP = "mtp"


def estimate_weight_bytes(info: CheckpointInfo, dtype: Dtype, *, is_fp8_quantized: bool) -> int | None:
    """Bytes of all weights once loaded: cast to `dtype`, or fp8 with embedding, output layer and norms in `dtype`.

    A checkpoint that is quantised already keeps its size; without weight files its size follows from its parameters,
    multi-token prediction included. None = the files do not say.
    """
    element_bytes = 4 if dtype is Dtype.FLOAT32 else 2
    if info.quantization is not None and info.num_bytes is None:
        return _quantized_bytes(info, info.quantization, element_bytes)
    if info.quantization is not None or info.num_parameters is None:
        return info.num_bytes
    if not is_fp8_quantized:
        return info.num_parameters * element_bytes
    kept = _num_kept_elements(info, info.num_parameters)
    return (info.num_parameters - kept) + kept * element_bytes


def num_norm_elements(info: CheckpointInfo) -> int:
    """Two norms a layer and one at the end, each as wide as the model."""
    return (2 * (info.num_layers or 0) + 1) * (info.hidden_size or 0)


def num_table_elements(info: CheckpointInfo) -> int:
    """Elements of the token embedding [V, H]."""
    return (info.vocabulary.embedding_rows or info.vocabulary.config_vocab_size or 0) * (info.hidden_size or 0)


def _num_kept_elements(info: CheckpointInfo, num_parameters: int) -> int:
    """What fp8 leaves alone: embedding, output layer, norms."""
    table = num_table_elements(info)
    head = 0 if info.tie_word_embeddings else table
    return min(num_parameters, table + head + num_norm_elements(info))


def _quantized_bytes(info: CheckpointInfo, quantized: Quantization, element_bytes: int) -> int | None:
    """By parameters: mxfp4 stores the experts so and nothing else (`modules_to_not_convert` of gpt-oss), the other
    formats everything but embedding, output layer and norms."""
    if info.num_parameters is None or quantized.bits is None:
        return None
    total = info.num_parameters + info.left_out_parameters.get(MTP, 0)
    narrow = total - _num_kept_elements(info, info.num_parameters)
    if quantized.method.lower().startswith("mxfp4"):
        narrow = _num_expert_elements(info)
    return round(narrow * _stored_bits(quantized) / 8) + (total - narrow) * element_bytes


def _stored_bits(quantized: Quantization) -> float:
    names = [bits for name, bits in _SCALED_BITS.items() if name in quantized.method.lower()]
    return names[0] if names else _INT4_BITS if quantized.bits == 4 else float(quantized.bits or 16)


def _num_expert_elements(info: CheckpointInfo) -> int:
    """Gate, up and down projection of every routed expert."""
    if info.moe is None:
        return 0
    width = info.moe.expert_intermediate_size or info.intermediate_size or 0
    return info.moe.num_moe_layers * info.moe.num_experts * 3 * (info.hidden_size or 0) * width
