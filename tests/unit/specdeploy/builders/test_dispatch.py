"""`make repo` in the TensorRT-LLM lanes packs a build that is still what it was when it was made."""

from pathlib import Path

import pytest

from helpers.llmapi_machine import installed, load_llmapi
from helpers.pair_files import edit_config
from specdeploy.builders.dispatch import build_deployment, packaged_build
from specdeploy.config.load import LoadedDeployment
from specdeploy.errors import PackagingError


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedDeployment:
    """An LLM API build of checkpoints that stay in `tmp_path`."""
    loaded = load_llmapi(tmp_path, "ngram")
    with installed(monkeypatch, tmp_path, "1.2.1"):
        build_deployment(loaded, tmp_path / "engines", report=lambda _: None)
    return loaded


def test_packs_what_was_built(tmp_path: Path, built: LoadedDeployment) -> None:
    found = packaged_build(built, tmp_path / "engines")
    assert found is not None
    assert (Path(found.folder).parent, found.config_digest) == (tmp_path / "engines", built.digest)


def test_weights_that_changed_since_the_build_are_refused(tmp_path: Path, built: LoadedDeployment) -> None:
    edit_config(tmp_path / "target", rope_theta=1.0)
    with pytest.raises(PackagingError, match=r"config\.json in .*target changed since the build.*make engines"):
        packaged_build(built, tmp_path / "engines")


def test_a_manifest_that_was_edited_is_refused(tmp_path: Path, built: LoadedDeployment) -> None:
    (path,) = (tmp_path / "engines").glob("[0-9a-f]*/manifest.json")
    path.chmod(0o644)
    path.write_text(path.read_text() + " ")
    with pytest.raises(PackagingError, match=r"manifest\.json: its bytes are not those .* run: make engines"):
        packaged_build(built, tmp_path / "engines")
