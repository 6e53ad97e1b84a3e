"""Requests that differ: easy ones accept more of every draft than hard ones.

A request belongs to one of 16 classes, all equally frequent. Class j has the latent quality z_j, the j-th of 16
quantiles of a standard normal. A step is a chain of events - something is drafted at all, then its first token is
accepted, then its second, .. - and in class j each of them, given those before it, has the chance

    sigmoid(b_i + spread x z_j)

The b_i are solved for so that over all **steps** the marginal survivals are the measured ones (to 1e-9), and `spread`
so that the standard deviation over **requests** of their own mean tokens per step is the measured one. Steps and
requests weigh differently: an easy request takes fewer steps for the same output, so class j has a share of the steps
in proportion to 1 / (its tokens per step). Mean tokens per step is the harmonic mean over requests for the same
reason.

A mixture like this gives conditional acceptances that rise with depth although each class's own do not: whoever got
that far is easy. What is measured at one K is thereby also known at smaller ones, and slightly better there than its
first survivals say: there easy requests have more of the steps.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, ndtri

NUM_CLASSES = 16
_QUALITY: NDArray[np.float64] = ndtri((np.arange(NUM_CLASSES) + 0.5) / NUM_CLASSES)
_MAX_SPREAD = 8.0  # beyond it classes accept all or nothing: no larger standard deviation can be had
_SAME_WEIGHT = 1e-12
_MAX_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class RequestClasses:
    """`chances` [16, 1 + K]: by class, that something is drafted, then of each token given the ones before it.

    `spread` as in the head of this module, 0 = all requests alike.
    """

    chances: NDArray[np.float64]
    spread: float

    @property
    def draft_len(self) -> int:
        """K of the measurement."""
        return self.chances.shape[1] - 1

    def drafted(self) -> NDArray[np.float64]:
        """Share of steps with a draft by class [16]."""
        return self.chances[:, 0]

    def accepted(self, draft_len: int) -> NDArray[np.float64]:
        """Chance [16, `draft_len`] that a step accepts at least 1, 2, .. tokens; behind the measured K each class goes
        on with its own last conditional acceptance."""
        known = self.chances[:, : draft_len + 1]
        beyond = np.repeat(self.chances[:, -1:], max(0, draft_len - self.draft_len), axis=1)
        reached: NDArray[np.float64] = np.cumprod(np.hstack((known, beyond)), axis=1)
        return reached[:, 1:]

    def tokens(self, draft_len: int) -> NDArray[np.float64]:
        """Mean tokens per step by class [16]."""
        tokens: NDArray[np.float64] = 1.0 + self.accepted(draft_len).sum(axis=1)
        return tokens

    def step_weights(self, draft_len: int) -> NDArray[np.float64]:
        """Share of all steps by class [16], where every request emits the same number of tokens."""
        return _step_weights(self.tokens(draft_len))

    def request_sd(self) -> float:
        """Standard deviation over requests of their own mean tokens per step at the measured K."""
        return float(self.tokens(self.draft_len).std())


@lru_cache(maxsize=256)
def calibrated(conditionals: tuple[float, ...], request_sd: float) -> RequestClasses:
    """Classes whose steps together have these `conditionals` [1 + K] (something drafted, then each token), and whose
    requests have this standard deviation; the largest there can be where it is too large."""
    alike = with_spread(conditionals, 0.0)
    if request_sd <= 0:
        return alike
    if with_spread(conditionals, _MAX_SPREAD).request_sd() <= request_sd:
        return with_spread(conditionals, _MAX_SPREAD)
    spread = brentq(
        lambda spread: with_spread(conditionals, spread).request_sd() - request_sd, 0.0, _MAX_SPREAD, xtol=1e-7
    )
    return with_spread(conditionals, spread)


@lru_cache(maxsize=256)
def with_spread(conditionals: tuple[float, ...], spread: float) -> RequestClasses:
    """Classes with these conditionals over all steps, and this `spread`."""
    weights = np.full(NUM_CLASSES, 1.0 / NUM_CLASSES)
    if spread <= 0:
        return RequestClasses(np.tile(np.array(conditionals), (NUM_CLASSES, 1)), 0.0)
    for _ in range(_MAX_ROUNDS):
        classes = RequestClasses(_chances(conditionals, spread, weights), spread)
        settled = classes.step_weights(classes.draft_len)
        change = float(np.abs(settled - weights).max())
        weights = settled
        if change < _SAME_WEIGHT:
            break
    return classes


def _chances(conditionals: tuple[float, ...], spread: float, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chances [16, 1 + K] that give `conditionals` where classes have `weights` of the steps."""
    columns, reached = [], weights
    for conditional in conditionals:
        column = _column(conditional, spread, reached)
        columns.append(column)
        reached = reached * column
    return np.column_stack(columns)


def _column(conditional: float, spread: float, reached: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chances [16] of one event whose mean over `reached` is `conditional`."""
    total = float(reached.sum())
    if not 0.0 < conditional < 1.0 or total <= 0.0:
        return np.full(NUM_CLASSES, conditional)
    weights = reached / total
    middle, widest = math.log(conditional / (1 - conditional)), spread * float(_QUALITY[-1])
    base = brentq(
        lambda base: float(weights @ expit(base + spread * _QUALITY)) - conditional,
        middle - widest - 1e-9,
        middle + widest + 1e-9,
        xtol=1e-13,
    )
    chances: NDArray[np.float64] = expit(base + spread * _QUALITY)
    return chances


def _step_weights(tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    steps = 1.0 / tokens
    weights: NDArray[np.float64] = steps / steps.sum()
    return weights
