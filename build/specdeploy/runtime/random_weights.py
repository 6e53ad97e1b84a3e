"""Weights of a given shape without a checkpoint, drawn on the device: for measuring step times and for tests."""

import math
from pathlib import Path
from typing import Any

import torch

from specdeploy.errors import CheckpointError
from specdeploy.runtime.weights import CheckpointWeights

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


class RandomWeights(CheckpointWeights):
    """Norms are ones, embeddings have variance 1 and every matrix 1 / inputs, so that states and logits stay near 1."""

    def __init__(self, config: Any, *, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        """Raises CheckpointError for an architecture whose tensors are not the Llama family's plain ones."""
        architecture = (config.architectures or ["none"])[0]
        self.folder = Path("random weights")
        if architecture not in _ARCHITECTURES or getattr(config, "attention_bias", False):
            raise CheckpointError(
                f"{self.folder}: {architecture} is not drawn. Use one of {', '.join(_ARCHITECTURES)} without biases"
            )
        self._dtype, self._device = dtype, device
        self._tensors = {}
        self._generator = torch.Generator(device).manual_seed(seed)
        self._shapes = _matrix_shapes(config)
        self._hidden_size: int = config.hidden_size

    def take(self, name: str) -> torch.Tensor:
        """A fresh draw of the named tensor; the order of calls decides its numbers. KeyError for an unknown name."""
        kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
        if kind.endswith("norm"):
            return torch.ones(self._hidden_size, dtype=self._dtype, device=self._device)
        shape = self._shapes[kind]
        scale = 1.0 if kind == "embed_tokens" else 1.0 / math.sqrt(shape[1])
        drawn = torch.randn(shape, generator=self._generator, dtype=self._dtype, device=self._device)
        return drawn.mul_(scale)


def _matrix_shapes(config: Any) -> dict[str, tuple[int, int]]:
    """[out, in] by the last part of the name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    head_dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    return {
        "embed_tokens": (config.vocab_size, hidden),
        "lm_head": (config.vocab_size, hidden),
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }
