"""Why a cell must not be compared: one question per function, each with its threshold and the reason for it.

Every function answers with the numbers behind a reason, or None. What a server does not report is not measurable; it
never voids. `off` and `on` are the two arms of one cell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import MetricName, Percentile, VoidCode, VoidReason
from specdeploy.units import NS_PER_MS, ns_to_ms
from specdeploy_client.comparison.pairing import pair_rows
from specdeploy_client.comparison.shifts import (
    first_quarter_ratio,
    first_round_ttft_ns,
    is_spread_difference_rare,
    second_arm_ttft_ratio,
    spread_difference,
)
from specdeploy_client.records.columns import NOT_REPORTED
from specdeploy_client.records.table import ArmColumns

# An answer with fewer tokens is over after a step or two: its time is that of its prompt.
MIN_MEDIAN_TOKENS = 4
# Answers that stop short of what was asked are other work than was planned; beyond this share they move the median.
MAX_SHORT_SHARE = 0.02
# Of the tokens of the off arm: more is other work in both arms, of the size of the effects one looks for.
MAX_LENGTH_DIFFERENCE = 0.02
# Of the prompt tokens: below it a chat template's own first tokens, above it prompts that were seen before.
MAX_CACHED_SHARE = 0.01
# A prompt that is sent again, to the other arm, and then has its first token in less than this share of the time.
WARM_TTFT_RATIO = 0.8
# Of the answers: loops are drafted nearly without a miss, so that many of them decide the median.
MAX_DEGENERATE_SHARE = 0.10
# Of one core: the client's event loop runs on one, and a message waits for four others at this load.
MAX_CLIENT_CPU_SHARE = 0.8
# The client's own lag may be this share of what it measures, the median ttft, and this long where that is short.
MAX_LAG_SHARE, MAX_LAG_NS = 0.05, 2 * NS_PER_MS
MAX_LATE_SHARE = 0.01  # of the requests: the lag above is meant at p99
# The first quarter of an arm takes this much longer than its last half ...
WARMING_RATIO = 1.3
# ... or the first round of workers waits this much longer for its first tokens than those of later blocks: a lazy
# compilation, which is over after one request.
COLD_TTFT_RATIO = 10.0
# Of the answers: the times of buffered messages are those of the buffer.
MAX_BUFFERED_SHARE = 0.05

Flags = npt.NDArray[np.bool_]
PrefixCache = Literal["off", "on", "unknown"]


@dataclass(frozen=True, slots=True)
class VoidFacts:
    """What is known of a cell beside its records.

    `concurrency`: workers of a closed loop. `prefix_cache`: whether the server keeps the keys and values of earlier
    prompts. `expects_reuse`: the workload shares prefixes on purpose (sessions, traces), so cached tokens and prompts
    seen before are part of the traffic. `remembers_outputs`: the drafter learns from earlier answers (suffix trees), so
    that a prompt seen before drafts better. `client_cpu_share`, `wake_up_lag_p99_ms` and `cached_share` as in
    `CellConditions`.
    `max_error_rate`: failed / all requests up to which a cell still counts. `interrupted`: why the run ended while this
    cell was measured.
    """

    concurrency: int | None = None
    prefix_cache: PrefixCache = "unknown"
    expects_reuse: bool = False
    remembers_outputs: bool = False
    client_cpu_share: float | None = None
    wake_up_lag_p99_ms: float | None = None
    cached_share: float | None = None
    max_error_rate: float = 0.0
    interrupted: str | None = None


def void_reasons(off: ArmColumns, on: ArmColumns, facts: VoidFacts) -> tuple[VoidReason, ...]:
    """Every reason against comparing the two arms of a cell; empty when they may be compared."""
    found = ((code, check(off, on, facts)) for code, check in CHECKS.items())
    return tuple(VoidReason(code=code, detail=detail) for code, detail in found if detail is not None)


def few_pairs(num_pairs: int, needed: int, metric: MetricName, percentile: Percentile) -> tuple[VoidReason, ...]:
    """TOO_FEW_PAIRS for one percentile of one metric: fewer than `needed`. None or one reason."""
    if num_pairs >= needed:
        return ()
    detail = f"{num_pairs} with {metric} in both arms, at least {needed} are needed for {percentile}"
    return (VoidReason(code=VoidCode.TOO_FEW_PAIRS, detail=detail),)


def failed_requests(off: ArmColumns, on: ArmColumns, facts: VoidFacts) -> str | None:
    """Requests failed: those that did not are another sample than what was asked for."""
    num_failed = int(off.is_failed.sum() + on.is_failed.sum())
    num_all = len(off) + len(on)
    return f"{num_failed} of {num_all}" if num_failed > facts.max_error_rate * num_all else None


def short_answers(off: ArmColumns, on: ArmColumns, _facts: VoidFacts) -> str | None:
    """Answers too short to show what a decoding step costs, or shorter than was asked for."""
    for name, arm in (("off", off), ("on", on)):
        tokens = arm.num_tokens[arm.is_answered & (arm.num_tokens > 0)]
        if tokens.size and np.median(tokens) < MIN_MEDIAN_TOKENS:
            return f"half of the answers {name} have fewer than {MIN_MEDIAN_TOKENS}"
        num_answers, num_short = int(arm.is_answered.sum()), int(arm.is_short.sum())
        if num_short > MAX_SHORT_SHARE * num_answers:
            return f"{num_short} of {num_answers} answers {name} are shorter than asked for"
    return None


def nothing_drafted(_off: ArmColumns, on: ArmColumns, _facts: VoidFacts) -> str | None:
    """The on arm did not speculate: no draft token, or no step that gave more than one token.

    Where drafts are not counted, the server's word for each request; where it says nothing either, not measurable.
    """
    answered = on.rows(on.is_answered)
    counted = answered.num_draft_tokens != NOT_REPORTED
    if not len(answered):
        return None
    if not counted.any():
        said_off = int((answered.speculation == 0).sum())
        return f"the server says that {said_off} of {len(answered)} requests were decoded plainly" if said_off else None
    drafted = int(answered.num_draft_tokens[counted].sum())
    if drafted == 0:
        return "in the on arm"
    stepped = counted & (answered.num_steps > 0) & (answered.num_tokens > 0)
    num_steps, num_tokens = int(answered.num_steps[stepped].sum()), int(answered.num_tokens[stepped].sum())
    # The step that reads the prompt gives a token too; some servers leave it out of their count.
    gave_one_each = bool(num_steps) and num_tokens <= num_steps + int(stepped.sum())
    if gave_one_each and not (answered.num_accepted_tokens[stepped] > 0).any():
        return f"that was of use: {drafted} tokens in {num_steps} steps, which gave {num_tokens} tokens"
    return None


def off_arm_drafted(off: ArmColumns, _on: ArmColumns, _facts: VoidFacts) -> str | None:
    """The off arm speculated."""
    num_drafting = int((off.is_answered & off.has_drafting).sum())
    if not num_drafting:
        return None
    return f"in {num_drafting} of {int(off.is_answered.sum())} requests; it must be plain decoding"


def lengths_differ(off: ArmColumns, on: ArmColumns, _facts: VoidFacts) -> str | None:
    """The arms wrote answers of other lengths: in sum, or in how they are spread."""
    off_rows, on_rows = pair_rows(off, on)
    off_tokens, on_tokens = (
        columns.num_tokens[rows].astype(np.float64) for columns, rows in ((off, off_rows), (on, on_rows))
    )
    off_sum, on_sum = float(off_tokens.sum()), float(on_tokens.sum())
    is_unknown = (off_tokens < 0).any() or (on_tokens < 0).any()
    if is_unknown or not off_sum or not on_sum:
        return None
    limit = f"by more than {MAX_LENGTH_DIFFERENCE:.0%}"
    if abs(on_sum - off_sum) > MAX_LENGTH_DIFFERENCE * off_sum:
        return f"{limit}: {off_sum:.0f} tokens off, {on_sum:.0f} on"
    spread = spread_difference(off_tokens, on_tokens)
    if spread > MAX_LENGTH_DIFFERENCE and is_spread_difference_rare(off_tokens, on_tokens):
        return f"{limit}: the sorted lengths by {spread:.1%} of an answer on average"
    return None


def prefix_cache_warm(off: ArmColumns, on: ArmColumns, facts: VoidFacts) -> str | None:
    """Prompts were taken from a prefix cache, though the workload shares none; or by one arm more than by the other.

    Where answers do not say how many of their tokens were cached, the server's counters do for both arms together.
    Where it does not count them at all, both arms having sent the same prompts tells: the arm that comes second has its
    first tokens sooner.
    """
    shares = {name: _cached_share(arm) for name, arm in (("off", off), ("on", on))}
    off_share, on_share = shares["off"], shares["on"]
    if off_share is None or on_share is None:
        if facts.cached_share is not None and not facts.expects_reuse:
            share = facts.cached_share
            return f"{share:.1%} of the prompt tokens came from it" if share > MAX_CACHED_SHARE else None
        is_visible = facts.prefix_cache != "off" and not facts.expects_reuse
        return _second_arm_sooner(off, on) if is_visible else None
    if facts.expects_reuse:
        if abs(off_share - on_share) <= MAX_CACHED_SHARE:
            return None
        return f"{off_share:.1%} of the prompt tokens off, {on_share:.1%} on: not the same in both arms"
    if max(off_share, on_share) <= MAX_CACHED_SHARE:
        return None
    return f"{off_share:.1%} of the prompt tokens off, {on_share:.1%} on came from it"


def prompts_repeated(off: ArmColumns, on: ArmColumns, facts: VoidFacts) -> str | None:
    """A prompt was sent twice in one arm, and the server may have answered the second time from what it remembers.

    A server that keeps nothing of earlier requests may be asked twice: it says so itself, or both arms having sent the
    same prompts shows it, where the second one has its first tokens no sooner.
    """
    num_repeats = {name: len(arm) - len(np.unique(arm.prompt)) for name, arm in (("off", off), ("on", on))}
    if facts.expects_reuse or not any(num_repeats.values()):
        return None
    asked_before = f"{num_repeats['off']} of {len(off)} requests off, {num_repeats['on']} of {len(on)} on"
    if facts.remembers_outputs:
        return f"{asked_before}, and the drafter learns from answers"
    if facts.prefix_cache == "on":
        return f"{asked_before}, and the server keeps a prefix cache"
    _, low, _ = second_arm_ttft_ratio(off, on)
    if facts.prefix_cache == "off" or low > WARM_TTFT_RATIO:
        return None
    return f"{asked_before}, and the server may keep a prefix cache: it does not say, and the times do not exclude it"


def wrong_prompt_length(off: ArmColumns, on: ArmColumns, _facts: VoidFacts) -> str | None:
    """Prompts made to a length have another one by the server's count. No tolerance: the length was exact."""
    num_wrong, num_known = 0, 0
    example = ""
    for arm in (off, on):
        is_known = (arm.expected_input_tokens > 0) & (arm.input_tokens > 0)
        wrong = np.flatnonzero(is_known & (arm.expected_input_tokens != arm.input_tokens))
        num_wrong, num_known = num_wrong + wrong.size, num_known + int(is_known.sum())
        if wrong.size and not example:
            row = wrong[0]
            example = f"one of {arm.expected_input_tokens[row]} tokens arrived as {arm.input_tokens[row]}"
    return f"{num_wrong} of {num_known} prompts, {example}" if num_wrong else None


