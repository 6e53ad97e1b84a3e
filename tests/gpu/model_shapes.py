"""The two models whose steps are measured, and tiny ones for runs without a GPU. Shapes alone: weights are drawn."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig

from specdeploy.runtime.model import DecoderModel


@dataclass(frozen=True)
class ModelShape:
    name: str
    config: Any

    def build(self, *, dtype: torch.dtype, device: torch.device, max_seq_len: int, seed: int) -> DecoderModel:
        return DecoderModel.from_config(self.config, dtype=dtype, device=device, max_seq_len=max_seq_len, seed=seed)


def _llama(rope_factor: float, **sizes: Any) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": rope_factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        **sizes,
    )


# config.json of meta-llama/Llama-3.1-8B-Instruct
LLAMA_3_1_8B = ModelShape(
    "Llama-3.1-8B",
    _llama(
        8.0,
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=False,
    ),
)
# config.json of meta-llama/Llama-3.2-1B-Instruct
LLAMA_3_2_1B = ModelShape(
    "Llama-3.2-1B",
    _llama(
        32.0,
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
    ),
)


def tiny(
    name: str, *, hidden_size: int = 64, num_layers: int = 2, head_dim: int = 16, tied: bool = False
) -> ModelShape:
    """A model that a CPU steps in a millisecond."""
    config = _llama(
        8.0,
        vocab_size=256,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // head_dim,
        num_key_value_heads=hidden_size // head_dim // 2,
        head_dim=head_dim,
        tie_word_embeddings=tied,
    )
    return ModelShape(name, config)


def step_weight_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes of weights one step reads: layers, norms and head; of the embeddings only the rows of its tokens."""
    hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    attention = 2 * hidden * (heads + kv_heads) * config.head_dim
    mlp = 3 * hidden * config.intermediate_size
    layers = config.num_hidden_layers * (attention + mlp + 2 * hidden)
    return int((layers + hidden + config.vocab_size * hidden) * dtype.itemsize)


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Keys and values of one token over all layers."""
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize)
