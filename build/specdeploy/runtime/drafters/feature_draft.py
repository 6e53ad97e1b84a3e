"""Drafting with a head that reads the target's hidden states: EAGLE, EAGLE-3 and MTP differ in the head alone.

The state f_i of text position i goes with the embedding of token i + 1 and predicts token i + 2. When a draft is asked
for, the text has L tokens of which the target has read L - 1, so the pairs (f_0, token 1) .. (f_(L-2), token L-1) are
there and the output of the last one predicts the first draft token. Observed states wait until a draft, or a whole
prompt chunk, makes the head read them, those of all rows in one pass.

A head's cache holds the pairs it has read, in order. Where drafting was off for a while pairs are missing: the head
goes on behind the gap with the true positions, and drafts less well for lack of what it did not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation
from specdeploy.runtime.drafters.draft_tree import DraftTree, LevelIndices
from specdeploy.runtime.drafters.feature_head import FeatureHead
from specdeploy.runtime.request import SamplingParams
from specdeploy.runtime.sampling import draw_index, target_probs, uniform_at


@dataclass(slots=True)
class _SlotPairs:
    """Pairs of one row: `num_cached` read by the head; the rest pending, features [n, H] at text `positions`."""

    num_cached: int = 0
    positions: list[int] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)


class FeatureDrafter:
    """Drafts chains, or a static tree, with a `FeatureHead`.

    A row whose newest state is unknown, or lies beyond the head's context, gets no draft; a draft ends where the head's
    context does. Chains of rows with `sampling` are sampled and carry their probabilities; trees are the head's best
    guesses.
    """

    def __init__(
        self,
        head: FeatureHead,
        *,
        num_slots: int,
        vocab_size: int,
        tree: DraftTree | None = None,
        prefill_chunk: int = 256,
    ) -> None:
        """`vocab_size` is V, the number of tokens the engine chooses from: none beyond it is drafted, and the
        probabilities of a draft are [n, V]. A row's states wait for at most `prefill_chunk` positions. Raises
        ValueError for a tree that asks for more guesses than the head has tokens."""
        self._head = head
        self._vocab_size = vocab_size
        self._tree = tree
        self._indices = [] if tree is None else tree.indices(head.device)
        self._prefill_chunk = prefill_chunk
        self._num_ids = self._count_ids()
        if tree is not None and tree.width > self._num_ids:
            raise ValueError(f"the tree asks for the {tree.width} best of {self._num_ids} tokens")
        longest_run = 0 if tree is None else max(len(level.run) for level in tree.levels)
        self._cache = head.new_cache(num_slots, extra_tokens=longest_run)
        self._slots: dict[int, _SlotPairs] = {}

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The target states that the head reads."""
        return self._head.hidden_layers

    def max_draft_tokens(self, draft_len: int) -> int:
        """Tokens of the deepest chain, or of the tree down to `draft_len`."""
        return draft_len if self._tree is None else self._tree.num_nodes(draft_len)

    @torch.inference_mode()
    def observe(self, observations: Sequence[Observation]) -> None:
        """Keep the states as features; read them where a whole chunk is waiting."""
        known: list[tuple[Observation, range]] = []
        states: list[torch.Tensor] = []
        for seen in observations:
            if seen.hidden is None:
                continue
            first = seen.num_read - len(seen.hidden)
            positions = range(first, min(seen.num_read, self._head.max_positions))
            if positions:
                known.append((seen, positions))
                states.append(seen.hidden[: len(positions)])
        if not known:
            return
        features = self._head.fuse(torch.cat(states)).split([len(positions) for _, positions in known])
        full: list[tuple[int, Sequence[int]]] = []
        for (seen, positions), rows in zip(known, features, strict=True):
            pairs = self._slots.setdefault(seen.slot, _SlotPairs())
            pairs.positions += positions
            # Copied, so that a row that waits does not keep the states of others' prompts alive.
            pairs.features.append(rows.clone() if len(known) > 1 else rows)
            if len(pairs.positions) > self._prefill_chunk:
                full.append((seen.slot, seen.token_ids))
        if full:
            self._read(full, keeps_newest=True)  # the newest pair's output is wanted by the next draft

    @torch.inference_mode()
    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """One draft per row; an empty one where the head cannot follow the row."""
        drafts = [Draft()] * len(rows)
        depths = [self._depth(row) for row in rows]
        # Deepest first: the rows still drafting at a depth are then the first ones.
        order = sorted((index for index, depth in enumerate(depths) if depth), key=lambda index: -depths[index])
        if not order:
            return drafts
        drafting = [rows[index] for index in order]
        outputs = self._read([(row.slot, row.token_ids) for row in drafting])
        falling = [depths[index] for index in order]
        if self._tree is None:
            drawn = self._chains(drafting, falling, outputs)
        else:
            drawn = self._trees(self._tree, drafting, falling, outputs)
        for index, draft in zip(order, drawn, strict=True):
            drafts[index] = draft
        return drafts

    def release(self, slot: int) -> None:
        """Forget what the slot holds."""
        self._slots.pop(slot, None)

    def _count_ids(self) -> int:
        """Logits whose tokens may be proposed: the first ones, because d2t rises."""
        target_ids = self._head.target_ids
        return self._vocab_size if target_ids is None else int((target_ids < self._vocab_size).sum())

    def _depth(self, row: DraftRow) -> int:
        """How deep the row can be drafted for now; 0 where the head has not seen the newest state."""
        pairs = self._slots.get(row.slot)
        newest = len(row.token_ids) - 2
        if pairs is None or not pairs.positions or pairs.positions[-1] != newest or not self._num_ids:
            return 0
        deepest = row.draft_len if self._tree is None else min(row.draft_len, self._tree.depth)
        # Token d of a draft comes from the pair at position newest + d - 1.
        return max(0, min(deepest, self._head.max_positions - newest))

    def _read(self, rows: Sequence[tuple[int, Sequence[int]]], *, keeps_newest: bool = False) -> torch.Tensor:
        """Read the pending pairs of these slots, or all but the newest of each, given their texts.

        Returns the output of the last pair read of each [R, H].
        """
        token_ids: list[int] = []
        positions: list[int] = []
        features: list[torch.Tensor] = []
        spans: list[Span] = []
        for slot, text in rows:
            pairs = self._slots[slot]
            read, pending, kept = pairs.positions, pairs.features, pairs.features[:0]
            if keeps_newest:
                # Copied, so that the one kept does not keep a whole chunk alive.
                *before, newest = pending
                read, pending, kept = read[:-1], [*before, newest[:-1]], [newest[-1:].clone()]
            start = len(positions)
            token_ids += [text[position + 1] for position in read]
            positions += read
            features += pending
            spans.append(Span(start, len(positions), slot, pairs.num_cached))
            pairs.num_cached += len(read)
            pairs.positions, pairs.features = pairs.positions[len(read) :], kept
        tokens = torch.tensor(token_ids, dtype=torch.long, device=self._head.device)
        outputs = self._head.forward(tokens, torch.cat(features), spans, positions, self._cache)
        return outputs[torch.tensor([span.end - 1 for span in spans], device=self._head.device)]

    # --- chains -----------------------------------------------------------------------------------------------------

    def _chains(self, rows: Sequence[DraftRow], depths: Sequence[int], outputs: torch.Tensor) -> list[Draft]:
        """Draft token by token, all rows at once; `outputs` [R, H] of the rows' last pairs, `depths` falling."""
        chosen = torch.zeros(depths[0], len(rows), dtype=torch.long, device=outputs.device)  # [K, R]
        probs: list[list[torch.Tensor]] = [[] for _ in rows]
        for depth in range(depths[0]):
            count = sum(most > depth for most in depths)
            if depth:
                before = rows[:count]
                spans = [
                    Span(index, index + 1, row.slot, self._slots[row.slot].num_cached + depth - 1)
                    for index, row in enumerate(before)
                ]
                positions = [len(row.token_ids) - 2 + depth for row in before]
                outputs = self._head.forward(chosen[depth - 1, :count], outputs[:count], spans, positions, self._cache)
            logits = self._head.logits(outputs[:count])[:, : self._num_ids]
            best = logits.argmax(dim=-1)
            for index, row in enumerate(rows[:count]):
                if row.sampling is not None:
                    best[index], distribution = self._sample(logits[index], row.sampling, row.num_output + depth)
                    probs[index].append(distribution)
            chosen[depth, :count] = self._token_ids(best)
        columns = chosen.T.tolist()
        return [
            Draft(tuple(columns[index][:depth]), probs=torch.stack(probs[index]) if probs[index] else None)
            for index, depth in enumerate(depths)
        ]

    def _sample(self, logits: torch.Tensor, sampling: SamplingParams, position: int) -> tuple[int, torch.Tensor]:
        """Index of the logit [n] drawn for output position `position`, and the distribution [V] it was drawn from."""
        probs = target_probs(logits, sampling)
        drawn = draw_index(probs, uniform_at(sampling.seed, position, stream="draft"))
        if self._head.target_ids is None:
            return drawn, probs
        spread = probs.new_zeros(self._vocab_size)
        spread[self._head.target_ids[: self._num_ids]] = probs
        return drawn, spread

    def _token_ids(self, indices: torch.Tensor) -> torch.Tensor:
        return indices if self._head.target_ids is None else self._head.target_ids[indices]

    # --- trees ------------------------------------------------------------------------------------------------------

    def _trees(
        self, tree: DraftTree, rows: Sequence[DraftRow], depths: Sequence[int], outputs: torch.Tensor
    ) -> list[Draft]:
        """The head's best guesses at every place of the tree; `outputs` [R, H] of the last pairs, `depths` falling."""
        num_nodes = tree.num_nodes(depths[0])
        tokens = torch.zeros(len(rows), num_nodes, dtype=torch.long, device=outputs.device)
        features = outputs.new_zeros(len(rows), num_nodes, outputs.shape[1])  # the output of each node's parent
        for depth, level in enumerate(tree.levels[: depths[0]]):
            indices = self._indices[depth]
            count = sum(most > depth for most in depths)
            behind = outputs[:count, None]
            if level.run:
                behind = self._run_level(rows[:count], level.run_parents, indices, tokens, features)
            logits = self._head.logits(behind.flatten(0, 1))[:, : self._num_ids]
            best = self._token_ids(logits.topk(level.width, dim=-1).indices).unflatten(0, behind.shape[:2])  # [R, F, W]
            tokens[:count, level.first : level.end] = best[:, indices.parent_places, indices.ranks]
            features[:count, level.first : level.end] = behind[:, indices.parent_places]
        texts = tokens.tolist()
        drafts: list[Draft] = []
        for index, depth in enumerate(depths):
            size = tree.num_nodes(depth)
            drafts.append(Draft(tuple(texts[index][:size]), parents=tree.parents[:size]))
        return drafts

    def _run_level(
        self,
        rows: Sequence[DraftRow],
        run_parents: tuple[int, ...],
        indices: LevelIndices,
        tokens: torch.Tensor,
        features: torch.Tensor,
    ) -> torch.Tensor:
        """Outputs [R, F, H] of the frontier of the level with these indices.

        Its ancestors run again: they are few, and one span can then say the whole tree.
        """
        size = len(run_parents)
        spans: list[Span] = []
        positions: list[int] = []
        for index, row in enumerate(rows):
            start = index * size
            span = Span(start, start + size, row.slot, self._slots[row.slot].num_cached, run_parents)
            spans.append(span)
            positions += [len(row.token_ids) - 1 + depth for depth in span.depths()]
        outputs = self._head.forward(
            tokens[: len(rows), indices.run].flatten(),
            features[: len(rows), indices.run].flatten(0, 1),
            spans,
            positions,
            self._cache,
        )
        apart: torch.Tensor = outputs.unflatten(0, (len(rows), size))
        return apart[:, indices.frontier_places]
