"""AIPerf's own input files: rows, conversations, and the inputs.json of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client.workloads.aiperf_inputs import load_aiperf_inputs, load_aiperf_lines
from specdeploy_client.workloads.recorded import RecordedTraffic
from specdeploy_client.workloads.sessions import Session, SessionWorkload, Turn


def _lines(folder: Path, *rows: dict[str, Any]) -> RecordedTraffic:
    path = folder / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return load_aiperf_lines(path)


def _inputs(folder: Path, content: object) -> RecordedTraffic:
    path = folder / "inputs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return load_aiperf_inputs(path)


def _session(name: str, *payloads: object) -> dict[str, Any]:
    return {"session_id": name, "payloads": list(payloads)}


def _chat(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]}


def test_single_turns(tmp_path: Path) -> None:
    traffic = _lines(
        tmp_path,
        {"text": "one", "timestamp": 7, "output_length": 5, "role": "user"},
        {"texts": [{"name": "text", "contents": ["two"]}], "timestamp": 3.5, "extra": {"a": 1}},
    )
    assert traffic.sessions == (
        Session("a-2", (Turn("two", arrival_ns=3_500_000),)),
        Session("a-1", (Turn("one", 5, arrival_ns=7_000_000),)),
    )
    assert traffic.notes == ("not replayed: extra (1 times)",)


def test_conversations_go_on_from_own_answers(tmp_path: Path) -> None:
    turns = [{"text": "one"}, {"text": "two", "delay": 1500}]
    traffic = _lines(tmp_path, {"session_id": "s", "turns": turns}, {"turns": [{"text": "x"}]})
    assert traffic.sessions == (
        Session("s", (Turn("one"), Turn("two", think_ns=1_500_000_000)), True),
        Session("a-2", (Turn("x"),), True),
    )


def test_single_turns_of_one_session_wait_for_each_other_and_share_nothing(tmp_path: Path) -> None:
    traffic = _lines(
        tmp_path,
        {"text": "one", "session_id": "s", "delay": 4},
        {"text": "other"},
        {"text": "two", "session_id": "s", "delay": 1500},
        {"text": "three", "session_id": "s"},
    )
    assert traffic.sessions == (
        Session("a-2", (Turn("other"),)),
        Session(
            "s",
            (Turn("one", history=()), Turn("two", think_ns=1_500_000_000, history=()), Turn("three", history=())),
            True,
        ),
    )
    assert traffic.notes == ("not replayed: delay of a session's first request (1 times)",)
    workload = SessionWorkload("test", "a test", {"chat": traffic.sessions[1:]}, 0)
    assert [request.follows_previous for request in workload.requests("chat", 0, 3)] == [False, True, True]
    assert [request.known_turns for request in workload.requests("chat", 0, 3)] == [("one",), ("two",), ("three",)]
    assert not workload.shares_prefixes


def test_single_turns_with_times_come_then_also_within_a_session(tmp_path: Path) -> None:
    rows = [{"text": text, "session_id": "s", "timestamp": at} for text, at in (("one", 0), ("two", 20))]
    assert _lines(tmp_path, *rows).sessions == (
        Session("s", (Turn("one", arrival_ns=0, history=()),), True),
        Session("s@1", (Turn("two", arrival_ns=20_000_000, history=()),), True, first_turn=1),
    )


def test_every_bad_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        _lines(
            tmp_path,
            {"text": "one", "image": "x.png"},
            {"session_id": "s", "turns": [{"text": "a"}, {"texts": ["b", "c"]}]},
            {"turns": [{"text": "a", "delay": -1}]},
            {"turns": []},
            {"text": "x", "delay": 3},
            {"text": "x", "role": "system"},
            {"turns": [{"text": "a"}, {"text": "b", "timestamp": 3}]},
            {"text": 3},
            {"session_id": "t", "turns": [{"text": "a"}]},
            {"session_id": "t", "turns": [{"text": "a"}]},
            {"session_id": 3, "turns": [{"text": "a"}]},
            {"session_id": 3, "text": "a"},
            {"session_id": "u", "text": "a"},
            {"session_id": "u", "turns": [{"text": "a"}]},
        )
    assert [(v.file.rsplit(":", 1)[-1], v.key) for v in caught.value.violations] == [
        ("1", "image"),
        ("2", "turns[1].text"),
        ("3", "delay"),
        ("4", "turns"),
        ("5", "delay"),
        ("6", "role"),
        ("7", "turns[1].timestamp"),
        ("8", "text"),
        ("10", "session_id"),
        ("11", "session_id"),
        ("12", "session_id"),
        ("14", "session_id"),
    ]
    with pytest.raises(ConfigError, match="1 of 2 requests have none"):
        _lines(tmp_path, {"text": "a", "timestamp": 1}, {"text": "b"})


def test_an_inputs_file(tmp_path: Path) -> None:
    data = [_session("s", {**_chat("one"), "max_tokens": 9}, _chat("one", "1", "two")), _session("t", {"prompt": "x"})]
    assert _inputs(tmp_path, {"data": data}).sessions == (
        Session("s", (Turn("one", 9, history=()), Turn("two", history=("one", "1"))), True),
        Session("t", (Turn("x", history=(), is_rendered=True),)),
    )


def test_payloads_that_hold_no_history_are_requests_of_their_own(tmp_path: Path) -> None:
    traffic = _inputs(tmp_path, {"data": [_session("s", _chat("one"), _chat("two"))]})
    assert traffic.sessions == (
        Session("s", (Turn("one", history=()),)),
        Session("s/1", (Turn("two", history=()),)),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "data: is no list of sessions"),
        ({"data": []}, "data: is no list of sessions"),
        ({"data": [3, _session("s"), {"payloads": [{}]}]}, r"data\[0\].*\n.*data\[1\].*\n.*data\[2\]"),
        ({"data": [_session("s", _chat("x")), _session("s", _chat("x"))]}, r"data\[1\]: session_id: 's' was used"),
        ({"data": [_session("s", {"messages": 3})]}, r"data\[0\]: payloads\[0\]\.messages"),
    ],
)
def test_broken_inputs_files(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _inputs(tmp_path, content)
