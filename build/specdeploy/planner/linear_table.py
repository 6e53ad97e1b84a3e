"""Seconds of one linear layer, (m x k) times (k x n): from a table of measured kernels, or from the device's peaks."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np

from specdeploy.planner.monotone import Floats, rising, without_peaks

TokenSeconds = Callable[[float], float]  # of one layer, by the tokens it reads


class LinearTimes(Protocol):
    """Seconds of a linear layer that turns `k` features of `m` tokens into `n`; never falling in any of the three."""

    def layer(self, n: float, k: float) -> TokenSeconds:
        """For a layer that is asked over and over: quicker than `seconds`."""
        ...

    def seconds(self, n: float, k: float, m: float) -> float:
        """Fractions are allowed: a mixture of experts touches its experts in the mean."""
        ...


@dataclass(frozen=True, slots=True)
class LinearCurve:
    """One layer over the tokens of a step: log-linear between the sizes measured, in proportion beyond the last.

    Behind `tokens`[i] it takes `measured_s`[i] x (m / tokens[i]) ^ `powers`[i], all three [M]; the last power is 1.
    """

    tokens: tuple[float, ...]
    measured_s: tuple[float, ...]
    powers: tuple[float, ...]

    def seconds(self, m: float) -> float:
        cell = bisect_right(self.tokens, m) - 1
        if cell < 0:
            return self.measured_s[0]
        return self.measured_s[cell] * math.pow(m / self.tokens[cell], self.powers[cell])


@dataclass(frozen=True, slots=True)
class LinearTable:
    """Measured layers: `log_seconds` [N, K, M] over `features_out` n, `features_in` k and `tokens` m, all rising.

    Between grid points interpolated in the logarithms of all three. Outside: beyond the largest n, k or m in
    proportion (the kernel's bandwidth or arithmetic stays what it is there); below the smallest n or k as the grid's
    layer of as many weights, and never below the smallest layer (its time is launch and latency).
    """

    features_out: tuple[float, ...]
    features_in: tuple[float, ...]
    tokens: tuple[float, ...]
    log_seconds: Floats
    _grid: dict[tuple[int, int], LinearCurve] = field(default_factory=dict, repr=False, compare=False)

    def layer(self, n: float, k: float) -> TokenSeconds:
        n, k, factor = self._inside(n, k)
        row, n_share = _cell(self.features_out, n)
        column, k_share = _cell(self.features_in, k)
        block = self.log_seconds[row : row + 2, column : column + 2]
        lines = block[0] + n_share * (block[1] - block[0])
        return self._curve(lines[0] + k_share * (lines[1] - lines[0]), factor).seconds

    def seconds(self, n: float, k: float, m: float) -> float:
        n, k, factor = self._inside(n, k)
        row, n_share = _cell(self.features_out, n)
        column, k_share = _cell(self.features_in, k)
        low = self._between(row, column, k_share, m)
        high = self._between(row + 1, column, k_share, m) if n_share else low
        return factor * low * math.pow(high / low, n_share)

    def _between(self, row: int, column: int, k_share: float, m: float) -> float:
        low = self._measured(row, column).seconds(m)
        high = self._measured(row, column + 1).seconds(m) if k_share else low
        return low * math.pow(high / low, k_share)

    def _measured(self, row: int, column: int) -> LinearCurve:
        known = self._grid.get((row, column))
        if known is None:
            known = self._grid[row, column] = self._curve(self.log_seconds[row, column], 1.0)
        return known

    def _curve(self, log_seconds: Floats, factor: float) -> LinearCurve:
        powers = np.diff(log_seconds) / np.diff(np.log(self.tokens))
        return LinearCurve(self.tokens, tuple((factor * np.exp(log_seconds)).tolist()), (*powers.tolist(), 1.0))

    def _inside(self, n: float, k: float) -> tuple[float, float, float]:
        """A layer of the grid and how much longer than it this one takes."""
        least_n, most_n = self.features_out[0], self.features_out[-1]
        least_k, most_k = self.features_in[0], self.features_in[-1]
        if k < least_k:
            n, k = n * k / least_k, least_k
        if n < least_n:
            n, k = least_n, max(k * n / least_n, least_k)
        factor = max(n / most_n, 1.0) * max(k / most_k, 1.0)
        return min(n, most_n), min(k, most_k), factor


@dataclass(frozen=True, slots=True)
class RooflineLinear:
    """No kernel was measured: the longer of reading the weights and of multiplying, at shares of the peaks."""

    bytes_per_weight: float
    bandwidth: float
    flops: float

    def layer(self, n: float, k: float) -> TokenSeconds:
        return partial(self.seconds, n, k)

    def seconds(self, n: float, k: float, m: float) -> float:
        return n * k * max(self.bytes_per_weight / self.bandwidth, 2 * m / self.flops)


@dataclass(frozen=True, slots=True)
class NarrowWeights:
    """Weights stored in fewer bits than they are multiplied in: read in `share` of the time, multiplied as `wide`.

    The longer of `share` x one token's time and of the compute-bound line through the largest size measured, which is
    never above the wide layer itself.
    """

    wide: LinearTimes
    share: float
    most_tokens: float

    def layer(self, n: float, k: float) -> TokenSeconds:
        wide = self.wide.layer(n, k)
        one_s, most_s = wide(1), wide(self.most_tokens)
        return lambda m: self._longer(one_s, most_s, wide(m), m)

    def seconds(self, n: float, k: float, m: float) -> float:
        one_s, most_s = self.wide.seconds(n, k, 1), self.wide.seconds(n, k, self.most_tokens)
        return self._longer(one_s, most_s, self.wide.seconds(n, k, m), m)

    def _longer(self, one_s: float, most_s: float, wide_s: float, m: float) -> float:
        return max(self.share * one_s, min(most_s * m / self.most_tokens, wide_s))


def linear_table(
    features_out: Sequence[float], features_in: Sequence[float], tokens: Sequence[float], seconds: Floats
) -> LinearTable:
    """A table from raw seconds [N, K, M], nan where nothing was measured.

    One token never takes longer than two (B200 in fp8 was measured so), peaks of single layers are cut, and what then
    still falls along m, n or k is replaced by the nearest rising values.
    """
    logs = _filled(np.log(seconds), np.log(np.asarray(tokens, dtype=np.float64)))
    logs[..., 0] = np.minimum(logs[..., 0], logs[..., 1])
    logs = without_peaks(logs)
    for axis in (2, 0, 1):
        logs = rising(logs, axis)
    return LinearTable(tuple(features_out), tuple(features_in), tuple(tokens), logs)


def _filled(logs: Floats, log_tokens: Floats) -> Floats:
    """Gaps along m interpolated; layers that were not measured take the next larger n's, then the next larger k's."""
    filled = logs.copy()
    for line in filled.reshape(-1, filled.shape[-1]):
        known = ~np.isnan(line)
        if known.any() and not known.all():
            line[:] = np.interp(log_tokens, log_tokens[known], line[known])
    for axis in (0, 1):
        layers = np.moveaxis(filled, axis, 0)
        for index in range(len(layers) - 2, -1, -1):
            layers[index] = np.where(np.isnan(layers[index]), layers[index + 1], layers[index])
    return filled


def _cell(grid: tuple[float, ...], value: float) -> tuple[int, float]:
    """The grid's cell that holds `value`, and where in it, by logarithms."""
    cell = min(max(bisect_right(grid, value) - 1, 0), len(grid) - 2)
    left, right = math.log(grid[cell]), math.log(grid[cell + 1])
    return cell, (math.log(value) - left) / (right - left)
