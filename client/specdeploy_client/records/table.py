"""All records of a run as columns: what a million of them need to be compared and drawn, in a few bytes each.

Texts and token ids are not kept; what is to be known of them (did an answer run in circles?) is a column. A record is
found again by (block, index), which are the same in both arms of a cell.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm, Load, RequestRecord
from specdeploy_client.records.columns import ANSWERED, CANCELLED, Batch, arrays_of
from specdeploy_client.records.histogram import LogHistogram
from specdeploy_client.records.lines import BATCH_LINES, RawRecord, RecordFile, contradictions, raw_records

CellKey = tuple[str, Load]
_NOT_RECORDS = (KeyError, TypeError, ValueError, OverflowError)

Ints = npt.NDArray[np.int32]
LongInts = npt.NDArray[np.int64]
SmallInts = npt.NDArray[np.int8]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ArmColumns:
    """One arm of one cell, a row per request in the order of the file; every array is [n].

    Times are the client's monotonic clock in ns. `ttft_ns`, `tpot_ns`, `e2e_ns` are the formulas of `metrics`, NaN
    where a request does not support them, failed or was cancelled. Counts are `record_columns.NOT_REPORTED` where the
    server does not say, `num_tokens`, what arrived, included. `num_messages` counts those that
    carry tokens. `prompt` stands for a prompt: equal codes are equal prompts, within one process.

    `failure`: 0 answered, -1 cancelled by this client, else a code of `record_columns.FAILURE_CODES`. `speculation`: 1
    the server says it was on, 0 off, -1 nothing. `is_counted`: the server said how many tokens each message carries.
    The other flags are explained in `answer_flags`. `icl` pools the gaps between messages of all answers, `token_gaps`
    the same gaps shared out over the tokens of the message that ends them.
    """

    block: Ints
    index: Ints
    prompt: LongInts
    scheduled_ns: LongInts
    send_ns: LongInts
    end_ns: LongInts
    ttft_ns: Floats
    tpot_ns: Floats
    e2e_ns: Floats
    num_tokens: Ints
    num_messages: Ints
    max_tokens: Ints
    input_tokens: Ints
    expected_input_tokens: Ints
    cached_tokens: Ints
    num_steps: Ints
    num_draft_tokens: Ints
    num_accepted_tokens: Ints
    failure: SmallInts
    speculation: SmallInts
    is_counted: Flags
    is_short: Flags
    is_degenerate: Flags
    is_buffered: Flags
    has_drafting: Flags
    icl: LogHistogram
    token_gaps: LogHistogram

    def __len__(self) -> int:
        return len(self.block)

    @property
    def is_answered(self) -> Flags:
        """Requests [n] that have an answer."""
        answered: Flags = self.failure == ANSWERED
        return answered

    @property
    def is_failed(self) -> Flags:
        """Requests [n] that failed; one that this client cancelled did not."""
        failed: Flags = self.failure > ANSWERED
        return failed

    @property
    def is_cancelled(self) -> Flags:
        """Requests [n] that this client ended itself."""
        cancelled: Flags = self.failure == CANCELLED
        return cancelled

    def rows(self, chosen: Flags | LongInts) -> "ArmColumns":
        """The same columns of the `chosen` rows (a mask [n] or positions); the histograms stay those of all rows."""
        arrays = {name: getattr(self, name)[chosen] for name in ARRAY_COLUMNS}
        return ArmColumns(**arrays, icl=self.icl, token_gaps=self.token_gaps)


ARRAY_COLUMNS: tuple[str, ...] = tuple(column.name for column in fields(ArmColumns) if column.type is not LogHistogram)


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Every record of a run. Cells stand in the order of their first record, arms in that of `Arm`.

    `notes` say what was left out, for people.
    """

    cells: dict[CellKey, dict[Arm, ArmColumns]]
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Self:
        """The records in `path`, read once from start to end. Raises `ClientError` naming the bad lines."""
        file, builder = RecordFile(path), _TableBuilder()
        for batch in file.batches():
            try:
                builder.add(batch.parsed())
            except _NOT_RECORDS:  # one of the lines is no record: ask each
                builder.add(raw_records(batch.checked()))
        file.raise_complaints()
        return cls(builder.cells(), tuple(file.notes))

    @classmethod
    def from_records(cls, records: Iterable[RequestRecord]) -> Self:
        """The same columns of records in memory. Raises `ClientError` for records that contradict themselves."""
        builder = _TableBuilder()
        for batch in _batched(records):
            try:
                builder.add(raw_records(batch))
            except _NOT_RECORDS:
                problems = [problem for record in batch for problem in contradictions(record, record.request_id)]
                if not problems:
                    raise
                raise ClientError("\n".join(map(str, problems))) from None
        return cls(builder.cells())

    @property
    def num_records(self) -> int:
        """Records of all cells and arms."""
        return sum(len(columns) for arms in self.cells.values() for columns in arms.values())


