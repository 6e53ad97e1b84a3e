"""Traces of requests: lengths and arrivals from a file, no text.

    .csv     arrival_s, input_tokens, output_tokens; arrival_s (seconds) may be missing. Also as the Azure LLM inference
             traces have it (github.com/Azure/AzurePublicDataset): TIMESTAMP, ContextTokens, GeneratedTokens
    .jsonl   timestamp (milliseconds), input_length, output_length, as the Mooncake traces have it
             (github.com/kvcache-ai/Mooncake)

Either may be compressed (`.csv.gz`). Other columns are not read. Times become seconds since the first request.
"""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from specdeploy.errors import ConfigError, Violation
from specdeploy.planner.simulated_traffic import MAX_REQUEST_TOKENS, SimulatedTraffic

MAX_SHOWN_VIOLATIONS = 20  # a file of another format is wrong on every one of its lines
_MAX_BYTES = 1 << 30  # of text
_MAX_SPAN_S = 10 * 366 * 86400.0
_CSV_REMEDY = "The header is arrival_s,input_tokens,output_tokens (arrival_s may be missing)"
_JSON_REMEDY = 'A line is {"timestamp": 0, "input_length": 6758, "output_length": 500}'
_DATES = "TIMESTAMP"
_ARRIVALS = ("arrival_s", _DATES)
_INPUTS = ("input_tokens", "ContextTokens")
_OUTPUTS = ("output_tokens", "GeneratedTokens")


def load_trace(path: Path, segment: str | None = None) -> SimulatedTraffic:
    """The requests of `path`, all of one `segment` (None: called as the file). ConfigError with the bad lines."""
    kind = path.with_suffix("") if path.suffix == ".gz" else path
    findings = _Findings(path)
    if kind.suffix == ".csv":
        columns = _read_csv(_read_text(path, _CSV_REMEDY), findings)
    elif kind.suffix == ".jsonl":
        columns = _read_jsonl(_read_text(path, _JSON_REMEDY), findings)
    else:
        reason = f"'{kind.suffix}' is no kind of trace"
        raise ConfigError([Violation(str(path), "", reason, "Give a .csv or .jsonl file; either may end in .gz")])
    findings.raise_if_any()
    num_requests = len(columns.input_tokens)
    segment_name = kind.stem if segment is None else segment
    return SimulatedTraffic(
        columns.arrival_s,
        columns.input_tokens,
        columns.output_tokens,
        np.zeros(num_requests, np.int64),
        (segment_name,),
    )


class _Findings:
    """What is wrong with one file. `lines` [N] number the requests read so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._violations: list[Violation] = []
        self._num_more = 0
        self.lines: list[int] = []

    def add(self, line: int | None, key: str, reason: str, remedy: str) -> None:
        if len(self._violations) == MAX_SHOWN_VIOLATIONS:
            self._num_more += 1
            return
        self._violations.append(self.violation(line, key, reason, remedy))

    def violation(self, line: int | None, key: str, reason: str, remedy: str) -> Violation:
        return Violation(str(self._path) if line is None else f"{self._path}:{line}", key, reason, remedy)

    def add_all(self, key: str, is_bad: NDArray[np.bool_], reason: Callable[[int], str], remedy: str) -> None:
        """One violation per request that `is_bad` [N] marks."""
        for index in np.flatnonzero(is_bad).tolist():
            self.add(self.lines[index], key, reason(index), remedy)

    def raise_if_any(self) -> None:
        if self._num_more:
            more = Violation(str(self._path), "", f"{self._num_more} more like these", "Is this the format you meant?")
            raise ConfigError([*self._violations, more])
        if self._violations:
            raise ConfigError(self._violations)


@dataclass(frozen=True, slots=True)
class _Columns:
    arrival_s: NDArray[np.float64] | None
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


_Named = tuple[str, NDArray[np.float64]]  # a column [N] and what the file calls it; NaN where that was reported already


def _checked(arrivals: _Named | None, inputs: _Named, outputs: _Named, findings: _Findings) -> _Columns:
    """What both formats come to, arrivals in seconds. Values that are wrong go to the findings."""
    if not findings.lines:
        findings.add(None, "", "holds no requests", "Add at least one")
    arrival_s = None if arrivals is None else _arrival_times(*arrivals, findings)
    return _Columns(arrival_s, _token_counts(*inputs, findings), _token_counts(*outputs, findings))


def _token_counts(key: str, values: NDArray[np.float64], findings: _Findings) -> NDArray[np.int64]:
    with np.errstate(invalid="ignore"):
        is_bad = ~((values >= 1) & (values <= MAX_REQUEST_TOKENS) & (values == np.floor(values))) & ~np.isnan(values)

    def reason(index: int) -> str:
        if values[index] > MAX_REQUEST_TOKENS:
            return f"{values[index]:.0f} tokens are more than {MAX_REQUEST_TOKENS}"
        return f"{values[index]:g} is no whole number of at least 1"

    findings.add_all(key, is_bad, reason, "Correct or remove the line")
    return np.where(is_bad | np.isnan(values), 1, values).astype(np.int64)


def _arrival_times(key: str, values: NDArray[np.float64], findings: _Findings) -> NDArray[np.float64]:
    """Seconds since the first of them."""
    findings.add_all(
        key, values < 0, lambda index: f"{values[index]:g} is below 0", "Times are counted from the first request"
    )
    is_before = np.zeros(len(values), np.bool_)
    is_before[1:] = values[1:] < values[:-1]
    findings.add_all(
        key, is_before, lambda index: f"is before line {findings.lines[index - 1]}", "Sort the file by arrival"
    )
    if len(values):
        span_s: NDArray[np.float64] = values - values[0]
        findings.add_all(
            key, span_s > _MAX_SPAN_S, lambda _: "is more than ten years after the first request", "Correct the line"
        )
        return span_s
    return values


def _read_text(path: Path, remedy: str) -> str:
    """The text of a UTF-8 file, unpacked. ConfigError for one that cannot be read, is too long or holds nothing."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([Violation(str(path), "", f"cannot be read: {reason}", remedy)]) from error
    if len(content) > _MAX_BYTES:
        raise ConfigError([Violation(str(path), "", f"holds more than {_MAX_BYTES} bytes", "Cut it into pieces")])
    if not text.strip():
        raise ConfigError([Violation(str(path), "", "is empty", remedy)])
    return text


