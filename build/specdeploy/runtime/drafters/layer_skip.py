"""Self-speculation: the target's own first layers draft, read out by its own final norm and head.

Method of LayerSkip (Elhoushi et al. 2024, arXiv:2404.16710): it needs a target trained for early exit to draft well,
and no other weights or memory. The draft's keys and values are the target's own: those of the text are there already,
those of drafted tokens are written behind the text, into the first layers only, and the verifying pass writes the
same places again in all layers.
"""

from collections.abc import Sequence

from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation
from specdeploy.runtime.drafters.rollout import Rollout, Unread
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel


class LayerSkipDrafter:
    """Shares the engine's key/value memory and keeps nothing of its own."""

    def __init__(self, model: DecoderModel, cache: KvCache, *, num_layers: int, vocab_size: int | None = None) -> None:
        """`model` is the target, `cache` the engine's, `num_layers` how many layers draft.

        `vocab_size`: the number of tokens the engine chooses from (logit columns it keeps); None: all the model has.
        Raises ValueError unless some layers draft and some are skipped.
        """
        if not 0 < num_layers < model.num_layers:
            raise ValueError(f"num_layers: {num_layers} is not in 1..{model.num_layers - 1}")
        self._rollout = Rollout(model, cache, vocab_size=vocab_size or model.vocab_size, num_layers=num_layers)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """None: what it needs of the target is in the cache."""
        return ()

    def max_draft_tokens(self, draft_len: int) -> int:
        """A chain."""
        return draft_len

    def observe(self, observations: Sequence[Observation]) -> None:
        """Nothing: what the target has read is in the cache."""

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """Each row's draft. The target has read all of its text but the newest token, which is read first."""
        fitting = [index for index, row in enumerate(rows) if self._rollout.depth_of(row)]
        unread = [
            Unread(rows[index].slot, len(rows[index].token_ids) - 1, rows[index].token_ids[-1:]) for index in fitting
        ]
        drafts = [Draft()] * len(rows)
        drafted = self._rollout.draft([rows[index] for index in fitting], unread)
        for index, draft in zip(fitting, drafted, strict=True):
            drafts[index] = draft
        return drafts

    def release(self, slot: int) -> None:
        """Nothing is kept."""
