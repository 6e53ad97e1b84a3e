"""One forward pass over the rows of a step: what is read, and where each row finds its results."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters.base import Draft
from specdeploy.runtime.row import Row

NO_DRAFT = Draft()


@dataclass(slots=True)
class RowStep:
    """A row's part of the step. `first_logit` is the logits row of its newest text token, that of draft token i is
    `first_logit + 1 + i`; None while its prompt goes on. `draft_len` is what was asked for, 0 for nothing."""

    row: Row
    span: Span
    draft: Draft
    draft_len: int
    first_logit: int | None
    kept_nodes: Sequence[int] = ()

    @property
    def num_text(self) -> int:
        """Tokens of the row's text that were read, its draft not counted."""
        return self.span.num_tokens - len(self.draft.token_ids)

    def hidden_of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of `hidden` [N, A*H] that belong to text: what was read of it, and the accepted draft tokens."""
        start, num_text, nodes = self.span.start, self.num_text, self.kept_nodes
        if is_prefix(nodes):
            return hidden[start : start + num_text + len(nodes)]
        places = [*range(start, start + num_text), *(start + num_text + node for node in nodes)]
        return hidden[torch.tensor(places, device=hidden.device)]


@dataclass(slots=True)
class StepBatch:
    """Tokens of all rows end to end. A token without a row in the vocabulary is read as its last one: such a draft
    token is rejected and what was read in its place is never looked at."""

    vocab_size: int
    token_ids: list[int] = field(default_factory=list)
    logit_positions: list[int] = field(default_factory=list)
    steps: list[RowStep] = field(default_factory=list)
    num_decoding: int = 0

    @property
    def spans(self) -> list[Span]:
        """One per row, in order."""
        return [step.span for step in self.steps]

    @property
    def has_prefill(self) -> bool:
        """Whether prompts are read in it."""
        return self.num_decoding < len(self.steps)

    @property
    def num_decoding_tokens(self) -> int:
        """Tokens of the decoding rows, drafts included."""
        return sum(step.span.num_tokens for step in self.steps[: self.num_decoding])

    def add_decoding(self, row: Row, draft: Draft, draft_len: int) -> None:
        """The row's newest token and its draft, all with logits. Decoding rows come before those that read prompts."""
        parents = None if draft.parents is None else (-1, *(parent + 1 for parent in draft.parents))
        read = draft.token_ids
        if draft.probs is not None:
            read = tuple(min(max(token, 0), self.vocab_size - 1) for token in read)
        self._add(row, [row.token_ids[-1], *read], draft, draft_len, 1 + len(draft.token_ids), parents)
        self.num_decoding += 1

    def add_prompt(self, row: Row, most: int) -> int:
        """Up to `most` tokens of the row's prompt; logits behind its last one only. Returns how many."""
        chunk = row.unread(most)
        self._add(row, chunk, NO_DRAFT, 0, 1 if len(chunk) == row.num_unread else 0, None)
        return len(chunk)

    def _add(
        self,
        row: Row,
        tokens: Sequence[int],
        draft: Draft,
        draft_len: int,
        num_logits: int,
        parents: tuple[int, ...] | None,
    ) -> None:
        start, end = len(self.token_ids), len(self.token_ids) + len(tokens)
        span = Span(start, end, row.slot, row.num_cached, parents)
        first_logit = len(self.logit_positions) if num_logits else None
        self.steps.append(RowStep(row, span, draft, draft_len, first_logit))
        self.token_ids.extend(tokens)
        self.logit_positions.extend(range(end - num_logits, end))


def is_prefix(nodes: Sequence[int]) -> bool:
    """Whether the accepted nodes are the first ones of the draft, as in every chain."""
    return not nodes or nodes[-1] == len(nodes) - 1
