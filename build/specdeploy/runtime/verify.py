"""Which drafted tokens the target accepts: three pure rules for three kinds of draft.

Words (vLLM's glossary): *draft* tokens are proposed; *accepted* ones are kept; the target's own token at the first
rejection is the *recovered* token; when every draft is accepted its next choice is the *bonus* token; *output* =
accepted + recovered or bonus.

A definite guess is a point mass. For a point mass at token d the rule of Leviathan et al. (arXiv:2211.17192) - accept
with probability min(1, target_probs[d] / 1), else draw from the target's distribution without d - is the same
experiment as drawing the target's token first and accepting d if it is the one drawn. Drawing first has a second
virtue: the output does not depend on the draft at all, so it is lossless token for token under sampling too, for the
same seed. That is `verify_chain` and `verify_tree`. A draft that was itself drawn at random is accepted more often
under the ratio rule; that is `verify_sampled`, lossless in distribution.

Every output token is told to `ends`, once and in order, before anything is asked about the text behind it. The block
stops with the token for which it answers True.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specdeploy.runtime.sampling import Stream, draw_index


@dataclass(frozen=True, slots=True)
class Verification:
    """Output tokens of one step: accepted ones, then the recovered or bonus token unless the text ended before.

    `accepted_nodes` are the indices of the accepted draft tokens, from the text on: 0, 1, .. in a chain, a path in a
    tree.
    """

    token_ids: tuple[int, ...]
    accepted_nodes: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        """Draft tokens among the output."""
        return len(self.accepted_nodes)


def never_ends(token_id: int) -> bool:  # noqa: ARG001 - the signature is the contract
    """The text goes on whatever is drawn."""
    return False


def verify_chain(
    draft_ids: Sequence[int], choose: Callable[[int], int], ends: Callable[[int], bool] = never_ends
) -> Verification:
    """Accept the longest prefix of `draft_ids` the target agrees with, then add the target's own token.

    `choose(i)` is the target's token after draft tokens 0..i-1; it is asked for i = 0.. in order and only as far as
    the drafts before it were accepted, so its logits always belong to text that is really there.
    """
    output: list[int] = []
    for index, draft_id in enumerate(draft_ids):
        choice = choose(index)
        output.append(choice)
        is_end = ends(choice)
        if choice != draft_id:
            return Verification(tuple(output), tuple(range(index)))
        if is_end:
            return Verification(tuple(output), tuple(range(index + 1)))
    return _with_own_token(output, range(len(draft_ids)), choose(len(draft_ids)), ends)


def verify_tree(
    draft_ids: Sequence[int],
    parents: Sequence[int],
    choose: Callable[[int], int],
    ends: Callable[[int], bool] = never_ends,
) -> Verification:
    """Walk down from the text: as long as the target's token is among the children, accept that child.

    Token i continues draft token `parents[i]`, -1 the text. `choose(node)` is the target's token after draft token
    `node` (-1: after the text); it is asked along the accepted path only. The walk of SpecInfer (arXiv:2305.09781)
    for point masses.
    """
    edges = zip(parents, draft_ids, strict=True)
    children = {edge: node for node, edge in enumerate(edges)}
    output: list[int] = []
    path: list[int] = []
    node = -1
    while True:
        choice = choose(node)
        output.append(choice)
        is_end = ends(choice)
        child = children.get((node, choice))
        if child is not None:
            path.append(child)
        if child is None or is_end:
            return Verification(tuple(output), tuple(path))
        node = child


def verify_sampled(
    draft_ids: Sequence[int],
    draft_probs: torch.Tensor,
    target_probs_at: Callable[[int], torch.Tensor],
    uniform_at: Callable[[Stream, int], float],
    ends: Callable[[int], bool] = never_ends,
) -> Verification:
    """Speculative sampling of a chain whose token i was drawn from `draft_probs[i]` ([n, V]).

    Leviathan et al. 2023, algorithm 1: accept token d with probability min(1, target_probs[d] / draft_probs[d]); at
    the first rejection draw from max(0, target_probs - draft_probs), normalised; behind a fully accepted chain draw
    from the target. `target_probs_at(i)` [V'] is the target's distribution after draft tokens 0..i-1, asked in order
    and only as far as needed. `uniform_at(stream, i)` are independent numbers in [0, 1), streams `accept` and
    `target`, also independent of those the draft was drawn with. The two vocabularies may end at different places:
    what one of them lacks has probability 0 there.
    """
    chosen = draft_probs[torch.arange(len(draft_ids)), torch.tensor(draft_ids, dtype=torch.long)].tolist()
    output: list[int] = []
    for index, (draft_id, draft_prob) in enumerate(zip(draft_ids, chosen, strict=True)):
        target_probs = target_probs_at(index)
        target_prob = float(target_probs[draft_id]) if draft_id < target_probs.shape[0] else 0.0
        if uniform_at("accept", index) * draft_prob >= target_prob:
            recovered = draw_index(residual_probs(target_probs, draft_probs[index]), uniform_at("target", index))
            return _with_own_token(output, range(index), recovered, ends)
        output.append(draft_id)
        if ends(draft_id):
            return Verification(tuple(output), tuple(range(index + 1)))
    last = len(draft_ids)
    bonus = draw_index(target_probs_at(last), uniform_at("target", last))
    return _with_own_token(output, range(last), bonus, ends)


def residual_probs(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """What the target has more of than the draft: max(0, target - draft), not normalised.

    Where rounding left nothing of it the two distributions are the same, and the target's own is as good.
    """
    shared = min(target_probs.shape[0], draft_probs.shape[0])
    residual = target_probs.clone()
    residual[:shared] -= draft_probs[:shared]
    residual.clamp_(min=0.0)
    return residual if float(residual.sum()) > 0.0 else target_probs


def _with_own_token(
    accepted: Sequence[int], nodes: Sequence[int], own: int, ends: Callable[[int], bool]
) -> Verification:
    ends(own)
    return Verification((*accepted, own), tuple(nodes))
