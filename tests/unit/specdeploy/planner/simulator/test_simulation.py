import numpy as np
import pytest

from helpers.simulator_standins import AffineTimes, ChainAcceptance, constant_times, plan_of, traffic_of_lists
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.result import Refusal, SimulationResult
from specdeploy.planner.simulator.settings import SimulationSettings
from specdeploy.planner.simulator.simulation import simulate
from specdeploy.planner.step_times import StepLoad, StepTime
from specdeploy.run_contract import MetricName, Objective, Percentile

OFF = plan_of((1, 0))


def mixed_traffic(num_requests: int = 300, rate: float = 20.0, seed: int = 5) -> SimulatedTraffic:
    rng = np.random.default_rng(seed)
    return SimulatedTraffic(
        np.cumsum(rng.exponential(1 / rate, num_requests)),
        rng.integers(1, 3000, num_requests),
        rng.integers(1, 400, num_requests),
        np.zeros(num_requests, np.int64),
        ("all",),
    )


def run_plain(traffic: SimulatedTraffic, settings: SimulationSettings, step_s: float = 1.0) -> SimulationResult:
    return simulate(traffic, constant_times(step_s), [None], [OFF], settings)


def test_one_request_by_hand() -> None:
    # 10 prompt tokens in chunks of 4: three steps to the first token, two more tokens after it.
    result = run_plain(traffic_of_lists([2.0], [10], [3]), SimulationSettings(4, 4))
    assert result.ttft_s.tolist() == [3.0]
    assert result.e2e_s.tolist() == [5.0]
    assert result.tpot_s.tolist() == [1.0]
    assert (result.num_steps.tolist(), result.num_engine_steps) == ([3], 5)
    assert (result.duration_s, result.busy_s, result.mean_in_flight) == (5.0, 5.0, 1.0)
    assert result.output_throughput == 3 / 5


def test_cached_tokens_and_context_are_paid_for() -> None:
    times = AffineTimes(0, 0, 0, 0, 0, 0, kv_token_s=1.0, prefill_context_s=100.0)
    result = simulate(traffic_of_lists([0.0], [10], [4]), times, [None], [OFF], SimulationSettings(1, 4))
    assert result.ttft_s.tolist() == [100 * (0 + 4 + 8)]
    assert (result.e2e_s - result.ttft_s).tolist() == [10 + 11 + 12]


def test_prompts_share_a_chunk_and_decoding_goes_on_beside_them() -> None:
    class Recorded(AffineTimes):
        loads: list[StepLoad] = []  # noqa: RUF012  # one per test

        def time(self, load: StepLoad) -> StepTime:
            self.loads.append(load)
            return StepTime(1.0, 0.0)

    times = Recorded()
    simulate(traffic_of_lists([0, 0, 0], [3, 3, 5], [4, 4, 4]), times, [None], [OFF], SimulationSettings(4, 8))
    assert [(load.num_rows, load.prefill_tokens) for load in times.loads] == [(0, 8), (2, 3), (3, 0), (1, 0)]


def test_a_request_waits_for_memory_and_is_not_overtaken() -> None:
    traffic = traffic_of_lists([0, 0, 0], [6, 6, 1], [4, 4, 1])
    result = run_plain(traffic, SimulationSettings(8, 100, kv_tokens=15))
    assert result.ttft_s.tolist() == [1.0, 5.0, 5.0]  # the third would fit beside the first


def test_memory_is_kept_for_the_deepest_draft() -> None:
    traffic = traffic_of_lists([0, 0], [6, 6], [2, 2])
    settings = SimulationSettings(8, 100, kv_tokens=18)
    on = simulate(traffic, constant_times(1.0), [ChainAcceptance(0.5)], [plan_of((1, 4))], settings)
    assert run_plain(traffic, settings).ttft_s.tolist() == [1.0, 1.0]
    assert on.ttft_s.tolist() == [1.0, 3.0]


def test_what_never_fits_is_refused_and_counted() -> None:
    result = run_plain(traffic_of_lists([0, 0], [20, 5], [5, 5]), SimulationSettings(2, 100, kv_tokens=24))
    assert result.refusals == {Refusal.NEVER_FITS: 1}
    assert (result.num_refused, result.is_served.tolist()) == (1, [False, True])
    assert np.isnan(result.e2e_s[0])
    assert not result.is_overloaded


def test_a_full_queue_refuses() -> None:
    traffic = traffic_of_lists([0, 0.5, 0.6, 0.7], [1] * 4, [10] * 4)
    result = run_plain(traffic, SimulationSettings(1, 100, max_queue=1))
    assert result.refusal.tolist() == [0, 0, Refusal.QUEUE_FULL, Refusal.QUEUE_FULL]
    assert result.is_overloaded
    assert result.request_throughput == pytest.approx(2 / 20)


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    traffic = traffic_of_lists(None, [1] * 6, [4] * 6)
    result = run_plain(traffic, SimulationSettings(8, 100, concurrency=2))
    assert result.mean_in_flight == 2.0
    assert result.arrival_s.tolist() == [0, 0, 4, 4, 8, 8]


