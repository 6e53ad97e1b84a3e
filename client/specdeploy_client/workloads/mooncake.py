"""Traces as JSONL in Mooncake's format, with what AIPerf adds to it.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}

Times are milliseconds. Each of `hash_ids` names a block of 512 tokens of the prompt, the last one partly filled;
prompts that begin with the same ids begin with the same text. (github.com/kvcache-ai/Mooncake, FAST25-release.) AIPerf
(`MooncakeTrace` in aiperf/dataset/loader/models.py) takes `text_input`, `messages` or `payload` in place of
`input_length`, and `session_id` with `delay`, milliseconds after the answer to the turn before, all of them in 0.13;
`message_mode` is newer. A later turn of a session that goes on from the server's own answer has no blocks: what stands
before its text is that answer.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from specdeploy.units import NS_PER_MS
from specdeploy_client.workloads.base import BLOCK_TOKENS
from specdeploy_client.workloads.line_files import Findings, duration_ns, json_objects, read_text, token_count
from specdeploy_client.workloads.messages import LeftOut, Place, turn_of_payload, turns_of_messages
from specdeploy_client.workloads.recorded import RecordedTraffic, by_arrival
from specdeploy_client.workloads.sessions import Session, Turn

SOURCE_KEYS = ("input_length", "text_input", "messages", "payload")
_KEYS = frozenset(
    {*SOURCE_KEYS, "type", "timestamp", "delay", "output_length", "hash_ids", "session_id", "message_mode"}
)
_REMEDY = 'Write {"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]} a line'


@dataclass(frozen=True, slots=True)
class _Row:
    """One line. `is_whole`: it holds the conversation up to its turn, and needs no answer of the server's."""

    line: int
    turn: Turn
    session_id: str | None
    has_delay: bool
    is_whole: bool


def load_mooncake_trace(path: Path, block_tokens: int = BLOCK_TOKENS) -> RecordedTraffic:
    """The requests in `path`; `hash_ids` name blocks of `block_tokens`. Raises `ConfigError` with the bad lines."""
    findings, left_out = Findings(path), LeftOut()
    rows = [
        row
        for line, content in json_objects(read_text(path, _REMEDY), findings)
        if (row := _parse_row(content, Place(findings, line), line, block_tokens, left_out)) is not None
    ]
    _check_times(rows, findings)
    sessions = _group(rows, path.stem, findings, left_out)
    if not rows and not findings.violations:
        findings.add("", "", "holds no requests", _REMEDY)
    findings.raise_if_any()
    return RecordedTraffic("Mooncake trace", by_arrival(sessions), left_out.notes)


def milliseconds(content: dict[str, Any], key: str, place: Place) -> int | None:
    """A time in nanoseconds; None where it is not given or wrong, which is then added."""
    given = content.get(key)
    if given is None:
        return None
    value = None if isinstance(given, str) else duration_ns(given, NS_PER_MS)
    if value is None:
        place.add(key, f"{given!r} is no number of milliseconds from 0 on", "Correct or remove it")
    return value


def positive(content: dict[str, Any], key: str, place: Place) -> int | None:
    """A number of tokens; None where it is not given or wrong, which is then added."""
    given = content.get(key)
    if given is None:
        return None
    value = None if isinstance(given, str) else token_count(given)
    if value is None:
        place.add(key, f"{given!r} is no whole number of at least 1", "Correct or remove it")
    return value


def _parse_row(content: dict[str, Any], place: Place, line: int, block_tokens: int, left_out: LeftOut) -> _Row | None:
    """One line, or None after adding what is wrong with it."""
    num_before = len(place.findings.violations)
    given = [key for key in SOURCE_KEYS if content.get(key) is not None]
    if len(given) != 1:
        reason = f"has {' and '.join(given) or 'no input'}"
        place.add("", reason, f"Give one of {', '.join(SOURCE_KEYS)}. {_REMEDY}")
        return None
    if content.get("tools"):
        place.add("tools", "calls of tools are not replayed", "Leave this request out")
    for key in content:
        if key not in _KEYS | {"tools"}:
            left_out.add(key)
    arrival_ns, delay_ns = milliseconds(content, "timestamp", place), milliseconds(content, "delay", place)
    if arrival_ns is not None and delay_ns is not None:
        place.add("delay", "stands beside timestamp", "Give one of the two")
    session_id = content.get("session_id")
    if session_id is not None and not isinstance(session_id, str):
        place.add("session_id", f"{session_id!r} is no text", "Put it into quotes")
    mode = content.get("message_mode", "history")
    if mode not in ("history", "delta"):
        place.add("message_mode", f"{mode!r} is unknown", "Modes are history and delta")
    if mode == "delta" and given[0] != "messages":
        place.add("message_mode", "delta without messages", "Give messages, or leave it out")
    max_tokens = positive(content, "output_length", place)
    turn = _turn_of(content, given[0], place, block_tokens, left_out)
    if turn is None or len(place.findings.violations) > num_before:
        return None
    turn = replace(
        turn,
        max_tokens=turn.max_tokens or max_tokens,
        arrival_ns=arrival_ns,
        think_ns=delay_ns or 0,
        ignore_eos=turn.ignore_eos or (turn.text is None and max_tokens is not None),
    )
    is_whole = given[0] == "payload" or (given[0] == "messages" and mode == "history")
    return _Row(line, turn, session_id, delay_ns is not None, is_whole)


