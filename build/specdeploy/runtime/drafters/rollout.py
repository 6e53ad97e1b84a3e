"""Drafting token by token with a decoder: one batched forward per depth, over every row that still wants tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters.base import Draft, DraftRow
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.sampling import draw_index, target_probs, uniform_at


@dataclass(frozen=True, slots=True)
class Unread:
    """Text of one slot that its cache does not hold yet: `token_ids` follow the `num_cached` tokens it does hold."""

    slot: int
    num_cached: int
    token_ids: Sequence[int]


@dataclass(slots=True)
class _Chain:
    """The draft of one row as it grows. `next_ids` is what its next forward reads."""

    row: DraftRow
    depth: int
    num_cached: int
    next_ids: Sequence[int]
    token_ids: list[int]
    probs: list[torch.Tensor]

    def add(self, token_id: int) -> None:
        self.num_cached += len(self.next_ids)
        self.next_ids = [token_id]
        self.token_ids.append(token_id)


class Rollout:
    """Greedy drafts, or sampled ones for rows that draw at random."""

    def __init__(self, model: DecoderModel, cache: KvCache, *, vocab_size: int, num_layers: int | None = None) -> None:
        """`vocab_size` is V, the number of tokens the engine chooses from: none beyond it is drafted, and the
        probabilities of a draft are [n, V]. `num_layers` runs the first layers of the model only."""
        self._model, self._cache, self._num_layers = model, cache, num_layers
        self._vocab_size = vocab_size
        ids = model.target_ids
        self._token_ids = None if ids is None else ids.tolist()
        # Trimmed or not, the ids rise: the logits that are kept are the first ones.
        self._num_logits = min(model.num_logits, vocab_size) if ids is None else int((ids < vocab_size).sum())

    def depth_of(self, row: DraftRow) -> int:
        """How deep the row's draft can be: the last token but one is written at position len - 2 + depth."""
        return max(0, min(row.draft_len, self._model.max_seq_len + 1 - len(row.token_ids)))

    def draft(self, rows: Sequence[DraftRow], unread: Sequence[Unread], behind: Sequence[Unread] = ()) -> list[Draft]:
        """One draft per row, `depth_of` tokens deep, at least 1.

        `unread[i]` ends with row i's newest token. `behind` is read along with it and gets no draft.
        """
        chains = [
            _Chain(row, self.depth_of(row), text.num_cached, text.token_ids, [], [])
            for row, text in zip(rows, unread, strict=True)
        ]
        growing = chains
        while growing or behind:
            self._grow(growing, behind)
            behind = ()
            growing = [chain for chain in growing if len(chain.token_ids) < chain.depth]
        return [
            Draft(tuple(chain.token_ids), probs=torch.stack(chain.probs) if chain.probs else None) for chain in chains
        ]

    def _grow(self, chains: Sequence[_Chain], behind: Sequence[Unread]) -> None:
        """One forward; every chain gets its next token."""
        token_ids: list[int] = []
        spans: list[Span] = []
        texts = [Unread(chain.row.slot, chain.num_cached, chain.next_ids) for chain in chains]
        for text in (*texts, *behind):
            start = len(token_ids)
            token_ids.extend(text.token_ids)
            spans.append(Span(start, len(token_ids), text.slot, text.num_cached))
        places = [span.end - 1 for span in spans[: len(chains)]]
        output = self._model.forward(token_ids, spans, places, self._cache, num_layers=self._num_layers)
        logits = output.logits[:, : self._num_logits]
        for chain, token in zip(chains, self._choose(chains, logits), strict=True):
            chain.add(token)

    def _choose(self, chains: Sequence[_Chain], logits: torch.Tensor) -> list[int]:
        """The next token of each chain from its logits [n]; keeps the distribution a random one was drawn from."""
        if not chains:
            return []
        choices: list[int] = torch.argmax(logits, dim=-1).tolist()
        for index, chain in enumerate(chains):
            sampling = chain.row.sampling
            if sampling is not None:
                probs = target_probs(logits[index], sampling)
                position = chain.row.num_output + len(chain.token_ids)
                choices[index] = draw_index(probs, uniform_at(sampling.seed, position, stream="draft"))
                chain.probs.append(self._over_target(probs))
        return choices if self._token_ids is None else [self._token_ids[choice] for choice in choices]

    def _over_target(self, probs: torch.Tensor) -> torch.Tensor:
        """[n] over the draft's tokens -> [V] over the target's."""
        if self._model.target_ids is None:
            return F.pad(probs, (0, self._vocab_size - self._num_logits))
        spread = probs.new_zeros(self._vocab_size)
        spread[self._model.target_ids[: self._num_logits]] = probs
        return spread
