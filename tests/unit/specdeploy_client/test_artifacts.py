"""Files of a run are written whole or not at all, and what is in the way is named."""

from pathlib import Path

import pytest

from specdeploy.errors import ConfigError
from specdeploy.verdict_contract import Verdict
from specdeploy_client.artifacts import RUN_FILES, empty_run_folder, load_model, require_writable, write_text


def test_a_folder_is_made_and_emptied_of_runs_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    empty_run_folder(folder)
    for name in (*RUN_FILES, "mine.txt"):
        (folder / name).write_text("x")
    empty_run_folder(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="file is a file"):
        require_writable(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match="cannot be written"):
        empty_run_folder(tmp_path / "file")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_text(tmp_path / "file" / "x.json", "x")
    require_writable(tmp_path / "not" / "there")
    assert not (tmp_path / "not").exists()


def test_nothing_is_left_of_a_file_that_could_not_be_put_in_place(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="folder: cannot be written"):
        write_text(tmp_path / "folder", "x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_what_is_no_json_is_left_to_the_type(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text("{")
    with pytest.raises(ConfigError, match="Invalid JSON"):
        load_model(tmp_path / "v.json", Verdict, "Judge again")
