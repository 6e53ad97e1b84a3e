"""Fixtures that more than one folder of tests uses."""

import signal
from pathlib import Path

import pytest

from helpers.shipped_checkpoints import WRITERS, put_on_hub


@pytest.fixture(scope="session")
def shipped_hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the model hub with every checkpoint that a shipped deployment names; not to be changed by tests."""
    cache = tmp_path_factory.mktemp("hub")
    for repo_id, write in WRITERS.items():
        put_on_hub(cache, repo_id, write)
    return cache


@pytest.fixture(autouse=True, scope="session")
def _hears_signals() -> None:
    """What a shell runs in the background, or under nohup, starts deaf to them; tests that send them would wait."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
