"""The measurements of a run on disk, one JSON line each, so that an interrupted run goes on where it stopped."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """One generation of one arm. `block`: what was measured together, in turns, such as one prompt by every arm.

    `kind`: `single` (one prompt at batch 1) or `batch` (all prompts of a segment at once).
    """

    kind: str
    block: str
    segment: str
    arm: str
    seconds: float
    first_token_seconds: float | None
    num_tokens: int
    num_steps: int | None
    num_draft_tokens: int | None
    num_accepted_tokens: int | None
    token_ids: list[list[int]]


class RecordFile:
    """Appends blocks of records. Records of other settings are set aside when it is opened."""

    def __init__(self, folder: Path, name: str, settings: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.jsonl"
        if self._path.is_file() and read_settings(self._path) != settings:
            self._path.replace(self._path.with_suffix(".old.jsonl"))
        if not self._path.is_file():
            self._path.write_text(json.dumps({"settings": settings}) + "\n", encoding="utf-8")
        self.records = read_records(self._path)

    def has(self, block: str, arms: Iterable[str]) -> bool:
        """Whether every arm of the block was measured."""
        return set(arms) <= {record.arm for record in self.records if record.block == block}

    def add(self, records: list[Record]) -> None:
        """Add one block; an earlier, incomplete one of the same name no longer counts."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([asdict(record) for record in records]) + "\n")
        self.records = newest_blocks([*self.records, *records])


def read_settings(path: Path) -> dict[str, Any]:
    """What the file's measurements were made with; {} when its first line does not say."""
    with path.open(encoding="utf-8") as file:
        try:
            settings: dict[str, Any] = json.loads(file.readline())["settings"]
        except (ValueError, KeyError, TypeError):
            return {}
    return settings


def read_records(path: Path) -> list[Record]:
    """Every complete block of the file; a line that was cut short is no block."""
    records: list[Record] = []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        try:
            block = [Record(**fields) for fields in json.loads(line)]
        except (ValueError, TypeError):
            continue
        records = newest_blocks([*records, *block])
    return records


def newest_blocks(records: list[Record]) -> list[Record]:
    """The last record of each block and arm: a block that was measured again counts once."""
    newest: dict[tuple[str, str], Record] = {}
    for record in records:
        newest.pop((record.block, record.arm), None)
        newest[record.block, record.arm] = record
    return list(newest.values())


def digest_of(paths: Iterable[Path]) -> str:
    """One digest of the files' contents: measurements of other sources are not mixed in."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.read_bytes())
    return total.hexdigest()[:16]
