"""How busy the client itself was: a client that is the bottleneck sends late and stamps messages late.

Two things are measured while requests run. The CPU share stands for a calibration against a server that answers at
once: everything between the sockets and the records runs in one event loop, so on one core, and the rate of messages at
which that core is full is what a calibration would find. A share of 0.8 is a run at 80 % of this ceiling, seen in the
very run, with its prompts, its messages and its machine, and no second run can differ from it. It is taken per arm,
because both share the time but not the messages. The wake-up lag is what such load does to the stamps.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from specdeploy.run_contract import Arm
from specdeploy_client.load.precise_timer import SleepUntil

PROBE_INTERVAL_NS = 20_000_000


class ClientLoad:
    """CPU time and wall time of the client by arm, and its wake-up lag, over the stretches that are `measured`.

    The lag is how much later than asked the event loop wakes up, what a message waits for when it arrives at that
    moment. It is asked for on a grid of `probe_interval_ns` (0: not at all) that does not move when the loop is late:
    the ticks that pass while it is blocked count too, each with its own wait, or a loop that is blocked for long would
    be looked at least often when it is worst.
    """

    def __init__(
        self,
        sleep_until: SleepUntil,
        clock: Callable[[], int] = time.monotonic_ns,
        cpu_clock: Callable[[], int] = time.process_time_ns,
        probe_interval_ns: int = PROBE_INTERVAL_NS,
    ) -> None:
        self._probe_interval_ns = probe_interval_ns
        self._sleep_until = sleep_until
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._wall_ns: dict[Arm, int] = {}
        self._cpu_ns: dict[Arm, int] = {}
        self._tick_ns = 0
        self.lags_ns: list[int] = []

    @asynccontextmanager
    async def measured(self, arm: Arm) -> AsyncIterator[None]:
        """Count what happens inside, as of `arm`."""
        wall, cpu = self._clock(), self._cpu_clock()
        self._tick_ns = wall + self._probe_interval_ns
        probe = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self._wall_ns[arm] = self._wall_ns.get(arm, 0) + self._clock() - wall
            self._cpu_ns[arm] = self._cpu_ns.get(arm, 0) + self._cpu_clock() - cpu
            self._count_ticks()
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)

    @property
    def cpu_shares(self) -> dict[Arm, float]:
        """CPU time of this process / wall time, 1 is one core, of every arm that was measured."""
        return {arm: self._cpu_ns[arm] / wall_ns for arm, wall_ns in self._wall_ns.items() if wall_ns > 0}

    @property
    def wake_up_lag_p99_ns(self) -> int | None:
        """The smallest lag that at least 99 % of the probes did not exceed. None without a probe."""
        if not self.lags_ns:
            return None
        ordered = sorted(self.lags_ns)
        return ordered[(99 * len(ordered) + 99) // 100 - 1]

    async def _watch(self) -> None:
        while self._probe_interval_ns:
            await self._sleep_until(self._tick_ns)
            self._count_ticks()

    def _count_ticks(self) -> None:
        """The wait of every tick that is over and not counted yet."""
        now = self._clock()
        while self._probe_interval_ns and self._tick_ns <= now:
            self.lags_ns.append(now - self._tick_ns)
            self._tick_ns += self._probe_interval_ns


@contextmanager
def frozen_garbage() -> Iterator[None]:
    """Leave everything that lives now out of the garbage collections that come while measuring.

    What the imports alone leave alive makes a full collection stop the process for a long moment (measured: 46 ms for
    100,000 objects).
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
