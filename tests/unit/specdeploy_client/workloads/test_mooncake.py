"""Mooncake traces and AIPerf's additions: blocks, sessions, times, every bad line named."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client.workloads.mooncake import load_mooncake_trace
from specdeploy_client.workloads.recorded import RecordedTraffic
from specdeploy_client.workloads.sessions import Session, Turn


def _load(folder: Path, *rows: dict[str, Any] | str, block_tokens: int = 512) -> RecordedTraffic:
    path = folder / "m.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return load_mooncake_trace(path, block_tokens)


def _refusals(folder: Path, *rows: dict[str, Any] | str) -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as caught:
        _load(folder, *rows)
    prefix = str(folder / "m.jsonl")
    return [(v.file.removeprefix(prefix).removeprefix(":"), v.key) for v in caught.value.violations]


def test_blocks_of_turns_after_an_answer_are_said_to_be_left_out(tmp_path: Path) -> None:
    traffic = _load(
        tmp_path,
        {"session_id": "s", "input_length": 600, "hash_ids": [1, 2]},
        {"session_id": "s", "delay": 5, "input_length": 1200, "hash_ids": [1, 2, 3]},
        {"input_length": 600, "hash_ids": [1, 2]},
    )
    assert traffic.notes == ("not replayed: hash_ids of a later turn (1 times)",)


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_lengths_and_blocks(tmp_path: Path) -> None:
    traffic = _load(
        tmp_path,
        {"timestamp": 0, "input_length": 1300, "output_length": 52, "hash_ids": [0, 1, 2]},
        {"timestamp": 105.5, "input_length": 512, "hash_ids": [0]},
    )
    assert traffic.sessions == (
        Session("m-1", (Turn(None, 52, 1300, (0, 1, 2), arrival_ns=0, ignore_eos=True),)),
        Session("m-2", (Turn(None, None, 512, (0,), arrival_ns=105_500_000),)),
    )
    assert traffic.notes == ()
    assert _load(tmp_path, {"input_length": 33, "hash_ids": [4, 5, 6]}, block_tokens=16).num_requests == 1


def test_literal_texts(tmp_path: Path) -> None:
    payload = {"prompt": "<s>whole", "max_tokens": 7, "model": "m", "seed": 3}
    history = [*_user("one"), {"role": "assistant", "content": "1"}, *_user("two")]
    traffic = _load(tmp_path, {"text_input": "x", "output_length": 4}, {"messages": history}, {"payload": payload})
    assert [session.turns[0] for session in traffic.sessions] == [
        Turn("x", 4),
        Turn("two", history=("one", "1")),
        Turn("<s>whole", 7, history=(), is_rendered=True),
    ]
    assert traffic.notes == ("not replayed: seed (1 times)",)
    assert not traffic.has_arrivals


def test_whole_conversations_keep_their_times(tmp_path: Path) -> None:
    history = [*_user("one"), {"role": "assistant", "content": "1"}, *_user("two")]
    traffic = _load(
        tmp_path,
        {"session_id": "s", "timestamp": 0, "messages": _user("one")},
        {"session_id": "s", "timestamp": 900, "messages": history},
        {"timestamp": 500, "text_input": "between"},
    )
    assert [session.session_id for session in traffic.sessions] == ["s", "m-3", "s@1"]
    last = traffic.sessions[-1]
    assert (last.first_turn, last.is_conversation) == (1, True)
    assert last.turns == (Turn("two", arrival_ns=900_000_000, history=("one", "1")),)


def test_later_turns_wait_for_answers(tmp_path: Path) -> None:
    traffic = _load(
        tmp_path,
        {"session_id": "d", "timestamp": 3, "message_mode": "delta", "messages": _user("one"), "delay": None},
        {"session_id": "e", "timestamp": 4, "input_length": 10},
        {"session_id": "d", "message_mode": "delta", "messages": _user("two"), "delay": 1500},
        {"session_id": "e", "input_length": 20, "delay": 2},
    )
    assert traffic.sessions == (
        Session("d", (Turn("one", arrival_ns=3_000_000), Turn("two", think_ns=1_500_000_000)), True),
        Session(
            "e",
            (Turn(None, input_tokens=10, arrival_ns=4_000_000), Turn(None, input_tokens=20, think_ns=2_000_000)),
            True,
        ),
    )


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    assert _refusals(
        tmp_path,
        {"timestamp": 10, "input_length": 1300, "hash_ids": [0]},
        {"timestamp": -1, "input_length": 18.5, "output_length": "3"},
        {"input_length": 130, "text_input": "x"},
        {"output_length": 3},
        '{"timestamp": NaN, "input_length": 3}',
        {"timestamp": 11, "delay": 3, "input_length": 3},
        {"timestamp": 11, "messages": [{"role": "tool", "content": "x"}]},
        {"timestamp": 11, "input_length": 3, "hash_ids": ["a"]},
        {"timestamp": 11, "messages": _user("x"), "tools": [{}]},
        {"timestamp": 11, "input_length": 3, "session_id": 4},
        {"timestamp": 11, "input_length": 3, "message_mode": "delta"},
        {"timestamp": 1e300, "input_length": 1 << 60},
        {"timestamp": True, "text_input": ""},
        {"payload": []},
    ) == [
        ("1", "hash_ids"),
        ("2", "timestamp"),
        ("2", "output_length"),
        ("2", "input_length"),
        ("3", ""),
        ("4", ""),
        ("5", ""),
        ("6", "delay"),
        ("7", "messages[0].role"),
        ("8", "hash_ids"),
        ("9", "tools"),
        ("10", "session_id"),
        ("11", "message_mode"),
        ("12", "timestamp"),
        ("12", "input_length"),
        ("13", "timestamp"),
        ("13", "text_input"),
        ("14", "payload"),
    ]


def test_times_that_contradict_each_other(tmp_path: Path) -> None:
    row = {"input_length": 3}
    assert _refusals(tmp_path, {**row, "timestamp": 9}, {**row, "timestamp": 5}) == [("2", "timestamp")]
    assert _refusals(tmp_path, {**row, "timestamp": 9}, row) == [("2", "timestamp")]
    assert _refusals(tmp_path, {**row, "delay": 9}) == [("1", "delay")]
    session = {**row, "session_id": "s"}
    assert _refusals(tmp_path, {**session, "timestamp": 0}, {**session, "timestamp": 5}) == [("2", "timestamp")]
    whole = {"session_id": "s", "messages": _user("x")}
    assert _refusals(tmp_path, whole, whole) == [("2", "messages")]
    assert _refusals(tmp_path, "\n\n x") == [("3", "")]


def test_the_remedy_for_another_block_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"3 blocks for 33 tokens, which fill 1 of 512.*--trace-block-tokens"):
        _load(tmp_path, {"input_length": 33, "hash_ids": [4, 5, 6]})
