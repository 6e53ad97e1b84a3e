"""How deep to draft for a row in the next step.

A draft token is worth its price if the time it adds to the step brings more tokens than the step brings in that time
anyhow. `AdaptiveDraftLength` measures both sides: acceptance per row and depth, and the times of this engine's steps.
"""

import dataclasses
from dataclasses import dataclass
from typing import Protocol

from specdeploy.runtime.acceptance import AcceptanceCounts, engine_counts, engine_rates, row_counts, survival_of
from specdeploy.runtime.draft_plan import StepPlan, best_plan
from specdeploy.runtime.probe_budget import ProbeBudget
from specdeploy.runtime.step_costs import StepCostModel, StepCosts

# Steps that are not learned from: memory is touched and kernels are chosen in them.
_WARM_UP_STEPS = 2
# Steps in which K is varied on purpose, as parts of the cap in turn: the price of draft tokens is the difference.
_LEARNING_STEPS = 6
_LEARNING_SHARES = (1.0, 0.5, 0.0)
# Where prompts are read in every step, prices are learned beside them in the end: after so many steps with prefill K is
# varied for some more. Prompts make times uneven, hence more than above.
_PREFILL_PATIENCE = 16
_PREFILL_LEARNING_STEPS = 12
# While drafting, one step in so many is plain: what drafting is compared with must stay measured. A number of rows
# that was never seen plain waits less.
_PLAIN_EVERY = 64
_PLAIN_SOON = 4
# While drafting, one step in so many goes a level deeper or less deep in turn, so that better prices there are seen.
_DETOUR_EVERY = 16
# How much of the latest step's tokens per depth enters the running value.
_LATEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class StepTiming:
    """What one step took: `num_rows` rows decoding, `num_tokens` target tokens over all of them, nanoseconds of the
    drafter and of the target's forward with verification. `has_prefill`: prompts were read in it too. `depth`: the
    deepest draft of it, 0 for none."""

    num_rows: int
    num_tokens: int
    depth: int
    draft_ns: int
    verify_ns: int
    has_prefill: bool


