"""Calibrations, and the runs that some are fitted to, as JSON files. Errors name file, field, reason and remedy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specdeploy.contract import Method
from specdeploy.errors import ConfigError, Violation
from specdeploy.manifest import write_json_atomically
from specdeploy.planner_contract import Calibration
from specdeploy.run_contract import RunSummary

ModelT = TypeVar("ModelT", bound=BaseModel)

RUN_SUMMARY_NAME = "run_summary.json"
CALIBRATION_SUFFIX = ".calibration.json"
_CALIBRATE_AGAIN = "Run `specdeploy calibrate` again, or take the file from the release it came with."


def load_calibration(path: Path) -> Calibration:
    """Raises ConfigError for a file that cannot be read or is no calibration."""
    return _load(path, Calibration, _CALIBRATE_AGAIN)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Whole or not at all. Raises ConfigError where it cannot be written."""
    try:
        write_json_atomically(path, calibration)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error})"
        raise ConfigError([Violation(str(path), "", reason, "Give another file with --output.")]) from error


def find_calibration(
    folder: Path, hardware: str, engine: str, method: Method | None, target_reference: str | None
) -> Path | None:
    """The file in `folder` that is of this hardware and engine and says most of method and target.

    A calibration of another method or target is none of this pair's; one that names neither serves any. Of equal ones
    the first by name.
    """
    best: tuple[int, Path] | None = None
    for path in sorted(folder.glob("*.json")):
        known = load_calibration(path)
        if (known.hardware, known.engine) != (hardware, engine):
            continue
        if known.method not in (None, method) or known.target_reference not in (None, target_reference):
            continue
        score = 2 * (known.target_reference is not None) + (known.method is not None)
        if best is None or score > best[0]:
            best = score, path
    return None if best is None else best[1]


def load_run_summary(path: Path) -> RunSummary:
    """What a finished client run saw: its folder, or its run_summary.json. Raises ConfigError."""
    file = path / RUN_SUMMARY_NAME if path.is_dir() else path
    return _load(file, RunSummary, "Give the folder of a finished `specdeploy-client bench` run.")


def _load(path: Path, model: type[ModelT], remedy: str) -> ModelT:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([Violation(str(path), "", f"cannot be read ({error.strerror or error})", remedy)]) from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise ConfigError([Violation(str(path), "", f"is no JSON text ({error})", remedy)]) from error
    if not isinstance(data, Mapping):
        raise ConfigError([Violation(str(path), "", f"holds a {type(data).__name__}, not an object", remedy)])
    return _validated(path, data, model, remedy)


def _validated(path: Path, data: Mapping[str, Any], model: type[ModelT], remedy: str) -> ModelT:
    try:
        return model.model_validate_json(json.dumps(data))
    except ValidationError as error:
        violations = [
            Violation(str(path), ".".join(str(part) for part in details["loc"]), details["msg"], remedy)
            for details in error.errors(include_url=False, include_context=False)
        ]
        raise ConfigError(violations) from error
