"""Records reach the disk in whole lines, soon, and come back."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from specdeploy.errors import ClientError
from specdeploy_client.records import files as records_module
from specdeploy_client.records.files import RESERVE_BYTES, RecordsLostError, RecordWriter, load_records
from unit.specdeploy_client.fabricate import make_cell, make_record

RECORDS = make_cell(num_pairs=3)


def _written(path: Path) -> Path:
    with RecordWriter(path) as writer:
        for record in RECORDS:
            writer.write(record)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert list(load_records(_written(tmp_path / "run" / "records.jsonl"))) == RECORDS


def test_without_an_event_loop_every_record_is_on_disk_at_once(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "records.jsonl") as writer:
        writer.write(RECORDS[0])
        assert list(load_records(writer.path)) == [RECORDS[0]]


def test_in_an_event_loop_records_are_collected_and_written_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "FLUSH_INTERVAL_S", 0.01)

    async def run() -> tuple[int, int]:
        with RecordWriter(tmp_path / "records.jsonl") as writer:
            writer.write(RECORDS[0])
            at_once = writer.path.stat().st_size
            await asyncio.sleep(0.05)
            return at_once, len(load_records(writer.path))

    assert asyncio.run(run()) == (0, 1)


def test_the_end_of_a_block_writes(tmp_path: Path) -> None:
    async def run() -> int:
        with RecordWriter(tmp_path / "records.jsonl") as writer:
            writer.write(RECORDS[0])
            writer.write(RECORDS[1])
            writer.flush()
            return len(load_records(writer.path))

    assert asyncio.run(run()) == 2


def test_much_at_once_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "MAX_PENDING_BYTES", 1)

    async def run() -> int:
        with RecordWriter(tmp_path / "records.jsonl") as writer:
            writer.write(RECORDS[0])
            return len(load_records(writer.path))

    assert asyncio.run(run()) == 1


def test_only_whole_lines_reach_the_file_even_where_it_takes_a_few_bytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RecordWriter(tmp_path / "records.jsonl")
    monkeypatch.setattr(writer, "_file", _Dribble(writer._file))
    with writer:
        for record in RECORDS:
            writer.write(record)
    assert list(load_records(writer.path)) == RECORDS


def test_a_full_disk_is_said_and_what_was_not_written_stays_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RecordWriter(tmp_path / "records.jsonl")
    disk = _Dribble(writer._file, room=10)
    monkeypatch.setattr(writer, "_file", disk)
    with pytest.raises(ClientError, match=r"records\.jsonl cannot be written: No space left"):
        writer.write(RECORDS[0])
    disk.room = 10**9
    writer.flush()
    assert list(load_records(writer.path)) == [RECORDS[0]]
    writer.__exit__(None, None, None)


def test_a_full_disk_in_the_background_is_said_at_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records_module, "FLUSH_INTERVAL_S", 0.001)

    async def run() -> None:
        writer = RecordWriter(tmp_path / "records.jsonl")
        disk = _Dribble(writer._file, room=0)
        monkeypatch.setattr(writer, "_file", disk)
        writer.write(RECORDS[0])
        await asyncio.sleep(0.02)
        with pytest.raises(ClientError, match="cannot be written"):
            writer.flush()
        disk.room = 10**9
        writer.__exit__(None, None, None)

    asyncio.run(run())


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClientError, match="--artifact-dir"):
        RecordWriter(tmp_path / "file" / "records.jsonl")


def test_a_cut_last_line_is_dropped_with_a_note(tmp_path: Path) -> None:
    path = _written(tmp_path / "records.jsonl")
    path.write_bytes(path.read_bytes()[:-40])
    notes: list[str] = []
    assert list(load_records(path, notes.append)) == RECORDS[:-1]
    assert notes == [f"{path}:6: the last line is cut and left out; the run was stopped while writing it"]


def test_a_cut_line_is_an_error_anywhere_else(tmp_path: Path) -> None:
    path = _written(tmp_path / "records.jsonl")
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:-40]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ClientError, match=r"records\.jsonl:2: .*JSON"):
        load_records(path)


def test_every_bad_line_is_named_and_millions_are_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("{}\n" * 40)
    with pytest.raises(ClientError) as caught:
        load_records(path)
    assert f"{path}:1: segment" in str(caught.value)
    assert "more like these" in str(caught.value).splitlines()[-1]
    assert len(str(caught.value).splitlines()) == 21


def test_a_record_that_contradicts_itself_is_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    wrong = make_record().model_copy(update={"message_tokens": (1,), "request_rate": 2.0, "num_steps": -3})
    path.write_text(wrong.model_dump_json() + "\n")
    with pytest.raises(ClientError) as caught:
        load_records(path)
    text = str(caught.value)
    assert "1 numbers for 3 messages" in text
    assert "exactly one of concurrency and request_rate" in text
    assert "num_steps: -3" in text


def test_no_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="Measure with `specdeploy-client bench`"):
        load_records(tmp_path / "absent.jsonl")


def test_a_full_disk_is_said_once_and_leaves_room_for_what_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RecordWriter(tmp_path / "records.jsonl")
    (reserve,) = tmp_path.glob("*.reserve")
    assert reserve.stat().st_size == RESERVE_BYTES
    monkeypatch.setattr(writer, "_file", _Dribble(writer._file, room=10))
    with pytest.raises(RecordsLostError, match="No space left"):
        writer.write(RECORDS[0])
    writer.write(RECORDS[1])
    with writer:  # neither does its end raise
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_disk_that_is_full_at_the_end_is_said_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        with RecordWriter(tmp_path / "records.jsonl") as writer:
            monkeypatch.setattr(writer, "_file", _Dribble(writer._file, room=0))
            writer.write(RECORDS[0])

    with pytest.raises(RecordsLostError, match="cannot be written"):
        asyncio.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


class _Dribble:
    """A file that takes at most seven bytes a call and has room for `room` bytes."""

    def __init__(self, file: Any, room: int = 10**9) -> None:
        self._file = file
        self.room = room

    def write(self, content: memoryview) -> int:
        size = min(7, len(content), self.room)
        if size == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= size
        return int(self._file.write(content[:size]))

    def close(self) -> None:
        self._file.close()
