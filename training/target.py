"""The frozen parts of the target that a draft is trained against."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoConfig, PretrainedConfig


@dataclass(frozen=True)
class FrozenTarget:
    """Weights by name in float32, the embeddings [V, H] and, for `draft_ids` [n], the rows of the head [n, H]."""

    config: PretrainedConfig
    weights: dict[str, torch.Tensor]
    draft_ids: torch.Tensor
    head: torch.Tensor

    @property
    def embedding(self) -> torch.Tensor:
        """Token embeddings [V, H]."""
        return self.weights["model.embed_tokens.weight"]

    def last_layer(self, name: str) -> torch.Tensor:
        """A tensor of the target's last layer."""
        return self.weights[f"model.layers.{self.config.num_hidden_layers - 1}.{name}.weight"]

    def layer(self, index: int, name: str) -> torch.Tensor:
        """A tensor of one layer."""
        return self.weights[f"model.layers.{index}.{name}.weight"]

    def probs(self, last_states: torch.Tensor) -> torch.Tensor:
        """The target's distribution over `draft_ids` [M, n] from states after the last layer [M, H]."""
        normed = F.rms_norm(
            last_states.float(), (last_states.shape[-1],), self.weights["model.norm.weight"], self.config.rms_norm_eps
        )
        return (normed.to(self.head.dtype) @ self.head.T).float().softmax(dim=-1)


def load_target(folder: Path, draft_ids: torch.Tensor) -> FrozenTarget:
    """Read the checkpoint; the head is tied to the embeddings (SmolLM2)."""
    config = AutoConfig.from_pretrained(folder)
    if not config.tie_word_embeddings:
        raise ValueError(
            f"{folder}: the head is not tied to the embeddings; this script trains for targets where it is"
        )
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights.update({name: tensor.float() for name, tensor in load_file(path).items()})
    head = weights["model.embed_tokens.weight"][draft_ids].to(torch.bfloat16)
    return FrozenTarget(config, weights, draft_ids, head)


def rotary(config: PretrainedConfig, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [T, D] of positions [T]."""
    dim = config.head_dim
    inv_freq = 1.0 / (config.rope_parameters["rope_theta"] ** (torch.arange(0, dim, 2) / dim))
    angles = torch.outer(positions.float(), inv_freq)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, heads, T, D]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin
