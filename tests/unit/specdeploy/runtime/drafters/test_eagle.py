"""EAGLE-1 heads against their oracle, a head that cannot be wrong, and whole texts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.head_oracles import EagleOracle
from helpers.head_runs import CYCLE, GREEDY, OWN_RANDOM, SEEDED, edit_head, edit_json, generate
from helpers.observed_rows import ObservedRow, read_prompts
from helpers.tiny_checkpoint import make_checkpoint
from helpers.toy_heads import canonicalise, write_eagle_head
from specdeploy.errors import CheckpointError
from specdeploy.runtime.drafters.draft_tree import DraftTree
from specdeploy.runtime.drafters.eagle import EagleHead
from specdeploy.runtime.drafters.feature_draft import FeatureDrafter
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import SamplingParams
from unit.specdeploy.runtime.conftest import load

Plain = Callable[[Sequence[SamplingParams]], list[list[int]]]
VOCAB = 320
TREE = DraftTree([[0], [1], [0, 0], [1, 0], [0, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("safeailab", {}),
        ("safeailab", {"bias": False, "own_embedding": False}),
        ("safeailab", {"num_layers": 3, "rope_theta": 500.0}),
        ("speculators", {}),
        ("speculators", {"bias": False, "own_embedding": False}),
    ],
    ids=str,
)
def test_it_drafts_as_the_definition_says(
    layout: str, shape: dict[str, Any], tmp_path: Path, deep: DecoderModel, deep_folder: Path
) -> None:
    folder = canonicalise(write_eagle_head(tmp_path / "own", deep_folder, layout=layout, **shape), tmp_path / "head")
    head, oracle = EagleHead(folder, deep), EagleOracle(folder, deep_folder)
    drafter = FeatureDrafter(head, num_slots=1, vocab_size=VOCAB)
    row = ObservedRow(deep, 0, [(7 * place) % 300 for place in range(30)], 17, head.hidden_layers)
    read_prompts(drafter, [row], 9)
    assert drafter.propose([row.draft_row(5)])[0].token_ids == oracle.chain(row.text[: row.length], row.seen, 5)


@pytest.mark.parametrize("tree", [None, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("draft_len", [1, 2, 4])
def test_texts_are_those_of_plain_decoding(
    tree: DraftTree | None, draft_len: int, tmp_path: Path, deep: DecoderModel, deep_folder: Path, plain: Plain
) -> None:
    head = EagleHead(write_eagle_head(tmp_path / "head", deep_folder, max_positions=40), deep)
    for samplings in ([GREEDY] * 5, [GREEDY, SEEDED, GREEDY, SEEDED, SEEDED]):
        drafter = FeatureDrafter(head, num_slots=3, vocab_size=VOCAB, tree=tree, prefill_chunk=8)
        run = generate(deep, drafter, draft_len, samplings)
        assert run.outputs == plain(samplings)
        assert run.num_drafted > 0


def test_random_rows_leave_the_texts_beside_them_alone(
    tmp_path: Path, deep: DecoderModel, deep_folder: Path, plain: Plain
) -> None:
    head = EagleHead(write_eagle_head(tmp_path / "head", deep_folder), deep)
    samplings = [OWN_RANDOM, GREEDY, OWN_RANDOM, SEEDED, GREEDY]
    run = generate(deep, FeatureDrafter(head, num_slots=3, vocab_size=VOCAB), 3, samplings)
    alone = plain(samplings)
    assert [run.outputs[index] for index in (1, 3, 4)] == [alone[index] for index in (1, 3, 4)]


def test_a_head_that_passes_the_embedding_on_is_always_right(
    tmp_path: Path, cycle: DecoderModel, cycle_folder: Path
) -> None:
    """In a target that counts, the next token follows from the newest one alone: a pairing one off is never right."""
    folder = write_eagle_head(tmp_path / "head", cycle_folder, bias=False, own_embedding=False)
    size = cycle.config.hidden_size
    edit_head(folder, {"fc.weight": torch.cat((torch.eye(size), torch.zeros(size, size)), dim=1)})
    head = EagleHead(folder, cycle)
    prompts = [[3, 1, 7, 7, 2], [5], [1 + place % CYCLE for place in range(40)]]
    accepted: list[int] = []
    for tree in (None, TREE):
        drafter = FeatureDrafter(head, num_slots=3, vocab_size=VOCAB, tree=tree, prefill_chunk=8)
        run = generate(cycle, drafter, 3, prompts=prompts, max_tokens=13)
        for prompt, output in zip(prompts, run.outputs, strict=True):
            assert output == [1 + (prompt[-1] + place) % CYCLE for place in range(13)]
        accepted.append(run.num_accepted)
        assert tree is not None or run.num_accepted == run.num_drafted
    assert accepted[0] == accepted[1] >= 24  # of 39 output tokens


def test_heads_that_do_not_fit_are_refused(tmp_path: Path, deep: DecoderModel, deep_folder: Path) -> None:
    narrow = load(make_checkpoint(tmp_path / "narrow", hidden_size=16))
    with pytest.raises(CheckpointError, match="hidden_size: 32, the target's is 16"):
        EagleHead(write_eagle_head(tmp_path / "head", deep_folder), narrow)
    folder = write_eagle_head(tmp_path / "switch", deep_folder)
    edit_json(folder / "head.json", norm_switches={"use_last_layernorm": True})
    with pytest.raises(CheckpointError, match="use_last_layernorm true is not supported"):
        EagleHead(folder, deep)
    folder = write_eagle_head(tmp_path / "norms", deep_folder)
    edit_json(folder / "head.json", norm_tensors=["embedding_layernorm.weight"])
    with pytest.raises(CheckpointError, match="norms of their own are not supported"):
        EagleHead(folder, deep)
