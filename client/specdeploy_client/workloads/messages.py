"""Chat messages and request bodies as the OpenAI-compatible endpoints take them, read back as turns."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from specdeploy_client.workloads.line_files import Findings, token_count
from specdeploy_client.workloads.sessions import Turn

_PARAGRAPH = "\n\n"
_SYSTEM_ROLES = frozenset({"system", "developer"})
_ROLES = _SYSTEM_ROLES | {"user", "assistant"}
# What this client sets itself, or what changes nothing in what is asked.
_OWN_KEYS = frozenset({"model", "stream", "stream_options", "user", "messages", "prompt", "max_tokens", "ignore_eos"})
_GUIDE_KEYS = {"guided_json": "json_schema", "guided_regex": "regex", "guided_grammar": "ebnf_grammar"}


@dataclass(slots=True)
class LeftOut:
    """What of a file is not replayed, counted by name, so that nothing is dropped without a word."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str) -> None:
        """Count one more `name`."""
        self.counts[name] += 1

    @property
    def notes(self) -> tuple[str, ...]:
        """For the description of the workload."""
        listed = ", ".join(f"{name} ({count} times)" for name, count in sorted(self.counts.items()))
        return (f"not replayed: {listed}",) if listed else ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something stands: a line number or a path, and what is wrong goes to `findings`."""

    findings: Findings
    where: int | str

    def add(self, key: str, reason: str, remedy: str) -> None:
        """One more thing wrong here."""
        self.findings.add(self.where, key, reason, remedy)


def turns_of_messages(messages: object, place: Place, key: str = "messages") -> tuple[str, ...] | None:
    """User and assistant turns in turn, the last one a user's; None after adding what is wrong.

    Messages of one role in a row become paragraphs of one turn. A system message goes before the user's first, as its
    first paragraph: a prompt made here has no other place for it.
    """
    if not isinstance(messages, list) or not messages:
        place.add(key, "is no list of messages", 'Write [{"role": "user", "content": "..."}, ...]')
        return None
    turns: list[str] = []
    system: list[str] = []
    for number, message in enumerate(messages):
        at = f"{key}[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _ROLES:
            place.add(f"{at}.role", f"{role!r} is not replayed", "Roles are system, user and assistant")
            return None
        text = _content_text(message.get("content"))
        if text is None:
            place.add(f"{at}.content", "is no text", "Only text is replayed, no images, sound or calls of tools")
            return None
        if role in _SYSTEM_ROLES:
            system.append(text)
            continue
        is_user_next = len(turns) % 2 == 0
        if (role == "user") == is_user_next:
            turns.append(text)
        elif turns:
            turns[-1] += _PARAGRAPH + text
        else:
            place.add(f"{at}.role", "a conversation that the assistant begins is not replayed", "Begin with the user")
            return None
    if len(turns) % 2 == 0:
        place.add(key, "do not end with the user", "End with what is asked")
        return None
    turns[0] = _PARAGRAPH.join([*system, turns[0]])
    return tuple(turns)


def turn_of_payload(payload: object, place: Place, left_out: LeftOut, key: str = "payload") -> Turn | None:
    """The request body of a chat or completions endpoint as a turn; None after adding what is wrong."""
    if not isinstance(payload, dict):
        place.add(key, "is no object", 'Write {"messages": [...], "max_tokens": ...}')
        return None
    is_rendered = "messages" not in payload
    turns: tuple[str, ...] | None
    if not is_rendered:
        turns = turns_of_messages(payload["messages"], place, f"{key}.messages")
        if turns is None:
            return None
    elif isinstance(payload.get("prompt"), str) and payload["prompt"]:
        turns = (payload["prompt"],)
    else:
        place.add(key, "has neither messages nor a prompt of text", "Record a chat or a completions endpoint")
        return None
    guide_type, guide, guide_key = _guide_of(payload)
    given = payload.get("max_completion_tokens", payload.get("max_tokens"))
    max_tokens = token_count(given)
    if given is not None and max_tokens is None:
        place.add(f"{key}.max_tokens", f"{given!r} is no whole number of at least 1", "Correct or remove it")
        return None
    for name in payload:
        if name not in _OWN_KEYS | {guide_key, "max_completion_tokens"}:
            left_out.add(name)
    return Turn(
        turns[-1],
        max_tokens,
        history=turns[:-1],
        guide_type=guide_type,
        guide=guide,
        is_rendered=is_rendered,
        ignore_eos=payload.get("ignore_eos") is True,
    )


def _content_text(content: object) -> str | None:
    """The text of a message, also of one in parts; None where there is other content or none."""
    if isinstance(content, str):
        return content or None
    if not isinstance(content, list) or not content:
        return None
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    if len(texts) < len(content) or not all(isinstance(text, str) and text for text in texts):
        return None
    return _PARAGRAPH.join(map(str, texts))


def _guide_of(payload: dict[str, Any]) -> tuple[str | None, str | None, str]:
    """Guide type, guide, and the key that they come from ('' where the answer is free)."""
    wanted = payload.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_object":
        return "json", None, "response_format"
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        schema = wanted.get("json_schema")
        if isinstance(schema, dict) and isinstance(schema.get("schema"), dict):
            return "json_schema", json.dumps(schema["schema"], ensure_ascii=False), "response_format"
    for key, guide_type in _GUIDE_KEYS.items():
        guide = payload.get(key)
        if guide:
            return guide_type, guide if isinstance(guide, str) else json.dumps(guide, ensure_ascii=False), key
    return None, None, ""
