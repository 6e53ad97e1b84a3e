"""From which concurrency on speculation is not faster: the curve of ratios over the levels and its two bounds.

Between two levels the ratio is taken to be straight over the logarithm of the concurrency. Where a curve dips below 1
only in the middle, as with a mixture of experts, its last crossing upwards counts.
"""

import math
from collections.abc import Sequence

from specdeploy.planner_contract import Estimate, LevelPrediction, PredictedCrossover

NEVER = 0.0  # not faster at any level
BEYOND = math.inf  # faster at the highest level still


def find_crossover(levels: Sequence[LevelPrediction]) -> PredictedCrossover:
    """Crossover of the e2e ratio with its interval, from levels with a promised ratio. Where those show none, or no end
    of the gain, indicative ones take part too, and the answer is marked. Levels without a ratio are left out.

    The pessimistic bound of the ratios crosses first and gives `low`, the optimistic one gives `high`; None = beyond
    what was predicted on that side. "undecided" where the bounds disagree on whether there is a crossing at all, and
    where nothing could be predicted.
    """
    promised = _crossover_of([level for level in levels if level.is_promised])
    if promised is not None and promised.kind in ("crosses", "never faster"):
        return promised
    if any(level.is_indicative for level in levels):
        found = _crossover_of(levels)
        if found is not None:
            return found.model_copy(update={"is_indicative": True})
    if promised is not None:
        return promised
    return PredictedCrossover(kind="undecided", max_concurrency=max(level.concurrency for level in levels))


def _crossover_of(levels: Sequence[LevelPrediction]) -> PredictedCrossover | None:
    known = [(level.concurrency, level.e2e_ratio) for level in levels if level.e2e_ratio is not None]
    if not known:
        return None
    loads = [load for load, _ in known]
    value, low, high = (crossing(loads, curve) for curve in _curves([ratio for _, ratio in known]))
    if low == BEYOND:
        return PredictedCrossover(kind="none up to", max_concurrency=loads[-1])
    if high == NEVER:
        return PredictedCrossover(kind="never faster", max_concurrency=loads[-1])
    is_crossing = value not in (NEVER, BEYOND)
    return PredictedCrossover(
        kind="crosses" if is_crossing else "undecided",
        concurrency=value if is_crossing else None,
        low=low if low != NEVER else None,
        high=high if high != BEYOND else None,
        max_concurrency=loads[-1],
    )


def _curves(ratios: Sequence[Estimate]) -> tuple[list[float], list[float], list[float]]:
    """Expected, pessimistic and optimistic ratios: the pessimistic ones are the high ones."""
    return [one.value for one in ratios], [one.high for one in ratios], [one.low for one in ratios]


def crossing(loads: Sequence[int], ratios: Sequence[float]) -> float:
    """Concurrency of the last crossing of 1 upwards; `NEVER` when no ratio is below 1, `BEYOND` when the last is."""
    faster = [index for index, ratio in enumerate(ratios) if ratio < 1]
    if not faster:
        return NEVER
    last = faster[-1]
    if last == len(ratios) - 1:
        return BEYOND
    below, above = ratios[last], ratios[last + 1]
    part = (1 - below) / (above - below)
    return float(loads[last] * (loads[last + 1] / loads[last]) ** part)


def describe_crossover(crossover: PredictedCrossover) -> str:
    """`21 [14, 37]`, `none up to 64`, `never faster up to 64`, or `undecided [14, 64+]` with what is known; `~` before
    an indicative one."""
    return ("~" if crossover.is_indicative else "") + _in_words(crossover)


def _in_words(crossover: PredictedCrossover) -> str:
    if crossover.kind == "crosses" and crossover.concurrency is not None:
        low = "<1" if crossover.low is None else f"{crossover.low:.0f}"
        high = f"{crossover.max_concurrency}+" if crossover.high is None else f"{crossover.high:.0f}"
        return f"{crossover.concurrency:.0f} [{low}, {high}]"
    if crossover.kind == "none up to":
        return f"none up to {crossover.max_concurrency}"
    if crossover.kind == "never faster":
        return f"never faster up to {crossover.max_concurrency}"
    if crossover.low is None and crossover.high is None:
        return "undecided"
    low = "<1" if crossover.low is None else f"{crossover.low:.0f}"
    high = f"{crossover.max_concurrency}+" if crossover.high is None else f"{crossover.high:.0f}"
    return f"undecided [{low}, {high}]"
