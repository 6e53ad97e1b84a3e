"""K of every segment by the requests in flight, as the plans say."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from specdeploy.contract import SegmentPlan
from specdeploy.planner.simulator.step_counts import StepAcceptance

UNBOUNDED = 1 << 62


@dataclass(frozen=True, slots=True)
class Regime:
    """What holds from `low` to `high` requests in flight, both inclusive; tuples have one entry per segment.

    `positions`: where K stands among the segment's choices. `drafted_tokens`: drafted per row and step on average,
    below K where a drafter often has nothing to offer.
    """

    low: int
    high: int
    draft_lens: tuple[int, ...]
    positions: tuple[int, ...]
    drafted_tokens: tuple[float, ...]


class DraftLengths:
    """The regimes of `plans`, one plan per segment. `choices` per segment: every K it may come to, rising."""

    def __init__(self, plans: Sequence[SegmentPlan], acceptance: Sequence[StepAcceptance | None]) -> None:
        bounds = {1}
        for plan in plans:
            for entry in plan.ranges:
                bounds.add(entry.min_in_flight)
                if entry.max_in_flight is not None:
                    bounds.add(entry.max_in_flight + 1)
        lows = sorted(bounds)
        by_low = [tuple(plan.draft_len(low) for plan in plans) for low in lows]
        # Neighbours that agree are one regime: crossing from one to the other changes nothing.
        starts = [place for place in range(len(lows)) if not place or by_low[place] != by_low[place - 1]]
        self._lows = [lows[place] for place in starts]
        by_regime = [by_low[place] for place in starts]
        highs = [*(low - 1 for low in self._lows[1:]), UNBOUNDED]
        self.choices = tuple(tuple(sorted(set(draft_lens))) for draft_lens in zip(*by_regime, strict=True))
        self._regimes = [
            Regime(
                low,
                high,
                draft_lens,
                tuple(choices.index(k) for choices, k in zip(self.choices, draft_lens, strict=True)),
                tuple(_drafted_tokens(model, k) for model, k in zip(acceptance, draft_lens, strict=True)),
            )
            for low, high, draft_lens in zip(self._lows, highs, by_regime, strict=True)
        ]

    def at(self, in_flight: int) -> Regime:
        """What holds at `in_flight` >= 1 requests."""
        return self._regimes[bisect_right(self._lows, in_flight) - 1]


def _drafted_tokens(model: StepAcceptance | None, draft_len: int) -> float:
    return 0.0 if model is None or not draft_len else model.mean_draft_tokens(draft_len)
