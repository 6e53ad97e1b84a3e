"""A smaller lm_head for a draft: only the tokens that traffic uses keep a row (FR-Spec, arXiv 2502.14856; VocabTrim).

Lossless by construction: the target still verifies every token over its whole vocabulary, and the draft's embedding
stays whole, so it reads any text. A token without a row is merely never proposed.
"""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdeploy.checkpoint.info import CheckpointFiles, describe_checkpoint, read_checkpoint_files
from specdeploy.checkpoint.safetensors_header import WEIGHT_INDEX, TensorEntry, read_tensor
from specdeploy.checkpoint.safetensors_writer import CopiedTensor, NewTensor, write_safetensors
from specdeploy.checkpoint.token_counts import count_tokens
from specdeploy.checkpoint.tokenizer import TokenMap
from specdeploy.checkpoint.vocab_maps import VocabMaps, check_vocab_maps, maps_of_kept_ids, target_ids_of
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind
from specdeploy.contract import ContractModel, Lane
from specdeploy.errors import CheckpointError

REPORT_NAME = "vocab_trim.json"
LM_HEAD = "lm_head.weight"
EMBEDDING = "embed_tokens.weight"
_PLAIN_DTYPES = ("F32", "F16", "BF16")
_MASK_DTYPES = ("BOOL", "U8", "I8", "I16", "I32", "I64")
_MAX_VOCAB_SIZE = 1 << 24  # no model has more; a larger number is a damaged config, not memory to ask for

# Which lane reads a reduced vocabulary of which kind of draft.
_READS_TRIMMED = {
    CheckpointKind.EAGLE3: (Lane.TRTLLM_LLMAPI, Lane.TORCH),
    CheckpointKind.CAUSAL_LM: (Lane.TORCH,),
}


class TrimReport(ContractModel):
    """What was kept. `coverage` = share of the corpus' tokens that the trimmed draft can still propose.

    `num_frequent` tokens were asked for; `num_kept` rows are those and the special tokens, of `num_rows` before.
    """

    source: str
    output: str
    num_rows: int
    num_frequent: int
    num_kept: int
    coverage: float
    num_corpus_tokens: int
    corpus_sha256: str


@dataclass(frozen=True, slots=True)
class _Draft:
    """The draft as read, the tensor that the new head's rows come from, and the target id of each of them [R]."""

    files: CheckpointFiles
    info: CheckpointInfo
    head: TensorEntry
    row_ids: NDArray[np.int64]
    vocab_size: int


def choose_kept_ids(
    counts: NDArray[np.int64], candidates: NDArray[np.int64], num_frequent: int, always: Collection[int]
) -> NDArray[np.int64]:
    """Ids, rising: the `num_frequent` of `candidates` with the highest `counts` [V], and `always` where a candidate.

    Equally frequent ids are taken lowest first, so that the same corpus gives the same head.
    """
    order = np.lexsort((candidates, -counts[candidates]))
    frequent = candidates[order[:num_frequent]]
    kept = np.union1d(frequent, np.intersect1d(candidates, np.asarray(sorted(always), dtype=np.int64)))
    return kept.astype(np.int64)


def trim_vocabulary(
    draft: Path,
    corpus: Sequence[Path],
    num_frequent: int,
    output: Path,
    *,
    lane: Lane | None = None,
    target: Path | None = None,
) -> TrimReport:
    """Write `output`: `draft` with an lm_head of the `num_frequent` most frequent and all special tokens.

    `target` lends its tokenizer, and to a head without one its lm_head. `lane` is checked to read such a draft.
    Raises `CheckpointError` when it does not, or when anything about the draft or the corpus is wrong; nothing is
    left behind then.
    """
    if output.exists():
        raise CheckpointError(f"{output}: exists. Name a folder that does not exist yet")
    target_files = None if target is None else read_checkpoint_files(target)
    read = _read_draft(draft, target_files, lane)
    tokens = _tokens(read.files, target_files)
    corpus_counts = count_tokens(corpus, tokens.file, tokens.length)
    counts = np.zeros(max(read.vocab_size, tokens.length), dtype=np.int64)
    counts[: tokens.length] = corpus_counts.counts
    candidates = np.intersect1d(read.row_ids, np.flatnonzero([piece is not None for piece in tokens.pieces]))
    if not 0 < num_frequent < len(candidates):
        reason = f"{num_frequent} is not between 1 and {len(candidates) - 1}, one less than the tokens it can propose"
        raise CheckpointError(f"{draft}: number of tokens to keep: {reason}. Choose a number in that range")
    kept = choose_kept_ids(counts, candidates, num_frequent, _special_ids(read.info, tokens, target_files))
    report = TrimReport(
        source=str(draft),
        output=str(output),
        num_rows=len(read.row_ids),
        num_frequent=num_frequent,
        num_kept=len(kept),
        coverage=float(counts[kept].sum() / corpus_counts.num_tokens),
        num_corpus_tokens=corpus_counts.num_tokens,
        corpus_sha256=corpus_counts.sha256,
    )
    _write_folder(read, kept, output, report)
    return report


