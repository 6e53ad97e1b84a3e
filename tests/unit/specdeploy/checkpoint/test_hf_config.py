"""Facts from config.json, and what is refused with which words."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdeploy.checkpoint.hf_config import SUPPORTED_ARCHITECTURES, inspect_architecture
from specdeploy.errors import CheckpointError


def rewrite(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def test_facts_of_a_grouped_query_model(checkpoint_folder: Path) -> None:
    facts = inspect_architecture(checkpoint_folder)

    assert facts.architecture == "LlamaForCausalLM"
    assert (facts.num_layers, facts.hidden_size, facts.num_heads, facts.num_kv_heads) == (2, 32, 4, 2)
    assert (facts.head_dim, facts.vocab_size, facts.max_position_embeddings) == (8, 64, 128)
    assert not facts.tie_word_embeddings


def test_absent_kv_heads_mean_one_per_head_and_head_dim_wins_over_division(checkpoint_folder: Path) -> None:
    rewrite(checkpoint_folder, num_key_value_heads="absent", head_dim=16, tie_word_embeddings=True)

    facts = inspect_architecture(checkpoint_folder)

    assert (facts.num_kv_heads, facts.head_dim, facts.tie_word_embeddings) == (4, 16, True)


def test_unsupported_architecture_lists_the_supported(checkpoint_folder: Path) -> None:
    rewrite(checkpoint_folder, architectures=["MambaForCausalLM"])

    with pytest.raises(CheckpointError, match="MambaForCausalLM is not supported") as caught:
        inspect_architecture(checkpoint_folder)

    assert all(name in str(caught.value) for name in SUPPORTED_ARCHITECTURES)


def test_everything_wrong_is_said_at_once(checkpoint_folder: Path) -> None:
    rewrite(
        checkpoint_folder,
        architectures=[],
        hidden_size=-1,
        vocab_size="absent",
        num_key_value_heads=True,
        quantization_config={"bits": 4},
    )

    with pytest.raises(CheckpointError) as caught:
        inspect_architecture(checkpoint_folder)

    keys = ("architectures", "hidden_size", "vocab_size", "num_key_value_heads", "quantization_config")
    assert all(f"config.json: {key}" in str(caught.value) for key in keys)


@pytest.mark.parametrize(("text", "words"), [("{", "cannot be read as JSON"), ("[]", "holds a list")])
def test_damaged_config(checkpoint_folder: Path, text: str, words: str) -> None:
    (checkpoint_folder / "config.json").write_text(text)

    with pytest.raises(CheckpointError, match=words):
        inspect_architecture(checkpoint_folder)


def test_runtime_runs_exactly_what_inspection_accepts() -> None:
    from specdeploy.runtime.model import SUPPORTED_ARCHITECTURES as RUNNABLE

    assert set(RUNNABLE) == set(SUPPORTED_ARCHITECTURES)
