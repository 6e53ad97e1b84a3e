"""Which Triton server is on this machine, and what it needs to run: the container's, else the one in a wheel.

The wheel `nvidia-pytriton` holds the server binary, the Python backend and one stub (the process a model runs in) per
Python version. It is never imported; its files are linked into the layout that the server looks for.
"""

import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specdeploy.errors import ServerError

CONTAINER_ROOT = Path("/opt/tritonserver")
ENGINES_ROOT_VARIABLE = "SPECDEPLOY_ENGINES_ROOT"
WHEEL = "nvidia-pytriton"


@dataclass(frozen=True, slots=True)
class ServerInstallation:
    """`root` holds `bin/tritonserver`; `library_folder` is where a wheel keeps the shared libraries of the server."""

    origin: Literal["container", "wheel"]
    root: Path
    library_folder: Path | None = None

    @property
    def binary(self) -> Path:
        """The server itself."""
        return self.root / "bin" / "tritonserver"

    def backend_directory(self, layout_root: Path) -> Path:
        """Where the server will find its backends: the container's own, or the layout made from the wheel."""
        return self.root / "backends" if self.origin == "container" else layout_root / "backends"


def find_installation(container_root: Path = CONTAINER_ROOT) -> ServerInstallation:
    """The server to use. Raises `ServerError` when there is none."""
    in_container = ServerInstallation("container", container_root)
    if in_container.binary.is_file():
        return in_container
    spec = importlib.util.find_spec("pytriton")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        root = Path(location) / "tritonserver"
        in_wheel = ServerInstallation("wheel", root, Path(location).parent / "nvidia_pytriton.libs")
        if in_wheel.binary.is_file():
            return in_wheel
    raise ServerError(
        f"no Triton server on this machine: neither {in_container.binary} nor the wheel {WHEEL} is there. "
        f"Run: python -m pip install --no-deps {WHEEL}, or work inside the vendor's container"
    )


def find_container(container_root: Path = CONTAINER_ROOT) -> ServerInstallation | None:
    """The container's server, for lanes that no other has the backends of; None outside the container."""
    installation = ServerInstallation("container", container_root)
    return installation if installation.binary.is_file() else None


def lay_out_backends(installation: ServerInstallation, layout_root: Path) -> None:
    """Link the Python backend and the stub of the running Python version where `backend_directory` points.

    The stub ignores PYTHONPATH but searches the backend's folder last: that is where our package is linked when it is
    used from a source tree without being installed.
    """
    package = None if _is_installed() else Path(__file__).resolve().parents[1]
    if installation.origin == "container":
        if package is not None:
            raise ServerError(f"{package.name} is not installed where models run. Run: python -m pip install -e .")
        return
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stubs = installation.root / "python_backend_stubs"
    backend = installation.root / "backends" / "python"
    sources = {
        "libtriton_python.so": backend / "libtriton_python.so",
        "triton_python_backend_utils.py": backend / "triton_python_backend_utils.py",
        "triton_python_backend_stub": stubs / version / "triton_python_backend_stub",
    }
    if not sources["triton_python_backend_stub"].is_file():
        raise ServerError(
            f"the wheel {WHEEL} has no stub for Python {version} (it has {_stub_versions(stubs)}). "
            "Make the virtual environment with one of those versions"
        )
    _check_numpy(importlib.metadata.version("numpy"))
    if missing := [str(path) for path in sources.values() if not path.is_file()]:
        raise ServerError(f"the wheel {WHEEL} is damaged, missing: {', '.join(missing)}. Install it again")
    if package is not None:
        sources[package.name] = package
    target = installation.backend_directory(layout_root) / "python"
    target.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        link = target / name
        link.unlink(missing_ok=True)
        link.symlink_to(source)


def server_environment(
    installation: ServerInstallation, engines_root: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """`environment` plus what the server and its stubs need."""
    result = dict(environment)
    result[ENGINES_ROOT_VARIABLE] = str(engines_root.resolve())
    # The stub embeds Python and finds the packages of this virtual environment through `python3` in PATH.
    # Not resolved: the path through the virtual environment is what makes it one.
    result["PATH"] = _joined(str(Path(sys.executable).parent), environment.get("PATH"))
    if installation.library_folder is not None:
        result["LD_LIBRARY_PATH"] = _joined(
            str(installation.library_folder), _shared_python_folder(), environment.get("LD_LIBRARY_PATH")
        )
    return result


def _check_numpy(version: str) -> None:
    """The wheel's stubs are compiled against the array layout of numpy 1: under numpy 2 they read every array as
    zero-sized items, which corrupts text inputs and ends the stub."""
    if int(version.split(".")[0]) >= 2:
        raise ServerError(
            f"numpy {version} does not work with the server of the wheel {WHEEL}, which was built for numpy 1. "
            'Run: python -m pip install "numpy<2"'
        )


def _stub_versions(stubs: Path) -> str:
    found = [path.parent.name for path in stubs.glob("*/triton_python_backend_stub")]
    return (
        ", ".join(sorted(found, key=lambda name: [int(part) for part in name.split(".") if part.isdigit()])) or "none"
    )


def _shared_python_folder() -> str | None:
    """Folder of the running Python's shared library, where Python was built with one."""
    folder, name = sysconfig.get_config_vars("LIBDIR", "INSTSONAME")
    if folder and name and ".so" in name and (Path(folder) / name).is_file():
        return str(folder)
    return None


def _is_installed() -> bool:
    try:
        importlib.metadata.distribution("specdeploy")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _joined(*parts: str | None) -> str:
    return os.pathsep.join(part for part in parts if part)
