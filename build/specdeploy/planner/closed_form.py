"""Speculative decoding in closed form: tokens per step, speed-up, break-even, the best K.

Source: Leviathan et al., arXiv:2211.17192, Eq. 1 and Theorem 3.8, with v added for a verify step that is not free:

    E(alpha, K) = (1 - alpha^(K + 1)) / (1 - alpha)        speed-up = E / (K c + v)

alpha: chance that a drafted token is accepted; K: drafted tokens per step (`draft_len`); c: time of one draft token and
v: time of one verify step, both over the time of a plain step (`draft_cost_ratio`, `verify_cost_ratio`). A step without
drafts verifies nothing: at K = 0 there is no v, and the speed-up is exactly 1. E alone is tokens per step, no speed-up.

Each has a twin for **survivals** instead of alpha: `survivals` [K] are the chances that the first i tokens of a draft
are all accepted, for which E = 1 + their sum, whatever their shape.
"""

from collections.abc import Sequence

from scipy.optimize import brentq

_MAX_DRAFT_LEN = 64


def expected_tokens(alpha: float, draft_len: int) -> float:
    """E: mean tokens that one step emits, bonus token included. Raises ValueError outside 0 <= alpha <= 1, K >= 0."""
    _check(alpha, draft_len)
    # The sum of the series itself: the quotient loses all digits near alpha = 1.
    return sum(alpha**position for position in range(draft_len + 1))


def speedup(alpha: float, draft_len: int, draft_cost_ratio: float, verify_cost_ratio: float = 1.0) -> float:
    """Plain time per token / speculative time per token; above 1 is faster. Exactly 1 at K = 0."""
    return expected_tokens(alpha, draft_len) / break_even_tokens(draft_len, draft_cost_ratio, verify_cost_ratio)


def break_even_tokens(draft_len: int, draft_cost_ratio: float, verify_cost_ratio: float = 1.0) -> float:
    """Tokens per step at which speculation costs what it brings, K c + v: the length of its step in plain steps."""
    if draft_len == 0:
        return 1.0
    if draft_cost_ratio < 0 or verify_cost_ratio <= 0:
        raise ValueError(f"c {draft_cost_ratio} and v {verify_cost_ratio}: times, so c >= 0 and v > 0")
    return draft_len * draft_cost_ratio + verify_cost_ratio


def break_even_alpha(draft_len: int, draft_cost_ratio: float, verify_cost_ratio: float = 1.0) -> float | None:
    """alpha at which the speed-up is 1; None where not even alpha 1 gains, 0 where alpha 0 does not lose."""
    needed = break_even_tokens(draft_len, draft_cost_ratio, verify_cost_ratio)
    return None if needed > draft_len + 1 else alpha_of(needed, draft_len)


def alpha_of(mean_tokens: float, draft_len: int) -> float:
    """The alpha whose E is `mean_tokens` at this K. 0 at K = 0 or below one token per step.

    Raises ValueError above K + 1 tokens: a step cannot emit more.
    """
    if mean_tokens > draft_len + 1 + 1e-9:
        raise ValueError(f"{mean_tokens} tokens per step at K {draft_len}: a step emits at most K + 1")
    if mean_tokens <= 1 or draft_len == 0:
        return 0.0
    if mean_tokens >= draft_len + 1:
        return 1.0
    alpha: float = brentq(lambda alpha: expected_tokens(alpha, draft_len) - mean_tokens, 0.0, 1.0, xtol=1e-12)
    return alpha


def best_draft_len(
    alpha: float, draft_cost_ratio: float, verify_cost_ratio: float = 1.0, max_draft_len: int = _MAX_DRAFT_LEN
) -> int:
    """K in 0..`max_draft_len` of the highest speed-up; of equal ones the smallest, so 0 unless something gains."""
    return max(
        range(max_draft_len + 1),
        key=lambda draft_len: speedup(alpha, draft_len, draft_cost_ratio, verify_cost_ratio),
    )


def survivals_of(alpha: float, draft_len: int) -> tuple[float, ...]:
    """Survivals [K] of independent tokens: alpha, alpha^2, .."""
    _check(alpha, draft_len)
    return tuple(alpha**position for position in range(1, draft_len + 1))


def conditional_acceptances(survivals: Sequence[float]) -> tuple[float, ...]:
    """Chance [K] that a token is accepted where all before it were; 0 behind a survival of 0."""
    before = (1.0, *survivals[:-1])
    return tuple(now / last if last > 0 else 0.0 for now, last in zip(survivals, before, strict=True))


def tokens_of_survivals(survivals: Sequence[float]) -> float:
    """E of a step that drafts as many tokens as there are survivals."""
    return 1.0 + sum(survivals)


def speedup_of_survivals(survivals: Sequence[float], draft_cost_ratio: float, verify_cost_ratio: float = 1.0) -> float:
    """The speed-up of drafting as many tokens as there are survivals."""
    return tokens_of_survivals(survivals) / break_even_tokens(len(survivals), draft_cost_ratio, verify_cost_ratio)


def best_len_of_survivals(survivals: Sequence[float], draft_cost_ratio: float, verify_cost_ratio: float = 1.0) -> int:
    """K in 0..len(survivals) of the highest speed-up; of equal ones the smallest."""
    return max(
        range(len(survivals) + 1),
        key=lambda draft_len: speedup_of_survivals(survivals[:draft_len], draft_cost_ratio, verify_cost_ratio),
    )


def _check(alpha: float, draft_len: int) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha {alpha}: a probability, so from 0 to 1")
    if draft_len < 0:
        raise ValueError(f"K {draft_len}: a number of tokens, so at least 0")
