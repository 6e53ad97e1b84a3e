"""ShareGPT conversations with their recorded answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client.workloads.recorded import RecordedTraffic
from specdeploy_client.workloads.sessions import Session, Turn
from specdeploy_client.workloads.sharegpt import load_sharegpt


def _load(folder: Path, text: str) -> RecordedTraffic:
    path = folder / "s.json"
    path.write_text(text)
    return load_sharegpt(path)


def _entry(name: str, *said: tuple[str, str]) -> dict[str, Any]:
    return {"id": name, "conversations": [{"from": speaker, "value": text} for speaker, text in said]}


ENTRIES = [
    _entry("a", ("human", "one"), ("gpt", "1"), ("human", "two")),
    _entry("b", ("gpt", "hello"), ("human", "x")),
    _entry("a", ("user", "three"), ("chatgpt", "3"), ("gpt", "again")),
    {"conversations": [{"role": "user", "content": "four"}]},
    _entry("c"),
    _entry("d", ("human", " ")),
]


@pytest.mark.parametrize("separator", ["list", "lines"])
def test_conversations(tmp_path: Path, separator: str) -> None:
    text = json.dumps(ENTRIES) if separator == "list" else "\n".join(map(json.dumps, ENTRIES))
    traffic = _load(tmp_path, text)
    assert traffic.sessions == (
        Session("a", (Turn("one", answer="1"), Turn("two")), True),
        Session("a+", (Turn("three", answer="3"),), True),
        Session("s-2", (Turn("four"),), True),
    )
    assert traffic.notes == ("3 conversations left out in which no user asks first",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"id": "a"}], r"s\.json \[0\]: conversations: is no list"),
        ([_entry("a", ("human", "x")), {"conversations": [{"from": 3}]}], r"\[1\]: conversations\[0\]: is no message"),
        ([3], r"\[0\]: conversations"),
        ([], "holds no conversation"),
        ([_entry("b", ("gpt", "hello"))], "holds no conversation"),
    ],
)
def test_entries_of_another_shape(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _load(tmp_path, json.dumps(content))


def test_broken_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not JSON"):
        _load(tmp_path, "[{")
