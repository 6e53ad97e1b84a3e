"""From records to numbers: what one arm of a cell did, and how the two arms compare.

A comparison that would mislead voids itself and says why, instead of printing a ratio.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from specdeploy.run_contract import Arm, CellSummary, Comparison, Load, MetricName, RequestRecord, VoidCode, VoidReason
from specdeploy_client.metrics import (
    METRICS,
    acceptance,
    num_tokens,
    output_throughput,
    percentiles_ms,
    tokens_per_message,
)
from specdeploy_client.stats import CONFIDENCE, MIN_PAIRS, ratio_of_medians

MAX_LENGTH_DIFFERENCE = 0.02  # of the tokens of the off arm
CellKey = tuple[str, Load]
Pair = tuple[RequestRecord, RequestRecord]


def group_cells(records: Iterable[RequestRecord]) -> dict[CellKey, dict[Arm, list[RequestRecord]]]:
    """Records by (segment, load) and arm, in the order of the first record of each cell."""
    cells: dict[CellKey, dict[Arm, list[RequestRecord]]] = {}
    for record in records:
        cells.setdefault((record.segment, record.load), {}).setdefault(record.arm, []).append(record)
    return cells


def pair_by_prompt(left: Iterable[RequestRecord], right: Iterable[RequestRecord], *, same_block: bool) -> list[Pair]:
    """Records of the same prompt from both sides; the i-th repeat of a prompt on one side meets the i-th on the other.

    With `same_block` (two arms of one cell) only requests of the same block are paired: they ran at the same time.
    Failed requests are left out.
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
    return [(a, b) for a, b in pairs if a.error is None and b.error is None]


def summarise_arm(segment: str, load: Load, arm: Arm, records: Sequence[RequestRecord]) -> CellSummary:
    """Latency percentiles, throughput and acceptance of one arm of one cell; failed requests count as errors only."""
    finished = [record for record in records if record.error is None]

    def samples(metric: MetricName) -> list[float]:
        return [value for record in finished if (value := METRICS[metric](record)) is not None]

    return CellSummary(
        segment=segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        arm=arm,
        num_requests=len(records),
        num_errors=len(records) - len(finished),
        ttft_ms=percentiles_ms(samples(MetricName.TTFT)),
        tpot_ms=percentiles_ms(samples(MetricName.TPOT)),
        e2e_ms=percentiles_ms(samples(MetricName.E2E)),
        tokens_per_message=tokens_per_message(finished),
        output_throughput=output_throughput(finished),
        acceptance=acceptance(finished) if arm is Arm.ON else None,
    )


def compare_arms(
    key: CellKey, off: Sequence[RequestRecord], on: Sequence[RequestRecord], metric: MetricName, seed: int
) -> Comparison:
    """on/off ratio of medians of `metric` for one cell, or the reasons why there is none."""
    pairs = pair_by_prompt(off, on, same_block=True)
    values = [
        (off_value, on_value)
        for off_record, on_record in pairs
        if (off_value := METRICS[metric](off_record)) is not None
        and (on_value := METRICS[metric](on_record)) is not None
        and off_value > 0
    ]
    reasons = void_reasons(off, on, len(values))
    interval = None
    if not reasons:
        interval = ratio_of_medians([value for _, value in values], [value for value, _ in values], seed)
    return Comparison(
        segment=key[0],
        concurrency=key[1].concurrency,
        request_rate=key[1].request_rate,
        metric=metric,
        ratio=interval.ratio if interval else None,
        ci_low=interval.low if interval else None,
        ci_high=interval.high if interval else None,
        confidence=CONFIDENCE,
        num_pairs=len(values),
        void_reasons=tuple(reasons),
    )


def void_reasons(off: Sequence[RequestRecord], on: Sequence[RequestRecord], num_pairs: int) -> list[VoidReason]:
    """Why the two arms of a cell must not be compared; empty when they may."""
    reasons: list[VoidReason] = []

    def add(code: VoidCode, detail: str) -> None:
        reasons.append(VoidReason(code=code, detail=detail))

    if num_errors := sum(record.error is not None for record in (*off, *on)):
        add(VoidCode.ERRORS, f"{num_errors} of {len(off) + len(on)}")
    if num_pairs < MIN_PAIRS:
        add(VoidCode.TOO_FEW_PAIRS, f"{num_pairs}, at least {MIN_PAIRS} are needed")
    finished_on = [record for record in on if record.error is None]
    finished_off = [record for record in off if record.error is None]
    if finished_on and not has_drafted(finished_on):
        add(VoidCode.NOTHING_DRAFTED, "in the on arm")
    if any(record.num_draft_tokens for record in finished_off):
        add(VoidCode.OFF_ARM_DRAFTED, "it must be plain decoding")
    off_tokens, on_tokens = sum(map(num_tokens, finished_off)), sum(map(num_tokens, finished_on))
    if not num_errors and off_tokens and abs(on_tokens - off_tokens) / off_tokens > MAX_LENGTH_DIFFERENCE:
        add(VoidCode.LENGTHS_DIFFER, f"by more than 2 %: {off_tokens} tokens off, {on_tokens} on")
    return reasons


def has_drafted(records: Sequence[RequestRecord]) -> bool:
    """Whether drafting was seen: drafted tokens, or, where the server cannot count them, its word that it was on."""
    if any(record.num_draft_tokens is not None for record in records):
        return sum(record.num_draft_tokens or 0 for record in records) > 0
    return all(record.speculation == "on" for record in records)
