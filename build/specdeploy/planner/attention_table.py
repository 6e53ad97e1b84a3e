"""Seconds of one layer's attention in a decode step, from measured kernels: fixed by rows, a slope by cached tokens."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from specdeploy.planner.monotone import rising

MEASURED_HEAD_DIM = 128
# The kernels were timed over and over on the same cache, which a cache of 40 to 126 MB on the chip then holds. In a
# step the weights pass between two readings, so only caches that do not fit say what a token costs ...
_COLD_BYTES = 256e6
# ... and only tiny ones what a kernel costs before it reads.
_EMPTY_BYTES = 8e6


@dataclass(frozen=True, slots=True)
class AttentionPoint:
    """One kernel: a query token for each of `num_rows` rows, over `kv_len` tokens cached by each."""

    num_heads: int
    num_kv_heads: int
    num_rows: int
    kv_len: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AttentionFit:
    """One pair of head counts: `fixed_s` [n] at `rows` [n], rising, and seconds per token cached over all rows."""

    rows: tuple[float, ...]
    fixed_s: tuple[float, ...]
    token_s: float

    def fixed(self, num_rows: float) -> float:
        """Seconds of `num_rows` rows with nothing cached; log-linear in rows, in proportion beyond the last."""
        if num_rows <= self.rows[0]:
            return self.fixed_s[0] if num_rows > 0 else 0.0
        if num_rows >= self.rows[-1]:
            return self.fixed_s[-1] * num_rows / self.rows[-1]
        cell = bisect_right(self.rows, num_rows)
        left, right = self.rows[cell - 1], self.rows[cell]
        share = math.log(num_rows / left) / math.log(right / left)
        return self.fixed_s[cell - 1] * math.exp(share * math.log(self.fixed_s[cell] / self.fixed_s[cell - 1]))


@dataclass(frozen=True, slots=True)
class AttentionTable:
    """Fits by (heads, kv heads) of one GPU. Counts that were not measured take the nearest ones' fixed part, and
    their slope in proportion to the bytes of a token."""

    fits: Mapping[tuple[int, int], AttentionFit]

    def fit(self, num_heads: int, num_kv_heads: int) -> AttentionFit:
        """The fit of these counts, or of the nearest ones measured."""
        return self.fits[self._nearest(num_heads, num_kv_heads)]

    def token_s(self, num_heads: int, num_kv_heads: int, head_dim: int) -> float:
        """Seconds of a layer per token cached, whichever row it belongs to."""
        nearest = self._nearest(num_heads, num_kv_heads)
        return self.fits[nearest].token_s * num_kv_heads * head_dim / (nearest[1] * MEASURED_HEAD_DIM)

    def seconds(self, num_heads: int, num_kv_heads: int, num_rows: int, kv_len: float) -> float:
        """One layer over `kv_len` tokens cached by each row, heads of the measured width."""
        slope = self.token_s(num_heads, num_kv_heads, MEASURED_HEAD_DIM)
        return self.fit(num_heads, num_kv_heads).fixed(num_rows) + slope * num_rows * kv_len

    def _nearest(self, num_heads: int, num_kv_heads: int) -> tuple[int, int]:
        def distance(counts: tuple[int, int]) -> tuple[float, tuple[int, int]]:
            heads, kv_heads = counts
            return abs(math.log(heads / num_heads)) + abs(math.log(kv_heads / num_kv_heads)), counts

        return min(self.fits, key=distance)


def fit_attention(points: Sequence[AttentionPoint], element_bytes: float) -> AttentionTable:
    """Fixed parts and slopes by least relative squares, none below zero, of the points that are cold or empty."""
    fits: dict[tuple[int, int], AttentionFit] = {}
    for counts in sorted({(point.num_heads, point.num_kv_heads) for point in points}):
        chosen = [point for point in points if (point.num_heads, point.num_kv_heads) == counts]
        fits[counts] = _fit([point for point in chosen if _is_used(point, element_bytes)])
    return AttentionTable(fits)


def _is_used(point: AttentionPoint, element_bytes: float) -> bool:
    cached = point.num_rows * point.kv_len * 2 * point.num_kv_heads * MEASURED_HEAD_DIM * element_bytes
    return cached >= _COLD_BYTES or cached <= _EMPTY_BYTES


def _fit(points: Sequence[AttentionPoint]) -> AttentionFit:
    rows = sorted({point.num_rows for point in points})
    design = np.zeros((len(points), len(rows) + 1))
    for index, point in enumerate(points):
        design[index, rows.index(point.num_rows)] = 1 / point.seconds
        design[index, -1] = point.num_rows * point.kv_len / point.seconds
    scale = np.array([1e-6] * len(rows) + [1e-9])  # nnls compares with absolute tolerances
    solution = nnls(design * scale, np.ones(len(points)))[0] * scale
    fixed = np.exp(rising(np.log(np.maximum(solution[:-1], 1e-9)), 0))
    return AttentionFit(tuple(map(float, rows)), tuple(fixed.tolist()), float(solution[-1]))
