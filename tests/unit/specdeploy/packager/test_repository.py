"""Model repositories: right, whole, and left alone when nothing changed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.deployment_files import write_deployment
from helpers.engine_builds import make_build, make_config
from specdeploy.config.load import load_deployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import RepositoryManifest
from specdeploy.errors import PackagingError
from specdeploy.manifest import hash_folder
from specdeploy.packager import repository
from specdeploy.packager.repository import check_repository, pack_repository


@pytest.fixture
def config(tmp_path: Path) -> DeploymentConfig:
    return load_deployment(write_deployment(tmp_path)).config


@pytest.fixture
def repo_root(tmp_path: Path) -> Path:
    return tmp_path / "triton_repo"


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_writes_one_model_and_says_what(config: DeploymentConfig, repo_root: Path) -> None:
    manifest = pack_repository(config, repo_root)
    folder = repo_root / "tiny"
    assert files_in(folder) == ["llm/1/model.py", "llm/config.pbtxt", "repository.json"]
    assert manifest.models == ("llm",)
    assert manifest.files == tuple(entry for entry in hash_folder(folder) if entry.path != "repository.json")
    assert RepositoryManifest.model_validate_json((folder / "repository.json").read_bytes()) == manifest


def test_lane_torch_names_no_build(config: DeploymentConfig, repo_root: Path) -> None:
    manifest = pack_repository(config, repo_root, make_build())
    assert (manifest.build_id, manifest.config_digest) == (None, None)
    assert "build_id" not in (repo_root / "tiny" / "repository.json").read_text()


def test_a_vendor_lane_names_its_build_and_config(repo_root: Path) -> None:
    build = replace(make_build(), config_digest="c0ffee")
    manifest = pack_repository(make_config(), repo_root, build)
    assert (manifest.build_id, manifest.config_digest) == ("0123456789abcdef", "c0ffee")
    inode = (repo_root / "big").stat().st_ino
    assert pack_repository(make_config(), repo_root, build) == manifest
    assert (repo_root / "big").stat().st_ino == inode
    # The engines are the same and so is every other file: what it was packed for is not.
    pack_repository(make_config(), repo_root, replace(build, config_digest="decade"))
    assert '"decade"' in (repo_root / "big" / "repository.json").read_text()


def test_names_the_deployment_and_no_path(config: DeploymentConfig, repo_root: Path) -> None:
    pack_repository(config, repo_root)
    text = (repo_root / "tiny" / "llm" / "config.pbtxt").read_text()
    assert 'string_value: "tiny"' in text
    assert str(repo_root.parent) not in text


def test_an_unchanged_repository_is_left_alone(config: DeploymentConfig, repo_root: Path) -> None:
    first = pack_repository(config, repo_root)
    cache = repo_root / "tiny" / "llm" / "1" / "__pycache__"
    cache.mkdir()
    (cache / "model.pyc").touch()
    inode = (repo_root / "tiny").stat().st_ino
    assert pack_repository(config, repo_root) == first
    assert (repo_root / "tiny").stat().st_ino == inode


def test_a_changed_repository_is_replaced_whole(config: DeploymentConfig, repo_root: Path) -> None:
    pack_repository(config, repo_root)
    (repo_root / "tiny" / "stray").mkdir()
    (repo_root / "tiny" / "stray" / "file").touch()
    (repo_root / "tiny" / "llm" / "config.pbtxt").write_text("damaged")
    pack_repository(config, repo_root)
    assert files_in(repo_root / "tiny") == ["llm/1/model.py", "llm/config.pbtxt", "repository.json"]
    check_repository(repo_root / "tiny")


def test_nothing_is_left_behind_by_a_failure_or_a_killed_run(
    config: DeploymentConfig, repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_repository(config, repo_root)
    before = hash_folder(repo_root / "tiny")
    (repo_root / ".tiny.abc.partial").mkdir()

    def broken_render(_: DeploymentConfig) -> dict[str, str]:
        return {"llm/config.pbtxt": 'name: "${name}"'}

    monkeypatch.setattr(repository, "render_repository", broken_render)
    with pytest.raises(PackagingError, match="unfilled template variable"):
        pack_repository(config, repo_root)
    assert hash_folder(repo_root / "tiny") == before
    assert sorted(path.name for path in repo_root.iterdir()) == [".tiny.lock", "tiny"]


def test_a_file_in_the_way_is_not_removed(config: DeploymentConfig, repo_root: Path) -> None:
    repo_root.mkdir()
    (repo_root / "tiny").write_text("mine")
    with pytest.raises(PackagingError, match="is not a folder"):
        pack_repository(config, repo_root)
    assert (repo_root / "tiny").read_text() == "mine"


def break_repository(folder: Path, **changes: Any) -> None:
    for name, text in changes["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in changes.get("remove", ()):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("files", "remove", "reason"),
    [
        ({"extra/notes.txt": ""}, (), "has no config.pbtxt"),
        ({"llm/config.pbtxt": 'name: "mll" backend: "python"'}, (), "'mll' is not the name of its folder"),
        ({"llm/config.pbtxt": "nonsense"}, (), "not a Triton model config"),
        ({"llm/config.pbtxt": 'name: "${x}"'}, (), "unfilled template variable"),
        ({"llm/2/other.py": ""}, (), "has no model.py"),
        ({"plain/config.pbtxt": 'name: "plain" backend: "python"'}, (), "has no version folder"),
        ({}, ("llm/1/model.py",), "has no model.py"),
    ],
)
def test_problems_that_would_stop_triton(
    files: dict[str, str], remove: tuple[str, ...], reason: str, config: DeploymentConfig, repo_root: Path
) -> None:
    pack_repository(config, repo_root)
    break_repository(repo_root / "tiny", files=files, remove=remove)
    with pytest.raises(PackagingError) as caught:
        check_repository(repo_root / "tiny")
    assert reason in str(caught.value)


def test_an_empty_repository_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match="holds no model folder"):
        check_repository(tmp_path)
