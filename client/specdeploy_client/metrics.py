"""Every metric of a request: one function, one formula, one unit. `message_columns` holds the same formulas for columns
of many requests, and `arm_metrics` those that are about many.

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

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import FailureKind, MetricName, Percentile, Percentiles, RequestRecord
from specdeploy.units import NS_PER_S, ns_to_ms
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


def per_second(amount: float, duration_ns: int) -> float | None:
    """`amount` / duration; None where no time passed."""
    return amount * NS_PER_S / duration_ns if duration_ns else None


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
