"""Continuous batching with speculative decoding: one loop, three calls.

    draft    every decoding row asks its drafter for tokens, K deep at most
    forward  the target reads all of them, and chunks of the prompts still being read, in one pass
    commit   each row keeps what the target agrees with, plus the target's own token

Rows join and leave between steps. A row's output depends on its request alone: its slot of key/value memory, its
positions, its draft length and its random numbers are its own. The engine is single-threaded; whoever calls `step`
decides when, and the clock it may be given only measures.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from specdeploy.errors import RequestError
from specdeploy.runtime.commit import Commit
from specdeploy.runtime.draft_length import DraftLengthPolicy, FixedDraftLength, StepTiming
from specdeploy.runtime.drafters.base import Draft, Drafter, DraftRow, Observation
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, RequestStats, RowUpdate
from specdeploy.runtime.row import Row
from specdeploy.runtime.step_batch import NO_DRAFT, StepBatch
from specdeploy.runtime.usable_draft import depth_of, usable_draft

_log = logging.getLogger(__name__)


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
        cache: KvCache | None = None,
        policy: DraftLengthPolicy | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        """`num_token_ids` is the tokenizer's length: rows of the vocabulary beyond it are padding, never emitted.

        `cache` is the target's key/value memory where a drafter shares it or it is bounded; else the engine makes one
        of `max_rows` full contexts. `policy` chooses K below what a request allows (None: all of it). `clock` gives
        nanoseconds; without one the policy learns no times.
        """
        self._model = model
        self._num_token_ids = min(model.vocab_size, num_token_ids or model.vocab_size)
        self._drafter = drafter
        self._cache = model.new_cache(max_rows) if cache is None else cache
        self._policy = FixedDraftLength() if policy is None else policy
        self._clock = clock
        self._max_queue = max_queue
        self._prefill_chunk = prefill_chunk
        self._waiting: deque[GenerationRequest] = deque()
        self._rows: list[Row] = []

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
        """Queue a request; stop ids that are never emitted are left out of it.

        Raises RequestError when the queue is full or the request can never be served.
        """
        self._check_prompt(request.prompt_ids)
        num_tokens = len(request.prompt_ids) + self._max_output(request)
        if num_tokens > self._cache.max_request_tokens:
            raise RequestError(
                "max_tokens",
                f"prompt and output of up to {num_tokens} tokens do not fit into key/value memory for "
                f"{self._cache.max_request_tokens}",
                "Shorten the prompt, ask for fewer tokens or raise serving.kv_cache_tokens",
            )
        if len(self._waiting) >= self._cache.num_free + self._max_queue:
            raise RequestError(
                "request", f"all rows are busy and {self._max_queue} requests wait already", "Retry later"
            )
        stop_ids = frozenset(token for token in request.stop_ids if 0 <= token < self._num_token_ids)
        self._waiting.append(request if stop_ids == request.stop_ids else replace(request, stop_ids=stop_ids))

    def cancel(self, request_id: str) -> RowUpdate | None:
        """End a request now, wherever it is; None when it is unknown or already over."""
        for index, request in enumerate(self._waiting):
            if request.request_id == request_id:
                del self._waiting[index]
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
            self._cache.clear(row.slot)  # whatever the step left there
            self._leave(row)

    def step(self) -> list[RowUpdate]:
        """One target forward. Returns an update for every row that emitted tokens; nothing when idle."""
        self._admit()
        if not self._rows:
            return []
        self._plan()
        start = self._now()
        batch = self._pack(self._draft())
        drafted = self._now()
        output = self._model.forward(
            batch.token_ids, batch.spans, batch.logit_positions, self._cache, hidden_layers=self._hidden_layers(batch)
        )
        updates = self._commit(batch, output.logits[:, : self._num_token_ids])
        committed = self._now()
        self._observe(batch, output.hidden)
        if self._clock is not None:
            draft_ns = drafted - start + self._now() - committed
            self._policy.record_step(_timing(batch, draft_ns, committed - drafted))
        self._remove_finished()
        return updates

    def _check_prompt(self, prompt_ids: Sequence[int]) -> None:
        if len(prompt_ids) >= self._model.max_seq_len:
            raise RequestError(
                "text_input",
                f"{len(prompt_ids)} tokens leave no room for output in a context of {self._model.max_seq_len}",
                "Shorten the prompt or raise serving.max_seq_len",
            )
        if not prompt_ids:
            raise RequestError("text_input", "no tokens", "Send a prompt with at least one token")
        if max(prompt_ids) >= self._model.vocab_size:
            raise RequestError(
                "text_input",
                f"token id {max(prompt_ids)} has no row in a vocabulary of {self._model.vocab_size}",
                "The tokenizer knows more tokens than the checkpoint: leave such tokens out of the prompt",
            )

    def _admit(self) -> None:
        """Give waiting requests a row, in order: one that does not fit now is not overtaken, or it might starve."""
        while self._waiting:
            request = self._waiting[0]
            num_positions = self._num_positions(request)
            slot = self._cache.allocate(num_positions)
            if slot is None:
                return
            self._waiting.popleft()
            row = Row.admit(request, slot, max_output=self._max_output(request), num_positions=num_positions)
            self._rows.append(row)

    def _plan(self) -> None:
        """What each row may draft at the load of this step."""
        if self._drafter is None:
            return
        num_in_flight = self.num_in_flight
        for row in self._rows:
            row.planned_draft_len = row.request.draft_len(num_in_flight)
            row.stats.was_allowed_to_draft |= row.planned_draft_len > 0

    def _num_positions(self, request: GenerationRequest) -> int:
        """Key/value memory of a row: its text, and its deepest draft as far as there can be room for it."""
        num_draft = 0
        if self._drafter is not None and (most := request.draft_len(1)):  # plans draft deepest at the lowest load
            num_draft = self._drafter.max_draft_tokens(most)
        num_text = len(request.prompt_ids) + self._max_output(request)
        return min(num_text + num_draft, self._cache.max_request_tokens)

    def _max_output(self, request: GenerationRequest) -> int:
        return min(request.max_tokens, self._model.max_seq_len - len(request.prompt_ids))

    def _draft(self) -> dict[int, tuple[Draft, int]]:
        """By slot, for decoding rows that may use any: a draft and how deep it was asked to be."""
        if self._drafter is None:
            return {}
        decoding = [row for row in self._rows if row.is_decoding]
        asking = [
            (row, draft_len) for row in decoding if (draft_len := self._draft_len(self._drafter, row, len(decoding)))
        ]
        if not asking:
            return {}
        drafts = self._drafter.propose([_draft_row(row, draft_len) for row, draft_len in asking])
        return {
            row.slot: (self._usable(row, draft, draft_len), draft_len)
            for (row, draft_len), draft in zip(asking, drafts, strict=True)
        }

    def _draft_len(self, drafter: Drafter, row: Row, num_decoding: int) -> int:
        """K for this row now. The step emits one token more than it accepts, and none may exceed the row's limit."""
        cap = min(row.planned_draft_len, row.max_output - row.num_output - 1)
        draft_len = self._policy.draft_len(row.slot, cap, num_decoding) if cap > 0 else 0
        while draft_len and drafter.max_draft_tokens(draft_len) > row.num_free_positions:
            draft_len -= 1
        return draft_len

    def _usable(self, row: Row, draft: Draft, draft_len: int) -> Draft:
        try:
            return usable_draft(
                draft,
                max_depth=draft_len,
                max_nodes=row.num_free_positions,
                num_token_ids=self._num_token_ids,
                guided=row.request.guided,
                may_sample=row.may_sample_drafts,
            )
        except Exception:  # a grammar's failure is its request's: the row goes on without this draft
            _log.exception("the draft of request %s cannot be used", row.request.request_id)
            return NO_DRAFT

    def _pack(self, drafts: dict[int, tuple[Draft, int]]) -> StepBatch:
        """Every decoding row, and as many prompt tokens of the others as one step may carry."""
        batch = StepBatch(self._model.vocab_size)
        for row in self._rows:
            if row.is_decoding:
                batch.add_decoding(row, *drafts.get(row.slot, (NO_DRAFT, 0)))
        budget = self._prefill_chunk
        for row in self._rows:
            if budget > 0 and not row.is_decoding:
                budget -= batch.add_prompt(row, budget)
        return batch

    def _hidden_layers(self, batch: StepBatch) -> tuple[int, ...]:
        """The states the drafter reads, if it is told of any row of this step."""
        if self._drafter is None or not any(step.row.planned_draft_len for step in batch.steps):
            return ()
        return self._drafter.hidden_layers

    def _commit(self, batch: StepBatch, logits: torch.Tensor) -> list[RowUpdate]:
        commit = Commit(logits, batch.steps, self._cache)
        updates: list[RowUpdate] = []
        for step in batch.steps:
            update = commit.apply(step)
            if update is not None:
                updates.append(update)
            if step.draft_len and step.row.finish_reason is None:  # a block cut short says nothing of the draft
                self._policy.record(step.row.slot, depth_of(step.draft), len(step.kept_nodes))
        return updates

    def _observe(self, batch: StepBatch, hidden: torch.Tensor | None) -> None:
        """Tell the drafter what the target has read of the rows it may draft for."""
        if self._drafter is None:
            return
        observations = [
            Observation(
                step.row.slot,
                step.row.token_ids,
                step.row.num_cached,
                None if hidden is None else step.hidden_of(hidden),
            )
            for step in batch.steps
            if step.row.finish_reason is None and step.row.planned_draft_len
        ]
        if observations:
            self._drafter.observe(observations)

    def _remove_finished(self) -> None:
        for row in [row for row in self._rows if row.finish_reason is not None]:
            self._leave(row)

    def _leave(self, row: Row) -> None:
        self._rows.remove(row)
        self._cache.release(row.slot)
        self._policy.release(row.slot)
        if self._drafter is None:
            return
        try:
            self._drafter.release(row.slot)
        except Exception:  # rows that leave after this one must be able to
            _log.exception("the drafter did not release slot %d", row.slot)

    def _now(self) -> int:
        return 0 if self._clock is None else self._clock()


def _draft_row(row: Row, draft_len: int) -> DraftRow:
    sampling = row.request.sampling if row.may_sample_drafts else None
    return DraftRow(row.slot, row.token_ids, draft_len, row.num_output, sampling)


def _timing(batch: StepBatch, draft_ns: int, verify_ns: int) -> StepTiming:
    return StepTiming(
        num_rows=batch.num_decoding,
        num_tokens=batch.num_decoding_tokens,
        depth=max((depth_of(step.draft) for step in batch.steps), default=0),
        draft_ns=draft_ns,
        verify_ns=verify_ns,
        has_prefill=batch.has_prefill,
    )
