"""Lines of a records file: read in batches, checked, and blamed by number where they are bad.

A run that was killed may leave a last line that is cut: it is dropped and said so. Any other bad line is an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from pydantic import ValidationError

from specdeploy.errors import ClientError, Violation
from specdeploy.run_contract import RequestRecord
from specdeploy_client.artifacts import violations_of

BATCH_LINES = 512  # small enough for what they hold to stay in the processor's cache
MAX_COMPLAINTS = 20
_REMEDY = "Measure again"
_MAX_COUNT = 2**31 - 1
_COUNTS = (
    *("block", "index", "max_tokens", "expected_input_tokens", "input_token_count", "output_token_count"),
    *("cached_token_count", "num_steps", "num_draft_tokens", "num_accepted_tokens"),
)

RawRecord = Mapping[str, Any]


@dataclass(slots=True)
class RecordFile:
    """One records file while it is read; `notes` and `complaints` are complete when its batches are."""

    path: Path
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def batches(self) -> Iterator["LineBatch"]:
        """Its lines, `BATCH_LINES` at a time, empty ones left out. Raises `ClientError` if it cannot be read."""
        try:
            with self.path.open("rb", buffering=1 << 20) as file:
                yield from self._batches(file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ClientError(
                f"{self.path} cannot be read: {reason}. Measure with `specdeploy-client bench`"
            ) from error

    def _batches(self, file: BinaryIO) -> Iterator["LineBatch"]:
        lines: list[bytes] = []
        numbers: list[int] = []
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            lines.append(line)
            numbers.append(number)
            if len(lines) == BATCH_LINES:
                yield LineBatch(self, lines, numbers)
                lines, numbers = [], []
        if lines:
            yield LineBatch(self, lines, numbers)

    def raise_complaints(self) -> None:
        """Raise `ClientError` with every complaint (a file may have millions: the first of them and their number)."""
        if self.complaints:
            shown = self.complaints[:MAX_COMPLAINTS]
            if len(self.complaints) > len(shown):
                shown.append(f"{self.path}: {len(self.complaints) - len(shown)} more like these")
            raise ClientError("\n".join(shown))


@dataclass(frozen=True, slots=True)
class LineBatch:
    """Some lines of a file with their numbers, the first line being 1."""

    file: RecordFile
    lines: list[bytes]
    numbers: list[int]

    def parsed(self) -> list[RawRecord]:
        """The JSON of every line. Raises `ValueError` if one of them is no JSON."""
        return [orjson.loads(line) for line in self.lines]

    def checked(self) -> list[RequestRecord]:
        """The records of the good lines; the bad ones are complained of, a cut last one is noted."""
        records: list[RequestRecord] = []
        for line, number in zip(self.lines, self.numbers, strict=True):
            place = f"{self.file.path}:{number}"
            if not line.endswith(b"\n") and _is_cut(line):
                self.file.notes.append(
                    f"{place}: the last line is cut and left out; the run was stopped while writing it"
                )
                continue
            try:
                record = RequestRecord.model_validate_json(line)
            except ValidationError as error:
                self.file.complaints += [str(violation) for violation in violations_of(error, place, _REMEDY)]
                continue
            if violations := contradictions(record, place):
                self.file.complaints += map(str, violations)
            else:
                records.append(record)
        return records


def contradictions(record: RequestRecord, place: str) -> list[Violation]:
    """What cannot be right about a record although each of its fields may be; `place` is where it stands."""
    found: list[Violation] = []
    if record.message_tokens is not None and len(record.message_tokens) != len(record.message_ns):
        reason = f"{len(record.message_tokens)} numbers for {len(record.message_ns)} messages in message_ns"
        found.append(Violation(place, "message_tokens", reason, _REMEDY))
    if (record.concurrency is None) is (record.request_rate is None):
        reason = "exactly one of concurrency and request_rate must be given"
        found.append(Violation(place, "concurrency", reason, _REMEDY))
    for name in _COUNTS:
        value = getattr(record, name)
        if value is not None and not -1 < value <= _MAX_COUNT:
            found.append(Violation(place, name, f"{value} is not between 0 and {_MAX_COUNT}", _REMEDY))
    times = (record.scheduled_ns, record.send_ns, record.end_ns, *record.message_ns)
    if any(abs(time_ns) >= 2**63 for time_ns in times):
        found.append(Violation(place, "message_ns", "a time does not fit into 64 bits", _REMEDY))
    return found


def raw_records(records: Sequence[RequestRecord]) -> list[RawRecord]:
    """Records as the mappings that `LineBatch.parsed` gives, without copying."""
    return [vars(record) for record in records]


def _is_cut(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except ValueError:
        return True
    return False