def test_a_closed_loop_goes_on_behind_refused_requests() -> None:
    traffic = traffic_of_lists(None, [1, 50, 50, 1], [4] * 4)
    result = run_plain(traffic, SimulationSettings(8, 100, kv_tokens=20, concurrency=1))
    assert result.refusal.tolist() == [0, Refusal.NEVER_FITS, Refusal.NEVER_FITS, 0]
    assert result.duration_s == 8.0


def test_draft_len_0_is_plain_decoding_bit_for_bit() -> None:
    traffic = mixed_traffic()
    settings = SimulationSettings(16, 512, kv_tokens=60_000)
    plain = simulate(traffic, AffineTimes(), [None], [OFF], settings)
    undrafted = simulate(traffic, AffineTimes(), [ChainAcceptance(0.9)], [OFF], settings)
    for column in ("ttft_s", "e2e_s", "tpot_s", "num_steps"):
        assert getattr(plain, column).tobytes() == getattr(undrafted, column).tobytes()
    assert plain.num_steps.tolist() == traffic.output_tokens.tolist()


def test_a_seed_gives_the_same_result_again_and_another_one_another() -> None:
    traffic, plan = mixed_traffic(), plan_of((1, 4), (6, 2), (12, 0))
    runs = [
        simulate(traffic, AffineTimes(), [ChainAcceptance(0.7)], [plan], SimulationSettings(16, 512, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert runs[0].e2e_s.tobytes() == runs[1].e2e_s.tobytes()
    assert runs[0].e2e_s.tobytes() != runs[2].e2e_s.tobytes()


def test_draft_lengths_follow_the_load() -> None:
    # Alone K 4 with everything accepted: 5 tokens a step. With company K 0.
    traffic = traffic_of_lists([0.0, 2.5], [1, 1], [21, 3])
    plan = plan_of((1, 4), (2, 0))
    result = simulate(traffic, constant_times(1.0), [ChainAcceptance(1 - 1e-12)], [plan], SimulationSettings(4, 100))
    # Steps 2 and 3 do half of its four steps, in company 10 tokens would be 10 more; after 3 of them it is alone again.
    assert result.num_steps.tolist() == [1 + 2 + 3 + 2, 3]
    assert result.e2e_s.tolist() == [8.0, 3.5]


def test_every_segment_follows_its_own_plan() -> None:
    traffic = traffic_of_lists([0, 0], [1, 1], [11, 11], [0, 1], ("chat", "code"))
    model = ChainAcceptance(1 - 1e-12)
    plans = [plan_of((1, 0), segment="chat"), plan_of((1, 4), segment="code")]
    result = simulate(traffic, constant_times(1.0), [None, model], plans, SimulationSettings(4, 100))
    assert result.num_steps.tolist() == [11, 3]
    assert result.percentile(MetricName.TPOT, Percentile.P50, "code") == pytest.approx(0.2)
    with pytest.raises(KeyError):
        result.percentile(MetricName.TPOT, 0.5, "maths")


def test_goodput_counts_what_met_every_objective() -> None:
    result = run_plain(traffic_of_lists([0, 0, 0], [1] * 3, [1, 3, 9]), SimulationSettings(1, 100))
    ttft = Objective(metric=MetricName.TTFT, max_ms=2500)
    assert result.ttft_s.tolist() == [1, 2, 5]
    assert result.goodput([ttft]) == pytest.approx(2 / 13)
    assert result.goodput([ttft, Objective(metric=MetricName.TPOT, max_ms=999)]) == pytest.approx(1 / 13)
    assert result.goodput([]) == result.request_throughput


def test_overload_is_a_queue_that_outgrows_the_rows() -> None:
    arrivals = np.linspace(0, 30, 60).tolist()
    crowd = traffic_of_lists(arrivals, [1] * 60, [10] * 60)
    assert run_plain(crowd, SimulationSettings(4, 100)).is_overloaded
    assert not run_plain(crowd, SimulationSettings(64, 100)).is_overloaded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acceptance": [], "plans": [OFF]}, "one per segment"),
        ({"acceptance": [None], "plans": [plan_of((1, 2))]}, "no acceptance model"),
    ],
)
def test_what_does_not_match_is_refused(change: dict[str, list[None]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(traffic_of_lists([0], [1], [1]), constant_times(1.0), settings=SimulationSettings(1, 1), **change)  # type: ignore[arg-type]


def test_lengths_without_arrivals_need_a_concurrency() -> None:
    with pytest.raises(ValueError, match="concurrency"):
        run_plain(traffic_of_lists(None, [1], [1]), SimulationSettings(1, 1))


def test_impossible_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="max_rows: 0"):
        SimulationSettings(0, 1)
