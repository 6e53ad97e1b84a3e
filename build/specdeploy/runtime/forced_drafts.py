"""Drafting as deep as a measurement wants, with the time that drafting as served would take."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdeploy.runtime.draft_length import DraftLengthPolicy, StepTiming
from specdeploy.runtime.drafters.base import Draft, Drafter, DraftRow, Observation


@dataclass(slots=True)
class ForcedDraftLength:
    """Asks the policy that would serve, so that its time is in the step, and drafts `forced` tokens."""

    served: DraftLengthPolicy
    forced: int = 0
    timing: StepTiming | None = None

    def draft_len(self, slot: int, cap: int, num_rows: int) -> int:
        """The forced K, within the cap."""
        self.served.draft_len(slot, cap, num_rows)
        return min(self.forced, cap)

    def record(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        """Passed on."""
        self.served.record(slot, num_drafted, num_accepted)

    def record_step(self, timing: StepTiming) -> None:
        """Kept, and passed on."""
        self.timing = timing
        self.served.record_step(timing)

    def release(self, slot: int) -> None:
        """Passed on."""
        self.served.release(slot)


class FilledDrafts:
    """A drafter that may find nothing, made to draft as deep as it is asked to."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The drafter's."""
        return self._drafter.hidden_layers

    def max_draft_tokens(self, draft_len: int) -> int:
        """The drafter's."""
        return self._drafter.max_draft_tokens(draft_len)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Passed on."""
        self._drafter.observe(observations)

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """What the drafter finds, its last token repeated (else the text's) until the draft is full."""
        drafts = self._drafter.propose(rows)
        return [_filled(draft, row) for draft, row in zip(drafts, rows, strict=True)]

    def release(self, slot: int) -> None:
        """Passed on."""
        self._drafter.release(slot)


def _filled(draft: Draft, row: DraftRow) -> Draft:
    tokens = draft.token_ids or (row.token_ids[-1],)
    return Draft((*tokens, *(tokens[-1:] * (row.draft_len - len(tokens)))))
