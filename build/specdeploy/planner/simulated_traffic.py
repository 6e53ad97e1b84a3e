"""Requests of one simulation as columns: when they come, how long they are, of which segment."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_REQUEST_TOKENS = 1 << 22  # 4,194,304: longer than any context; a bound against slips of the pen


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedTraffic:
    """N >= 1 requests in the order in which they are sent.

    `arrival_s` float64 [N] seconds, finite and never falling, or None where only a closed loop can send them.
    `input_tokens`, `output_tokens` int64 [N], each at least 1. `segment` int64 [N] indexes `segment_names`.
    Raises ValueError for columns that contradict this.
    """

    arrival_s: NDArray[np.float64] | None
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    segment: NDArray[np.int64]
    segment_names: tuple[str, ...]

    def __post_init__(self) -> None:
        num_requests = len(self.input_tokens)
        if not num_requests:
            raise ValueError("no requests")
        if len(self.output_tokens) != num_requests or len(self.segment) != num_requests:
            raise ValueError("columns of different lengths")
        if self.input_tokens.min() < 1 or self.output_tokens.min() < 1:
            raise ValueError("input_tokens and output_tokens: at least 1")
        if self.segment.min() < 0 or self.segment.max() >= len(self.segment_names):
            raise ValueError("segment: an index into segment_names")
        if self.arrival_s is None:
            return
        if len(self.arrival_s) != num_requests:
            raise ValueError("columns of different lengths")
        if not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any():
            raise ValueError("arrival_s: finite and never falling")

    @property
    def num_requests(self) -> int:
        """N."""
        return len(self.input_tokens)

    @property
    def request_rate(self) -> float | None:
        """Requests per second from the first arrival to the last; None without arrivals that span any time."""
        if self.arrival_s is None or self.num_requests < 2:
            return None
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        return (self.num_requests - 1) / span_s if span_s > 0 else None

    def first(self, num_requests: int) -> "SimulatedTraffic":
        """The first `num_requests` of them, or all where there are fewer."""
        most = slice(num_requests)
        arrival_s = None if self.arrival_s is None else self.arrival_s[most]
        columns = (self.input_tokens[most], self.output_tokens[most], self.segment[most])
        return SimulatedTraffic(arrival_s, *columns, self.segment_names)

    def without_arrivals(self) -> "SimulatedTraffic":
        """The same requests for a closed loop."""
        return SimulatedTraffic(None, self.input_tokens, self.output_tokens, self.segment, self.segment_names)
