"""A static tree of drafts: which of the best guesses are tried at each place, the same at every step.

A node is a path of ranks from the root, as Medusa and EAGLE write their choices: [0] is the best guess for the next
token, [1] the second best, [0, 2] the third best after the best. Nodes are ordered by depth, so parents come first and
the nodes of one depth, and of all depths up to one, are neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch


@dataclass(frozen=True, slots=True)
class TreeLevel:
    """Nodes [first, end) of one depth, and what a drafter runs to know their parents' outputs.

    `ranks` of the nodes below their parents, `width` = the largest + 1. `frontier` are the distinct parents, and
    `parent_places` says which of them each node has. `run` are the frontier and its ancestors in order, `run_parents`
    their parents as places in `run` (-1: the root) and `frontier_places` where the frontier is in `run`. Nodes of
    depth 1 hang on the root: their frontier is empty and nothing is run.
    """

    first: int
    end: int
    ranks: tuple[int, ...]
    width: int
    frontier: tuple[int, ...]
    parent_places: tuple[int, ...]
    run: tuple[int, ...]
    run_parents: tuple[int, ...]
    frontier_places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LevelIndices:
    """What of a `TreeLevel` indexes tensors, on their device."""

    ranks: torch.Tensor
    parent_places: torch.Tensor
    run: torch.Tensor
    frontier_places: torch.Tensor


class DraftTree:
    """Nodes in order; `parents` as in `Draft.parents`; `levels[d]` the nodes of depth d + 1."""

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        """Raises ValueError for no nodes, a node twice, a negative rank, or a node whose parent is not in the tree."""
        paths = sorted((tuple(path) for path in choices), key=lambda path: (len(path), path))
        places = {path: index for index, path in enumerate(paths)}
        if not paths or not paths[0]:
            raise ValueError("a tree needs nodes, and a node at least one rank")
        if len(places) < len(paths):
            raise ValueError("a node is in the tree twice")
        for path in paths:
            if min(path) < 0:
                raise ValueError(f"node {list(path)}: ranks count from 0")
            if len(path) > 1 and path[:-1] not in places:
                raise ValueError(f"node {list(path)}: its parent {list(path[:-1])} is not in the tree")
        self.parents = tuple(places[path[:-1]] if len(path) > 1 else -1 for path in paths)
        self.ranks = tuple(path[-1] for path in paths)
        self.depth = len(paths[-1])
        ends = [sum(len(path) <= depth for path in paths) for depth in range(self.depth + 1)]
        self.levels = [self._level(first, end) for first, end in pairwise(ends)]

    @property
    def width(self) -> int:
        """Most guesses needed at one place."""
        return max(level.width for level in self.levels)

    def indices(self, device: torch.device) -> list[LevelIndices]:
        """Of every level. A drafter makes them once: a step must not wait for copies of them."""

        def on_device(places: tuple[int, ...]) -> torch.Tensor:
            return torch.tensor(places, dtype=torch.long, device=device)

        return [
            LevelIndices(
                ranks=on_device(level.ranks),
                parent_places=on_device(level.parent_places),
                run=on_device(level.run),
                frontier_places=on_device(level.frontier_places),
            )
            for level in self.levels
        ]

    def num_nodes(self, depth: int) -> int:
        """Nodes down to `depth`."""
        return 0 if depth < 1 else self.levels[min(depth, self.depth) - 1].end

    def _level(self, first: int, end: int) -> TreeLevel:
        parents, ranks = self.parents[first:end], self.ranks[first:end]
        frontier = sorted(set(parents) - {-1})
        needed: set[int] = set()
        for node in frontier:
            while node >= 0:
                needed.add(node)
                node = self.parents[node]
        run = sorted(needed)
        return TreeLevel(
            first=first,
            end=end,
            ranks=ranks,
            width=max(ranks) + 1,
            frontier=tuple(frontier),
            parent_places=tuple(frontier.index(parent) if parent >= 0 else 0 for parent in parents),
            run=tuple(run),
            run_parents=tuple(run.index(self.parents[node]) if self.parents[node] >= 0 else -1 for node in run),
            frontier_places=tuple(run.index(node) for node in frontier),
        )
