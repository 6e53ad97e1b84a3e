"""The checkpoints that the shipped deployments name, at their true shapes, in a folder that is the model hub's cache.

Layout as huggingface_hub writes it: blobs/<etag>, snapshots/<commit>/<file> -> ../../blobs/<etag>, refs/main.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.fabricated_checkpoints import (
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    LlamaSize,
    Shapes,
    byte_level_tokenizer,
    llama_config,
    llama_tensors,
    medusa_tensors,
    write_checkpoint,
    write_sparse,
)
from helpers.pair_files import write_eagle3

LLAMA_1B = LlamaSize(16, 2048, 8192, 32, 8, 128256, head_dim=64, tied=True)
LLAMA_3B = LlamaSize(28, 3072, 8192, 24, 8, 128256, tied=True)
QWEN3_8B = LlamaSize(36, 4096, 12288, 32, 8, 151936)
VICUNA_13B = LlamaSize(40, 5120, 13824, 40, 40, 32000)
MIXTRAL = LlamaSize(32, 4096, 14336, 32, 8, 32000)
DEEPSEEK_V3 = LlamaSize(61, 7168, 18432, 128, 128, 129280)
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def llama_model(folder: Path, size: LlamaSize, *, model_type: str = "llama", dtype: str = "BF16", **keys: Any) -> Path:
    """A llama-like model with its tokenizer."""
    shapes = llama_tensors(size, dtype="BF16")
    if dtype != "BF16":
        shapes = {name: (dtype if "proj" in name else kind, shape) for name, (kind, shape) in shapes.items()}
    tokenizer = byte_level_tokenizer(size.vocab)
    return write_checkpoint(
        folder, llama_config(size, model_type=model_type, **keys), shapes, num_shards=4, tokenizer=tokenizer
    )


def mixtral_model(folder: Path) -> Path:
    shapes: Shapes = {name: shape for name, shape in llama_tensors(MIXTRAL).items() if ".mlp." not in name}
    for layer in range(MIXTRAL.num_layers):
        block = f"model.layers.{layer}.block_sparse_moe"
        shapes[f"{block}.gate.weight"] = ("BF16", (8, MIXTRAL.hidden))
        for expert in range(8):
            shapes |= _expert(f"{block}.experts.{expert}", ("w1", "w3", "w2"), MIXTRAL.hidden, MIXTRAL.intermediate)
    keys = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2}
    config = {**llama_config(MIXTRAL, model_type="mixtral"), "max_position_embeddings": 32768, **keys}
    return write_checkpoint(folder, config, shapes, num_shards=19, tokenizer=byte_level_tokenizer(MIXTRAL.vocab))


def deepseek_model(folder: Path) -> Path:
    """Every tensor of DeepSeek-V3 but the scales of its fp8 blocks, with its MTP module as layer 61."""
    size = DEEPSEEK_V3
    shapes: Shapes = {}
    shapes["model.embed_tokens.weight"] = ("BF16", (size.vocab, size.hidden))
    for layer in range(size.num_layers + 1):
        shapes |= _deepseek_layer(f"model.layers.{layer}", is_dense=layer < 3)
    module = f"model.layers.{size.num_layers}"
    shapes[f"{module}.eh_proj.weight"] = ("BF16", (size.hidden, 2 * size.hidden))
    for norm in ("enorm", "hnorm"):
        shapes[f"{module}.{norm}.weight"] = ("BF16", (size.hidden,))
    shapes["model.norm.weight"] = ("BF16", (size.hidden,))
    shapes["lm_head.weight"] = ("BF16", (size.vocab, size.hidden))
    config = {
        **llama_config(size, model_type="deepseek_v3"),
        "architectures": ["DeepseekV3ForCausalLM"],
        "max_position_embeddings": 163840,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "quantization_config": {**FP8, "weight_block_size": [128, 128]},
    }
    return write_checkpoint(folder, config, shapes, num_shards=163, tokenizer=byte_level_tokenizer(size.vocab))


def _deepseek_layer(prefix: str, *, is_dense: bool) -> Shapes:
    hidden, fp8 = DEEPSEEK_V3.hidden, "F8_E4M3"
    attention = {
        "q_a_proj": (1536, hidden),
        "q_b_proj": (128 * 192, 1536),
        "kv_a_proj_with_mqa": (512 + 64, hidden),
        "kv_b_proj": (128 * 256, 512),
        "o_proj": (hidden, 128 * 128),
    }
    shapes: Shapes = {f"{prefix}.self_attn.{name}.weight": (fp8, shape) for name, shape in attention.items()}
    shapes[f"{prefix}.self_attn.q_a_layernorm.weight"] = ("BF16", (1536,))
    shapes[f"{prefix}.self_attn.kv_a_layernorm.weight"] = ("BF16", (512,))
    for norm in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"{prefix}.{norm}.weight"] = ("BF16", (hidden,))
    names = ("gate_proj", "up_proj", "down_proj")
    if is_dense:
        return shapes | _expert(f"{prefix}.mlp", names, hidden, DEEPSEEK_V3.intermediate, fp8)
    shapes[f"{prefix}.mlp.gate.weight"] = ("BF16", (256, hidden))
    shapes |= _expert(f"{prefix}.mlp.shared_experts", names, hidden, 2048, fp8)
    for expert in range(256):
        shapes |= _expert(f"{prefix}.mlp.experts.{expert}", names, hidden, 2048, fp8)
    return shapes


def _expert(prefix: str, names: tuple[str, str, str], hidden: int, inner: int, dtype: str = "BF16") -> Shapes:
    gate, up, down = names
    return {
        f"{prefix}.{gate}.weight": (dtype, (inner, hidden)),
        f"{prefix}.{up}.weight": (dtype, (inner, hidden)),
        f"{prefix}.{down}.weight": (dtype, (hidden, inner)),
    }


def medusa_head(folder: Path) -> Path:
    """Five heads under the name that the converter reads."""
    folder.mkdir(parents=True)
    config = {"model_type": "medusa", "medusa_num_heads": 5, "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = medusa_tensors(VICUNA_13B.hidden, VICUNA_13B.vocab, num_heads=5)
    write_sparse(folder / "medusa_lm_head.safetensors", shapes)
    return folder


# Hub id -> what lies there.
WRITERS: Mapping[str, Callable[[Path], Path]] = {
    "meta-llama/Llama-3.1-8B-Instruct": lambda folder: llama_model(folder, LLAMA_8B),
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": lambda folder: write_eagle3(folder, LLAMA_8B),
    "nvidia/Llama-3.3-70B-Instruct-FP8": lambda folder: llama_model(
        folder, LLAMA_70B, dtype="F8_E4M3", quantization_config=FP8
    ),
    "meta-llama/Llama-3.2-1B-Instruct": lambda folder: llama_model(folder, LLAMA_1B),
    "nvidia/Llama-3.1-405B-Instruct-FP8": lambda folder: llama_model(
        folder, LLAMA_405B, dtype="F8_E4M3", quantization_config=FP8
    ),
    "meta-llama/Llama-3.2-3B-Instruct": lambda folder: llama_model(folder, LLAMA_3B),
    "lmsys/vicuna-13b-v1.3": lambda folder: llama_model(
        folder, VICUNA_13B, max_position_embeddings=2048, torch_dtype="float16"
    ),
    "FasterDecoding/medusa-vicuna-13b-v1.3": medusa_head,
    "Qwen/Qwen3-8B": lambda folder: llama_model(folder, QWEN3_8B, model_type="qwen3", max_position_embeddings=40960),
    "deepseek-ai/DeepSeek-V3": deepseek_model,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": mixtral_model,
}


def put_on_hub(cache: Path, repo_id: str, write: Callable[[Path], Path], *, commit: str | None = None) -> Path:
    """The snapshot of `repo_id` in `cache`; weights are blobs named by a SHA-256, small files by a git hash."""
    commit = commit or hashlib.sha1(repo_id.encode(), usedforsecurity=False).hexdigest()
    repository = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot, blobs, staged = repository / "snapshots" / commit, repository / "blobs", cache / "staged"
    write(staged)
    for folder in (snapshot, blobs, repository / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(staged.iterdir()):
        # True digests would mean reading hundreds of (sparse) GB; the product trusts the names of the cache.
        named = hashlib.sha256(f"{repo_id}/{path.name}".encode()).hexdigest()
        blob = blobs / (named if path.suffix == ".safetensors" else named[:40])
        path.replace(blob)
        (snapshot / path.name).symlink_to(blob)
    shutil.rmtree(staged)
    (repository / "refs" / "main").write_text(commit)
    return snapshot


def use_hub_cache(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Make huggingface_hub look into `cache`, and nowhere else."""
    from huggingface_hub import constants

    cache.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
