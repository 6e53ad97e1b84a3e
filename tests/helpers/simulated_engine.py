"""An engine of formulas: rows whose drafts are accepted by chance, steps whose times are functions."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specdeploy.runtime.draft_length import DraftLengthPolicy, StepTiming


@dataclass(frozen=True)
class SimulatedCosts:
    """Microseconds. Target: plain + row * R + first + token * n; drafter: depth * d + draft_token * n, and
    `draft_idle` in every step. `noise`: relative spread of each time."""

    plain: float = 1000.0
    row: float = 0.0
    first: float = 0.0
    token: float = 20.0
    depth: float = 50.0
    draft_token: float = 0.0
    draft_idle: float = 0.0
    noise: float = 0.0

    def verify_us(self, num_rows: int, num_draft_tokens: int) -> float:
        first = self.first if num_draft_tokens else 0.0
        return self.plain + self.row * num_rows + first + self.token * num_draft_tokens

    def draft_us(self, depth: int, num_draft_tokens: int) -> float:
        return self.draft_idle + self.depth * depth + self.draft_token * num_draft_tokens


@dataclass
class SimulatedEngine:
    """`alphas`: chance that a draft token of row i is accepted if the one before was; drafts are chains.

    `proposes`: chance that the drafter has anything to say for a row. `prefill_share`: chance that a step reads prompts
    too, which adds `prefill_us` to the target's time.
    """

    policy: DraftLengthPolicy
    costs: SimulatedCosts
    alphas: Sequence[float]
    max_draft_len: int = 8
    proposes: float = 1.0
    seed: int = 0
    prefill_share: float = 0.0
    prefill_us: float = 500.0
    draft_lens: list[list[int]] = field(default_factory=list)  # per step, one per row
    num_tokens: int = 0
    time_us: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def throughput(self) -> float:
        """Output tokens per microsecond."""
        return self.num_tokens / self.time_us

    def run(self, num_steps: int, *, verify_us: Callable[[int, int], float] | None = None) -> "SimulatedEngine":
        verify = verify_us or self.costs.verify_us
        for _ in range(num_steps):
            num_rows = len(self.alphas)
            asked = [self.policy.draft_len(slot, self.max_draft_len, num_rows) for slot in range(num_rows)]
            drafted = [k if self._random.random() < self.proposes else 0 for k in asked]
            accepted = [self._num_accepted(alpha, k) for alpha, k in zip(self.alphas, drafted, strict=True)]
            for slot in range(num_rows):
                if asked[slot]:
                    self.policy.record(slot, drafted[slot], accepted[slot])
            draft_us = self._noisy(self.costs.draft_us(max(drafted), sum(drafted)))
            has_prefill = self.prefill_share > 0.0 and self._random.random() < self.prefill_share
            step_us = self._noisy(verify(num_rows, sum(drafted)) + self.prefill_us * has_prefill)
            self.policy.record_step(
                StepTiming(
                    num_rows=num_rows,
                    num_tokens=num_rows + sum(drafted),
                    depth=max(drafted),
                    draft_ns=round(1000 * draft_us),
                    verify_ns=round(1000 * step_us),
                    has_prefill=has_prefill,
                )
            )
            self.draft_lens.append(asked)
            self.num_tokens += num_rows + sum(accepted)
            self.time_us += draft_us + step_us
        return self

    def _num_accepted(self, alpha: float, num_drafted: int) -> int:
        return next((k for k in range(num_drafted) if self._random.random() >= alpha), num_drafted)

    def _noisy(self, duration_us: float) -> float:
        spread = self.costs.noise
        return duration_us * (1.0 + self._random.uniform(-spread, spread)) if spread else duration_us


def expected_tokens(alpha: float, draft_len: int) -> float:
    """(1 - a^(K+1)) / (1 - a): output tokens of a step with K draft tokens (Leviathan et al. 2023, equation 1)."""
    return draft_len + 1.0 if alpha == 1.0 else (1.0 - alpha ** (draft_len + 1)) / (1.0 - alpha)


def fixed_throughputs(alphas: Sequence[float], costs: SimulatedCosts, max_draft_len: int) -> list[float]:
    """Expected output tokens per microsecond when every row drafts K = 0, 1, .. tokens."""
    num_rows = len(alphas)
    return [
        sum(expected_tokens(alpha, k) for alpha in alphas)
        / (costs.verify_us(num_rows, k * num_rows) + costs.draft_us(k, k * num_rows))
        for k in range(max_draft_len + 1)
    ]
