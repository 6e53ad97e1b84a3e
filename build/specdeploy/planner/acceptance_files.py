"""Reads acceptance from files, whatever wrote them.

    our own `*.acceptance.json`                      AcceptanceFile: `specdeploy profile`, or written by hand
    a client run: its folder or run_summary.json     the on arm of every segment (run_acceptance.py)
    `speculation_profile.json`, schema 1.0           NVIDIA Model Optimizer (imported_acceptance.py)
    `*acceptance.csv`                                speculators' evaluation (imported_acceptance.py)

Everything wrong with a file is one ConfigError that names the file, the key, the reason and the remedy.
"""

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from specdeploy.contract import Method
from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.imported_acceptance import profile_of_model_optimizer, profiles_of_speculators
from specdeploy.planner.published_acceptance import acceptance_of_pair, acceptance_range
from specdeploy.planner.run_acceptance import profiles_of_run
from specdeploy.planner_contract import AcceptanceFile, AcceptanceProfile, DraftForm
from specdeploy.run_contract import RunSummary

ModelT = TypeVar("ModelT", bound=BaseModel)

PUBLISHED_FILE = Path("acceptance") / "published.json"  # below the configs root
_RUN_SUMMARY = "run_summary.json"
_MODEL_OPTIMIZER = "speculation_profile.json"
_KNOWN = (
    "Give an *.acceptance.json of `specdeploy profile`, the folder of a `specdeploy-client bench` run, a "
    "speculation_profile.json of NVIDIA Model Optimizer, or an acceptance.csv of speculators"
)
_PROFILE_AGAIN = "Correct it, or write the file again with `specdeploy profile`"


def load_acceptance(path: Path, *, method: Method | None = None) -> AcceptanceFile:
    """The profiles in `path`, a file or the folder of a run. `method`: of files that do not say theirs, or say it in
    words of another tool. Raises ConfigError."""
    file = _file_in(path)
    text = _read(file)
    if file.suffix == ".csv":
        return AcceptanceFile(profiles=profiles_of_speculators(text, str(file), method))
    data = _json_object(text, file)
    if "profiles" in data:
        return _validated(AcceptanceFile, data, file, _PROFILE_AGAIN)
    if "marginal_accept_rates" in data or "conditional_accept_rates" in data:
        return AcceptanceFile(profiles=(profile_of_model_optimizer(data, str(file), method),))
    if "cells" in data and "comparisons" in data:
        summary = _validated(RunSummary, data, file, "Measure again with `specdeploy-client bench`")
        return AcceptanceFile(profiles=profiles_of_run(summary, str(file), method))
    reason = f"is no file with an acceptance (its keys: {', '.join(sorted(data)[:6]) or 'none'})"
    raise ConfigError([Violation(str(file), "", reason, _KNOWN)])


def acceptance_for(file: AcceptanceFile, segment: str) -> AcceptanceProfile | None:
    """The profile of a segment, else the one for any other, else None."""
    for wanted in (segment, None):
        for profile in file.profiles:
            if profile.segment == wanted:
                return profile
    return None


def unknown_acceptance(
    method: Method, task: str | None = None, *, form: DraftForm | None = None, configs_root: Path = Path("configs")
) -> AcceptanceProfile | None:
    """The range over published pairs of `method` on tasks like segment `task` (published_acceptance.py); None where
    nothing was published: it is to be measured. Raises ConfigError for a published.json that is missing or damaged."""
    return acceptance_range(_published(configs_root / PUBLISHED_FILE), method, task, form)


def published_acceptance(
    method: Method,
    target: str,
    draft: str | None,
    task: str | None = None,
    *,
    form: DraftForm | None = None,
    configs_root: Path = Path("configs"),
) -> AcceptanceProfile | None:
    """What was published of this very pair; None where nothing was. Raises ConfigError as `unknown_acceptance`."""
    profiles = _published(configs_root / PUBLISHED_FILE)
    return acceptance_of_pair(profiles, method=method, target=target, draft=draft, task=task, form=form)


@lru_cache(maxsize=4)
def _published(file: Path) -> tuple[AcceptanceProfile, ...]:
    data = _json_object(_read(file), file)
    return _validated(AcceptanceFile, data, file, "Restore the file from the project's sources").profiles


def _file_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in (_RUN_SUMMARY, _MODEL_OPTIMIZER):
        if (path / name).is_file():
            return path / name
    reason = f"the folder holds neither {_RUN_SUMMARY} nor {_MODEL_OPTIMIZER}"
    raise ConfigError([Violation(str(path), "", reason, _KNOWN)])


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
        raise ConfigError([Violation(str(file), "", reason, _KNOWN)]) from error
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not valid UTF-8"
        raise ConfigError([Violation(str(file), "", reason, _KNOWN)]) from error


def _json_object(text: str, file: Path) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError([Violation(str(file), "", f"is not JSON ({error})", _KNOWN)]) from error
    except RecursionError as error:
        raise ConfigError([Violation(str(file), "", "is nested too deeply", _KNOWN)]) from error
    if not isinstance(data, dict):
        raise ConfigError([Violation(str(file), "", f"holds a {type(data).__name__}, not an object", _KNOWN)])
    return data


def _validated(model: type[ModelT], data: dict[str, Any], file: Path, remedy: str) -> ModelT:
    try:
        # JSON mode: lists become tuples and words become enums; strict: "0.5" never becomes 0.5.
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise ConfigError(list(dict.fromkeys(_violations(error, file, remedy)))) from error


def _violations(error: ValidationError, file: Path, remedy: str) -> Iterator[Violation]:
    for details in error.errors(include_url=False, include_context=False):
        key = ""
        for part in details["loc"]:
            key += f"[{part}]" if isinstance(part, int) else f".{part}" if key else str(part)
        yield Violation(str(file), key, _reason(details["msg"], details["input"]), remedy)


def _reason(message: str, given: object) -> str:
    words = message.removeprefix("Value error, ")
    if isinstance(given, float) and not math.isfinite(given):
        return f"{given} is no number that can be used"
    return f"{words} (given {given})" if isinstance(given, int | float | str) else words
