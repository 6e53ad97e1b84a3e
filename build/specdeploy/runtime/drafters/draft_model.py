"""A smaller checkpoint with the target's tokenizer drafts token by token, greedily, all rows at once."""

from collections.abc import Sequence

import torch

from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters.base import DraftRow
from specdeploy.runtime.model import DecoderModel


class DraftModelDrafter:
    """Keeps its own key/value memory, slot for slot beside the target's.

    After a step the draft's cache may hold tokens the target rejected; before the next draft everything cached since
    the last one is compared with the row's text, so no feedback about acceptance is needed and none can be missed.
    """

    def __init__(
        self, model: DecoderModel, *, num_slots: int, prefill_chunk: int = 256, num_token_ids: int | None = None
    ) -> None:
        """`num_token_ids` is the target's tokenizer length: ids beyond it are padding rows, never proposed. A row that
        is behind, because nothing was drafted for it for a while, reads `prefill_chunk` tokens a step until it is not.
        """
        self._model = model
        self._prefill_chunk = prefill_chunk
        self._num_token_ids = model.vocab_size if num_token_ids is None else num_token_ids
        self._cache = model.new_cache(num_slots)
        self._cached: dict[int, list[int]] = {}  # slot -> tokens whose keys and values are in the cache
        self._agreed: dict[int, int] = {}  # slot -> how many of them are known to be the row's text

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Read the prompt as far as the target has, so that the first draft need not."""
        cached = self._cached.setdefault(slot, [])
        pending = list(token_ids[len(cached) : self._model.max_seq_len])[: self._prefill_chunk]
        if pending:
            self._model.forward(pending, [Span(0, len(pending), slot, len(cached))], [], self._cache)
            cached.extend(pending)

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Draft each row's `draft_len` tokens; rows beyond the draft's own context get none."""
        drafts: list[list[int]] = [[] for _ in rows]
        pending: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            # Position len(token_ids) - 1 + draft_len - 1 is the last one this row would write.
            if row.draft_len and len(row.token_ids) + row.draft_len - 1 <= self._model.max_seq_len:
                unread = self._pending(row)
                if len(unread) <= self._prefill_chunk:
                    pending[index] = unread
                else:
                    self.prefill(row.slot, row.token_ids)
        while pending:
            for index, token in zip(list(pending), self._next_tokens(rows, pending), strict=True):
                drafts[index].append(token)
                if len(drafts[index]) < rows[index].draft_len:
                    pending[index] = [token]
                else:
                    del pending[index]
        return drafts

    def release(self, slot: int) -> None:
        """Forget what the slot holds."""
        self._cached.pop(slot, None)
        self._agreed.pop(slot, None)

    def _pending(self, row: DraftRow) -> list[int]:
        """Drop cached tokens that are not the row's text; return the text not cached yet (at least one token)."""
        cached = self._cached.setdefault(row.slot, [])
        agreed = self._agreed.get(row.slot, 0)
        while agreed < min(len(cached), len(row.token_ids) - 1) and cached[agreed] == row.token_ids[agreed]:
            agreed += 1
        del cached[agreed:]
        self._agreed[row.slot] = agreed
        return list(row.token_ids[agreed:])

    def _next_tokens(self, rows: Sequence[DraftRow], pending: dict[int, list[int]]) -> list[int]:
        """One batched draft step over the rows still drafting; returns the argmax of each."""
        token_ids: list[int] = []
        spans: list[Span] = []
        for index, tokens in pending.items():
            cached = self._cached[rows[index].slot]
            spans.append(Span(len(token_ids), len(token_ids) + len(tokens), rows[index].slot, len(cached)))
            token_ids.extend(tokens)
            cached.extend(tokens)
        logits = self._model.forward(token_ids, spans, [span.end - 1 for span in spans], self._cache).logits
        if self._model.target_ids is None:
            return torch.argmax(logits[:, : self._num_token_ids], dim=-1).tolist()
        return self._model.target_ids[torch.argmax(logits, dim=-1)].tolist()  # a trimmed lm_head has no padding rows