class DraftLengthPolicy(Protocol):
    """Chooses K per row and step, never above the cap it is given. One per engine; state per slot."""

    def draft_len(self, slot: int, cap: int, num_rows: int) -> int:
        """K for the row in `slot` while `num_rows` rows decode; 0 <= K <= cap, cap >= 1."""

    def record(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        """One verification of the row: depth of its draft (0: it had none although asked for), and how much of it was
        accepted."""

    def record_step(self, timing: StepTiming) -> None:
        """One step of the engine."""

    def release(self, slot: int) -> None:
        """The row left."""


class FixedDraftLength:
    """Always the cap: K as the request or the plan says."""

    def draft_len(self, slot: int, cap: int, num_rows: int) -> int:  # noqa: ARG002 - the signature is the contract
        """The cap."""
        return cap

    def record(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        """Nothing is learned."""

    def record_step(self, timing: StepTiming) -> None:
        """Nothing is learned."""

    def release(self, slot: int) -> None:
        """Nothing is kept."""


@dataclass(slots=True)
class _RowState:
    """What is known of a row: `cap` and `asked_in` of the last call, `survival` [max_draft_len] of the last plan."""

    counts: AcceptanceCounts
    survival: list[float]
    cap: int = 0
    asked_in: int = -1
    is_probed: bool = False


class AdaptiveDraftLength:
    """K that brings the most output tokens per time, by measured acceptance and measured step times.

    Each step drafts as `best_plan` says for the rows that were asked about in this step or the last. K = 0 for all is
    one of the choices, so drafting that loses is left. Rows that are off try one token again as soon as that costs
    less than 1 % of the time since; accepted tokens are credited, so that a change for the better is followed.

    While prices are unknown K is the cap, half of it and 0 in turn, for 6 steps after 2 with the cap. Steps with
    prefill teach nothing about prices, unless they keep coming before others taught any: then theirs count in steps
    after one with prefill, until there are better ones. The same calls give the same K: there is no clock and no
    chance in here.
    `record_step` must end every step; without it K stays the cap.
    """

    def __init__(self, *, max_draft_len: int) -> None:
        """`max_draft_len`: the deepest draft of any request."""
        self._max_draft_len = max_draft_len
        self._costs = StepCostModel()
        self._prefill_costs = StepCostModel()  # of steps with prefill, while the others' are unknown
        self._engine = engine_counts(max_draft_len)
        self._rows: dict[int, _RowState] = {}
        self._step = 0
        self._num_timed_steps = 0
        self._num_prefill_steps = 0
        self._had_prefill = False  # the latest step with decoding rows
        self._steps_since_plain: dict[int, int] = {}  # by number of rows
        self._rates: dict[int, float] = {}  # tokens per nanosecond of the last plan, by number of rows
        self._tokens_per_depth = 1.0
        self._probe_budget = ProbeBudget()
        self._begin_step()

    def _begin_step(self) -> None:
        self._plan: StepPlan | None = None
        self._is_probe_step = False
        self._has_off_rows = False
        self._drafted_depths = 0  # over all rows
        self._probed_depths = 0
        self._probed_accepted = 0
        self._probe_price_ns = 0.0

    def draft_len(self, slot: int, cap: int, num_rows: int) -> int:
        """K for the row in `slot` while `num_rows` rows decode; 0 <= K <= cap."""
        row = self._rows.get(slot)
        if row is None:
            counts = row_counts(self._max_draft_len)
            row = self._rows[slot] = _RowState(counts, survival_of(counts, engine_rates(self._engine)))
        row.cap, row.asked_in = min(cap, self._max_draft_len), self._step
        if self._plan is None:
            self._plan = self._plan_step(num_rows)
        draft_len = self._plan.draft_len(row.survival, row.cap)
        self._has_off_rows |= draft_len == 0
        row.is_probed = self._is_probe_step and draft_len == 0
        return 1 if row.is_probed else draft_len

    def record(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        """One verification of the row. No draft is no verdict on drafts: nothing is learned from it."""
        if num_drafted == 0:
            return
        self._engine.record(num_drafted, num_accepted)
        self._drafted_depths += num_drafted
        row = self._rows.get(slot)
        if row is None:
            return
        row.counts.record(num_drafted, num_accepted)
        if row.is_probed:
            self._probed_depths += num_drafted
            self._probed_accepted += num_accepted

    def record_step(self, timing: StepTiming) -> None:
        """One step of the engine: the next call of `draft_len` plans the next one."""
        if timing.num_rows:
            if not timing.has_prefill or self._is_learning:
                self._learn(timing)
                self._account(timing)
            self._had_prefill = timing.has_prefill
        self._step += 1
        self._begin_step()

    def release(self, slot: int) -> None:
        """The row left."""
        self._rows.pop(slot, None)

    def step_costs(self, num_rows: int) -> StepCosts | None:
        """What steps of `num_rows` rows were measured to cost; None while that is being learned."""
        return None if self._is_learning else self._costs.costs(num_rows)

    @property
    def acceptance_rate_per_pos(self) -> list[float]:
        """Recent average of all rows, conditional: accepted at a depth if the depth before was."""
        return engine_rates(self._engine)

    @property
    def _is_learning(self) -> bool:
        return self._num_timed_steps < _WARM_UP_STEPS + _LEARNING_STEPS

    @property
    def _num_learned(self) -> int | None:
        """Steps in which K was varied (below 1: not yet), None when that is over for steps like the latest."""
        if not self._is_learning:
            return None
        if not self._had_prefill:
            return self._num_timed_steps - _WARM_UP_STEPS
        num_learned = self._num_prefill_steps - _PREFILL_PATIENCE
        return num_learned if num_learned < _PREFILL_LEARNING_STEPS else None

    @property
    def _prices(self) -> StepCostModel:
        return self._prefill_costs if self._is_learning else self._costs

    def _plan_step(self, num_rows: int) -> StepPlan:
        num_learned = self._num_learned
        if num_learned is not None:
            return StepPlan(cap_share=_LEARNING_SHARES[num_learned % len(_LEARNING_SHARES)] if num_learned > 0 else 1.0)
        rates = engine_rates(self._engine)
        rows = [row for row in self._rows.values() if row.asked_in >= self._step - 1]
        for row in rows:
            row.survival = survival_of(row.counts, rates)
        costs = self._prices.costs(num_rows)
        plan = best_plan(
            [row.survival[: row.cap] for row in rows],
            costs,
            tokens_per_depth=self._tokens_per_depth,
            likely_rate=self._rates.get(num_rows),
        )
        self._rates[num_rows] = plan.tokens_per_ns
        if plan.depth and self._steps_since_plain.get(num_rows, _PLAIN_EVERY - _PLAIN_SOON) >= _PLAIN_EVERY:
            return StepPlan(cap_share=0.0)
        num_off = sum(plan.draft_len(row.survival, row.cap) == 0 for row in rows)
        if num_off:
            self._probe_price_ns = _probe_ns(plan, costs, num_off * self._tokens_per_depth)
            self._is_probe_step = self._probe_budget.can_pay(self._probe_price_ns)
        if plan.depth and self._step % _DETOUR_EVERY == 0:
            return dataclasses.replace(plan, detour=1 if self._step % (2 * _DETOUR_EVERY) else -1)
        return plan

    def _learn(self, timing: StepTiming) -> None:
        num_draft_tokens = timing.num_tokens - timing.num_rows
        prices = self._prefill_costs if timing.has_prefill else self._costs
        if timing.has_prefill:
            self._num_prefill_steps += 1
        else:
            self._num_timed_steps += 1
        if self._num_timed_steps + self._num_prefill_steps > _WARM_UP_STEPS:
            prices.record(
                num_rows=timing.num_rows,
                num_draft_tokens=num_draft_tokens,
                depth=timing.depth,
                draft_ns=timing.draft_ns,
                verify_ns=timing.verify_ns,
            )
        waited = self._steps_since_plain.get(timing.num_rows, _PLAIN_EVERY - _PLAIN_SOON)
        self._steps_since_plain[timing.num_rows] = waited + 1 if num_draft_tokens else 0
        if num_draft_tokens and self._drafted_depths:
            latest = num_draft_tokens / self._drafted_depths
            self._tokens_per_depth += _LATEST_SHARE * (latest - self._tokens_per_depth)

    def _account(self, timing: StepTiming) -> None:
        """Steps with rows that are off earn for probing, and probes pay what they took."""
        plan = self._plan
        if plan is None or plan.cap_share is not None or not self._has_off_rows:
            return
        self._probe_budget.earn(timing.draft_ns + timing.verify_ns)
        if not self._is_probe_step:
            return
        costs = self._prices.costs(timing.num_rows)
        cost_ns = _probe_ns(plan, costs, self._probed_depths * self._tokens_per_depth)
        if plan.depth == 0:  # nobody else drafted: after a pause the drafter may have had to catch up
            due_ns = costs.draft_first_ns + costs.draft_depth_ns if self._probed_depths else 0.0
            cost_ns += max(timing.draft_ns - costs.draft_idle_ns - due_ns, 0.0)
        self._probe_budget.settle(cost_ns, self._probed_accepted / plan.tokens_per_ns, self._probe_price_ns)


def _probe_ns(plan: StepPlan, costs: StepCosts, num_probe_tokens: float) -> float:
    """What draft tokens of rows that are off add to a step."""
    if num_probe_tokens == 0:
        return 0.0
    if plan.depth:
        return costs.token_ns * num_probe_tokens
    return max(costs.step_ns(1, num_probe_tokens) - costs.step_ns(0, 0), 0.0)
