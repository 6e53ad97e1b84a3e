"""Counts of requests -> an acceptance profile: survivals with their interval, drafted share, spread over requests.

Survivals are ratios of sums over requests. Steps of one request resemble each other, so the interval comes from the
requests and not from the steps: the linearised variance of a ratio over R requests (Cochran, Sampling Techniques, 6.4),
95 % of Student's t with R - 1 degrees of freedom. The uncertainty of the drafted share is put into the survivals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from specdeploy.contract import Method
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """One request's steps that were allowed the full K: how many, how many had a draft, how many of them accepted their
    first 1, 2, .. tokens (`accepted_per_pos`, as long as K or shorter)."""

    num_steps: int
    num_drafts: int
    accepted_per_pos: tuple[int, ...]


def profile_of_counts(
    counts: Sequence[RequestCounts],
    draft_len: int,
    *,
    method: Method,
    form: DraftForm,
    source: str,
    segment: str | None = None,
    temperature: float | None = None,
    target: str | None = None,
    draft: str | None = None,
) -> AcceptanceProfile | None:
    """None where nothing was drafted: there is no acceptance then."""
    counts = [entry for entry in counts if entry.num_steps > 0]
    steps = np.array([entry.num_steps for entry in counts], np.float64)
    drafts = float(sum(entry.num_drafts for entry in counts))
    if not drafts:
        return None
    accepted = np.array(
        [[*entry.accepted_per_pos, *[0] * (draft_len - len(entry.accepted_per_pos))] for entry in counts], np.float64
    )
    draft_share = drafts / float(steps.sum())
    survivals = accepted.sum(axis=0) / drafts
    error = _ratio_errors(accepted, steps) / draft_share
    low = np.minimum.accumulate(np.clip(survivals - error, 0.0, 1.0))
    high = np.minimum.accumulate(np.clip(survivals + error, 0.0, 1.0))
    return AcceptanceProfile(
        segment=segment,
        method=method,
        form=form,
        survivals=_rounded(survivals),
        survivals_low=_rounded(low) if len(counts) > 1 else None,
        survivals_high=_rounded(high) if len(counts) > 1 else None,
        draft_share=round(draft_share, 6),
        request_sd=_request_sd(accepted.sum(axis=1), steps, survivals, draft_share),
        temperature=temperature,
        num_steps=int(steps.sum()),
        num_requests=len(counts),
        target=target,
        draft=draft,
        origin=AcceptanceOrigin.PROFILE,
        source=source,
    )


def step_variance(survivals: Sequence[float] | NDArray[np.float64], draft_share: float) -> float:
    """Variance of the tokens of single steps: of a count N, E[N^2] = sum of (2 i - 1) P(N >= i)."""
    chances = draft_share * np.asarray(survivals, np.float64)
    positions = np.arange(1, len(chances) + 1)
    return float(((2 * positions - 1) * chances).sum() - chances.sum() ** 2)


def request_sd_of_means(
    *,
    step_mean: float | None,
    request_mean: float | None,
    num_steps: int,
    num_requests: int,
    survivals: Sequence[float],
    draft_share: float,
) -> float | None:
    """Spread over requests of their own tokens per step, from the mean over steps and the mean over requests.

    Requests of equal output take steps in inverse proportion, so the mean over steps is the harmonic one; to second
    order arithmetic x harmonic - harmonic^2 is the variance. What chance alone makes of answers of this length is taken
    out. None where a mean is not known; lengths that go with acceptance bias it, so a measured spread is better.
    """
    if step_mean is None or request_mean is None or num_steps <= 0 or num_requests <= 1:
        return None
    seen = step_mean * (request_mean - step_mean)
    by_chance = step_variance(survivals, draft_share) * num_requests / num_steps
    return round(math.sqrt(max(0.0, seen - by_chance)), 6)


def _ratio_errors(accepted: NDArray[np.float64], steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half widths [K] of the interval of accepted / steps."""
    num_requests = len(steps)
    if num_requests < 2:
        return np.zeros(accepted.shape[1])
    ratios = accepted.sum(axis=0) / steps.sum()
    residuals = (accepted - ratios * steps[:, None]) / steps.mean()
    quantile = float(student_t.ppf(0.5 + _CONFIDENCE / 2, num_requests - 1))
    errors: NDArray[np.float64] = quantile * residuals.std(axis=0, ddof=1) / math.sqrt(num_requests)
    return errors


def _request_sd(
    accepted: NDArray[np.float64], steps: NDArray[np.float64], survivals: NDArray[np.float64], draft_share: float
) -> float | None:
    """Standard deviation of requests' own means without what chance alone makes of answers this short."""
    if len(steps) < 2:
        return None
    seen = float((1 + accepted / steps).var(ddof=1))
    by_chance = step_variance(survivals, draft_share) * float((1 / steps).mean())
    return round(math.sqrt(max(0.0, seen - by_chance)), 6)


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)
