"""Calibrations as files: round trip, the one that serves a pair, and what is wrong with a damaged one."""

import json
from pathlib import Path

import pytest

from helpers.observed_steps import SUBJECT, whole_observations
from helpers.run_summaries import run_summary
from specdeploy.contract import Method
from specdeploy.errors import ConfigError
from specdeploy.planner.calibrate import fit_measured
from specdeploy.planner.calibration_files import (
    find_calibration,
    load_calibration,
    load_run_summary,
    write_calibration,
)
from specdeploy.planner_contract import Calibration


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return fit_measured(tuple(whole_observations()), SUBJECT)


def test_what_is_written_is_read_again(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "new" / "one.calibration.json"
    write_calibration(path, calibration)
    assert load_calibration(path) == calibration


def test_a_place_that_cannot_be_written(calibration: Calibration, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written .*--output"):
        write_calibration(tmp_path / "file" / "one.json", calibration)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read"),
        ("{", "is no JSON text"),
        ("[]", "holds a list, not an object"),
    ],
)
def test_a_file_that_is_no_calibration(text: str | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=rf"broken\.json: {expected}.*specdeploy calibrate"):
        load_calibration(path)


def test_every_wrong_field_is_named(calibration: Calibration, tmp_path: Path) -> None:
    data = calibration.model_dump(mode="json")
    data["target"]["row_s"] = -1
    data["surprise"] = 1
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as caught:
        load_calibration(path)
    assert {violation.key for violation in caught.value.violations} == {"target.row_s", "surprise"}


def test_the_calibration_that_says_most_of_a_pair_is_found(calibration: Calibration, tmp_path: Path) -> None:
    changed: dict[str, dict[str, object]] = {
        "any": {},
        "method": {"method": Method.EAGLE3},
        "pair": {"method": Method.EAGLE3, "target_reference": "a/b"},
        "other": {"method": Method.MEDUSA, "target_reference": "a/b"},
        "device": {"hardware": "h100-sxm", "target_reference": "a/b"},
    }
    for name, changes in changed.items():
        write_calibration(tmp_path / f"{name}.json", calibration.model_copy(update=changes))

    def found(method: Method, target: str, hardware: str = "cpu") -> str | None:
        path = find_calibration(tmp_path, hardware, "torch", method, target)
        return None if path is None else path.stem

    assert found(Method.EAGLE3, "a/b") == "pair"
    assert found(Method.EAGLE3, "c/d") == "method"
    assert found(Method.NGRAM, "a/b") == "any"
    assert found(Method.NGRAM, "a/b", "b200-sxm") is None
    assert find_calibration(tmp_path / "missing", "cpu", "torch", None, None) is None


def test_a_run_is_read_from_its_folder(tmp_path: Path) -> None:
    summary = run_summary()
    (tmp_path / "run_summary.json").write_text(summary.model_dump_json())
    assert load_run_summary(tmp_path) == load_run_summary(tmp_path / "run_summary.json") == summary
    with pytest.raises(ConfigError, match="finished `specdeploy-client bench` run"):
        load_run_summary(tmp_path / "nothing")
