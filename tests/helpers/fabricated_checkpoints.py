"""Checkpoints of any size from nothing: true headers over sparse files, so that 800 GB of weights take a few MB.

folder = write_checkpoint(tmp_path / "target", llama_config(LLAMA_405B), llama_tensors(LLAMA_405B), num_shards=191)
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Shapes = dict[str, tuple[str, tuple[int, ...]]]  # name -> (dtype, shape)

DTYPE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "BOOL": 1, "I32": 4, "I64": 8}


@dataclass(frozen=True, slots=True)
class LlamaSize:
    """Sizes of a llama-like model."""

    num_layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128
    tied: bool = False


LLAMA_405B = LlamaSize(126, 16384, 53248, 128, 8, 128256)
LLAMA_70B = LlamaSize(80, 8192, 28672, 64, 8, 128256)
LLAMA_8B = LlamaSize(32, 4096, 14336, 32, 8, 128256)
QWEN25_7B = LlamaSize(28, 3584, 18944, 28, 4, 152064)
QWEN25_05B = LlamaSize(24, 896, 4864, 14, 2, 151936, head_dim=64, tied=True)
SMALL = LlamaSize(2, 64, 128, 4, 2, 320, head_dim=16)


# --- files ----------------------------------------------------------------------------------------------------------


def header_bytes(shapes: Shapes) -> tuple[bytes, dict[str, tuple[int, int]], int]:
    """Header as the safetensors library writes it, the data offsets of every tensor, and the bytes of all data."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offsets: dict[str, tuple[int, int]] = {}
    end = 0
    for name, (dtype, shape) in shapes.items():
        begin, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
        offsets[name] = (begin, end)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, offsets, end


def write_sparse(path: Path, shapes: Shapes, values: Mapping[str, NDArray[Any]] | None = None) -> Path:
    """A safetensors file of `shapes` whose data is a hole, but for the tensors given in `values`."""
    header, offsets, num_bytes = header_bytes(shapes)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + num_bytes)
        for name, array in (values or {}).items():
            begin, end = offsets[name]
            raw = np.ascontiguousarray(array).tobytes()
            assert len(raw) == end - begin, name
            file.seek(len(header) + begin)
            file.write(raw)
    return path


def write_weights(
    folder: Path, shapes: Shapes, *, num_shards: int = 1, values: Mapping[str, NDArray[Any]] | None = None
) -> Path:
    """One file, or `num_shards` of them with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    values = values or {}
    if num_shards == 1:
        write_sparse(folder / "model.safetensors", shapes, values)
        return folder
    names = list(shapes)
    size = math.ceil(len(names) / num_shards)
    shards = [names[start : start + size] for start in range(0, len(names), size)]
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards, 1):
        file_name = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(shard, file_name)
        written = {name: values[name] for name in shard if name in values}
        write_sparse(folder / file_name, {name: shapes[name] for name in shard}, written)
    index_text = json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index_text)
    return folder


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    shapes: Shapes | None = None,
    *,
    num_shards: int = 1,
    values: Mapping[str, NDArray[Any]] | None = None,
    tokenizer: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
) -> Path:
    """A checkpoint folder; what is not given is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shapes is not None:
        write_weights(folder, shapes, num_shards=num_shards, values=values)
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return folder


# --- decoders -------------------------------------------------------------------------------------------------------


def llama_config(size: LlamaSize, *, model_type: str = "llama", **overrides: Any) -> dict[str, Any]:
    """config.json of a llama-like model."""
    names = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    return {
        "architectures": [f"{names.get(model_type, model_type.title())}ForCausalLM"],
        "model_type": model_type,
        "num_hidden_layers": size.num_layers,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "vocab_size": size.vocab,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": size.tied,
        "torch_dtype": "bfloat16",
        **overrides,
    }


