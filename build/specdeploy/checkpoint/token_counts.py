"""How often each token occurs in a corpus of prompts and outputs (JSONL), by the checkpoint's own tokenizer."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdeploy.errors import CheckpointError

# Of one row either its token ids count or its texts: a record holds the same output in both forms.
TOKEN_ID_KEYS = ("token_ids", "input_ids", "output_ids")
TEXT_KEYS = ("text", "prompt", "output", "response", "completion")
_BATCH_ROWS = 512


@dataclass(frozen=True, slots=True)
class CorpusCounts:
    """`counts` [length of the tokenizer]; `sha256` of the corpus files' bytes, in the order given."""

    counts: NDArray[np.int64]
    num_rows: int
    sha256: str

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole corpus."""
        return int(self.counts.sum())


def count_tokens(corpus: Sequence[Path], tokenizer_json: Path, length: int) -> CorpusCounts:
    """Count every token of the JSONL files in `corpus`.

    A row is an object with token ids (`token_ids`, `input_ids`, `output_ids`) or with texts (`text`, `prompt`,
    `output`, `response`, `completion`). `length` is the tokenizer's highest id + 1. Raises `CheckpointError` with the
    file and line of a row that is none.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_json))
    except Exception as error:  # the library raises bare `Exception`
        raise CheckpointError(f"{tokenizer_json}: cannot be read as a tokenizer ({error})") from error
    counts = np.zeros(length, dtype=np.int64)
    digest = hashlib.sha256()
    num_rows = 0
    texts: list[str] = []
    for path in corpus:
        for place, row in _rows(path, digest):
            num_rows += 1
            ids, found = _contents(row, place)
            _add(counts, ids, place)
            texts += found
            if len(texts) >= _BATCH_ROWS:
                _add_texts(counts, texts, tokenizer, str(path))
                texts = []
        _add_texts(counts, texts, tokenizer, str(path))
        texts = []
    if not counts.any():
        raise CheckpointError(f"{', '.join(map(str, corpus))}: holds no tokens. Give prompts and outputs as JSONL")
    return CorpusCounts(counts, num_rows, digest.hexdigest())


def _rows(path: Path, digest: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if not line.strip():
                    continue
                place = f"{path}: line {number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise CheckpointError(f"{place}: is not JSON ({error}). Write one object per line") from error
                if not isinstance(row, dict):
                    raise CheckpointError(f"{place}: is not an object. Write one object per line")
                yield place, row
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{path}: cannot be read ({reason}). Give a JSONL file") from error


def _contents(row: dict[str, Any], place: str) -> tuple[list[int], list[str]]:
    """(token ids, texts) of one row; one of the two is empty."""
    ids: list[int] = []
    for key in TOKEN_ID_KEYS:
        value = row.get(key, [])
        if not isinstance(value, list) or not all(type(token_id) is int for token_id in value):
            raise CheckpointError(f"{place}: {key}: must be a list of whole numbers. Correct the row")
        ids += value
    if ids:
        return ids, []
    texts = [row[key] for key in TEXT_KEYS if isinstance(row.get(key), str)]
    if not texts and not any(key in row for key in TOKEN_ID_KEYS):
        keys = ", ".join((*TOKEN_ID_KEYS, *TEXT_KEYS))
        raise CheckpointError(f"{place}: has none of the keys {keys}. Name the text or the token ids by one of them")
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise CheckpointError(
                f"{place}: holds half of a surrogate pair, which is no text. Correct the row"
            ) from None
    return [], texts


def _add(counts: NDArray[np.int64], ids: Sequence[int], place: str) -> None:
    if not ids:
        return
    if min(ids) < 0 or max(ids) >= len(counts):
        wrong = next(token_id for token_id in ids if not 0 <= token_id < len(counts))
        reason = f"token id {wrong} is not in a tokenizer of {len(counts)} ids"
        raise CheckpointError(f"{place}: {reason}. Use a corpus that this tokenizer made")
    counts += np.bincount(np.asarray(ids, dtype=np.int64), minlength=len(counts))


def _add_texts(counts: NDArray[np.int64], texts: Sequence[str], tokenizer: Any, place: str) -> None:
    for encoding in tokenizer.encode_batch(texts, add_special_tokens=False) if texts else ():
        _add(counts, encoding.ids, place)