def _read_csv(text: str, findings: _Findings) -> _Columns:
    header, *lines = text.replace('"', "").split("\n")
    names = [name.strip() for name in header.split(",")]
    inputs, outputs, arrival = (_column(names, group, findings) for group in (_INPUTS, _OUTPUTS, _ARRIVALS))
    findings.raise_if_any()
    if inputs is None or outputs is None:
        missing = [group[0] for group, name in ((_INPUTS, inputs), (_OUTPUTS, outputs)) if name is None]
        raise ConfigError([findings.violation(1, "", f"has no column {' and none '.join(missing)}", _CSV_REMEDY)])
    cells: list[list[str]] = []
    for number, line in enumerate(lines, start=2):
        values = line.split(",")
        if len(values) == len(names):
            cells.append(values)
            findings.lines.append(number)
        elif line.strip():
            findings.add(number, "", f"has {len(values)} values, the header {len(names)}", "One value per column")

    def column(name: str) -> list[str]:
        place = names.index(name)
        return [values[place] for values in cells]

    arrivals: _Named | None = None
    if arrival is not None:
        read = _dates_s if arrival == _DATES else _numbers
        arrivals = (arrival, read(arrival, column(arrival), findings))
    input_tokens, output_tokens = ((name, _numbers(name, column(name), findings)) for name in (inputs, outputs))
    return _checked(arrivals, input_tokens, output_tokens, findings)


def _column(names: list[str], group: tuple[str, ...], findings: _Findings) -> str | None:
    """What the header calls a column, one of `group`; None where it is not there."""
    present = [name for name in names if name in group]
    if len(present) > 1:
        findings.add(1, "", f"has several columns for {group[0]}: {', '.join(present)}", _CSV_REMEDY)
    return present[0] if present else None


def _numbers(key: str, texts: list[str], findings: _Findings) -> NDArray[np.float64]:
    """Numbers [N]; NaN and a violation where there is none."""
    try:
        values = np.array(texts, np.float64)
    except ValueError:
        values = np.array([_number_or_nan(text) for text in texts])
    is_bad = ~np.isfinite(values)
    findings.add_all(key, is_bad, lambda index: f"{_shown(texts[index])} is no number", "Correct or remove the line")
    values[is_bad] = np.nan
    return values


def _number_or_nan(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _dates_s(key: str, cells: list[str], findings: _Findings) -> NDArray[np.float64]:
    """Seconds [N] since the first date; NaN and a violation where there is none. Dates are in one time zone."""
    texts = [text.strip().removesuffix("Z").removesuffix("+00:00") for text in cells]
    try:
        dates = np.array(texts, "datetime64[ns]")
    except ValueError:
        dates = np.array([_date_or_nat(text) for text in texts], "datetime64[ns]")
    is_bad = np.isnat(dates)
    findings.add_all(
        key, is_bad, lambda index: f"{_shown(texts[index])} is no date and time", "Correct or remove the line"
    )
    if is_bad.all():
        return np.full(len(texts), np.nan)
    since_s = (dates - dates[~is_bad].min()).astype(np.float64) / 1e9
    since_s[is_bad] = np.nan
    return np.asarray(since_s)


def _date_or_nat(text: str) -> np.datetime64:
    try:
        return np.datetime64(text, "ns")
    except ValueError:
        return np.datetime64("NaT", "ns")


def _read_jsonl(text: str, findings: _Findings) -> _Columns:
    keys = ("timestamp", "input_length", "output_length")
    values: list[list[float]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            findings.add(number, "", f"is not JSON ({error})", _JSON_REMEDY)
            continue
        if not isinstance(entry, dict) or not set(keys) <= entry.keys():
            findings.add(number, "", f"is no object with {', '.join(keys)}", _JSON_REMEDY)
            continue
        row = [entry[key] for key in keys]
        bad = [key for key, value in zip(keys, row, strict=True) if type(value) not in (int, float)]
        for key in bad:
            findings.add(number, key, f"{_shown(str(entry[key]))} is no number", _JSON_REMEDY)
        if not bad:
            values.append(row)
            findings.lines.append(number)
    columns = np.array(values, np.float64).reshape(-1, 3).T
    arrivals, inputs, outputs = zip(keys, (columns[0] / 1000, columns[1], columns[2]), strict=True)
    return _checked(arrivals, inputs, outputs, findings)


def _shown(text: str) -> str:
    shown = text.strip()
    return "nothing" if not shown else repr(shown if len(shown) <= 40 else shown[:39] + "…")
