"""Lines are read in batches and blamed by number."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdeploy.errors import ClientError
from specdeploy_client.records import lines as record_lines
from specdeploy_client.records.lines import MAX_COMPLAINTS, RecordFile, contradictions, raw_records
from unit.specdeploy_client.fabricate import make_record

GOOD = make_record().model_dump_json()


def _file(tmp_path: Path, text: str) -> RecordFile:
    path = tmp_path / "records.jsonl"
    path.write_text(text)
    return RecordFile(path)


def _changed(**fields: Any) -> str:
    return json.dumps({**json.loads(GOOD), **fields})


def test_batches_keep_the_numbers_of_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lines, "BATCH_LINES", 2)
    batches = list(_file(tmp_path, f"{GOOD}\n\n{GOOD}\n  \n{GOOD}\n").batches())
    assert [batch.numbers for batch in batches] == [[1, 3], [5]]
    assert [len(batch.parsed()) for batch in batches] == [2, 1]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"num_steps": True}, "num_steps: Input should be a valid integer"),
        ({"output_token_count": False}, "output_token_count: "),
        ({"block": True}, "block: "),
        ({"concurrency": True}, "concurrency: "),
        ({"max_tokens": True}, "max_tokens: "),
        ({"message_tokens": [1, True, 1]}, "message_tokens.1: "),
        ({"message_ns": [1, 2, True]}, "message_ns.2: "),
        ({"output_ids": [True]}, "output_ids.0: "),
        ({"send_ns": "7"}, "send_ns: "),
        ({"send_ns": 7.0}, "send_ns: "),
    ],
)
def test_neither_truth_nor_text_is_a_number(tmp_path: Path, fields: dict[str, Any], place: str) -> None:
    file = _file(tmp_path, f"{GOOD}\n{_changed(**fields)}\n")
    (batch,) = file.batches()
    assert len(batch.checked()) == 1
    (complaint,) = file.complaints
    assert complaint.startswith(f"{file.path}:2: {place}")


def test_only_the_last_line_may_be_cut(tmp_path: Path) -> None:
    file = _file(tmp_path, f"{GOOD[:-9]}\n{GOOD}\n{GOOD[:-9]}")
    (batch,) = file.batches()
    assert len(batch.checked()) == 1
    assert file.notes == [f"{file.path}:3: the last line is cut and left out; the run was stopped while writing it"]
    assert [complaint.split(": ")[0] for complaint in file.complaints] == [f"{file.path}:1"]


def test_a_whole_last_line_without_its_end_is_a_record(tmp_path: Path) -> None:
    (batch,) = _file(tmp_path, GOOD).batches()
    assert len(batch.checked()) == 1


def test_complaints_are_raised_together_and_shortened(tmp_path: Path) -> None:
    file = _file(tmp_path, "")
    file.raise_complaints()
    file.complaints = [f"line {number}" for number in range(MAX_COMPLAINTS + 5)]
    with pytest.raises(ClientError) as caught:
        file.raise_complaints()
    lines = str(caught.value).splitlines()
    assert lines[:MAX_COMPLAINTS] == file.complaints[:MAX_COMPLAINTS]
    assert lines[MAX_COMPLAINTS:] == [f"{file.path}: 5 more like these"]


def test_times_beyond_64_bits_contradict() -> None:
    record = make_record().model_copy(update={"end_ns": 2**63})
    (violation,) = contradictions(record, "here")
    assert str(violation).startswith("here: message_ns: a time does not fit")
    assert contradictions(make_record(), "here") == []


def test_raw_records_are_the_fields_themselves() -> None:
    record = make_record()
    assert raw_records([record])[0]["message_ns"] is record.message_ns
