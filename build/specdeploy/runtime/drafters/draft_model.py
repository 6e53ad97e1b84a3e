"""A smaller checkpoint with the target's tokenizer drafts token by token, all rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation
from specdeploy.runtime.drafters.rollout import Rollout, Unread
from specdeploy.runtime.model import DecoderModel


@dataclass(slots=True)
class _Cached:
    """What a slot's cache holds: `num_read` tokens of the row's text, then the `drafted` tokens, right or wrong."""

    num_read: int = 0
    drafted: list[int] = field(default_factory=list)

    def keep_accepted(self, token_ids: Sequence[int]) -> None:
        """Count drafted tokens that became text. The newest token is always read again: its logits are wanted."""
        for token in self.drafted:
            if self.num_read >= len(token_ids) - 1 or token_ids[self.num_read] != token:
                break
            self.num_read += 1
        self.drafted.clear()
        self.num_read = min(self.num_read, len(token_ids) - 1)


class DraftModelDrafter:
    """Keeps its own key/value memory, slot for slot beside the target's.

    After a step its cache may hold tokens the target rejected; before the next draft those cached since the last one
    are compared with the row's text, so no feedback about acceptance is needed and none can be missed.

    A prompt is read as the target reads it. A row that is behind, because nothing was drafted for it for a while,
    catches up along with the drafts of the others, and gets none until it has.
    """

    def __init__(
        self, model: DecoderModel, *, num_slots: int, prefill_chunk: int = 256, vocab_size: int | None = None
    ) -> None:
        """`vocab_size` is the number of tokens the engine chooses from (logit columns it keeps): ids beyond it are
        padding, never proposed. None: as many as the draft model has. Where sampled drafts meet a target, it must be
        the engine's own number. At most `prefill_chunk` tokens of rows that are behind are read in a call.
        """
        self._model = model
        self._prefill_chunk = prefill_chunk
        self._rollout = Rollout(model, model.new_cache(num_slots), vocab_size=vocab_size or model.vocab_size)
        self._cached: dict[int, _Cached] = {}

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """None: it reads the text alone."""
        return ()

    def max_draft_tokens(self, draft_len: int) -> int:
        """A chain."""
        return draft_len

    def observe(self, observations: Sequence[Observation]) -> None:
        """Read prompts as far as the target has, and whole chunks that wait. Less is read with the next draft."""
        budget = self._prefill_chunk
        behind: list[Unread] = []
        for seen in observations:
            cached = self._cached.setdefault(seen.slot, _Cached())
            is_prompt = seen.num_read < len(seen.token_ids) - 1
            has_whole_chunk = seen.num_read - cached.num_read >= self._prefill_chunk
            # A longer text is never drafted for.
            if (is_prompt or has_whole_chunk) and len(seen.token_ids) <= self._model.max_seq_len:
                cached.keep_accepted(seen.token_ids)
                text = self._read_on(seen.slot, seen.token_ids, seen.num_read, budget)
                budget -= len(text.token_ids)
                behind.append(text)
        self._rollout.draft([], [], [text for text in behind if text.token_ids])

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """Each row's draft, cut at the draft's own context; rows beyond that and rows that are behind get none."""
        budget = self._prefill_chunk
        ready: dict[int, Unread] = {}
        behind: list[Unread] = []
        for index, num_unread in self._by_num_unread(rows):
            row = rows[index]
            # A few unread tokens cost no more than a draft: those rows neither wait nor make others wait.
            is_behind = num_unread - 1 > row.draft_len
            if not is_behind or num_unread - 1 <= budget:
                ready[index] = self._read_on(row.slot, row.token_ids, len(row.token_ids), num_unread)
                budget -= num_unread - 1 if is_behind else 0
            elif budget > 0:
                behind.append(self._read_on(row.slot, row.token_ids, len(row.token_ids) - 1, budget))
                budget = 0
        drafts = [Draft()] * len(rows)
        drafted = self._rollout.draft([rows[index] for index in ready], list(ready.values()), behind)
        for index, draft in zip(ready, drafted, strict=True):
            drafts[index] = draft
            self._cached[rows[index].slot].drafted.extend(draft.token_ids[:-1])  # nothing has read the last one
        return drafts

    def release(self, slot: int) -> None:
        """Forget what the slot holds."""
        self._cached.pop(slot, None)

    def _by_num_unread(self, rows: Sequence[DraftRow]) -> list[tuple[int, int]]:
        """(index, unread tokens) of the rows within the draft's context, least first."""
        unread = []
        for index, row in enumerate(rows):
            if self._rollout.depth_of(row):
                cached = self._cached.setdefault(row.slot, _Cached())
                cached.keep_accepted(row.token_ids)
                unread.append((index, len(row.token_ids) - cached.num_read))
        return sorted(unread, key=lambda item: item[1])

    def _read_on(self, slot: int, token_ids: Sequence[int], end: int, limit: int) -> Unread:
        """The next at most `limit` unread tokens before `end`, counted as read from now on."""
        cached = self._cached.setdefault(slot, _Cached())
        start = cached.num_read
        cached.num_read = max(start, min(end, start + limit))
        return Unread(slot, start, token_ids[start : cached.num_read])
