"""What was recorded when a build was made, against what is installed where it would be served."""

import importlib.metadata
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.engine_manifests import INSTALLED, VERSIONS, write_engine_build
from specdeploy.contract import EngineManifest
from specdeploy.errors import ServerError
from specdeploy.manifest import load_manifest
from specdeploy.serving.runtime_versions import (
    check_deployment,
    compare_versions,
    find_installed_versions,
    main,
    runtime_problems,
    version_table,
)


@pytest.fixture
def engines_root(tmp_path: Path) -> Path:
    return tmp_path / "engines"


@pytest.fixture
def build_id(engines_root: Path) -> str:
    return write_engine_build(engines_root)


@pytest.fixture
def manifest(engines_root: Path, build_id: str) -> EngineManifest:
    return load_manifest(engines_root, build_id)


def test_the_same_versions_may_be_served(engines_root: Path, build_id: str) -> None:
    assert runtime_problems(engines_root, build_id, INSTALLED) == []
    check_deployment(engines_root, "big", INSTALLED)


@pytest.mark.parametrize(
    ("name", "installed"),
    [
        ("tensorrt_llm", "1.1.0"),
        ("tensorrt_llm", "1.2.1rc1"),
        ("tensorrt_llm", None),
        ("tensorrt", "10.13.3.9"),
        ("tensorrt", None),
        ("cuda", "13.0.2.006"),
        ("gpu_architecture", "sm80"),
        ("gpu_architecture", "sm80,sm90"),
        ("gpu_architecture", None),
    ],
)
def test_another_version_is_shown_beside_the_recorded_one(
    name: str, installed: str | None, engines_root: Path, build_id: str
) -> None:
    problems = runtime_problems(engines_root, build_id, {**INSTALLED, name: installed})

    assert len(problems) == 1
    (row,) = [line for line in problems[0].splitlines() if "<- differs" in line]
    assert row.split()[0] == name
    assert {**VERSIONS, "gpu_architecture": "sm90"}[name] in row
    assert (installed or "not found") in row
    assert all(other in problems[0] for other in ("tensorrt_llm", "tensorrt", "cuda", "gpu_architecture"))
    assert "docker-run.sh" in problems[0]
    with pytest.raises(ServerError, match="other versions"):
        check_deployment(engines_root, "big", {**INSTALLED, name: installed})


@pytest.mark.parametrize(
    ("name", "installed"),
    [("tensorrt", "10.14.1.48.post1"), ("cuda", "13.1"), ("tensorrt_llm", "1.2.1+local")],
)
def test_other_spellings_of_the_same_version(name: str, installed: str, engines_root: Path, build_id: str) -> None:
    assert runtime_problems(engines_root, build_id, {**INSTALLED, name: installed}) == []


def test_what_was_not_recorded_cannot_differ(manifest: EngineManifest) -> None:
    silent = manifest.model_copy(update={"versions": {"tensorrt_llm": "1.2.1"}, "gpu_architecture": None})
    rows = compare_versions(silent, INSTALLED)

    assert not any(row.differs for row in rows)
    assert version_table(rows).count("not recorded") == 3


def test_a_manifest_without_the_version_is_refused(engines_root: Path) -> None:
    build_id = write_engine_build(engines_root, versions={"tensorrt": "10.14.1.48"})
    assert any("names no tensorrt_llm" in text for text in runtime_problems(engines_root, build_id, INSTALLED))


def test_an_edited_manifest_is_refused(engines_root: Path, build_id: str) -> None:
    path = engines_root / build_id / "manifest.json"
    path.chmod(0o644)
    path.write_text(path.read_text().replace('"sm90"', '"sm80"'))

    problems = runtime_problems(engines_root, build_id, {**INSTALLED, "gpu_architecture": "sm80"})

    assert len(problems) == 1
    assert "its bytes are not those that deployment big recorded" in problems[0]


def test_a_missing_manifest_is_refused(engines_root: Path, build_id: str) -> None:
    (engines_root / build_id / "manifest.json").unlink()
    (problem,) = runtime_problems(engines_root, build_id, INSTALLED)
    assert "no such build" in problem
    assert "make engines" in problem


# --- what is installed ----------------------------------------------------------------------------------------------


def fake_packages(**versions: str) -> Callable[[str], str]:
    def version_of(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    return version_of


def test_packages_container_and_gpus_are_asked() -> None:
    asked = []

    def run(command: tuple[str, ...]) -> str:
        asked.append(command)
        return "9.0\n9.0\n"

    packages = fake_packages(tensorrt_llm="1.2.1", tensorrt_cu13="10.14.1.48")
    found = find_installed_versions({"CUDA_VERSION": "13.1.0.036"}, version_of=packages, run=run)

    assert found == INSTALLED
    assert asked == [("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")]


def test_gpus_of_two_kinds_are_both_named() -> None:
    found = find_installed_versions({}, version_of=fake_packages(), run=lambda _: "9.0\n8.0\n")
    assert found["gpu_architecture"] == "sm80,sm90"


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.CalledProcessError(9, "nvidia-smi")])
def test_nothing_is_installed(error: Exception) -> None:
    def run(_: tuple[str, ...]) -> str:
        raise error

    found = find_installed_versions({}, version_of=fake_packages(), run=run)
    assert found == dict.fromkeys(("tensorrt_llm", "tensorrt", "cuda", "gpu_architecture"))


def test_cuda_of_the_package_where_no_container_says_it() -> None:
    packages = fake_packages(**{"nvidia-cuda-runtime-cu12": "12.9.79"})
    assert find_installed_versions({}, version_of=packages, run=lambda _: "")["cuda"] == "12.9.79"


# --- as launch.sh asks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "has_root", "code", "said"),
    [
        (["big"], True, 1, "tensorrt_llm"),
        (["other"], True, 1, "was never built"),
        ([], True, 64, "usage:"),
        (["big"], False, 64, "usage:"),
    ],
)
def test_the_module_says_no_in_words(
    arguments: list[str],
    has_root: bool,
    code: int,
    said: str,
    engines_root: Path,
    build_id: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = {"SPECDEPLOY_ENGINES_ROOT": str(engines_root)} if has_root else {}

    assert main(arguments, environment) == code
    assert said in capsys.readouterr().err


def test_the_module_says_yes(engines_root: Path, build_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdeploy.serving.runtime_versions.find_installed_versions", lambda _: INSTALLED)
    assert main(["big"], {"SPECDEPLOY_ENGINES_ROOT": str(engines_root)}) == 0
