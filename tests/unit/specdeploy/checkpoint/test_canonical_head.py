"""A head in the one layout: what is renamed, what is dropped, and what is refused, each by its name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.fabricated_checkpoints import (
    SMALL,
    Shapes,
    eagle1_tensors,
    eagle3_config,
    eagle3_tensors,
    llama_config,
    llama_tensors,
    medusa_tensors,
    write_checkpoint,
)
from specdeploy.checkpoint.canonical_head import write_canonical_head
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint.medusa_head import canonical_medusa_name
from specdeploy.checkpoint.safetensors_header import read_header
from specdeploy.checkpoint_contract import HeadFacts
from specdeploy.errors import CheckpointError


def eagle3(folder: Path, layout: str = "safeailab", extra: Shapes | None = None, **config: Any) -> Path:
    shapes = eagle3_tensors(SMALL, draft_vocab=100) | (extra or {})
    return write_checkpoint(folder, eagle3_config(SMALL, layout, draft_vocab=100, **config), shapes)


def names(folder: Path) -> set[str]:
    return set(read_header(folder / "model.safetensors"))


@pytest.mark.parametrize("layout", ["safeailab", "specforge", "speculators", "modelopt"])
def test_facts_and_sizes_stay_what_they_were(layout: str, tmp_path: Path) -> None:
    source = eagle3(tmp_path / "head", layout)

    facts = write_canonical_head(source, tmp_path / "out")

    assert facts == inspect_checkpoint(source).head
    assert HeadFacts.model_validate_json((tmp_path / "out" / "head.json").read_text()) == facts
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    sizes = ("hidden_size", "num_attention_heads", "max_position_embeddings", "model_type")
    assert [config[key] for key in sizes] == [64, 4, 2048, "llama"]
    assert not {"transformer_layer_config", "speculators_config", "eagle_config"} & config.keys()


def test_prefixes_go_and_computed_tensors_are_left_out(tmp_path: Path) -> None:
    shapes = {f"model.{name}": entry for name, entry in eagle1_tensors(SMALL, bias=True).items()}
    shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (8,))
    source = write_checkpoint(tmp_path / "head", llama_config(SMALL, bias=True, num_hidden_layers=1), shapes)

    write_canonical_head(source, tmp_path / "out")

    assert names(tmp_path / "out") == eagle1_tensors(SMALL, bias=True).keys()


def test_weights_of_several_files_end_in_one(tmp_path: Path) -> None:
    shapes = eagle3_tensors(SMALL, draft_vocab=100)
    config = eagle3_config(SMALL, "safeailab", draft_vocab=100)
    norm = np.arange(64, dtype=np.uint16)
    source = write_checkpoint(tmp_path / "head", config, shapes, num_shards=4, values={"norm.weight": norm})

    write_canonical_head(source, tmp_path / "out")

    entry = read_header(tmp_path / "out" / "model.safetensors")["norm.weight"]
    assert (tmp_path / "out" / "model.safetensors").read_bytes()[entry.begin : entry.end] == norm.tobytes()
    assert len(names(tmp_path / "out")) == len(shapes)


@pytest.mark.parametrize("naming", ["original", "vllm", "modelopt"])
def test_medusa_has_one_spelling(naming: str, tmp_path: Path) -> None:
    shapes = medusa_tensors(64, 320, num_heads=2, num_layers=2, naming=naming)
    source = write_checkpoint(tmp_path / "head", {"medusa_num_heads": 2, "medusa_num_layers": 2}, shapes)

    write_canonical_head(source, tmp_path / "out")

    blocks = {f"{head}.{layer}.linear.{what}" for head in (0, 1) for layer in (0, 1) for what in ("weight", "bias")}
    assert names(tmp_path / "out") == blocks | {"0.lm_head.weight", "1.lm_head.weight"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_heads"], config["num_layers"], config["hidden_size"], config["vocab_size"]) == (2, 2, 64, 320)


def test_an_lm_head_of_all_medusa_heads_is_written_once(tmp_path: Path) -> None:
    shapes = medusa_tensors(64, 320, num_heads=3, num_layers=1, naming="vllm")
    blocks = {name: entry for name, entry in shapes.items() if not name.startswith("lm_heads.")}
    shared: Shapes = {"lm_head.weight": ("BF16", (320, 64))}
    config = {"medusa_num_heads": 3, "medusa_num_layers": 1}
    write_canonical_head(write_checkpoint(tmp_path / "head", config, blocks | shared), tmp_path / "out")
    assert {name for name in names(tmp_path / "out") if "lm_head" in name} == {"lm_head.weight"}

    both = write_checkpoint(tmp_path / "both", config, shapes | shared)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is of all heads and 0\.lm_head\.weight of one"):
        write_canonical_head(both, tmp_path / "none")


@pytest.mark.parametrize(
    ("stored", "canonical"),
    [
        ("3.0.linear.bias", "3.0.linear.bias"),
        ("medusa_head.3.1.weight", "3.lm_head.weight"),
        ("blocks.07.layers.1.weight", "7.1.linear.weight"),
        ("lm_heads.2.weight", "2.lm_head.weight"),
        ("lm_head.weight", None),
        ("model.norm.weight", None),
    ],
)
def test_names_of_medusa(stored: str, canonical: str | None) -> None:
    assert canonical_medusa_name(stored) == canonical


@pytest.mark.parametrize(
    ("extra", "config", "reason"),
    [
        ({"gate.weight": ("BF16", (64,))}, {}, "no part of a v3 head that the runtime knows: gate.weight"),
        ({"fc.weight": ("F8_E4M3", (64, 192))}, {}, "fc.weight is stored as F8_E4M3, not as F32, F16, BF16"),
        ({"d2t": ("F32", (100,))}, {}, "d2t is stored as F32"),
        ({"model.fc.weight": ("BF16", (64, 192))}, {}, "are the same tensor fc.weight. Keep one"),
        ({}, {"norm_before_fc": True}, "needed and not there: input_norm.weight"),
        ({}, {"use_last_layernorm": False}, "the head's use_last_layernorm is false"),
        ({}, {"quantization_config": {"quant_method": "fp8"}}, "weights are quantised (fp8)"),
    ],
)
def test_what_the_runtime_cannot_have(extra: Shapes, config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        write_canonical_head(eagle3(tmp_path / "head", extra=extra, **config), tmp_path / "out")

    assert reason in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    extra: Shapes = {"gate.weight": ("BF16", (64,)), "norm.weight": ("U8", (64,))}
    source = eagle3(tmp_path / "head", extra=extra, fc_norm=True, norm_before_fc=True)

    with pytest.raises(CheckpointError) as caught:
        write_canonical_head(source, tmp_path / "out")

    for reason in (
        "gate.weight",
        "norm.weight is stored as U8",
        "fc_norm.0.weight",
        "input_norm.weight",
        "norms twice",
    ):
        assert reason in str(caught.value)


def test_a_model_is_no_head(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "model", llama_config(SMALL), llama_tensors(SMALL))

    with pytest.raises(CheckpointError, match="no EAGLE, EAGLE-3 or Medusa head"):
        write_canonical_head(source, tmp_path / "out")
