"""Do two tokenizers give every id the same token? A draft's ids are handed to the target as they are.

Compared is what an id stands for in bytes, not how a file spells it: byte-level BPE writes a space as "Ġ",
SentencePiece as "▁", and a byte without a piece of its own as "<0x0A>".
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

from specdeploy.checkpoint.json_text import (
    FETCH_AGAIN,
    ObjectReader,
    end_of_array,
    is_present,
    load_json_object,
    parse_json_object,
    read_regular_file,
)
from specdeploy.errors import CheckpointError

MAX_SHOWN = 10
# The largest known tokenizer.json (262,144 tokens, 515,000 merges) takes 33 MB, and 800,000 items without its merges.
MAX_TOKENIZER_BYTES = 50 << 20
MAX_TOKENIZER_ITEMS = 1_000_000
MAX_SENTENCEPIECE_BYTES = 16 << 20
MAX_TOKEN_ID = 4_000_000
_WORD_START = "▁"
_MERGES = re.compile(rb'"merges"\s{0,99}:\s{0,99}\[')
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenMap:
    """What every id stands for. `pieces[id]` in bytes, None for an id without a token.

    `special_ids` are control tokens (end of sequence, chat roles), which stand for themselves and not for text.
    """

    file: Path
    pieces: tuple[bytes | None, ...]
    special_ids: frozenset[int]

    @property
    def length(self) -> int:
        """Highest token id + 1."""
        return len(self.pieces)


def load_token_map(folder: Path) -> TokenMap:
    """The map of `folder/tokenizer.json`, or else of `folder/tokenizer.model`. Raises `CheckpointError`."""
    tokenizer_json, sentencepiece_model = folder / "tokenizer.json", folder / "tokenizer.model"
    if tokenizer_json.exists() or tokenizer_json.is_symlink():
        return read_tokenizer_json(tokenizer_json)
    if sentencepiece_model.exists() or sentencepiece_model.is_symlink():
        return read_sentencepiece(sentencepiece_model)
    raise CheckpointError(f"{folder}: holds neither tokenizer.json nor tokenizer.model. {FETCH_AGAIN}")


def has_tokenizer(folder: Path) -> bool:
    """Whether there is a tokenizer file to read; heads usually have none."""
    return any(
        (folder / name).exists() or (folder / name).is_symlink() for name in ("tokenizer.json", "tokenizer.model")
    )


def differing_ids(target: TokenMap, draft: TokenMap) -> list[int]:
    """Ids below both lengths whose bytes differ, ascending. Ids that only one of them has are not among them."""
    common = min(target.length, draft.length)
    first, second = target.pieces[:common], draft.pieces[:common]
    if first == second:
        return []
    return list(compress(range(common), (ours != theirs for ours, theirs in zip(first, second, strict=True))))


def show_piece(piece: bytes | None) -> str | None:
    """A piece for people: its text where it is UTF-8, else its bytes; None where there is no token."""
    if piece is None:
        return None
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)


# --- tokenizer.json -------------------------------------------------------------------------------------------------


def read_tokenizer_json(path: Path) -> TokenMap:
    """The map of a `tokenizers` file: byte-level or SentencePiece-like BPE, Unigram, WordPiece or WordLevel."""
    raw = _without_merges(read_regular_file(path, max_bytes=MAX_TOKENIZER_BYTES))
    content = parse_json_object(raw, str(path), max_items=MAX_TOKENIZER_ITEMS)
    del raw
    model = content.get("model")
    if not isinstance(model, dict):
        raise CheckpointError(f"{path}: model: must be an object, found {type(model).__name__}. {FETCH_AGAIN}")
    pieces = _id_ordered(path, model.get("vocab"))
    model.clear()
    decode = _piece_decoder(content)
    ordered: list[bytes | None] = [None if piece is None else decode(piece) for piece in pieces]
    special_ids: set[int] = set()
    for token_id, text, is_special in _added_tokens(path, content.get("added_tokens")):
        ordered += [None] * (token_id + 1 - len(ordered))
        ordered[token_id] = text.encode("utf-8")
        if is_special:
            special_ids.add(token_id)
    return TokenMap(path, tuple(ordered), frozenset(special_ids))


def _without_merges(raw: bytes) -> bytes:
    """The file without what `merges` lists: most of its objects, and nothing that an id stands for."""
    for match in _MERGES.finditer(raw):
        end = end_of_array(raw, match.end() - 1)
        if end is not None and end - match.end() > 1000:
            return b"".join((raw[: match.end()], b"]", raw[end:]))
    return raw


def _id_ordered(path: Path, vocab: Any) -> list[str | None]:
    """Pieces of `model.vocab` by id: an object piece -> id, or for Unigram a list of [piece, score]."""
    if isinstance(vocab, list):
        if all(isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) for entry in vocab):
            return [entry[0] for entry in vocab]
        raise CheckpointError(f"{path}: model.vocab: every entry must be [piece, score]. {FETCH_AGAIN}")
    if not isinstance(vocab, dict):
        kind = type(vocab).__name__
        raise CheckpointError(f"{path}: model.vocab: must be an object or a list, found {kind}. {FETCH_AGAIN}")
    if list(vocab.values()) == list(range(len(vocab))):
        return list(vocab)
    for piece, token_id in vocab.items():
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKEN_ID:
            shown = f"{piece[:40]!r} has id {str(token_id)[:40]}"
            raise CheckpointError(
                f"{path}: model.vocab: {shown}, not a whole number below {MAX_TOKEN_ID}. {FETCH_AGAIN}"
            )
    ordered: list[str | None] = [None] * (max(vocab.values()) + 1)
    for piece, token_id in vocab.items():
        if ordered[token_id] is not None:
            both = f"{ordered[token_id]!r} and {piece!r}"
            raise CheckpointError(f"{path}: model.vocab: id {token_id} stands for both {both}. {FETCH_AGAIN}")
        ordered[token_id] = piece
    return ordered


def _added_tokens(path: Path, added: Any) -> Iterable[tuple[int, str, bool]]:
    """(id, text, is special) of every added token."""
    for token in added if isinstance(added, list) else [] if added is None else [added]:
        token_id, text = (token.get("id"), token.get("content")) if isinstance(token, dict) else (None, None)
        if type(token_id) is not int or not 0 <= token_id < MAX_TOKEN_ID or not isinstance(text, str):
            raise CheckpointError(
                f"{path}: added_tokens: {str(token)[:60]} lacks a usable id and content. {FETCH_AGAIN}"
            )
        yield token_id, text, bool(token.get("special"))


class _PieceDecoder:
    """Piece -> bytes, by the conventions that a tokenizer.json declares."""

    def __init__(self, *, byte_level: bool, byte_fallback: bool, word_start: bool) -> None:
        self._byte_level, self._byte_fallback, self._word_start = byte_level, byte_fallback, word_start
        self._table = _byte_level_table() if byte_level else {}

    def __call__(self, piece: str) -> bytes:
        if self._byte_level:
            try:
                return piece.translate(self._table).encode("latin-1")
            except UnicodeEncodeError:  # not in the byte alphabet: an added token that the vocabulary lists too
                return piece.encode("utf-8")
        if self._byte_fallback and len(piece) == 6 and (match := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return (piece.replace(_WORD_START, " ") if self._word_start else piece).encode("utf-8")


def _piece_decoder(content: dict[str, Any]) -> _PieceDecoder:
    kinds: dict[str, list[dict[str, Any]]] = {}
    for key in ("normalizer", "pre_tokenizer", "decoder"):
        for part in _parts(content.get(key)):
            kinds.setdefault(str(part.get("type")), []).append(part)
    return _PieceDecoder(
        byte_level="ByteLevel" in kinds,
        byte_fallback="ByteFallback" in kinds,
        word_start="Metaspace" in kinds or any(_replaces_word_start(part) for part in kinds.get("Replace", [])),
    )


def _parts(component: Any, depth: int = 8) -> Iterable[dict[str, Any]]:
    """A component and, for a sequence, its parts."""
    if not isinstance(component, dict) or depth == 0:
        return
    yield component
    for key in ("pretokenizers", "decoders", "normalizers"):
        nested = component.get(key)
        for part in nested if isinstance(nested, list) else []:
            yield from _parts(part, depth - 1)


def _replaces_word_start(part: dict[str, Any]) -> bool:
    pattern = part.get("pattern")
    return _WORD_START in (part.get("content"), pattern.get("String") if isinstance(pattern, dict) else None)


@cache
def _byte_level_table() -> dict[int, int]:
    """Characters of the byte-level alphabet -> the byte each stands for.

    GPT-2's table: printable bytes stand for themselves, the others for the characters from 256 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}
    # Characters below 256 that are in no such text must not pass for bytes.
    return table | dict.fromkeys(others, 0x10FFFF)