def _read_draft(draft: Path, target: CheckpointFiles | None, lane: Lane | None) -> _Draft:
    files = read_checkpoint_files(draft)
    info = describe_checkpoint(files)
    _check_lane(info, lane)
    _check_plain_head(files)
    vocab_size = info.head.target_vocab_size if info.head is not None else info.vocabulary.config_vocab_size
    if vocab_size is None:
        raise CheckpointError(f"{draft}/config.json: vocab_size: not stated. Add the target's vocabulary size")
    if vocab_size > _MAX_VOCAB_SIZE:
        raise CheckpointError(f"{draft}/config.json: vocab_size: {vocab_size} is no vocabulary. Fetch the draft again")
    maps = _read_maps(files, info, vocab_size)
    head = files.find(LM_HEAD) or _borrowed_head(files, info, target)
    row_ids = np.arange(head.shape[0] if maps.d2t is None else 0, dtype=np.int64)
    if maps.d2t is not None:
        row_ids = target_ids_of(maps.d2t.astype(np.int64))
    if len(row_ids) != head.shape[0] or len(row_ids) == 0 or row_ids[0] < 0 or row_ids[-1] >= vocab_size:
        shape = f"{head.name} {list(head.shape)}, d2t [{len(row_ids)}], {vocab_size} tokens"
        raise CheckpointError(
            f"{draft}: its vocabulary maps do not fit ({shape}). Run `specdeploy inspect` on it first"
        )
    return _Draft(files, info, head, row_ids, vocab_size)


def _read_maps(files: CheckpointFiles, info: CheckpointInfo, vocab_size: int) -> VocabMaps:
    """The maps of a draft that is reduced already. Cutting it further by wrong maps would give wrong ones that agree.

    Raises `CheckpointError` with everything wrong about them; shapes are checked before a byte is read.
    """
    d2t, t2d = files.find("d2t"), files.find("t2d")
    forms = (
        (d2t, "int64 [n]", ("I64",), d2t is not None and len(d2t.shape) == 1 and 0 < d2t.shape[0] <= vocab_size),
        (t2d, f"a mask [{vocab_size}]", _MASK_DTYPES, t2d is not None and t2d.shape == (vocab_size,)),
    )
    problems = [
        f"{files.folder}: {entry.name}: {entry.dtype} {list(entry.shape)}, expected {expected}. Fetch the draft again"
        for entry, expected, dtypes, has_right_shape in forms
        if entry is not None and (entry.dtype not in dtypes or not has_right_shape)
    ]
    if problems:
        raise CheckpointError("\n".join(problems))
    maps = VocabMaps(*(None if entry is None else read_tensor(entry) for entry in (d2t, t2d)))
    stated = files.config.get("draft_vocab_size")
    if type(stated) is not int:
        stated = None if info.head is None else info.head.draft_vocab_size
    own_rows = info.vocabulary.lm_head_rows
    found = check_vocab_maps(maps, vocab_size=vocab_size, draft_vocab_size=stated, lm_head_rows=own_rows)
    if failures := [one for one in found if not one.is_warning]:
        lines = [f"{files.folder}: {one.subject}: [{one.code}] {one.detail}. {one.remedy}" for one in failures]
        raise CheckpointError("\n".join(lines))
    return maps


def _check_lane(info: CheckpointInfo, lane: Lane | None) -> None:
    lanes = _READS_TRIMMED.get(info.kind)
    if lanes is None:
        known = " and ".join(kind.value for kind in _READS_TRIMMED)
        raise CheckpointError(
            f"{info.folder}: kind {info.kind} has no reduced vocabulary. Only {known} drafts have one"
        )
    if lane is not None and lane not in lanes:
        readers = " and ".join(lanes)
        raise CheckpointError(
            f"{info.folder}: lane {lane} cannot read a {info.kind} draft with a reduced vocabulary. "
            f"Lanes that can: {readers}"
        )


def _check_plain_head(files: CheckpointFiles) -> None:
    """Rows of a plain matrix can be copied; scales, biases and packed integers would have to be understood."""
    head = files.find(LM_HEAD)
    others = [name for name in files.weights.tensors if (at := name.find("lm_head.")) >= 0 and name[at:] != LM_HEAD]
    if others or (head is not None and (head.dtype not in _PLAIN_DTYPES or len(head.shape) != 2)):
        found = ", ".join(others) if others else f"{LM_HEAD} {head.dtype if head else ''}"
        raise CheckpointError(
            f"{files.folder}: its lm_head is not one plain matrix ({found}). Use the unquantised draft"
        )


