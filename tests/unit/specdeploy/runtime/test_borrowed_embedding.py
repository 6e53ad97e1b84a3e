"""A draft that leaves its embeddings out looks tokens up in the target's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.naive_rollout import greedy
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.errors import CheckpointError
from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters import DraftModelDrafter, DraftRow
from specdeploy.runtime.model import DecoderModel

EMBEDDING = "model.embed_tokens.weight"
PROMPT = [5, 17, 200, 31]


def load(folder: Path, borrow_from: DecoderModel | None = None) -> DecoderModel:
    cpu = torch.device("cpu")
    return DecoderModel(folder, dtype=torch.float32, device=cpu, max_seq_len=64, borrow_from=borrow_from)


def rewrite(folder: Path, embedding: torch.Tensor | None) -> Path:
    """The checkpoint with these embeddings, or without any."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(EMBEDDING)
    if embedding is not None:
        tensors[EMBEDDING] = embedding.contiguous()
    save_file(tensors, path)
    return folder


@pytest.mark.parametrize("is_tied", [False, True])
def test_it_drafts_as_with_a_copy_of_the_targets_embeddings(
    target: DecoderModel, tmp_path: Path, *, is_tied: bool
) -> None:
    overrides: dict[str, Any] = {"seed": 5, "num_layers": 1, "hidden_size": 32, "tie_word_embeddings": is_tied}
    without = rewrite(make_checkpoint(tmp_path / "without", **overrides), None)
    copied = rewrite(make_checkpoint(tmp_path / "copied", **overrides), target.embedding)
    borrowing, owning = load(without, target), load(copied)

    assert borrowing.embedding is target.embedding  # no copy in memory
    for model in (borrowing, owning):
        logits = model.forward(PROMPT, [Span(0, 4, 0, 0)], [3], model.new_cache(1)).logits
        torch.testing.assert_close(logits, owning.forward(PROMPT, [Span(0, 4, 0, 0)], [3], owning.new_cache(1)).logits)
    draft = DraftModelDrafter(borrowing, num_slots=1).propose([DraftRow(0, PROMPT, 5)])[0]
    assert draft.token_ids == greedy(owning, PROMPT, 5)


def test_its_own_embeddings_come_first(target: DecoderModel, tmp_path: Path) -> None:
    model = load(make_checkpoint(tmp_path, seed=5, num_layers=1), target)
    assert not torch.equal(model.embedding, target.embedding)


def test_embeddings_of_another_width_are_refused(target: DecoderModel, tmp_path: Path) -> None:
    folder = rewrite(make_checkpoint(tmp_path, num_layers=1, hidden_size=16), None)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight is missing, .*\(320, 32\).*\(320, 16\)"):
        load(folder, target)


def test_without_a_target_they_are_missing(tmp_path: Path) -> None:
    folder = rewrite(make_checkpoint(tmp_path, num_layers=1), None)
    with pytest.raises(CheckpointError, match=r"tensor model\.embed_tokens\.weight is missing"):
        load(folder)
