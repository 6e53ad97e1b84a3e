import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.simulator_standins import ChainAcceptance
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.step_counts import StepCounts

WINDOW = 4096


def traffic_of(num_requests: int) -> SimulatedTraffic:
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 60, num_requests)
    return SimulatedTraffic(None, lengths, lengths, rng.integers(0, 2, num_requests), ("chat", "code"))


def test_every_request_gets_the_steps_of_its_segment_window_by_window() -> None:
    traffic, chat, code = traffic_of(WINDOW + 500), ChainAcceptance(0.7), ChainAcceptance(0.3)
    counts = StepCounts(traffic, [(0, 2, 4), (3,)], [chat, code], seed=9)
    drawn = [counts.of(index) for index in range(traffic.num_requests)]
    for window in (0, 1):
        part = slice(window * WINDOW, (window + 1) * WINDOW)
        outputs, segment = traffic.output_tokens[part], traffic.segment[part]
        for number, position, model, draft_len in ((0, 1, chat, 2), (0, 2, chat, 4), (1, 0, code, 3)):
            rng = np.random.default_rng((9, window, number))
            expected = model.draw_steps(outputs[segment == number], draft_len, rng)
            seen = [steps[position] for steps, one in zip(drawn[part], segment, strict=True) if one == number]
            assert seen == expected.tolist()
        assert [steps[0] for steps, one in zip(drawn[part], segment, strict=True) if one == 0] == (
            outputs[segment == 0] - 1
        ).tolist()


def test_the_luck_of_a_request_is_the_same_at_every_draft_len() -> None:
    traffic, model = traffic_of(200), ChainAcceptance(0.8)
    shallow, deep = (StepCounts(traffic, [(k,), (k,)], [model, model], seed=3) for k in (2, 5))
    assert all(deep.of(index)[0] <= shallow.of(index)[0] for index in range(200))


def test_a_model_that_takes_more_steps_than_tokens_is_refused() -> None:
    class Slow(ChainAcceptance):
        def draw_steps(
            self, output_tokens: NDArray[np.int64], draft_len: int, rng: np.random.Generator
        ) -> NDArray[np.int64]:
            return output_tokens

    with pytest.raises(ValueError, match="at least one token"):
        StepCounts(traffic_of(10), [(1,), (1,)], [Slow(0.5), Slow(0.5)], seed=0).of(0)
