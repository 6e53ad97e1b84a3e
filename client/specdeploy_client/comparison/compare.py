"""How the two arms of a cell compare: requests meet as pairs, and the ratio of a percentile gets an interval.

A pair is one request in both arms, found by (block, index): the same prompt, sent at the same time of its block. What a
run measured twice is compared with itself, so what differs between prompts or drifts between blocks cancels out. A
comparison that would mislead voids itself and says why, instead of printing a ratio.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from specdeploy.run_contract import Arm, Comparison, MetricName, Percentile, RequestRecord, VoidReason
from specdeploy_client.comparison.pairing import PairedValues, metric_column, pair_rows, paired_values
from specdeploy_client.comparison.stats import (
    CONFIDENCE,
    MIN_PAIRS,
    median_of_ratios,
    pairs_needed,
    ratio_of_percentiles,
)
from specdeploy_client.comparison.voids import VoidFacts, few_pairs, void_reasons
from specdeploy_client.metrics import is_answered, samples_needed
from specdeploy_client.records.table import ArmColumns, CellKey

__all__ = [
    "CellKey",
    "Pair",
    "PairedValues",
    "compare_arms",
    "compare_cell",
    "compare_pairs",
    "group_cells",
    "has_drafted",
    "metric_column",
    "pair_by_prompt",
    "pair_rows",
    "paired_values",
]

Pair = tuple[RequestRecord, RequestRecord]


def compare_arms(
    key: CellKey,
    off: ArmColumns,
    on: ArmColumns,
    metric: MetricName,
    percentile: Percentile = Percentile.P50,
    *,
    seed: int,
    confidence: float = CONFIDENCE,
    limit: float = 1.0,
    reasons: Sequence[VoidReason] = (),
) -> Comparison:
    """on/off ratio of `percentile` of `metric` for one cell, or the reasons why there is none.

    `reasons` are those of the whole cell (`voids.void_reasons`); too few pairs for this very percentile comes on top.
    `limit` is the ratio that the interval must lie on one side of: pairs still needed are counted for it.
    """
    pairs = paired_values(off, on, metric)
    return compare_pairs(key, pairs, metric, percentile, seed=seed, confidence=confidence, limit=limit, reasons=reasons)


def compare_pairs(
    key: CellKey,
    pairs: PairedValues,
    metric: MetricName,
    percentile: Percentile,
    *,
    seed: int,
    confidence: float = CONFIDENCE,
    limit: float = 1.0,
    reasons: Sequence[VoidReason] = (),
) -> Comparison:
    """`compare_arms` for pairs that were made before."""
    needed = MIN_PAIRS if percentile is Percentile.P50 else samples_needed(percentile)
    all_reasons = tuple(dict.fromkeys((*reasons, *few_pairs(len(pairs), needed, metric, percentile))))
    interval = None
    if not all_reasons:
        interval = ratio_of_percentiles(pairs.off, pairs.on, percentile.quantile, confidence, seed, blocks=pairs.block)
    return Comparison(
        segment=key[0],
        concurrency=key[1].concurrency,
        request_rate=key[1].request_rate,
        metric=metric,
        percentile=percentile,
        ratio=interval.ratio if interval else None,
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
        confidence=confidence,
        num_pairs=len(pairs),
        median_request_ratio=median_of_ratios(pairs.off, pairs.on) if interval else None,
        num_pairs_needed=pairs_needed(interval, limit) if interval else None,
        void_reasons=all_reasons,
    )


def compare_cell(
    key: CellKey,
    off: ArmColumns,
    on: ArmColumns,
    *,
    facts: VoidFacts,
    seed: int,
    confidence: float = CONFIDENCE,
    limits: Mapping[MetricName, float] | None = None,
    percentiles: Sequence[Percentile] = tuple(Percentile),
) -> tuple[Comparison, ...]:
    """Every metric at the median and at each of `percentiles` that the pairs of the cell support.

    `limits`: what the gate asks of a metric, 1 where it asks nothing.
    """
    reasons = void_reasons(off, on, facts)
    comparisons: list[Comparison] = []
    for metric in MetricName:
        pairs = paired_values(off, on, metric)
        limit = (limits or {}).get(metric, 1.0)
        for percentile in Percentile:
            is_wanted = percentile in percentiles and len(pairs) >= samples_needed(percentile)
            if percentile is Percentile.P50 or is_wanted:
                comparisons.append(
                    compare_pairs(
                        key, pairs, metric, percentile, seed=seed, confidence=confidence, limit=limit, reasons=reasons
                    )
                )
    return tuple(comparisons)


def group_cells(records: Iterable[RequestRecord]) -> dict[CellKey, dict[Arm, list[RequestRecord]]]:
    """Records by (segment, load) and arm, in the order of the first record of each cell."""
    cells: dict[CellKey, dict[Arm, list[RequestRecord]]] = {}
    for record in records:
        cells.setdefault((record.segment, record.load), {}).setdefault(record.arm, []).append(record)
    return cells


def pair_by_prompt(left: Iterable[RequestRecord], right: Iterable[RequestRecord], *, same_block: bool) -> list[Pair]:
    """Records of the same prompt from both sides; the i-th repeat of a prompt on one side meets the i-th on the other.

    With `same_block` (two arms of one cell) only requests of the same block are paired: they ran at the same time.
    Requests without an answer are left out.
    """

    def by_key(records: Iterable[RequestRecord]) -> dict[tuple[object, ...], RequestRecord]:
        repeats: dict[tuple[object, ...], int] = defaultdict(int)
        keyed: dict[tuple[object, ...], RequestRecord] = {}
        for record in sorted(records, key=lambda record: (record.block, record.send_ns)):
            key = (record.segment, record.prompt_id, record.block if same_block else None)
            keyed[(*key, repeats[key])] = record
            repeats[key] += 1
        return keyed

    left_records, right_records = by_key(left), by_key(right)
    pairs = ((left_records[key], right_records[key]) for key in left_records if key in right_records)
    return [(a, b) for a, b in pairs if is_answered(a) and is_answered(b)]


def has_drafted(records: Sequence[RequestRecord]) -> bool:
    """Whether drafting was seen: drafted tokens, or, where the server cannot count them, its word that it was on."""
    if any(record.num_draft_tokens is not None for record in records):
        return sum(record.num_draft_tokens or 0 for record in records) > 0
    return all(record.speculation == "on" for record in records)
