"""Which server is found, and the layout and environment it is given."""

import importlib.machinery
import sys
from pathlib import Path

import pytest

from specdeploy.errors import ServerError
from specdeploy.serving.installation import (
    ServerInstallation,
    find_installation,
    lay_out_backends,
    server_environment,
)

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def make_wheel(site: Path, versions: tuple[str, ...] = (VERSION, "3.9")) -> Path:
    """The files of the wheel that matter, empty."""
    root = site / "pytriton" / "tritonserver"
    names = [
        "bin/tritonserver",
        "backends/python/libtriton_python.so",
        "backends/python/triton_python_backend_utils.py",
    ]
    for name in [*names, *(f"python_backend_stubs/{version}/triton_python_backend_stub" for version in versions)]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = make_wheel(tmp_path / "site")
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "1.26.4")
    spec = importlib.machinery.ModuleSpec("pytriton", None, is_package=True)
    spec.submodule_search_locations = [str(root.parent)]
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: spec)
    return root


def test_container_comes_first(tmp_path: Path, wheel: Path) -> None:
    container = tmp_path / "opt"
    (container / "bin").mkdir(parents=True)
    (container / "bin" / "tritonserver").touch()

    found = find_installation(container)

    assert (found.origin, found.binary) == ("container", container / "bin" / "tritonserver")
    assert found.backend_directory(tmp_path / "state") == container / "backends"


def test_wheel_without_importing_it(tmp_path: Path, wheel: Path) -> None:
    found = find_installation(tmp_path / "no-container")

    assert (found.origin, found.root) == ("wheel", wheel)
    assert found.library_folder == wheel.parent.parent / "nvidia_pytriton.libs"


def test_no_server_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(ServerError, match="pip install --no-deps nvidia-pytriton"):
        find_installation(tmp_path)


def test_layout_links_the_stub_of_this_python_and_can_be_repeated(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = find_installation(tmp_path / "no-container")

    monkeypatch.setattr("specdeploy.serving.installation._is_installed", lambda: True)
    for _ in range(2):
        lay_out_backends(installation, tmp_path / "state")

    folder = tmp_path / "state" / "backends" / "python"
    assert sorted(path.name for path in folder.iterdir()) == [
        "libtriton_python.so",
        "triton_python_backend_stub",
        "triton_python_backend_utils.py",
    ]
    assert VERSION in str((folder / "triton_python_backend_stub").resolve())


def test_no_stub_for_this_python(tmp_path: Path) -> None:
    root = make_wheel(tmp_path, versions=("3.8", "3.10"))

    with pytest.raises(ServerError, match=rf"no stub for Python {VERSION} \(it has 3\.8, 3\.10\)"):
        lay_out_backends(ServerInstallation("wheel", root), tmp_path / "state")


def test_numpy_that_the_stubs_cannot_read(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "2.4.6")

    with pytest.raises(ServerError, match=r"numpy 2\.4\.6 does not work .*numpy<2"):
        lay_out_backends(find_installation(tmp_path / "no-container"), tmp_path / "state")


def test_environment_of_the_wheel(tmp_path: Path) -> None:
    installation = ServerInstallation("wheel", tmp_path, tmp_path / "libs")

    environment = server_environment(installation, tmp_path / "engines", {"PATH": "/usr/bin", "HOME": "/home/x"})

    assert environment["LD_LIBRARY_PATH"].startswith(str(tmp_path / "libs"))
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert environment["SPECDEPLOY_ENGINES_ROOT"] == str(tmp_path / "engines")
    assert environment["HOME"] == "/home/x"


def test_container_keeps_its_libraries(tmp_path: Path) -> None:
    environment = server_environment(ServerInstallation("container", tmp_path), tmp_path, {"LD_LIBRARY_PATH": "/own"})

    assert environment["LD_LIBRARY_PATH"] == "/own"


@pytest.mark.parametrize("installed", [True, False])
def test_source_tree_is_linked_only_when_the_package_is_not_installed(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr("specdeploy.serving.installation._is_installed", lambda: installed)

    lay_out_backends(find_installation(tmp_path / "no-container"), tmp_path / "state")

    linked = tmp_path / "state" / "backends" / "python" / "specdeploy"
    assert linked.is_symlink() is not installed
    assert installed or (linked / "serving" / "installation.py").is_file()


def test_container_needs_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdeploy.serving.installation._is_installed", lambda: False)

    with pytest.raises(ServerError, match="pip install -e"):
        lay_out_backends(ServerInstallation("container", tmp_path), tmp_path)
