"""Raw observations on disk: one `RequestRecord` a line, written while the run goes on."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from specdeploy.errors import ClientError
from specdeploy.run_contract import RequestRecord
from specdeploy_client.records.lines import RecordFile

FLUSH_INTERVAL_S = 1.0
MAX_PENDING_BYTES = 1 << 20
RESERVE_BYTES = 1 << 20
_LOG = logging.getLogger(__name__)


class RecordsLostError(ClientError):
    """Records of a run that is under way cannot be written any more; those before are on disk."""


class RecordWriter:
    """Appends records to a new file, whole lines at a time, so that a run that is killed leaves whole lines.

    Inside a running event loop lines are collected and written at least every second; a caller that knows a quiet
    moment (the end of a block) calls `flush`. Without a loop nobody could write them later: every line is written at
    once. Raises `ClientError` where the file cannot be made, `RecordsLostError`, once, where it cannot be written.

    A file beside it keeps `RESERVE_BYTES` of the disk while the run goes on, so that what is small and made at its end,
    the summary, finds room even where the records did not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._num_pending_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failure: OSError | None = None
        self._is_lost = False
        self._reserve = path.with_name(f".{path.name}.reserve")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: a buffer of the file's own would be written wherever it is full, in the middle of a line.
            self._file = path.open("wb", buffering=0)
            self._reserve.write_bytes(bytes(RESERVE_BYTES))
        except OSError as error:
            with suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            raise ClientError(self._cannot_write(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.flush()
        finally:
            self._file.close()
            self._reserve.unlink(missing_ok=True)

    def write(self, record: RequestRecord) -> None:
        """Append one record."""
        line = record.model_dump_json().encode() + b"\n"
        self._pending.append(line)
        self._num_pending_bytes += len(line)
        loop = _running_loop()
        if loop is None or self._num_pending_bytes > MAX_PENDING_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = loop.call_later(FLUSH_INTERVAL_S, self._flush_in_background)

    def flush(self) -> None:
        """Write what is pending. Raises `RecordsLostError`, also for a write in the background that failed before; once
        it did, it only tries."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._write_pending()
        if self._failure is not None and not self._is_lost:
            self._is_lost = True
            raise RecordsLostError(self._cannot_write(self._failure)) from self._failure

    def _flush_in_background(self) -> None:
        self._timer = None
        self._write_pending()

    def _write_pending(self) -> None:
        """Write what is pending; a failure is kept for the next call of `flush`, and so is what was not written."""
        content = memoryview(b"".join(self._pending))
        try:
            while content:
                content = content[self._file.write(content) :]
            self._failure = None
        except OSError as error:
            self._failure = error
        self._pending = [bytes(content)] if content else []
        self._num_pending_bytes = len(content)

    def _cannot_write(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        return f"{self.path} cannot be written: {reason}. Make room, or choose another --artifact-dir"


def load_records(path: Path, on_note: Callable[[str], None] = _LOG.warning) -> tuple[RequestRecord, ...]:
    """All records in `path` with their texts and ids; `RecordTable.load` is for those that only compare times.

    A last line that a killed run left cut is dropped, and `on_note` told so. Raises `ClientError` naming every other
    bad line.
    """
    file = RecordFile(path)
    records = [record for batch in file.batches() for record in batch.checked()]
    file.raise_complaints()
    for note in file.notes:
        on_note(note)
    return tuple(records)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
