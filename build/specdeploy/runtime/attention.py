"""Attention of one step: which rows share a kernel call, and which tokens each query may see.

Grouped-query attention is computed with the G = Q/KV query heads of a key/value head laid along the query axis:
queries [B, KV, T*G, D] against keys [B, KV, L, D]. That needs no copy of the keys and, on a CPU in bfloat16, a
fifth of the time of the same product with broadcast heads (docs/benchmarks.md).

Rows with few tokens and short contexts are gathered into one padded call, because a call per row and layer costs more
than the copy; the others get a call each and read their keys in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdeploy.runtime.kv_cache import KvCache

# A gathered row copies its context once per layer; beyond this many tokens that costs more than a call of its own.
_GATHER_MAX_CONTEXT = 1024
_GATHER_MAX_TOKENS = 64


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


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one kernel call. `rows` are flat token positions [B*T] (None: the slice `start:end`), `kept` picks the
    real ones of the padded output (None: all), `context` gathers keys [B*L] (None: the slice `first:last`)."""

    num_rows: int
    start: int
    end: int
    rows: torch.Tensor | None
    kept: torch.Tensor | None
    context: torch.Tensor | None
    first: int
    last: int
    mask: torch.Tensor | None  # [B, 1, T*G, L] additive


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
        gathered = [
            span
            for span in spans
            if span.num_tokens <= _GATHER_MAX_TOKENS and span.cached_len + span.num_tokens <= _GATHER_MAX_CONTEXT
        ]
        if len(gathered) < 2:
            gathered = []
        alone = [span for span in spans if not gathered or span not in gathered]
        self._groups = [self._single(span, cache) for span in alone]
        if gathered:
            self._groups.append(self._batch(gathered, cache))
        self.positions = torch.tensor(
            [span.cached_len + depth for span in spans for depth in span.depths()], dtype=torch.long, device=device
        )  # [N] rotary positions
        self.targets = torch.tensor(
            [
                cache.start_of(span.slot) + span.cached_len + offset
                for span in spans
                for offset in range(span.num_tokens)
            ],
            dtype=torch.long,
            device=device,
        )  # [N] flat cache positions that are written

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """queries [N, Q, D]; keys, values: one layer of the cache [positions, KV, D]. Returns [N, Q*D]."""
        num_tokens, num_heads, dim = queries.shape
        if len(self._groups) == 1 and self._groups[0].rows is None:
            return self._attend(self._groups[0], queries, keys, values)
        mixed = queries.new_empty(num_tokens, num_heads * dim)
        for group in self._groups:
            out = self._attend(group, queries, keys, values)
            if group.rows is None:
                mixed[group.start : group.end] = out
            elif group.kept is None:
                mixed.index_copy_(0, group.rows, out)
            else:
                mixed.index_copy_(0, group.rows.index_select(0, group.kept), out.index_select(0, group.kept))
        return mixed

    def _attend(self, group: _Group, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        kv_heads, group_size, dim = self._kv_heads, self._group_size, queries.shape[-1]
        rows = queries[group.start : group.end] if group.rows is None else queries.index_select(0, group.rows)
        batch = group.num_rows
        # [B, T, KV, G, D] -> [B, KV, T*G, D]
        stacked = rows.view(batch, -1, kv_heads, group_size, dim).transpose(1, 2).reshape(batch, kv_heads, -1, dim)
        if group.context is None:
            k, v = keys[group.first : group.last].unsqueeze(0), values[group.first : group.last].unsqueeze(0)
        else:
            k = keys.index_select(0, group.context).view(batch, -1, kv_heads, dim)
            v = values.index_select(0, group.context).view(batch, -1, kv_heads, dim)
        out = F.scaled_dot_product_attention(stacked, k.transpose(1, 2), v.transpose(1, 2), group.mask)
        return out.view(batch, kv_heads, -1, group_size, dim).transpose(1, 2).reshape(-1, kv_heads * group_size * dim)

    def _single(self, span: Span, cache: KvCache) -> _Group:
        context = span.cached_len + span.num_tokens
        mask = None
        if span.num_tokens > 1:
            mask = self._mask(span, span.num_tokens, context).repeat_interleave(self._group_size, dim=0)[None, None]
        begin = cache.start_of(span.slot)
        return _Group(1, span.start, span.end, None, None, None, begin, begin + context, mask)

    def _batch(self, spans: Sequence[Span], cache: KvCache) -> _Group:
        most = max(span.num_tokens for span in spans)
        longest = max(span.cached_len + span.num_tokens for span in spans)
        rows, kept, context = [], [], []
        mask = torch.zeros(len(spans), most, longest, dtype=self._dtype, device=self._device)
        steps = torch.arange(longest, device=self._device)
        for index, span in enumerate(spans):
            # Padding repeats a real token: memory of positions never written could hold NaN.
            rows += [min(span.start + offset, span.end - 1) for offset in range(most)]
            kept += [index * most + offset for offset in range(span.num_tokens)]
            length = span.cached_len + span.num_tokens
            context.append(cache.start_of(span.slot) + steps.clamp(max=length - 1))
            mask[index, :, length:] = float("-inf")
            if span.num_tokens > 1:
                mask[index, : span.num_tokens, :length] = self._mask(span, span.num_tokens, length)
        is_padded = len(kept) < len(rows)
        is_slice = not is_padded and rows == list(range(rows[0], rows[0] + len(rows)))
        return _Group(
            num_rows=len(spans),
            start=rows[0],
            end=rows[-1] + 1,
            rows=None if is_slice else torch.tensor(rows, device=self._device),
            kept=torch.tensor(kept, device=self._device) if is_padded else None,
            context=torch.cat(context),
            first=0,
            last=0,
            mask=mask.repeat_interleave(self._group_size, dim=1).unsqueeze(1),
        )

    def _mask(self, span: Span, num_tokens: int, context: int) -> torch.Tensor:
        """Additive [T, context]: 0 where a token of the span may look."""
        mask = torch.full((num_tokens, context), float("-inf"), dtype=self._dtype, device=self._device)
        if span.parents is None:
            return mask.triu_(diagonal=span.cached_len + 1)
        mask[:, : span.cached_len] = 0.0
        for index, parent in enumerate(span.parents):
            if parent >= 0:
                mask[index, span.cached_len :] = mask[parent, span.cached_len :]
            mask[index, span.cached_len + index] = 0.0
        return mask
