"""Rotary position embedding (RoFormer, half-split form as in transformers' Llama), and which scalings are known."""

from pathlib import Path
from typing import Any

import torch

from specdeploy.errors import CheckpointError


def rotary_tables(config: Any, head_dim: int, max_seq_len: int, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [max_seq_len, D] in float32, scaled as the checkpoint says.

    The sign of the rotation is folded into sin, so that `rotate` needs no negation. Raises CheckpointError for a
    scaling that changes with the length of the text.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = config.rope_parameters
    rope_type = parameters.get("rope_type", "default")
    if rope_type == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        inv_freq, scaling = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    elif rope_type in ("linear", "llama3", "yarn") and rope_type in ROPE_INIT_FUNCTIONS:
        inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"))
    else:
        # dynamic and longrope change the table with the length of the text: rows of one batch would disagree.
        raise CheckpointError(f"{folder}/config.json: rope_parameters: rope_type {rope_type} is not supported")
    angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float32), inv_freq.float())
    sin = angles.sin()
    cos = torch.cat((angles, angles), dim=-1).cos() * scaling
    return cos, torch.cat((-sin, sin), dim=-1) * scaling


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [N, heads, D] at the positions of cos and sin [N, 1, D] (`rotary_tables`)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)
