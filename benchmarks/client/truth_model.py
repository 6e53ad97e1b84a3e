"""What a run against the virtual server must find, computed without the client: a million answers drawn from its rules.

The rules are those in the docstring of `helpers.virtual_time.VirtualServer`; they are written here a second time, over
arrays, so that a mistake in either of the two shows.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import Arm, MetricName

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """A server and what is asked of it. `effect`: e2e of the on arm / e2e of the off arm, medians.

    Noise is lognormal: of prompts (the same in both arms), of requests, of steps, and of spells of the machine of
    `spell_s` each, which hit whatever runs then.
    """

    name: str
    effect: float
    ttft_s: float = 0.080
    step_s: float = 0.020
    acceptance: float = 0.6
    draft_len: int = 4
    num_tokens: int = 64
    concurrency: int = 8
    prompt_sigma: float = 0.10
    request_sigma: float = 0.05
    step_sigma: float = 0.15
    spell_sigma: float = 0.02
    spell_s: float = 5.0
    verify_cost: float = 1.0


@dataclass(frozen=True)
class Truth:
    """Answers of one arm, [n]: seconds, and what drafting did."""

    seconds: dict[MetricName, Floats]
    acceptance_rate: float
    step_s: float

    def quantile(self, metric: MetricName, quantile: float) -> float:
        """Seconds."""
        return float(np.quantile(self.seconds[metric], quantile))


def planted(scenario: Scenario) -> Scenario:
    """The same with the verify step as dear as makes both arms equally fast in the median before `effect` is applied.

    The median is not linear in the cost of a step, because what is drafted varies; three corrections are plenty.
    """
    even = replace(scenario, effect=1.0)
    goal = draw_truth(even, Arm.OFF).quantile(MetricName.E2E, 0.5) - even.ttft_s
    for _ in range(3):
        got = draw_truth(even, Arm.ON).quantile(MetricName.E2E, 0.5) - even.ttft_s
        even = replace(even, verify_cost=even.verify_cost * goal / got)
    return replace(even, effect=scenario.effect)


def draw_truth(scenario: Scenario, arm: Arm, num_answers: int = 200_000, seed: int = 1) -> Truth:
    """`num_answers` answers of one arm."""
    rng = np.random.default_rng(seed)
    draft_len = scenario.draft_len if arm is Arm.ON else 0
    spread = math.hypot(scenario.prompt_sigma, scenario.request_sigma, scenario.spell_sigma)
    factor = np.exp(rng.normal(0.0, spread, num_answers)) * (scenario.effect if draft_len else 1.0)
    ttft = scenario.ttft_s * factor
    missing = np.full(num_answers, scenario.num_tokens - 1)
    decoding = np.zeros(num_answers)
    num_steps = num_accepted = 0
    step_s = scenario.step_s * (scenario.verify_cost if draft_len else 1.0)
    while (busy := missing > 0).any():
        accepted = np.minimum(rng.geometric(1 - scenario.acceptance, num_answers) - 1, draft_len)
        sent = np.where(busy, np.minimum(1 + accepted, missing), 0)
        decoding += np.where(busy, step_s * factor * np.exp(rng.normal(0.0, scenario.step_sigma, num_answers)), 0.0)
        missing -= sent
        num_steps += int(busy.sum())
        num_accepted += int((sent - 1)[busy].sum())
    seconds = {
        MetricName.TTFT: ttft,
        MetricName.TPOT: decoding / (scenario.num_tokens - 1),
        MetricName.E2E: ttft + decoding,
    }
    rate = num_accepted / (num_steps * draft_len) if draft_len else 0.0
    return Truth(seconds, rate, step_s * (scenario.effect if draft_len else 1.0))
