"""Medusa heads (Cai et al. 2024, arXiv:2401.10774): each guesses one token further ahead, all from one target state.

The state at text position i, after the final norm, predicts token i + 1 by the target's own head and token i + 2 + h by
Medusa head h. When a draft is asked for the newest state is that of position L - 2: the target's own guess is token
L - 1, which the text already has, head 0 guesses the first draft token, head 1 the second, whatever the first is.

A head is residual blocks x + SiLU(W x + b) and a linear layer to the vocabulary, as in FasterDecoding/Medusa
medusa/model/medusa_model.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from specdeploy.errors import CheckpointError
from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation
from specdeploy.runtime.drafters.draft_tree import DraftTree
from specdeploy.runtime.head_files import HeadFolder, open_head
from specdeploy.runtime.linear import Linear
from specdeploy.runtime.model import FINAL_NORM, DecoderModel


class MedusaHeads:
    """Canonical Medusa heads beside their target."""

    def __init__(self, folder: Path, target: DecoderModel) -> None:
        """Raises CheckpointError for heads that are not whole or fit another target."""
        files = open_head(folder, "medusa", dtype=target.dtype, device=target.device)
        facts = files.facts
        if facts.num_heads is None or facts.num_layers is None:
            raise CheckpointError(f"{folder}/head.json: num_heads, num_layers: not stated. Build the deployment again")
        self.num_heads, self.device = facts.num_heads, target.device
        self._target = target
        self._blocks = [
            [_take_block(files, head, block, target) for block in range(facts.num_layers)]
            for head in range(facts.num_heads)
        ]
        shared = _take_lm_head(files, "lm_head.weight", target)
        self._lm_heads = (
            [_take_lm_head(files, f"{head}.lm_head.weight", target) for head in range(facts.num_heads)]
            if shared is None
            else [shared] * facts.num_heads
        )
        files.weights.check_all_taken("Medusa heads")

    def logits(self, head: int, states: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] of head `head` for target states [R, H] after the final norm."""
        for block in self._blocks[head]:
            states = states + F.silu(block(states))
        lm_head = self._lm_heads[head]
        return self._target.head(states) if lm_head is None else lm_head(states)


@dataclass(frozen=True, slots=True)
class _Newest:
    """The state [H] of the newest position the target has read, and how many positions that makes."""

    num_read: int
    state: torch.Tensor


class MedusaDrafter:
    """Drafts the best guess of each head as a chain, or a static tree over the guesses of all heads.

    Guesses are definite also for rows that draw at random. A row whose newest state is unknown gets no draft.
    """

    hidden_layers = (FINAL_NORM,)

    def __init__(self, heads: MedusaHeads, *, vocab_size: int, tree: DraftTree | None = None) -> None:
        """`vocab_size` is the number of tokens the engine chooses from: none beyond it is drafted. Raises ValueError
        for a tree that is deeper than there are heads or asks for more guesses than there are tokens."""
        self._heads = heads
        self._num_ids = vocab_size
        self._tree = tree if tree is not None else DraftTree([[0] * depth for depth in range(1, heads.num_heads + 1)])
        self._is_chain = tree is None
        if self._tree.depth > heads.num_heads:
            raise ValueError(f"the tree is {self._tree.depth} deep, there are {heads.num_heads} Medusa heads")
        if self._tree.width > self._num_ids:
            raise ValueError(f"the tree asks for the {self._tree.width} best of {self._num_ids} tokens")
        self._ranks = [level.ranks for level in self._tree.indices(heads.device)]
        self._newest: dict[int, _Newest] = {}

    def max_draft_tokens(self, draft_len: int) -> int:
        """Nodes of the tree down to `draft_len`; a chain is a tree of one branch."""
        return self._tree.num_nodes(draft_len)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Keep the newest state of each row."""
        known = [seen for seen in observations if seen.hidden is not None and len(seen.hidden)]
        if known:
            # Stacked, so that no view keeps the states of a whole prompt chunk alive.
            states = torch.stack([seen.hidden[-1] for seen in known if seen.hidden is not None])
            for seen, state in zip(known, states, strict=True):
                self._newest[seen.slot] = _Newest(seen.num_read, state)

    @torch.inference_mode()
    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """One draft per row; an empty one where the newest state is not known."""
        drafts = [Draft()] * len(rows)
        depths = [self._depth(row) for row in rows]
        order = sorted((index for index, depth in enumerate(depths) if depth), key=lambda index: -depths[index])
        if not order:
            return drafts
        states = torch.stack([self._newest[rows[index].slot].state for index in order])  # [R, H]
        guesses: list[torch.Tensor] = []
        for depth, level in enumerate(self._tree.levels[: depths[order[0]]]):
            count = sum(depths[index] > depth for index in order)
            best = self._heads.logits(depth, states[:count])[:, : self._num_ids].topk(level.width, dim=-1).indices
            ranked = best[:, self._ranks[depth]]  # [count, nodes of the level]
            guesses.append(F.pad(ranked, (0, 0, 0, len(order) - count)))
        tokens = torch.cat(guesses, dim=1).tolist()
        for place, index in enumerate(order):
            size = self._tree.num_nodes(depths[index])
            parents = None if self._is_chain else self._tree.parents[:size]
            drafts[index] = Draft(tuple(tokens[place][:size]), parents=parents)
        return drafts

    def release(self, slot: int) -> None:
        """Forget what the slot holds."""
        self._newest.pop(slot, None)

    def _depth(self, row: DraftRow) -> int:
        newest = self._newest.get(row.slot)
        is_known = newest is not None and newest.num_read == len(row.token_ids) - 1
        return min(row.draft_len, self._tree.depth) if is_known else 0


def _take_block(files: HeadFolder, head: int, block: int, target: DecoderModel) -> Linear:
    hidden, prefix = target.config.hidden_size, f"{head}.{block}"
    files.check_shapes({f"{prefix}.linear.weight": (hidden, hidden), f"{prefix}.linear.bias": (hidden,)})
    return files.weights.take_linear(prefix, ("linear",))


def _take_lm_head(files: HeadFolder, name: str, target: DecoderModel) -> Linear | None:
    """A layer to the vocabulary; None where the folder has none of that name, and the target's serves."""
    files.check_shapes({name: (target.vocab_size, target.config.hidden_size)})
    weight = files.weights.take_optional(name)
    return None if weight is None else Linear(weight)
