"""Cost and acceptance models that a test can reckon with by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdeploy.contract import DraftLenRange, SegmentPlan
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.step_times import StepLoad, StepTime
from specdeploy.planner_contract import ArithmeticLine


@dataclass(frozen=True)
class AffineTimes:
    """Seconds per step, per token of each kind, per depth, per cached token and per token of a chunk's context."""

    step_s: float = 6.5e-3
    row_s: float = 20e-6
    draft_token_s: float = 10e-6
    depth_s: float = 0.4e-3
    prefill_token_s: float = 25e-6
    draft_prefill_token_s: float = 1e-6
    kv_token_s: float = 40e-9
    prefill_context_s: float = 1e-7
    ridge_tokens: float = 300.0

    def time(self, load: StepLoad) -> StepTime:
        fixed_s = self.step_s + self.row_s * load.num_rows + self.draft_token_s * load.num_draft_tokens
        fixed_s += self.depth_s * load.depth + self.prefill_token_s * load.prefill_tokens
        fixed_s += self.draft_prefill_token_s * load.draft_prefill_tokens
        return StepTime(fixed_s, self.kv_token_s, self.prefill_context_s if load.prefill_tokens else 0.0)

    def range_problem(self, num_rows: int, draft_len: int) -> str | None:
        return None

    def explain(self, num_rows: int, draft_len: int, kv_tokens: float) -> tuple[ArithmeticLine, ...]:
        return ()


def constant_times(step_s: float) -> AffineTimes:
    """Every step takes `step_s`."""
    return AffineTimes(step_s, 0, 0, 0, 0, 0, 0, 0)


@dataclass(frozen=True)
class ChainAcceptance:
    """Every drafted token survives with probability `alpha`, each step by itself; something is drafted in `share`."""

    alpha: float
    share: float = 1.0

    def draw_steps(
        self, output_tokens: NDArray[np.int64], draft_len: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        left = output_tokens - 1
        steps = np.zeros_like(left)
        while (left > 0).any():
            uniform = rng.random((2, len(left)))
            survivors = np.floor(np.log(uniform[0]) / np.log(self.alpha)) if self.alpha else np.zeros(len(left))
            accepted = np.minimum(survivors, draft_len) * (uniform[1] < self.share)
            steps += left > 0
            left = left - 1 - accepted.astype(np.int64)
        return steps

    def mean_draft_tokens(self, draft_len: int) -> float:
        return self.share * draft_len


def plan_of(*draft_lens: tuple[int, int], segment: str = "all") -> SegmentPlan:
    """(first load, K): each up to the next one's first load."""
    lows = [low for low, _ in draft_lens]
    highs = [*(low - 1 for low in lows[1:]), None]
    ranges = tuple(
        DraftLenRange(min_in_flight=low, max_in_flight=high, draft_len=draft_len)
        for (low, draft_len), high in zip(draft_lens, highs, strict=True)
    )
    return SegmentPlan(segment=segment, ranges=ranges)


def traffic_of_lists(
    arrival_s: Sequence[float] | None,
    input_tokens: Sequence[int],
    output_tokens: Sequence[int],
    segment: Sequence[int] | None = None,
    segment_names: tuple[str, ...] = ("all",),
) -> SimulatedTraffic:
    """One request per entry."""
    return SimulatedTraffic(
        None if arrival_s is None else np.array(arrival_s, np.float64),
        np.array(input_tokens, np.int64),
        np.array(output_tokens, np.int64),
        np.zeros(len(input_tokens), np.int64) if segment is None else np.array(segment, np.int64),
        segment_names,
    )
