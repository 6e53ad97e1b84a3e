"""JSON of strangers: what is refused, with which words, and that typed reads never let a wrong value through."""

import json
import os
from pathlib import Path

import pytest

from specdeploy.checkpoint.json_text import ObjectReader, end_of_array, load_json_object, parse_json_object
from specdeploy.errors import CheckpointError


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "cannot be read as JSON"),
        (b"{", "cannot be read as JSON"),
        (b"[1]", "holds a list"),
        (b'{"a": 1, "a": 2}', "key 'a' occurs twice"),
        (b'{"a": {"b": 1, "b": 2}}', "key 'b' occurs twice"),
        (b'{"a": "\xff"}', "cannot be read as JSON"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
        (b'{"a": [' + b"1," * 400_001 + b"1]}", "400003 items"),
    ],
)
def test_what_is_no_object_is_refused_by_name(raw: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        parse_json_object(raw, "config.json")

    assert str(caught.value).startswith("config.json: ")
    assert "Fetch" in str(caught.value)


def test_escaped_pairs_are_text() -> None:
    assert parse_json_object(b'{"a": "\\ud83d\\ude00"}', "x") == {"a": "\N{GRINNING FACE}"}


@pytest.mark.parametrize("kind", ["missing", "folder", "loop", "pipe", "too large"])
def test_what_is_no_file_is_refused_without_hanging(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "too large":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    words = {"loop": "leads to itself", "too large": "more than the", "missing": "missing"}.get(
        kind, "not a regular file"
    )

    with pytest.raises(CheckpointError, match=words):
        load_json_object(path)


def test_wrong_values_are_collected_with_their_keys() -> None:
    content = parse_json_object(
        b'{"layers": NaN, "hidden": "4096", "heads": true, "factor": Infinity, "tied": 1, "ids": [1, -2], "rope": []}',
        "config.json",
    )
    reader = ObjectReader(content, "config.json")

    assert reader.size("layers") is None
    assert reader.size("hidden") is None
    assert reader.size("heads") is None
    assert reader.number("factor") is None
    assert reader.flag("tied") is None
    assert reader.sizes("ids") is None
    assert reader.nested("rope").size("factor") is None
    with pytest.raises(CheckpointError) as caught:
        reader.check()

    lines = str(caught.value).splitlines()
    keys = ("layers", "hidden", "heads", "factor", "tied", "ids", "rope")
    assert [line.split(": ")[1] for line in lines] == list(keys)
    assert "must be a positive whole number, found '4096'. Fetch the checkpoint again" in lines[1]


def test_absent_values_are_listed_and_not_guessed() -> None:
    reader = ObjectReader({"n_embd": 8.0, "rope": {"factor": 2}}, "config.json")

    assert reader.wanted_size("hidden_size", "n_embd") == 8
    assert reader.wanted_size("num_hidden_layers", "n_layer") is None
    assert reader.nested("rope").number("factor") == 2.0
    assert reader.not_found == ["num_hidden_layers or n_layer"]
    assert reader.problems == []


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 22])
def test_end_of_array_is_not_fooled_by_strings(chunk: int) -> None:
    array = json.dumps([['"]]', "\\"], ['\\"', "[["], [], ["]"]])
    raw = f'{array}, "tail": ["]"]'.encode()

    assert end_of_array(raw, 0, chunk=chunk) == len(array)
    assert end_of_array(raw[: len(array) - 1], 0, chunk=chunk) is None


def test_sizes_with_a_limit_of_their_own() -> None:
    reader = ObjectReader({"layers": 10**12}, "config.json")

    assert reader.size("layers", maximum=10_000) is None
    reason = "must be a positive whole number and at most 10000, found 1000000000000"
    assert reader.problems == [f"config.json: layers: {reason}. Fetch the checkpoint again"]


@pytest.mark.parametrize(
    ("value", "ids", "num_problems"),
    [
        (3, (3,), 0),
        (-1, None, 0),
        ([2, -1], (2,), 0),
        ([], (), 0),
        ("x", None, 1),
        (True, None, 1),
        ([-1, None], None, 1),
    ],
)
def test_token_ids_below_zero_say_that_there_is_none(
    value: object, ids: tuple[int, ...] | None, num_problems: int
) -> None:
    reader = ObjectReader({"pad_token_id": value}, "config.json")

    assert reader.token_ids("pad_token_id") == ids
    assert len(reader.problems) == num_problems
