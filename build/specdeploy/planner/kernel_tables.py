"""Measured kernels of one device together, and the time of an all-reduce between its GPUs."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from specdeploy.planner.attention_table import AttentionTable
from specdeploy.planner.linear_table import LinearTable
from specdeploy.planner_contract import Precision

# Where no all-reduce was measured: what one message between two devices takes before its bytes
# (ai-dynamo/aiconfigurator@095f58a, point-to-point latency of its system descriptions).
MESSAGE_LATENCY_S = 10e-6


@dataclass(frozen=True, slots=True)
class AllReduceTable:
    """Seconds of one all-reduce: by number of GPUs, `elements` [n] of 2 bytes and `seconds` [n], rising."""

    lines: Mapping[int, tuple[tuple[float, ...], tuple[float, ...]]]
    implementation: str

    def seconds(self, num_gpus: int, elements: float) -> float:
        """0 for one GPU. Between sizes log-linear, below the smallest as that one, beyond the largest in proportion.

        A number of GPUs that was not measured takes the next larger one's; beyond the largest every doubling adds as
        much as one of the doublings before it took in the mean.
        """
        if num_gpus <= 1:
            return 0.0
        measured = min((count for count in self.lines if count >= num_gpus), default=max(self.lines))
        beyond = max(math.log2(num_gpus) / math.log2(measured), 1.0)
        sizes, seconds = self.lines[measured]
        if elements <= sizes[0]:
            return beyond * seconds[0]
        if elements >= sizes[-1]:
            return beyond * seconds[-1] * elements / sizes[-1]
        cell = bisect_right(sizes, elements)
        share = math.log(elements / sizes[cell - 1]) / math.log(sizes[cell] / sizes[cell - 1])
        return beyond * seconds[cell - 1] * math.exp(share * math.log(seconds[cell] / seconds[cell - 1]))


@dataclass(frozen=True, slots=True)
class KernelTables:
    """What was measured of one device; a precision that is not there was not."""

    linear: Mapping[Precision, LinearTable]
    attention: Mapping[Precision, AttentionTable]
    all_reduce: AllReduceTable | None


NO_TABLES = KernelTables({}, {}, None)


def all_reduce_seconds(tables: KernelTables, link_bandwidth: float | None, num_gpus: int, elements: float) -> float:
    """Seconds of one all-reduce of 2-byte elements; unmeasured: a latency, and 2 (g - 1)/g of the bytes on the link."""
    if num_gpus <= 1:
        return 0.0
    if tables.all_reduce is not None:
        return tables.all_reduce.seconds(num_gpus, elements)
    moved = 2 * elements * 2 * (num_gpus - 1) / num_gpus
    return MESSAGE_LATENCY_S + (moved / link_bandwidth if link_bandwidth else 0.0)
