"""Prompt files name every bad line; prompts of a cell depend on nothing but (seed, segment, index)."""

import json
from pathlib import Path

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client.workloads.prompt_file import Prompt, group_by_segment, load_prompts
from specdeploy_client.workloads.sessions import Turn

TRAFFIC = Path(__file__).parents[4] / "configs" / "traffic"
PROMPTS = tuple(Prompt(f"p{i}", f"prompt {i}") for i in range(24))


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _violations(path: Path, *known: str) -> list[tuple[str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        load_prompts(path, known or None)
    return [(v.file.removeprefix(str(path)).removeprefix(":"), v.key, v.reason) for v in caught.value.violations]


def test_prompts_load_with_their_limits(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "a.jsonl",
        '\ufeff{"id": "a", "prompt": "Gr\u00fc\u00dfe\u2028!"}',
        "",
        '{"id": "b", "prompt": "x", "max_tokens": 3, "segment": "chat"}',
    )
    assert load_prompts(path) == (Prompt("a", "Gr\u00fc\u00dfe\u2028!"), Prompt("b", "x", 3, "chat"))


@pytest.mark.parametrize("names", [("type", "guide"), ("guided_decoding_guide_type", "guided_decoding_guide")])
def test_constraints_are_read_under_both_names(tmp_path: Path, names: tuple[str, str]) -> None:
    schema = {"type": "object", "title": "Gr\u00fc\u00dfe"}
    constraints = [
        {names[0]: "json_schema", names[1]: schema},
        {names[0]: "json_schema", names[1]: '{"type": "array"}'},
        {names[0]: "regex", names[1]: "a+"},
        {names[0]: "json"},
    ]
    lines = [json.dumps({"id": str(i), "prompt": "x", "constraint": c}) for i, c in enumerate(constraints)]
    found = [(p.guide_type, p.guide) for p in load_prompts(_write(tmp_path / "c.jsonl", *lines))]
    assert found[0] == ("json_schema", json.dumps(schema, ensure_ascii=False))
    assert found[1:] == [("json_schema", '{"type": "array"}'), ("regex", "a+"), ("json", None)]


def test_turns_inherit_what_their_line_says(tmp_path: Path) -> None:
    turn = {"prompt": "two", "max_tokens": 5, "answer": "2", "think_ms": 1.5, "constraint": {"type": "json"}}
    line = {"id": "t", "turns": ["one", turn], "max_tokens": 9, "constraint": {"type": "regex", "guide": "a"}}
    (prompt,) = load_prompts(_write(tmp_path / "t.jsonl", json.dumps(line)))
    assert prompt.text == "one"
    assert prompt.session.is_conversation
    assert prompt.session.turns == (
        Turn("one", 9, guide_type="regex", guide="a"),
        Turn("two", 5, answer="2", think_ns=1_500_000, guide_type="json"),
    )


def test_every_bad_line_is_named_at_once(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "bad.jsonl",
        '{"id": "a", "prompt": "x"}',
        "not json",
        '{"id": "a", "prompt": "again"}',
        '{"id": "c"}',
        '{"id": "d", "prompt": "x", "max_tokens": 0}',
        '{"id": "e", "prompt": "x", "colour": "red"}',
        '{"id": "f", "prompt": "x", "turns": ["y"]}',
        '{"id": "g", "turns": []}',
        '{"id": "h", "turns": ["x", {"prompt": ""}, 3]}',
        '{"id": "i", "turns": [{"prompt": "x", "think_ms": -1}]}',
        '{"id": "j", "prompt": "x", "segment": "poems"}',
        '{"id": "k", "prompt": "x", "constraint": {"type": "xml"}}',
        '{"id": "l", "prompt": "x", "max_tokens": NaN}',
        '{"id": "m", "prompt": "\\ud83d"}',
        "[]",
    )
    found = _violations(path, "chat", "code")
    assert [(place, key) for place, key, _ in found] == [
        ("2", ""),
        ("3", "id"),
        ("4", "prompt"),
        ("5", "max_tokens"),
        ("6", "colour"),
        ("7", "prompt"),
        ("8", "turns"),
        ("9", "turns.1.prompt"),
        ("9", "turns.2"),
        ("10", "turns.0.think_ms"),
        ("11", "segment"),
        ("12", "constraint"),
        ("13", ""),
        ("14", ""),
        ("15", ""),
    ]
    reasons = [reason for _, _, reason in found]
    assert "was used on line 1" in reasons[1]
    assert reasons[10] == "no segment is called 'poems'"
    assert "surrogate" in reasons[13]
    with pytest.raises(ConfigError, match="Known segments: chat, code"):
        load_prompts(path, ("chat", "code"))


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ('{"type": "xml", "guide": "a"}', "known are json, json_schema"),
        ('{"type": "regex"}', "needs a guide"),
        ('{"type": "json", "guide": "{}"}', "takes no guide"),
        ('{"type": "regex", "guide": {"a": 1}}', "is text"),
        ('{"type": "json_schema", "guide": "{"}', "not JSON"),
        ('{"type": "json_schema", "guide": "3"}', "is an object"),
        ('{"guide": "a"}', "required"),
    ],
)
def test_constraints_that_no_server_takes_are_refused(tmp_path: Path, constraint: str, reason: str) -> None:
    path = _write(tmp_path / "c.jsonl", f'{{"id": "a", "prompt": "x", "constraint": {constraint}}}')
    ((place, key, found),) = _violations(path)
    assert (place, key.split(".")[0]) == ("1", "constraint")
    assert reason in found


