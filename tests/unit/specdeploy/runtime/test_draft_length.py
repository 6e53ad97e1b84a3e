"""K follows acceptance and load, leaves drafting that loses, and comes back."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import pytest

from helpers.simulated_engine import SimulatedCosts, SimulatedEngine, expected_tokens, fixed_throughputs
from specdeploy.runtime.draft_length import AdaptiveDraftLength, FixedDraftLength, StepTiming

LEARNING_STEPS = 8
MAX_DRAFT_LEN = 8


def adaptive() -> AdaptiveDraftLength:
    return AdaptiveDraftLength(max_draft_len=MAX_DRAFT_LEN)


def usual_draft_len(engine: SimulatedEngine, num_steps: int, slot: int = 0) -> int:
    """The most frequent K of the latest steps."""
    return Counter(step[slot] for step in engine.draft_lens[-num_steps:]).most_common(1)[0][0]


def best_fixed(alphas: list[float], costs: SimulatedCosts) -> tuple[int, float]:
    """K and throughput of the best constant K."""
    throughputs = fixed_throughputs(alphas, costs, MAX_DRAFT_LEN)
    best = max(range(len(throughputs)), key=throughputs.__getitem__)
    return best, throughputs[best]


def test_fixed_is_the_cap() -> None:
    policy = FixedDraftLength()
    policy.record(0, 3, 0)
    assert policy.draft_len(0, 5, 1) == 5


def test_learning_is_the_cap_then_varies_it() -> None:
    engine = SimulatedEngine(adaptive(), SimulatedCosts(), [0.8]).run(LEARNING_STEPS)
    assert [step[0] for step in engine.draft_lens] == [8, 8, 8, 4, 0, 8, 4, 0]


@pytest.mark.parametrize("share", [1.0, 0.95])
@pytest.mark.parametrize("costs", [SimulatedCosts(noise=0.1), SimulatedCosts(token=150, depth=200, noise=0.1)])
def test_drafting_that_loses_is_left_while_prompts_are_read_in_every_step(share: float, costs: SimulatedCosts) -> None:
    engine = SimulatedEngine(adaptive(), costs, [0.2] * 4, MAX_DRAFT_LEN, prefill_share=share).run(100)
    engine.num_tokens, engine.time_us = 0, 0.0
    engine.run(900)
    off = SimulatedEngine(FixedDraftLength(), costs, [0.2] * 4, 0, prefill_share=share).run(1000)
    assert engine.throughput > 0.9 * off.throughput


def test_drafting_that_wins_goes_on_while_prompts_are_read_in_every_step() -> None:
    costs = SimulatedCosts(noise=0.1)
    engine = SimulatedEngine(adaptive(), costs, [0.9] * 2, MAX_DRAFT_LEN, prefill_share=1.0).run(500)
    assert usual_draft_len(engine, 300) >= 4
    engine.prefill_share = 0.0
    engine.run(300)
    assert usual_draft_len(engine, 200) >= 4


def test_without_timings_it_is_always_the_cap() -> None:
    policy = adaptive()
    for _ in range(100):
        assert policy.draft_len(0, 6, 1) == 6
        policy.record(0, 6, 0)
    assert policy.step_costs(1) is None


def test_prompts_in_a_few_steps_teach_no_prices() -> None:
    policy = adaptive()
    for _ in range(16):
        assert policy.draft_len(0, 6, 1) == 6
        policy.record(0, 6, 0)
        policy.record_step(StepTiming(1, 7, 6, draft_ns=1, verify_ns=10**9, has_prefill=True))
    assert policy.step_costs(1) is None


@pytest.mark.parametrize(
    ("alpha", "costs", "best"),
    [
        (0.5, SimulatedCosts(token=20, depth=50), 3),
        (0.7, SimulatedCosts(token=20, depth=50), 5),
        (0.9, SimulatedCosts(token=20, depth=50), 8),
        (0.9, SimulatedCosts(token=100, depth=200), 5),
        (0.7, SimulatedCosts(token=20, depth=50, first=400), 6),
        (0.5, SimulatedCosts(token=300, depth=300), 0),
        (0.2, SimulatedCosts(token=20, depth=50, first=400), 0),
    ],
)
def test_finds_the_best_k_within_300_steps(alpha: float, costs: SimulatedCosts, best: int) -> None:
    assert best_fixed([alpha], costs)[0] == best
    engine = SimulatedEngine(adaptive(), costs, [alpha], seed=1).run(900)
    assert abs(usual_draft_len(engine, 600) - best) <= 1
    throughputs = fixed_throughputs([alpha], costs, MAX_DRAFT_LEN)
    assert throughputs[usual_draft_len(engine, 600)] > 0.98 * throughputs[best]


@pytest.mark.parametrize("num_rows", [1, 4, 16])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.7, 0.9])
def test_throughput_is_near_the_best_fixed_k(alpha: float, num_rows: int) -> None:
    costs = SimulatedCosts(row=50, first=100, token=25, depth=50, draft_token=5, draft_idle=10, noise=0.1)
    engine = SimulatedEngine(adaptive(), costs, [alpha] * num_rows).run(2000)
    assert engine.throughput > 0.95 * best_fixed([alpha] * num_rows, costs)[1]


@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize(
    "costs",
    [
        SimulatedCosts(token=1, depth=2),
        SimulatedCosts(token=25, depth=50, noise=0.1),
        SimulatedCosts(token=200, depth=500, noise=0.1),
        SimulatedCosts(first=800, token=25, depth=50),
    ],
)
def test_drafts_that_are_never_accepted_cost_two_percent_at_most(costs: SimulatedCosts, num_rows: int) -> None:
    engine = SimulatedEngine(adaptive(), costs, [0.0] * num_rows).run(100)
    engine.num_tokens, engine.time_us = 0, 0.0  # the first steps are paid once
    engine.run(2500)
    assert engine.throughput > 0.98 * fixed_throughputs([0.0] * num_rows, costs, 0)[0]


def test_learning_costs_as_much_as_its_drafts() -> None:
    costs = SimulatedCosts(token=25, depth=50)
    engine = SimulatedEngine(adaptive(), costs, [0.0] * 4).run(3000)
    assert engine.throughput > 0.98 * fixed_throughputs([0.0] * 4, costs, 0)[0]


def test_probing_costs_one_percent_and_never_ends() -> None:
    costs = SimulatedCosts(token=100, depth=200)
    engine = SimulatedEngine(adaptive(), costs, [0.0]).run(200)
    start = engine.time_us
    engine.run(5000)
    assert 1.008 < (engine.time_us - start) / (5000 * costs.plain) < 1.011
    probes = [step for step, (k,) in enumerate(engine.draft_lens[200:]) if k]
    assert max(k for (k,) in engine.draft_lens[200:]) == 1
    assert max(later - earlier for earlier, later in itertools.pairwise(probes)) < 40


def test_a_text_that_becomes_predictable_is_noticed_while_off() -> None:
    engine = SimulatedEngine(adaptive(), SimulatedCosts(token=50, depth=100), [0.0]).run(1000)
    assert usual_draft_len(engine, 500) == 0
    engine.alphas = [0.9]
    engine.run(300)
    assert usual_draft_len(engine, 20) >= 4


def test_a_text_that_becomes_unpredictable_is_noticed() -> None:
    engine = SimulatedEngine(adaptive(), SimulatedCosts(token=50, depth=100), [0.95]).run(1000)
    assert usual_draft_len(engine, 500) == 8
    engine.alphas = [0.0]
    engine.run(75)  # as many tokens, for nothing is accepted
    assert usual_draft_len(engine, 10) <= 1


def test_load_lowers_k_and_its_end_raises_it() -> None:
    engine = SimulatedEngine(adaptive(), SimulatedCosts(token=60, depth=60), [0.7]).run(400)
    alone = usual_draft_len(engine, 200)
    engine.alphas = [0.7] * 16
    engine.run(200)
    busy = usual_draft_len(engine, 100)
    engine.alphas = [0.7]
    engine.run(200)
    assert alone >= 3
    assert busy <= 1
    assert usual_draft_len(engine, 100) >= 3


def test_rows_differ_and_a_new_row_starts_with_the_average() -> None:
    engine = SimulatedEngine(adaptive(), SimulatedCosts(token=60, depth=20), [0.95] * 3 + [0.05]).run(600)
    assert usual_draft_len(engine, 300, slot=0) >= 5
    assert usual_draft_len(engine, 300, slot=3) == 0
    engine.policy.release(3)
    engine.alphas = [0.95] * 4
    engine.run(10)
    assert usual_draft_len(engine, 10, slot=3) >= 2


def test_one_good_row_does_not_draft_at_the_expense_of_many() -> None:
    # One pass of the drafter costs 40 % of a step of 16 rows; alone the good row gains 1 token of 17 by it at most.
    costs = SimulatedCosts(token=1, depth=400)
    engine = SimulatedEngine(adaptive(), costs, [0.95] + [0.0] * 15).run(800)
    assert usual_draft_len(engine, 400, slot=0) == 0
    alone = SimulatedEngine(adaptive(), costs, [0.95]).run(800)
    assert usual_draft_len(alone, 400) >= 4


def test_a_drafter_that_finds_nothing_is_not_blamed() -> None:
    costs = SimulatedCosts(token=50, depth=0)
    engine = SimulatedEngine(adaptive(), costs, [0.9], proposes=0.1).run(1000)
    assert usual_draft_len(engine, 500) >= 6
    assert engine.policy.draft_len(0, 8, 1) >= 6


def test_nothing_found_is_no_rejection() -> None:
    policy = adaptive()
    before = policy.acceptance_rate_per_pos
    for _ in range(100):
        policy.draft_len(0, 8, 1)
        policy.record(0, 0, 0)
    assert policy.acceptance_rate_per_pos == before


def test_trees_pay_for_all_their_tokens() -> None:
    policy = adaptive()
    usual: Counter[int] = Counter()
    for _ in range(400):  # 10 tokens per depth, 2 % of a step each: 20 % per depth, of which every second is accepted
        depth = policy.draft_len(0, 8, 1)
        usual[depth] += 1
        if depth:
            policy.record(0, depth, depth // 2)
        tokens = 10 * depth
        policy.record_step(StepTiming(1, 1 + tokens, depth, 10_000 * depth, 1_000_000 + 20_000 * tokens, False))
    costs = policy.step_costs(1)
    assert costs is not None
    assert costs.target_token_ns == pytest.approx(20_000, rel=0.1)
    assert usual.most_common(1)[0][0] <= 2


@pytest.mark.parametrize("alpha", [0.0, 0.6, 0.95])
@pytest.mark.parametrize(
    "verify_us",
    [
        lambda rows, drafted: 800 + 400 * math.ceil((rows + drafted) / 16),  # tiles of 16 tokens
        lambda rows, drafted: 1000 + 40 * max(0, rows + drafted - 32),  # free up to 32
        lambda rows, drafted: 1000 if drafted == 0 else 1300 + 10 * drafted,  # another kernel for draft tokens
    ],
)
def test_times_with_kinks_are_followed(verify_us: Callable[[int, int], float], alpha: float) -> None:
    engine = SimulatedEngine(adaptive(), SimulatedCosts(depth=20, noise=0.05), [alpha] * 8).run(
        300, verify_us=verify_us
    )
    engine.num_tokens, engine.time_us = 0, 0.0
    engine.run(1200, verify_us=verify_us)
    throughputs = [8 * expected_tokens(alpha, k) / (verify_us(8, 8 * k) + 20 * k) for k in range(MAX_DRAFT_LEN + 1)]
    assert engine.throughput > 0.9 * max(throughputs)
    assert engine.throughput > 0.98 * throughputs[0]


def test_the_same_calls_give_the_same_k() -> None:
    costs = SimulatedCosts(noise=0.2)
    runs = [SimulatedEngine(adaptive(), costs, [0.3, 0.8], seed=7).run(300).draft_lens for _ in range(2)]
    assert runs[0] == runs[1]


def test_measured_costs_can_be_read() -> None:
    policy = adaptive()
    SimulatedEngine(policy, SimulatedCosts(token=20, depth=50), [0.7] * 2).run(300)
    costs = policy.step_costs(2)
    assert costs is not None
    assert costs.plain_ns == pytest.approx(1e6, rel=0.02)
    assert costs.draft_cost_ratio == pytest.approx(0.05, rel=0.05)
    assert costs.verify_cost_ratio(4) == pytest.approx(1.16, rel=0.05)
    assert policy.acceptance_rate_per_pos[0] == pytest.approx(0.7, abs=0.06)
