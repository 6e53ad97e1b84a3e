"""A batch of raw records is taken whole, with the codes of its columns, or not at all."""

from typing import Any

import numpy as np
import pytest

from specdeploy.run_contract import FailureKind, RequestRecord
from specdeploy_client.records.columns import (
    ANSWERED,
    CANCELLED,
    FAILURE_CODES,
    NOT_REPORTED,
    UNNAMED_FAILURE,
    Batch,
    arrays_of,
)
from specdeploy_client.records.lines import raw_records
from unit.specdeploy_client.fabricate import make_record


def _batch(*changes: dict[str, Any]) -> Batch:
    return Batch([{**vars(make_record(index=i)), **change} for i, change in enumerate(changes)])


def test_fields_become_columns() -> None:
    batch = _batch({}, {"block": 3, "num_steps": 9}, {"send_ns": 7})
    assert batch.keys() == [("chat", 1, None, "off")] * 3
    assert batch.columns["index"].tolist() == [0, 1, 2]
    assert batch.columns["block"].tolist() == [0, 3, 0]
    assert batch.columns["num_steps"].tolist() == [NOT_REPORTED, 9, NOT_REPORTED]
    assert batch.columns["send_ns"].tolist() == [0, 0, 7]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, ANSWERED),
        ({"error": "x"}, UNNAMED_FAILURE),
        ({"error": "x", "failure": FailureKind.PROTOCOL}, FAILURE_CODES[FailureKind.PROTOCOL]),
        ({"error": "stopped", "failure": FailureKind.CANCELLED}, CANCELLED),
        ({"finish_reason": "cancelled"}, FAILURE_CODES[FailureKind.REFUSED]),
        ({"finish_reason": "timeout"}, FAILURE_CODES[FailureKind.TIMEOUT]),
        ({"finish_reason": "timeout", "error": "x", "failure": FailureKind.CANCELLED}, CANCELLED),
        ({"message_ns": (50, 40, 60)}, FAILURE_CODES[FailureKind.CLOCK]),
    ],
)
def test_the_end_of_a_request_has_a_code_and_only_answers_have_latencies(change: dict[str, Any], code: int) -> None:
    batch = _batch(change)
    assert batch.failure.tolist() == [code]
    assert np.isnan(batch.columns["ttft_ns"]).tolist() == [code != ANSWERED]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block", True),
        ("send_ns", 1.0),
        ("num_steps", False),
        ("num_steps", -2),
        ("output_token_count", "7"),
        ("message_tokens", (True, 1, 1)),
        ("message_ns", (1, 2, 3.5)),
        ("output_ids", (1, True)),
        ("prompt_id", 7),
        ("failure", "bored"),
        ("index", 2**31),
    ],
)
def test_what_is_no_record_is_refused(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        _batch({}, {name: value})


def test_fields_that_no_record_has_are_refused_and_optional_ones_may_be_absent() -> None:
    raw = dict(raw_records([make_record()])[0])
    needed = {name: raw[name] for name, field in RequestRecord.model_fields.items() if field.is_required()}
    assert len(Batch([needed, raw]).columns["index"]) == 2
    with pytest.raises(ValueError, match="a field that no record has"):
        Batch([{**needed, "surprise": 1}])
    with pytest.raises(TypeError, match="not a record"):
        Batch([[1]])  # type: ignore[list-item]


def test_pieces_are_ordered_and_cut() -> None:
    first, second = arrays_of([np.array([1, 2]), np.array([3])], np.array([2, 0, 1]), np.array([0, 1, 3]))
    assert (first.tolist(), second.tolist()) == ([3], [1, 2])
