"""Continuous batching with speculative decoding: one loop, three calls.

    draft    every decoding row asks its drafter for up to K tokens
    forward  the target reads all of them, and chunks of the prompts still being read, in one pass
    commit   each row keeps what the target agrees with, plus the target's own token

Rows join and leave between steps. A row's output depends on its request alone: its slot of key/value memory, its
positions, its draft length and its random numbers are its own. The engine is single-threaded and holds no clock;
whoever calls `step` decides when.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdeploy.errors import RequestError
from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters.base import Drafter, DraftRow
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import FinishReason, GenerationRequest, RequestStats, RowUpdate
from specdeploy.runtime.sampling import adjusted_logits, choose_token
from specdeploy.runtime.verify import Verification, verify


@dataclass(slots=True)
class _Row:
    """A request in the batch. While decoding, `num_cached == len(token_ids) - 1`: the newest token is unread."""

    request: GenerationRequest
    slot: int
    token_ids: list[int]
    num_cached: int = 0
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    @property
    def is_decoding(self) -> bool:
        return self.num_cached >= len(self.token_ids) - 1 and self.num_output > 0

    @property
    def num_unread(self) -> int:
        return len(self.token_ids) - self.num_cached


@dataclass(slots=True)
class _StepBatch:
    """One forward pass: tokens end to end, one span per row, and where each row's logits begin."""

    token_ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    logit_positions: list[int] = field(default_factory=list)
    rows: list[_Row] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)  # per row; empty while its prompt is being read
    first_logit: list[int | None] = field(default_factory=list)  # per row; None when its prompt is not finished

    def add(self, row: _Row, tokens: Sequence[int], draft: list[int], num_logits: int) -> None:
        """Append one row's tokens; the last `num_logits` of them get logits."""
        start = len(self.token_ids)
        self.token_ids.extend(tokens)
        self.spans.append(Span(start, len(self.token_ids), row.slot, row.num_cached))
        self.rows.append(row)
        self.drafts.append(draft)
        self.first_logit.append(len(self.logit_positions) if num_logits else None)
        self.logit_positions.extend(range(len(self.token_ids) - num_logits, len(self.token_ids)))


