"""Medusa heads: which state, which token, chains and trees, and whole texts."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from helpers.head_oracles import MedusaOracle
from helpers.head_runs import CYCLE, GREEDY, SEEDED, edit_head, edit_json, generate, looking_back
from helpers.observed_rows import ObservedRow, draft_paths, read_prompts, walk
from helpers.toy_heads import write_medusa_heads
from specdeploy.errors import CheckpointError
from specdeploy.runtime.drafters.base import Draft
from specdeploy.runtime.drafters.draft_tree import DraftTree
from specdeploy.runtime.drafters.medusa import MedusaDrafter, MedusaHeads
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import SamplingParams

Plain = Callable[[Sequence[SamplingParams]], list[list[int]]]
VOCAB = 310
CHOICES = [[0], [1], [2], [0, 0], [1, 2], [0, 0, 1], [1, 2, 0]]


class Checked:
    """The definition: node [r0, r1, ..] holds the r-th best guess of head d at depth d."""

    def __init__(self, oracle: MedusaOracle, choices: list[list[int]], *, is_chain: bool) -> None:
        self._oracle, self._choices, self._is_chain = oracle, choices, is_chain
        self.num_drafts = 0

    def __call__(self, row: ObservedRow, depth: int, draft: Draft) -> None:
        if row.length - 2 not in row.seen:
            assert draft == Draft()
            return
        self.num_drafts += 1
        assert (draft.parents is None) == self._is_chain
        assert draft.probs is None
        state = row.states[row.length - 2]
        ranked = [self._oracle.logits(head, state)[:VOCAB].argsort(descending=True) for head in range(3)]
        assert draft_paths(draft) == {
            tuple(int(ranked[place][rank]) for place, rank in enumerate(path))
            for path in self._choices
            if len(path) <= depth
        }


@pytest.mark.parametrize("choices", [None, CHOICES], ids=["chain", "tree"])
@pytest.mark.parametrize(
    ("num_layers", "own_lm_head", "shared_lm_head"),
    [(1, True, False), (2, False, False), (0, True, False), (1, True, True)],
)
def test_it_drafts_as_the_definition_says(
    choices: list[list[int]] | None,
    num_layers: int,
    own_lm_head: bool,
    shared_lm_head: bool,
    tmp_path: Path,
    deep: DecoderModel,
    deep_folder: Path,
) -> None:
    folder = write_medusa_heads(
        tmp_path / "head",
        deep_folder,
        num_heads=3,
        num_layers=num_layers,
        own_lm_head=own_lm_head,
        shared_lm_head=shared_lm_head,
    )
    tree = None if choices is None else DraftTree(choices)
    drafter = MedusaDrafter(MedusaHeads(folder, deep), vocab_size=VOCAB, tree=tree)
    texts = [[(place * step) % 300 for place in range(60)] for step in (7, 11, 13)]
    rows = [
        ObservedRow(deep, slot, text, prompt_len, drafter.hidden_layers)
        for slot, (text, prompt_len) in enumerate(zip(texts, (1, 17, 8), strict=True))
    ]
    read_prompts(drafter, rows, 5)
    checked = Checked(MedusaOracle(folder, deep_folder), choices or [[0], [0, 0], [0, 0, 0]], is_chain=choices is None)
    walk(
        drafter,
        rows,
        num_steps=8,
        draft_len=lambda step, index: 1 + (step + index) % 4,
        num_accepted=lambda step, index: (step * index) % 3,
        check=checked,
        is_observed=lambda step, index: not (index == 1 and step in (2, 3)),
    )
    assert checked.num_drafts == 22
    drafter.release(0)
    assert drafter.propose([rows[0].draft_row(2)]) == [Draft()]


@pytest.mark.parametrize("choices", [None, CHOICES], ids=["chain", "tree"])
def test_texts_are_those_of_plain_decoding(
    choices: list[list[int]] | None, tmp_path: Path, deep: DecoderModel, deep_folder: Path, plain: Plain
) -> None:
    heads = MedusaHeads(write_medusa_heads(tmp_path / "head", deep_folder), deep)
    tree = None if choices is None else DraftTree(choices)
    random = SamplingParams(temperature=0.9, seed=22, has_own_seed=False)  # definite drafts: its text stays too
    for draft_len, samplings in [(1, [GREEDY] * 5), (6, [GREEDY, SEEDED, random, SEEDED, GREEDY])]:
        run = generate(deep, MedusaDrafter(heads, vocab_size=320, tree=tree), draft_len, samplings)
        assert run.outputs == plain(samplings)
        assert run.num_drafted > 0


def test_head_h_guesses_the_token_h_plus_two_places_on(tmp_path: Path, cycle: DecoderModel, cycle_folder: Path) -> None:
    """In a target that counts, heads that count further are never wrong; one place off they never would be right."""
    folder = write_medusa_heads(tmp_path / "head", cycle_folder, num_heads=3, num_layers=0)
    shape = (320, cycle.config.hidden_size)
    edit_head(folder, {f"{head}.lm_head.weight": looking_back(head + 2, shape) for head in range(3)})
    heads = MedusaHeads(folder, cycle)
    prompts = [[3, 1, 7, 7, 2], [5], [1 + place % CYCLE for place in range(40)]]
    run = generate(cycle, MedusaDrafter(heads, vocab_size=320), 3, prompts=prompts, max_tokens=13)
    assert run.outputs == [[1 + (prompt[-1] + place) % CYCLE for place in range(13)] for prompt in prompts]
    assert run.num_accepted == run.num_drafted >= 24


def test_a_shared_lm_head_is_one(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    folder = write_medusa_heads(tmp_path / "head", deep_folder, num_heads=3, shared_lm_head=True)
    first, *others = MedusaHeads(folder, deep)._lm_heads
    assert first is not None
    assert all(other is first for other in others)
    edit_head(folder, {"1.lm_head.weight": torch.zeros(320, deep.config.hidden_size)})
    with pytest.raises(CheckpointError, match=r"not part of Medusa heads, first 1\.lm_head\.weight"):
        MedusaHeads(folder, deep)
    edit_head(folder, {"lm_head.weight": torch.zeros(320, 16)}, remove=("1.lm_head.weight",))
    with pytest.raises(CheckpointError, match=r"lm_head.weight: shape \[320, 16\]"):
        MedusaHeads(folder, deep)


def test_trees_that_the_heads_cannot_fill_are_refused(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    heads = MedusaHeads(write_medusa_heads(tmp_path / "head", deep_folder, num_heads=2), deep)
    with pytest.raises(ValueError, match="3 deep, there are 2 Medusa heads"):
        MedusaDrafter(heads, vocab_size=VOCAB, tree=DraftTree(CHOICES))
    with pytest.raises(ValueError, match="the 4 best of 3 tokens"):
        MedusaDrafter(heads, vocab_size=3, tree=DraftTree([[3]]))
    assert MedusaDrafter(heads, vocab_size=VOCAB).max_draft_tokens(5) == 2
    assert MedusaDrafter(heads, vocab_size=VOCAB, tree=DraftTree([[0], [1], [0, 0]])).max_draft_tokens(1) == 2


def test_heads_that_are_not_whole_are_refused(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    folder = write_medusa_heads(tmp_path / "more", deep_folder)
    edit_json(folder / "head.json", num_heads=5)
    with pytest.raises(CheckpointError, match=r"4\.0\.linear\.weight is missing"):
        MedusaHeads(folder, deep)
    edit_json(folder / "head.json", num_heads=3)
    with pytest.raises(CheckpointError, match="tensors are not part of Medusa heads"):
        MedusaHeads(folder, deep)
    edit_json(folder / "head.json", num_heads=None)
    with pytest.raises(CheckpointError, match="not stated"):
        MedusaHeads(folder, deep)
    folder = write_medusa_heads(tmp_path / "other", deep_folder)
    edit_head(folder, {"1.lm_head.weight": torch.zeros(320, 16)})
    with pytest.raises(CheckpointError, match=r"1.lm_head.weight: shape \[320, 16\]"):
        MedusaHeads(folder, deep)
