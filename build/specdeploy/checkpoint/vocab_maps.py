"""The two maps of a reduced draft vocabulary, and whether they agree.

n draft tokens stand for n of the target's V tokens. As EAGLE-3 heads store it (SafeAILab's `d2t` and `t2d`):

    d2t [n] int64   OFFSETS: target id = draft id + d2t[draft id]
    t2d [V] bool    True where the target's token has a draft token

so `arange(n) + d2t == nonzero(t2d)`, strictly rising. A map of absolute ids, or of zeros that were never filled, has
the same shape and type; the draft then proposes other tokens than it means, and the output stays right.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Offsets that rise at every step mean that no two neighbouring ids are kept: below this many it may be chance.
_MIN_ABSOLUTE = 64
_FROM_AUTHOR = "Fetch the head again, or take its maps from its author"


@dataclass(frozen=True, slots=True)
class VocabMaps:
    """`d2t` [n] and `t2d` [V] as stored (`t2d` may be bool or integers); None = not in the file."""

    d2t: npt.NDArray[np.generic] | None = None
    t2d: npt.NDArray[np.generic] | None = None

    @property
    def is_absent(self) -> bool:
        """Whether the checkpoint carries neither map."""
        return self.d2t is None and self.t2d is None


@dataclass(frozen=True, slots=True)
class VocabMapProblem:
    """What is wrong with the maps. `is_warning` where the maps can be used nevertheless."""

    code: str
    subject: str
    detail: str
    remedy: str
    is_warning: bool = False


def target_ids_of(d2t: Int64Array) -> Int64Array:
    """The target's id of every draft id, [n]."""
    ids: Int64Array = np.arange(len(d2t), dtype=np.int64) + d2t
    return ids


def maps_of_kept_ids(kept_ids: Int64Array, vocab_size: int) -> tuple[Int64Array, BoolArray]:
    """`d2t` [n] int64 and `t2d` [vocab_size] bool that keep exactly `kept_ids`, which must rise strictly."""
    d2t: Int64Array = kept_ids - np.arange(len(kept_ids), dtype=np.int64)
    t2d = np.zeros(vocab_size, dtype=np.bool_)
    t2d[kept_ids] = True
    return d2t, t2d


def check_vocab_maps(
    maps: VocabMaps, *, vocab_size: int, draft_vocab_size: int | None, lm_head_rows: int | None
) -> tuple[VocabMapProblem, ...]:
    """Everything wrong with `maps` for a target of `vocab_size` tokens; empty = they can be trusted.

    `draft_vocab_size` is what the draft's config states (None = nothing), `lm_head_rows` the rows of its own lm_head
    (None = it borrows the target's).
    """
    if maps.is_absent:
        return _check_absent(vocab_size, draft_vocab_size, lm_head_rows)
    if maps.d2t is None:
        detail = f"t2d is there, d2t is not, so no draft id can be turned into one of the {vocab_size} target ids"
        return (VocabMapProblem("vocab-map-missing", "d2t", detail, _FROM_AUTHOR),)
    shape_problem = _check_form(maps, vocab_size)
    if shape_problem is not None:
        return (shape_problem,)
    d2t = maps.d2t.astype(np.int64)
    t2d = None if maps.t2d is None else maps.t2d.astype(np.bool_)
    problems = _check_counts(len(d2t), t2d, draft_vocab_size, lm_head_rows)
    if content := _check_ids(d2t, t2d, vocab_size):
        problems.append(content)
    if t2d is None:
        detail = f"d2t [{len(d2t)}] is there, t2d is not, so d2t cannot be checked against a second source"
        problems.append(VocabMapProblem("vocab-map-unchecked", "t2d", detail, _FROM_AUTHOR, is_warning=True))
    return tuple(problems)


def _check_absent(
    vocab_size: int, draft_vocab_size: int | None, lm_head_rows: int | None
) -> tuple[VocabMapProblem, ...]:
    """No maps are right only where draft id and target id are the same thing."""
    reduced = [
        f"{name} {size}"
        for name, size in (("draft_vocab_size", draft_vocab_size), ("lm_head rows", lm_head_rows))
        if size is not None and size < vocab_size
    ]
    if not reduced:
        return ()
    detail = f"{' and '.join(reduced)} of {vocab_size} target tokens, but neither d2t nor t2d says which ones"
    return (VocabMapProblem("vocab-map-missing", "d2t, t2d", detail, _FROM_AUTHOR),)


