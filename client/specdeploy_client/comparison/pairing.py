"""The same request in both arms of a cell: rows and values that belong together."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import MetricName
from specdeploy_client.records.table import ArmColumns

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PairedValues:
    """One metric of the pairs of a cell that have it in both arms; element i of every array [n] is one pair, in ns."""

    off: Floats
    on: Floats
    block: Ints

    def __len__(self) -> int:
        return len(self.off)


def pair_rows(off: ArmColumns, on: ArmColumns) -> tuple[Ints, Ints]:
    """Row numbers [n] in `off` and in `on` of the requests that both arms answered, in the order of (block, index).

    A (block, index) that an arm holds twice counts once, by its first row.
    """
    off_at, on_at = np.flatnonzero(off.is_answered), np.flatnonzero(on.is_answered)
    # Not assumed to be unique: a foreign file may number its requests twice; np.intersect1d takes the first of them.
    _, off_found, on_found = np.intersect1d(_keys(off)[off_at], _keys(on)[on_at], return_indices=True)
    return off_at[off_found], on_at[on_found]


def paired_values(off: ArmColumns, on: ArmColumns, metric: MetricName) -> PairedValues:
    """`metric` of every pair; pairs in which one arm does not support it are left out."""
    off_rows, on_rows = pair_rows(off, on)
    off_values, on_values = metric_column(off, metric)[off_rows], metric_column(on, metric)[on_rows]
    is_usable = (off_values > 0) & (on_values > 0)  # false for NaN too
    return PairedValues(
        off=off_values[is_usable],
        on=on_values[is_usable],
        block=off.block[off_rows][is_usable].astype(np.int64),
    )


def metric_column(columns: ArmColumns, metric: MetricName) -> Floats:
    """The column [n] of `metric` in ns; NaN where a request does not support it."""
    return {MetricName.TTFT: columns.ttft_ns, MetricName.TPOT: columns.tpot_ns, MetricName.E2E: columns.e2e_ns}[metric]


def _keys(columns: ArmColumns) -> Ints:
    """One number per (block, index): equal numbers are equal requests."""
    keys: Ints = (columns.block.astype(np.int64) << 32) | columns.index.astype(np.int64)
    return keys
