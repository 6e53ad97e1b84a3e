"""Traces of lengths and arrivals as CSV: a row is one request, its prompt is made to the recorded length.

Columns are those of the Azure LLM inference traces 2023 and 2024 (github.com/Azure/AzurePublicDataset: TIMESTAMP,
ContextTokens, GeneratedTokens) or `arrival_s` (seconds; may be missing), `input_tokens`, `output_tokens`.
"""

import csv
import io
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from specdeploy.errors import ConfigError, Violation
from specdeploy.units import NS_PER_S
from specdeploy_client.workloads.line_files import Findings, duration_ns, read_text, token_count
from specdeploy_client.workloads.recorded import RecordedTraffic
from specdeploy_client.workloads.sessions import Session, Turn

if TYPE_CHECKING:
    from _csv import Reader  # what csv.reader returns; csv itself has no name for it

_INPUT_COLUMNS = ("ContextTokens", "input_tokens")
_OUTPUT_COLUMNS = ("GeneratedTokens", "output_tokens")
_DATE_COLUMN, _SECONDS_COLUMN = "TIMESTAMP", "arrival_s"
_PREFIX_COLUMNS = frozenset({"prefix_blocks", "prefix_blocks_seen_before"})
_REMEDY = "The header is TIMESTAMP,ContextTokens,GeneratedTokens or arrival_s,input_tokens,output_tokens"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def load_csv_trace(path: Path) -> RecordedTraffic:
    """The requests in `path`. Raises `ConfigError` with the bad lines, named by their numbers."""
    findings = Findings(path)
    # Without quoting: a stray quotation mark would swallow every line up to the next one.
    reader = csv.reader(io.StringIO(read_text(path, _REMEDY), newline=""), quoting=csv.QUOTE_NONE)
    rows = _rows(reader, findings)
    columns = next(rows, [])
    findings.raise_if_any()
    arrival_column = next((name for name in (_DATE_COLUMN, _SECONDS_COLUMN) if name in columns), None)
    input_column = next((name for name in _INPUT_COLUMNS if name in columns), None)
    output_column = next((name for name in _OUTPUT_COLUMNS if name in columns), None)
    if input_column is None or output_column is None:
        missing = _INPUT_COLUMNS[0] if input_column is None else _OUTPUT_COLUMNS[0]
        raise ConfigError([Violation(f"{path}:1", "", f"has no column {missing}", _REMEDY)])
    sessions: list[Session] = []
    latest_ns, latest_line = 0, 0
    for values in rows:
        line = reader.line_num
        if len(values) > len(columns):
            findings.add(line, "", f"has more than {len(columns)} values", "One value per column")
            continue
        row = dict(zip_longest(columns, values, fillvalue=""))
        num_input = _count(row, input_column, line, findings)
        num_output = _count(row, output_column, line, findings)
        arrival_ns = None
        if arrival_column is not None:
            arrival_ns = _arrival(row, arrival_column, line, findings)
            if arrival_ns is None:
                continue
            if arrival_ns < latest_ns and latest_line:
                findings.add(line, arrival_column, f"is before line {latest_line}", "Sort the file by arrival")
            latest_ns, latest_line = max(arrival_ns, latest_ns), line
        if num_input is not None and num_output is not None:
            turn = Turn(None, num_output, input_tokens=num_input, arrival_ns=arrival_ns, ignore_eos=True)
            sessions.append(Session(f"{path.stem}-{line}", (turn,)))
    if not sessions and not findings.violations:
        findings.add("", "", "holds no requests", "Add at least one line below the header")
    findings.raise_if_any()
    return RecordedTraffic("CSV trace", tuple(sessions), _notes(columns, {arrival_column, input_column, output_column}))


def _rows(reader: "Reader", findings: Findings) -> Iterator[list[str]]:
    """The values of every line that is not blank. A line that is no CSV goes to `findings` and ends them."""
    try:
        for values in reader:
            if values:
                yield [_unquoted(value.strip()) for value in values]
    except csv.Error as error:
        findings.add(reader.line_num, "", f"is no line of CSV ({error})", _REMEDY)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _count(row: dict[str, str], column: str, line: int, findings: Findings) -> int | None:
    """A whole number of at least 1, or None after adding what is wrong."""
    value = token_count(row[column])
    if value is None:
        reason = f"{_shown(row[column])} is no whole number of at least 1"
        findings.add(line, column, reason, "Correct or remove the line")
    return value


def _arrival(row: dict[str, str], column: str, line: int, findings: Findings) -> int | None:
    """Nanoseconds, of dates since 1970, or None after adding what is wrong."""
    parse: Callable[[str | None], int | None] = _date_ns if column == _DATE_COLUMN else _seconds_ns
    value = parse(row[column])
    if value is None:
        what = "date and time" if column == _DATE_COLUMN else "number of seconds from 0 on"
        findings.add(line, column, f"{_shown(row[column])} is no {what}", "Correct or remove the line")
    return value


def _date_ns(text: str | None) -> int | None:
    try:
        moment = datetime.fromisoformat((text or "").strip())
    except ValueError:
        return None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def _seconds_ns(text: str | None) -> int | None:
    return duration_ns(text, NS_PER_S)


def _shown(text: str | None) -> str:
    return "nothing" if text is None or not text.strip() else repr(text)


def _notes(columns: list[str], used: set[str | None]) -> tuple[str, ...]:
    unused = [column for column in columns if column not in used]
    notes = [f"columns not replayed: {', '.join(unused)}"] if unused else []
    if _PREFIX_COLUMNS & set(unused):
        notes.append("prompts share no prefixes: the file has no block ids")
    return tuple(notes)
