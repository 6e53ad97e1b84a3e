"""The drafter protocol: who proposes tokens, what it is told, and what a draft is.

A drafter never decides anything about the output. It is asked (`propose`) before a target step and told (`observe`)
after it; whatever it proposes, the target's own choice is what is emitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from specdeploy.runtime.request import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row that wants drafts.

    `token_ids` is the row's whole text, prompt and output; it is the engine's own list, so it must not be kept or
    changed. `draft_len` >= 1 is the deepest draft the row can use now. `num_output` tokens of the text are output.

    `sampling` is set when the row draws at random and may be verified by the ratio rule: a drafter with probabilities
    then samples each token from `target_probs(own logits, sampling)` and returns them in `Draft.probs`. Without it, or
    for a drafter without probabilities, the draft is a definite guess.
    """

    slot: int
    token_ids: Sequence[int]
    draft_len: int
    num_output: int = 0
    sampling: SamplingParams | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens for the target to verify in one pass; no tokens is an ordinary answer.

    `parents` makes them a tree: token i continues draft token `parents[i]`, -1 the row's text, parents before children,
    siblings differ. None is a chain. `probs` [n, V] float32: the distribution each token of a chain was sampled from;
    None says that every token is a point mass.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    probs: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What the target has just read of one row.

    `token_ids` the row's whole text now, the newest, unread token included (engine's own list: do not keep it);
    `num_read` tokens of it the target has read; `hidden` [n, A*H]: for text positions num_read-n .. num_read-1, the
    states of the drafter's `hidden_layers` side by side (None when it asked for none).
    """

    slot: int
    token_ids: Sequence[int]
    num_read: int
    hidden: torch.Tensor | None


class Drafter(Protocol):
    """Proposes continuations. State is kept per slot and belongs to the row that owns the slot.

    The engine observes and asks for a row only while drafting is planned for it, so positions may be missing between
    two observations of a row; a drafter that needs them all drafts nothing, or less well, after a gap.
    """

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Which states of the target it reads, as `DecoderModel.forward` names them; () for none."""

    def max_draft_tokens(self, draft_len: int) -> int:
        """Most tokens of one draft of depth `draft_len`: what the row's key/value memory must have room for."""

    def observe(self, observations: Sequence[Observation]) -> None:
        """The target has read further in these rows: in their prompts, or their accepted drafts. Only what is kept is
        reported, so nothing observed is ever taken back."""

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """One draft per row, no deeper than its `draft_len`."""

    def release(self, slot: int) -> None:
        """The row left; forget it. Called for every slot that was ever used, drafted for or not."""
