"""Attention of a step whose shapes are fixed: B rows of T tokens over a context of at most L.

Everything that differs between steps is read from tensors on the device, so the same kernels serve every step and a
CUDA graph can hold them. Two ways:

    paged     PyTorch's variable-length flash attention over the cache in place. Its work follows the true lengths, the
              context is split over the GPU, and no mask exists; bfloat16 and float16 on CUDA, chains only.
    gathered  copies each row's context together and masks: any device and dtype, and trees. On a GPU it moves the
              context three times where `paged` moves it once.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# Positions per page that the flash kernel can read from a block table: a multiple of this.
PAGE = 256


@dataclass(frozen=True, slots=True)
class StepShape:
    """B rows of T tokens, L positions of context at most; trees, or chains; keys read in place, or gathered."""

    num_rows: int
    num_tokens: int
    context: int
    has_trees: bool
    is_paged: bool


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What differs between steps of one shape, int32 on the device; views of one buffer."""

    tokens: torch.Tensor  # [B*T]
    depths: torch.Tensor  # [B*T] below the cached text
    starts: torch.Tensor  # [B] flat cache index of the row's position 0
    cached: torch.Tensor  # [B] tokens of the row that were cached before
    visible: torch.Tensor | None  # [B, T, T] trees: 1 where token i sees token j

    def positions(self) -> torch.Tensor:
        """Rotary positions [B*T]."""
        return (self.cached.unsqueeze(1) + self.depths.view(len(self.cached), -1)).flatten()

    def targets(self) -> torch.Tensor:
        """Flat cache positions [B*T] that the step writes."""
        first = (self.starts + self.cached).unsqueeze(1)
        return (first + _steps(len(self.tokens) // len(self.starts), first)).flatten().long()


class GatheredAttention:
    """Any device, any dtype, chains and trees."""

    def __init__(
        self,
        inputs: StepInputs,
        shape: StepShape,
        *,
        num_positions: int,
        num_heads: int,
        num_kv_heads: int,
        dtype: torch.dtype,
    ) -> None:
        self._shape, self._kv_heads = shape, num_kv_heads
        self.targets = inputs.targets()
        steps = _steps(shape.context, inputs.starts)
        # Positions past the row's end are masked; the clamp keeps them inside the arena.
        places = (inputs.starts.unsqueeze(1) + steps).clamp_(max=num_positions - 1)
        self._index = places.flatten()  # [B*L]
        mask = _additive_mask(inputs, shape, steps, dtype)  # [B, T, L]
        self._mask = mask.repeat_interleave(num_heads // num_kv_heads, dim=1).unsqueeze(1)  # [B, 1, T*G, L]
        self._kernels = _kernels(inputs.tokens.device, dtype)

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """As `LayerAttention`. The query heads of a key/value head lie along the query axis, as in StepAttention."""
        rows, kv_heads, dim = self._shape.num_rows, self._kv_heads, queries.shape[-1]
        group = queries.shape[1] // kv_heads
        # [B, T, KV, G, D] -> [B, KV, T*G, D]
        stacked = queries.reshape(rows, -1, kv_heads, group, dim).transpose(1, 2).reshape(rows, kv_heads, -1, dim)
        with self._kernels():
            out = F.scaled_dot_product_attention(stacked, self._read(keys), self._read(values), self._mask)
        return out.reshape(rows, kv_heads, -1, group, dim).transpose(1, 2).reshape(-1, kv_heads * group * dim)

    def _read(self, cached: torch.Tensor) -> torch.Tensor:
        """cached [positions, KV, D] -> [B, KV, L, D]."""
        gathered = cached.index_select(0, self._index)
        return gathered.view(self._shape.num_rows, -1, *cached.shape[1:]).transpose(1, 2)


class PagedAttention:
    """Chains in bfloat16 or float16 on CUDA (torch.nn.attention.varlen).

    The arena is handed over as overlapping pages, one at every position: page n of a row that starts at s is page
    s + 256 n of the arena, so rows may start anywhere. The caller sees to it that a row's last page ends inside the
    arena (`last_page_fits`).
    """

    def __init__(self, inputs: StepInputs, shape: StepShape, *, num_positions: int) -> None:
        self._shape = shape
        self.targets = inputs.targets()
        offsets = _steps(shape.context // PAGE, inputs.starts) * PAGE
        # Pages past the row's end are not read; the clamp keeps their numbers valid.
        self._pages = (inputs.starts.unsqueeze(1) + offsets).clamp_(max=num_positions - PAGE)  # [B, L / 256]
        self._lengths = inputs.cached + shape.num_tokens  # [B]
        bounds = _steps(shape.num_rows + 1, inputs.starts)
        self._query_bounds = bounds * shape.num_tokens  # [B + 1]
        self._key_bounds = bounds * shape.context  # asked for, not read where there are pages

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """As `LayerAttention`. Causal among the T newest tokens of each row."""
        from torch.nn.attention.varlen import varlen_attn

        tokens = self._shape.num_tokens
        out = varlen_attn(
            queries,
            as_pages(keys),
            as_pages(values),
            self._query_bounds,
            self._key_bounds,
            tokens,
            self._shape.context,
            window_size=(-1, 0) if tokens > 1 else (-1, -1),
            enable_gqa=True,
            seqused_k=self._lengths,
            block_table=self._pages,
        )
        assert isinstance(out, torch.Tensor)  # noqa: S101 - for the type: a tuple comes only where more was asked for
        return out.flatten(1)


def as_pages(cached: torch.Tensor) -> torch.Tensor:
    """[positions, KV, D] -> [positions - 255, 256, KV, D]: the page that begins at each position. A view."""
    positions, heads, dim = cached.shape
    width = cached.stride(0)
    return cached.as_strided(
        (positions - PAGE + 1, PAGE, heads, dim), (width, width, cached.stride(1), 1), cached.storage_offset()
    )


def last_page_fits(start: int, length: int, num_positions: int) -> bool:
    """Whether the pages of a row of `length` tokens from `start` on lie inside the arena."""
    return start + -(-length // PAGE) * PAGE <= num_positions


def can_page(device: torch.device, dtype: torch.dtype, *, num_heads: int, num_kv_heads: int, head_dim: int) -> bool:
    """Whether `PagedAttention` exists here and agrees with `GatheredAttention` on a small case."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    try:
        return all(_agree(device, dtype, tokens, num_heads, num_kv_heads, head_dim) for tokens in (1, 3))
    except (ImportError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return False  # another PyTorch or GPU: gathered attention is always right


@torch.inference_mode()
def _agree(
    device: torch.device, dtype: torch.dtype, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int
) -> bool:
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)

    keys, values = draw(5 * PAGE, num_kv_heads, head_dim), draw(5 * PAGE, num_kv_heads, head_dim)
    queries = draw(2 * num_tokens, num_heads, head_dim)
    shape = StepShape(2, num_tokens, 2 * PAGE, has_trees=False, is_paged=True)
    row_tokens = torch.arange(num_tokens, dtype=torch.int32, device=device)
    inputs = StepInputs(
        tokens=torch.zeros(2 * num_tokens, dtype=torch.int32, device=device),
        depths=row_tokens.repeat(2),
        starts=torch.tensor((7, 2 * PAGE + 31), dtype=torch.int32, device=device),
        cached=torch.tensor((PAGE + 9, 5), dtype=torch.int32, device=device),
        visible=None,
    )
    paged = PagedAttention(inputs, shape, num_positions=len(keys))
    gathered = GatheredAttention(
        inputs, shape, num_positions=len(keys), num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=dtype
    )
    difference = paged(queries, keys, values).float() - gathered(queries, keys, values).float()
    return bool(difference.abs().max() < 0.02)  # outputs are means of unit normals; rounding is below 0.01


def _steps(count: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(count, dtype=torch.int32, device=like.device)


def _additive_mask(inputs: StepInputs, shape: StepShape, steps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[B, T, L]: 0 where a token looks, -inf elsewhere. Computed once per step, on the device."""
    offsets = (steps - inputs.cached.unsqueeze(1)).unsqueeze(1)  # [B, 1, L] position within the step's own tokens
    if inputs.visible is None:
        seen = offsets <= _steps(shape.num_tokens, steps).view(1, -1, 1)
    else:
        own = offsets.clamp(0, shape.num_tokens - 1).expand(-1, shape.num_tokens, -1).long()
        seen = (offsets < 0) | ((offsets < shape.num_tokens) & (inputs.visible.gather(2, own) > 0))
    return torch.zeros(seen.shape, dtype=dtype, device=steps.device).masked_fill_(~seen, float("-inf"))


def _kernels(device: torch.device, dtype: torch.dtype) -> Callable[[], AbstractContextManager[None]]:
    """Which kernels may run. On CUDA flash takes no mask; in float32 identity counts, so plain products only."""
    if device.type != "cuda":
        return nullcontext
    if dtype is torch.float32:
        return lambda: sdpa_kernel(SDPBackend.MATH)
    return lambda: sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
