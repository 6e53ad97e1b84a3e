"""What drafters that copy from the row's own text have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation


class TextIndex(Protocol):
    """An index of one row's text, which only ever grows."""

    def read(self, token_ids: Sequence[int], end: int) -> None:
        """Index the text before `end`; what was read before is not read again."""

    def match(self, token_ids: Sequence[int], draft_len: int) -> tuple[int, int]:
        """(place, number of tokens) to copy as the continuation of the whole text; 0 tokens without a match."""


def copy_from(token_ids: Sequence[int], place: int, num_tokens: int) -> tuple[int, ...]:
    """`num_tokens` tokens of the text from `place` on.

    A copy that reaches the end of the text goes on into itself, as overlapping copies do in LZ77 (Ziv and Lempel
    1977): after "a b a b" comes "a b a b a ...".
    """
    found = tuple(token_ids[place : place + num_tokens])
    if len(found) < num_tokens:
        return (found * -(-num_tokens // len(found)))[:num_tokens]
    return found


class LookupDrafter(ABC):
    """One index per row; rows share nothing. A draft is always as deep as the index says, whatever the text's end."""

    def __init__(self) -> None:
        self._indexes: dict[int, TextIndex] = {}

    @abstractmethod
    def _new_index(self) -> TextIndex:
        """The index of an empty text."""

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """None: it reads the text alone."""
        return ()

    def max_draft_tokens(self, draft_len: int) -> int:
        """A chain."""
        return draft_len

    def observe(self, observations: Sequence[Observation]) -> None:
        """Index prompts as they are read, so that the first draft need not."""
        for seen in observations:
            self._index(seen.slot).read(seen.token_ids, min(seen.num_read, len(seen.token_ids) - 1))

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """The continuation of each row's longest match, or nothing."""
        return [self._draft(row) for row in rows]

    def release(self, slot: int) -> None:
        """Forget the row's index."""
        self._indexes.pop(slot, None)

    def _draft(self, row: DraftRow) -> Draft:
        place, num_tokens = self._index(row.slot).match(row.token_ids, row.draft_len)
        return Draft(copy_from(row.token_ids, place, num_tokens)) if num_tokens else Draft()

    def _index(self, slot: int) -> TextIndex:
        index = self._indexes.get(slot)
        if index is None:
            index = self._indexes[slot] = self._new_index()
        return index
