"""Every metric once: one function, one formula, one unit. These take records; `message_columns` and `arm_metrics` hold
the same formulas for columns of many, and tests hold the two against each other.

Symbols for one request: `due` the moment it should have been sent, `m_1 ... m_k` the arrival of its messages, `n` its
tokens. Taken from `due`, a request that waited for a stalled client or server shows it (no coordinated omission).

    ttft   first message WITH a token - due
    e2e    m_k - due
    tpot   (last - first message WITH a token) / (n - 1)     AIPerf calls it ITL; undefined for n < 2
    icl    m_(i+1) - m_i                   vLLM calls it ITL; rises with speculation, so never a speed claim
    token gap   (m_(i+1) - m_i) / tokens of message i + 1, once for each of these tokens; its mean is the time after the
                first message / tokens after it, which is the pooled tpot where that message carries one token
    tokens per message   n / k             over messages that carry tokens
    send lag             sent - due

icl and token gap look at messages that carry tokens only, so time to first token never enters them. Values are None
when a record does not support them, never 0. Durations are nanoseconds until they are summarised.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import (
    Acceptance,
    FailureKind,
    MetricName,
    Objective,
    Percentile,
    Percentiles,
    RequestRecord,
)
from specdeploy.units import NS_PER_MS, NS_PER_S, ns_to_ms
from specdeploy_client.records.block_time import closed_block_time_ns, open_block_time_ns
from specdeploy_client.records.histogram import LogHistogram

# Above this many tokens per step, accepted drafts must exist; a count of zero is then a broken counter.
TOKENS_PER_STEP_WITHOUT_DRAFTS = 1.05
# Finish reasons by which a server says that it ended a request itself, so that what came is no answer.
GAVE_UP: dict[str | None, FailureKind] = {
    "cancelled": FailureKind.REFUSED,
    "abort": FailureKind.REFUSED,
    "error": FailureKind.REFUSED,
    "timeout": FailureKind.TIMEOUT,
}


def is_cancelled(record: RequestRecord) -> bool:
    """Whether this client ended the request itself: neither an answer nor a failure."""
    return record.failure is FailureKind.CANCELLED


def is_answered(record: RequestRecord) -> bool:
    """Whether the request has an answer that may be measured."""
    return record.error is None and record.failure is None and record.finish_reason not in GAVE_UP


def num_tokens(record: RequestRecord) -> int | None:
    """Tokens that were delivered to the client; what the server reports where it does not say per message, if it
    does."""
    return record.output_token_count if record.message_tokens is None else sum(record.message_tokens)


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
    """Time per output token after the first; None for fewer than two tokens, or an unknown number of them."""
    arrivals, tokens = token_arrivals_ns(record), num_tokens(record)
    if not arrivals or tokens is None or tokens < 2:
        return None
    return (arrivals[-1] - arrivals[0]) / (tokens - 1)


def icl_ns(record: RequestRecord) -> tuple[int, ...]:
    """Gaps between consecutive messages that carry tokens."""
    return tuple(later - earlier for earlier, later in pairwise(token_arrivals_ns(record)))


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


def per_second(amount: float, duration_ns: int) -> float | None:
    """`amount` / duration; None where no time passed."""
    return amount * NS_PER_S / duration_ns if duration_ns else None


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


METRICS: dict[MetricName, Callable[[RequestRecord], float | None]] = {
    MetricName.TTFT: ttft_ns,
    MetricName.TPOT: tpot_ns,
    MetricName.E2E: e2e_ns,
}


def samples_needed(percentile: Percentile) -> int:
    """Smallest sample that supports `percentile`: ten values beyond it, n >= 10 / (1 - q)."""
    return round(10 / (1 - percentile.quantile))


def percentiles_ms(values_ns: Sequence[float] | npt.NDArray[np.float64]) -> Percentiles:
    """p50, p90, p95, p99 and mean in milliseconds, by linear interpolation between the two nearest ranks (as numpy).

    A percentile the sample does not support is None.
    """
    values = np.asarray(values_ns, dtype=np.float64)
    known = _supported(len(values))
    quantiles = np.quantile(values, [percentile.quantile for percentile in known]).tolist() if known else []
    return _percentiles(
        len(values), dict(zip(known, quantiles, strict=True)), float(values.mean()) if len(values) else None
    )


def histogram_percentiles_ms(histogram: LogHistogram) -> Percentiles | None:
    """The same of counted durations, within 1 %; None where nothing was counted."""
    num_samples = histogram.num_samples
    if not num_samples:
        return None
    known = {percentile: histogram.quantile_ns(percentile.quantile) for percentile in _supported(num_samples)}
    return _percentiles(num_samples, known, histogram.mean_ns)


def acceptance_rate(num_draft_tokens: int, num_accepted_tokens: int) -> float | None:
    """accepted / drafted; None before the first draft."""
    return num_accepted_tokens / num_draft_tokens if num_draft_tokens else None


def mean_acceptance_length(num_steps: int, num_draft_tokens: int, num_accepted_tokens: int) -> float | None:
    """Output tokens per step, 1 + accepted / steps, the target's own token included; None before the first draft."""
    return 1 + num_accepted_tokens / num_steps if num_steps and num_draft_tokens else None


def acceptance_rates_per_pos(num_drafts: int, accepted_per_pos: Sequence[int]) -> tuple[float, ...] | None:
    """Marginal rate of every draft position: accepted up to it / drafts; None before the first draft."""
    return tuple(accepted / num_drafts for accepted in accepted_per_pos) if num_drafts else None


def is_counter_broken(num_tokens: int | None, num_answers: int, num_steps: int, num_accepted_tokens: int) -> bool:
    """Whether counters say nothing was accepted although more than one token came out per step, which no plain
    decoding can do: the counter is broken, not the drafter.

    The first token of each answer is left out: it comes of reading the prompt, which servers do not count as a step.
    """
    if num_accepted_tokens != 0 or not num_steps or num_tokens is None:
        return False
    return (num_tokens - num_answers) / num_steps > TOKENS_PER_STEP_WITHOUT_DRAFTS


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


def _supported(num_samples: int) -> list[Percentile]:
    return [percentile for percentile in Percentile if num_samples >= samples_needed(percentile)]


def _percentiles(num_samples: int, known_ns: dict[Percentile, float | None], mean_ns: float | None) -> Percentiles:
    def in_ms(percentile: Percentile) -> float | None:
        value = known_ns.get(percentile)
        return None if value is None else ns_to_ms(value)

    return Percentiles(
        p50=in_ms(Percentile.P50),
        p90=in_ms(Percentile.P90),
        p95=in_ms(Percentile.P95),
        p99=in_ms(Percentile.P99),
        mean=None if mean_ns is None else ns_to_ms(mean_ns),
        num_samples=num_samples,
    )
