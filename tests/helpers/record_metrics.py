"""Metrics of many requests computed from records, one after the other: what `arm_metrics` is held against."""

from collections.abc import Iterable, Sequence

import numpy as np

from specdeploy.run_contract import Acceptance, MetricName, Objective, RequestRecord
from specdeploy.units import NS_PER_MS
from specdeploy_client.metrics import (
    METRICS,
    acceptance_rate,
    icl_ns,
    is_answered,
    is_cancelled,
    is_counter_broken,
    mean_acceptance_length,
    num_tokens,
    per_second,
)
from specdeploy_client.records.block_time import closed_block_time_ns, open_block_time_ns


def token_gaps_ns(record: RequestRecord) -> tuple[float, ...]:
    """One value for every token after the first message: the gap before its message / the tokens of that message.

    Empty where the server does not say how many tokens a message carries.
    """
    sizes = [tokens for tokens in record.message_tokens or () if tokens > 0]
    return tuple(
        gap / tokens for gap, tokens in zip(icl_ns(record), sizes[1:], strict=bool(sizes)) for _ in range(tokens)
    )


def send_lag_ns(record: RequestRecord) -> int:
    """How much later than due the request was sent."""
    return record.send_ns - record.scheduled_ns


def tokens_per_message(records: Iterable[RequestRecord]) -> float | None:
    """Tokens / messages that carry tokens, over all records: the client's view of acceptance."""
    sizes = [tokens for record in records for tokens in record.message_tokens or () if tokens > 0]
    return sum(sizes) / len(sizes) if sizes else None


def block_time_ns(records: Iterable[RequestRecord]) -> int:
    """Time during which blocks of these records ran; between them another arm did. Cancelled requests do not count.

    How long one block ran is explained in `block_time`.
    """
    blocks: dict[int, list[RequestRecord]] = {}
    for record in records:
        if not is_cancelled(record):
            blocks.setdefault(record.block, []).append(record)
    return sum(map(_time_of_block_ns, blocks.values()))


def output_throughput(records: Sequence[RequestRecord]) -> float | None:
    """Tokens per second of all requests together: tokens of answers / block time; None where those are unknown."""
    counts = [num_tokens(record) for record in records if is_answered(record)]
    known = [count for count in counts if count is not None]
    return per_second(sum(known), block_time_ns(records)) if len(known) == len(counts) else None


def request_throughput(records: Sequence[RequestRecord]) -> float | None:
    """Answers per second: answers / block time."""
    return per_second(sum(map(is_answered, records)), block_time_ns(records))


def is_good(record: RequestRecord, objectives: Iterable[Objective]) -> bool:
    """Whether a request was answered and met every objective.

    A TPOT that does not exist (one token) cannot be too long; one that is unknown, and without a TTFT or an end nothing
    was met.
    """
    return is_answered(record) and all(_meets(record, objective) for objective in objectives)


def goodput(records: Sequence[RequestRecord], objectives: Sequence[Objective]) -> float | None:
    """Good requests per second: a failed one is not good, a cancelled one is left out.

    None without objectives, and where one of TPOT cannot be judged because an answer's tokens are unknown.
    """
    needs_tokens = any(objective.metric is MetricName.TPOT for objective in objectives)
    is_unknown = any(num_tokens(record) is None for record in records if is_answered(record))
    if not objectives or (needs_tokens and is_unknown):
        return None
    return per_second(sum(is_good(record, objectives) for record in records), block_time_ns(records))


def acceptance(records: Sequence[RequestRecord]) -> Acceptance | None:
    """Acceptance over `records`, or None when it cannot be measured: a record without counts, or broken counters."""
    counts: list[tuple[int, int, int]] = []
    for record in records:
        if record.num_steps is None or record.num_draft_tokens is None or record.num_accepted_tokens is None:
            return None
        counts.append((record.num_steps, record.num_draft_tokens, record.num_accepted_tokens))
    if not counts:
        return None
    steps, drafted, accepted = (sum(column) for column in zip(*counts, strict=True))
    tokens = [num_tokens(record) for record in records]
    total = None if None in tokens else sum(number or 0 for number in tokens)
    if is_counter_broken(total, len(records), steps, accepted):
        return None
    lengths = [length for count in counts if (length := mean_acceptance_length(*count)) is not None]
    return Acceptance(
        num_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        acceptance_rate=acceptance_rate(drafted, accepted),
        mean_acceptance_length=mean_acceptance_length(steps, drafted, accepted),
        mean_acceptance_length_per_request=sum(lengths) / len(lengths) if lengths else None,
    )


def _meets(record: RequestRecord, objective: Objective) -> bool:
    value = METRICS[objective.metric](record)
    if value is None:
        return objective.metric is MetricName.TPOT and bool(record.message_ns) and num_tokens(record) is not None
    return value <= objective.max_ms * NS_PER_MS


def _time_of_block_ns(records: Sequence[RequestRecord]) -> int:
    scheduled_ns, send_ns, end_ns = np.array(
        [(record.scheduled_ns, record.send_ns, record.end_ns) for record in records], dtype=np.int64
    ).T
    rate = records[0].request_rate
    return closed_block_time_ns(send_ns, end_ns) if rate is None else open_block_time_ns(scheduled_ns, end_ns, rate)