def layer_tensors(size: LlamaSize, prefix: str, *, dtype: str = "BF16", attention_inputs: int = 1) -> Shapes:
    """One decoder layer under `prefix`; `attention_inputs` hidden states side by side (2 in EAGLE-3's first layer)."""
    hidden, inner = size.hidden, size.intermediate
    query, keys, width = size.heads * size.head_dim, size.kv_heads * size.head_dim, size.hidden * attention_inputs
    shapes = {
        "self_attn.q_proj": (query, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {f"{prefix}{name}.weight": (dtype, shape) for name, shape in shapes.items()}


def llama_tensors(size: LlamaSize, *, dtype: str = "BF16", vocab_rows: int | None = None) -> Shapes:
    """Every tensor of a llama-like model; `vocab_rows` rows of embedding and head where they are padded."""
    rows = size.vocab if vocab_rows is None else vocab_rows
    shapes: Shapes = {"model.embed_tokens.weight": (dtype, (rows, size.hidden))}
    for layer in range(size.num_layers):
        shapes |= layer_tensors(size, f"model.layers.{layer}.", dtype=dtype)
    shapes["model.norm.weight"] = (dtype, (size.hidden,))
    return shapes if size.tied else {**shapes, "lm_head.weight": (dtype, (rows, size.hidden))}


# --- heads ----------------------------------------------------------------------------------------------------------


def eagle1_tensors(size: LlamaSize, *, bias: bool = False, embedding: bool = True) -> Shapes:
    """An EAGLE-1 head: one layer without input norm, `fc` over embedding and hidden state."""
    shapes = layer_tensors(size, "layers.0.")
    del shapes["layers.0.input_layernorm.weight"]
    shapes["fc.weight"] = ("BF16", (size.hidden, 2 * size.hidden))
    if bias:
        shapes["fc.bias"] = ("BF16", (size.hidden,))
    if embedding:
        shapes["embed_tokens.weight"] = ("BF16", (size.vocab, size.hidden))
    return shapes


def eagle3_tensors(
    size: LlamaSize,
    *,
    draft_vocab: int,
    prefix: str = "midlayer.",
    num_aux: int = 3,
    target_hidden: int | None = None,
    lm_head: bool = True,
    embedding: bool = False,
    maps: bool = True,
) -> Shapes:
    """An EAGLE-3 head: `fc` over `num_aux` hidden states, first layer over embedding and hidden state."""
    shapes = layer_tensors(size, prefix, attention_inputs=2)
    shapes[f"{prefix}hidden_norm.weight"] = ("BF16", (size.hidden,))
    shapes["norm.weight"] = ("BF16", (size.hidden,))
    shapes["fc.weight"] = ("BF16", (size.hidden, num_aux * (target_hidden or size.hidden)))
    if lm_head:
        shapes["lm_head.weight"] = ("BF16", (draft_vocab, size.hidden))
    if embedding:
        shapes["embed_tokens.weight"] = ("BF16", (size.vocab, size.hidden))
    if maps:
        shapes |= {"d2t": ("I64", (draft_vocab,)), "t2d": ("BOOL", (size.vocab,))}
    return shapes


def eagle3_config(size: LlamaSize, layout: str, *, draft_vocab: int | None, **overrides: Any) -> dict[str, Any]:
    """config.json of an EAGLE-3 head as `layout` ("safeailab", "specforge", "speculators", "modelopt") writes it."""
    flat = llama_config(size, num_hidden_layers=1, max_position_embeddings=2048)
    reduced = {} if draft_vocab is None else {"draft_vocab_size": draft_vocab}
    if layout == "speculators":
        del flat["architectures"]
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {
                "algorithm": "eagle3",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                "verifier": {"name_or_path": "target", "architectures": ["LlamaForCausalLM"]},
            },
            "transformer_layer_config": flat,
            "norm_before_residual": True,
            **reduced,
            **overrides,
        }
    if layout == "modelopt":
        switches = {
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
            **overrides.pop("eagle_config", {}),
        }
        return {**flat, "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": switches, **reduced, **overrides}
    architecture = "LlamaForCausalLM" if layout == "safeailab" else "LlamaForCausalLMEagle3"
    return {**flat, "architectures": [architecture], **reduced, **overrides}


def medusa_tensors(
    hidden: int, vocab: int, *, num_heads: int = 4, num_layers: int = 1, naming: str = "original"
) -> Shapes:
    """Medusa heads in the spelling of the original authors, of vLLM ("vllm") or of ModelOpt ("modelopt")."""
    shapes: Shapes = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            block = {
                "original": f"{head}.{layer}.linear",
                "vllm": f"blocks.{head}.layers.{layer}",
                "modelopt": f"medusa_heads.{head}.medusa_layers.{layer}.linear",
            }[naming]
            shapes |= {f"{block}.weight": ("F16", (hidden, hidden)), f"{block}.bias": ("F16", (hidden,))}
        last = {
            "original": f"{head}.{num_layers}.weight",
            "vllm": f"lm_heads.{head}.weight",
            "modelopt": f"medusa_heads.{head}.lm_head.weight",
        }[naming]
        shapes[last] = ("F16", (vocab, hidden))
    return shapes


# --- tokenizers -----------------------------------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def byte_level_tokenizer(
    num_tokens: int, *, added: Sequence[str] = ("<|end|>",), swap: tuple[int, int] | None = None, num_merges: int = 0
) -> dict[str, Any]:
    """tokenizer.json with a byte-level vocabulary of exactly `num_tokens` tokens; two ids exchanged by `swap`."""
    alphabet = byte_alphabet()
    pieces = [
        *alphabet,
        *("Ġ" + "".join(chr(97 + index // 26**place % 26) for place in range(4)) for index in range(num_tokens)),
    ]
    pieces = pieces[: num_tokens - len(added)]
    if swap is not None:
        pieces[swap[0]], pieces[swap[1]] = pieces[swap[1]], pieces[swap[0]]
    merges = [[pieces[index % len(pieces)], pieces[-1 - index % len(pieces)]] for index in range(num_merges)]
    tokens = [{"id": len(pieces) + index, "content": text, "special": True} for index, text in enumerate(added)]
    return {
        "version": "1.0",
        "added_tokens": [
            {**token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False} for token in tokens
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {piece: index for index, piece in enumerate(pieces)}, "merges": merges},
    }
