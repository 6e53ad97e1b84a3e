"""The simulator against queueing theory, in the limits that have closed forms.

Runs are long and seeds fixed; tolerances are four standard errors over independent runs, as those runs give them.
"""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from helpers.simulator_standins import AffineTimes, ChainAcceptance, constant_times, plan_of
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.result import SimulationResult
from specdeploy.planner.simulator.settings import SimulationSettings
from specdeploy.planner.simulator.simulation import simulate

NUM_REQUESTS = 3000
NUM_RUNS = 8
STEP_S = 0.01


def poisson(rate: float, output_tokens: NDArray[np.int64], rng: np.random.Generator) -> SimulatedTraffic:
    num_requests = len(output_tokens)
    ones = np.ones(num_requests, np.int64)
    arrivals = np.cumsum(rng.exponential(1 / rate, num_requests))
    return SimulatedTraffic(arrivals, ones, output_tokens, ones - 1, ("all",))


def served_plainly(traffic: SimulatedTraffic, max_rows: int, concurrency: int | None = None) -> SimulationResult:
    """Every step takes the same time, and reads any prompt: a request of n tokens is served in n steps."""
    settings = SimulationSettings(max_rows, 1 << 20, concurrency=concurrency)
    return simulate(traffic, constant_times(STEP_S), [None], [plan_of((1, 0))], settings)


def assert_mean_is(samples: list[float], expected: float) -> None:
    error = float(np.std(samples, ddof=1)) / len(samples) ** 0.5
    assert abs(float(np.mean(samples)) - expected) < 4 * error
    assert error < 0.1 * expected  # or the test would say nothing


def test_one_row_with_constant_service_waits_as_m_d_1() -> None:
    # Mean wait in an M/D/1 queue: rho S / (2 (1 - rho)).
    tokens, rho = 20, 0.7
    service_s = tokens * STEP_S
    waits = []
    for seed in range(NUM_RUNS):
        outputs = np.full(NUM_REQUESTS, tokens)
        result = served_plainly(poisson(rho / service_s, outputs, np.random.default_rng(seed)), max_rows=1)
        waits.append(float(result.e2e_s.mean()) - service_s)
    assert_mean_is(waits, rho * service_s / (2 * (1 - rho)))


def test_one_row_with_random_service_waits_as_pollaczek_and_khinchine_say() -> None:
    # M/G/1: mean wait = lambda E[S^2] / (2 (1 - rho)); service geometric in tokens.
    mean_tokens, rho = 30, 0.6
    rate = rho / (mean_tokens * STEP_S)
    second_moment = (2 - 1 / mean_tokens) * mean_tokens**2 * STEP_S**2  # of a geometric number of steps
    waits, utilisations = [], []
    for seed in range(NUM_RUNS):
        rng = np.random.default_rng(100 + seed)
        outputs = rng.geometric(1 / mean_tokens, NUM_REQUESTS)
        result = served_plainly(poisson(rate, outputs, rng), max_rows=1)
        waits.append(float(result.e2e_s.mean()) - float(outputs.mean()) * STEP_S)
        utilisations.append(result.utilisation)
        # Utilisation law, exact for the run: throughput x mean service time.
        assert result.utilisation == pytest.approx(result.request_throughput * float(outputs.mean()) * STEP_S)
    assert_mean_is(waits, rate * second_moment / (2 * (1 - rho)))
    assert_mean_is(utilisations, rho)


def test_rows_without_limit_hold_as_many_requests_as_m_g_infinity() -> None:
    # Mean in system = lambda E[S]; an arrival also waits for the end of the step that runs, half a step on average.
    mean_tokens, rate = 40, 50.0
    in_flight = []
    for seed in range(NUM_RUNS):
        rng = np.random.default_rng(200 + seed)
        result = served_plainly(poisson(rate, rng.geometric(1 / mean_tokens, NUM_REQUESTS), rng), max_rows=1 << 20)
        middle = (result.arrival_s > 5) & (result.arrival_s < result.arrival_s[-1] - 5)  # neither filling nor draining
        in_flight.append(rate * float(result.e2e_s[middle].mean()))
    assert_mean_is(in_flight, rate * (mean_tokens + 0.5) * STEP_S)


def test_one_client_is_served_in_the_sum_of_its_own_times() -> None:
    rng = np.random.default_rng(3)
    ones = np.ones(500, np.int64)
    outputs = rng.integers(1, 200, 500)
    traffic = SimulatedTraffic(None, ones, outputs, ones - 1, ("all",))
    result = served_plainly(traffic, max_rows=8, concurrency=1)
    assert result.e2e_s.tolist() == pytest.approx((outputs * STEP_S).tolist())
    assert result.duration_s == pytest.approx(float(outputs.sum()) * STEP_S)
    assert result.utilisation == pytest.approx(1)
    assert result.mean_in_flight == pytest.approx(1)


@settings(deadline=None, max_examples=30)
@given(st.floats(0, 0.9), st.floats(0, 0.99), st.integers(1, 7), st.integers(2, 300), st.integers(0, 20))
def test_a_request_alone_is_never_slower_for_more_acceptance_or_faster_steps(
    alpha: float, portion: float, draft_len: int, output_tokens: int, seed: int
) -> None:
    one = np.ones(1, np.int64)
    traffic = SimulatedTraffic(np.zeros(1), one * 50, one * output_tokens, one - 1, ("all",))

    def seconds(alpha: float, times: AffineTimes) -> float:
        limits = SimulationSettings(1, 512, seed=seed)
        return float(simulate(traffic, times, [ChainAcceptance(alpha)], [plan_of((1, draft_len))], limits).e2e_s[0])

    slower, faster = AffineTimes(), AffineTimes(step_s=AffineTimes.step_s * (1 - portion))
    better = alpha + (1 - alpha) * portion
    assert seconds(better, slower) <= seconds(alpha, slower) * (1 + 1e-12)
    assert seconds(alpha, faster) <= seconds(alpha, slower) * (1 + 1e-12)


def test_throughput_at_saturation_rises_with_acceptance() -> None:
    """Over pairs of runs with the same requests and random numbers; a pair alone may differ by how rows meet."""
    ones = np.ones(400, np.int64)
    means = []
    for alpha in (0.2, 0.4, 0.6, 0.8):
        throughputs = []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            traffic = SimulatedTraffic(
                None, rng.integers(10, 800, 400), rng.geometric(1 / 120, 400), ones - 1, ("all",)
            )
            limits = SimulationSettings(16, 1024, concurrency=32, seed=seed)
            result = simulate(traffic, AffineTimes(), [ChainAcceptance(alpha)], [plan_of((1, 3))], limits)
            throughputs.append(result.output_throughput)
        means.append(float(np.mean(throughputs)))
    assert all(later > earlier * 0.995 for earlier, later in pairwise(means))
    assert means[-1] > 1.5 * means[0]
