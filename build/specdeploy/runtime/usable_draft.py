"""What of a draft the engine verifies: cut to the row's depth and memory, to tokens that exist, to its grammar."""

from collections.abc import Sequence

from specdeploy.runtime.drafters.base import Draft
from specdeploy.runtime.request import GuidedOutput


def usable_draft(
    draft: Draft, *, max_depth: int, max_nodes: int, num_token_ids: int, guided: GuidedOutput | None, may_sample: bool
) -> Draft:
    """`draft` without the tokens that cannot be verified, and without what continues them.

    Those are tokens deeper than `max_depth` or beyond the first `max_nodes`, ids from `num_token_ids` on, and what the
    grammar forbids. Probabilities survive for a chain of a row that `may_sample`; there an id that does not exist is
    kept as the last one: it was drawn like any other and has to be rejected, or the draws would be biased.
    Raises ValueError for a tree whose children do not come after their parents.
    """
    if draft.parents is not None:
        draft = _cut_tree(draft.token_ids, draft.parents, max_depth, max_nodes, num_token_ids)
    else:
        probs = draft.probs if may_sample else None
        kept = _num_usable(draft.token_ids, min(max_depth, max_nodes), num_token_ids, keeps_first_bad=probs is not None)
        if kept < len(draft.token_ids) or probs is not draft.probs:
            draft = Draft(draft.token_ids[:kept], None, None if probs is None else probs[:kept])
    if guided is not None and draft.token_ids:
        draft = _selected(draft, guided.legal_draft(draft.token_ids, draft.parents))
    return draft


def depth_of(draft: Draft) -> int:
    """Tokens on the longest path of the draft."""
    return len(draft.token_ids) if draft.parents is None else max(_depths(draft.parents), default=-1) + 1


def _num_usable(token_ids: Sequence[int], most: int, num_token_ids: int, *, keeps_first_bad: bool) -> int:
    for index, token in enumerate(token_ids[:most]):
        if not 0 <= token < num_token_ids:
            return index + keeps_first_bad
    return min(len(token_ids), most)


def _cut_tree(
    token_ids: Sequence[int], parents: Sequence[int], max_depth: int, max_nodes: int, num_token_ids: int
) -> Draft:
    usable = [
        depth < max_depth and 0 <= token < num_token_ids
        for token, depth in zip(token_ids, _depths(parents), strict=True)
    ]
    kept: list[int] = []
    kept_set = {-1}
    for node, parent in enumerate(parents):
        if len(kept) < max_nodes and usable[node] and parent in kept_set:
            kept.append(node)
            kept_set.add(node)
    return _selected(Draft(tuple(token_ids), tuple(parents)), kept)


def _selected(draft: Draft, kept: Sequence[int]) -> Draft:
    """The draft of the tokens at `kept`, indices in order; with each its parent is kept too."""
    if len(kept) == len(draft.token_ids):
        return draft
    token_ids = tuple(draft.token_ids[node] for node in kept)
    if draft.parents is None:
        return Draft(token_ids)
    places = {-1: -1} | {node: place for place, node in enumerate(kept)}
    return Draft(token_ids, tuple(places[draft.parents[node]] for node in kept))


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ValueError(f"draft token {node} has parent {parent}: parents come before their children")
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths
