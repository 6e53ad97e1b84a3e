"""The digest that an inspection shows is of the sources as they are now, or none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from specdeploy.builders.dispatch import build_deployment
from specdeploy.builders.pair import inspect_deployment
from specdeploy.config.load import LoadedDeployment
from specdeploy.manifest import write_text_atomically

Load = Callable[..., LoadedDeployment]


def edit_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rms_norm_eps": 1e-5}))


def edit_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|bot|>", "<|dog|>"))


def add_file(folder: Path) -> None:
    (folder / "special_tokens_map.json").write_text("{}")


def remove_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def add_weights(folder: Path) -> None:
    replace_weights(folder, {**load_file(folder / "model.safetensors"), "extra": np.zeros(1, np.float32)})


def exchange_names(folder: Path) -> None:
    """The same number of bytes, other tensors."""
    tensors = load_file(folder / "model.safetensors")
    layer = "model.layers.0.self_attn"
    first, second = f"{layer}.k_proj.weight", f"{layer}.q_proj.weight"
    replace_weights(folder, {**tensors, first: tensors[second], second: tensors[first]})


def replace_weights(folder: Path, tensors: dict[str, Any]) -> None:
    path = folder / "model.safetensors"
    path.rename(path.with_suffix(".old"))  # the build holds a hard link
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("as_copy", [True, False])
def test_unchanged_sources_carry_the_digest_of_their_build(
    as_copy: bool, checkpoint_copy: Path, load_with: Load, tmp_path: Path
) -> None:
    loaded = load_with(target={"checkpoint": str(checkpoint_copy)})
    built = build_deployment(loaded, tmp_path / "engines", report=lambda line: None)
    if as_copy:
        replace_weights(checkpoint_copy, load_file(checkpoint_copy / "model.safetensors"))

    assert inspect_deployment(loaded, tmp_path / "engines").digest == built.manifest.pair_digest is not None


@pytest.mark.parametrize(
    "change", [edit_config, edit_tokenizer, add_file, remove_template, add_weights, exchange_names]
)
def test_changed_sources_carry_none(
    change: Callable[[Path], None], checkpoint_copy: Path, load_with: Load, tmp_path: Path
) -> None:
    loaded = load_with(target={"checkpoint": str(checkpoint_copy)})
    build_deployment(loaded, tmp_path / "engines", report=lambda line: None)

    change(checkpoint_copy)

    assert inspect_deployment(loaded, tmp_path / "engines").digest is None


def test_another_revision_carries_none(checkpoint_copy: Path, load_with: Load, tmp_path: Path) -> None:
    loaded = load_with(target={"checkpoint": str(checkpoint_copy)})
    build_deployment(loaded, tmp_path / "engines", report=lambda line: None)
    path = tmp_path / "engines" / "tiny.json"
    pointer = json.loads(path.read_text())
    pointer["config"]["target"]["revision"] = "0123abc"
    write_text_atomically(path, json.dumps(pointer))

    assert inspect_deployment(loaded, tmp_path / "engines").digest is None
