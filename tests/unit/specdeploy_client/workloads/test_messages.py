"""Chat messages and request bodies read back as turns."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy_client.workloads.line_files import Findings
from specdeploy_client.workloads.messages import LeftOut, Place, turn_of_payload, turns_of_messages
from specdeploy_client.workloads.sessions import Turn


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def _place() -> Place:
    return Place(Findings(Path("f.json")), 3)


def _payload(**keys: Any) -> tuple[Turn | None, LeftOut, Place]:
    place, left_out = _place(), LeftOut()
    return turn_of_payload(keys, place, left_out), left_out, place


def test_roles_become_turns() -> None:
    messages = [
        _message("system", "Be brief."),
        _message("user", "one"),
        _message("user", [{"type": "text", "text": "more"}, {"type": "text", "text": "of it"}]),
        _message("assistant", "1"),
        _message("developer", "In English."),
        _message("user", "two"),
    ]
    place = _place()
    assert turns_of_messages(messages, place) == ("Be brief.\n\nIn English.\n\none\n\nmore\n\nof it", "1", "two")
    assert place.findings.violations == []


@pytest.mark.parametrize(
    ("messages", "key"),
    [
        ([], "messages"),
        ("hello", "messages"),
        ([_message("tool", "x")], "messages[0].role"),
        ([["user"]], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([_message("user", None)], "messages[0].content"),
        ([_message("user", [{"type": "image_url", "image_url": {}}])], "messages[0].content"),
        ([_message("assistant", "hi"), _message("user", "x")], "messages[0].role"),
        ([_message("user", "x"), _message("assistant", "hi")], "messages"),
        ([_message("system", "x")], "messages"),
    ],
)
def test_what_cannot_be_replayed_is_named(messages: object, key: str) -> None:
    place = _place()
    assert turns_of_messages(messages, place) is None
    assert [(v.file, v.key) for v in place.findings.violations] == [("f.json:3", key)]


def test_a_chat_body() -> None:
    messages = [_message("user", "a"), _message("assistant", "b"), _message("user", "c")]
    turn, left_out, _ = _payload(
        messages=messages, max_completion_tokens=9, ignore_eos=True, model="m", stream=True, temperature=1, top_p=0.9
    )
    assert turn == Turn("c", 9, history=("a", "b"), ignore_eos=True)
    assert left_out.notes == ("not replayed: temperature (1 times), top_p (1 times)",)


def test_a_completions_body_is_rendered_already() -> None:
    turn, left_out, _ = _payload(prompt="<s>x", max_tokens=2)
    assert turn == Turn("<s>x", 2, history=(), is_rendered=True)
    assert left_out.notes == ()


@pytest.mark.parametrize(
    ("extra", "guide_type", "guide"),
    [
        ({"response_format": {"type": "json_object"}}, "json", None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
            "json_schema",
            '{"type": "object"}',
        ),
        ({"guided_json": {"type": "array"}}, "json_schema", '{"type": "array"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_grammar": "root ::= x"}, "ebnf_grammar", "root ::= x"),
    ],
)
def test_guides_are_kept(extra: dict[str, Any], guide_type: str, guide: str | None) -> None:
    turn, left_out, _ = _payload(messages=[_message("user", "x")], **extra)
    assert turn is not None
    assert (turn.guide_type, turn.guide) == (guide_type, guide)
    assert left_out.notes == ()


def test_a_format_that_is_no_guide_is_said_to_be_left_out() -> None:
    turn, left_out, _ = _payload(messages=[_message("user", "x")], response_format={"type": "text"})
    assert turn is not None
    assert turn.guide_type is None
    assert left_out.notes == ("not replayed: response_format (1 times)",)


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        ({}, "payload"),
        ({"prompt": ["x"]}, "payload"),
        ({"messages": []}, "payload.messages"),
        ({"prompt": "x", "max_tokens": 0}, "payload.max_tokens"),
        ({"prompt": "x", "max_tokens": "many"}, "payload.max_tokens"),
    ],
)
def test_bodies_that_ask_nothing(payload: dict[str, Any], key: str) -> None:
    turn, _, place = _payload(**payload)
    assert turn is None
    assert [violation.key for violation in place.findings.violations] == [key]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(["user", "x", "", "json_object"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["messages", "prompt", "role", "content", "type", "text", "max_tokens", "response_format"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(payload=_JSON)
def test_any_body_is_a_turn_or_a_finding(payload: object) -> None:
    place = _place()
    turn = turn_of_payload(payload, place, LeftOut())
    assert (turn is None) == bool(place.findings.violations)
    if turn is not None:
        json.dumps(turn.text)
        assert turn.text
