"""Tensors of a checkpoint folder, each taken exactly once: what is missing or left over is an error, never a guess."""

from pathlib import Path

import torch

from specdeploy.errors import CheckpointError
from specdeploy.runtime.decoder_layer import DecoderLayer, LayerShape
from specdeploy.runtime.linear import Linear


class CheckpointWeights:
    """All tensors of the safetensors files in a folder, handed out by name in one dtype and on one device."""

    def __init__(self, folder: Path, *, dtype: torch.dtype, device: torch.device, prefix: str = "") -> None:
        """`prefix` leaves out, unread, every tensor whose name does not start with it.

        Raises CheckpointError when a file cannot be read or there is none.
        """
        self.folder = folder
        self._dtype, self._device = dtype, device
        self._tensors = _read_safetensors(folder, prefix)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor that was not taken yet; None when there is none of that name."""
        return tuple(self._tensors[name].shape) if name in self._tensors else None

    def take(self, name: str) -> torch.Tensor:
        """The tensor in the model's dtype. Raises CheckpointError when it is missing."""
        return self.take_raw(name).to(self._device, self._dtype)

    def take_raw(self, name: str) -> torch.Tensor:
        """The tensor as it was stored: index maps and masks."""
        try:
            return self._tensors.pop(name)
        except KeyError:
            raise CheckpointError(f"{self.folder}: tensor {name} is missing from the safetensors files") from None

    def take_optional(self, name: str) -> torch.Tensor | None:
        """The tensor, or None when the checkpoint has none of that name."""
        return self.take(name) if name in self._tensors else None

    def take_linear(self, prefix: str, names: tuple[str, ...]) -> Linear:
        """Projections that read the same input, fused into one product; a bias on all of them or on none."""
        weight = torch.cat([self.take(f"{prefix}.{name}.weight") for name in names])
        biases = [self.take_optional(f"{prefix}.{name}.bias") for name in names]
        present = [bias for bias in biases if bias is not None]
        if present and len(present) != len(names):
            raise CheckpointError(f"{self.folder}: {prefix} has a bias on some of {', '.join(names)} but not on all")
        return Linear(weight, torch.cat(present) if present else None)

    def take_layer(self, base: str, shape: LayerShape, *, has_input_norm: bool = True) -> DecoderLayer:
        """The decoder layer under `base`, such as `model.layers.0`."""
        q_norm, k_norm = (self.take_optional(f"{base}.self_attn.{name}.weight") for name in ("q_norm", "k_norm"))
        if (q_norm is None) != (k_norm is None):
            absent, there = ("q_norm", "k_norm") if q_norm is None else ("k_norm", "q_norm")
            raise CheckpointError(
                f"{self.folder}: tensor {base}.self_attn.{absent}.weight is missing: the layer has {there}, and "
                "queries and keys are normed together. Take a complete checkpoint"
            )
        return DecoderLayer(
            shape=shape,
            input_norm=self.take(f"{base}.input_layernorm.weight") if has_input_norm else None,
            qkv=self.take_linear(f"{base}.self_attn", ("q_proj", "k_proj", "v_proj")),
            q_norm=q_norm,
            k_norm=k_norm,
            out=self.take_linear(f"{base}.self_attn", ("o_proj",)),
            post_norm=self.take(f"{base}.post_attention_layernorm.weight"),
            gate_up=self.take_linear(f"{base}.mlp", ("gate_proj", "up_proj")),
            down=self.take_linear(f"{base}.mlp", ("down_proj",)),
        )

    def take_target_ids(self, vocab_size: int) -> torch.Tensor | None:
        """Token of each row of a trimmed lm_head [n]: draft id + d2t[draft id]. `t2d` says the same as a mask."""
        d2t = self._tensors.pop("d2t", None)
        self._tensors.pop("t2d", None)
        if d2t is None:
            return None
        ids = torch.arange(len(d2t)) + d2t.long()
        if not len(ids) or ids.min() < 0 or ids.max() >= vocab_size or not (ids.diff() > 0).all():
            raise CheckpointError(f"{self.folder}: d2t is no rising map into {vocab_size} tokens. Trim the draft again")
        return ids.to(self._device)

    def discard(self, name: str) -> None:
        """Leave a tensor out on purpose: a second copy of one that was taken."""
        self._tensors.pop(name, None)

    def discard_under(self, prefix: str) -> None:
        """Leave tensors out on purpose: those that belong to something else in the same folder."""
        self._tensors = {name: tensor for name, tensor in self._tensors.items() if not name.startswith(prefix)}

    def check_all_taken(self, architecture: str) -> None:
        """Raises CheckpointError naming a tensor that nothing read: leaving it out would change the output."""
        leftover = [name for name in self._tensors if not name.endswith("rotary_emb.inv_freq")]
        if leftover:
            raise CheckpointError(
                f"{self.folder}: {len(leftover)} tensors are not part of {architecture}, "
                f"first {leftover[0]}; leaving them out would change the output"
            )


def _read_safetensors(folder: Path, prefix: str) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no *.safetensors file. Convert the checkpoint to safetensors first")
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                weights.update({name: opened.get_tensor(name) for name in opened.keys() if name.startswith(prefix)})  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: not a readable safetensors file: {error}") from None
    return weights
