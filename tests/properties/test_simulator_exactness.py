"""The simulator that adds up stretches of steps against one that takes every step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.naive_simulator import NaiveSimulation
from helpers.simulator_standins import AffineTimes, ChainAcceptance, constant_times, plan_of, traffic_of_lists
from specdeploy.contract import SegmentPlan
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.settings import SimulationSettings
from specdeploy.planner.simulator.simulation import simulate, steps_within
from specdeploy.planner.simulator.step_counts import StepAcceptance

SECONDS = st.floats(1e-6, 1e-2)
PLANS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=4, unique_by=lambda entry: entry[0]
)
TIMES = st.one_of(
    st.builds(AffineTimes, SECONDS, *[st.sampled_from([0.0, 1e-5, 3e-4])] * 7),
    st.builds(constant_times, st.sampled_from([0.1, 0.25, 1e-3])),
)


@st.composite
def traffics(draw: st.DrawFn) -> SimulatedTraffic:
    num_requests = draw(st.integers(1, 14))
    lengths = st.lists(st.integers(1, 40), min_size=num_requests, max_size=num_requests)
    gaps = draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.013, 1.7]), min_size=num_requests, max_size=num_requests))
    segment = draw(st.lists(st.integers(0, 1), min_size=num_requests, max_size=num_requests))
    arrivals = np.cumsum(gaps).tolist()
    return traffic_of_lists(arrivals, draw(lengths), draw(lengths), segment, ("chat", "code"))


SETTINGS = st.builds(
    SimulationSettings,
    max_rows=st.integers(1, 6),
    prefill_chunk=st.integers(1, 50),
    kv_tokens=st.none() | st.integers(20, 160),
    concurrency=st.none() | st.integers(1, 8),
    seed=st.integers(0, 3),
    max_queue=st.none() | st.integers(0, 4),
)


@settings(deadline=None, max_examples=60)
@given(traffics(), TIMES, PLANS, PLANS, SETTINGS, st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.3, 1.0]))
def test_stretches_of_steps_add_up_to_the_steps(
    traffic: SimulatedTraffic,
    times: AffineTimes,
    chat: list[tuple[int, int]],
    code: list[tuple[int, int]],
    limits: SimulationSettings,
    alpha: float,
    share: float,
) -> None:
    acceptance: list[StepAcceptance | None] = [ChainAcceptance(alpha, share), ChainAcceptance(0.7)]
    plans: list[SegmentPlan] = [plan_of(*sorted(chat), segment="chat"), plan_of(*sorted(code), segment="code")]
    fast = simulate(traffic, times, acceptance, plans, limits)
    slow = NaiveSimulation(traffic, times, acceptance, plans, limits)
    slow.run()
    assert fast.num_engine_steps == slow.num_engine_steps
    assert set(np.flatnonzero(fast.refusal).tolist()) == slow.refused
    assert fast.busy_s == pytest.approx(slow.busy_s, rel=1e-9)
    served = np.flatnonzero(fast.is_served).tolist()
    assert served == sorted(slow.e2e_s)
    assert fast.ttft_s[served].tolist() == pytest.approx([slow.ttft_s[index] for index in served], rel=1e-9)
    assert fast.e2e_s[served].tolist() == pytest.approx([slow.e2e_s[index] for index in served], rel=1e-9)
    assert fast.num_steps[served].tolist() == [slow.num_steps[index] for index in served]
    in_flight_s = float(fast.e2e_s[served].sum())  # Little's law, exact over a whole run
    assert fast.mean_in_flight * fast.duration_s == pytest.approx(in_flight_s, rel=1e-9)


@given(st.floats(1e-6, 10), st.floats(1e-6, 1e-1), st.sampled_from([0.0, 1e-9, 1e-5, 1e-2]))
def test_steps_within_a_gap_are_the_fewest_that_fill_it(gap_s: float, first_s: float, growth_s: float) -> None:
    num_steps = steps_within(gap_s, first_s, growth_s)
    taken = [n * first_s + growth_s * (n * (n - 1) / 2) for n in (num_steps - 1, num_steps)]
    assert taken[1] >= gap_s
    assert num_steps == 1 or taken[0] < gap_s