class Engine:
    """Serves many requests with one target and at most one drafter."""

    def __init__(
        self,
        model: DecoderModel,
        drafter: Drafter | None,
        *,
        max_rows: int,
        max_queue: int,
        prefill_chunk: int,
        num_token_ids: int | None = None,
    ) -> None:
        """`num_token_ids` is the tokenizer's length: rows of the vocabulary beyond it are padding, never emitted."""
        self._model = model
        self._num_token_ids = min(model.vocab_size, num_token_ids or model.vocab_size)
        self._drafter = drafter
        self._cache = model.new_cache(max_rows)
        self._max_queue = max_queue
        self._prefill_chunk = prefill_chunk
        self._waiting: deque[GenerationRequest] = deque()
        self._rows: list[_Row] = []

    @property
    def num_in_flight(self) -> int:
        """Requests accepted and not finished, waiting ones included."""
        return len(self._rows) + len(self._waiting)

    @property
    def row_request_ids(self) -> list[str]:
        """Requests that have a row."""
        return [row.request.request_id for row in self._rows]

    @property
    def waiting_request_ids(self) -> list[str]:
        """Requests that wait for a row, the next one first."""
        return [request.request_id for request in self._waiting]

    @property
    def num_slots_in_use(self) -> int:
        """Slots of key/value memory owned by rows."""
        return self._cache.num_slots - self._cache.num_free

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. Raises RequestError when the queue is full or the prompt does not fit."""
        if len(request.prompt_ids) >= self._model.max_seq_len:
            raise RequestError(
                "text_input",
                f"{len(request.prompt_ids)} tokens leave no room for output in a context of {self._model.max_seq_len}",
                "Shorten the prompt or raise serving.max_seq_len",
            )
        if not request.prompt_ids:
            raise RequestError("text_input", "no tokens", "Send a prompt with at least one token")
        if max(request.prompt_ids) >= self._model.vocab_size:
            raise RequestError(
                "text_input",
                f"token id {max(request.prompt_ids)} has no row in a vocabulary of {self._model.vocab_size}",
                "The tokenizer knows more tokens than the checkpoint: leave such tokens out of the prompt",
            )
        if len(self._waiting) >= self._cache.num_free + self._max_queue:
            raise RequestError(
                "request", f"all rows are busy and {self._max_queue} requests wait already", "Retry later"
            )
        self._waiting.append(request)

    def cancel(self, request_id: str) -> RowUpdate | None:
        """End a request now, wherever it is; None when it is unknown or already over."""
        for request in self._waiting:
            if request.request_id == request_id:
                self._waiting.remove(request)
                return RowUpdate(request_id, (), None, "cancelled", RequestStats())
        for row in self._rows:
            if row.request.request_id == request_id:
                self._leave(row)
                return RowUpdate(request_id, (), None, "cancelled", row.stats)
        return None

    def reset(self) -> None:
        """Drop everything in flight: the way back after an unexpected failure inside a step."""
        self._waiting.clear()
        for row in list(self._rows):
            self._leave(row)

    def step(self) -> list[RowUpdate]:
        """One target forward. Returns an update for every row that emitted tokens; nothing when idle."""
        self._admit()
        if not self._rows:
            return []
        batch = self._pack(self._draft())
        output = self._model.forward(batch.token_ids, batch.spans, batch.logit_positions, self._cache)
        return self._commit(batch, output.logits[:, : self._num_token_ids])

    def _admit(self) -> None:
        while self._waiting and self._cache.num_free:
            request = self._waiting.popleft()
            row = _Row(request, self._cache.allocate(), list(request.prompt_ids))
            self._rows.append(row)
            row.stats.was_allowed_to_draft = self._planned_draft_len(row) > 0

    def _draft(self) -> dict[int, list[int]]:
        """Draft tokens by slot, for decoding rows that may use any."""
        if self._drafter is None:
            return {}
        wanting = [
            DraftRow(row.slot, row.token_ids, draft_len)
            for row in self._rows
            if row.is_decoding and (draft_len := self._draft_len(row))
        ]
        return dict(zip((row.slot for row in wanting), self._drafter.propose(wanting), strict=True)) if wanting else {}

    def _draft_len(self, row: _Row) -> int:
        """K for this row now. The step emits one token more than it accepts, and none may exceed the row's limit."""
        planned = self._planned_draft_len(row)
        row.stats.was_allowed_to_draft |= planned > 0
        return max(0, min(planned, self._max_output(row) - row.num_output - 1))

    def _planned_draft_len(self, row: _Row) -> int:
        return row.request.draft_len(self.num_in_flight) if self._drafter is not None else 0

    def _max_output(self, row: _Row) -> int:
        return min(row.request.max_tokens, self._model.max_seq_len - len(row.request.prompt_ids))

    def _pack(self, drafts: dict[int, list[int]]) -> _StepBatch:
        """Every decoding row, and as many prompt tokens of the others as one step may carry."""
        batch = _StepBatch()
        budget = self._prefill_chunk
        for row in self._rows:
            if row.is_decoding:
                draft = drafts.get(row.slot, [])
                batch.add(row, [row.token_ids[-1], *draft], draft, num_logits=len(draft) + 1)
            elif budget > 0:
                chunk = row.token_ids[row.num_cached : row.num_cached + budget]
                budget -= len(chunk)
                batch.add(row, chunk, [], num_logits=1 if len(chunk) == row.num_unread else 0)
        return batch

    def _commit(self, batch: _StepBatch, logits: torch.Tensor) -> list[RowUpdate]:
        updates: list[RowUpdate] = []
        argmax = torch.argmax(logits, dim=-1).tolist()
        for row, draft, span, first in zip(batch.rows, batch.drafts, batch.spans, batch.first_logit, strict=True):
            if first is None:
                row.num_cached += span.end - span.start
                self._prefill_drafter(row)
                continue
            is_prompt_done = not row.is_decoding
            verification = self._verify(row, draft, logits[first : first + len(draft) + 1], argmax[first:])
            row.num_cached += span.end - span.start - len(draft) + verification.num_accepted
            if is_prompt_done:
                self._prefill_drafter(row)
            updates.append(self._emit(row, draft, verification, logits[first : first + len(draft) + 1]))
        return updates

    def _prefill_drafter(self, row: _Row) -> None:
        if self._drafter is not None and self._planned_draft_len(row):
            self._drafter.prefill(row.slot, row.token_ids[: row.num_cached])

    def _verify(self, row: _Row, draft: Sequence[int], logits: torch.Tensor, argmax: Sequence[int]) -> Verification:
        """`logits` [len(draft) + 1, V] and their argmax, for the positions after the row's text."""
        sampling = row.request.sampling
        if sampling.is_greedy and not sampling.changes_logits:
            return verify(draft, argmax.__getitem__)
        output_ids = row.token_ids[len(row.request.prompt_ids) :]

        def choose(index: int) -> int:
            before = [*output_ids, *draft[:index]]
            position_logits = adjusted_logits(
                logits[index],
                sampling,
                prompt_ids=row.request.prompt_ids,
                output_ids=before,
                stop_ids=row.request.stop_ids,
            )
            return choose_token(position_logits, sampling, len(before))

        return verify(draft, choose)

    def _emit(self, row: _Row, draft: Sequence[int], verification: Verification, logits: torch.Tensor) -> RowUpdate:
        """Append the output tokens one by one up to the first that ends the request, and report them."""
        emitted: list[int] = []
        finish_reason: FinishReason | None = None
        for token in verification.token_ids:
            row.token_ids.append(token)
            emitted.append(token)
            finish_reason = self._finish_reason(row, token)
            if finish_reason is not None:
                break
        row.stats.count_step(len(draft), min(verification.num_accepted, len(emitted)))
        log_probs = None
        if row.request.wants_log_probs:
            chosen = torch.tensor(emitted, device=logits.device).unsqueeze(1)
            log_softmax = torch.log_softmax(logits[: len(emitted)].float(), dim=-1)
            log_probs = tuple(log_softmax.gather(1, chosen).squeeze(1).tolist())
        if finish_reason is not None:
            self._leave(row)
        return RowUpdate(row.request.request_id, tuple(emitted), log_probs, finish_reason, row.stats)

    def _finish_reason(self, row: _Row, token: int) -> FinishReason | None:
        request = row.request
        # The matcher sees every token, also before min_tokens: it follows the text.
        ends_with_stop_string = request.ends_with_stop_string is not None and request.ends_with_stop_string(token)
        if token in request.stop_ids:
            return "stop"
        if ends_with_stop_string and row.num_output >= request.sampling.min_tokens:
            return "stop"
        return "length" if row.num_output >= self._max_output(row) else None

    def _leave(self, row: _Row) -> None:
        self._rows.remove(row)
        self._cache.release(row.slot)
        if self._drafter is not None:
            self._drafter.release(row.slot)
