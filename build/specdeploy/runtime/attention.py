"""Attention of one step: which rows share a kernel call, and which tokens each query may see.

Grouped-query attention is computed with the G = Q/KV query heads of a key/value head laid along the query axis:
queries [B, KV, T*G, D] against keys [B, KV, L, D]. That needs no copy of the keys and, on a CPU in bfloat16, a
fifth of the time of the same product with broadcast heads (docs/benchmarks.md).

Rows with few tokens and similar contexts share one padded call, because a call per row and layer costs more than the
padding. Where their slots lie at equal distances the keys are read in place; otherwise short contexts are copied
together, and long ones get a call each. Padded positions are masked; the cache is zeroed once so that they are finite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from specdeploy.runtime.kv_cache import KvCache

# Rows with more tokens than this in a step (prompts) keep the processor busy on their own.
_SHARED_MAX_TOKENS = 32
# A copied row moves its context once per layer; beyond this many tokens that costs more than a call of its own.
_COPY_MAX_CONTEXT = 512
# Slots between those of the rows are computed for nothing when they are read in place.
_MAX_IDLE_SHARE = 0.5
# Shapes of trees that are remembered. Static trees have one each, and few depths; grown ones rarely repeat.
_MAX_TREES = 64


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of one row within a step: flat positions [start, end), its cache slot, tokens cached before.

    `parents` makes them a tree: token i continues token `parents[i]` of the span (-1: the cached text), parents come
    before children, and a token sees the cached text, its ancestors and itself. None is a chain. Keys and values
    are written in flat order from `cached_len` on; the rotary position of a token is `cached_len` + its depth.
    """

    start: int
    end: int
    slot: int
    cached_len: int
    parents: tuple[int, ...] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the row in this step."""
        return self.end - self.start

    def depths(self) -> list[int]:
        """Depth of each token below the cached text, from 0."""
        if self.parents is None:
            return list(range(self.num_tokens))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths


@lru_cache(maxsize=_MAX_TREES)
def _tree_mask(parents: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Additive [T, T]: 0 where a token of the tree may look, its ancestors and itself. Shared: never written to."""
    mask = np.full((len(parents), len(parents)), float("-inf"), dtype=np.float32)
    for index, parent in enumerate(parents):
        if parent >= 0:
            mask[index] = mask[parent]
        mask[index, index] = 0.0
    return torch.from_numpy(mask).to(device, dtype)