def degenerate_output(off: ArmColumns, on: ArmColumns, _facts: VoidFacts) -> str | None:
    """Answers run in circles."""
    return _flagged_share(off, on, lambda arm: arm.is_degenerate, MAX_DEGENERATE_SHARE, "run in circles")


def client_saturated(off: ArmColumns, on: ArmColumns, facts: VoidFacts) -> str | None:
    """The client was itself too busy to send and to stamp in time."""
    if facts.client_cpu_share is not None and facts.client_cpu_share > MAX_CLIENT_CPU_SHARE:
        return f"{facts.client_cpu_share:.0%} of a core, at most {MAX_CLIENT_CPU_SHARE:.0%} is trusted"
    limit_ms = ns_to_ms(_max_lag_ns(off, on))
    if facts.wake_up_lag_p99_ms is not None and facts.wake_up_lag_p99_ms > limit_ms:
        return f"it woke up {facts.wake_up_lag_p99_ms:.1f} ms late (p99), at most {limit_ms:.1f} ms is trusted"
    return None


def sent_late(off: ArmColumns, on: ArmColumns, _facts: VoidFacts) -> str | None:
    """Requests left later than they were due. One late request is an accident, not a lag at p99."""
    limit_ns = _max_lag_ns(off, on)
    for name, arm in (("off", off), ("on", on)):
        lag_ns = arm.send_ns - arm.scheduled_ns
        num_late = int((lag_ns > limit_ns).sum())
        if num_late > max(1.0, MAX_LATE_SHARE * len(arm)):
            worst_ms = ns_to_ms(float(lag_ns.max()))
            return (
                f"{num_late} of {len(arm)} requests {name} by over {ns_to_ms(limit_ns):.1f} ms, up to {worst_ms:.1f} ms"
            )
    return None


