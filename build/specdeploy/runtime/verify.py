"""Which drafted tokens the target accepts.

Words (vLLM's glossary): *draft* tokens are proposed; *accepted* ones equal the target's choice; the target's choice
at the first disagreement is the *recovered* token; when every draft is accepted its next choice is the *bonus* token;
*output* = accepted + recovered or bonus.

Every drafter here proposes one definite token per position, a point mass. For a point mass at token d the rule of
Leviathan et al. (arXiv:2211.17192) - accept with probability min(1, target_probs[d] / 1), else draw from the
target's distribution without d - is the same experiment as drawing the target's token first and accepting d if
it is the one drawn. Drawing first has a second virtue: the output does not depend on the draft at all, so it is
lossless token for token under sampling too, for the same seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verification:
    """Output tokens of one step (accepted, then recovered or bonus) and how many of them were drafted."""

    token_ids: tuple[int, ...]
    num_accepted: int


def verify(draft_ids: Sequence[int], choose: Callable[[int], int]) -> Verification:
    """Accept the longest prefix of `draft_ids` the target agrees with, then add the target's own token.

    `choose(i)` is the target's token after draft tokens 0..i-1; it is asked for i = 0.. in order and only as far as
    the drafts before it were accepted, so its logits always belong to text that is really there.
    """
    accepted: list[int] = []
    for draft_id in draft_ids:
        choice = choose(len(accepted))
        if choice != draft_id:
            return Verification((*accepted, choice), len(accepted))
        accepted.append(choice)
    return Verification((*accepted, choose(len(accepted))), len(accepted))
