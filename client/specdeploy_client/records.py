"""Raw observations on disk: one `RequestRecord` a line, written while the run goes on."""

from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from specdeploy.errors import ClientError
from specdeploy.run_contract import RequestRecord
from specdeploy_client.artifacts import violations_of


class RecordWriter:
    """Appends records to a new file and flushes each, so that a run that dies leaves what it measured."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("w", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, record: RequestRecord) -> None:
        """Append one record."""
        self._file.write(record.model_dump_json() + "\n")
        self._file.flush()


def load_records(path: Path) -> tuple[RequestRecord, ...]:
    """All records in `path`. Raises `ClientError` naming every bad line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"{path} cannot be read: {error}. Measure with `specdeploy-client bench`") from error
    records: list[RequestRecord] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            records.append(RequestRecord.model_validate_json(line))
        except ValidationError as error:
            problems += [str(v) for v in violations_of(error, f"{path}:{number}", "Measure again")]
    if problems:
        raise ClientError("\n".join(problems))
    return tuple(records)
