"""Tiny checkpoints and deployments to build."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.deployment_files import write_deployment
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.config.load import LoadedDeployment, load_deployment


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama; not to be changed by tests."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.fixture
def checkpoint_copy(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "copy"))


@pytest.fixture
def load_with(tmp_path: Path) -> Callable[..., LoadedDeployment]:
    """Write a deployment with some sections replaced, and load it."""

    def load(name: str = "tiny", **overrides: object) -> LoadedDeployment:
        write_deployment(tmp_path / "configs", name, overrides)
        return load_deployment(name, tmp_path / "configs")

    return load
