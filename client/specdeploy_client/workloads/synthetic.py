"""Synthetic requests: exact input lengths, output lengths that the answer keeps to, natural text."""

import math
from dataclasses import dataclass

import numpy as np

from specdeploy.errors import RequestError
from specdeploy_client.workloads.base import WorkRequest, derive_rng
from specdeploy_client.workloads.prompt_writer import PromptWriter

_MAX_DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Normally distributed token counts. `stddev` 0 means always `mean`."""

    mean: int
    stddev: float = 0.0

    def draw(self, rng: np.random.Generator, least: int = 1, most: int | None = None) -> int:
        """One length within `least` ... `most` (None: no upper bound).

        Draws outside are drawn again, so that no length is more frequent than its neighbours.
        """
        if self.stddev == 0:
            return self.mean
        for _ in range(_MAX_DRAWS):
            length = round(rng.normal(self.mean, self.stddev))
            if least <= length <= (math.inf if most is None else most):
                return length
        return self.mean

    def __str__(self) -> str:
        return f"{self.mean}" if self.stddev == 0 else f"{self.mean} +- {self.stddev:g}"


class SyntheticWorkload:
    """Prompts of `input_lengths` tokens, rendered; answers of `output_lengths` tokens (None: the segment's limit)."""

    name = "synthetic"
    shares_prefixes = False

    def __init__(
        self,
        segments: tuple[str, ...],
        writer: PromptWriter,
        input_lengths: Lengths,
        output_lengths: Lengths | None,
        seed: int,
        max_total: int | None = None,
    ) -> None:
        """`max_total`: what the server holds, prompt and answer. Raises `RequestError` for lengths that cannot be."""
        least, longest_answer = writer.least_tokens, 1 if output_lengths is None else output_lengths.mean
        self._most_input = None if max_total is None else max_total - longest_answer
        if input_lengths.mean < least:
            raise RequestError("--isl", writer.unreachable_reason(input_lengths.mean), f"Ask for at least {least}")
        if self._most_input is not None and input_lengths.mean > self._most_input:
            reason = f"{input_lengths.mean} tokens and an answer of {longest_answer} exceed the server's {max_total}"
            raise RequestError("--isl", reason, f"Ask for at most {self._most_input}, or raise serving.max_seq_len")
        self.segments = segments
        self._writer = writer
        self._input, self._output = input_lengths, output_lengths
        self._seed = seed
        self._max_total = max_total

    @property
    def description(self) -> str:
        """Lengths and text."""
        output = "" if self._output is None else f", answers of {self._output}"
        return f"synthetic: prompts of {self._input} tokens{output}; {self._writer.description}"

    def num_distinct(self, segment: str) -> int:  # noqa: ARG002 - the same for all
        """Prompts of one length that the corpus has for each segment."""
        return self._writer.num_distinct(self._input.mean) // len(self.segments)

    def requests(self, segment: str, first: int, count: int) -> tuple[WorkRequest, ...]:
        """See `Workload.requests`."""
        return tuple(self._request(segment, index) for index in range(first, first + count))

    def _request(self, segment: str, index: int) -> WorkRequest:
        rng = derive_rng(self._seed, segment, "lengths", index)
        num_tokens = self._input.draw(rng, self._writer.least_tokens, self._most_input)
        most_output = None if self._max_total is None else self._max_total - num_tokens
        # Segments take turns, so that none sends what another one sent.
        serial = index * len(self.segments) + self.segments.index(segment)
        return WorkRequest(
            prompt_id=f"{self.name}-{serial}",
            segment=segment,
            user_turn=self._writer.write(num_tokens, serial),
            max_tokens=None if self._output is None else self._output.draw(rng, most=most_output),
            expected_input_tokens=num_tokens,
            ignore_eos=self._output is not None,
        )
