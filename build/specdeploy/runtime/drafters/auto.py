"""Two drafters as one: copies from the row's own text where it repeats itself, a model's drafts elsewhere."""

from collections.abc import Sequence

from specdeploy.runtime.drafters.base import Draft, Drafter, DraftRow, Observation
from specdeploy.runtime.drafters.lookup import LookupDrafter


class AutoDrafter:
    """Asks the lookup first, because it costs nothing, and the model for the rows that have no match.

    The rows are split anew in every step. Both observe everything, so that either can take over at any time. How long
    a match must be to be trusted is the lookup's own smallest match: with 1 nearly every text has one, and the model
    would never be asked.
    """

    def __init__(self, lookup: LookupDrafter, model: Drafter) -> None:
        self._lookup, self._model = lookup, model

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """What the model drafter reads; a lookup reads the text alone."""
        return self._model.hidden_layers

    def max_draft_tokens(self, draft_len: int) -> int:
        """Either may draft, so there must be room for the larger."""
        return max(self._lookup.max_draft_tokens(draft_len), self._model.max_draft_tokens(draft_len))

    def observe(self, observations: Sequence[Observation]) -> None:
        """Both are told."""
        self._lookup.observe(observations)
        self._model.observe(observations)

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """A copy where there is a match; one call of the model drafter for all other rows."""
        drafts = self._lookup.propose(rows)
        without = [index for index, draft in enumerate(drafts) if not draft.token_ids]
        if without:
            proposed = self._model.propose([rows[index] for index in without])
            for index, draft in zip(without, proposed, strict=True):
                drafts[index] = draft
        return drafts

    def release(self, slot: int) -> None:
        """Both forget the row."""
        self._lookup.release(slot)
        self._model.release(slot)
