"""What every token id of a tokenizer adds to the text, in bytes."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Tokenizer

from specdeploy.errors import SpecDeployError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "▁"


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """Bytes by token id. `written` is what a reader of the output sees: nothing of a special token, nor of an id that
    no token has. `spelled` has the special tokens too, as the tokenizer spells them."""

    written: tuple[bytes, ...]
    spelled: tuple[bytes, ...]


def token_texts(tokenizer: Tokenizer, num_token_ids: int) -> TokenTexts:
    """Of the ids below `num_token_ids`. Raises SpecDeployError for a tokenizer whose pieces are no parts of a text."""
    decode = _piece_decoder(tokenizer)
    spelled = [b""] * num_token_ids
    for piece, token in tokenizer.get_vocab(with_added_tokens=False).items():
        if token < num_token_ids:
            spelled[token] = decode(piece)
    written = list(spelled)
    for token, added in tokenizer.get_added_tokens_decoder().items():
        if token < num_token_ids:
            spelled[token] = added.content.encode()  # added tokens are kept as they are, whatever the decoder
            written[token] = b"" if added.special else spelled[token]
    return TokenTexts(tuple(written), tuple(spelled))


class _ByteLevel:
    """Byte-level BPE writes every byte as one printable character: itself where it is one, else from U+0100 on."""

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in set(printable)]
        self._byte_of = {chr(byte): byte for byte in printable}
        self._byte_of |= {chr(0x100 + index): byte for index, byte in enumerate(others)}

    def __call__(self, piece: str) -> bytes:
        if all(character in self._byte_of for character in piece):
            return bytes(self._byte_of[character] for character in piece)
        return piece.encode()


def _sentencepiece(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(_WORD_START, " ").encode()


def _piece_decoder(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """By the decoder that tokenizer.json names: it is what makes text of the ids."""
    decoder = json.loads(tokenizer.to_str())["decoder"] or {}
    kinds = {step["type"] for step in (decoder, *decoder.get("decoders", ())) if "type" in step}
    if "ByteLevel" in kinds:
        return _ByteLevel()
    if kinds & {"ByteFallback", "Metaspace"}:
        return _sentencepiece
    raise SpecDeployError(
        f"tokenizer.json: decoder: {decoder.get('type')} is neither byte-level nor of SentencePiece's kind, so what a "
        "token adds to the text is not known"
    )
