"""A target deep enough for heads that read several of its layers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from helpers.head_runs import generate, write_cycle_target
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import SamplingParams
from unit.specdeploy.runtime.conftest import load


@pytest.fixture(scope="session")
def deep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("deep"), num_layers=4, seed=5)


@pytest.fixture(scope="session")
def deep(deep_folder: Path) -> DecoderModel:
    return load(deep_folder)


@pytest.fixture(scope="session")
def plain(deep: DecoderModel) -> Callable[[Sequence[SamplingParams]], list[list[int]]]:
    """What the deep target says without a drafter; each choice of sampling is decoded once."""
    known: dict[str, list[list[int]]] = {}

    def outputs(samplings: Sequence[SamplingParams]) -> list[list[int]]:
        key = repr(samplings)
        if key not in known:
            known[key] = generate(deep, None, 0, samplings).outputs
        return known[key]

    return outputs


@pytest.fixture(scope="session")
def cycle_folder(tmp_path_factory: pytest.TempPathFactory, deep_folder: Path) -> Path:
    return write_cycle_target(tmp_path_factory.mktemp("cycle"), deep_folder)


@pytest.fixture(scope="session")
def cycle(cycle_folder: Path) -> DecoderModel:
    return load(cycle_folder)
