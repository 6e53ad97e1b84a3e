"""Medusa heads by shape, in the spelling of three writers."""

from pathlib import Path

import pytest

from helpers.fabricated_checkpoints import SMALL, llama_config, llama_tensors, medusa_tensors, write_checkpoint
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint_contract import CheckpointKind, HeadLayout, TensorOrigin
from specdeploy.errors import CheckpointError

CONFIG = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 4, "medusa_num_layers": 2}


@pytest.mark.parametrize("naming", ["original", "vllm", "modelopt"])
def test_heads_layers_and_sizes_by_shape(tmp_path: Path, naming: str) -> None:
    shapes = medusa_tensors(64, 320, num_layers=2, naming=naming)

    info = inspect_checkpoint(write_checkpoint(tmp_path, CONFIG, shapes))

    assert info.kind is CheckpointKind.MEDUSA
    assert info.head is not None
    assert info.head.layout is (HeadLayout.MODELOPT if naming == "modelopt" else HeadLayout.MEDUSA)
    assert (info.head.generation, info.head.declared_generation) == ("medusa", "medusa")
    assert (info.head.num_heads, info.head.num_layers, info.head.hidden_size) == (4, 2, 64)
    assert info.head.target_vocab_size == 320
    assert info.head.has_own_lm_head
    assert set(info.head.tensors.values()) == {TensorOrigin.IN_HEAD}
    assert info.head.unexpected_tensors == ()
    assert info.num_parameters == 4 * (2 * (64 * 64 + 64) + 320 * 64)


def test_fewer_heads_than_promised(tmp_path: Path) -> None:
    info = inspect_checkpoint(write_checkpoint(tmp_path, CONFIG, medusa_tensors(64, 320, num_heads=3, num_layers=2)))

    assert info.head is not None
    assert info.head.num_heads == 3
    assert info.head.tensors["3.0.linear.weight"] is TensorOrigin.MISSING


def test_heads_are_known_without_their_config(tmp_path: Path) -> None:
    info = inspect_checkpoint(write_checkpoint(tmp_path, {}, medusa_tensors(64, 320)))

    assert (info.kind, info.head and info.head.declared_generation) == (CheckpointKind.MEDUSA, None)


def test_target_saved_with_its_heads_is_a_model(tmp_path: Path) -> None:
    shapes = {f"medusa_head.{name}": shape for name, shape in medusa_tensors(64, 320).items()}
    folder = write_checkpoint(tmp_path, llama_config(SMALL, medusa_num_heads=4), {**llama_tensors(SMALL), **shapes})

    assert inspect_checkpoint(folder).kind is CheckpointKind.CAUSAL_LM


@pytest.mark.parametrize("name", ["0.2.weight", "1.0.linear.weight"])
@pytest.mark.parametrize("shape", [(0, 64), (64, 0)])
def test_weight_without_elements(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    shapes = {**medusa_tensors(64, 320, num_layers=2), name: ("F16", shape)}

    with pytest.raises(CheckpointError, match=rf"{name}: shape .* has no elements. Fetch the checkpoint again"):
        inspect_checkpoint(write_checkpoint(tmp_path, CONFIG, shapes))


def test_head_number_of_thousands_of_digits(tmp_path: Path) -> None:
    shapes = {**medusa_tensors(64, 320, num_layers=2), f"{'9' * 5000}.0.linear.weight": ("F16", (64, 64))}

    info = inspect_checkpoint(write_checkpoint(tmp_path, CONFIG, shapes))

    assert info.head is not None
    assert len(info.head.unexpected_tensors) == 1
