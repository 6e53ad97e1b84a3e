"""Decode and verify steps of fixed shape, so that a GPU replays them as one CUDA graph.

At decode sizes a GPU finishes a kernel faster than Python launches the next one; a graph launches all of them at once.
A graph needs fixed shapes, so a step is padded to a bucket (B rows, T tokens per row, L positions of context):

    a short row's further tokens   are written past its end like rejected drafts, and nobody reads them
    a missing row                  is a second copy of a real one: the same numbers go to the same places

The model's own layers and weights do the work, through attention of fixed shape (`static_attention`). `forward` answers
every step: by a replay where a bucket fits, else by `DecoderModel.forward` (prompts, rows near the end of their
memory). On a CPU the same code runs without graphs. Written for CUDA 12 and 13; not yet run on a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specdeploy.runtime.attention import Span
from specdeploy.runtime.cuda_graph import GraphPool
from specdeploy.runtime.decoder_layer import LayerAttention
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import FINAL_NORM, DecoderModel, StepOutput
from specdeploy.runtime.static_attention import (
    PAGE,
    GatheredAttention,
    PagedAttention,
    StepInputs,
    StepShape,
    can_page,
    last_page_fits,
)

# Tokens per row: K = 0 to 4, then powers of 2 plus the newest token.
TOKEN_BUCKETS = (1, 2, 3, 4, 5, 9, 17, 33)
_SMALLEST_CONTEXT = 1024

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Key:
    """One graph: a shape, and what `DecoderModel.forward` can be asked for beyond the logits."""

    shape: StepShape
    hidden_layers: tuple[int, ...] = ()
    num_layers: int | None = None


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A shape's input buffer [n] int32 and the call that reads it and returns logits [B*T, V] and hidden states."""

    buffer: torch.Tensor
    call: Callable[[], tuple[torch.Tensor, torch.Tensor | None]]


