"""Metrics of many requests together, from the columns of one arm of one cell."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import Acceptance, Load, MetricName, Objective
from specdeploy.units import NS_PER_MS
from specdeploy_client import metrics
from specdeploy_client.comparison.pairing import metric_column
from specdeploy_client.metrics import acceptance_rate, is_counter_broken, mean_acceptance_length, per_second
from specdeploy_client.reconcile import CounterIncrease
from specdeploy_client.records.block_time import closed_block_time_ns, open_block_time_ns
from specdeploy_client.records.columns import CANCELLED, NOT_REPORTED
from specdeploy_client.records.table import ArmColumns, Flags, Floats, Ints


def measured(columns: ArmColumns, metric: MetricName) -> Floats:
    """The values of `metric` that there are, in ns."""
    values = metric_column(columns, metric)
    return values[~np.isnan(values)]


def num_tokens(columns: ArmColumns) -> int | None:
    """Tokens of all answers; None where those of one are unknown."""
    return _known_sum(columns.num_tokens[columns.is_answered])


def num_input_tokens(columns: ArmColumns) -> int | None:
    """Prompt tokens of all answered requests; None where an answer does not report them."""
    values = columns.input_tokens[columns.is_answered]
    return _known_sum(values) if values.size else None


def tokens_per_message(columns: ArmColumns) -> float | None:
    """Tokens / messages that carry tokens, over all answers; None where the server does not say per message."""
    is_answered = columns.is_answered
    num_messages = int(columns.num_messages[is_answered & columns.is_counted].sum(dtype=np.int64))
    tokens = int(columns.num_tokens[is_answered & columns.is_counted].sum(dtype=np.int64))
    return tokens / num_messages if num_messages else None


def send_lag_ns(columns: ArmColumns) -> Floats:
    """How much later than due each request was sent, cancelled ones left out."""
    lags = (columns.send_ns - columns.scheduled_ns)[_is_kept(columns)]
    return lags.astype(np.float64)


def block_time_ns(columns: ArmColumns, load: Load) -> int:
    """Time during which blocks of these requests ran; between them another arm did. Cancelled ones do not count.

    How long one block ran is explained in `block_time`.
    """
    kept = np.flatnonzero(_is_kept(columns))
    order = kept[np.argsort(columns.block[kept], kind="stable")]
    if not order.size:
        return 0
    blocks = np.split(order, np.flatnonzero(np.diff(columns.block[order])) + 1)
    if load.request_rate is None:
        return sum(closed_block_time_ns(columns.send_ns[rows], columns.end_ns[rows]) for rows in blocks)
    rate = load.request_rate
    return sum(open_block_time_ns(columns.scheduled_ns[rows], columns.end_ns[rows], rate) for rows in blocks)


def output_throughput(columns: ArmColumns, load: Load) -> float | None:
    """Tokens per second of all requests together: tokens of answers / block time; None where those are unknown."""
    tokens = num_tokens(columns)
    return None if tokens is None else per_second(tokens, block_time_ns(columns, load))


def request_throughput(columns: ArmColumns, load: Load) -> float | None:
    """Answers per second: answers / block time."""
    return per_second(int(columns.is_answered.sum()), block_time_ns(columns, load))


def is_good(columns: ArmColumns, objectives: Sequence[Objective]) -> Flags:
    """Requests [n] that were answered and met every objective.

    A TPOT that does not exist (one token) cannot be too long; one that is unknown, and without a TTFT or an end nothing
    was met.
    """
    good = columns.is_answered
    for objective in objectives:
        values = metric_column(columns, objective.metric)
        # A comparison with NaN is false; a TPOT that does not exist cannot be too long.
        no_tpot = np.isnan(values) & ~np.isnan(columns.e2e_ns) & (columns.num_tokens != NOT_REPORTED)
        good = good & ((values <= objective.max_ms * NS_PER_MS) | (no_tpot & (objective.metric is MetricName.TPOT)))
    return good


def goodput(columns: ArmColumns, objectives: Sequence[Objective], load: Load) -> float | None:
    """Good requests per second: a failed one is not good, a cancelled one is left out.

    None without objectives, and where one of TPOT cannot be judged because an answer's tokens are unknown.
    """
    needs_tokens = any(objective.metric is MetricName.TPOT for objective in objectives)
    if not objectives or (needs_tokens and num_tokens(columns) is None):
        return None
    return per_second(int(is_good(columns, objectives).sum()), block_time_ns(columns, load))


def acceptance(columns: ArmColumns) -> Acceptance | None:
    """Acceptance over all answers, or None when it cannot be measured: an answer without counts, or broken counters."""
    answered = columns.is_answered
    steps, drafted, accepted = (
        values[answered].astype(np.int64)
        for values in (columns.num_steps, columns.num_draft_tokens, columns.num_accepted_tokens)
    )
    if not steps.size or min(steps.min(), drafted.min(), accepted.min()) == NOT_REPORTED:
        return None
    totals = int(steps.sum()), int(drafted.sum()), int(accepted.sum())
    if is_counter_broken(num_tokens(columns), int(answered.sum()), totals[0], totals[2]):
        return None
    has_drafts = (steps > 0) & (drafted > 0)
    lengths = 1 + accepted[has_drafts] / steps[has_drafts]
    return Acceptance(
        num_steps=totals[0],
        num_draft_tokens=totals[1],
        num_accepted_tokens=totals[2],
        acceptance_rate=acceptance_rate(totals[1], totals[2]),
        mean_acceptance_length=mean_acceptance_length(*totals),
        mean_acceptance_length_per_request=float(lengths.mean()) if lengths.size else None,
    )


def counted_acceptance(columns: ArmColumns, counters: CounterIncrease) -> Acceptance | None:
    """Acceptance from the server's counters alone, for servers that report none with an answer. Every step drafted.

    None where a counter is missing, nothing was drafted, or messages of more than one token contradict a count of zero.
    """
    drafts, drafted, accepted = counters.num_drafts, counters.num_draft_tokens, counters.num_accepted_tokens
    if not drafts or not drafted or accepted is None or _contradicts_none_accepted(columns, accepted):
        return None
    return Acceptance(
        num_steps=drafts,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        acceptance_rate=acceptance_rate(drafted, accepted),
        mean_acceptance_length=mean_acceptance_length(drafts, drafted, accepted),
    )


def with_positions(acceptance: Acceptance | None, counters: CounterIncrease) -> Acceptance | None:
    """`acceptance` with the marginal rate of every draft position, where the server counts positions."""
    if acceptance is None or counters.num_drafts is None or counters.accepted_per_pos is None:
        return acceptance
    rates = metrics.acceptance_rates_per_pos(counters.num_drafts, counters.accepted_per_pos)
    return acceptance.model_copy(update={"rate_per_pos": rates})


def _contradicts_none_accepted(columns: ArmColumns, num_accepted_tokens: int) -> bool:
    """`is_counter_broken` where steps are unknown: no message is more than a step."""
    counted = columns.rows(columns.is_answered & columns.is_counted & (columns.num_messages > 0))
    num_messages = int(counted.num_messages.sum(dtype=np.int64))
    return is_counter_broken(num_tokens(counted), len(counted), num_messages, num_accepted_tokens)


def _known_sum(values: Ints) -> int | None:
    """None where one is not reported."""
    return None if (values == NOT_REPORTED).any() else int(values.sum(dtype=np.int64))


def _is_kept(columns: ArmColumns) -> npt.NDArray[np.bool_]:
    return np.asarray(columns.failure != CANCELLED)
