"""One layer of the Llama family: RMSNorm, grouped-query attention with rotary positions, gated SiLU MLP."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from specdeploy.runtime.linear import Linear
from specdeploy.runtime.rotary import rotate


class LayerAttention(Protocol):
    """The attention of one step as a layer sees it: `StepAttention`, or one of fixed shape (`static_attention`)."""

    @property
    def targets(self) -> torch.Tensor:
        """Flat cache positions [N] that the step's keys and values are written to."""

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """queries [N, Q, D]; keys, values: one layer of the cache [positions, KV, D]. Returns [N, Q*D]."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What every layer of a model shares: Q query heads, KV key/value heads, head dim D, epsilon of the norms."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float


@dataclass(slots=True)
class DecoderLayer:
    """`input_norm` None: attention reads its input as it is (EAGLE-1 heads, or a caller that has normed already)."""

    shape: LayerShape
    input_norm: torch.Tensor | None  # [H]
    qkv: Linear
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    out: Linear
    post_norm: torch.Tensor  # [H]
    gate_up: Linear
    down: Linear

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: LayerAttention,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """hidden [N, H] -> [N, H]; writes this step's keys and values to `keys` and `values` [positions, KV, D]."""
        attended = hidden if self.input_norm is None else self._norm(hidden, self.input_norm)
        return self.finish(hidden, self.attend(attended, cos, sin, attention, keys, values))

    def attend(
        self,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: LayerAttention,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Attention and its output projection over an input [N, in] that was normed already."""
        heads, kv_heads, dim = self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_dim
        qkv = self.qkv(normed).view(-1, heads + 2 * kv_heads, dim)
        queries_keys = qkv[:, : heads + kv_heads]
        if self.q_norm is not None and self.k_norm is not None:
            queries_keys = torch.cat(
                (self._norm(queries_keys[:, :heads], self.q_norm), self._norm(queries_keys[:, heads:], self.k_norm)),
                dim=1,
            )
        queries_keys = rotate(queries_keys, cos, sin)
        keys.index_copy_(0, attention.targets, queries_keys[:, heads:])
        values.index_copy_(0, attention.targets, qkv[:, heads + kv_heads :])
        return self.out(attention(queries_keys[:, :heads], keys, values))

    def finish(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Add attention to the residual stream, then the MLP."""
        hidden = residual + attended
        gate, up = self.gate_up(self._norm(hidden, self.post_norm)).chunk(2, dim=1)
        return hidden + self.down(F.silu(gate) * up)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.eps)
