"""Names of tensors, as far as they tell what a tensor belongs to: the text decoder, an MTP module, another modality.

A multimodal checkpoint keeps its decoder under `language_model.`, `model.language_model.` and the like; without that
prefix its tensors have the names of a text model. Layer numbers in names are a stranger's text: nine digits at most.
"""

import re
from collections.abc import Mapping

from specdeploy.checkpoint.safetensors_header import TensorEntry

_DECODER_PREFIX = re.compile(r"(?:(?:model|language_model|text_model|llm|thinker|transformer|backbone|gpt_neox)\.)+")
_OTHER_MODALITY = re.compile(
    r"vision|visual|audio|speech|image|video|_tower$|^vit$|projector|^(?:vpm|apm|tts|talker|code2wav|token2wav)$"
    r"|^(?:resampler|aligner|mlp1)$"
)
_LAYER = re.compile(r"(?:layers|h|blocks)\.(\d{1,9})\.")
_MTP = re.compile(r"(?:^|\.)mtp(?:_layers)?\.")
# Routed experts, each alone or all of a layer in one tensor. Shared experts and routers are not.
_ROUTED_EXPERT = re.compile(r"\.experts\.|\.block_sparse_moe\.(?:input|output)_linear\b")
# Also what has no name known here.
_EXPERT_LIKE = re.compile(r"[._](?<!shared_)experts?(?:[._]|$)|\.block_sparse_moe\.|\.moe\.")
_KEYS_OF_ATTENTION = re.compile(
    r"(.*)\.(?:k_proj|qkv_proj|qkv|Wqkv|query_key_value|c_attn|kv_a_proj_with_mqa|kv_b_proj)\.\w+$"
)
_KEEPS_STATE = re.compile(r"\.(?:mamba|linear_attn|ssm|conv|short_conv)\.|\.(?:A_log|dt_bias|conv1d)(?:\.|$)")


def decoder_name(name: str) -> str:
    """`name` without the prefix of the decoder: `layers.0.…` for `model.language_model.layers.0.…`."""
    prefix = _DECODER_PREFIX.match(name)
    return name[prefix.end() :] if prefix else name


def decoder_tensors(tensors: Mapping[str, TensorEntry]) -> tuple[dict[str, TensorEntry], dict[str, list[TensorEntry]]]:
    """(tensors of the text decoder by their name without prefix, tensors of each other modality by its prefix)."""
    decoder: dict[str, TensorEntry] = {}
    others: dict[str, list[TensorEntry]] = {}
    for name, entry in tensors.items():
        if (modality := other_modality(name)) is not None:
            others.setdefault(modality, []).append(entry)
            continue
        short = decoder_name(name)
        decoder[name if short in decoder else short] = entry
    return decoder, others


def other_modality(name: str) -> str | None:
    """Prefix of a tensor that is not of the text decoder (`model.visual`), None for one that is."""
    parts = name.split(".", 5)
    for at, part in enumerate(parts[:5]):
        if part.isdigit():
            return None
        if _OTHER_MODALITY.search(part):
            return ".".join(parts[: at + 1])
    return None


def layer_of(name: str) -> int | None:
    """Number of the decoder's layer that `name`, without the decoder's prefix, belongs to."""
    match = _LAYER.match(name)
    return int(match[1]) if match else None


def is_mtp_tensor(name: str, num_layers: int | None) -> bool:
    """Whether a tensor of the decoder belongs to an MTP module: `mtp.`, or a layer after the decoder's last."""
    if _MTP.search(name):
        return True
    layer = layer_of(name)
    return layer is not None and num_layers is not None and layer >= num_layers


def is_routed_expert(name: str) -> bool:
    """Whether a tensor holds routed experts, of which a token uses only some."""
    return _ROUTED_EXPERT.search(name) is not None


def is_like_expert(name: str) -> bool:
    """Whether a name sounds like a mixture of experts; shared experts do not."""
    return is_routed_expert(name) or _EXPERT_LIKE.search(name) is not None


def attention_layers(names: Mapping[str, object], num_layers: int) -> set[int]:
    """Decoder layers whose keys are cached; linear attention (it stores `A_log` beside its keys) is not among them."""
    found: set[int] = set()
    for name in names:
        layer = layer_of(name)
        keys = _KEYS_OF_ATTENTION.match(name)
        if layer is None or layer >= num_layers or keys is None or ".cross_attn" in keys[1]:
            continue
        if not any(f"{keys[1]}.{state}" in names for state in ("A_log", "dt_bias", "k_conv1d.weight")):
            found.add(layer)
    return found


def has_state_layers(names: Mapping[str, object]) -> bool:
    """Whether some layers keep a state of fixed size (Mamba, linear attention, convolutions) and no cache."""
    return any(layer_of(name) is not None and _KEEPS_STATE.search(name) for name in names)
