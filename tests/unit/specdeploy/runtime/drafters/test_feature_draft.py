"""The loop around a head: pairs, chunks, gaps, limits, sampling. Shown with an EAGLE-1 head and its oracle."""

import random
from pathlib import Path

import pytest
import torch

from helpers.head_oracles import EagleOracle
from helpers.observed_rows import ObservedRow, draft_paths, read_prompts, walk
from helpers.toy_heads import write_eagle_head
from specdeploy.runtime.drafters.base import Draft, DraftRow
from specdeploy.runtime.drafters.draft_tree import DraftTree
from specdeploy.runtime.drafters.eagle import EagleHead
from specdeploy.runtime.drafters.feature_draft import FeatureDrafter
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import SamplingParams
from specdeploy.runtime.sampling import draw_index, target_probs, uniform_at

VOCAB = 310  # below the target's 320: the last ten are padding
CHOICES = [[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 0, 0], [0, 0, 1], [2, 0, 0], [0, 0, 1, 0]]
LIMIT = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, deep_folder: Path) -> Path:
    return write_eagle_head(tmp_path_factory.mktemp("eagle") / "head", deep_folder)


@pytest.fixture(scope="module")
def head(folder: Path, deep: DecoderModel) -> EagleHead:
    return EagleHead(folder, deep)


@pytest.fixture(scope="module")
def oracle(folder: Path, deep_folder: Path) -> EagleOracle:
    return EagleOracle(folder, deep_folder)


def rows_of(target: DecoderModel, head: EagleHead, *prompt_lens: int, length: int = 80) -> list[ObservedRow]:
    generator = random.Random(len(prompt_lens))
    return [
        ObservedRow(target, slot, [generator.randrange(VOCAB) for _ in range(length)], prompt_len, head.hidden_layers)
        for slot, prompt_len in enumerate(prompt_lens)
    ]


class Checked:
    """Compares drafts with the oracle's and counts them."""

    def __init__(self, oracle: EagleOracle, choices: list[list[int]] | None = None) -> None:
        self._oracle, self._choices = oracle, choices
        self.num_drafts = self.num_empty = 0

    def __call__(self, row: ObservedRow, depth: int, draft: Draft) -> None:
        if row.length - 2 not in row.seen:
            assert draft == Draft()
            self.num_empty += 1
            return
        self.num_drafts += 1
        text = row.text[: row.length]
        if self._choices is None:
            assert draft.parents is None
            assert draft.token_ids == self._oracle.chain(text, row.seen, depth, vocab=VOCAB)
        else:
            nodes = [path for path in self._choices if len(path) <= depth]
            assert draft_paths(draft) == self._oracle.tree(text, row.seen, nodes, vocab=VOCAB)
            assert len(draft.token_ids) == len(nodes)


@pytest.mark.parametrize("choices", [None, CHOICES], ids=["chain", "tree"])
@pytest.mark.parametrize("prefill_chunk", [1, 8, 256])
def test_ragged_rows_draft_what_the_head_says_of_each_alone(
    choices: list[list[int]] | None, prefill_chunk: int, deep: DecoderModel, head: EagleHead, oracle: EagleOracle
) -> None:
    """Prompts below, at and above the chunk; partial acceptance; every depth in every company."""
    tree = None if choices is None else DraftTree(choices)
    drafter = FeatureDrafter(head, num_slots=4, vocab_size=VOCAB, tree=tree, prefill_chunk=prefill_chunk)
    rows = rows_of(deep, head, 1, 19, 8, 9)
    read_prompts(drafter, rows, 5)
    checked = Checked(oracle, choices)
    walk(
        drafter,
        rows,
        num_steps=6,
        draft_len=lambda step, index: (step + 2 * index) % 6,
        num_accepted=lambda step, index: (step * index) % 4,
        check=checked,
    )
    assert checked.num_drafts == 20
    assert checked.num_empty == 0


def test_behind_a_gap_a_row_is_drafted_for_without_what_was_missed(
    deep: DecoderModel, head: EagleHead, oracle: EagleOracle
) -> None:
    """Row 0 is off for three steps in the middle, row 1 from the start, row 2 every other step."""
    drafter = FeatureDrafter(head, num_slots=3, vocab_size=VOCAB, prefill_chunk=8)
    rows = rows_of(deep, head, 7, 12, 5)
    read_prompts(drafter, [rows[0], rows[2]], 4)
    rows[1].read(12, is_observed=False)
    off = {0: range(3, 6), 1: range(4), 2: range(0, 10, 2)}
    checked = Checked(oracle)
    walk(
        drafter,
        rows,
        num_steps=10,
        draft_len=lambda step, index: 3,
        num_accepted=lambda step, index: step % 3,
        check=checked,
        is_observed=lambda step, index: step not in off[index],
    )
    assert checked.num_drafts > 12
    assert checked.num_empty == 3 + 5 + 5


@pytest.mark.parametrize("sizes", [(1, 20), (20,)])
def test_waiting_features_keep_no_storage_but_their_own(
    sizes: tuple[int, ...], deep: DecoderModel, head: EagleHead
) -> None:
    """A row that waits beside others' prompts must not keep theirs alive."""
    drafter = FeatureDrafter(head, num_slots=2, vocab_size=VOCAB)
    rows = rows_of(deep, head, *sizes)
    drafter.observe([part for row in rows for part in row.read(row.prompt_len)])
    for row, size in zip(rows, sizes, strict=True):
        (features,) = drafter._slots[row.slot].features
        assert features.shape[0] == size
        assert features.untyped_storage().nbytes() == features.numel() * features.element_size()


