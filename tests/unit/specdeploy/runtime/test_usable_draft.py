"""What of a draft is verified."""

from collections.abc import Sequence

import pytest
import torch

from specdeploy.runtime.drafters.base import Draft
from specdeploy.runtime.usable_draft import depth_of, usable_draft

#     text -> 0 -> 2 -> 4
#          -> 1 -> 3
TREE = Draft((10, 11, 12, 13, 14), (-1, -1, 0, 1, 2))


class EvenOnly:
    """Only even tokens are legal."""

    is_finished = False
    is_stuck = False

    def mask_logits(self, logits: torch.Tensor) -> None:
        raise NotImplementedError

    def accept(self, token_id: int) -> None:
        raise NotImplementedError

    def legal_draft(self, token_ids: Sequence[int], parents: Sequence[int] | None) -> list[int]:
        legal = {-1}
        for node, token in enumerate(token_ids):
            parent = node - 1 if parents is None else parents[node]
            if parent in legal and token % 2 == 0:
                legal.add(node)
        return sorted(legal - {-1})


def cut(
    draft: Draft,
    *,
    depth: int = 9,
    nodes: int = 9,
    num_ids: int = 100,
    guided: EvenOnly | None = None,
    may_sample: bool = True,
) -> Draft:
    return usable_draft(
        draft, max_depth=depth, max_nodes=nodes, num_token_ids=num_ids, guided=guided, may_sample=may_sample
    )


def test_a_draft_that_can_be_used_is_not_copied() -> None:
    chain = Draft((1, 2, 3), None, torch.ones(3, 4))
    assert cut(chain) is chain
    assert cut(Draft()) == Draft()
    assert cut(TREE) == TREE


@pytest.mark.parametrize(("limits", "left"), [({"depth": 2}, 2), ({"nodes": 1}, 1), ({"num_ids": 2}, 1)])
def test_a_chain_is_cut(limits: dict[str, int], left: int) -> None:
    assert cut(Draft((1, 2, 3)), **limits) == Draft((1, 2, 3)[:left])  # type: ignore[arg-type]
    assert cut(Draft((-1, 2)), num_ids=100) == Draft()


def test_probabilities_are_cut_with_their_tokens_and_kept_only_where_they_are_used() -> None:
    probs = torch.rand(3, 4)
    shorter = cut(Draft((1, 2, 3), None, probs), depth=2)
    assert shorter.probs is not None
    assert torch.equal(shorter.probs, probs[:2])
    assert cut(Draft((1, 2, 3), None, probs), may_sample=False) == Draft((1, 2, 3))


def test_a_drawn_token_that_does_not_exist_stays_to_be_rejected() -> None:
    cut_draft = cut(Draft((1, 200, 3), None, torch.rand(3, 4)))
    assert cut_draft.token_ids == (1, 200)
    assert cut_draft.probs is not None
    assert len(cut_draft.probs) == 2


def test_a_tree_loses_what_hangs_below_what_it_loses() -> None:
    assert cut(TREE, depth=2) == Draft((10, 11, 12, 13), (-1, -1, 0, 1))
    assert cut(TREE, depth=1) == Draft((10, 11), (-1, -1))
    assert cut(TREE, nodes=3) == Draft((10, 11, 12), (-1, -1, 0))
    assert cut(Draft((99, 11, 12, 13, 14), TREE.parents), num_ids=50) == Draft((11, 13), (-1, 0))
    assert cut(TREE, nodes=0) == Draft((), ())


def test_what_the_grammar_forbids_is_dropped() -> None:
    assert cut(Draft((2, 4, 5, 6)), guided=EvenOnly()) == Draft((2, 4))
    assert cut(TREE, guided=EvenOnly()) == Draft((10, 12, 14), (-1, 0, 1))
    assert cut(Draft((3,)), guided=EvenOnly()) == Draft()


def test_a_tree_must_name_parents_before_children() -> None:
    with pytest.raises(ValueError, match="draft token 1 has parent 2"):
        cut(Draft((1, 2, 3), (-1, 2, 0)))


def test_depth_is_the_longest_path() -> None:
    assert [depth_of(draft) for draft in (Draft(), Draft((1, 2)), TREE, Draft((), ()))] == [0, 2, 3, 0]
