"""A file of records becomes columns, the same as from records in memory; whatever is wrong with it is named."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm, FailureKind, Load, RequestRecord
from specdeploy.units import NS_PER_MS
from specdeploy_client.records import lines as record_lines
from specdeploy_client.records.columns import CANCELLED, FAILURE_CODES, NOT_REPORTED, UNNAMED_FAILURE
from specdeploy_client.records.table import ARRAY_COLUMNS, ArmColumns, RecordTable
from unit.specdeploy_client.fabricate import make_cell, make_columns, make_record


def _file(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def _lines(records: list[RequestRecord]) -> list[str]:
    return [record.model_dump_json() for record in records]


def _assert_equal(left: RecordTable, right: RecordTable) -> None:
    assert list(left.cells) == list(right.cells)
    for key, arms in left.cells.items():
        assert list(arms) == list(right.cells[key])
        for arm, columns in arms.items():
            other = right.cells[key][arm]
            for name in ARRAY_COLUMNS:
                np.testing.assert_array_equal(getattr(columns, name), getattr(other, name), err_msg=name)
            assert (columns.icl.counts == other.icl.counts).all()
            assert (columns.token_gaps.counts == other.token_gaps.counts).all()


def test_a_file_and_the_records_in_memory_make_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lines, "BATCH_LINES", 7)  # several batches, the last of them not full
    records = [*make_cell("chat", 1), *make_cell("chat", 4), *make_cell("code", None, request_rate=2.5)]
    table = RecordTable.load(_file(tmp_path / "records.jsonl", _lines(records)))
    _assert_equal(table, RecordTable.from_records(records))
    assert list(table.cells) == [("chat", Load(1)), ("chat", Load(4)), ("code", Load(None, 2.5))]
    assert list(table.cells["chat", Load(1)]) == [Arm.OFF, Arm.ON]
    assert table.num_records == 120
    assert table.notes == ()


def test_every_column_is_there_with_its_type() -> None:
    columns = make_columns([record for record in make_cell(num_pairs=5) if record.arm is Arm.ON])
    assert {field.name for field in fields(ArmColumns)} == {*ARRAY_COLUMNS, "icl", "token_gaps"}
    kinds = {name: str(getattr(columns, name).dtype) for name in ARRAY_COLUMNS}
    assert kinds.pop("failure") == kinds.pop("speculation") == "int8"
    assert {kinds[name] for name in ("scheduled_ns", "send_ns", "end_ns", "prompt")} == {"int64"}
    assert {kinds[name] for name in ("ttft_ns", "tpot_ns", "e2e_ns")} == {"float64"}
    assert {kinds[name] for name in kinds if name.startswith(("is_", "has_"))} == {"bool"}
    assert {kinds[name] for name in ("block", "index", "num_tokens", "num_steps", "max_tokens")} == {"int32"}
    assert len(columns) == 5


def test_what_the_server_does_not_report_is_not_zero() -> None:
    columns = make_columns([make_record(reported=None)])
    for name in ("num_steps", "num_draft_tokens", "num_accepted_tokens", "cached_tokens", "max_tokens", "speculation"):
        assert getattr(columns, name).tolist() == [NOT_REPORTED], name
    assert columns.num_tokens.tolist() == [3]
    assert columns.input_tokens.tolist() == [10]


def test_an_answer_without_token_counts_still_has_times() -> None:
    columns = make_columns(
        [make_record((40, 60), None, ids=(), reported=5), make_record((40,), None, ids=(), reported=None)]
    )
    assert columns.is_counted.tolist() == [False, False]
    assert columns.num_tokens.tolist() == [5, NOT_REPORTED]
    assert columns.num_messages.tolist() == [2, 1]
    assert columns.ttft_ns.tolist() == [40 * NS_PER_MS] * 2
    np.testing.assert_array_equal(columns.tpot_ns, [5 * NS_PER_MS, np.nan])
    assert columns.icl.num_samples == 1
    assert columns.token_gaps.num_samples == 0


def test_failures_have_codes_and_no_latencies() -> None:
    records = [
        make_record(),
        *(make_record(error="no", failure=kind) for kind in FailureKind if kind is not FailureKind.CANCELLED),
        make_record(error="imported"),
        make_record(finish_reason="timeout"),
        make_record(finish_reason="cancelled"),
        make_record(error="stopped", failure=FailureKind.CANCELLED),
    ]
    columns = make_columns(records)
    *by_name, cancelled = FAILURE_CODES.values()
    gave_up = [FAILURE_CODES[FailureKind.TIMEOUT], FAILURE_CODES[FailureKind.REFUSED]]
    assert columns.failure.tolist() == [0, *by_name, UNNAMED_FAILURE, *gave_up, CANCELLED]
    assert cancelled == CANCELLED
    assert columns.is_cancelled.tolist() == [False] * (len(records) - 1) + [True]
    assert columns.is_answered.tolist() == [True] + [False] * (len(records) - 1)
    assert columns.is_failed.tolist() == [False] + [True] * (len(records) - 2) + [False]
    assert np.isnan(columns.e2e_ns[1:]).all()
    assert columns.icl.num_samples == 2  # of the one answer


def test_a_clock_that_ran_backwards_is_a_failure_and_no_latency() -> None:
    columns = make_columns([make_record((50, 40, 60)), make_record((-5, 40), (1, 1)), make_record()])
    clock = FAILURE_CODES[FailureKind.CLOCK]
    assert columns.failure.tolist() == [clock, clock, 0]
    assert columns.icl.num_samples == 2


def test_equal_prompts_have_equal_codes() -> None:
    columns = make_columns([make_record(prompt_id=name) for name in ("a", "b", "a")])
    assert columns.prompt[0] == columns.prompt[2] != columns.prompt[1]


def test_rows_are_chosen_in_every_column() -> None:
    columns = make_columns([make_record(index=i) for i in range(5)])
    assert columns.rows(np.array([3, 1])).index.tolist() == [3, 1]
    assert columns.rows(columns.index > 2).index.tolist() == [3, 4]


def test_an_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    assert RecordTable.load(_file(tmp_path / "records.jsonl", ["", "  "])).cells == {}
    assert RecordTable.from_records([]).num_records == 0


def test_optional_fields_may_be_absent(tmp_path: Path) -> None:
    full = json.loads(make_record().model_dump_json())
    needed = {name: full[name] for name, field in RequestRecord.model_fields.items() if field.is_required()}
    table = RecordTable.load(_file(tmp_path / "records.jsonl", [json.dumps(needed)]))
    assert table.num_records == 1


def test_a_cut_last_line_is_left_out_with_a_note(tmp_path: Path) -> None:
    path = _file(tmp_path / "records.jsonl", _lines(make_cell(num_pairs=3)))
    path.write_bytes(path.read_bytes()[:-30])
    table = RecordTable.load(path)
    assert table.num_records == 5
    assert table.notes == (f"{path}:6: the last line is cut and left out; the run was stopped while writing it",)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"block": "one"}, "block: Input should be a valid integer"),
        ({"block": -1}, "block: "),
        ({"send_ns": 1.5}, "send_ns: "),
        ({"message_ns": [1, None]}, "message_ns.1: "),
        ({"message_ns": [1]}, "message_tokens: 3 numbers for 1 messages in message_ns"),
        ({"message_tokens": [1, -1, 1]}, "message_tokens.1: "),
        ({"arm": "both"}, "arm: "),
        ({"concurrency": 0}, "concurrency: "),
        ({"concurrency": None}, "exactly one of concurrency and request_rate must be given"),
        ({"failure": "bored"}, "failure: "),
        ({"num_steps": 2**40}, "num_steps: 1099511627776 is not between 0 and 2147483647"),
        ({"prompt_id": 7}, "prompt_id: "),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
    ],
)
def test_a_bad_field_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    good = json.loads(make_record().model_dump_json())
    path = _file(tmp_path / "records.jsonl", [json.dumps(good), json.dumps({**good, **change}), json.dumps(good)])
    with pytest.raises(ClientError) as caught:
        RecordTable.load(path)
    assert f"{path}:2" in str(caught.value)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("line", ["{", "[1]", "7", '"text"', "null", "{}", "\xff"])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes((make_record().model_dump_json() + "\n").encode() + line.encode("latin-1") + b"\n")
    with pytest.raises(ClientError, match=r"records\.jsonl:2"):
        RecordTable.load(path)


def test_all_bad_lines_of_a_file_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_lines, "BATCH_LINES", 2)
    good = make_record().model_dump_json()
    path = _file(tmp_path / "records.jsonl", [good, "{", good, good, good, "[]"])
    with pytest.raises(ClientError) as caught:
        RecordTable.load(path)
    assert f"{path}:2" in str(caught.value)
    assert f"{path}:6" in str(caught.value)


def test_records_in_memory_that_contradict_themselves_are_named() -> None:
    wrong = make_record().model_copy(update={"message_tokens": (1,)})
    with pytest.raises(ClientError, match="chat-c1-off-chat-01: message_tokens: 1 numbers for 3 messages"):
        RecordTable.from_records([make_record(), wrong])


def test_no_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="specdeploy-client bench"):
        RecordTable.load(tmp_path / "absent.jsonl")
