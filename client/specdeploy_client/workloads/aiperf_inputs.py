"""AIPerf's own input files: `single_turn` and `multi_turn` JSONL, and the `inputs.json` that each of its runs leaves.

    {"text": "...", "timestamp": 0, "output_length": 64, "session_id": "s1"}
    {"session_id": "s1", "turns": [{"text": "..."}, {"text": "...", "delay": 1500}]}
    {"data": [{"session_id": "s1", "payloads": [{"messages": [...], "max_tokens": 64}, ...]}]}

As of AIPerf 0.13 (aiperf/dataset/loader/models.py and inputs_json.py); no key read here is newer. Times are
milliseconds. Later turns of `multi_turn` go on from the server's own answers. Rows of `single_turn` that share a
`session_id` are sent one after the other, each `delay` after the answer before it, and know nothing of each other; one
with a `timestamp` comes then. Only text is replayed.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from specdeploy_client.workloads.line_files import Findings, json_objects, parse_json, read_text
from specdeploy_client.workloads.messages import LeftOut, Place, turn_of_payload
from specdeploy_client.workloads.mooncake import milliseconds, positive, split_at_times
from specdeploy_client.workloads.recorded import RecordedTraffic, by_arrival
from specdeploy_client.workloads.sessions import Session, Turn

_KEYS = frozenset({"type", "text", "texts", "timestamp", "delay", "role", "session_id", "output_length", "turns"})
_MEDIA_KEYS = ("image", "images", "audio", "audios", "video", "videos")
_LINE_REMEDY = 'Write {"text": "..."} or {"session_id": "...", "turns": [{"text": "..."}]} a line'
_INPUTS_REMEDY = 'Write {"data": [{"session_id": "...", "payloads": [{"messages": [...]}]}]}'


def load_aiperf_lines(path: Path) -> RecordedTraffic:
    """The requests of a `single_turn` or `multi_turn` file. Raises `ConfigError` with the bad lines."""
    findings, left_out = Findings(path), LeftOut()
    sessions: list[Session] = []
    first_line: dict[str, int] = {}
    in_order: dict[str, list[Turn]] = {}  # of single_turn, by session_id
    for line, content in json_objects(read_text(path, _LINE_REMEDY), findings):
        place = Place(findings, line)
        for key in content:
            if key not in _KEYS and key not in _MEDIA_KEYS:
                left_out.add(key)
        shared_id = content.get("session_id") if "turns" not in content else None
        session = _session_of(content, f"{path.stem}-{line}", place, left_out)
        if session is None:
            continue
        if shared_id is not None:
            first_line.setdefault(shared_id, line)
            earlier = in_order.setdefault(shared_id, [])
            earlier.append(_self_contained(session.turns[0], left_out, is_first=not earlier))
            continue
        if session.session_id in first_line:
            reason = f"{session.session_id!r} was used on line {first_line[session.session_id]}"
            place.add("session_id", reason, "Give every conversation its own")
        first_line[session.session_id] = line
        sessions.append(session)
    for session_id, turns in in_order.items():
        sessions += split_at_times(session_id, turns)
    if not sessions and not findings.violations:
        findings.add("", "", "holds no requests", _LINE_REMEDY)
    num_timed = sum(session.turns[0].arrival_ns is not None for session in sessions)
    if 0 < num_timed < len(sessions):
        reason = f"{len(sessions) - num_timed} of {len(sessions)} requests have none"
        findings.add("", "timestamp", reason, "Give every request its time, or none")
    findings.raise_if_any()
    return RecordedTraffic("AIPerf input", by_arrival(sessions), left_out.notes)


def load_aiperf_inputs(path: Path) -> RecordedTraffic:
    """The requests of an `inputs.json`. Raises `ConfigError` with what is wrong in it."""
    findings, left_out = Findings(path), LeftOut()
    try:
        content = parse_json(read_text(path, _INPUTS_REMEDY))
    except ValueError as error:
        content = None
        findings.add("", "", f"is not JSON ({error})", _INPUTS_REMEDY)
    findings.raise_if_any()
    listed = content.get("data") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not listed:
        findings.add("", "data", "is no list of sessions", _INPUTS_REMEDY)
        listed = []
    sessions: list[Session] = []
    seen: set[str] = set()
    for number, entry in enumerate(listed):
        place = Place(findings, f"data[{number}]")
        session_id = entry.get("session_id") if isinstance(entry, dict) else None
        payloads = entry.get("payloads") if isinstance(entry, dict) else None
        if not isinstance(session_id, str) or not session_id or not isinstance(payloads, list) or not payloads:
            place.add("", "is no session with session_id and payloads", _INPUTS_REMEDY)
            continue
        if session_id in seen:
            place.add("session_id", f"{session_id!r} was used before", "Give every session its own")
        seen.add(session_id)
        turns = [turn_of_payload(payload, place, left_out, f"payloads[{at}]") for at, payload in enumerate(payloads)]
        sessions += _sessions_of_payloads(session_id, [turn for turn in turns if turn is not None])
    findings.raise_if_any()
    return RecordedTraffic("AIPerf inputs.json", tuple(sessions), left_out.notes)


def _sessions_of_payloads(session_id: str, turns: list[Turn]) -> list[Session]:
    """One session, or one per payload where a later one does not hold those before it: it follows nothing then."""
    if len(turns) > 1 and all(turn.history or turn.is_rendered for turn in turns[1:]):
        return [Session(session_id, tuple(turns), is_conversation=True)]
    return [Session(f"{session_id}/{number}" if number else session_id, (turn,)) for number, turn in enumerate(turns)]


def _session_of(content: dict[str, Any], name: str, place: Place, left_out: LeftOut) -> Session | None:
    """A line of either kind, or None after adding what is wrong with it."""
    session_id = content.get("session_id")
    if session_id is not None and (not isinstance(session_id, str) or not session_id):
        place.add("session_id", f"{session_id!r} is no text", "Put it into quotes")
        return None
    if "turns" not in content:
        turn = _turn_of(content, place, "")
        if turn is not None and turn.think_ns and session_id is None:
            place.add(
                "delay",
                "needs a conversation to wait in",
                "Give both entries one session_id, or write them as turns of one line",
            )
            return None
        return None if turn is None else Session(name, (turn,))
    listed = content["turns"]
    if not isinstance(listed, list) or not listed or not all(isinstance(turn, dict) for turn in listed):
        place.add("turns", "is no list of turns", _LINE_REMEDY)
        return None
    for turn in listed:
        for key in turn:
            if key not in _KEYS and key not in _MEDIA_KEYS:
                left_out.add(key)
    turns = [_turn_of(turn, place, f"turns[{number}].") for number, turn in enumerate(listed)]
    for number, made in enumerate(turns):
        if number and made is not None and made.arrival_ns is not None:
            reason = "this turn goes on from the answer before it, which may come later"
            place.add(f"turns[{number}].timestamp", reason, "Give delay, the time after that answer")
    kept = tuple(turn for turn in turns if turn is not None)
    return Session(session_id or name, kept, is_conversation=True) if len(kept) == len(turns) else None


def _self_contained(turn: Turn, left_out: LeftOut, *, is_first: bool) -> Turn:
    """A row of `single_turn` as part of its session: it holds all that it says, and only its time depends on others."""
    if is_first and turn.think_ns:
        left_out.add("delay of a session's first request")
    return replace(turn, history=(), think_ns=0 if is_first else turn.think_ns)


def _turn_of(content: dict[str, Any], place: Place, prefix: str) -> Turn | None:
    for key in _MEDIA_KEYS:
        if content.get(key):
            place.add(f"{prefix}{key}", "is not replayed: only text is", "Leave this request out")
            return None
    text = content.get("text") or _single_text(content.get("texts"))
    if not isinstance(text, str) or not text:
        place.add(f"{prefix}text", "is no text", "Give one text per request; several at once are not replayed")
        return None
    role = content.get("role")
    if role not in (None, "user"):
        place.add(f"{prefix}role", f"{role!r} is not replayed", "Only what users say is sent")
        return None
    num_before = len(place.findings.violations)
    turn = Turn(
        text,
        positive(content, "output_length", place),
        arrival_ns=milliseconds(content, "timestamp", place),
        think_ns=milliseconds(content, "delay", place) or 0,
    )
    return turn if len(place.findings.violations) == num_before else None


def _single_text(texts: object) -> object:
    """The text of a list of one, plain or as {"contents": [text]}; None for anything else."""
    if not isinstance(texts, list) or len(texts) != 1:
        return None
    return _single_text(texts[0].get("contents")) if isinstance(texts[0], dict) else texts[0]