@dataclass(frozen=True, slots=True)
class _Context:
    """Where the keys of B rows lie: `length` positions each, `stride` apart from `first` on, or at `index` [B*L]."""

    first: int
    length: int
    num_rows: int = 1
    stride: int = 0
    index: torch.Tensor | None = None

    def read(self, cached: torch.Tensor) -> torch.Tensor:
        """cached [positions, KV, D] -> [B, KV, L, D]; a view unless the rows had to be gathered."""
        _, heads, dim = cached.shape
        if self.index is not None:
            return cached.index_select(0, self.index).view(self.num_rows, -1, heads, dim).transpose(1, 2)
        width = heads * dim
        return cached.as_strided(
            (self.num_rows, heads, self.length, dim),
            (self.stride * width, dim, width, 1),
            cached.storage_offset() + self.first * width,
        )


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one kernel call. `tokens` are flat token positions [B*T] (None: the slice `start:end`), `kept` picks the
    real ones of the padded output (None: all)."""

    start: int
    end: int
    context: _Context
    mask: torch.Tensor | None  # [B, 1, T*G, L] additive
    tokens: torch.Tensor | None = None
    kept: torch.Tensor | None = None


class StepAttention:
    """The attention of one step, planned once and applied in every layer."""

    def __init__(
        self,
        spans: Sequence[Span],
        cache: KvCache,
        *,
        num_heads: int,
        num_kv_heads: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._kv_heads, self._group_size = num_kv_heads, num_heads // num_kv_heads
        self._dtype, self._device = dtype, device
        shared = [span for span in spans if span.num_tokens <= _SHARED_MAX_TOKENS]
        context = self._shared_context(shared, cache) if len(shared) > 1 else None
        alone = spans if context is None else [span for span in spans if span.num_tokens > _SHARED_MAX_TOKENS]
        self._groups = [self._single(span, cache) for span in alone]
        if context is not None:
            self._groups.append(self._batch(shared, context, cache))
        self._spans = tuple(spans)
        self.targets = torch.tensor(
            [
                cache.start_of(span.slot) + span.cached_len + offset
                for span in spans
                for offset in range(span.num_tokens)
            ],
            dtype=torch.long,
            device=device,
        )  # [N] flat cache positions that are written

    @cached_property
    def positions(self) -> torch.Tensor:
        """Rotary positions [N]; drafters that count them on their own do not pay for these."""
        places = [span.cached_len + depth for span in self._spans for depth in span.depths()]
        return torch.tensor(places, dtype=torch.long, device=self._device)

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """queries [N, Q, D]; keys, values: one layer of the cache [positions, KV, D]. Returns [N, Q*D]."""
        num_tokens, num_heads, dim = queries.shape
        if len(self._groups) == 1 and self._groups[0].tokens is None:
            return self._attend(self._groups[0], queries, keys, values)
        mixed = queries.new_empty(num_tokens, num_heads * dim)
        for group in self._groups:
            out = self._attend(group, queries, keys, values)
            if group.tokens is None:
                mixed[group.start : group.end] = out
            elif group.kept is None:
                mixed.index_copy_(0, group.tokens, out)
            else:
                mixed.index_copy_(0, group.tokens.index_select(0, group.kept), out.index_select(0, group.kept))
        return mixed

    def _attend(self, group: _Group, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        kv_heads, group_size, dim = self._kv_heads, self._group_size, queries.shape[-1]
        batch = group.context.num_rows
        rows = queries[group.start : group.end] if group.tokens is None else queries.index_select(0, group.tokens)
        # [B, T, KV, G, D] -> [B, KV, T*G, D]
        stacked = rows.view(batch, -1, kv_heads, group_size, dim).transpose(1, 2).reshape(batch, kv_heads, -1, dim)
        out = F.scaled_dot_product_attention(stacked, group.context.read(keys), group.context.read(values), group.mask)
        return out.view(batch, kv_heads, -1, group_size, dim).transpose(1, 2).reshape(-1, kv_heads * group_size * dim)

    def _single(self, span: Span, cache: KvCache) -> _Group:
        length = span.cached_len + span.num_tokens
        mask = None
        if span.num_tokens > 1:
            mask = self._mask(span, length).repeat_interleave(self._group_size, dim=0)[None, None]
        return _Group(span.start, span.end, _Context(cache.start_of(span.slot), length), mask)

    def _shared_context(self, spans: list[Span], cache: KvCache) -> _Context | None:
        """How the rows can share a call; sorts them by place. None: each has a call of its own."""
        spans.sort(key=lambda span: cache.start_of(span.slot))
        starts = [cache.start_of(span.slot) for span in spans]
        longest = max(span.cached_len + span.num_tokens for span in spans)
        stride = math.gcd(*(start - starts[0] for start in starts[1:]))
        count = (starts[-1] - starts[0]) // stride + 1
        fits = longest <= stride and starts[-1] + longest <= cache.num_positions
        if fits and count - len(spans) <= _MAX_IDLE_SHARE * len(spans):
            return _Context(starts[0], longest, count, stride)
        if longest > _COPY_MAX_CONTEXT:
            return None
        steps = torch.arange(longest, device=self._device)
        index = torch.cat(
            [
                start + steps.clamp(max=span.cached_len + span.num_tokens - 1)
                for start, span in zip(starts, spans, strict=True)
            ]
        )
        return _Context(0, longest, len(spans), index=index)

    def _batch(self, spans: Sequence[Span], context: _Context, cache: KvCache) -> _Group:
        most = max(span.num_tokens for span in spans)
        tokens = [spans[0].start] * (context.num_rows * most)  # padding repeats a real token
        kept: list[int] = []
        mask = torch.zeros(context.num_rows, most, context.length, dtype=self._dtype, device=self._device)
        for index, span in enumerate(spans):
            row = index if context.index is not None else (cache.start_of(span.slot) - context.first) // context.stride
            places = range(row * most, row * most + span.num_tokens)
            tokens[places.start : places.stop] = range(span.start, span.end)
            kept += places
            length = span.cached_len + span.num_tokens
            mask[row, :, length:] = float("-inf")
            if span.num_tokens > 1:
                mask[row, : span.num_tokens, :length] = self._mask(span, length)
        is_padded = len(kept) < len(tokens)
        is_slice = not is_padded and tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        return _Group(
            start=tokens[0],
            end=tokens[0] + len(tokens),
            context=context,
            mask=mask.repeat_interleave(self._group_size, dim=1).unsqueeze(1),
            tokens=None if is_slice else torch.tensor(tokens, device=self._device),
            kept=torch.tensor(kept, device=self._device) if is_padded else None,
        )

    def _mask(self, span: Span, length: int) -> torch.Tensor:
        """Additive [T, length]: 0 where a token of the span may look."""
        if span.parents is None:
            mask = torch.full((span.num_tokens, length), float("-inf"), dtype=self._dtype, device=self._device)
            return mask.triu_(diagonal=span.cached_len + 1)
        mask = torch.zeros(span.num_tokens, length, dtype=self._dtype, device=self._device)
        mask[:, span.cached_len :] = _tree_mask(span.parents, self._dtype, self._device)
        return mask
