"""The tokenizer that serves is not the one that trained."""

from pathlib import Path

from helpers.tiny_checkpoint import make_tokenizer
from specdeploy.serving.tokenizer import count_token_ids, load_tokenizer


def test_truncation_and_padding_left_by_training_are_switched_off(tmp_path: Path) -> None:
    trained = make_tokenizer()
    trained.enable_truncation(max_length=4)
    trained.enable_padding(length=9)
    trained.save(str(tmp_path / "tokenizer.json"))
    text = "The river rose in the night"
    ids = load_tokenizer(tmp_path).encode(text).ids
    assert ids == make_tokenizer().encode(text).ids
    assert len(trained.encode(text).ids) != len(ids)


def test_ids_are_counted_by_the_highest(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    assert count_token_ids(tokenizer) == max(tokenizer.get_vocab().values()) + 1
