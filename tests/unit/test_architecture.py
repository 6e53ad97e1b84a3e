"""The import rules hold, and importing a module does nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
ROOTS = os.pathsep.join(str(REPO / root) for root in ("build", "client"))
# Runs inside Triton only, where its utilities module exists.
NOT_IMPORTABLE_HERE = {"specdeploy.serving.model"}
LIGHT = (
    "specdeploy.config",
    "specdeploy.contract",
    "specdeploy.errors",
    "specdeploy.manifest",
    "specdeploy.packager",
    "specdeploy.planner",
    "specdeploy.units",
    "specdeploy_client",
)
HEAVY = ("torch", "transformers", "tensorrt_llm", "triton_python_backend_utils", "pytriton")


def all_modules() -> list[str]:
    names = []
    for root in (REPO / "build", REPO / "client"):
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if name not in NOT_IMPORTABLE_HERE]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": ROOTS}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_import_contracts_hold(tmp_path: Path) -> None:
    command = "from importlinter.cli import lint_imports_command as main; main()"
    config = ["--config", str(REPO / "pyproject.toml"), "--cache-dir", str(tmp_path)]
    result = run(sys.executable, "-c", command, *config, cwd=REPO)
    assert result.returncode == 0, result.stdout + result.stderr


def test_light_modules_load_nothing_heavy(tmp_path: Path) -> None:
    names = [name for name in all_modules() if name.startswith(LIGHT)]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["specdeploy", "specdeploy_client"])
def test_importing_has_no_side_effects(package: str, tmp_path: Path) -> None:
    names = [name for name in all_modules() if name.split(".")[0] == package]
    code = (
        "import importlib, os, threading\n"
        "before = dict(os.environ)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "changed = {k for k in {*os.environ, *before} if os.environ.get(k) != before.get(k)}\n"
        "ours = [t.name for t in threading.enumerate() if 'specdeploy' in t.name]\n"
        "print(sorted(changed - {'KMP_INIT_AT_FORK', 'KMP_DUPLICATE_LIB_OK', 'TORCHINDUCTOR_CACHE_DIR'}), ours)"
    )
    result = run(sys.executable, "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[] []"
    assert list(tmp_path.iterdir()) == []
