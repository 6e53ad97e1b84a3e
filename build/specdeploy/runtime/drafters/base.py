"""The drafter protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row that wants drafts: its slot, all its tokens so far (prompt + output) and the most it can use."""

    slot: int
    token_ids: Sequence[int]
    draft_len: int


class Drafter(Protocol):
    """Proposes continuations. State is kept per slot and belongs to the row that owns the slot."""

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """The target has just read this far into the row's prompt; read as far, so that no later step stalls."""

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """For each row at most `draft_len` token ids; an empty list is an ordinary answer."""

    def release(self, slot: int) -> None:
        """The row left; forget it. Called for every slot that was ever used, drafted for or not."""
