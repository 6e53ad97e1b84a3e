"""Whatever the corpus, the kept ids are its most frequent ones, and offsets and mask give them back."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.checkpoint.trim import choose_kept_ids
from specdeploy.checkpoint.vocab_maps import VocabMaps, check_vocab_maps, maps_of_kept_ids, target_ids_of

counts_of = st.lists(st.integers(0, 50), min_size=3, max_size=60)


@given(counts=counts_of, data=st.data())
def test_no_other_choice_of_as_many_tokens_covers_more(counts: list[int], data: st.DataObject) -> None:
    vocab_size = len(counts)
    candidates = np.array(sorted(data.draw(st.sets(st.integers(0, vocab_size - 1), min_size=2))), dtype=np.int64)
    num_frequent = data.draw(st.integers(1, len(candidates) - 1))
    always = data.draw(st.sets(st.integers(0, vocab_size - 1), max_size=4))
    frequencies = np.array(counts, dtype=np.int64)

    kept = choose_kept_ids(frequencies, candidates, num_frequent, always)

    best = sorted((counts[token_id] for token_id in candidates), reverse=True)
    assert frequencies[kept].sum() >= sum(best[:num_frequent])
    assert set(kept) <= set(candidates)
    assert always & set(candidates.tolist()) <= set(kept.tolist())
    assert num_frequent <= len(kept) <= num_frequent + len(always)
    assert np.array_equal(kept, np.unique(kept))
    more = choose_kept_ids(frequencies, candidates, num_frequent + 1, always)
    assert frequencies[more].sum() >= frequencies[kept].sum()


@given(kept=st.sets(st.integers(0, 199), min_size=1, max_size=120), vocab_size=st.integers(200, 300))
def test_offsets_and_mask_give_the_kept_ids_back(kept: set[int], vocab_size: int) -> None:
    ids = np.array(sorted(kept), dtype=np.int64)

    d2t, t2d = maps_of_kept_ids(ids, vocab_size)

    assert target_ids_of(d2t).tolist() == np.flatnonzero(t2d).tolist() == sorted(kept)
    problems = check_vocab_maps(
        VocabMaps(d2t, t2d), vocab_size=vocab_size, draft_vocab_size=len(ids), lm_head_rows=len(ids)
    )
    keeps_the_first = sorted(kept) == list(range(len(kept)))  # offsets of zero look like a map never filled
    assert [problem.code for problem in problems] == (["vocab-map-all-zero"] if keeps_the_first else [])


@given(data=st.data(), vocab_size=st.integers(20, 60))
def test_any_damage_to_one_map_shows(data: st.DataObject, vocab_size: int) -> None:
    kept = data.draw(st.sets(st.integers(0, vocab_size - 1), min_size=2, max_size=vocab_size - 1))
    d2t, t2d = maps_of_kept_ids(np.array(sorted(kept), dtype=np.int64), vocab_size)
    if data.draw(st.booleans()):
        d2t[data.draw(st.integers(0, len(d2t) - 1))] += data.draw(st.integers(-5, 5).filter(bool))
    else:
        t2d[data.draw(st.integers(0, vocab_size - 1))] ^= True

    assert check_vocab_maps(
        VocabMaps(d2t, t2d), vocab_size=vocab_size, draft_vocab_size=len(kept), lm_head_rows=len(kept)
    )
