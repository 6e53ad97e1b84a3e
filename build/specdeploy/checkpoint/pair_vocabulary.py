"""Does every id mean the same token to target and draft? From the whole id -> bytes maps, never from their lengths."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from specdeploy.checkpoint.pair_findings import finding
from specdeploy.checkpoint.tokenizer import MAX_SHOWN, TokenMap, differing_ids, show_piece
from specdeploy.checkpoint.vocab_maps import VocabMaps, check_vocab_maps, target_ids_of
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, DifferingId, PairFinding, Severity
from specdeploy.contract import Lane

_SAME_TOKENIZER = "Use a draft that was made with the target's tokenizer"


@dataclass(frozen=True, slots=True)
class TokenDifferences:
    """Ids, rising, on which two maps differ. `ordinary` and `control` are in both maps, with other bytes."""

    ordinary: tuple[int, ...]
    control: tuple[int, ...]
    only_in_target: tuple[int, ...]
    only_in_draft: tuple[int, ...]

    @property
    def common(self) -> tuple[int, ...]:
        """Ids that are in both maps and differ, rising."""
        return tuple(sorted(self.ordinary + self.control))

    @property
    def num_differing(self) -> int:
        """All ids that are not the same token in both."""
        return sum(map(len, (self.ordinary, self.control, self.only_in_target, self.only_in_draft)))


def compare_token_maps(target: TokenMap, draft: TokenMap) -> TokenDifferences:
    """Every id that is not the same token in both. A token is `control` only where both maps call it one."""
    only_in_target = [
        token_id for token_id in range(draft.length, target.length) if target.pieces[token_id] is not None
    ]
    only_in_draft = [token_id for token_id in range(target.length, draft.length) if draft.pieces[token_id] is not None]
    ordinary: list[int] = []
    control: list[int] = []
    control_ids = target.special_ids & draft.special_ids
    for token_id in differing_ids(target, draft):
        if target.pieces[token_id] is None:
            only_in_draft.append(token_id)
        elif draft.pieces[token_id] is None:
            only_in_target.append(token_id)
        else:
            (control if token_id in control_ids else ordinary).append(token_id)
    return TokenDifferences(
        ordinary=tuple(ordinary),
        control=tuple(control),
        only_in_target=tuple(sorted(only_in_target)),
        only_in_draft=tuple(sorted(only_in_draft)),
    )


def first_differing_ids(target: TokenMap, draft: TokenMap, differences: TokenDifferences) -> tuple[DifferingId, ...]:
    """At most ten ids with both pieces: those in both maps first, then those in one of them, each rising."""
    one_sided = sorted(differences.only_in_target + differences.only_in_draft)
    return tuple(
        DifferingId(
            token_id=token_id,
            target=show_piece(piece_of(target, token_id)),
            draft=show_piece(piece_of(draft, token_id)),
        )
        for token_id in [*differences.common, *one_sided][:MAX_SHOWN]
    )


def piece_of(tokens: TokenMap, token_id: int) -> bytes | None:
    """Bytes of an id, None beyond the map."""
    return tokens.pieces[token_id] if 0 <= token_id < tokens.length else None


def token_map_sha256(tokens: TokenMap) -> str:
    """Digest of the whole map: for every id in turn its length and its bytes, and whether it is a control token."""
    digest = hashlib.sha256()
    for token_id, piece in enumerate(tokens.pieces):
        kind = "-" if piece is None else "c" if token_id in tokens.special_ids else "t"
        digest.update(f"{kind}{len(piece or b'')}:".encode() + (piece or b""))
    return digest.hexdigest()


def find_token_differences(
    target: CheckpointInfo, draft: CheckpointInfo, target_map: TokenMap, draft_map: TokenMap, lane: Lane | None
) -> Iterator[PairFinding]:
    """Findings about the two maps, their control tokens, and rows that are padding."""
    differences = compare_token_maps(target_map, draft_map)
    num_common = min(target_map.length, draft_map.length)
    if differences.ordinary:
        detail = (
            f"{len(differences.ordinary)} of {num_common} common ids are other tokens: "
            f"{_shown_pairs(target_map, draft_map, differences.ordinary)}"
        )
        if _rows(target) != _rows(draft):
            detail += ". The different numbers of rows are therefore no padding of one vocabulary"
        yield finding("tokens-differ", Severity.FAILURE, draft.reference, detail, _SAME_TOKENIZER)
        return
    if differences.control:
        detail = f"control tokens differ in name: {_shown_pairs(target_map, draft_map, differences.control)}"
        yield finding("control-tokens-differ", Severity.WARNING, draft.reference, detail, _SAME_TOKENIZER)
    yield from _find_one_sided(target, draft, target_map, draft_map, differences)
    yield from _find_short_rows(draft, target_map)
    yield from _find_padding(target, draft, differences, lane)


def _find_one_sided(
    target: CheckpointInfo,
    draft: CheckpointInfo,
    target_map: TokenMap,
    draft_map: TokenMap,
    differences: TokenDifferences,
) -> Iterator[PairFinding]:
    if ids := differences.only_in_target:
        detail = f"{len(ids)} of the target's ids are not in its tokenizer: {_shown_ids(target_map, ids)}"
        yield finding("draft-lacks-ids", Severity.WARNING, draft.reference, detail, _SAME_TOKENIZER)
    if ids := differences.only_in_draft:
        rows = _rows(target)
        detail = f"{len(ids)} ids are not in the target's tokenizer: {_shown_ids(draft_map, ids)}"
        if rows is not None and ids[-1] >= rows:
            detail += f"; the target has {rows} embedding rows, id {ids[-1]} lies beyond them"
        yield finding("draft-has-extra-ids", Severity.WARNING, draft.reference, detail, _SAME_TOKENIZER)


def _find_short_rows(draft: CheckpointInfo, target_map: TokenMap) -> Iterator[PairFinding]:
    highest = target_map.length - 1
    if draft.kind is CheckpointKind.CAUSAL_LM and (rows := _rows(draft)) is not None and rows <= highest:
        detail = f"has {rows} embedding rows, but the target's tokenizer uses ids up to {highest}"
        yield finding("draft-rows-short", Severity.FAILURE, draft.reference, detail, _SAME_TOKENIZER)


def _find_padding(
    target: CheckpointInfo, draft: CheckpointInfo, differences: TokenDifferences, lane: Lane | None
) -> Iterator[PairFinding]:
    """Rows beyond the tokenizer. The torch lane masks them; of the other lanes nothing is known."""
    target_rows, draft_rows = _rows(target), _rows(draft)
    is_head = draft.kind is not CheckpointKind.CAUSAL_LM
    if is_head or target_rows is None or draft_rows is None or target_rows == draft_rows:
        return
    same = "same tokenizer" if not differences.num_differing else "same tokens on the common ids"
    low, high = sorted((target_rows, draft_rows))
    detail = f"{same}, padded {low} -> {high} (target: {describe_sizes(target)}; draft: {describe_sizes(draft)})"
    severity = Severity.INFO if lane is Lane.TORCH else Severity.WARNING
    remedy = "Leave config.json as it is; the torch lane never drafts or emits an id beyond the tokenizer"
    if lane is not Lane.TORCH:
        remedy = "Pad the smaller checkpoint to the larger size with rows that are never drafted, or accept it by name"
    yield finding("vocabulary-padded", severity, "vocabulary", detail, remedy)


def describe_sizes(info: CheckpointInfo) -> str:
    """The three numbers of a vocabulary: `tokenizer length 151665, config vocab_size 152064, lm_head rows 152064`."""
    sizes = info.vocabulary
    rows = sizes.lm_head_rows
    head = (
        f"lm_head rows {rows}" if rows is not None else f"lm_head tied to {_said(sizes.embedding_rows)} embedding rows"
    )
    return (
        f"tokenizer length {_said(sizes.tokenizer_length)}, config vocab_size {_said(sizes.config_vocab_size)}, {head}"
    )


def find_row_mismatches(role: str, info: CheckpointInfo, *, is_trimmed: bool) -> Iterator[PairFinding]:
    """config.json against the stored tensors of one checkpoint, and its tokenizer against both."""
    sizes, config_rows = info.vocabulary, info.vocabulary.config_vocab_size
    if info.kind is not CheckpointKind.CAUSAL_LM or config_rows is None:
        return
    stored = {"embedding": sizes.embedding_rows, "lm_head": None if is_trimmed else sizes.lm_head_rows}
    for name, rows in stored.items():
        if rows is not None and rows != config_rows:
            detail = f"config.json says vocab_size {config_rows}, the stored {name} has {rows} rows"
            remedy = "Restore config.json as its author published it"
            yield finding("vocabulary-rows-differ", Severity.FAILURE, f"{role} {info.reference}", detail, remedy)
    if role == "target" and sizes.tokenizer_length is not None and sizes.tokenizer_length > config_rows:
        detail = f"its tokenizer uses ids up to {sizes.tokenizer_length - 1}, its embedding has {config_rows} rows"
        remedy = "Take the tokenizer of this very checkpoint"
        yield finding("target-rows-short", Severity.WARNING, f"target {info.reference}", detail, remedy)


def find_special_token_differences(
    target: CheckpointInfo, draft: CheckpointInfo, target_map: TokenMap, draft_map: TokenMap
) -> Iterator[PairFinding]:
    """End-of-text, begin and padding ids, and the chat template."""
    ours, theirs = target.special_tokens, draft.special_tokens
    if set(ours.eos_token_ids) != set(theirs.eos_token_ids):
        detail = (
            f"target ends at {_shown_ids(target_map, ours.eos_token_ids) or 'no id'}, "
            f"draft at {_shown_ids(draft_map, theirs.eos_token_ids) or 'no id'}"
        )
        remedy = "Nothing ends but by the target's ids; prefer a draft that was tuned with the same ones"
        yield finding("eos-differs", Severity.WARNING, "eos_token_id", detail, remedy)
    for key in ("bos_token_id", "pad_token_id"):
        ids = (getattr(ours, key), getattr(theirs, key))
        if ids[0] != ids[1]:
            detail = f"target {_said(ids[0])}, draft {_said(ids[1])}"
            remedy = "Nothing to do: prompts are tokenised once, by the target's tokenizer"
            yield finding("special-tokens-differ", Severity.INFO, key, detail, remedy)
    if ours.chat_template_sha256 != theirs.chat_template_sha256:
        both = ours.chat_template_sha256 is not None and theirs.chat_template_sha256 is not None
        owner = "the target" if theirs.chat_template_sha256 is None else "the draft"
        detail = "the two templates differ" if both else f"only {owner} has one"
        remedy = "Prompts follow the target's template; prefer a draft tuned on it, and measure acceptance on chat"
        severity = Severity.WARNING if both else Severity.INFO
        yield finding("chat-template-differs", severity, "chat_template", detail, remedy)


def find_vocab_map_problems(
    target: CheckpointInfo, draft: CheckpointInfo, maps: VocabMaps, draft_vocab_size: int | None
) -> Iterator[PairFinding]:
    """`d2t` and `t2d` of a head, or of a trimmed draft model, against each other and the target."""
    head = draft.head
    own_rows = draft.vocabulary.lm_head_rows if head is None or head.has_own_lm_head else None
    # A head that was made for another number of target tokens is one finding, not one for each map.
    vocab_size = _rows(draft) if head is None else head.target_vocab_size or _rows(target)
    if vocab_size is None:
        return
    stated = draft_vocab_size if draft_vocab_size is not None else (head.draft_vocab_size if head is not None else None)
    problems = check_vocab_maps(maps, vocab_size=vocab_size, draft_vocab_size=stated, lm_head_rows=own_rows)
    for problem in problems:
        severity = Severity.WARNING if problem.is_warning else Severity.FAILURE
        subject = f"{draft.reference}: {problem.subject}"
        yield finding(problem.code, severity, subject, problem.detail, problem.remedy)
    length = target.vocabulary.tokenizer_length
    if problems or maps.d2t is None or length is None:
        return
    if num_padding := int((target_ids_of(maps.d2t.astype("int64")) >= length).sum()):
        detail = f"d2t keeps {num_padding} ids at or beyond the tokenizer's length {length}"
        yield finding("draft-has-extra-ids", Severity.WARNING, f"{draft.reference}: d2t", detail, "Trim the head again")


def find_head_vocabulary(target: CheckpointInfo, draft: CheckpointInfo) -> Iterator[PairFinding]:
    """The target vocabulary that a head says it was trained for."""
    stated = draft.head.target_vocab_size if draft.head is not None else None
    sizes = target.vocabulary
    expected = sizes.config_vocab_size or sizes.lm_head_rows or sizes.embedding_rows
    if stated is None or expected is None or stated == expected:
        return
    covers = sizes.tokenizer_length is not None and min(stated, expected) >= sizes.tokenizer_length
    detail = f"the head was made for {stated} target tokens, the target has {describe_sizes(target)}"
    if covers:
        detail += "; both cover the tokenizer, so the rest may be padding"
    severity = Severity.WARNING if covers else Severity.FAILURE
    remedy = "Use a head that was trained for this target"
    yield finding("head-vocabulary-differs", severity, draft.reference, detail, remedy)


def _rows(info: CheckpointInfo) -> int | None:
    """Ids a checkpoint can embed: the smaller of what config.json says and what is stored."""
    sizes = info.vocabulary
    known = [rows for rows in (sizes.config_vocab_size, sizes.embedding_rows) if rows is not None]
    return min(known, default=sizes.lm_head_rows)


def _shown_pairs(target: TokenMap, draft: TokenMap, ids: tuple[int, ...]) -> str:
    shown = [
        f"{token_id}: target {show_piece(piece_of(target, token_id)) or 'has none'}, "
        f"draft {show_piece(piece_of(draft, token_id)) or 'has none'}"
        for token_id in ids[:MAX_SHOWN]
    ]
    return "; ".join(shown) + _and_more(ids)


def _shown_ids(tokens: TokenMap, ids: tuple[int, ...]) -> str:
    shown = [f"{token_id} {show_piece(piece_of(tokens, token_id)) or '(no token)'}" for token_id in ids[:MAX_SHOWN]]
    return ", ".join(shown) + _and_more(ids)


def _and_more(ids: tuple[int, ...]) -> str:
    return f", and {len(ids) - MAX_SHOWN} more" if len(ids) > MAX_SHOWN else ""


def _said(value: int | None) -> str:
    return "not stated" if value is None else str(value)
