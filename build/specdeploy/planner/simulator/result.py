"""What became of every request of a simulation, and the figures of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.run_contract import MetricName, Objective, Percentile


class Refusal(IntEnum):
    """Why a request was not served."""

    NONE = 0  # it was
    QUEUE_FULL = 1  # every row busy and `max_queue` requests waiting
    NEVER_FITS = 2  # prompt and output exceed the whole key/value memory


@dataclass(frozen=True, slots=True, eq=False)
class SimulationResult:
    """Columns [N] in the order of `traffic`; of a refused request they hold NaN, and 0 steps.

    `arrival_s`: when it was sent. `ttft_s`, `e2e_s` from there to its first and last token; `tpot_s` =
    (e2e - ttft) / (output tokens - 1), NaN for one token. `num_steps`: target passes that gave it tokens, the one that
    read the last of its prompt included. `refusal`: a `Refusal`.

    Of the run: `duration_s` from the first arrival to the last token, `busy_s` of it in `num_engine_steps` steps;
    `mean_in_flight` over the duration, waiting requests included; `num_left_waiting` requests without a row when the
    last one had arrived.
    """

    traffic: SimulatedTraffic
    arrival_s: NDArray[np.float64]
    ttft_s: NDArray[np.float64]
    e2e_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    num_steps: NDArray[np.int64]
    refusal: NDArray[np.uint8]
    duration_s: float
    busy_s: float
    num_engine_steps: int
    mean_in_flight: float
    num_left_waiting: int
    max_rows: int

    @property
    def segment(self) -> NDArray[np.int64]:
        """Index [N] into `traffic.segment_names`."""
        return self.traffic.segment

    @property
    def is_served(self) -> NDArray[np.bool_]:
        """[N]"""
        return np.equal(self.refusal, Refusal.NONE)

    @property
    def num_refused(self) -> int:
        """Requests that were not served, for whatever reason."""
        return int(np.count_nonzero(self.refusal))

    @property
    def refusals(self) -> dict[Refusal, int]:
        """How many requests were refused, by reason; reasons that never occurred are left out."""
        counts = {reason: int((self.refusal == reason).sum()) for reason in Refusal if reason is not Refusal.NONE}
        return {reason: count for reason, count in counts.items() if count}

    @property
    def output_throughput(self) -> float:
        """Output tokens per second of all served requests."""
        return self._rate(float(self.traffic.output_tokens[self.is_served].sum()))

    @property
    def request_throughput(self) -> float:
        """Served requests per second."""
        return self._rate(float(self.is_served.sum()))

    @property
    def utilisation(self) -> float:
        """Share of the duration in which a step ran."""
        return self._rate(self.busy_s)

    @property
    def is_overloaded(self) -> bool:
        """More requests came than were served: when the last one had arrived more than `max_rows` still waited for a
        row, or some were turned away for want of a place in the queue."""
        return self.num_left_waiting > self.max_rows or bool((self.refusal == Refusal.QUEUE_FULL).any())

    def values(self, metric: MetricName, segment: str | None = None) -> NDArray[np.float64]:
        """Seconds of every served request that has this metric, of one segment or of all. KeyError: no such segment."""
        column = {MetricName.TTFT: self.ttft_s, MetricName.TPOT: self.tpot_s, MetricName.E2E: self.e2e_s}[metric]
        return column[np.isfinite(column) & self._is_of(segment)]

    def percentile(self, metric: MetricName, q: Percentile | float, segment: str | None = None) -> float:
        """Seconds that a share `q` of the requests stays within; NaN where none has the metric."""
        values = self.values(metric, segment)
        quantile = q.quantile if isinstance(q, Percentile) else q
        return float(np.quantile(values, quantile)) if len(values) else float("nan")

    def goodput(self, objectives: Sequence[Objective], segment: str | None = None) -> float:
        """Served requests per second that met every objective. A request of one token has no tpot to miss."""
        is_good = self.is_served & self._is_of(segment)
        for objective in objectives:
            column = {MetricName.TTFT: self.ttft_s, MetricName.TPOT: self.tpot_s, MetricName.E2E: self.e2e_s}
            is_good &= ~(column[objective.metric] * 1000 > objective.max_ms)
        return self._rate(float(is_good.sum()))

    def _is_of(self, segment: str | None) -> NDArray[np.bool_]:
        if segment is None:
            return np.ones(self.traffic.num_requests, np.bool_)
        if segment not in self.traffic.segment_names:
            raise KeyError(segment)
        return np.equal(self.segment, self.traffic.segment_names.index(segment))

    def _rate(self, amount: float) -> float:
        return amount / self.duration_s if self.duration_s > 0 else 0.0
