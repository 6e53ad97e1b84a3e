"""Files of a run: written to a temporary name and renamed, read back into their contract type."""

import os
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from specdeploy.errors import ConfigError, Violation

RECORDS_FILE = "records.jsonl"
RUN_SUMMARY_FILE = "run_summary.json"
SERVER_COUNTERS_FILE = "server_counters.json"
INTEGRITY_FILE = "integrity.json"
VERDICT_FILE = "verdict.json"
VERDICT_JUNIT_FILE = "verdict.junit.xml"
VERDICT_MARKDOWN_FILE = "verdict.md"
REPORT_FILE = "report.html"
# What is made of the records of a run; a new run begins without them.
RESULT_FILES = (
    RUN_SUMMARY_FILE,
    SERVER_COUNTERS_FILE,
    INTEGRITY_FILE,
    VERDICT_FILE,
    VERDICT_JUNIT_FILE,
    VERDICT_MARKDOWN_FILE,
    REPORT_FILE,
)

ModelT = TypeVar("ModelT", bound=BaseModel)


def remove_results(folder: Path) -> None:
    """Results of an earlier run must not lie beside the records of a new one."""
    for name in RESULT_FILES:
        (folder / name).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that readers see the old file or the new one, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_model(path: Path, model: BaseModel) -> None:
    """Write `model` as indented JSON, atomically."""
    write_text(path, model.model_dump_json(indent=2) + "\n")


def load_model(path: Path, model_type: type[ModelT], remedy: str) -> ModelT:
    """The `model_type` in `path`. Raises `ConfigError` with every violation; `remedy` says how to get a good file."""
    try:
        return model_type.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError([Violation(str(path), "", reason, remedy)]) from error
    except ValidationError as error:
        raise ConfigError(violations_of(error, str(path), remedy)) from error


def violations_of(error: ValidationError, file: str, remedy: str) -> list[Violation]:
    """Every complaint of pydantic as a `Violation` of `file`."""
    return [
        Violation(file, ".".join(str(part) for part in detail["loc"]), detail["msg"], remedy)
        for detail in error.errors(include_url=False)
    ]
