"""Files of a run: written to a temporary name and renamed, read back into their contract type."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

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
# All that a run leaves in its folder; a new one begins without them. The reserve is what a killed run could not remove.
RUN_FILES = (
    RECORDS_FILE,
    f".{RECORDS_FILE}.reserve",
    RUN_SUMMARY_FILE,
    SERVER_COUNTERS_FILE,
    INTEGRITY_FILE,
    VERDICT_FILE,
    VERDICT_JUNIT_FILE,
    VERDICT_MARKDOWN_FILE,
    REPORT_FILE,
)

ModelT = TypeVar("ModelT", bound=BaseModel)


def require_writable(folder: Path) -> None:
    """Raise `ConfigError` where files cannot be written to `folder`; what does not exist yet is not made."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        _refuse_folder(folder, f"{existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        _refuse_folder(folder, f"{existing} may not be written to")


def empty_run_folder(folder: Path) -> None:
    """Make `folder` and remove what an earlier run left in it: its results must not lie beside a new one's records.

    Raises `ConfigError`.
    """
    with _named(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in RUN_FILES:
        with _named(folder / name):
            (folder / name).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that readers see the old file or the new one, never a part of it.

    Raises `ConfigError` where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
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
        text = path.read_text(encoding="utf-8")
        _require_version(text, path, model_type, remedy)
        return model_type.model_validate_json(text)
    except (OSError, UnicodeDecodeError) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError([Violation(str(path), "", reason, remedy)]) from error
    except ValidationError as error:
        raise ConfigError(violations_of(error, str(path), remedy)) from error


def _require_version(text: str, path: Path, model_type: type[BaseModel], remedy: str) -> None:
    """Raise `ConfigError` for a file that another version wrote: its other fields would only confuse."""
    version = model_type.model_fields.get("schema_version")
    try:
        content = json.loads(text)
    except ValueError:
        return  # pydantic names the place
    found = content.get("schema_version") if isinstance(content, dict) else None
    if version is None or not isinstance(found, int) or found == version.default:
        return
    reason = f"written by another version of this tool (schema {found}; this one reads {version.default})"
    raise ConfigError([Violation(str(path), "", reason, f"Use that version, or: {remedy}")])


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the system says of `path` as a `ConfigError` that names it."""
    try:
        yield
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
        raise ConfigError([Violation(str(path), "", reason, "Make room there, or name another place")]) from error


def _refuse_folder(folder: Path, reason: str) -> NoReturn:
    raise ConfigError([Violation(str(folder), "", f"cannot hold results: {reason}", "Choose another --artifact-dir")])


def violations_of(error: ValidationError, file: str, remedy: str) -> list[Violation]:
    """Every complaint of pydantic as a `Violation` of `file`."""
    return [
        Violation(file, ".".join(str(part) for part in detail["loc"]), detail["msg"], remedy)
        for detail in error.errors(include_url=False)
    ]
