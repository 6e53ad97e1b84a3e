"""Request bodies in the dialects of OpenAI-compatible servers."""

import json
from typing import Any

import pytest

from specdeploy.errors import RequestError
from specdeploy_client.transport import GenerationRequest
from specdeploy_client.transports.openai_dialect import PLAIN, SGLANG, TRTLLM, VLLM, OpenAiDialect, request_body

REQUEST = GenerationRequest("hello", 16)


def _body(
    request: GenerationRequest = REQUEST, dialect: OpenAiDialect = PLAIN, *, is_chat: bool = False
) -> dict[str, Any]:
    return request_body(request, "m", dialect, is_chat=is_chat)


def test_a_plain_completion_holds_nothing_beyond_openais_fields() -> None:
    assert _body() == {
        "model": "m",
        "prompt": "hello",
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_is_given_is_sent_and_the_label_is_not() -> None:
    request = GenerationRequest(
        "hello", 16, segment="chat", temperature=0.0, top_k=1, top_p=0.5, seed=0, min_tokens=2, ignore_eos=True,
        stop_words=("a", "b"), request_id="r1",
    )  # fmt: skip
    extra = {name: value for name, value in _body(request).items() if name not in _body()}
    assert extra == {
        "temperature": 0.0,
        "top_k": 1,
        "top_p": 0.5,
        "seed": 0,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop": ["a", "b"],
    }


@pytest.mark.parametrize(
    ("turns", "messages"),
    [
        ((), [("user", "hello")]),
        (("q1", "a1", "q2"), [("user", "q1"), ("assistant", "a1"), ("user", "q2")]),
    ],
)
def test_a_chat_is_turns_in_alternation(turns: tuple[str, ...], messages: list[tuple[str, str]]) -> None:
    body = _body(GenerationRequest("hello", 16, turns=turns), is_chat=True)
    assert [(message["role"], message["content"]) for message in body["messages"]] == messages
    assert "prompt" not in body


@pytest.mark.parametrize(
    ("dialect", "ids", "options"),
    [
        (PLAIN, False, {"include_usage": True}),
        (VLLM, True, {"include_usage": True}),
        (SGLANG, True, {"include_usage": True}),
        (TRTLLM, False, {"include_usage": True, "continuous_usage_stats": True}),
    ],
)
def test_tokens_are_counted_as_the_server_can(dialect: OpenAiDialect, ids: bool, options: dict[str, bool]) -> None:
    body = _body(dialect=dialect)
    assert (body.get("return_token_ids", False), body["stream_options"]) == (ids, options)


def test_the_limit_may_have_another_name() -> None:
    body = _body(dialect=OpenAiDialect("openai", length_field="max_completion_tokens"))
    assert body["max_completion_tokens"] == 16
    assert "max_tokens" not in body


SCHEMA = {"type": "object"}
STRICT = {"name": "guide", "strict": True, "schema": SCHEMA}


@pytest.mark.parametrize(
    ("dialect", "kind", "guide", "fields"),
    [
        (PLAIN, "json", "", {"response_format": {"type": "json_object"}}),
        (VLLM, "json_schema", SCHEMA, {"response_format": {"type": "json_schema", "json_schema": STRICT}}),
        (TRTLLM, "json_schema", SCHEMA, {"response_format": {"type": "json", "schema": SCHEMA}}),
        (VLLM, "regex", "[ab]", {"structured_outputs": {"regex": "[ab]"}}),
        (VLLM, "ebnf_grammar", "root ::= x", {"structured_outputs": {"grammar": "root ::= x"}}),
        (SGLANG, "regex", "[ab]", {"regex": "[ab]"}),
        (SGLANG, "ebnf_grammar", "root ::= x", {"ebnf": "root ::= x"}),
        (TRTLLM, "regex", "[ab]", {"response_format": {"type": "regex", "regex": "[ab]"}}),
        (TRTLLM, "ebnf_grammar", "root ::= x", {"response_format": {"type": "ebnf", "ebnf": "root ::= x"}}),
    ],
)
def test_guides(dialect: OpenAiDialect, kind: str, guide: Any, fields: dict[str, Any]) -> None:
    text = guide if isinstance(guide, str) else json.dumps(guide)
    body = _body(GenerationRequest("hello", 16, guide_type=kind, guide=text), dialect)
    assert {name: body[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (GenerationRequest("hello", 16, num_draft_tokens=0), "num_draft_tokens: .*--off-url"),
        (GenerationRequest("hello", 16, guide_type="regex", guide="a"), "guide_type: OpenAI's own API has no field"),
        (GenerationRequest("hello", 16, guide_type="lark", guide="a"), "guide_type: 'lark' is not known"),
        (GenerationRequest("hello", 16, guide_type="json_schema", guide="{"), "guide: the JSON schema is no JSON"),
    ],
)
def test_what_cannot_be_said_is_an_error(request_: GenerationRequest, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        _body(request_)
