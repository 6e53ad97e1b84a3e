"""Reading files that people wrote or recorded, so that everything wrong with them is named with its place."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from specdeploy.errors import ConfigError, Violation

MAX_TOKENS = 1 << 24  # longer than any context; a bound against slips of the pen
MAX_NS = 1 << 62  # what 64 bits hold of nanoseconds: 146 years
MAX_SHOWN_VIOLATIONS = 20  # a file of another format is wrong on every one of its lines


@dataclass(slots=True)
class Findings:
    """What is wrong with one file, collected until `raise_if_any`."""

    path: Path
    violations: list[Violation] = field(default_factory=list)

    def add(self, place: int | str, key: str, reason: str, remedy: str) -> None:
        """`place`: a line number, or where in a JSON document ('' = the file as a whole)."""
        suffix = f":{place}" if isinstance(place, int) else f" {place}" if place else ""
        self.violations.append(Violation(f"{self.path}{suffix}", key, reason, remedy))

    def raise_if_any(self) -> None:
        """Raise `ConfigError` with the first violations and the number of the rest."""
        if not self.violations:
            return
        shown = self.violations[:MAX_SHOWN_VIOLATIONS]
        if more := len(self.violations) - len(shown):
            shown.append(Violation(str(self.path), "", f"{more} more like these", "Is this the format you meant?"))
        raise ConfigError(shown)


def read_text(path: Path, remedy: str) -> str:
    """The text of a UTF-8 file. Raises `ConfigError`, with `remedy`, for one that cannot be read or holds nothing."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([Violation(str(path), "", f"cannot be read: {reason}", remedy)]) from error
    if not text.strip():
        raise ConfigError([Violation(str(path), "", "is empty", remedy)])
    return text


def short_digest(path: Path) -> str:
    """The first 12 digits of the file's SHA-256, for the record of a run."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def json_objects(text: str, findings: Findings) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line that is not blank; other lines go to `findings`."""
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: U+2028 may stand inside a prompt
        if not line.strip():
            continue
        try:
            content = parse_json(line)
        except ValueError as error:
            findings.add(number, "", f"is not JSON ({error})", "Write one JSON object a line")
            continue
        if isinstance(content, dict):
            yield number, content
        else:
            findings.add(number, "", f"is {_kind(content)}, not an object", "Write one JSON object a line")


def parse_json(text: str, *, takes_constants: bool = False) -> Any:
    """JSON as its standard has it, and only text that can be sent: no half of a surrogate pair. Raises ValueError.

    `takes_constants`: NaN and Infinity, which Python's own writer makes, become numbers, for the caller to judge.
    """
    try:
        content = json.loads(text, parse_constant=None if takes_constants else _refuse_constant)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no text") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def token_count(value: object) -> int | None:
    """`value` (7, 7.0 or "7") as a number of tokens, 1 ... `MAX_TOKENS`, or None for anything else."""
    number = finite_number(value)
    return int(number) if number is not None and number == int(number) and 1 <= number <= MAX_TOKENS else None


def duration_ns(value: object, unit_ns: int) -> int | None:
    """`value`, a number of units from 0 on, in nanoseconds, or None for anything else."""
    number = finite_number(value)
    return round(number * unit_ns) if number is not None and 0 <= number * unit_ns < MAX_NS else None


def finite_number(value: object) -> float | None:
    """`value` as a finite number (also from text), or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _kind(content: object) -> str:
    names = {list: "a list", str: "text", bool: "a truth value", int: "a number", float: "a number"}
    return names.get(type(content), "null")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
