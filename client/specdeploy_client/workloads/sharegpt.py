"""Conversations in ShareGPT's format, with their recorded answers.

    [{"id": "a1", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, ...]

One JSON list, or one conversation a line. `role` and `content` are read as `from` and `value`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdeploy_client.workloads.line_files import Findings, json_objects, parse_json, read_text
from specdeploy_client.workloads.recorded import RecordedTraffic
from specdeploy_client.workloads.sessions import Session, Turn

_USERS = frozenset({"human", "user"})
_ASSISTANTS = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard"})
_REMEDY = 'Write [{"id": "...", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}]'


def load_sharegpt(path: Path) -> RecordedTraffic:
    """The conversations in `path`; those that nothing can be asked from are left out and counted.

    Raises `ConfigError` for entries of another shape.
    """
    findings = Findings(path)
    sessions: list[Session] = []
    seen: set[str] = set()
    num_unusable = 0
    for place, entry in _entries(path, findings):
        messages = entry.get("conversations") if isinstance(entry, dict) else None
        if not isinstance(messages, list):
            findings.add(place, "conversations", "is no list of messages", _REMEDY)
            continue
        said = [_speaker_and_text(message) for message in messages]
        if None in said:
            findings.add(place, f"conversations[{said.index(None)}]", "is no message with from and value", _REMEDY)
            continue
        turns = _turns_of([pair for pair in said if pair is not None])
        if not turns:
            num_unusable += 1
            continue
        name = str(entry.get("id") or f"{path.stem}-{len(sessions)}")
        while name in seen:  # parts of one long conversation carry one id in some copies of the data
            name += "+"
        seen.add(name)
        sessions.append(Session(name, turns, is_conversation=True))
    if not sessions and not findings.violations:
        findings.add("", "", "holds no conversation that a user begins", _REMEDY)
    findings.raise_if_any()
    notes = (f"{num_unusable} conversations left out in which no user asks first",) if num_unusable else ()
    return RecordedTraffic("ShareGPT", tuple(sessions), notes)


def _entries(path: Path, findings: Findings) -> Iterator[tuple[int | str, Any]]:
    """Place and content of each entry of a list, or of each line."""
    text = read_text(path, _REMEDY)
    if not text.lstrip().startswith("["):
        yield from json_objects(text, findings)
        return
    try:
        content = parse_json(text)
    except ValueError as error:
        findings.add("", "", f"is not JSON ({error})", _REMEDY)
        findings.raise_if_any()
        return
    for number, entry in enumerate(content):
        yield f"[{number}]", entry


def _speaker_and_text(message: object) -> tuple[str, str] | None:
    if not isinstance(message, dict):
        return None
    speaker, text = message.get("from", message.get("role")), message.get("value", message.get("content"))
    return (speaker, text) if isinstance(speaker, str) and isinstance(text, str) else None


def _turns_of(said: list[tuple[str, str]]) -> tuple[Turn, ...]:
    """What the user says up to the first place where the two do not take turns; () where the user does not begin."""
    turns: list[Turn] = []
    for number, (speaker, text) in enumerate(said):
        is_user_next = number % 2 == 0
        if not text.strip() or speaker not in (_USERS if is_user_next else _ASSISTANTS):
            break
        if is_user_next:
            turns.append(Turn(text))
        else:
            turns[-1] = Turn(turns[-1].text, answer=text)
    return tuple(turns)