def test_a_pair_kept_behind_a_chunk_keeps_no_storage_but_its_own(deep: DecoderModel, head: EagleHead) -> None:
    drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB, prefill_chunk=8)
    row = rows_of(deep, head, 20)[0]
    drafter.observe(row.read(20))
    (kept,) = drafter._slots[0].features
    assert kept.untyped_storage().nbytes() == kept.numel() * kept.element_size()
    assert (drafter._slots[0].num_cached, drafter._slots[0].positions, len(kept)) == (19, [19], 1)


def test_a_released_slot_is_forgotten(deep: DecoderModel, head: EagleHead, oracle: EagleOracle) -> None:
    drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB, prefill_chunk=8)
    first, second = rows_of(deep, head, 30, 6)
    second.slot = 0
    drafter.release(0)  # never used: allowed
    read_prompts(drafter, [first], 8)
    drafter.release(0)
    assert drafter.propose([second.draft_row(3)]) == [Draft()]
    read_prompts(drafter, [second], 8)
    checked = Checked(oracle)
    walk(drafter, [second], num_steps=3, draft_len=lambda *_: 3, num_accepted=lambda *_: 1, check=checked)
    assert checked.num_drafts == 3


@pytest.mark.parametrize("choices", [None, CHOICES], ids=["chain", "tree"])
def test_drafts_end_at_the_heads_context(
    choices: list[list[int]] | None, tmp_path: Path, deep: DecoderModel, deep_folder: Path
) -> None:
    """The pair of the last position the head knows predicts one token; a row beyond it gets none."""
    folder = write_eagle_head(tmp_path / "head", deep_folder, max_positions=LIMIT)
    head, oracle = EagleHead(folder, deep), EagleOracle(folder, deep_folder)
    assert head.max_positions == LIMIT
    tree = None if choices is None else DraftTree(choices)
    for length in range(LIMIT - 3, LIMIT + 4):
        drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB, tree=tree, prefill_chunk=8)
        row = rows_of(deep, head, length - 1)[0]
        read_prompts(drafter, [row], 6)
        draft = drafter.propose([row.draft_row(4)])[0]
        depth = max(0, min(4, LIMIT - (length - 2)))
        if not depth:
            assert draft == Draft()
        else:
            Checked(oracle, choices)(row, depth, draft)


def test_it_reads_no_further_than_the_target_can(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    folder = write_eagle_head(tmp_path / "head", deep_folder, max_positions=4 * deep.max_seq_len)
    assert EagleHead(folder, deep).max_positions == deep.max_seq_len


def test_random_rows_get_sampled_chains_with_their_distributions(
    deep: DecoderModel, head: EagleHead, oracle: EagleOracle
) -> None:
    sampling = SamplingParams(temperature=60.0, top_k=40, seed=3, has_own_seed=False)  # the head is very sure
    drafter = FeatureDrafter(head, num_slots=2, vocab_size=VOCAB)
    rows = rows_of(deep, head, 6, 9)
    read_prompts(drafter, rows, 8)
    for row in rows:
        row.length += 2  # two output tokens, so that positions in the output and in the text differ
        drafter.observe(row.read(row.length - 1))
    greedy, sampled = drafter.propose([rows[0].draft_row(3), rows[1].draft_row(4, sampling)])
    assert greedy.probs is None
    assert greedy.token_ids == oracle.chain(rows[0].text[: rows[0].length], rows[0].seen, 3, vocab=VOCAB)
    assert sampled.probs is not None
    assert sampled.probs.shape == (4, VOCAB)
    for depth, token in enumerate(sampled.token_ids):
        logits, _ = oracle.guesses(rows[1].text[: rows[1].length], rows[1].seen, sampled.token_ids[:depth])
        probs = target_probs(logits[:VOCAB], sampling)
        torch.testing.assert_close(sampled.probs[depth], probs, atol=1e-4, rtol=1e-3)
        position = rows[1].length - rows[1].prompt_len + depth
        assert token == draw_index(probs, uniform_at(3, position, stream="draft"))


def test_trees_of_random_rows_are_definite(deep: DecoderModel, head: EagleHead, oracle: EagleOracle) -> None:
    drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB, tree=DraftTree(CHOICES))
    row = rows_of(deep, head, 6)[0]
    read_prompts(drafter, [row], 8)
    draft = drafter.propose([row.draft_row(2, SamplingParams(temperature=1.0, has_own_seed=False))])[0]
    assert draft.probs is None
    Checked(oracle, CHOICES)(row, 2, draft)


def test_no_token_is_proposed_that_the_engine_does_not_choose_from(deep: DecoderModel, head: EagleHead) -> None:
    drafter = FeatureDrafter(head, num_slots=1, vocab_size=4, tree=DraftTree([[0], [1], [2], [3], [3, 3]]))
    row = rows_of(deep, head, 6)[0]
    read_prompts(drafter, [row], 8)
    draft = drafter.propose([row.draft_row(2)])[0]
    assert sorted(draft.token_ids[:4]) == [0, 1, 2, 3]
    assert max(draft.token_ids) < 4
    with pytest.raises(ValueError, match="the 5 best of 4 tokens"):
        FeatureDrafter(head, num_slots=1, vocab_size=4, tree=DraftTree([[4]]))


def test_what_a_draft_needs_room_for(head: EagleHead) -> None:
    assert FeatureDrafter(head, num_slots=1, vocab_size=VOCAB).max_draft_tokens(5) == 5
    tree = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB, tree=DraftTree(CHOICES))
    assert [tree.max_draft_tokens(depth) for depth in (1, 2, 3, 4, 9)] == [3, 6, 9, 10, 10]


def test_unknown_rows_get_an_empty_draft(head: EagleHead) -> None:
    drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB)
    assert drafter.propose([DraftRow(0, [1, 2, 3], 4)]) == [Draft()]
    assert drafter.propose([]) == []
