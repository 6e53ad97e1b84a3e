"""The client's own load: only measured stretches count, and a blocked loop is seen."""

import asyncio
import gc
import time

import pytest

from helpers.virtual_time import Clock, VirtualTimeLoop, run_virtual
from specdeploy.run_contract import Arm
from specdeploy_client.load.client_load import PROBE_INTERVAL_NS, ClientLoad, frozen_garbage
from specdeploy_client.load.precise_timer import open_timer


def _block_for(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.advance(round(seconds * 1e9))


def test_only_measured_stretches_count() -> None:
    cpu = [0]

    async def main(clock: Clock) -> ClientLoad:
        with open_timer(clock) as sleep_until:
            load = ClientLoad(sleep_until, clock, lambda: cpu[0])
            assert (load.cpu_shares, load.wake_up_lag_p99_ns) == ({}, None)
            for arm, busy_ns in ((Arm.OFF, 250_000_000), (Arm.ON, 100_000_000), (Arm.OFF, 350_000_000)):
                async with load.measured(arm):
                    await asyncio.sleep(1.0)
                    cpu[0] += busy_ns
                cpu[0] += 10**12
                _block_for(100.0)
        return load

    load = run_virtual(main)
    assert load.cpu_shares == pytest.approx({Arm.OFF: 0.3, Arm.ON: 0.1})
    assert load.wake_up_lag_p99_ns == 0
    assert len(load.lags_ns) == 150


def test_a_blocked_loop_shows_as_lag() -> None:
    async def main(clock: Clock) -> ClientLoad:
        with open_timer(clock) as sleep_until:
            load = ClientLoad(sleep_until, clock)
            async with load.measured(Arm.ON):
                for _ in range(30):
                    await asyncio.sleep(0.1)
                    _block_for(0.05)
        return load

    load = run_virtual(main)
    # 0.1 s without and 0.05 s with a blocked loop in turn: five ticks on time, then two or three that wait.
    assert max(load.lags_ns) == load.wake_up_lag_p99_ns == 50_000_000
    assert len(load.lags_ns) == 30 * 150 // 20


def test_every_tick_of_a_long_stop_waits_and_one_at_the_end_is_seen() -> None:
    async def main(clock: Clock) -> ClientLoad:
        with open_timer(clock) as sleep_until:
            load = ClientLoad(sleep_until, clock)
            async with load.measured(Arm.ON):
                await asyncio.sleep(2.1)
                _block_for(0.3)
                await asyncio.sleep(2.1)
                _block_for(0.3)
        return load

    load = run_virtual(main)
    assert len(load.lags_ns) == 4800 // 20
    waits = sorted(lag for lag in load.lags_ns if lag)
    assert waits[-1] == 300_000_000
    assert 25 <= len(waits) <= 32  # 15 ticks in each stop
    assert load.wake_up_lag_p99_ns is not None
    assert load.wake_up_lag_p99_ns > 250_000_000


@pytest.mark.parametrize(("lags", "p99"), [([7], 7), ([*range(100)], 98), ([*range(101)], 99), ([5, 1], 5)])
def test_p99_is_the_smallest_lag_that_99_percent_do_not_exceed(lags: list[int], p99: int) -> None:
    async def never(due_ns: int) -> None:
        raise AssertionError

    load = ClientLoad(never)
    load.lags_ns = lags
    assert load.wake_up_lag_p99_ns == p99


def test_the_real_process_is_measured() -> None:
    async def main() -> ClientLoad:
        with open_timer() as sleep_until:
            load = ClientLoad(sleep_until)
            async with load.measured(Arm.ON):
                await asyncio.sleep(0.03)
                end = time.monotonic_ns() + 2 * PROBE_INTERVAL_NS
                while time.monotonic_ns() < end:
                    pass
                await asyncio.sleep(0.001)
        return load

    load = asyncio.run(main())
    assert 0.1 < load.cpu_shares[Arm.ON] < 1.5
    assert max(load.lags_ns) > 10_000_000


def test_what_lives_is_left_out_of_collections_while_measuring() -> None:
    before = gc.get_freeze_count()
    with frozen_garbage():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0
