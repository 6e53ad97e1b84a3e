"""Dynamic K at any acceptance, cost and load: within its cap, never far below off or the best constant K."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.simulated_engine import SimulatedCosts, SimulatedEngine, expected_tokens, fixed_throughputs
from specdeploy.runtime.draft_length import AdaptiveDraftLength, StepTiming
from specdeploy.runtime.draft_plan import best_plan
from specdeploy.runtime.step_costs import StepCosts

MAX_DRAFT_LEN = 6

COSTS = st.builds(
    SimulatedCosts,
    plain=st.just(1000.0),
    row=st.floats(0, 100),
    first=st.floats(0, 500),
    token=st.floats(0, 300),
    depth=st.floats(0, 500),
    draft_token=st.floats(0, 50),
    draft_idle=st.floats(0, 50),
    noise=st.sampled_from([0.0, 0.1]),
)


def step_costs(costs: SimulatedCosts, num_rows: int) -> StepCosts:
    return StepCosts(
        num_rows=num_rows,
        plain_ns=costs.verify_us(num_rows, 0) + costs.draft_idle,
        draft_idle_ns=costs.draft_idle,
        target_first_ns=costs.first,
        target_token_ns=costs.token,
        draft_first_ns=0.0,
        draft_depth_ns=costs.depth,
        draft_token_ns=costs.draft_token,
    )


@given(st.floats(0, 1), st.integers(0, 12))
def test_expected_tokens_are_one_and_the_survivals(alpha: float, draft_len: int) -> None:
    assert expected_tokens(alpha, draft_len) == pytest.approx(1 + sum(alpha**k for k in range(1, draft_len + 1)))


@settings(deadline=None)
@given(COSTS, st.lists(st.floats(0, 0.99), min_size=1, max_size=6), st.floats(1e-5, 1e-1))
def test_the_plan_is_the_best_of_all_constant_plans(
    costs: SimulatedCosts, alphas: list[float], likely_rate: float
) -> None:
    survivals = [[alpha**k for k in range(1, MAX_DRAFT_LEN + 1)] for alpha in alphas]
    plan = best_plan(survivals, step_costs(costs, len(alphas)), likely_rate=likely_rate)
    draft_lens = [plan.draft_len(survival, MAX_DRAFT_LEN) for survival in survivals]
    tokens = sum(expected_tokens(alpha, k) for alpha, k in zip(alphas, draft_lens, strict=True))
    time = costs.verify_us(len(alphas), sum(draft_lens)) + costs.draft_us(max(draft_lens), sum(draft_lens))
    assert tokens / time == pytest.approx(plan.tokens_per_ns, rel=1e-6)
    assert tokens / time >= 0.995 * max(fixed_throughputs(alphas, costs, MAX_DRAFT_LEN))


@settings(deadline=None, max_examples=12)
@given(COSTS, st.floats(0, 0.98), st.sampled_from([1, 2, 5]), st.integers(0, 3))
@example(SimulatedCosts(token=0, depth=0), 0.0, 1, 0)
@example(SimulatedCosts(token=300, depth=500, first=500), 0.0, 5, 0)
def test_throughput_is_never_far_from_off_or_the_best(
    costs: SimulatedCosts, alpha: float, num_rows: int, seed: int
) -> None:
    policy = AdaptiveDraftLength(max_draft_len=MAX_DRAFT_LEN)
    engine = SimulatedEngine(policy, costs, [alpha] * num_rows, MAX_DRAFT_LEN, seed=seed).run(200)
    engine.num_tokens, engine.time_us = 0, 0.0  # what was learned is paid once
    engine.run(1500)
    throughputs = fixed_throughputs([alpha] * num_rows, costs, MAX_DRAFT_LEN)
    assert engine.throughput > 0.93 * max(throughputs)  # 1500 steps of chance included
    if alpha < 0.02:
        assert engine.throughput > 0.98 * throughputs[0]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 9)), max_size=4),
            st.integers(0, 10**8),
            st.integers(0, 10**8),
            st.booleans(),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_any_history_keeps_k_between_zero_and_the_cap(
    steps: list[tuple[list[tuple[int, int, int]], int, int, bool, bool]],
) -> None:
    policy = AdaptiveDraftLength(max_draft_len=MAX_DRAFT_LEN)
    for rows, draft_ns, verify_ns, has_prefill, leaves in steps:
        drafted = []
        for slot, cap, luck in rows:
            draft_len = policy.draft_len(slot, cap, len(rows))
            assert 0 <= draft_len <= min(cap, MAX_DRAFT_LEN)
            drafted.append(draft_len)
            policy.record(slot, draft_len, min(luck, draft_len))
        depth = max(drafted, default=0)
        policy.record_step(StepTiming(len(rows), len(rows) + sum(drafted), depth, draft_ns, verify_ns, has_prefill))
        if leaves:
            policy.release(rows[0][0] if rows else 3)