# --- tokenizer.model ------------------------------------------------------------------------------------------------


def read_sentencepiece(path: Path) -> TokenMap:
    """The map of a SentencePiece model and of the tokens that its `tokenizer_config.json` adds."""
    try:
        import sentencepiece
    except ImportError:
        raise CheckpointError(
            f"{path}: needs the package sentencepiece. Run: python -m pip install sentencepiece"
        ) from None
    raw = read_regular_file(path, max_bytes=MAX_SENTENCEPIECE_BYTES)
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(raw)
        num_pieces = processor.GetPieceSize()
    except Exception as error:  # the library raises RuntimeError and friends
        raise CheckpointError(f"{path}: not a SentencePiece model ({error}). {FETCH_AGAIN}") from error
    if not 0 < num_pieces < MAX_TOKEN_ID:
        raise CheckpointError(f"{path}: not a SentencePiece model of a language model ({num_pieces} pieces)")
    pieces: list[bytes | None] = [_sentencepiece_bytes(processor, token_id) for token_id in range(num_pieces)]
    special_ids = {token_id for token_id in range(num_pieces) if processor.IsControl(token_id)}
    for token_id, text, is_special in _added_beside(path.parent):
        pieces += [None] * (token_id + 1 - len(pieces))
        pieces[token_id] = text.encode("utf-8")
        if is_special:
            special_ids.add(token_id)
    return TokenMap(path, tuple(pieces), frozenset(special_ids))


