"""The static tree: order, levels, and what is refused."""

import pytest
import torch

from specdeploy.runtime.drafters.draft_tree import DraftTree

CHOICES = [[1, 0], [0], [0, 0, 2], [1], [0, 0], [0, 1]]


def test_nodes_are_ordered_by_depth_and_know_their_parents() -> None:
    tree = DraftTree(CHOICES)
    assert tree.parents == (-1, -1, 0, 0, 1, 2)
    assert tree.ranks == (0, 1, 0, 1, 0, 2)
    assert (tree.depth, tree.width) == (3, 3)
    assert [tree.num_nodes(depth) for depth in (0, 1, 2, 3, 9)] == [0, 2, 5, 6, 6]


def test_a_level_names_its_parents_and_what_leads_to_them() -> None:
    roots, second, third = DraftTree(CHOICES).levels
    assert (roots.first, roots.end, roots.run, roots.parent_places) == (0, 2, (), (0, 0))
    assert (second.frontier, second.parent_places, second.run_parents) == ((0, 1), (0, 0, 1), (-1, -1))
    assert (third.frontier, third.parent_places, third.width) == ((2,), (0,), 3)
    assert (third.run, third.run_parents, third.frontier_places) == ((0, 2), (-1, 0), (1,))


def test_places_of_a_level_as_indices() -> None:
    tree = DraftTree(CHOICES)
    for level, indices in zip(tree.levels, tree.indices(torch.device("cpu")), strict=True):
        for name in ("ranks", "parent_places", "run", "frontier_places"):
            assert getattr(indices, name).dtype is torch.long
            assert getattr(indices, name).tolist() == list(getattr(level, name))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "needs nodes"),
        ([[]], "at least one rank"),
        ([[0], [0]], "twice"),
        ([[-1]], "count from 0"),
        ([[0], [1, 0]], r"its parent \[1\] is not in the tree"),
    ],
)
def test_what_is_no_tree_is_refused(choices: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(choices)
