"""From which concurrency on speculation is not faster any more, with an interval.

Between two measured concurrencies the logarithm of the on/off ratio is taken as a straight line over log2 of the
concurrency; the crossover is where it first passes the limit on its way up. Every bootstrap sample of the levels has a
crossover of its own, or none: the interval is where most of them lie.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specdeploy.run_contract import Arm, Comparison, Crossover, MetricName, Percentile
from specdeploy_client.comparison.pairing import PairedValues, paired_values
from specdeploy_client.comparison.stats import (
    CONFIDENCE,
    MIN_PAIRS,
    Floats,
    bootstrap_log_ratios,
    interval_ends,
    log_ratio,
    num_resamples,
)
from specdeploy_client.records.table import ArmColumns, CellKey

_MEDIAN = Percentile.P50.quantile


@dataclass(frozen=True, slots=True)
class LevelPairs:
    """One concurrency and the metric of its pairs."""

    concurrency: int
    pairs: PairedValues


def find_crossover(
    segment: str,
    metric: MetricName,
    levels: Sequence[LevelPairs],
    *,
    limit: float = 1.0,
    seed: int,
    confidence: float = CONFIDENCE,
) -> Crossover | None:
    """Where the on/off ratio of medians passes `limit` over the concurrencies of one segment.

    None without a level. Raises `ValueError` for a level with fewer than `MIN_PAIRS` pairs.
    """
    if not levels:
        return None
    levels = sorted(levels, key=lambda level: level.concurrency)
    draws = np.stack([_draws(level, seed, confidence) for level in levels]) - math.log(limit)  # [L, B]
    ends = [interval_ends(row, confidence) for row in draws]
    highest = levels[-1].concurrency
    if ends[0][0] > 0:
        return Crossover(segment=segment, metric=metric, kind="never faster", max_concurrency=highest)
    if all(high < 0 for _, high in ends):
        return Crossover(segment=segment, metric=metric, kind="none up to", max_concurrency=highest)
    places = np.log2([level.concurrency for level in levels])
    estimates = [log_ratio(level.pairs.off, level.pairs.on, _MEDIAN) - math.log(limit) for level in levels]
    place = float(_first_crossings(places, np.array(estimates)[:, None])[0])
    low, high = interval_ends(_first_crossings(places, draws), confidence)
    if not math.isfinite(place) or not (math.isfinite(low) or math.isfinite(high)):
        return Crossover(segment=segment, metric=metric, kind="undecided", max_concurrency=highest)
    return Crossover(
        segment=segment,
        metric=metric,
        kind="crosses",
        concurrency=2.0**place,
        ci_low=2.0**low if math.isfinite(low) else None,
        ci_high=2.0**high if math.isfinite(high) else None,
        max_concurrency=highest,
    )


def find_crossovers(
    cells: Mapping[CellKey, Mapping[Arm, ArmColumns]],
    comparisons: Sequence[Comparison],
    *,
    seed: int,
    confidence: float = CONFIDENCE,
    limits: Mapping[MetricName, float] | None = None,
    max_concurrency: int | None = None,
) -> tuple[Crossover, ...]:
    """The crossover of every segment and metric, from the closed-loop cells that were not voided.

    `comparisons` say which cells were; `max_concurrency`: levels above it queue in the server and are left out.
    """
    levels: dict[tuple[str, MetricName], list[LevelPairs]] = {}
    for comparison in comparisons:
        load, is_median = comparison.load, comparison.percentile is Percentile.P50
        if comparison.outcome == "void" or not is_median or load.concurrency is None:
            continue
        if max_concurrency is not None and load.concurrency > max_concurrency:
            continue
        arms = cells[comparison.segment, load]
        pairs = paired_values(arms[Arm.OFF], arms[Arm.ON], comparison.metric)
        if len(pairs) >= MIN_PAIRS:
            of_segment = levels.setdefault((comparison.segment, comparison.metric), [])
            of_segment.append(LevelPairs(load.concurrency, pairs))
    found = (
        find_crossover(
            segment,
            metric,
            of_segment,
            limit=(limits or {}).get(metric, 1.0),
            seed=seed,
            confidence=confidence,
        )
        for (segment, metric), of_segment in levels.items()
    )
    return tuple(crossover for crossover in found if crossover is not None)


def _draws(level: LevelPairs, seed: int, confidence: float) -> Floats:
    pairs = level.pairs
    rng = np.random.default_rng([seed, level.concurrency])  # levels are independent of each other
    count = num_resamples(confidence)
    return bootstrap_log_ratios(pairs.off, pairs.on, _MEDIAN, confidence, count, rng, blocks=pairs.block)


def _first_crossings(places: Floats, heights: Floats) -> Floats:
    """Where each column of `heights` [L, B] over `places` [L], rising, first reaches 0.

    -inf where it is there at the first place already, inf where it never gets there.
    """
    is_reached = heights >= 0
    first = np.argmax(is_reached, axis=0)  # [B]; 0 also where nothing is reached
    columns = np.arange(heights.shape[1])
    before = np.maximum(first - 1, 0)
    left, right = heights[before, columns], heights[first, columns]
    share = np.divide(-left, right - left, out=np.zeros_like(left), where=first > 0)
    crossings: Floats = places[before] + share * (places[first] - places[before])
    return np.where(~is_reached.any(axis=0), np.inf, np.where(first == 0, -np.inf, crossings))
