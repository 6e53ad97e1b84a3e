"""Stopping a cell early when it is decided, without more false alarms than a run to its end may give.

Looking at a growing sample again and again and stopping at the first interval that excludes 1 raises false alarms far
more often than one look at the end. Here the looks before the end are few, and each uses so strict an interval that it
costs next to nothing (Haybittle 1971; Peto and others 1976). What they cost is taken from the last one: by Bonferroni's
inequality all looks together give no more false alarms than the nominal rate, whatever the looks have in common.
"""

from collections.abc import Sequence
from importlib import import_module

import numpy as np

from specdeploy.run_contract import Arm, MetricName, Percentile, RequestRecord
from specdeploy_client.comparison.stats import CONFIDENCE, MIN_PAIRS, Floats, Ints, ratio_of_percentiles
from specdeploy_client.metrics import METRICS, is_answered

# Shares of the planned pairs after which a cell may be decided, at the end of the next block.
LOOKS = (0.4, 0.6, 0.8)
# Of the false alarms that the nominal confidence allows, what one early look may spend.
SPENT_BY_LOOK = 0.05


def final_confidence(confidence: float = CONFIDENCE) -> float:
    """Confidence of the intervals of a run that may stop early: a little above `confidence`, for what looking cost."""
    return 1 - (1 - confidence) * (1 - SPENT_BY_LOOK * len(LOOKS))


def look_confidence(confidence: float = CONFIDENCE) -> float:
    """Confidence at which an early look decides."""
    return 1 - (1 - confidence) * SPENT_BY_LOOK


class SequentialStop:
    """Watches one cell: give every record of it to `add`, and `is_decided` to `run_cell` as `on_block_end`.

    The cell is decided when the on/off ratio of medians of every one of `metrics` lies on one side of `limit`.
    `stopped_after` is the number of pairs after which it was, None while it is not. Intervals of a watched cell are to
    be computed at `final_confidence`.
    """

    def __init__(
        self,
        num_planned_pairs: int,
        *,
        metrics: Sequence[MetricName] = (MetricName.E2E,),
        seed: int,
        confidence: float = CONFIDENCE,
        limit: float = 1.0,
    ) -> None:
        self._num_planned_pairs = num_planned_pairs
        self._metrics = tuple(metrics)
        self._seed = seed
        self._confidence = look_confidence(confidence)
        self._limit = limit
        self._looks = list(LOOKS)
        self._values: dict[Arm, dict[tuple[int, int], tuple[float | None, ...]]] = {Arm.OFF: {}, Arm.ON: {}}
        self.stopped_after: int | None = None
        import_module("scipy.special")  # what the intervals need is loaded now and not while requests are due

    def add(self, record: RequestRecord) -> None:
        """Take in one measured record; other arms and requests without an answer play no part."""
        if record.arm in self._values and is_answered(record):
            values = tuple(METRICS[metric](record) for metric in self._metrics)
            self._values[record.arm][record.block, record.index] = values

    def is_decided(self, num_pairs: int) -> bool:
        """Whether the cell may end after `num_pairs` of its pairs; asked at the end of a block.

        Never after an odd number of blocks: each arm must have gone first equally often.
        """
        share = num_pairs / self._num_planned_pairs
        if not self._looks or share < self._looks[0] or share >= 1:
            return False
        off, on = self._values[Arm.OFF], self._values[Arm.ON]
        pairs = sorted(off.keys() & on.keys())
        blocks = np.array([block for block, _ in pairs], dtype=np.int64)
        if len(set(blocks.tolist())) % 2:
            return False
        self._looks = [look for look in self._looks if look > share]  # one look, however many of them are due
        off_values = np.array([off[pair] for pair in pairs], dtype=np.float64)  # [n, metrics], NaN for None
        on_values = np.array([on[pair] for pair in pairs], dtype=np.float64)
        columns = range(len(self._metrics))
        if pairs and all(self._is_one_sided(off_values[:, i], on_values[:, i], blocks) for i in columns):
            self.stopped_after = len(pairs)
        return self.stopped_after is not None

    def _is_one_sided(self, off: Floats, on: Floats, blocks: Ints) -> bool:
        is_usable = (off > 0) & (on > 0)
        if is_usable.sum() < MIN_PAIRS:
            return False
        quantile = Percentile.P50.quantile
        interval = ratio_of_percentiles(
            off[is_usable], on[is_usable], quantile, self._confidence, self._seed, blocks=blocks[is_usable]
        )
        return interval.excludes(self._limit)
