"""A draft must give every id the token the target gives it."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models

from specdeploy.checkpoint.tokenizer import check_same_vocabulary, compare_vocabularies, load_vocabulary
from specdeploy.errors import CheckpointError


def test_equal_vocabularies_pass() -> None:
    check_same_vocabulary("target", {"a": 0, "b": 1}, "draft", {"b": 1, "a": 0})


def test_swapped_and_missing_ids_are_found_in_order() -> None:
    differences = compare_vocabularies({"a": 0, "b": 1, "c": 2}, {"b": 0, "a": 1, "d": 7})

    assert [(entry.token_id, entry.target, entry.draft) for entry in differences] == [
        (0, "a", "b"),
        (1, "b", "a"),
        (2, "c", None),
        (7, None, "d"),
    ]


def test_message_shows_the_first_ten() -> None:
    target = {f"t{index}": index for index in range(30)}
    draft = {f"d{index}": index for index in range(30)}

    with pytest.raises(CheckpointError) as caught:
        check_same_vocabulary("T", target, "D", draft)

    message = str(caught.value)
    assert "on 30 of 30 ids" in message
    assert "  9: target 't9', draft 'd9'" in message
    assert "'t10'" not in message
    assert "and 20 more" in message


def test_added_tokens_count(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}))
    tokenizer.add_special_tokens([AddedToken("<|end|>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    assert load_vocabulary(tmp_path / "tokenizer.json") == {"a": 0, "<|end|>": 1}