class StaticSteps:
    """Steps of one model over one cache. Graphs are recorded when their shape first comes, or by `prepare`."""

    def __init__(
        self,
        model: DecoderModel,
        cache: KvCache,
        *,
        pool: GraphPool | None = None,
    ) -> None:
        """`pool`: graph memory shared with the steps of another model that runs on the same stream."""
        self._model, self._cache = model, cache
        self._pool = pool or GraphPool(model.device)
        self._context_buckets = context_buckets(cache.max_request_tokens)
        self._row_buckets = _row_buckets(cache.num_slots)
        self._recorded: dict[_Key, _Recorded] = {}
        self._can_page = cache.num_positions >= PAGE and can_page(
            model.device,
            model.dtype,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
        )

    def forward(
        self,
        token_ids: Sequence[int],
        spans: Sequence[Span],
        logit_positions: Sequence[int],
        *,
        hidden_layers: Sequence[int] = (),
        num_layers: int | None = None,
    ) -> StepOutput:
        """`DecoderModel.forward` over this cache, replayed where the step has a bucket."""
        forward = self.run if self.can_run(spans) else self._general
        return forward(token_ids, spans, logit_positions, hidden_layers=hidden_layers, num_layers=num_layers)

    def can_run(self, spans: Sequence[Span]) -> bool:
        """Whether the step has a bucket: few tokens per row, and room for the padding in every row's memory."""
        return self._shape(spans) is not None

    @torch.inference_mode()
    def run(
        self,
        token_ids: Sequence[int],
        spans: Sequence[Span],
        logit_positions: Sequence[int],
        *,
        hidden_layers: Sequence[int] = (),
        num_layers: int | None = None,
    ) -> StepOutput:
        """The step by replay; its output is the caller's own. Raises ValueError where `can_run` says no."""
        key = self._key(spans, hidden_layers, num_layers)
        values, places = self._pack(key.shape, token_ids, spans)
        wanted = places[list(logit_positions)]
        recorded = self._recorded.get(key)
        buffer = self._new_buffer(key.shape) if recorded is None else recorded.buffer
        self._fill(buffer, values)
        if recorded is None:  # with this step's inputs: warming up writes what the step writes
            recorded = self._record(key, buffer)
        rows = self._to_device(np.concatenate((wanted, places)))
        logits, hidden = recorded.call()
        own_hidden = None if hidden is None else hidden.index_select(0, rows[len(wanted) :])
        return StepOutput(logits.index_select(0, rows[: len(wanted)]), own_hidden)

    @torch.inference_mode()
    def prepare(self, shapes: Sequence[tuple[int, int, int]]) -> None:
        """Record graphs for (rows, tokens per row, context) now, so that no request waits for it.

        Writes into the first positions of the cache: call it before any row is admitted.
        """
        for num_rows, num_tokens, context in shapes:
            shape = StepShape(
                _bucket(self._row_buckets, num_rows) or num_rows,
                _bucket(TOKEN_BUCKETS, num_tokens) or num_tokens,
                _bucket(self._context_buckets, context) or context,
                has_trees=False,
                is_paged=self._can_page,
            )
            if _Key(shape) not in self._recorded:
                self._record(_Key(shape), self._new_buffer(shape))

    def recorded(self, spans: Sequence[Span]) -> Callable[[], object]:
        """The bare replay of a step that `run` has run for its logits, on the inputs it had last: for timing."""
        key = self._key(spans, (), None)
        if key not in self._recorded:
            raise ValueError("the step was not recorded: run it first")
        return self._recorded[key].call

    def is_paged(self, spans: Sequence[Span]) -> bool:
        """Whether the step's keys are read in place (`static_attention`)."""
        shape = self._shape(spans)
        return shape is not None and shape.is_paged

    def _general(
        self,
        token_ids: Sequence[int],
        spans: Sequence[Span],
        logit_positions: Sequence[int],
        *,
        hidden_layers: Sequence[int],
        num_layers: int | None,
    ) -> StepOutput:
        return self._model.forward(
            token_ids, spans, logit_positions, self._cache, hidden_layers=hidden_layers, num_layers=num_layers
        )

    def _key(self, spans: Sequence[Span], hidden_layers: Sequence[int], num_layers: int | None) -> _Key:
        shape = self._shape(spans)
        if shape is None:
            raise ValueError("the step has no bucket: ask can_run first, or call forward")
        return _Key(shape, tuple(hidden_layers), num_layers)

    def _shape(self, spans: Sequence[Span]) -> StepShape | None:
        if not spans:
            return None
        num_tokens = _bucket(TOKEN_BUCKETS, max(span.num_tokens for span in spans))
        num_rows = _bucket(self._row_buckets, len(spans))
        if num_tokens is None or num_rows is None:
            return None
        context = _bucket(self._context_buckets, num_tokens + max(span.cached_len for span in spans))
        if context is None or any(span.cached_len + num_tokens > self._cache.length_of(span.slot) for span in spans):
            return None
        has_trees = any(span.parents is not None for span in spans)
        is_paged = self._can_page and not has_trees and all(self._last_page_fits(span, num_tokens) for span in spans)
        return StepShape(num_rows, num_tokens, context, has_trees, is_paged)

    def _last_page_fits(self, span: Span, num_tokens: int) -> bool:
        start = self._cache.start_of(span.slot)
        return last_page_fits(start, span.cached_len + num_tokens, self._cache.num_positions)

    def _record(self, key: _Key, buffer: torch.Tensor) -> _Recorded:
        inputs = _inputs(key.shape, buffer)
        recorded = _Recorded(buffer, self._pool.record(lambda: self._compute(key, inputs)))
        self._recorded[key] = recorded
        return recorded

    def _compute(self, key: _Key, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What a graph holds: logits [B*T, V] and asked states [B*T, A*H] or None. No host data, no waiting."""
        model = self._model
        positions = inputs.positions().clamp_(max=model.max_seq_len - 1)  # padding may lie beyond
        attention = self._attention(key.shape, inputs)
        kept: dict[int, torch.Tensor] = {}
        for index, hidden in enumerate(model.states(inputs.tokens, positions, attention, self._cache, key.num_layers)):
            if index in key.hidden_layers:
                kept[index] = hidden
        normed = model.final_norm(hidden)
        asked = [normed if index == FINAL_NORM else kept[index] for index in key.hidden_layers]
        return model.head(normed), torch.cat(asked, dim=1) if asked else None

    def _attention(self, shape: StepShape, inputs: StepInputs) -> LayerAttention:
        if shape.is_paged:
            return PagedAttention(inputs, shape, num_positions=self._cache.num_positions)
        return GatheredAttention(
            inputs,
            shape,
            num_positions=self._cache.num_positions,
            num_heads=self._model.num_heads,
            num_kv_heads=self._model.num_kv_heads,
            dtype=self._model.dtype,
        )

    def _pack(self, shape: StepShape, token_ids: Sequence[int], spans: Sequence[Span]) -> tuple[Int32s, Int32s]:
        """The shape's buffer filled for these spans, and where in [B*T] each of the N flat tokens went."""
        rows, most = shape.num_rows, shape.num_tokens
        tokens = np.zeros((rows, most), np.int32)
        depths = np.tile(np.arange(most, dtype=np.int32), (rows, 1))
        starts, cached = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        visible = np.tile(np.tri(most, dtype=np.int32), (rows if shape.has_trees else 0, 1, 1))
        places = np.zeros(len(token_ids), np.int32)
        for row, span in enumerate(spans):
            count = span.num_tokens
            tokens[row, :count] = token_ids[span.start : span.end]
            starts[row], cached[row] = self._cache.start_of(span.slot), span.cached_len
            places[span.start : span.end] = np.arange(row * most, row * most + count)
            if span.parents is not None:
                depths[row, :count] = span.depths()
                visible[row, :count, :count] = _ancestors(span.parents)
        shortest = min(range(len(spans)), key=lambda row: spans[row].cached_len)
        for array in (tokens, depths, starts, cached, *((visible,) if shape.has_trees else ())):
            array[len(spans) :] = array[shortest]
        parts = (tokens, depths, starts, cached, visible)
        return np.concatenate([part.ravel() for part in parts]), places

    def _new_buffer(self, shape: StepShape) -> torch.Tensor:
        num_tokens = shape.num_rows * shape.num_tokens
        size = 2 * num_tokens + 2 * shape.num_rows + shape.has_trees * num_tokens * shape.num_tokens
        return torch.zeros(size, dtype=torch.int32, device=self._model.device)

    def _fill(self, buffer: torch.Tensor, values: Int32s) -> None:
        buffer.copy_(self._on_host(values), non_blocking=True)

    def _to_device(self, values: Int32s) -> torch.Tensor:
        return self._on_host(values).to(self._model.device, non_blocking=True)

    def _on_host(self, values: Int32s) -> torch.Tensor:
        """Memory that the GPU reads by itself; PyTorch keeps it until the copy is over."""
        host = torch.from_numpy(values)
        return host.pin_memory() if self._model.device.type == "cuda" else host


def context_buckets(longest: int) -> list[int]:
    """Powers of 2 from 1024 positions on, the last a multiple of the page that holds `longest`."""
    top = -(-longest // PAGE) * PAGE
    buckets = [_SMALLEST_CONTEXT]
    while buckets[-1] * 2 < top:
        buckets.append(buckets[-1] * 2)
    return [*(bucket for bucket in buckets if bucket < top), top]


def _row_buckets(most: int) -> list[int]:
    buckets = [1]
    while buckets[-1] < most:
        buckets.append(buckets[-1] * 2)
    return buckets


def _bucket(buckets: Sequence[int], size: int) -> int | None:
    return next((bucket for bucket in buckets if bucket >= size), None)


def _inputs(shape: StepShape, buffer: torch.Tensor) -> StepInputs:
    rows, num_tokens = shape.num_rows, shape.num_rows * shape.num_tokens
    sizes = [num_tokens, num_tokens, rows, rows]
    tokens, depths, starts, cached, visible = buffer.split([*sizes, len(buffer) - sum(sizes)])
    trees = visible.view(rows, shape.num_tokens, shape.num_tokens) if shape.has_trees else None
    return StepInputs(tokens, depths, starts, cached, trees)


def _ancestors(parents: Sequence[int]) -> Int32s:
    """[n, n]: 1 where token i is token j or continues it."""
    seen = np.eye(len(parents), dtype=np.int32)
    for index, parent in enumerate(parents):
        if parent >= 0:
            seen[index] |= seen[parent]
    return seen
