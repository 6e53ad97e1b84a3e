"""The deepest drafts that pay in one step, for all its rows together.

With R rows, survival p_i(k) of token k of row i, and step time T, the throughput of a plan with K_i tokens per row is

    (R + sum_i sum_{k <= K_i} p_i(k)) / T(max K_i, sum K_i)

A token is worth drafting where `p_i(k) > rate * price`, the tokens that the step yields in the time that the token
adds to it (Dinkelbach 1967). Survival never rises with k, so the tokens worth drafting come first. How deep the rows go
together is the depth of highest throughput: a pass of the drafter serves them all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specdeploy.runtime.step_costs import StepCosts

# The rate of the plan is the rate that it is made with; a few rounds settle it.
_MAX_ROUNDS = 5
_SAME_RATE = 1e-3


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How deep the rows of one step draft: not beyond `depth`, and only tokens that survive more likely than
    `min_survival`. `tokens_per_ns`: what the step is expected to yield.

    `detour`: rows that would go as deep as `depth` go so much deeper, to see what that takes. `cap_share`: instead of
    all this, that part of each row's cap (1 token at least unless the part is 0).
    """

    depth: int = 0
    min_survival: float = 1.0
    tokens_per_ns: float = 0.0
    detour: int = 0
    cap_share: float | None = None

    def draft_len(self, survival: Sequence[float], cap: int) -> int:
        """K of a row whose first 1, 2, .. draft tokens are all accepted with probability `survival`."""
        if self.cap_share is not None:
            return math.ceil(self.cap_share * cap)
        deepest = min(self.depth, cap)
        draft_len = next((k for k in range(deepest) if survival[k] <= self.min_survival), deepest)
        return min(draft_len + self.detour, cap) if draft_len == self.depth else draft_len


def best_plan(
    survivals: Sequence[Sequence[float]],
    costs: StepCosts,
    *,
    tokens_per_depth: float = 1.0,
    likely_rate: float | None = None,
) -> StepPlan:
    """The plan of highest throughput. `survivals`: one row each, as long as the row's cap.

    `costs` says how many rows decode; those without survivals draft nothing. `tokens_per_depth`: draft tokens per
    level of a draft, above 1 for trees. `likely_rate`: where to look first, such as the rate of the last plan.
    """
    rate = likely_rate or costs.num_rows / costs.step_ns(0, 0)
    plan = StepPlan()
    for _ in range(_MAX_ROUNDS):
        plan = _best_depth(survivals, rate * costs.token_ns * tokens_per_depth, costs, tokens_per_depth)
        if abs(plan.tokens_per_ns - rate) <= _SAME_RATE * rate:
            break
        rate = plan.tokens_per_ns
    return plan


def _best_depth(
    survivals: Sequence[Sequence[float]], min_survival: float, costs: StepCosts, tokens_per_depth: float
) -> StepPlan:
    """The best plan that drafts only tokens which survive more likely than `min_survival`."""
    longest = max(map(len, survivals), default=0)
    num_drafted, num_accepted = [0] * longest, [0.0] * longest  # by depth, over all rows
    for survival in survivals:
        for index, probability in enumerate(survival):
            if probability <= min_survival:
                break
            num_drafted[index] += 1
            num_accepted[index] += probability
    best = StepPlan(tokens_per_ns=costs.num_rows / costs.step_ns(0, 0))
    drafted, tokens = 0, float(costs.num_rows)
    for index in range(longest):
        if not num_drafted[index]:
            break
        drafted += num_drafted[index]
        tokens += num_accepted[index]
        rate = tokens / costs.step_ns(index + 1, drafted * tokens_per_depth)
        if rate > best.tokens_per_ns:
            best = StepPlan(index + 1, min_survival, rate)
    return best
