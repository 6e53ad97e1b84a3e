"""Maps of a reduced vocabulary: offsets, a mask, and every way to get them wrong, at the size of a published head."""

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specdeploy.checkpoint.vocab_maps import VocabMaps, check_vocab_maps, maps_of_kept_ids, target_ids_of

VOCAB, KEPT = 128256, 32000
IDS = np.sort(np.random.default_rng(0).choice(VOCAB, KEPT, replace=False)).astype(np.int64)
D2T, T2D = maps_of_kept_ids(IDS, VOCAB)


def codes(
    d2t: NDArray[Any] | None, t2d: NDArray[Any] | None, *, rows: int | None = KEPT, stated: int | None = KEPT
) -> list[str]:
    problems = check_vocab_maps(VocabMaps(d2t, t2d), vocab_size=VOCAB, draft_vocab_size=stated, lm_head_rows=rows)
    return [problem.code for problem in problems]


def test_maps_of_a_published_head_pass_in_well_under_a_second() -> None:
    started = time.perf_counter()

    assert codes(D2T, T2D) == []

    assert time.perf_counter() - started < 1.0
    assert np.array_equal(target_ids_of(D2T), np.flatnonzero(T2D))


def test_a_mask_may_be_stored_as_integers() -> None:
    assert codes(D2T.astype(np.int32), T2D.astype(np.uint8)) == []


def test_a_map_of_zeros_is_named() -> None:
    first = np.zeros(VOCAB, dtype=np.bool_)
    first[:KEPT] = True  # even a mask that agrees does not make it believable
    assert codes(np.zeros_like(D2T), T2D) == ["vocab-map-all-zero"]
    assert codes(np.zeros_like(D2T), first) == ["vocab-map-all-zero"]


@pytest.mark.parametrize("mask", [T2D, None])
def test_absolute_ids_are_named_and_both_readings_shown(mask: NDArray[Any] | None) -> None:
    problems = check_vocab_maps(VocabMaps(IDS, mask), vocab_size=VOCAB, draft_vocab_size=KEPT, lm_head_rows=KEPT)

    assert problems[0].code == "vocab-map-absolute"
    assert f"{IDS[1]}" in problems[0].detail
    assert f"{IDS[1] + 1}" in problems[0].detail
    assert "Subtract arange(n)" in problems[0].remedy


def test_maps_that_disagree_show_the_first_difference() -> None:
    moved = IDS.copy()
    at = int(np.flatnonzero(np.diff(IDS) > 2)[0])
    moved[at] += 1

    problems = check_vocab_maps(
        VocabMaps(moved - np.arange(KEPT), T2D), vocab_size=VOCAB, draft_vocab_size=KEPT, lm_head_rows=KEPT
    )

    assert [problem.code for problem in problems] == ["vocab-map-disagree"]
    assert problems[0].detail == f"draft id {at} is target id {IDS[at] + 1} by d2t but {IDS[at]} by t2d"


def test_ids_must_rise_and_stay_inside() -> None:
    swapped = IDS.copy()
    swapped[[10, 11]] = swapped[[11, 10]]
    beyond = IDS.copy()
    beyond[-1] = VOCAB
    repeated = D2T.copy()
    repeated[5] -= 1 if IDS[5] - IDS[4] == 1 else IDS[5] - IDS[4]

    assert codes(swapped - np.arange(KEPT), T2D) == ["vocab-map-order"]
    assert codes(beyond - np.arange(KEPT), T2D) == ["vocab-map-range"]
    assert codes(repeated, T2D) == ["vocab-map-order"]


def test_counts_must_agree_in_all_places() -> None:
    assert codes(D2T, T2D, stated=32768) == ["vocab-map-size"]
    assert codes(D2T, T2D, rows=VOCAB) == ["vocab-map-size"]
    less = T2D.copy()
    less[IDS[0]] = False
    assert codes(D2T, less) == ["vocab-map-size"]


@pytest.mark.parametrize(
    ("d2t", "t2d"),
    [
        (D2T.astype(np.float32), T2D),
        (D2T.reshape(2, -1), T2D),
        (np.zeros(0, np.int64), T2D),
        (D2T, T2D[:-1]),
        (D2T, np.concatenate([T2D, T2D])),
    ],
)
def test_tensors_that_are_no_maps(d2t: NDArray[Any], t2d: NDArray[Any]) -> None:
    assert codes(d2t, t2d) == ["vocab-map-shape"]


def test_absent_maps_are_right_for_a_full_vocabulary_only() -> None:
    assert codes(None, None, rows=VOCAB, stated=VOCAB) == []
    assert codes(None, None, rows=None, stated=None) == []
    assert codes(None, None, rows=KEPT, stated=None) == ["vocab-map-missing"]
    assert codes(None, None, rows=None, stated=KEPT) == ["vocab-map-missing"]


def test_half_a_pair_of_maps() -> None:
    assert codes(None, T2D) == ["vocab-map-missing"]
    assert codes(D2T, None) == ["vocab-map-unchecked"]
    assert check_vocab_maps(VocabMaps(D2T), vocab_size=VOCAB, draft_vocab_size=KEPT, lm_head_rows=KEPT)[0].is_warning


def test_a_full_vocabulary_with_maps() -> None:
    d2t, t2d = maps_of_kept_ids(np.arange(VOCAB, dtype=np.int64), VOCAB)
    assert codes(d2t, t2d, rows=VOCAB, stated=VOCAB) == []
    assert codes(np.arange(VOCAB), t2d, rows=VOCAB, stated=VOCAB) == ["vocab-map-absolute"]