def _sentencepiece_bytes(processor: Any, token_id: int) -> bytes:
    piece: str = processor.IdToPiece(token_id)
    if processor.IsByte(token_id):
        return bytes([int(piece[3:5], 16)])
    if processor.IsControl(token_id) or processor.IsUnknown(token_id):
        return piece.encode("utf-8")
    return piece.replace(_WORD_START, " ").encode("utf-8")


def _added_beside(folder: Path) -> Iterable[tuple[int, str, bool]]:
    """Tokens of added_tokens.json and, which wins, of tokenizer_config.json's added_tokens_decoder."""
    added: dict[int, tuple[int, str, bool]] = {}
    path = folder / "added_tokens.json"
    if is_present(path):
        entries = [{"id": token_id, "content": text} for text, token_id in load_json_object(path).items()]
        added |= {entry[0]: entry for entry in _added_tokens(path, entries)}
    path = folder / "tokenizer_config.json"
    if is_present(path):
        decoder = ObjectReader(load_json_object(path), str(path)).nested("added_tokens_decoder").content
        tokens = [{**token, "id": _as_id(key)} for key, token in decoder.items() if isinstance(token, dict)]
        added |= {entry[0]: entry for entry in _added_tokens(path, tokens)}
    return added.values()


def _as_id(key: str) -> int | None:
    return int(key) if key.isascii() and key.isdigit() and len(key) < 10 else None
