"""A checkpoint folder whose weights are two tiny tensors: facts are read from headers, nothing is ever run."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
}


@pytest.fixture
def checkpoint_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    Tokenizer(models.WordLevel({"a": 0, "b": 1})).save(str(folder / "tokenizer.json"))
    tensors = {"lm_head.weight": np.zeros((4, 2), np.float32), "model.norm.weight": np.ones(2, np.float32)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "README.md").write_text("not part of the checkpoint")
    return folder
