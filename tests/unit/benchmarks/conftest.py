"""The benchmark scripts are run by path and import each other by bare name; tests load them the same way."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "engine"


@pytest.fixture(scope="session")
def script() -> Iterator[Callable[[str], ModuleType]]:
    """A benchmark module by name. Nothing of them stays importable after the session."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))
    names = {path.stem for path in FOLDER.glob("*.py")}
    for name in (set(sys.modules) - before) & names:
        del sys.modules[name]