def server_warming(off: ArmColumns, on: ArmColumns, facts: VoidFacts) -> str | None:
    """The server became faster while the cell ran: what came first is of another server than what came last."""
    for name, arm in (("off", off), ("on", on)):
        if (ratio := first_quarter_ratio(arm, WARMING_RATIO)) is not None:
            return f"{name}, the first quarter took {ratio:.1f} times as long as the last half"
        rounds = first_round_ttft_ns(arm, facts.concurrency or 1)
        if rounds is not None and rounds[0] > COLD_TTFT_RATIO * rounds[1]:
            first_ms, later_ms = map(ns_to_ms, rounds)
            return (
                f"{name}, first tokens came after {first_ms:.0f} ms in the first round, {later_ms:.0f} ms in later ones"
            )
    return None


def messages_buffered(off: ArmColumns, on: ArmColumns, _facts: VoidFacts) -> str | None:
    """Messages were held back on their way."""
    return _flagged_share(off, on, lambda arm: arm.is_buffered, MAX_BUFFERED_SHARE, "came held back or in bursts")


def interrupted(_off: ArmColumns, _on: ArmColumns, facts: VoidFacts) -> str | None:
    """The run ended before the cell did."""
    return facts.interrupted


Check = Callable[[ArmColumns, ArmColumns, VoidFacts], str | None]
# Too few pairs is a matter of single metrics and percentiles: `few_pairs`.
CHECKS: dict[VoidCode, Check] = {
    VoidCode.ERRORS: failed_requests,
    VoidCode.TOO_FEW_TOKENS: short_answers,
    VoidCode.NOTHING_DRAFTED: nothing_drafted,
    VoidCode.OFF_ARM_DRAFTED: off_arm_drafted,
    VoidCode.LENGTHS_DIFFER: lengths_differ,
    VoidCode.PREFIX_CACHE_WARM: prefix_cache_warm,
    VoidCode.PROMPTS_REPEATED: prompts_repeated,
    VoidCode.WRONG_PROMPT_LENGTH: wrong_prompt_length,
    VoidCode.DEGENERATE_OUTPUT: degenerate_output,
    VoidCode.CLIENT_SATURATED: client_saturated,
    VoidCode.SENT_LATE: sent_late,
    VoidCode.SERVER_WARMING: server_warming,
    VoidCode.MESSAGES_BUFFERED: messages_buffered,
    VoidCode.INTERRUPTED: interrupted,
}


