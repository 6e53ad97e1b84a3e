"""Prompt files name every bad line; prompts of a cell depend on nothing but (seed, segment, index)."""

import json
from pathlib import Path

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client.workload import Prompt, load_prompts, prompt_at

TRAFFIC = Path(__file__).parents[3] / "configs" / "traffic"
PROMPTS = tuple(Prompt(f"p{i}", f"prompt {i}") for i in range(24))


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_prompts_load_with_their_limits(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "a.jsonl",
        '{"id": "a", "prompt": "Gr\u00fc\u00dfe\u2028!"}',
        "",
        '{"id": "b", "prompt": "x", "max_tokens": 3}',
    )
    assert load_prompts(path) == (Prompt("a", "Gr\u00fc\u00dfe\u2028!"), Prompt("b", "x", 3))


def test_every_bad_line_is_named_at_once(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "bad.jsonl",
        '{"id": "a", "prompt": "x"}',
        "not json",
        '{"id": "a", "prompt": "again"}',
        '{"id": "c"}',
        '{"id": "d", "prompt": "x", "max_tokens": 0}',
        '{"id": "e", "prompt": "x", "colour": "red"}',
    )
    with pytest.raises(ConfigError) as caught:
        load_prompts(path)
    places = [(v.file.rsplit(":", 1)[1], v.key) for v in caught.value.violations]
    assert places == [("2", ""), ("3", "id"), ("4", "prompt"), ("5", "max_tokens"), ("6", "colour")]
    assert "was used on line 1" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_files_without_prompts_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"empty\.jsonl"):
        load_prompts(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_prompts(tmp_path / "none.jsonl")


def test_no_prompt_repeats_before_all_were_used() -> None:
    first = [prompt_at(PROMPTS, 0, "chat", index) for index in range(24)]
    second = [prompt_at(PROMPTS, 0, "chat", index) for index in range(24, 48)]
    assert set(first) == set(second) == set(PROMPTS)
    assert first != second


def test_choice_depends_on_seed_and_segment_and_zero_is_a_seed() -> None:
    def order(seed: int, segment: str) -> list[str]:
        return [prompt_at(PROMPTS, seed, segment, index).prompt_id for index in range(24)]

    assert order(0, "chat") == order(0, "chat")
    assert order(0, "chat") != order(1, "chat")
    assert order(0, "chat") != order(0, "code_edit")


@pytest.mark.parametrize("name", ["chat", "code_edit", "summarisation"])
def test_checked_in_prompts(name: str) -> None:
    path = TRAFFIC / f"{name}.jsonl"
    prompts = load_prompts(path)
    assert len(prompts) == 24
    assert any(not prompt.text.isascii() for prompt in prompts)
    for line in path.read_text(encoding="utf-8").splitlines():
        assert set(json.loads(line)) == {"id", "prompt"}
