"""Who sends requests: arrivals that are fixed beforehand, or clients that wait for their answer."""

import math
from typing import Protocol

from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner.simulator.columns import seconds


class Source(Protocol):
    """Sends requests 0..N - 1 in order. `next_s`: when the next one comes, infinite where none does by itself."""

    next_s: float

    def take(self) -> tuple[int, float]:
        """The next request and when it was sent."""
        ...

    def answer(self, now_s: float) -> None:
        """One request was served, or refused, at `now_s`."""
        ...


class OpenLoop:
    """Requests come at their arrival times, whatever the engine does. ValueError without arrivals."""

    def __init__(self, traffic: SimulatedTraffic) -> None:
        if traffic.arrival_s is None:
            raise ValueError("a traffic without arrivals needs a concurrency")
        self._arrivals = seconds(traffic.arrival_s)
        self._taken = 0
        self.next_s = self._arrivals[0]

    def take(self) -> tuple[int, float]:
        """As `Source.take`."""
        index, arrival_s = self._taken, self.next_s
        self._taken += 1
        self.next_s = self._arrivals[self._taken] if self._taken < len(self._arrivals) else math.inf
        return index, arrival_s

    def answer(self, now_s: float) -> None:
        """Changes nothing."""


class ClosedLoop:
    """`concurrency` clients: all send at 0, each one again as soon as it is answered."""

    def __init__(self, num_requests: int, concurrency: int) -> None:
        self._num_requests = num_requests
        self._taken = 0
        self._idle = concurrency
        self._idle_s = 0.0
        self.next_s = 0.0

    def take(self) -> tuple[int, float]:
        """As `Source.take`."""
        index = self._taken
        self._taken += 1
        self._idle -= 1
        self._plan_next()
        return index, self._idle_s

    def answer(self, now_s: float) -> None:
        """The client is free again."""
        self._idle += 1
        self._idle_s = now_s
        self._plan_next()

    def _plan_next(self) -> None:
        self.next_s = self._idle_s if self._idle and self._taken < self._num_requests else math.inf


def source_of(traffic: SimulatedTraffic, concurrency: int | None) -> Source:
    """A closed loop of `concurrency` clients; None: the arrivals of `traffic`, ValueError where it has none."""
    return OpenLoop(traffic) if concurrency is None else ClosedLoop(traffic.num_requests, concurrency)