def _borrowed_head(files: CheckpointFiles, info: CheckpointInfo, target: CheckpointFiles | None) -> TensorEntry:
    """Where the rows come from when the draft has no lm_head: its own tied embedding, or the target's lm_head."""
    if info.kind is CheckpointKind.CAUSAL_LM:
        embedding = files.find(EMBEDDING)
        if embedding is None:
            raise CheckpointError(
                f"{files.folder}: holds neither {LM_HEAD} nor {EMBEDDING}. Fetch the checkpoint again"
            )
        return embedding
    if target is None:
        raise CheckpointError(f"{files.folder}: holds no {LM_HEAD}: it borrows the target's. Name the target's folder")
    head = target.find(LM_HEAD) or target.find(EMBEDDING)
    if head is None or len(head.shape) != 2 or head.shape[1] != info.hidden_size or head.dtype not in _PLAIN_DTYPES:
        shape = "none" if head is None else f"{head.dtype} {list(head.shape)}"
        reason = f"its lm_head ({shape}) does not fit hidden size {info.hidden_size} of {files.folder}"
        raise CheckpointError(f"{target.folder}: {reason}. Name the target that the head was trained for")
    return head


def _tokens(draft: CheckpointFiles, target: CheckpointFiles | None) -> TokenMap:
    """The tokenizer that counts the corpus: the draft's own, else the target's."""
    tokens = draft.tokens or (target.tokens if target is not None else None)
    if tokens is None or tokens.file.name != "tokenizer.json":
        where = draft.folder if target is None else target.folder
        raise CheckpointError(f"{where / 'tokenizer.json'}: missing. Name the target's folder, which holds it")
    return tokens


def _special_ids(info: CheckpointInfo, tokens: TokenMap, target: CheckpointFiles | None) -> set[int]:
    """Control tokens and whatever ends or starts a text, for the draft and for its target."""
    facts = [info.special_tokens, *([] if target is None else [describe_checkpoint(target).special_tokens])]
    ids = set(tokens.special_ids)
    for special in facts:
        ids |= {*special.eos_token_ids, *(i for i in (special.bos_token_id, special.pad_token_id) if i is not None)}
    return ids


# --- writing --------------------------------------------------------------------------------------------------------


def _write_folder(draft: _Draft, kept: NDArray[np.int64], output: Path, report: TrimReport) -> None:
    """A temporary folder beside `output`, renamed when everything is in it."""
    staging = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    try:
        staging.mkdir(parents=True)
        _copy_other_files(draft.files, staging)
        write_safetensors(staging / "model.safetensors", _trimmed_tensors(draft, kept))
        _write_config(draft, staging / "config.json", len(kept))
        (staging / REPORT_NAME).write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
        _sync(staging)
        staging.rename(output)
    except OSError as error:
        raise CheckpointError(
            f"{output}: cannot be written ({error.strerror or error}). Free the place first"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(staging)


def _trimmed_tensors(draft: _Draft, kept: NDArray[np.int64]) -> list[CopiedTensor | NewTensor]:
    rows = np.flatnonzero(np.isin(draft.row_ids, kept)).tolist()
    d2t, t2d = maps_of_kept_ids(kept, draft.vocab_size)
    replaced = {name: entry.name for name in (LM_HEAD, "d2t", "t2d") if (entry := draft.files.find(name)) is not None}
    others = [entry for name, entry in draft.files.weights.tensors.items() if name not in replaced.values()]
    return [
        *(CopiedTensor(entry.name, entry) for entry in others),
        CopiedTensor(replaced.get(LM_HEAD, LM_HEAD), draft.head, rows),
        NewTensor(replaced.get("d2t", "d2t"), d2t),
        NewTensor(replaced.get("t2d", "t2d"), t2d),
    ]


def _copy_other_files(files: CheckpointFiles, staging: Path) -> None:
    left_out = {"config.json", WEIGHT_INDEX, REPORT_NAME}
    for path in sorted(files.folder.iterdir()):
        if path.is_file() and path.name not in left_out and path.suffix != ".safetensors":
            shutil.copyfile(path, staging / path.name)


def _write_config(draft: _Draft, path: Path, num_kept: int) -> None:
    config = {**draft.files.config, "draft_vocab_size": num_kept}
    if draft.info.kind is CheckpointKind.CAUSAL_LM:
        config["tie_word_embeddings"] = False  # the embedding stays whole, the head has rows of its own
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
