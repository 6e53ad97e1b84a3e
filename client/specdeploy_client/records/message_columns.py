"""The formulas of `metrics` for many requests at once: their messages lie end to end in flat arrays.

R requests, M messages of all of them together, C of these carry tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

LongInts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
NOT_REPORTED = -1  # a count that the server does not tell


@dataclass(frozen=True)
class MessageColumns:
    """Messages of R requests. `starts` [R + 1]: request r owns arrival_ns[starts[r] : starts[r + 1]].

    `arrival_ns` [M], `tokens` [M]; `is_counted` [R]: whether the server said how many tokens each message carries.
    Where it did not, every message is taken to carry some and `tokens` is 0. `reported_tokens` [R] is then the number
    of tokens, `NOT_REPORTED` where unknown. `scheduled_ns` [R] is when a request was due.
    """

    starts: LongInts
    arrival_ns: LongInts
    tokens: LongInts
    is_counted: Flags
    reported_tokens: LongInts
    scheduled_ns: LongInts

    @classmethod
    def of(
        cls,
        message_ns: Sequence[Sequence[int]],
        message_tokens: Sequence[Sequence[int] | None],
        reported_tokens: LongInts,
        scheduled_ns: LongInts,
    ) -> "MessageColumns":
        """Flat columns of nested ones. Raises `ValueError` or `TypeError` for numbers that are not whole or missing."""
        sizes = [
            [0] * len(arrivals) if tokens is None else tokens
            for arrivals, tokens in zip(message_ns, message_tokens, strict=True)
        ]
        starts = starts_of(message_ns)
        if not np.array_equal(starts, starts_of(sizes)):
            raise ValueError("message_tokens and message_ns differ in length")
        tokens = flat_ints(sizes)
        if tokens.size and tokens.min() < 0:
            raise ValueError("message_tokens: a negative number")
        is_counted = np.array([tokens is not None for tokens in message_tokens], dtype=np.bool_)
        return cls(starts, flat_ints(message_ns), tokens, is_counted, reported_tokens, scheduled_ns)

    @cached_property
    def token_messages(self) -> LongInts:
        """Positions [C] in the flat arrays of the messages that carry tokens."""
        return np.flatnonzero((self.tokens > 0) | np.repeat(~self.is_counted, np.diff(self.starts)))

    @cached_property
    def token_starts(self) -> LongInts:
        """Where each request's part of `token_messages` starts, [R + 1]."""
        return np.searchsorted(self.token_messages, self.starts)

    @cached_property
    def num_messages(self) -> LongInts:
        """Messages that carry tokens, [R]."""
        return np.diff(self.token_starts)

    @cached_property
    def num_tokens(self) -> LongInts:
        """Tokens delivered, [R]; what the server reports where it does not say per message, or `NOT_REPORTED`."""
        delivered = np.diff(running_sum(self.tokens)[self.starts])
        return np.where(self.is_counted, delivered, self.reported_tokens)

    @cached_property
    def ttft_ns(self) -> Floats:
        """Time to the first message that carries a token, [R]; NaN without one."""
        times = np.full(len(self.scheduled_ns), np.nan)
        has_any = self.num_messages > 0
        first = self.arrival_ns[self.token_messages[self.token_starts[:-1][has_any]]]
        times[has_any] = first - self.scheduled_ns[has_any]
        return times

    @cached_property
    def e2e_ns(self) -> Floats:
        """Time to the last message, [R]; NaN without one."""
        times = np.full(len(self.scheduled_ns), np.nan)
        has_any = np.diff(self.starts) > 0
        times[has_any] = self.arrival_ns[self.starts[1:][has_any] - 1] - self.scheduled_ns[has_any]
        return times

    @cached_property
    def tpot_ns(self) -> Floats:
        """Time per output token after the first, to the last message with a token, [R]; NaN for fewer than two."""
        later_tokens = self.num_tokens - 1
        times = np.full(len(self.scheduled_ns), np.nan)
        chosen = (self.num_messages > 0) & (later_tokens > 0)
        first = self.arrival_ns[self.token_messages[self.token_starts[:-1][chosen]]]
        last = self.arrival_ns[self.token_messages[self.token_starts[1:][chosen] - 1]]
        times[chosen] = (last - first) / later_tokens[chosen]
        return times

    @cached_property
    def gap_requests(self) -> LongInts:
        """Which request each gap belongs to, [G]."""
        return np.repeat(np.arange(len(self.scheduled_ns)), np.maximum(self.num_messages - 1, 0))

    @cached_property
    def gaps_ns(self) -> LongInts:
        """Gaps between consecutive messages that carry tokens, [G], request after request."""
        return np.diff(self.arrival_ns[self.token_messages])[self._is_within_request]

    @cached_property
    def gap_tokens(self) -> LongInts:
        """Tokens of the message that ends each gap, [G]; 0 where the server does not say."""
        tokens: LongInts = self.tokens[self.token_messages[1:]][self._is_within_request]
        return tokens

    @cached_property
    def _is_within_request(self) -> Flags:
        """Of the C - 1 steps from one message to the next, those that do not lead into the next request."""
        is_within = np.ones(max(len(self.token_messages) - 1, 0), dtype=np.bool_)
        borders = self.token_starts[1:-1]
        is_within[borders[(borders > 0) & (borders < len(self.token_messages))] - 1] = False
        return is_within


def starts_of(nested: Sequence[Sequence[object]]) -> LongInts:
    """Where each part of a nested sequence starts once it is flat, and where the last one ends: [R + 1]."""
    return running_sum(np.fromiter(map(len, nested), dtype=np.int64, count=len(nested)))


def running_sum(values: LongInts) -> LongInts:
    """Sum of the first i values for i = 0 ... n, [n + 1]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values, dtype=np.int64)])


def flat_ints(nested: Sequence[Sequence[int]]) -> LongInts:
    """The numbers of a nested sequence end to end. Raises as `whole_numbers` does."""
    return whole_numbers(list(chain.from_iterable(nested)))


def whole_numbers(values: Sequence[int]) -> LongInts:
    """`values` as an array. Raises `TypeError` for anything but whole numbers, `OverflowError` beyond 64 bits.

    numpy would turn "7" and 7.9 into 7 and true into 1 without a word.
    """
    if not set(map(type, values)) <= {int}:
        raise TypeError("whole numbers are needed")
    return np.array(values, dtype=np.int64)
