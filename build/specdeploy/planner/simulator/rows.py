"""Requests that have a row: those that decode, and those whose prompt is still being read."""

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

NEVER = 1 << 62
_ROUNDING = 1e-9  # of a step: what is lost in adding up shares is not worth a step of its own


class Row:
    """One admitted request. `steps` it needs for `growth` = output - 1 tokens, one entry per K of its segment;
    `read_tokens` of its prompt so far; `reads_draft`: the drafter reads the prompt too.

    While it decodes: `left` is the share of its steps still to do at `from_step`, where it had `cached_tokens`.
    """

    __slots__ = (
        "cached_tokens",
        "first_step",
        "from_step",
        "growth",
        "index",
        "kv_per_step",
        "left",
        "position",
        "prompt_tokens",
        "read_tokens",
        "reads_draft",
        "reserved_tokens",
        "segment",
        "steps",
    )

    def __init__(
        self,
        index: int,
        segment: int,
        prompt_tokens: int,
        growth: int,
        steps: list[int],
        reserved: int,
        reads_draft: bool,
    ) -> None:
        self.index = index
        self.segment = segment
        self.prompt_tokens = prompt_tokens
        self.growth = growth
        self.steps = steps
        self.reserved_tokens = reserved
        self.reads_draft = reads_draft
        self.read_tokens = 0
        self.first_step = self.from_step = self.position = 0
        self.left = 1.0
        self.cached_tokens = float(prompt_tokens)
        self.kv_per_step = 0.0


class DecodingRows:
    """Rows that decode. `counts` by segment; `kv_tokens` cached by all of them, growing by `kv_per_step` each step.

    A row of S steps grows by growth / S each step: exact at its start and its end, linear between. At another K its
    share of steps still to do is kept and paid at its own pace there, rounded up to whole steps at the end only.
    """

    def __init__(self, num_segments: int) -> None:
        self.num_rows = 0
        self.counts = [0] * num_segments
        self.kv_tokens = 0.0
        self.kv_per_step = 0.0
        self.next_finish = NEVER
        self._heap: list[tuple[int, int, Row]] = []  # by the step before which they leave

    def start(self, row: Row, step: int, position: int) -> None:
        """`row` decodes from `step` on, at its segment's K number `position`."""
        num_steps = row.steps[position]
        row.first_step = row.from_step = step
        row.position = position
        row.kv_per_step = row.growth / num_steps
        self.num_rows += 1
        self.counts[row.segment] += 1
        self.kv_tokens += row.cached_tokens
        self.kv_per_step += row.kv_per_step
        heapq.heappush(self._heap, (step + num_steps, row.index, row))
        self.next_finish = self._heap[0][0]

    def advance(self, num_steps: int) -> None:
        """`num_steps` steps pass, none beyond `next_finish`."""
        self.kv_tokens += num_steps * self.kv_per_step

    def remove_finished(self, step: int) -> list[Row]:
        """Rows that were done with the step before `step`, in the order of their requests."""
        heap, finished = self._heap, []
        while heap and heap[0][0] == step:
            row = heapq.heappop(heap)[2]
            self.counts[row.segment] -= 1
            self.kv_tokens -= row.cached_tokens + (step - row.from_step) * row.kv_per_step
            self.kv_per_step -= row.kv_per_step
            finished.append(row)
        self.num_rows -= len(finished)
        if not heap:
            self.kv_tokens = self.kv_per_step = 0.0  # nothing of rounding is left behind
        self.next_finish = heap[0][0] if heap else NEVER
        return finished

    def change(self, step: int, positions: Sequence[int]) -> None:
        """From `step` on every segment drafts at the K that `positions` names."""
        entries = []
        for finish, index, row in self._heap:
            position = positions[row.segment]
            if position != row.position:
                finish = step + _switch(row, step, position)
            entries.append((finish, index, row))
        heapq.heapify(entries)
        self._heap = entries
        rows = [row for _, _, row in entries]
        self.kv_tokens = sum(row.cached_tokens + (step - row.from_step) * row.kv_per_step for row in rows)
        self.kv_per_step = sum(row.kv_per_step for row in rows)
        self.next_finish = entries[0][0] if entries else NEVER


def _switch(row: Row, step: int, position: int) -> int:
    """Put `row` on another K; returns the steps it still needs there, at least 1."""
    done = step - row.from_step
    num_steps = row.steps[position]
    row.left -= done / row.steps[row.position]
    row.cached_tokens += done * row.kv_per_step
    row.from_step = step
    row.position = position
    row.kv_per_step = row.growth / num_steps
    return max(1, math.ceil(row.left * num_steps - _ROUNDING))


class Chunk(NamedTuple):
    """Prompt tokens of one step: `draft_tokens` of them the drafter reads too; on average `context` tokens of the same
    prompt lie before each of them, `context_growth` more in every one of up to `max_steps` steps alike."""

    tokens: int
    draft_tokens: int
    context: float
    context_growth: int
    max_steps: int


NO_CHUNK = Chunk(0, 0, 0.0, 0, NEVER)


class PromptQueue:
    """Rows whose prompts are being read, oldest first. `completed`: read to the end by the last step."""

    def __init__(self, prefill_chunk: int) -> None:
        self.completed: list[Row] = []
        self._chunk = prefill_chunk
        self._rows: deque[Row] = deque()

    @property
    def num_rows(self) -> int:
        """Rows that have prompt tokens to read."""
        return len(self._rows)

    def add(self, row: Row) -> None:
        """`row` was admitted."""
        self._rows.append(row)

    def next_chunk(self) -> Chunk:
        """What the next step reads: whole chunks of a long prompt up to its last but one, else as many prompts as fit
        into one chunk."""
        if not self._rows:
            return NO_CHUNK
        oldest = self._rows[0]
        unread = oldest.prompt_tokens - oldest.read_tokens
        if unread > self._chunk:
            draft_tokens = self._chunk if oldest.reads_draft else 0
            return Chunk(self._chunk, draft_tokens, oldest.read_tokens, self._chunk, (unread - 1) // self._chunk)
        budget, draft_tokens = self._chunk, 0
        for row in self._rows:
            tokens = min(row.prompt_tokens - row.read_tokens, budget)
            draft_tokens += tokens if row.reads_draft else 0
            budget -= tokens
            if not budget:
                break
        tokens = self._chunk - budget
        return Chunk(tokens, draft_tokens, oldest.read_tokens * unread / tokens, 0, 1)  # only the oldest is begun

    def read(self, chunk: Chunk, num_steps: int) -> None:
        """`num_steps` steps, at most `chunk.max_steps`, have read `chunk` each."""
        if chunk.context_growth:
            self._rows[0].read_tokens += chunk.tokens * num_steps
            return
        budget = chunk.tokens
        while budget:
            row = self._rows[0]
            unread = row.prompt_tokens - row.read_tokens
            if unread > budget:
                row.read_tokens += budget
                return
            budget -= unread
            self.completed.append(self._rows.popleft())
