"""Blocks and send times: fixed beforehand, the same for both arms, with the distribution that was asked for."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from specdeploy.run_contract import Arm, Load
from specdeploy_client.load.arrivals import ArrivalPattern, Arrivals, plan_blocks, plan_offsets

OFF_AND_ON = (Arm.OFF, Arm.ON)
LOADS = [
    (20, Load(1)),
    (20, Load(4)),
    (100, Load(8)),
    (7, Load(3)),
    (1, Load(1)),
    (33, Load(2)),
    (100, Load(None, 2.0)),
    (9, Load(None, 50.0)),
]


def _gaps(pattern: ArrivalPattern, smoothness: float = 1.0, block: int = 0) -> npt.NDArray[np.float64]:
    offsets = plan_offsets(Arrivals(pattern, seed=3, smoothness=smoothness), "chat", Load(None, 50.0), block, 20_000)
    assert all(later >= earlier for earlier, later in pairwise(offsets))
    return np.diff(np.array(offsets)) / 1e9


@pytest.mark.parametrize(("num_requests", "load"), LOADS)
def test_blocks_hold_every_request_once_per_arm_and_alternate(num_requests: int, load: Load) -> None:
    blocks = plan_blocks(num_requests, load, OFF_AND_ON)
    for arm in OFF_AND_ON:
        indices = [
            block.first_index + offset for block in blocks if block.arm is arm for offset in range(block.num_requests)
        ]
        assert indices == list(range(num_requests))
    firsts = [blocks[position].arm for position in range(0, len(blocks), 2)]
    assert all(earlier is not later for earlier, later in pairwise(firsts))
    assert len(firsts) % 2 == 0 or len(firsts) == 1
    if len(firsts) > 1:
        smallest = min(block.num_requests for block in blocks)
        assert smallest >= (5 if load.concurrency is None else load.concurrency)


@pytest.mark.parametrize(
    ("num_requests", "rate", "num_blocks"),
    [(9, 2.0, 1), (10, 2.0, 2), (20, 2.0, 2), (100, 2.0, 10), (100, 8.0, 2), (60, 60.0, 2)],
)
def test_each_arm_of_an_open_loop_goes_first_once_if_there_is_enough_for_it(
    num_requests: int, rate: float, num_blocks: int
) -> None:
    assert len(plan_blocks(num_requests, Load(None, rate), OFF_AND_ON)) == 2 * num_blocks


def test_no_more_blocks_than_allowed_and_none_inside_a_session() -> None:
    assert len(plan_blocks(400, Load(1), OFF_AND_ON, max_blocks=4)) == 8
    sessions = {index for index in range(100) if index % 5}  # five requests each: only 0, 5, 10, ... may begin a block
    blocks = plan_blocks(100, Load(1), OFF_AND_ON, max_blocks=6, inseparable=sessions)
    assert len(blocks) == 12
    assert all(block.first_index % 5 == 0 for block in blocks)
    assert sum(block.num_requests for block in blocks) == 200
    one_session = plan_blocks(50, Load(1), OFF_AND_ON, inseparable=set(range(1, 50)))
    assert [(block.arm, block.num_requests) for block in one_session] == [(Arm.OFF, 50), (Arm.ON, 50)]


def test_constant_gaps_are_exact() -> None:
    offsets = plan_offsets(Arrivals(ArrivalPattern.CONSTANT, seed=0), "chat", Load(None, 8.0), 0, 5)
    assert offsets == (0, 125_000_000, 250_000_000, 375_000_000, 500_000_000)


@pytest.mark.parametrize(
    ("pattern", "smoothness", "variation"),
    [
        (ArrivalPattern.POISSON, 1.0, 1.0),
        (ArrivalPattern.POISSON, 9.0, 1.0),  # smoothness belongs to gamma
        (ArrivalPattern.GAMMA, 1.0, 1.0),
        (ArrivalPattern.GAMMA, 4.0, 0.5),  # the coefficient of variation of a gamma is 1 / sqrt(shape)
        (ArrivalPattern.GAMMA, 0.25, 2.0),
    ],
)
def test_random_gaps_have_the_rate_and_the_spread(pattern: ArrivalPattern, smoothness: float, variation: float) -> None:
    gaps = _gaps(pattern, smoothness)
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)


def test_times_are_a_function_of_seed_cell_and_block() -> None:
    def plan(seed: int = 0, cell: str = "chat", rate: float = 5.0, block: int = 0) -> tuple[int, ...]:
        return plan_offsets(Arrivals(ArrivalPattern.POISSON, seed), cell, Load(None, rate), block, 50)

    assert plan() == plan()
    assert len({plan(), plan(seed=1), plan(cell="code"), plan(block=1)}) == 4


def test_what_is_measured_has_its_rate_from_the_first_request_on() -> None:
    ramped = Arrivals(ArrivalPattern.CONSTANT, seed=0, ramp_s=10.0)
    assert plan_offsets(ramped, "chat", Load(None, 4.0), 0, 3) == (0, 250_000_000, 500_000_000)


@pytest.mark.parametrize(("num_requests", "num_blocks"), [(127, 1), (128, 2), (255, 2), (256, 2), (512, 4)])
def test_two_rounds_of_all_workers_are_enough_for_each_arm_to_go_first(num_requests: int, num_blocks: int) -> None:
    blocks = plan_blocks(num_requests, Load(64), OFF_AND_ON)
    assert [block.arm for block in blocks[:4]] == [Arm.OFF, Arm.ON, Arm.ON, Arm.OFF][: len(blocks)]
    assert len(blocks) == 2 * num_blocks


@pytest.mark.parametrize(
    ("arrivals", "load"),
    [
        (Arrivals(ArrivalPattern.TRACE, 0), Load(None, 1.0)),
        (Arrivals(ArrivalPattern.POISSON, 0), Load(4)),
        (Arrivals(ArrivalPattern.GAMMA, 0, smoothness=0.0), Load(None, 1.0)),
        (Arrivals(ArrivalPattern.GAMMA, 0, smoothness=float("nan")), Load(None, 1.0)),
    ],
)
def test_what_has_no_arrivals_is_refused(arrivals: Arrivals, load: Load) -> None:
    with pytest.raises(ValueError, match="no arrivals"):
        plan_offsets(arrivals, "chat", load, 0, 3)
