"""Counting a corpus: text and token ids, and rows that are neither."""

import json
from pathlib import Path

import pytest

from helpers.fabricated_checkpoints import byte_level_tokenizer
from specdeploy.checkpoint.token_counts import count_tokens
from specdeploy.errors import CheckpointError


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(byte_level_tokenizer(320)))
    return path


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_texts_of_all_keys_are_counted(tokenizer: Path, tmp_path: Path) -> None:
    corpus = write(
        tmp_path / "c.jsonl", '{"id": 1, "prompt": "ab"}', "", '{"text": "b", "output": "bb", "other": "zz"}'
    )

    counted = count_tokens([corpus], tokenizer, 320)

    assert (counted.num_rows, counted.num_tokens) == (2, 5)
    assert (counted.counts[ord("a")], counted.counts[ord("b")]) == (1, 4)


def test_ids_win_over_the_text_they_came_from(tokenizer: Path, tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", '{"text": "aaa", "output_ids": [7, 7], "input_ids": [8]}')
    counted = count_tokens([corpus], tokenizer, 320)
    assert counted.counts.nonzero()[0].tolist() == [7, 8]


def test_several_files_add_up_and_share_a_digest(tokenizer: Path, tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", '{"text": "a"}'), write(tmp_path / "2", '{"text": "a"}')
    both = count_tokens([one, two], tokenizer, 320)
    assert both.counts[ord("a")] == 2
    assert both.sha256 != count_tokens([one], tokenizer, 320).sha256


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: is not JSON"),
        ("[1]", "line 2: is not an object"),
        (r'{"text": "a\ud800"}', "line 2: holds half of a surrogate pair"),
        ('{"question": "x"}', "line 2: has none of the keys token_ids"),
        ('{"token_ids": [1, "2"]}', "line 2: token_ids: must be a list of whole numbers"),
        ('{"token_ids": [true]}', "line 2: token_ids: must be a list of whole numbers"),
        ('{"token_ids": [320]}', "line 2: token id 320 is not in a tokenizer of 320 ids"),
        ('{"token_ids": [-1]}', "line 2: token id -1 is not in a tokenizer of 320 ids"),
    ],
)
def test_rows_that_cannot_be_counted(line: str, words: str, tokenizer: Path, tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", '{"text": "a"}', line)
    with pytest.raises(CheckpointError, match=words):
        count_tokens([corpus], tokenizer, 320)


def test_files_that_hold_nothing(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no tokens"):
        count_tokens([write(tmp_path / "c.jsonl", "")], tokenizer, 320)
    with pytest.raises(CheckpointError, match=r"gone.jsonl: cannot be read"):
        count_tokens([tmp_path / "gone.jsonl"], tokenizer, 320)
    with pytest.raises(CheckpointError, match=r"cannot be read \(File name too long"):
        count_tokens([tmp_path / ("x" * 300)], tokenizer, 320)
    with pytest.raises(CheckpointError, match="cannot be read as a tokenizer"):
        count_tokens([tmp_path / "c.jsonl"], tmp_path / "c.jsonl", 320)
