"""Head folders are read strictly: each fault names its file, key or tensor."""

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.head_runs import edit_head, edit_json
from helpers.toy_heads import write_eagle3_head, write_eagle_head
from specdeploy.errors import CheckpointError
from specdeploy.runtime.drafters.eagle import EagleHead
from specdeploy.runtime.drafters.eagle3 import Eagle3Head
from specdeploy.runtime.head_files import open_head
from specdeploy.runtime.model import DecoderModel

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, target_folder: Path) -> Path:
    return write_eagle_head(tmp_path / "head", target_folder)


def test_a_tensor_too_few_too_many_or_of_another_shape(folder: Path, target: DecoderModel) -> None:
    edit_head(folder, {"stray": torch.zeros(1)})
    with pytest.raises(CheckpointError, match="1 tensors are not part of an EAGLE-1 head, first stray"):
        EagleHead(folder, target)
    edit_head(folder, {}, remove=("stray", "layers.0.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"layers.0.mlp.up_proj.weight is missing"):
        EagleHead(folder, target)
    edit_head(folder, {"layers.0.mlp.up_proj.weight": torch.zeros(64, 31)})
    with pytest.raises(CheckpointError, match=r"up_proj.weight: shape \[64, 31\], but .* \[64, 32\]"):
        EagleHead(folder, target)


@pytest.mark.parametrize(("there", "absent"), [("q_norm", "k_norm"), ("k_norm", "q_norm")])
def test_a_norm_of_queries_or_keys_alone(there: str, absent: str, folder: Path, target: DecoderModel) -> None:
    edit_head(folder, {f"layers.0.self_attn.{there}.weight": torch.ones(8)})
    with pytest.raises(CheckpointError, match=rf"layers\.0\.self_attn\.{absent}\.weight is missing.* has {there}"):
        EagleHead(folder, target)


def test_embeddings_and_lm_head_are_the_heads_own_or_the_targets(
    tmp_path: Path, target: DecoderModel, target_folder: Path
) -> None:
    folder = write_eagle_head(tmp_path / "head", target_folder, own_embedding=False)
    assert EagleHead(folder, target).embedding is target.embedding
    states = torch.randn(3, 32)
    torch.testing.assert_close(EagleHead(folder, target).logits(states), target.head(states))
    edit_head(folder, {"lm_head.weight": torch.ones(320, 32)})
    torch.testing.assert_close(EagleHead(folder, target).logits(states), states.sum(1, keepdim=True).expand(3, 320))
    edit_head(folder, {"lm_head.weight": torch.ones(100, 32)})
    with pytest.raises(CheckpointError, match=r"lm_head.weight: shape \[100, 32\] where \[320, 32\] is expected"):
        EagleHead(folder, target)
    edit_head(folder, {"embed_tokens.weight": torch.ones(300, 32)}, remove=("lm_head.weight",))
    with pytest.raises(CheckpointError, match=r"its own of shape \[300, 32\]"):
        EagleHead(folder, target)


def test_a_trimmed_lm_head_may_be_rows_of_tied_embeddings(
    tmp_path: Path, target: DecoderModel, target_folder: Path
) -> None:
    folder = write_eagle3_head(
        tmp_path / "head", target_folder, aux_layer_ids=(0, 1, 2), draft_vocab=90, own_lm_head=False
    )
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing: with d2t the target's cannot serve"):
        Eagle3Head(folder, target)
    edit_json(folder / "config.json", tie_word_embeddings=True)
    head = Eagle3Head(folder, target)
    assert head.target_ids is not None
    outputs = torch.randn(2, 32)
    expected = head._norm(outputs, head._final_norm) @ target.embedding[head.target_ids].T
    torch.testing.assert_close(head.logits(outputs), expected)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_size": None}, "config.json: hidden_size: missing or not a number"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings: missing or not a number"),
        ({"hidden_act": "gelu"}, "hidden_act: gelu is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type dynamic is not supported"),
    ],
)
def test_a_config_that_does_not_say_what_is_needed(
    config: dict[str, Any], message: str, folder: Path, target: DecoderModel
) -> None:
    edit_json(folder / "config.json", **config)
    with pytest.raises(CheckpointError, match=message):
        EagleHead(folder, target)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 2048),
        ({"rope_scaling": None, "rope_theta": None}, 2048),
        ({"sliding_window": 24}, 24),
        ({"sliding_window": 24, "use_sliding_window": False}, 2048),
        ({"sliding_window": 24, "layer_types": ["full_attention"]}, 2048),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 2048),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
            4096,
        ),
    ],
    ids=str,
)
def test_the_context_of_a_head(config: dict[str, Any], expected: int, folder: Path) -> None:
    edit_json(folder / "config.json", **config)
    assert open_head(folder, "v1", dtype=torch.float32, device=CPU).max_positions == expected


@pytest.mark.parametrize("name", ["config.json", "head.json"])
def test_files_that_are_absent_or_no_json(name: str, folder: Path, target: DecoderModel) -> None:
    for content, message in [("[1]", "not a JSON object"), ("{", "cannot be read"), (None, "cannot be read")]:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(content)
        with pytest.raises(CheckpointError, match=rf"{name}: {message}"):
            EagleHead(folder, target)


def test_facts_that_are_none(folder: Path, target: DecoderModel) -> None:
    edit_json(folder / "head.json", layout="unheard of")
    with pytest.raises(CheckpointError, match=r"head.json: not the facts of a head"):
        EagleHead(folder, target)
