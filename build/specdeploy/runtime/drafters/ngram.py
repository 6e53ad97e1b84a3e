"""Prompt lookup: continue the text as it went on after the last occurrence of its own ending.

Method of Saxena 2023 (prompt lookup decoding), as in transformers' and vLLM's n-gram drafters: the longest match is
tried first. Each n-gram is indexed once, when the token after it is known, so a step costs O(new tokens), never a
scan of the text.
"""

from collections.abc import Sequence

from specdeploy.runtime.drafters.lookup import LookupDrafter, TextIndex

# An n-gram is one integer of this many bits per token: cheaper to grow and to look up than a tuple, and exact.
_TOKEN_BITS = 32


class _NgramIndex:
    """Where each n-gram of one row ended last, for n in [min_size, max_size]."""

    __slots__ = ("_by_size", "_newest", "_num_read")

    def __init__(self, min_size: int, max_size: int) -> None:
        # (mask of n tokens, end of each n-gram), longest first.
        self._by_size: list[tuple[int, dict[int, int]]] = [
            ((1 << _TOKEN_BITS * size) - 1, {}) for size in range(max_size, min_size - 1, -1)
        ]
        self._newest = 0  # the last max_size tokens read, each + 1: the 0s before the text are no token and match none
        self._num_read = 0

    def read(self, token_ids: Sequence[int], end: int) -> None:
        """Index every n-gram that ends at or before `end`; the token after it must be known."""
        newest, longest = self._newest, self._by_size[0][0]
        for place in range(self._num_read, end):
            newest = (newest << _TOKEN_BITS | token_ids[place] + 1) & longest
            for mask, ends in self._by_size:
                ends[newest & mask] = place + 1
        self._newest, self._num_read = newest, max(self._num_read, end)

    def match(self, token_ids: Sequence[int], draft_len: int) -> tuple[int, int]:
        """The end of the latest earlier occurrence of the longest n-gram the text ends with."""
        self.read(token_ids, len(token_ids) - 1)
        ending = self._newest << _TOKEN_BITS | token_ids[-1] + 1
        for mask, ends in self._by_size:
            end = ends.get(ending & mask)
            if end is not None:
                return end, draft_len
        return 0, 0


class NgramDrafter(LookupDrafter):
    """Drafts from the row's own prompt and output."""

    def __init__(self, *, min_matching_ngram_size: int, max_matching_ngram_size: int) -> None:
        """The ending that is looked up has `max_matching_ngram_size` tokens, or as many as match, not below the min."""
        super().__init__()
        self._min_size, self._max_size = min_matching_ngram_size, max_matching_ngram_size

    def _new_index(self) -> TextIndex:
        return _NgramIndex(self._min_size, self._max_size)
