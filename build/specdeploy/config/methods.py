"""Sections of `speculation` that belong to one drafting method each: `speculation.<method>`."""

from typing import Annotated, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from specdeploy.config.problems import Problem, ProblemsError, raise_if_any
from specdeploy.contract import ContractModel

# Nodes of a draft tree: every one costs the target a token of its step.
MAX_TREE_NODES = 256
Rank = Annotated[int, Field(ge=0, le=MAX_TREE_NODES - 1)]


class NgramConfig(ContractModel):
    """Prompt lookup: the longest match of at most `max_matching_ngram_size` last tokens is continued.

    With method `auto` the smallest match is the largest too, unless it is written: shorter ones go to the draft.
    """

    min_matching_ngram_size: PositiveInt = 1
    max_matching_ngram_size: PositiveInt = 3

    @model_validator(mode="after")
    def _sizes_are_ordered(self) -> Self:
        if self.min_matching_ngram_size > self.max_matching_ngram_size:
            reason = f"{self.min_matching_ngram_size} exceeds max_matching_ngram_size {self.max_matching_ngram_size}"
            remedy = "Make it at most max_matching_ngram_size."
            raise ProblemsError([Problem("min_matching_ngram_size", reason, remedy)])
        return self


class SuffixConfig(ContractModel):
    """Suffix automaton: the longest suffix of the text that was there before, of any length, is continued."""

    min_matching_size: Annotated[PositiveInt, Field(description="Shorter matches are not continued.")] = 2


class LayerSkipConfig(ContractModel):
    """The target's own first layers draft, read out by its own head."""

    num_layers: Annotated[PositiveInt | None, Field(description="Layers that draft; fewer than the target has.")] = None


class TreePaths(ContractModel):
    """Base of heads that propose a tree: `choices` lists the paths from the root, each a list of child ranks."""

    choices: Annotated[
        tuple[tuple[Rank, ...], ...] | None,
        Field(
            description="Tree paths such as [[0], [0, 0], [1]]; null = a chain of max_draft_len (lane torch), "
            "or the engine's default tree mc_sim_7b_63 (lane trtllm_engine)."
        ),
    ] = None

    @field_validator("choices")
    @classmethod
    def _paths_are_a_tree(cls, choices: tuple[tuple[int, ...], ...] | None) -> tuple[tuple[int, ...], ...] | None:
        """A path needs its parent, and none may be there twice."""
        problems: list[Problem] = []
        seen: set[tuple[int, ...]] = set()
        for index, path in enumerate(choices or ()):
            if not path:
                problems.append(Problem(f"[{index}]", "an empty path", "The root is implied: remove it."))
            elif path in seen:
                problems.append(Problem(f"[{index}]", f"path {list(path)} is there already", "Remove one of them."))
            elif len(path) > 1 and path[:-1] not in set(choices or ()):
                reason = f"path {list(path)} has no parent {list(path[:-1])}"
                problems.append(Problem(f"[{index}]", reason, "Add the parent."))
            seen.add(path)
        if choices is not None and not choices:
            problems.append(Problem("", "an empty tree proposes nothing", "Write null or at least one path."))
        if choices is not None and len(choices) > MAX_TREE_NODES:
            reason = f"{len(choices)} paths exceed the {MAX_TREE_NODES} nodes that one step may verify"
            problems.append(Problem("", reason, "Leave out the least likely paths."))
        raise_if_any(problems)
        return choices

    @property
    def depth(self) -> int | None:
        """Tokens of the longest path; None without choices."""
        return None if self.choices is None else max(len(path) for path in self.choices)


class MedusaConfig(TreePaths):
    """Medusa heads. The tree must not be deeper than `num_heads`; `speculation.max_draft_len` is the depth used."""

    num_heads: PositiveInt = 4
    num_layers: PositiveInt = 1


class EagleConfig(TreePaths):
    """An EAGLE-1 head. The engine lane freezes both numbers: its longest paths are exactly `num_layers` deep."""

    num_layers: PositiveInt = 4
    max_non_leaves_per_layer: PositiveInt = 10


class Eagle3Config(TreePaths):
    """An EAGLE-3 head: a chain, or the static tree of `choices` (lane torch)."""


class RedrafterConfig(ContractModel):
    """ReDrafter: both numbers are frozen in the engine."""

    num_beams: PositiveInt = 5
    draft_len_per_beam: PositiveInt = 5


class LookaheadConfig(ContractModel):
    """Lookahead decoding (W, N, G); `speculation.max_draft_len` must be `lookahead_draft_len` of it."""

    window_size: PositiveInt = 7
    ngram_size: PositiveInt = 7
    verification_set_size: PositiveInt = 7


def lookahead_draft_len(config: LookaheadConfig) -> int:
    """Draft tokens of lookahead decoding, (0 if N = 1 else N-2) + (W-1+G)(N-1): (7, 7, 7) gives 83.

    Source: TensorRT-LLM examples/lookahead/README.md at commit 7ed07f06.
    """
    n = config.ngram_size
    return (0 if n == 1 else n - 2) + (config.window_size - 1 + config.verification_set_size) * (n - 1)