def test_a_file_of_another_format_is_not_listed_to_its_end(tmp_path: Path) -> None:
    found = _violations(_write(tmp_path / "prose.jsonl", *["no json"] * 500))
    assert len(found) == 21
    assert found[-1] == ("", "", "480 more like these")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_files_without_prompts_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"empty\.jsonl"):
        load_prompts(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_prompts(tmp_path / "none.jsonl")


def test_lines_fall_into_their_segments(tmp_path: Path) -> None:
    prompts = (Prompt("a", "x", segment="chat"), Prompt("b", "y", segment="code"), Prompt("c", "z", segment="chat"))
    grouped = group_by_segment(prompts, tmp_path, default=None)
    assert {name: [s.session_id for s in sessions] for name, sessions in grouped.items()} == {
        "chat": ["a", "c"],
        "code": ["b"],
    }
    assert list(group_by_segment(PROMPTS, tmp_path, "chat")) == ["chat"]
    with pytest.raises(ConfigError, match="--segments"):
        group_by_segment(PROMPTS, tmp_path, None)
    with pytest.raises(ConfigError, match="24 of 25 prompts name none"):
        group_by_segment((*PROMPTS, prompts[0]), tmp_path, "chat")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ({"id": "a", "prompt": "x", "max_tokens": 10**30}, "max_tokens"),
        ({"id": "a", "turns": ["x", {"prompt": "y", "max_tokens": (1 << 24) + 1}]}, "turns.1.max_tokens"),
        ({"id": "a", "turns": ["x", {"prompt": "y", "think_ms": 1e305}]}, "turns.1.think_ms"),
        ({"id": "a", "turns": ["x", {"prompt": "y", "think_ms": 5e12}]}, "turns.1.think_ms"),
    ],
)
def test_numbers_beyond_all_reason_are_named(tmp_path: Path, line: dict[str, object], key: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(line))
    with pytest.raises(ConfigError, match="less than or equal to") as caught:
        load_prompts(path)
    assert [violation.key for violation in caught.value.violations] == [key]


@pytest.mark.parametrize("name", ["chat", "code_edit", "summarisation"])
def test_checked_in_prompts(name: str) -> None:
    path = TRAFFIC / f"{name}.jsonl"
    prompts = load_prompts(path)
    assert len(prompts) == 24
    assert any(not prompt.text.isascii() for prompt in prompts)
    for line in path.read_text(encoding="utf-8").splitlines():
        assert set(json.loads(line)) == {"id", "prompt"}
