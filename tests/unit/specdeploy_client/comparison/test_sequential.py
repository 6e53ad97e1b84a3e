"""A cell stops when it is decided, never at an odd block, and looking early raises no alarm that was not paid for."""

import itertools
import math

import numpy as np
import pytest

from helpers.virtual_time import VirtualServer, run_virtual
from specdeploy.run_contract import Arm, FailureKind, Load, MetricName, RequestRecord
from specdeploy_client.comparison.sequential import LOOKS, SequentialStop, final_confidence, look_confidence
from specdeploy_client.comparison.stats import Floats, Ints, RatioInterval, ratio_of_percentiles
from specdeploy_client.load.arms import PerRequestSwitch
from specdeploy_client.load.cell import Cell, CellRequest
from specdeploy_client.load.loadgen import CellRun, run_cell
from unit.specdeploy_client.fabricate import make_record


def _block(block: int, ratio: float, size: int = 10, noise: float = 0.05) -> list[RequestRecord]:
    rng = np.random.default_rng(block)
    return [
        make_record(
            (20, 100 * factor * rng.lognormal(0, noise)), (1, 4), arm=arm, block=block, index=block * size + index
        )
        for index in range(size)
        for arm, factor in ((Arm.OFF, 1.0), (Arm.ON, ratio))
    ]


def _stopped_at(stop: SequentialStop, ratio: float, num_blocks: int = 10) -> int | None:
    for block in range(num_blocks):
        for record in _block(block, ratio):
            stop.add(record)
        if stop.is_decided(10 * (block + 1)):
            return block + 1
    return None


def test_a_large_difference_is_decided_at_the_first_look() -> None:
    stop = SequentialStop(100, seed=0)
    assert _stopped_at(stop, 0.6) == 4
    assert stop.stopped_after == 40


def test_no_difference_runs_to_the_end() -> None:
    stop = SequentialStop(100, seed=0)
    assert _stopped_at(stop, 1.0) is None
    assert stop.stopped_after is None


def test_a_difference_that_a_gate_finds_too_small_is_decided_against_its_limit() -> None:
    assert _stopped_at(SequentialStop(100, seed=0, limit=0.6), 0.6) is None
    assert _stopped_at(SequentialStop(100, seed=0, limit=0.5), 0.6) == 4


def test_every_metric_must_be_decided() -> None:
    # Both arms have their first token after 20 ms.
    assert _stopped_at(SequentialStop(100, seed=0, metrics=(MetricName.E2E, MetricName.TTFT)), 0.6) is None
    assert _stopped_at(SequentialStop(100, seed=0, metrics=(MetricName.E2E, MetricName.TPOT)), 0.6) == 4


def test_looks_are_few_and_only_after_an_even_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def note(off: Floats, on: Floats, quantile: float, *rest: float, blocks: Ints) -> RatioInterval:
        looked.append(len(off))
        return ratio_of_percentiles(off, on, quantile, *rest, blocks=blocks)  # type: ignore[arg-type]

    monkeypatch.setattr("specdeploy_client.comparison.sequential.ratio_of_percentiles", note)
    assert _stopped_at(SequentialStop(100, seed=0), 1.0) is None
    assert looked == [40, 60, 80]
    looked.clear()
    assert (
        _stopped_at(SequentialStop(50, seed=0), 1.0, num_blocks=5) is None
    )  # 2: due at 40 %; 3 is odd; 4: both others
    assert looked == [20, 40]


def test_a_look_serves_all_that_are_due_and_the_end_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def note(off: Floats, on: Floats, quantile: float, *rest: float, blocks: Ints) -> RatioInterval:
        looked.append(len(off))
        return ratio_of_percentiles(off, on, quantile, *rest, blocks=blocks)  # type: ignore[arg-type]

    monkeypatch.setattr("specdeploy_client.comparison.sequential.ratio_of_percentiles", note)
    stop = SequentialStop(100, seed=0)
    for record in (*_block(0, 1.0), *_block(1, 1.0)):
        stop.add(record)
    assert not any(stop.is_decided(num_pairs) for num_pairs in (65, 70, 85, 90))
    assert looked == [20, 20]  # at 65 what was due at 40 and 60, at 85 what was due at 80
    short = SequentialStop(20, seed=0)
    assert _stopped_at(short, 0.5, num_blocks=2) is None
    assert short.stopped_after is None


def test_requests_without_an_answer_and_other_arms_are_no_pairs() -> None:
    stop = SequentialStop(100, seed=0)
    for block in range(4):
        for record in _block(block, 0.5):
            stop.add(record.model_copy(update={"error": "no", "failure": FailureKind.REFUSED}))
            stop.add(record.model_copy(update={"arm": Arm.FLOOR}))
    assert not stop.is_decided(40)
    nothing_yet = SequentialStop(100, seed=0)
    assert not nothing_yet.is_decided(40)


def test_all_looks_together_cost_what_the_last_one_gives_up() -> None:
    spent = len(LOOKS) * (1 - look_confidence(0.99)) + (1 - final_confidence(0.99))
    assert spent == pytest.approx(0.01)
    assert final_confidence(0.99) > 0.99
    assert look_confidence(0.99) > 0.999


def test_looking_early_raises_no_more_alarms_than_promised() -> None:
    confidence, num_runs, num_pairs = 0.8, 100, 60
    rng = np.random.default_rng(8)
    shares = (*LOOKS, 1.0)
    strict = (look_confidence(confidence),) * len(LOOKS)
    naive_alarms = alarms = 0
    for off, on in rng.lognormal(0.0, 0.1, (num_runs, 2, num_pairs)):

        def is_alarm(levels: tuple[float, ...], off: Floats = off, on: Floats = on) -> bool:
            looks = ((round(share * num_pairs), level) for share, level in zip(shares, levels, strict=True))
            return any(ratio_of_percentiles(off[:n], on[:n], 0.5, level).excludes(1.0) for n, level in looks)

        alarms += is_alarm((*strict, final_confidence(confidence)))
        naive_alarms += is_alarm((confidence,) * len(shares))
    assert alarms <= 32  # 20 expected at most; 33 or more have a chance of 0.002
    assert naive_alarms > 32  # what four looks at the nominal confidence would cost


def _run(effect: float, num_pairs: int = 100) -> tuple[CellRun, SequentialStop, int]:
    stop = SequentialStop(num_pairs, seed=0)
    numbers = itertools.count()

    def sink(record: RequestRecord) -> None:
        next(numbers)
        stop.add(record)

    requests = tuple(CellRequest(i, f"p{i}", f"prompt {i}", 16) for i in range(num_pairs + 4))
    cell = Cell("chat", Load(4), {Arm.OFF: 0, Arm.ON: 4}, requests[:num_pairs], requests[num_pairs:])
    run = run_virtual(
        lambda clock: run_cell(
            PerRequestSwitch(VirtualServer(clock, acceptance=0.6, on_factor=effect, request_sigma=0.05)),
            cell,
            sink,
            clock=clock,
            on_block_end=stop.is_decided,
        )
    )
    return run, stop, next(numbers)


def test_the_load_generator_ends_the_cell() -> None:
    run, stop, num_records = _run(effect=1.0)  # 2.3 tokens a step at the price of one
    assert run.is_stopped_early
    assert (run.num_pairs, stop.stopped_after, num_records) == (40, 40, 80)
    assert math.isclose(run.num_pairs / 100, LOOKS[0])
