"""Every metric once: one function, one formula, one unit.

Symbols for one request: `due` the moment it should have been sent, `m_1 ... m_k` the arrival of its messages, `n` its
tokens. Taken from `due`, a request that waited for a stalled client or server shows it (no coordinated omission).

    ttft   first message WITH a token - due
    e2e    m_k - due
    tpot   (e2e - ttft) / (n - 1)          AIPerf calls it ITL; undefined for n < 2
    icl    m_(i+1) - m_i                   vLLM calls it ITL; rises with speculation, so never a speed claim
    tokens per message   n / k             over messages that carry tokens

Values are None when a record does not support them, never 0. Durations are nanoseconds until they are summarised.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from specdeploy.run_contract import Acceptance, MetricName, Percentile, Percentiles, RequestRecord
from specdeploy.units import NS_PER_S, ns_to_ms

# Above this many tokens per step, accepted drafts must exist; a count of zero is then a broken counter.
_TOKENS_PER_STEP_WITHOUT_DRAFTS = 1.05


def num_tokens(record: RequestRecord) -> int:
    """Tokens that were delivered to the client; what the server reports where it does not say per message."""
    return (record.output_token_count or 0) if record.message_tokens is None else sum(record.message_tokens)


def token_arrivals_ns(record: RequestRecord) -> list[int]:
    """When the messages that carry tokens arrived."""
    if record.message_tokens is None:
        return list(record.message_ns)
    return [at for at, tokens in zip(record.message_ns, record.message_tokens, strict=True) if tokens > 0]


def ttft_ns(record: RequestRecord) -> int | None:
    """Time to the first message that carries a token."""
    arrivals = token_arrivals_ns(record)
    return arrivals[0] - record.scheduled_ns if arrivals else None


def e2e_ns(record: RequestRecord) -> int | None:
    """Time to the last message."""
    return record.message_ns[-1] - record.scheduled_ns if record.message_ns else None


def tpot_ns(record: RequestRecord) -> float | None:
    """Time per output token after the first; None for fewer than two tokens."""
    ttft, e2e, tokens = ttft_ns(record), e2e_ns(record), num_tokens(record)
    if ttft is None or e2e is None or tokens < 2:
        return None
    return (e2e - ttft) / (tokens - 1)


def icl_ns(record: RequestRecord) -> tuple[int, ...]:
    """Gaps between consecutive messages that carry tokens."""
    return tuple(later - earlier for earlier, later in pairwise(token_arrivals_ns(record)))


def tokens_per_message(records: Iterable[RequestRecord]) -> float | None:
    """Tokens / messages that carry tokens, over all records: the client's view of acceptance."""
    sizes = [tokens for record in records for tokens in record.message_tokens or () if tokens > 0]
    return sum(sizes) / len(sizes) if sizes else None


def output_throughput(records: Sequence[RequestRecord]) -> float | None:
    """Tokens per second of all workers together: tokens / time during which blocks of these records ran."""
    blocks: dict[int, tuple[int, int]] = {}
    for record in records:
        first, last = blocks.get(record.block, (record.send_ns, record.end_ns))
        blocks[record.block] = (min(first, record.send_ns), max(last, record.end_ns))
    duration_ns = sum(last - first for first, last in blocks.values())
    return sum(map(num_tokens, records)) * NS_PER_S / duration_ns if duration_ns else None


METRICS: dict[MetricName, Callable[[RequestRecord], float | None]] = {
    MetricName.TTFT: ttft_ns,
    MetricName.TPOT: tpot_ns,
    MetricName.E2E: e2e_ns,
}


def samples_needed(percentile: Percentile) -> int:
    """Smallest sample that supports `percentile`: ten values beyond it, n >= 10 / (1 - q)."""
    return round(10 / (1 - percentile.quantile))


def percentiles_ms(values_ns: Sequence[float]) -> Percentiles:
    """p50, p90, p95, p99 in milliseconds, by linear interpolation between the two nearest ranks (numpy's default).

    A percentile the sample does not support is None.
    """
    supported = {
        percentile: ns_to_ms(float(np.quantile(values_ns, percentile.quantile)))
        if len(values_ns) >= samples_needed(percentile)
        else None
        for percentile in Percentile
    }
    return Percentiles(
        p50=supported[Percentile.P50],
        p90=supported[Percentile.P90],
        p95=supported[Percentile.P95],
        p99=supported[Percentile.P99],
        num_samples=len(values_ns),
    )


def acceptance_rate(num_draft_tokens: int, num_accepted_tokens: int) -> float | None:
    """accepted / drafted; None before the first draft."""
    return num_accepted_tokens / num_draft_tokens if num_draft_tokens else None


def mean_acceptance_length(num_steps: int, num_draft_tokens: int, num_accepted_tokens: int) -> float | None:
    """Output tokens per step, 1 + accepted / steps, the target's own token included; None before the first draft."""
    return 1 + num_accepted_tokens / num_steps if num_steps and num_draft_tokens else None


def acceptance(records: Sequence[RequestRecord]) -> Acceptance | None:
    """Acceptance over `records`, or None when it cannot be measured.

    Not measurable: a record without counts; or counters that say nothing was accepted although more than one token
    came out per step, which no plain decoding can do (the counter is broken, not the drafter).
    """
    if not records:
        return None
    steps, drafted, accepted = 0, 0, 0
    for record in records:
        if record.num_steps is None or record.num_draft_tokens is None or record.num_accepted_tokens is None:
            return None
        steps += record.num_steps
        drafted += record.num_draft_tokens
        accepted += record.num_accepted_tokens
    tokens = sum(map(num_tokens, records))
    if accepted == 0 and steps and tokens / steps > _TOKENS_PER_STEP_WITHOUT_DRAFTS:
        return None
    return Acceptance(
        num_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        acceptance_rate=acceptance_rate(drafted, accepted),
        mean_acceptance_length=mean_acceptance_length(steps, drafted, accepted),
    )
