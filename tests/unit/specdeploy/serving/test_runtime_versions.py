"""What was recorded when a build was made, against what is installed where it would be served."""

import importlib.metadata
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.engine_builds import make_config
from helpers.engine_manifests import INSTALLED, VERSIONS, write_engine_build
from helpers.fabricated_checkpoints import LlamaSize, llama_config, llama_tensors, write_checkpoint
from specdeploy.checkpoint.pinned_sources import PinnedSource, PinnedSources
from specdeploy.checkpoint.source import digest_files, list_checkpoint_files
from specdeploy.contract import EngineManifest, FileDigest
from specdeploy.errors import ServerError
from specdeploy.manifest import load_manifest, sha256_file
from specdeploy.packager.packaged_build import load_packaged_build
from specdeploy.packager.repository import pack_repository
from specdeploy.serving.runtime_versions import (
    check_deployment,
    compare_versions,
    find_installed_versions,
    main,
    runtime_problems,
    version_table,
)
from specdeploy.serving.server_log import extract_cause

SIZE = LlamaSize(1, 64, 128, 4, 2, 512, head_dim=16)


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
        (["big", "BUILD"], True, 1, "tensorrt_llm"),
        (["other", "BUILD"], True, 1, "was never built"),
        (["big", "0123456789abcdef"], True, 1, "was packed for build 0123456789abcdef"),
        (["big"], True, 64, "run make repo again"),
        ([], True, 64, "usage:"),
        (["big", "BUILD"], False, 64, "usage:"),
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

    assert main([build_id if word == "BUILD" else word for word in arguments], environment) == code
    lines = capsys.readouterr().err.splitlines()
    assert said in "\n".join(lines)
    assert all(line.startswith("specdeploy: ") for line in lines)


def test_the_module_says_yes(engines_root: Path, build_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdeploy.serving.runtime_versions.find_installed_versions", lambda _: INSTALLED)
    assert main(["big", build_id], {"SPECDEPLOY_ENGINES_ROOT": str(engines_root)}) == 0


def test_the_whole_table_reaches_the_user_through_the_log(
    engines_root: Path, build_id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**INSTALLED, "tensorrt": "10.13.3.9"}
    monkeypatch.setattr("specdeploy.serving.runtime_versions.find_installed_versions", lambda _: other)
    assert main(["big", build_id], {"SPECDEPLOY_ENGINES_ROOT": str(engines_root)}) == 1

    cause = str(extract_cause(capsys.readouterr().err))

    assert cause.startswith(f"{engines_root / build_id}: was built with other versions than those installed here:\n")
    assert re.search(r"^ +tensorrt +10\.14\.1\.48 +10\.13\.3\.9 +<- differs$", cause, re.MULTILINE)
    assert cause.endswith("or build it again here")


def test_another_build_than_the_one_packed(engines_root: Path, build_id: str) -> None:
    check_deployment(engines_root, "big", INSTALLED, build_id=build_id)
    with pytest.raises(ServerError, match=f"packed for build 0123, and {build_id} is served now.*make repo"):
        check_deployment(engines_root, "big", INSTALLED, build_id="0123")


def test_the_repository_is_compared_with_what_was_packed(engines_root: Path, build_id: str, tmp_path: Path) -> None:
    pack_repository(make_config(), tmp_path / "repo", load_packaged_build(engines_root, "big"))
    folder = tmp_path / "repo" / "big"
    check_deployment(engines_root, "big", INSTALLED, build_id=build_id, repository=folder)

    (folder / "draft" / "config.pbtxt").write_text("")

    with pytest.raises(ServerError, match=r"draft/config\.pbtxt changed since it was packed\. Run: make repo"):
        check_deployment(engines_root, "big", INSTALLED, build_id=build_id, repository=folder)


def test_pinned_weights_are_compared(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "target", llama_config(SIZE), llama_tensors(SIZE))
    files = {
        "sources.json": PinnedSources(checkpoints=(pin(checkpoint),)).model_dump_json(),
        "target/config.json": "{}",
    }
    write_engine_build(tmp_path / "engines", config=make_config("ngram"), files=files)
    check_deployment(tmp_path / "engines", "big", INSTALLED)

    (weights,) = checkpoint.glob("*.safetensors")
    with weights.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")

    with pytest.raises(ServerError, match=f"{weights.name} in {checkpoint} changed since the build"):
        check_deployment(tmp_path / "engines", "big", INSTALLED)


def pin(checkpoint: Path) -> PinnedSource:
    files = list_checkpoint_files(checkpoint)
    return PinnedSource(
        role="target",
        reference="owner/model",
        commit=None,
        folder=str(checkpoint),
        digest=digest_files(files),
        files=tuple(
            FileDigest(path=path.name, sha256=sha256_file(path), num_bytes=path.stat().st_size) for path in files
        ),
    )
