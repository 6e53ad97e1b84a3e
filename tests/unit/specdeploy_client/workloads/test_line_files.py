"""Numbers and JSON are read strictly."""

import math
from pathlib import Path

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client.workloads.line_files import (
    MAX_TOKENS,
    Findings,
    duration_ns,
    finite_number,
    json_objects,
    parse_json,
    read_text,
    short_digest,
    token_count,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(7, 7), (7.0, 7), ("7", 7), (" 7 ", 7), (0, None), (-1, None), (7.5, None), ("x", None), (None, None),
     (True, None), (math.nan, None), (math.inf, None), (MAX_TOKENS, MAX_TOKENS), (MAX_TOKENS + 1, None), ([], None),
     (10**400, None)],
)  # fmt: skip
def test_token_counts(value: object, expected: int | None) -> None:
    assert token_count(value) == expected


def test_durations() -> None:
    assert duration_ns("1.5", 1_000_000) == 1_500_000
    assert duration_ns(0, 1) == 0
    assert [duration_ns(value, 1_000_000_000) for value in (-1, "nan", 1e300, None)] == [None] * 4
    assert finite_number("-3.5") == -3.5


@pytest.mark.parametrize("text", ["NaN", '{"a": Infinity}', "{", '"\\ud83d"', '{"\\uDE00": 1}', "[" * 100_000])
def test_json_that_no_server_could_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"no JSON number|Expecting|surrogate|nested too deeply"):
        parse_json(text)


def test_json_with_whole_surrogate_pairs() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    findings = Findings(tmp_path)
    text = '{"a": "\u2028"}\r\n\n3\nnull\n"x"\n{"b": 1}'
    assert list(json_objects(text, findings)) == [(1, {"a": "\u2028"}), (6, {"b": 1})]
    assert [violation.reason for violation in findings.violations] == [
        "is a number, not an object",
        "is null, not an object",
        "is text, not an object",
    ]


def test_unreadable_files_and_digests(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none: cannot be read: No such file.*Look again"):
        read_text(tmp_path / "none", "Look again")
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfx")
    assert read_text(tmp_path / "a", "") == "x"
    (tmp_path / "b").write_bytes(b"abc")
    assert short_digest(tmp_path / "b") == "ba7816bf8f01"