def _cached_share(arm: ArmColumns) -> float | None:
    """Cached / all prompt tokens over the requests that report both; None where none does."""
    is_known = (arm.cached_tokens != NOT_REPORTED) & (arm.input_tokens > 0)
    if not is_known.any():
        return None
    return float(arm.cached_tokens[is_known].sum() / arm.input_tokens[is_known].sum())


def _second_arm_sooner(off: ArmColumns, on: ArmColumns) -> str | None:
    ratio, _, high = second_arm_ttft_ratio(off, on)
    if high >= 1 or ratio > WARM_TTFT_RATIO:
        return None
    return f"a prompt has its first token in {ratio:.0%} of the time in the arm that sends it second"


def _flagged_share(
    off: ArmColumns, on: ArmColumns, flags_of: Callable[[ArmColumns], Flags], max_share: float, words: str
) -> str | None:
    for name, arm in (("off", off), ("on", on)):
        num_answers = int(arm.is_answered.sum())
        num_flagged = int((flags_of(arm) & arm.is_answered).sum())
        if num_flagged > max_share * num_answers:
            return f"{num_flagged} of {num_answers} answers {name} {words}"
    return None


def _max_lag_ns(off: ArmColumns, on: ArmColumns) -> float:
    ttft_ns = np.concatenate([off.ttft_ns, on.ttft_ns])
    ttft_ns = ttft_ns[np.isfinite(ttft_ns)]
    return max(MAX_LAG_NS, MAX_LAG_SHARE * float(np.median(ttft_ns))) if ttft_ns.size else MAX_LAG_NS
