"""Prompt lookup: continue the text as it went on after the last occurrence of its own ending.

Method of Saxena 2023 (prompt lookup decoding), as in transformers' and vLLM's n-gram drafters: the longest match is
tried first. Each n-gram is indexed once when the token after it is known, so a step costs O(new tokens), never a
scan of the prompt.
"""

from collections.abc import Sequence

from specdeploy.runtime.drafters.base import DraftRow


class _Index:
    """Last place each n-gram of one row ended, for n in [min_size, max_size]."""

    __slots__ = ("_ends", "_max_size", "_min_size", "_num_indexed")

    def __init__(self, min_size: int, max_size: int) -> None:
        self._min_size, self._max_size = min_size, max_size
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def extend(self, token_ids: Sequence[int]) -> None:
        """Index every n-gram that is followed by a token, i.e. that ends before the last one."""
        for end in range(self._num_indexed + 1, len(token_ids)):
            for size in range(self._min_size, min(self._max_size, end) + 1):
                self._ends[tuple(token_ids[end - size : end])] = end
        self._num_indexed = max(self._num_indexed, len(token_ids) - 1)

    def continuation(self, token_ids: Sequence[int], draft_len: int) -> list[int]:
        """What followed the latest earlier occurrence of the longest matching suffix."""
        for size in range(min(self._max_size, len(token_ids)), self._min_size - 1, -1):
            end = self._ends.get(tuple(token_ids[len(token_ids) - size :]))
            if end is not None:
                return list(token_ids[end : end + draft_len])
        return []


class NgramDrafter:
    """Drafts from the row's own prompt and output; shares nothing between rows."""

    def __init__(self, *, min_matching_ngram_size: int, max_matching_ngram_size: int) -> None:
        self._min_size, self._max_size = min_matching_ngram_size, max_matching_ngram_size
        self._indexes: dict[int, _Index] = {}

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """Index the prompt as it is read."""
        self._index(slot).extend(token_ids)

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """The continuation of each row's longest match, or nothing."""
        drafts = []
        for row in rows:
            index = self._index(row.slot)
            index.extend(row.token_ids)
            drafts.append(index.continuation(row.token_ids, row.draft_len))
        return drafts

    def release(self, slot: int) -> None:
        """Forget the row's index."""
        self._indexes.pop(slot, None)

    def _index(self, slot: int) -> _Index:
        return self._indexes.setdefault(slot, _Index(self._min_size, self._max_size))