@dataclass(slots=True)
class _TableBuilder:
    """Collects batches; every (cell, arm) is a group, numbered as it appears."""

    groups: dict[tuple[Any, ...], int] = field(default_factory=dict)
    group_keys: list[tuple[CellKey, Arm]] = field(default_factory=list)
    histograms: list[tuple[LogHistogram, LogHistogram]] = field(default_factory=list)
    group_of_row: list[LongInts] = field(default_factory=list)
    pieces: dict[str, list[npt.NDArray[Any]]] = field(default_factory=lambda: {name: [] for name in ARRAY_COLUMNS})

    def add(self, raws: Sequence[RawRecord]) -> None:
        """Keep the columns of `raws`, or nothing of them and raise one of `_NOT_RECORDS`."""
        if not raws:
            return
        batch = Batch(raws)
        keys = batch.keys()
        for key in dict.fromkeys(keys):
            if key not in self.groups:
                self.group_keys.append(_group_key(*key))
                self.groups[key] = len(self.groups)
                self.histograms.append((LogHistogram(), LogHistogram()))
        groups = np.fromiter((self.groups[key] for key in keys), dtype=np.int64, count=len(keys))
        self.group_of_row.append(groups)
        for name, values in batch.columns.items():
            self.pieces[name].append(values)
        self._count_gaps(batch, groups)

    def _count_gaps(self, batch: Batch, groups: LongInts) -> None:
        messages = batch.messages
        answered = (batch.failure == ANSWERED)[messages.gap_requests]
        group_of_gap = np.where(answered, groups[messages.gap_requests], -1)
        for group in np.unique(groups):
            chosen = group_of_gap == group
            gaps, tokens = messages.gaps_ns[chosen], messages.gap_tokens[chosen]
            icl, token_gaps = self.histograms[group]
            icl.add(gaps)
            token_gaps.add(gaps[tokens > 0] / tokens[tokens > 0], tokens[tokens > 0])

    def cells(self) -> dict[CellKey, dict[Arm, ArmColumns]]:
        """All that was added; the builder is empty afterwards, so that nothing is in memory twice."""
        if not self.group_of_row:
            return {}
        groups = np.concatenate(self.group_of_row)
        order = np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(len(self.groups) + 1))
        arrays = {name: arrays_of(self.pieces.pop(name), order, bounds) for name in ARRAY_COLUMNS}
        cells: dict[CellKey, dict[Arm, ArmColumns]] = {}
        for group, (cell, arm) in enumerate(self.group_keys):
            icl, token_gaps = self.histograms[group]
            columns = ArmColumns(
                **{name: parts[group] for name, parts in arrays.items()}, icl=icl, token_gaps=token_gaps
            )
            cells.setdefault(cell, {})[arm] = columns
        return {cell: {arm: arms[arm] for arm in Arm if arm in arms} for cell, arms in cells.items()}


def _group_key(segment: Any, concurrency: Any, request_rate: Any, arm: Any) -> tuple[CellKey, Arm]:
    """Where a group of records belongs. Raises `ValueError` for what no record may say of that."""
    is_closed = type(concurrency) is int and concurrency > 0 and request_rate is None
    is_open = concurrency is None and type(request_rate) in (int, float) and request_rate > 0
    if not isinstance(segment, str) or not (is_closed or is_open):
        raise ValueError("not a cell")
    return (segment, Load(concurrency, None if is_closed else float(request_rate))), Arm(arm)


def _batched(records: Iterable[RequestRecord]) -> Iterator[list[RequestRecord]]:
    remaining = iter(records)
    while batch := list(islice(remaining, BATCH_LINES)):
        yield batch
