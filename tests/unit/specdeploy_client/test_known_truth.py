"""Planted differences are found and none is found where none is, from the load generator to the comparison.

A few seeds in virtual time; benchmarks/client/known_truth.py runs a hundred and more.
"""

import pytest

from helpers.virtual_time import VirtualServer, run_virtual
from specdeploy.run_contract import Arm, Load, MetricName, Percentile
from specdeploy_client.comparison.compare import compare_cell
from specdeploy_client.comparison.voids import VoidFacts
from specdeploy_client.load.arms import PerRequestSwitch
from specdeploy_client.load.cell import Cell, CellRequest
from specdeploy_client.load.loadgen import run_cell
from specdeploy_client.records.table import ArmColumns, RecordTable

NUM_PAIRS = 240
# Rarely does a draft come true, and a step costs what it then brings: both arms are equally fast.
ACCEPTANCE, TOKENS_PER_STEP = 0.02, sum(0.02**position for position in range(5))


def _measure(effect: float, seed: int) -> dict[Arm, ArmColumns]:
    requests = tuple(CellRequest(i, f"p{i}", f"prompt {i}", 16) for i in range(NUM_PAIRS + 4))
    cell = Cell("chat", Load(4), {Arm.OFF: 0, Arm.ON: 4}, requests[:NUM_PAIRS], requests[NUM_PAIRS:])
    records: list = []  # type: ignore[type-arg]
    run_virtual(
        lambda clock: run_cell(
            PerRequestSwitch(
                VirtualServer(
                    clock,
                    acceptance=ACCEPTANCE,
                    verify_cost=TOKENS_PER_STEP,
                    on_factor=effect,
                    prompt_sigma=0.1,
                    request_sigma=0.05,
                    step_sigma=0.15,
                    seed=seed,
                )
            ),
            cell,
            records.append,
            clock=clock,
        )
    )
    (arms,) = RecordTable.from_records(records).cells.values()
    return arms


@pytest.mark.parametrize(("effect", "outcome"), [(1.05, "slower"), (0.9, "faster"), (1.0, "undecided")])
def test_what_was_planted_is_found(effect: float, outcome: str) -> None:
    for seed in range(3):
        arms = _measure(effect, seed)
        compared = compare_cell(
            ("chat", Load(4)),
            arms[Arm.OFF],
            arms[Arm.ON],
            facts=VoidFacts(concurrency=4, prefix_cache="off"),
            seed=seed,
        )
        (e2e,) = (c for c in compared if (c.metric, c.percentile) == (MetricName.E2E, Percentile.P50))
        assert e2e.void_reasons == ()
        assert e2e.outcome == outcome
        assert e2e.num_pairs == NUM_PAIRS
        assert e2e.ci_low is not None
        assert e2e.ci_high is not None
        assert e2e.ci_low < effect < e2e.ci_high
