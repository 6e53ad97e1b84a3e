"""Percentiles of millions of durations in a fixed amount of memory: counts in buckets whose bounds grow by 0.5 %.

A bucket holds the durations from `lower` up to 1.005 `lower`; a percentile is told by the geometric middle of a bucket,
so it is at most 0.25 % off, however small or large. (The idea of a fixed relative error is DDSketch's, Masson, Rim and
Lee 2019; theirs sizes buckets by a wanted accuracy, ours by one constant, so that any two histograms can be added.)
"""

import math
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

GROWTH = 1.005
MAX_NS = 10**13  # 10,000 s: whatever is longer counts as this long
_LOG_GROWTH = math.log(GROWTH)
# Bucket 0 holds what is shorter than 1 ns, bucket i >= 1 the durations from GROWTH ** (i - 1) ns on.
NUM_BUCKETS = 2 + math.ceil(math.log(MAX_NS) / _LOG_GROWTH)


def bucket_of(values_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Bucket of every duration [n]; durations below 1 ns share bucket 0."""
    values = np.asarray(values_ns, dtype=np.float64)
    buckets = np.floor(np.log(np.maximum(values, 1.0)) / _LOG_GROWTH).astype(np.int64) + 1
    return np.where(values < 1.0, 0, np.minimum(buckets, NUM_BUCKETS - 1))


def middle_ns(bucket: int) -> float:
    """What a duration in `bucket` is taken for: the geometric middle, 0 for bucket 0."""
    return 0.0 if bucket == 0 else GROWTH ** (bucket - 0.5)


@dataclass(slots=True)
class LogHistogram:
    """Counts of durations in nanoseconds, `counts` [NUM_BUCKETS] int64. `sum_ns` is exact, so the mean is too."""

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BUCKETS, dtype=np.int64))
    sum_ns: float = 0.0

    @property
    def num_samples(self) -> int:
        """How many durations were added."""
        return int(self.counts.sum())

    def add(self, values_ns: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> None:
        """Count every duration [n] once, or `weights` [n] times (whole numbers)."""
        values = np.asarray(values_ns, dtype=np.float64)
        times = np.ones(values.shape, dtype=np.int64) if weights is None else np.asarray(weights, dtype=np.int64)
        # bincount's own weights are floats; sums of counts below 2 ** 53 stay exact in them.
        self.counts += np.bincount(bucket_of(values), times, NUM_BUCKETS).astype(np.int64)
        self.sum_ns += float(values @ times)

    def merge(self, other: "LogHistogram") -> Self:
        """Add what `other` counted; returns this histogram."""
        self.counts += other.counts
        self.sum_ns += other.sum_ns
        return self

    @property
    def mean_ns(self) -> float | None:
        """Mean duration; None without any."""
        return self.sum_ns / self.num_samples if self.num_samples else None

    def quantile_ns(self, quantile: float) -> float | None:
        """The `quantile` (0-1) by linear interpolation between the two nearest ranks, as numpy's; None without any."""
        num_samples = self.num_samples
        if not num_samples:
            return None
        position = quantile * (num_samples - 1)
        ranks = np.array([math.floor(position), math.ceil(position)])
        low, high = np.searchsorted(np.cumsum(self.counts), ranks, side="right").tolist()
        share = position - math.floor(position)
        return middle_ns(low) * (1 - share) + middle_ns(high) * share
