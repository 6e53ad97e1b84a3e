"""Sleeping until a moment, on the real clock and on a made-up one."""

import asyncio
import sys
import time

import pytest

from helpers.virtual_time import Clock, VirtualTimeLoop, run_virtual
from specdeploy_client.load.precise_timer import open_timer

MS = 1_000_000


def test_sleepers_wake_in_their_order_and_never_early() -> None:
    async def main() -> tuple[list[int], list[int]]:
        woken: list[int] = []
        lags: list[int] = []
        with open_timer() as sleep_until:
            start = time.monotonic_ns()

            async def sleep(milliseconds: int) -> None:
                await sleep_until(start + milliseconds * MS)
                lags.append(time.monotonic_ns() - start - milliseconds * MS)
                woken.append(milliseconds)

            await asyncio.gather(*map(sleep, (30, 10, 20, 0, 10, -5)))
        return woken, lags

    woken, lags = asyncio.run(main())
    assert woken == [0, -5, 10, 10, 20, 30]
    assert min(lags) >= 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="timer descriptors are Linux's")
def test_it_does_not_wait_for_whole_milliseconds() -> None:
    async def main() -> list[int]:
        lags: list[int] = []
        with open_timer() as sleep_until:
            for _ in range(20):
                due = time.monotonic_ns() + 1_300_000
                await sleep_until(due)
                lags.append(time.monotonic_ns() - due)
        return lags

    # asyncio's timers are 0.7 ms late here at best, every time; a busy machine is not busy every time.
    assert min(asyncio.run(main())) < 500_000


def test_a_cancelled_sleeper_does_not_hold_up_the_others() -> None:
    async def main() -> bool:
        with open_timer() as sleep_until:
            start = time.monotonic_ns()
            cancelled = asyncio.ensure_future(sleep_until(start + 10 * MS))
            other = asyncio.ensure_future(sleep_until(start + 20 * MS))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.wait_for(other, 5.0)
            return cancelled.cancelled()

    assert asyncio.run(main())


def test_an_earlier_sleeper_may_come_later() -> None:
    async def main() -> list[str]:
        woken: list[str] = []
        with open_timer() as sleep_until:
            start = time.monotonic_ns()

            async def sleep(name: str, milliseconds: int) -> None:
                await sleep_until(start + milliseconds * MS)
                woken.append(name)

            late = asyncio.create_task(sleep("late", 40))
            await asyncio.sleep(0.005)
            await asyncio.gather(late, sleep("early", 15))
        return woken

    assert asyncio.run(main()) == ["early", "late"]


def test_a_made_up_clock_is_followed_exactly() -> None:
    async def main(clock: Clock) -> list[int]:
        times: list[int] = []
        with open_timer(clock) as sleep_until:
            for due in (VirtualTimeLoop.START_NS + 1, VirtualTimeLoop.START_NS + 3_600 * 1000 * MS, 5):
                await sleep_until(due)
                times.append(clock() - VirtualTimeLoop.START_NS)
        return times

    assert run_virtual(main) == [1, 3_600 * 1000 * MS, 3_600 * 1000 * MS]
