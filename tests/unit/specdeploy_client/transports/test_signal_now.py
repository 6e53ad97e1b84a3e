"""The awaitable that resumes its waiter inside the callback that has news."""

import asyncio

import pytest

from specdeploy_client.transports.signal_now import Signal


def test_the_waiter_runs_before_set_returns() -> None:
    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        signal, seen = Signal(loop), []

        async def wait_twice() -> None:
            for number in range(2):
                await signal
                seen.append(f"resumed {number}")

        def tell() -> None:
            signal.set()
            seen.append("told")

        task = asyncio.create_task(wait_twice())
        await asyncio.sleep(0)
        loop.call_soon(tell)
        loop.call_soon(tell)
        await task
        await asyncio.sleep(0)
        return seen

    assert asyncio.run(run()) == ["resumed 0", "told", "resumed 1", "told"]


def test_set_without_a_waiter_is_nothing() -> None:
    async def run() -> None:
        signal = Signal(asyncio.get_running_loop())
        signal.set()
        signal.set()
        assert not signal.cancel()

    asyncio.run(run())


def test_a_waiter_can_be_cancelled_and_another_may_wait_after_it() -> None:
    async def run() -> str:
        loop = asyncio.get_running_loop()
        signal = Signal(loop)

        async def wait() -> str:
            await signal
            return "resumed"

        first = asyncio.create_task(wait())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(wait())
        await asyncio.sleep(0)
        loop.call_soon(signal.set)
        return await second

    assert asyncio.run(run()) == "resumed"


def test_a_timeout_ends_the_wait() -> None:
    async def run() -> None:
        signal = Signal(asyncio.get_running_loop())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await signal

    asyncio.run(run())
