"""Tiny models shared by the runtime's tests."""

from pathlib import Path

import pytest
import torch

from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.runtime.model import DecoderModel

MAX_SEQ_LEN = 96


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("draft"), seed=1, num_layers=1, hidden_size=16)


def load(folder: Path, *, dtype: torch.dtype = torch.float32, max_seq_len: int = MAX_SEQ_LEN) -> DecoderModel:
    return DecoderModel(folder, dtype=dtype, device=torch.device("cpu"), max_seq_len=max_seq_len)


@pytest.fixture(scope="session")
def target(target_folder: Path) -> DecoderModel:
    return load(target_folder)


@pytest.fixture(scope="session")
def draft(draft_folder: Path) -> DecoderModel:
    return load(draft_folder)
