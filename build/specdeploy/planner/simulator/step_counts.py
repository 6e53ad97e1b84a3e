"""How many steps each request needs at each K: drawn ahead, a window of requests at a time."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdeploy.planner.simulated_traffic import SimulatedTraffic

_WINDOW = 4096  # requests drawn at once: memory stays bounded, and one draw is paid for by many requests


class StepAcceptance(Protocol):
    """What the simulator asks of an acceptance model."""

    def draw_steps(
        self, output_tokens: NDArray[np.int64], draft_len: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Steps [N] that requests of `output_tokens` [N] need for all but their first one."""
        ...

    def mean_draft_tokens(self, draft_len: int) -> float:
        """Drafted tokens per row and step."""
        ...


class StepCounts:
    """Decoding steps of requests that are asked for in rising order.

    A request's random numbers belong to the seed, its window and its segment, so that every K and every run of the same
    seed draws from the same ones (common random numbers): arms are compared on the same luck.
    """

    def __init__(
        self,
        traffic: SimulatedTraffic,
        choices: Sequence[Sequence[int]],
        acceptance: Sequence[StepAcceptance | None],
        seed: int,
    ) -> None:
        """`choices` and `acceptance`: every K of a segment, and its model. Raises ValueError for a K without one."""
        for name, draft_lens, model in zip(traffic.segment_names, choices, acceptance, strict=True):
            if model is None and any(draft_lens):
                raise ValueError(f"segment {name}: drafts, and has no acceptance model")
        self._traffic = traffic
        self._choices = choices
        self._acceptance = acceptance
        self._seed = seed
        self._start = self._end = 0
        self._rows: list[list[int]] = []

    def of(self, index: int) -> list[int]:
        """Steps of request `index` for the output behind its first token, one entry per choice of its segment."""
        if index >= self._end:
            self._draw(index // _WINDOW)
        return self._rows[index - self._start]

    def _draw(self, window: int) -> None:
        self._start, self._end = window * _WINDOW, (window + 1) * _WINDOW
        segment = self._traffic.segment[self._start : self._end]
        outputs = self._traffic.output_tokens[self._start : self._end]
        steps = np.zeros((len(outputs), max(len(draft_lens) for draft_lens in self._choices)), np.int64)
        for number, draft_lens in enumerate(self._choices):
            places = np.flatnonzero(segment == number)
            for position, draft_len in enumerate(draft_lens):
                rng = np.random.default_rng((self._seed, window, number))
                steps[places, position] = self._steps(number, outputs[places], draft_len, rng)
        self._rows = steps.tolist()

    def _steps(
        self, number: int, outputs: NDArray[np.int64], draft_len: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        model = self._acceptance[number]
        if model is None or not draft_len or not len(outputs):
            return outputs - 1
        steps = model.draw_steps(outputs, draft_len, rng)
        if ((steps > outputs - 1) | (steps < np.minimum(outputs - 1, 1))).any():
            raise ValueError(f"draw_steps at K {draft_len}: a step gives at least one token, so 1..output_tokens - 1")
        return steps
