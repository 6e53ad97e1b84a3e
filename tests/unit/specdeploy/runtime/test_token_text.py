"""What tokens add to a text, by kind of tokenizer."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from helpers.tiny_checkpoint import make_tokenizer
from specdeploy.errors import SpecDeployError
from specdeploy.runtime.token_text import token_texts


def test_byte_level_pieces_are_the_bytes_of_the_text() -> None:
    tokenizer = make_tokenizer()
    texts = token_texts(tokenizer, tokenizer.get_vocab_size())
    for text in ("The river\n", "東京 é\x00\x7f\xad", "return sum(x)"):
        assert b"".join(texts.written[token] for token in tokenizer.encode(text).ids) == text.encode()
    assert {text for text in texts.written if len(text) == 1} == {bytes([byte]) for byte in range(256)}


def test_special_tokens_are_spelled_and_not_written() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken("</é> ", special=False, normalized=False)])
    texts = token_texts(tokenizer, tokenizer.get_vocab_size() + 2)
    added, special = tokenizer.token_to_id("</é> "), tokenizer.token_to_id("<|end|>")
    assert added is not None
    assert special is not None
    assert (texts.written[special], texts.spelled[special]) == (b"", b"<|end|>")
    assert texts.written[added] == texts.spelled[added] == "</é> ".encode()
    assert texts.written[-2:] == texts.spelled[-2:] == (b"", b"")


def test_ids_beyond_the_logits_are_left_out() -> None:
    tokenizer = make_tokenizer()
    assert len(token_texts(tokenizer, 100).written) == len(token_texts(tokenizer, 100).spelled) == 100


def test_sentencepiece_pieces() -> None:
    vocabulary = {"<unk>": 0, "▁the": 1, "<0x0A>": 2, "é": 3, "▁": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert token_texts(tokenizer, 5).written[1:] == (b" the", b"\n", "é".encode(), b" ")


def test_pieces_of_another_kind_are_refused() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "##s": 1}))
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(SpecDeployError, match="decoder: WordPiece is neither byte-level nor"):
        token_texts(tokenizer, 2)