def _check_form(maps: VocabMaps, vocab_size: int) -> VocabMapProblem | None:
    d2t, t2d = maps.d2t, maps.t2d
    if d2t is None or d2t.ndim != 1 or not np.issubdtype(d2t.dtype, np.integer) or not 0 < len(d2t) <= vocab_size:
        seen = "nothing" if d2t is None else f"{d2t.dtype} {list(d2t.shape)}"
        detail = f"{seen}, expected integers [n] with n from 1 to {vocab_size}"
        return VocabMapProblem("vocab-map-shape", "d2t", detail, _FROM_AUTHOR)
    if t2d is not None and (t2d.ndim != 1 or len(t2d) != vocab_size or t2d.dtype.kind not in "biu"):
        detail = f"{t2d.dtype} {list(t2d.shape)}, expected a mask [{vocab_size}], one entry per target token"
        return VocabMapProblem("vocab-map-shape", "t2d", detail, "Use a head that was trained for this target")
    return None


def _check_counts(
    num_draft_ids: int, t2d: BoolArray | None, draft_vocab_size: int | None, lm_head_rows: int | None
) -> list[VocabMapProblem]:
    counts = {
        "draft_vocab_size in config.json": draft_vocab_size,
        "rows of the draft's lm_head": lm_head_rows,
        "sum(t2d)": None if t2d is None else int(t2d.sum()),
    }
    return [
        VocabMapProblem("vocab-map-size", "d2t", f"{num_draft_ids} entries, but {name} is {count}", _FROM_AUTHOR)
        for name, count in counts.items()
        if count is not None and count != num_draft_ids
    ]


def _check_ids(d2t: Int64Array, t2d: BoolArray | None, vocab_size: int) -> VocabMapProblem | None:
    """The first thing wrong with what the maps say; a wrong reading of the whole map is named as such."""
    num_draft_ids = len(d2t)
    kept = None if t2d is None else np.flatnonzero(t2d)
    if num_draft_ids < vocab_size and not d2t.any():
        detail = f"all {num_draft_ids} entries are 0, which would make draft id and target id the same"
        return VocabMapProblem("vocab-map-all-zero", "d2t", detail, _FROM_AUTHOR)
    if _is_absolute(d2t, kept, vocab_size):
        detail = (
            f"holds absolute target ids ({_first(d2t)}), not offsets: target id = draft id + d2t[draft id] would give "
            f"{_first(target_ids_of(d2t))}"
        )
        return VocabMapProblem(
            "vocab-map-absolute", "d2t", detail, "Subtract arange(n) from d2t and save the head again"
        )
    ids = target_ids_of(d2t)
    if len(falls := np.flatnonzero(np.diff(ids) <= 0)):
        at = int(falls[0]) + 1
        detail = f"draft id {at} means target id {ids[at]}, not above {ids[at - 1]} of the draft id before it"
        return VocabMapProblem("vocab-map-order", "d2t", detail, _FROM_AUTHOR)
    if ids[0] < 0 or ids[-1] >= vocab_size:
        detail = f"target ids run from {ids[0]} to {ids[-1]}, outside 0 to {vocab_size - 1}"
        return VocabMapProblem("vocab-map-range", "d2t", detail, _FROM_AUTHOR)
    if kept is not None and len(kept) == num_draft_ids and not np.array_equal(ids, kept):
        at = int(np.flatnonzero(ids != kept)[0])
        detail = f"draft id {at} is target id {ids[at]} by d2t but {kept[at]} by t2d"
        return VocabMapProblem("vocab-map-disagree", "d2t, t2d", detail, _FROM_AUTHOR)
    return None


def _is_absolute(d2t: Int64Array, kept: Int64Array | None, vocab_size: int) -> bool:
    """Whether `d2t` holds target ids themselves. An offset is at most V - n, a target id rises at every step."""
    if len(d2t) == vocab_size:
        return len(d2t) > 1 and bool(np.array_equal(d2t, np.arange(len(d2t))))
    if kept is not None:
        return bool(np.array_equal(d2t, kept)) and not np.array_equal(target_ids_of(d2t), kept)
    rises = bool((np.diff(d2t) > 0).all()) and d2t[0] >= 0 and d2t[-1] < vocab_size
    return rises and (int(d2t[-1]) > vocab_size - len(d2t) or len(d2t) >= _MIN_ABSOLUTE)


def _first(values: Int64Array) -> str:
    shown = ", ".join(str(value) for value in values[:4])
    return f"{shown}, ..." if len(values) > 4 else shown
