"""Guards against the traps of source roots called `build` and `client`. Tools run from a temporary folder: in the
repository's root `import build` would find ours."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PACKAGES = {"specdeploy": REPO / "build" / "specdeploy", "specdeploy_client": REPO / "client" / "specdeploy_client"}
SETTINGS = tomllib.loads((REPO / "pyproject.toml").read_text())


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def source_files() -> list[Path]:
    return [
        path
        for folder in PACKAGES.values()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]


def test_source_roots_are_no_packages() -> None:
    for folder in ("build", "client", "configs", "engines", "triton_repo"):
        assert not (REPO / folder / "__init__.py").exists(), folder


def test_git_does_not_ignore_our_sources() -> None:
    if shutil.which("git") is None or not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    names = [path.relative_to(REPO).as_posix() for path in source_files()]
    names += ["triton_repo/demo/llm/config.pbtxt", "triton_repo/demo/llm/1/model.py", "engines/README.md"]
    result = run("git", "check-ignore", "--no-index", *names, cwd=REPO)
    assert result.returncode == 1, f"ignored: {result.stdout}"


@pytest.mark.parametrize("name", ["engines/x/manifest.json", "triton_repo/own/llm/config.pbtxt", ".venv/x", "dist/x"])
def test_git_ignores_what_is_made(name: str) -> None:
    if shutil.which("git") is None or not (REPO / ".git").exists():
        pytest.skip("not a git checkout")
    assert run("git", "check-ignore", "--no-index", name, cwd=REPO).returncode == 0


def test_the_wheel_holds_exactly_our_two_packages(tmp_path: Path) -> None:
    tree = tmp_path / "tree"  # a copy, so that a file being written elsewhere in the tree cannot disturb the build
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(REPO / name, tree / name)
    ignore = shutil.ignore_patterns("__pycache__")
    for root in ("build", "client"):
        shutil.copytree(REPO / root, tree / root, ignore=ignore)
    result = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist", cwd=tree)
    assert result.returncode == 0, result.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    on_disk = {
        f"{root.name}/{path.relative_to(root).as_posix()}"
        for root in (tree / "build" / "specdeploy", tree / "client" / "specdeploy_client")
        for path in root.rglob("*")
        if path.is_file()
    }
    assert packed == on_disk
    assert {name.split("/")[0] for name in packed} == set(PACKAGES)
    assert {"specdeploy/py.typed", "specdeploy_client/py.typed"} <= packed


@pytest.mark.parametrize("script", ["specdeploy", "specdeploy-client"])
def test_console_scripts_start_from_an_empty_folder(script: str, tmp_path: Path) -> None:
    module, function = SETTINGS["project"]["scripts"][script].split(":")
    installed = Path(sys.executable).parent / script
    if installed.exists():
        result = run(installed, "--help", cwd=tmp_path)
    else:  # running from the source tree: start what the script would start, with the same roots an install adds
        roots = [str(folder.parent) for folder in PACKAGES.values()]
        code = f"import sys; sys.path[:0] = {roots!r}; sys.argv = [{script!r}, '--help']; "
        result = run(sys.executable, "-c", f"{code}from {module} import {function}; {function}()", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Usage" in result.stdout


def test_every_folder_of_a_model_repository_is_a_model() -> None:
    for repository in (path for path in (REPO / "triton_repo").iterdir() if path.is_dir() and path.name[0] != "."):
        models = [path for path in repository.iterdir() if path.is_dir()]
        assert models, repository
        for model in models:
            assert (model / "config.pbtxt").is_file(), model


def test_no_module_shadows_the_standard_library_or_a_vendor() -> None:
    forbidden = {"triton", "grpc", "tensorrt_llm", "utils", "common", "helpers"}
    allowed_inside = {"adapters/torch.py", "builders/torch.py"}  # imported by full name only
    for path in source_files():
        if path.suffix == ".py" and not path.as_posix().endswith(tuple(allowed_inside)):
            assert path.stem not in forbidden | {"torch"}, path
            assert path.stem == "__init__" or path.stem not in sys.stdlib_module_names, path


def test_locks_are_portable() -> None:
    lines = (REPO / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    for line in pins:
        assert re.match(r"[a-z0-9][a-z0-9._-]*==[0-9][^ ]*( ; |$)", line), line
    names = {line.split("==")[0] for line in pins}
    assert not {name for name in names if name.startswith(("nvidia-", "cuda-")) or name == "triton"}
    assert "torch==2.13.0" in pins
    extras = SETTINGS["project"]["optional-dependencies"]
    wanted = SETTINGS["project"]["dependencies"] + extras["torch"] + extras["serve"] + extras["dev"]
    direct = {re.split(r"[\[<>=; ]", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    without_dependencies = (REPO / "requirements-wheels.lock").read_text().splitlines()
    assert direct <= names | {line.split("==")[0] for line in without_dependencies if not line.startswith("#")}


def test_every_make_target_is_phony() -> None:
    makefile = (REPO / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    phony = set(" ".join(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)).split())
    assert targets == phony
    assert not re.search(r"rm -rf[^\n]*\bbuild\b", makefile)
