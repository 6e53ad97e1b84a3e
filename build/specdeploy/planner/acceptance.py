"""How many tokens a step brings, for any K: asked by the choice of K and by the simulator.

A model is made from an `AcceptanceProfile`. Without a `request_sd` all requests are taken to be alike: chance alone
makes them differ, and the tails of latencies come out too short. With one they fall into classes (request_classes.py).

**Other K than the measured one.** Of a chain, and of a lookup in the text, the first tokens of a longer draft are the
shorter draft, so smaller K follow. Larger ones go on with the last conditional acceptance; `note` says so, and for
lookups, whose matches are heavy-tailed, that it is to be measured. Blocks and trees are drafted anew for every K: only
the measured one is answered, `problem` says so of the others.

**Bounds.** Those of the profile, else sampling error (95 %): with n drafted steps of R requests, the variance of a
survival s is (s(1 - s) - b) / n + b / R, where b is its variance between requests - the design effect of steps that
come in clusters. Without counts there is no interval, and `at` gives the model itself.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specdeploy.planner.closed_form import alpha_of, conditional_acceptances, expected_tokens, survivals_of
from specdeploy.planner.drawn_steps import draw_steps
from specdeploy.planner.request_classes import RequestClasses, calibrated, with_spread
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm

Bound = Literal["low", "value", "high"]

_NORMAL_95 = 1.96
_MEASURED_K_ONLY = (DraftForm.BLOCK, DraftForm.TREE)


@dataclass(frozen=True, slots=True)
class AcceptanceModel:
    """`profile` as a function of K."""

    profile: AcceptanceProfile
    classes: RequestClasses

    @classmethod
    def from_profile(cls, profile: AcceptanceProfile) -> "AcceptanceModel":
        """The model of a measured (or stated) profile. Cheap to make again: classes are remembered."""
        return cls(profile, calibrated(_chain_of(profile), profile.request_sd or 0.0))

    @classmethod
    def from_alpha(cls, alpha: float, draft_len: int) -> "AcceptanceModel":
        """Independent tokens of acceptance `alpha`, stated rather than measured; `draft_len` >= 1 as in a profile."""
        return cls.from_profile(
            AcceptanceProfile(
                method=None,
                form=DraftForm.CHAIN,
                survivals=survivals_of(alpha, draft_len),
                origin=AcceptanceOrigin.STATED,
                source=f"alpha {alpha:g}",
            )
        )

    @property
    def measured_draft_len(self) -> int:
        """K that the survivals were measured at."""
        return len(self.profile.survivals)

    @property
    def has_interval(self) -> bool:
        """Whether `at` knows bounds."""
        return self._interval() is not None

    def at(self, bound: Bound) -> "AcceptanceModel":
        """The model at a bound of its survivals, with the same spread over requests; itself without an interval."""
        interval = self._interval()
        if bound == "value" or interval is None:
            return self
        survivals = interval[0 if bound == "low" else 1]
        update = {"survivals": survivals, "survivals_low": None, "survivals_high": None, "num_steps": None}
        profile = self.profile.model_copy(update=update)
        return AcceptanceModel(profile, with_spread(_chain_of(profile), self.classes.spread))

    def problem(self, draft_len: int) -> str | None:
        """Why nothing is known at this K; None where it is."""
        measured = self.measured_draft_len
        if draft_len in (0, measured) or self.profile.form not in _MEASURED_K_ONLY:
            return None
        return f"acceptance of a {self.profile.form} was measured at K {measured} and says nothing of K {draft_len}"

    def note(self, draft_len: int) -> str | None:
        """What is assumed at this K; None where it was measured."""
        measured = self.measured_draft_len
        if draft_len <= measured or self.profile.form in _MEASURED_K_ONLY:
            return None
        last = conditional_acceptances(self.profile.survivals)[-1]
        taken = f"acceptance was measured up to K {measured}; deeper tokens are taken to do as the last, {last:.2f}"
        if self.profile.form is DraftForm.LOOKUP:
            return f"{taken}, but matches in a text are heavy-tailed: measure at K {draft_len}"
        return taken

    def survivals(self, draft_len: int) -> tuple[float, ...]:
        """Marginal survivals [K] of drafted steps: the profile's own at its K. Raises ValueError where `problem` says
        why not."""
        self._check(draft_len)
        weights = self.classes.step_weights(draft_len)
        drafted = float(weights @ self.classes.drafted())
        accepted = weights @ self.classes.accepted(draft_len)
        return tuple(float(chance) / drafted if drafted > 0 else 0.0 for chance in accepted)

    def mean_tokens(self, draft_len: int) -> float:
        """Tokens per step, the bonus token included, over all steps of all requests; exactly 1 at K = 0."""
        self._check(draft_len)
        if draft_len == 0:
            return 1.0
        return 1.0 / float((1.0 / self.classes.tokens(draft_len)).mean())

    def mean_draft_tokens(self, draft_len: int) -> float:
        """Drafted tokens per step: K in every step with a draft."""
        self._check(draft_len)
        return draft_len * float(self.classes.step_weights(draft_len) @ self.classes.drafted())

    def draw_steps(
        self, output_tokens: NDArray[np.int64], draft_len: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Steps [N] that requests of `output_tokens` [N] need after the prefill step, which gives the first token.

        A last step that would emit more than is left ends the request just so. At K = 0 exactly `output_tokens` - 1.
        Equally seeded generators give every K and every model the same requests and the same luck: drafting deeper, or
        accepting more, then never takes more steps. About 100 ms for four million tokens; memory is bounded.
        """
        self._check(draft_len)
        needed = np.maximum(np.asarray(output_tokens, dtype=np.int64) - 1, 0)
        if draft_len == 0:
            return needed
        return draw_steps(needed, self.classes.accepted(draft_len), rng)

    def _check(self, draft_len: int) -> None:
        if draft_len < 0:
            raise ValueError(f"K {draft_len}: a number of tokens, so at least 0")
        if (problem := self.problem(draft_len)) is not None:
            raise ValueError(problem)

    def _interval(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        profile = self.profile
        low, high = profile.survivals_low, profile.survivals_high
        if low is None and high is None:
            return self._sampling_interval()
        return low or profile.survivals, high or profile.survivals

    def _sampling_interval(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        profile = self.profile
        num_drafts = (profile.num_steps or 0) * profile.draft_share
        if num_drafts <= 0:
            return None
        draft_len = self.measured_draft_len
        weights = self.classes.step_weights(draft_len)
        accepted = self.classes.accepted(draft_len)
        between = weights @ (accepted - weights @ accepted) ** 2 / max(profile.draft_share, 1e-12) ** 2
        lows: list[float] = []
        highs: list[float] = []
        for survival, variance in zip(profile.survivals, between.tolist(), strict=True):
            within = max(0.0, survival * (1 - survival) - variance)
            total = within / num_drafts + (variance / profile.num_requests if profile.num_requests else 0.0)
            # At 0 and 1 a binomial error vanishes although nobody saw forever: three steps of the other kind may be due
            # (the rule of three).
            error = max(_NORMAL_95 * math.sqrt(total), 3.0 / num_drafts if survival in (0.0, 1.0) else 0.0)
            lows.append(min(max(0.0, survival - error), *lows[-1:], 1.0))
            highs.append(min(survival + error, *highs[-1:], 1.0))
        return tuple(lows), tuple(highs)


@dataclass(frozen=True, slots=True)
class SingleAlpha:
    """The one `alpha` with the same tokens per step, and what that costs: `errors` [K] of tokens per step at K = 1, 2,
    .. relative to the survivals. The last is 0 by construction."""

    alpha: float
    errors: tuple[float, ...]

    @property
    def largest_error(self) -> float:
        """The error of largest size, with its sign."""
        return max(self.errors, key=abs)


def single_alpha_of(profile: AcceptanceProfile) -> SingleAlpha:
    """Inverts E = tokens per drafted step, as published tables of one number are read."""
    survivals = profile.survivals
    alpha = alpha_of(1.0 + sum(survivals), len(survivals))
    errors = tuple(
        expected_tokens(alpha, draft_len) / (1.0 + sum(survivals[:draft_len])) - 1.0
        for draft_len in range(1, len(survivals) + 1)
    )
    return SingleAlpha(alpha, errors)


def _chain_of(profile: AcceptanceProfile) -> tuple[float, ...]:
    """Chance that something is drafted, then of each token given the ones before it [1 + K]."""
    return (profile.draft_share, *conditional_acceptances(profile.survivals))
