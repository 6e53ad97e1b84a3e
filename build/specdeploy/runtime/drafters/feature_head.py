"""What the heads that read the target's hidden states have in common: a few decoder layers over pairs.

A pair is a *feature* - a target state, or in a draft the head's own output - and the token after it. The head's output
for the pair of text position i predicts token i + 2 and is the feature of the next pair in a draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdeploy.runtime.attention import Span, StepAttention
from specdeploy.runtime.decoder_layer import DecoderLayer, LayerShape
from specdeploy.runtime.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class HeadStep:
    """One forward pass: rotary tables at its positions [N, 1, D], its attention, the head's cache."""

    cos: torch.Tensor
    sin: torch.Tensor
    attention: StepAttention
    cache: KvCache

    def apply(self, layers: Sequence[DecoderLayer], hidden: torch.Tensor, *, first: int = 0) -> torch.Tensor:
        """hidden [N, H] through plain layers, the first of which is the head's layer `first`."""
        for index, layer in enumerate(layers, first):
            hidden = layer(hidden, self.cos, self.sin, self.attention, self.cache.keys[index], self.cache.values[index])
        return hidden


class FeatureHead:
    """Base of the heads. Holds weights and no state; N pairs of all rows lie end to end, H is the head's hidden size.

    `hidden_layers` the target states it reads; `target_ids` [n] the token of each logit (None: logit i is token i);
    `max_positions` first text position it must not read.
    """

    hidden_layers: tuple[int, ...]
    target_ids: torch.Tensor | None
    max_positions: int

    def __init__(
        self, *, shape: LayerShape, num_layers: int, embedding: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> None:
        """`embedding` [V, H]; `cos` and `sin` [max_positions, D] as `rotary_tables` gives them."""
        self.shape, self.num_layers = shape, num_layers
        self.embedding = embedding
        self.dtype, self.device = embedding.dtype, embedding.device
        self._cos, self._sin = cos.to(self.device, self.dtype), sin.to(self.device, self.dtype)
        self.max_positions = len(cos)

    def new_cache(self, num_slots: int, *, extra_tokens: int) -> KvCache:
        """Key/value memory for `num_slots` rows, each with `extra_tokens` positions for a tree behind its text."""
        return KvCache(
            num_slots=num_slots,
            max_seq_len=self.max_positions,
            num_layers=self.num_layers,
            num_kv_heads=self.shape.num_kv_heads,
            head_dim=self.shape.head_dim,
            dtype=self.dtype,
            device=self.device,
            extra_tokens=extra_tokens,
        )

    def forward(
        self,
        token_ids: torch.Tensor,
        features: torch.Tensor,
        spans: Sequence[Span],
        positions: Sequence[int],
        cache: KvCache,
    ) -> torch.Tensor:
        """Outputs [N, H] of N pairs: `token_ids` [N], `features` [N, H].

        `positions` are the text positions of the features. They are not where the span lies in the cache once the head
        has missed some of the text, so they are given apart.
        """
        attention = StepAttention(
            spans,
            cache,
            num_heads=self.shape.num_heads,
            num_kv_heads=self.shape.num_kv_heads,
            dtype=self.dtype,
            device=self.device,
        )
        at = torch.tensor(positions, dtype=torch.long, device=self.device)
        step = HeadStep(self._cos[at].unsqueeze(1), self._sin[at].unsqueeze(1), attention, cache)
        return self._run(F.embedding(token_ids, self.embedding), features, step)

    def fuse(self, states: torch.Tensor) -> torch.Tensor:
        """Features [n, H] of target states [n, A*H]."""
        return states

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits [P, n] of outputs [P, H]."""
        raise NotImplementedError

    def _run(self, embedded: torch.Tensor, features: torch.Tensor, step: HeadStep) -> torch.Tensor:
        """Outputs [N, H] of embeddings and features [N, H]."""
        raise NotImplementedError

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.eps)
