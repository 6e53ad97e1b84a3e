"""Raw records, a batch at a time, into arrays: the columns of `record_table.ArmColumns`.

A batch is taken whole or not at all: whatever is wrong with it is found before anything is kept, and the caller then
asks line by line what it was.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from specdeploy.run_contract import FailureKind, RequestRecord
from specdeploy_client.metrics import GAVE_UP
from specdeploy_client.records import answer_flags, message_columns
from specdeploy_client.records.lines import RawRecord
from specdeploy_client.records.message_columns import (
    LongInts,
    MessageColumns,
    flat_ints,
    starts_of,
    whole_numbers,
)

NOT_REPORTED = message_columns.NOT_REPORTED

# Codes of the column `failure`.
ANSWERED = 0
CANCELLED = -1  # by this client: neither an answer nor a failure
UNNAMED_FAILURE = 127
FAILURE_CODES: dict[FailureKind, int] = {
    **{kind: code for code, kind in enumerate(FailureKind, start=1)},
    FailureKind.CANCELLED: CANCELLED,
}

_NAMES = tuple(RequestRecord.model_fields)
_DEFAULTS = {name: field.default for name, field in RequestRecord.model_fields.items() if not field.is_required()}
_VALUES_OF = itemgetter(*_NAMES)
_MAX_COUNT = np.iinfo(np.int32).max
_COUNTS = {
    "max_tokens": "max_tokens",
    "input_tokens": "input_token_count",
    "expected_input_tokens": "expected_input_tokens",
    "cached_tokens": "cached_token_count",
    "num_steps": "num_steps",
    "num_draft_tokens": "num_draft_tokens",
    "num_accepted_tokens": "num_accepted_tokens",
}


class Batch:
    """Columns of some raw records. Raises `ValueError`, `TypeError` or `KeyError` where one of them is not a record."""

    def __init__(self, raws: Sequence[RawRecord]) -> None:
        self._fields = _fields_of(raws)
        scheduled_ns = self._ints("scheduled_ns")
        reported = self._optional_counts("output_token_count")
        messages = MessageColumns.of(self._fields["message_ns"], self._fields["message_tokens"], reported, scheduled_ns)
        self.messages = messages
        self.failure = self._failures()
        self.columns = self._columns(scheduled_ns)

    def keys(self) -> list[tuple[Any, ...]]:
        """Segment, concurrency, request rate and arm of every record, as they stand in it."""
        names = ("segment", "concurrency", "request_rate", "arm")
        return list(zip(*(self._fields[name] for name in names), strict=True))

    def _columns(self, scheduled_ns: LongInts) -> dict[str, npt.NDArray[Any]]:
        messages = self.messages
        counts = {column: self._optional_counts(name) for column, name in _COUNTS.items()}
        speculation = self._coded("speculation", _speculation_code)
        is_answered = self.failure == ANSWERED
        return {
            "block": self._counts("block"),
            "index": self._counts("index"),
            "prompt": self._prompts(),
            "scheduled_ns": scheduled_ns,
            "send_ns": self._ints("send_ns"),
            "end_ns": self._ints("end_ns"),
            "ttft_ns": np.where(is_answered, messages.ttft_ns, np.nan),
            "tpot_ns": np.where(is_answered, messages.tpot_ns, np.nan),
            "e2e_ns": np.where(is_answered, messages.e2e_ns, np.nan),
            "num_tokens": messages.num_tokens.astype(np.int32),
            "num_messages": messages.num_messages.astype(np.int32),
            **{column: values.astype(np.int32) for column, values in counts.items()},
            "failure": self.failure,
            "speculation": speculation,
            "is_counted": messages.is_counted,
            "is_short": answer_flags.is_short(messages, counts["max_tokens"], self._had_to_reach_max(), is_answered),
            "is_degenerate": self._degenerate(),
            "is_buffered": answer_flags.is_buffered(messages, counts["num_steps"]),
            "has_drafting": answer_flags.has_drafting(counts["num_draft_tokens"], speculation),
        }

    def _ints(self, name: str) -> LongInts:
        return whole_numbers(self._fields[name])

    def _counts(self, name: str) -> npt.NDArray[np.int32]:
        return _checked_counts(self._ints(name), least=0).astype(np.int32)

    def _optional_counts(self, name: str) -> LongInts:
        values = self._fields[name]
        if None in values:
            values = [NOT_REPORTED if value is None else value for value in values]
        return _checked_counts(whole_numbers(values), least=NOT_REPORTED)

    def _prompts(self) -> LongInts:
        """One number per prompt id. A clash of two of a million 64-bit hashes has a chance of 3 in 100 million."""
        ids = self._fields["prompt_id"]
        if not set(map(type, ids)) <= {str}:
            raise TypeError("prompt_id: text is needed")
        return np.fromiter(map(hash, ids), dtype=np.int64, count=len(ids))

    def _coded(self, name: str, code: Callable[[Any], int]) -> npt.NDArray[np.int8]:
        """A code for each of the few words of a field."""
        words = self._fields[name]
        codes = {word: code(word) for word in set(words)}
        return np.fromiter(map(codes.__getitem__, words), dtype=np.int8, count=len(words))

    def _failures(self) -> npt.NDArray[np.int8]:
        """Code of every request's end; an answer whose clock ran backwards is one that failed by its clock, and one
        that the server says it gave up is none."""
        has_error = self._coded("error", lambda error: error is not None)
        codes = self._coded("failure", lambda failure: ANSWERED if failure is None else FAILURE_CODES[failure])
        codes[(codes == ANSWERED) & (has_error == 1)] = UNNAMED_FAILURE
        messages = self.messages
        is_backwards = (messages.ttft_ns < 0) | (messages.e2e_ns < 0)
        is_backwards[messages.gap_requests[messages.gaps_ns < 0]] = True
        codes[(codes == ANSWERED) & is_backwards] = FAILURE_CODES[FailureKind.CLOCK]
        gave_up = self._coded(
            "finish_reason", lambda reason: FAILURE_CODES[GAVE_UP[reason]] if reason in GAVE_UP else 0
        )
        return np.where(codes == ANSWERED, gave_up, codes)

    def _had_to_reach_max(self) -> npt.NDArray[np.bool_]:
        ignores = self._coded("ignore_eos", lambda ignore: ignore is True)
        is_full = self._coded("finish_reason", lambda reason: reason == "length")
        return (ignores | is_full).astype(np.bool_)

    def _degenerate(self) -> npt.NDArray[np.bool_]:
        """Of token ids; of words where the server sends no ids."""
        answers = self._fields["output_ids"]
        if not all(answers):
            texts = self._fields["text"]
            answers = [ids or [hash(word) for word in text.split()] for ids, text in zip(answers, texts, strict=True)]
        return answer_flags.is_degenerate(starts_of(answers), flat_ints(answers))


def _fields_of(raws: Sequence[RawRecord]) -> dict[str, Sequence[Any]]:
    """The values of every field, a tuple per field."""
    if not all(isinstance(raw, dict) for raw in raws):
        raise TypeError("not a record")
    if not all(len(raw) == len(_NAMES) for raw in raws):
        raws = [_completed(raw) for raw in raws]
    # Equal in number and none of them missing, so none of them is unknown either.
    return dict(zip(_NAMES, zip(*map(_VALUES_OF, raws), strict=True), strict=True))


def _completed(raw: RawRecord) -> RawRecord:
    if not raw.keys() <= RequestRecord.model_fields.keys():
        raise ValueError("a field that no record has")
    return {**_DEFAULTS, **raw}


def _speculation_code(word: str | None) -> int:
    return 1 if word == "on" else 0 if word is not None and word.startswith("off") else NOT_REPORTED


def arrays_of(pieces: Iterable[npt.NDArray[Any]], order: LongInts, bounds: LongInts) -> list[npt.NDArray[Any]]:
    """`pieces` end to end, in `order`, cut at `bounds`: one array for every group of records."""
    whole = np.concatenate(list(pieces))[order]
    # Copies, so that no group keeps the memory of all.
    return [whole[first:last].copy() for first, last in pairwise(bounds)]


def _checked_counts(values: LongInts, least: int) -> LongInts:
    if values.size and (values.min() < least or values.max() > _MAX_COUNT):
        raise ValueError("a count is out of range")
    return values