def _turn_of(content: dict[str, Any], kind: str, place: Place, block_tokens: int, left_out: LeftOut) -> Turn | None:
    if kind == "payload":
        return turn_of_payload(content["payload"], place, left_out)
    if kind == "messages":
        turns = turns_of_messages(content["messages"], place)
        return None if turns is None else Turn(turns[-1], history=turns[:-1] or None)
    if kind == "text_input":
        text = content["text_input"]
        if isinstance(text, str) and text:
            return Turn(text)
        place.add("text_input", "is no text", "Write the prompt")
        return None
    num_tokens = positive(content, "input_length", place)
    if num_tokens is None:
        return None
    return Turn(None, input_tokens=num_tokens, hash_ids=_hash_ids(content, num_tokens, place, block_tokens))


def _hash_ids(content: dict[str, Any], num_tokens: int, place: Place, block_tokens: int) -> tuple[int, ...]:
    given = content.get("hash_ids")
    if given is None or given == []:
        return ()
    if not isinstance(given, list) or any(isinstance(block, bool) or not isinstance(block, int) for block in given):
        place.add("hash_ids", "is no list of whole numbers", _REMEDY)
        return ()
    num_blocks = math.ceil(num_tokens / block_tokens)
    if len(given) != num_blocks:
        reason = f"{len(given)} blocks for {num_tokens} tokens, which fill {num_blocks} of {block_tokens}"
        place.add("hash_ids", reason, "Give one id per block, or the file's block size with --trace-block-tokens")
    return tuple(given)


def _check_times(rows: Iterable[_Row], findings: Findings) -> None:
    """Times must not go back, in the file or, where there are sessions, in each of them; either all rows have one (but
    for the later turns of a session), or none."""
    latest: dict[str | None, _Row] = {}
    first_timed: _Row | None = None
    first_untimed: _Row | None = None
    for row in rows:
        is_later_turn = row.session_id is not None and row.session_id in latest
        before = latest.get(row.session_id)
        if row.turn.arrival_ns is None:
            if not is_later_turn:
                first_untimed = first_untimed or row
        else:
            first_timed = first_timed or row
            if before is not None and (before.turn.arrival_ns or 0) > row.turn.arrival_ns:
                findings.add(row.line, "timestamp", f"is before line {before.line}", "Sort the file by timestamp")
        if before is None or row.turn.arrival_ns is not None:
            latest[row.session_id] = row
    if first_timed and first_untimed:
        reason = f"is missing, but line {first_timed.line} has one"
        findings.add(first_untimed.line, "timestamp", reason, "Give every request its time, or none")


def _group(rows: Iterable[_Row], stem: str, findings: Findings, left_out: LeftOut) -> list[Session]:
    """Rows of one `session_id` become one session, but for those that come at a time of their own."""
    sessions: list[Session] = []
    turns: dict[str, list[Turn]] = {}
    for row in rows:
        if row.session_id is None:
            if row.has_delay:
                findings.add(row.line, "delay", "needs a session to wait in", "Give a session_id, or a timestamp")
            sessions.append(Session(f"{stem}-{row.line}", (row.turn,)))
            continue
        earlier = turns.setdefault(row.session_id, [])
        turn = replace(row.turn, think_ns=row.turn.think_ns if earlier else 0)
        earlier.append(turn)
        if len(earlier) == 1:
            continue
        if turn.hash_ids:
            left_out.add("hash_ids of a later turn")
        if turn.arrival_ns is not None and not row.is_whole:
            reason = "this turn goes on from the answer before it, which may come later"
            findings.add(row.line, "timestamp", reason, "Give delay, the time after that answer")
        elif row.is_whole and not turn.history and not turn.is_rendered:
            reason = "a later turn without those before it"
            findings.add(row.line, "messages", reason, 'Give the whole conversation, or "message_mode": "delta"')
    for session_id, listed in turns.items():
        sessions += split_at_times(session_id, listed)
    return sessions


def split_at_times(session_id: str, turns: list[Turn]) -> list[Session]:
    """One session per turn that has a time, with the turns that follow it."""
    cuts = [0, *(number for number, turn in enumerate(turns) if number and turn.arrival_ns is not None), len(turns)]
    return [
        Session(session_id if begin == 0 else f"{session_id}@{begin}", tuple(turns[begin:end]), True, first_turn=begin)
        for begin, end in pairwise(cuts)
    ]
