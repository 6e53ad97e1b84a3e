"""The draft model proposes what it would generate itself, whatever happened to its earlier proposals."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.naive_rollout import greedy, sampled
from specdeploy.runtime.drafters import Draft, DraftModelDrafter, DraftRow, Observation
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel, StepOutput
from specdeploy.runtime.request import SamplingParams

RANDOM = SamplingParams(temperature=1.3, top_k=40, seed=11, has_own_seed=False)


class CountingModel:
    """A model that notes how many tokens each forward pass read."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model
        self.num_read: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, token_ids: Sequence[int], *args: Any, **kwargs: Any) -> StepOutput:
        self.num_read.append(len(token_ids))
        return self._model.forward(token_ids, *args, **kwargs)


def tokens_of(drafts: Sequence[Draft]) -> list[tuple[int, ...]]:
    return [draft.token_ids for draft in drafts]


def draft_one(drafter: DraftModelDrafter, row: DraftRow) -> tuple[int, ...]:
    return drafter.propose([row])[0].token_ids


def test_rejected_and_skipped_drafts_leave_no_trace(draft: DecoderModel) -> None:
    drafter = DraftModelDrafter(draft, num_slots=3)
    text = [5, 17, 200, 31]
    for kept, own in [(0, 9), (2, 11), (4, 12), (4, 13), (1, 14)]:
        proposal = draft_one(drafter, DraftRow(1, text, 4))
        assert proposal == greedy(draft, text, 4)
        text += [*proposal[:kept], own]
        drafter.observe([Observation(1, text, len(text) - 1, None)])
    text += [40, proposal[1], 41, 42, 43]  # steps without drafts: the cache is behind and partly wrong
    assert draft_one(drafter, DraftRow(1, text, 3)) == greedy(draft, text, 3)


def test_asking_twice_gives_the_same_draft(draft: DecoderModel) -> None:
    drafter = DraftModelDrafter(draft, num_slots=1)
    row = DraftRow(0, [5, 17, 200], 4)
    assert draft_one(drafter, row) == draft_one(drafter, row)


def test_rows_of_different_lengths_and_depths_are_drafted_together(draft: DecoderModel) -> None:
    drafter = DraftModelDrafter(draft, num_slots=3)
    texts = {0: [5, 17], 2: list(range(30, 60)), 1: [9]}
    depths = {0: 1, 2: 5, 1: 3}
    drafts = drafter.propose([DraftRow(slot, text, depths[slot]) for slot, text in texts.items()])
    assert tokens_of(drafts) == [greedy(draft, text, depths[slot]) for slot, text in texts.items()]
    assert all(item.probs is None and item.parents is None for item in drafts)


@pytest.mark.parametrize("room", [-1, 0, 1, 2, 3, 4])
def test_drafts_end_with_the_drafts_own_context(draft: DecoderModel, room: int) -> None:
    """`room` positions are left behind the text; the last draft token needs none, nothing reads it."""
    drafter = DraftModelDrafter(draft, num_slots=2, prefill_chunk=2 * draft.max_seq_len)
    text = [(7 * place) % 300 for place in range(draft.max_seq_len - room)]
    other = [5, 17, 200]
    drafts = drafter.propose([DraftRow(0, text, 3), DraftRow(1, other, 2)])
    depth = min(3, room + 1)
    assert tokens_of(drafts) == [greedy(draft, text, depth), greedy(draft, other, 2)]


def test_a_prompt_beyond_the_drafts_context_is_not_read(draft: DecoderModel) -> None:
    model = CountingModel(draft)
    drafter = DraftModelDrafter(model, num_slots=1)  # type: ignore[arg-type]
    text = [place % 300 for place in range(draft.max_seq_len + 1)]
    drafter.observe([Observation(0, text, 50, None)])
    assert draft_one(drafter, DraftRow(0, text, 3)) == ()
    assert model.num_read == []
    drafter.observe([Observation(0, text[:-1], 50, None)])
    assert model.num_read == [50]


# One step of one row: how much of its draft is kept, the target's own token, whether it is asked, whether it leaves.
ROW_STEP = st.tuples(st.integers(0, 3), st.integers(1, 319), st.booleans(), st.sampled_from([False] * 5 + [True]))
FIRST_TEXT = st.lists(st.integers(1, 319), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(ROW_STEP, ROW_STEP, ROW_STEP), min_size=1, max_size=6), data=st.data())
def test_every_draft_is_what_the_model_would_say(
    draft: DecoderModel, steps: list[tuple[tuple[int, int, bool, bool], ...]], data: st.DataObject
) -> None:
    """Rows of any lengths come, go and share slots one after another; steps pass in which they are not asked."""
    drafter = DraftModelDrafter(draft, num_slots=3, prefill_chunk=6)
    texts: dict[int, list[int]] = {}
    for step in steps:
        for slot in range(3):
            if slot not in texts:
                texts[slot] = data.draw(FIRST_TEXT)
                drafter.observe([Observation(slot, texts[slot], len(texts[slot]) // 2, None)])
        rows = [DraftRow(slot, texts[slot], 3) for slot in (2, 0, 1) if step[slot][2]]
        drafts = {row.slot: item.token_ids for row, item in zip(rows, drafter.propose(rows), strict=True)}
        for slot, tokens in drafts.items():
            assert tokens in ((), greedy(draft, texts[slot], 3))
        for slot, (num_kept, own, _, leaves) in enumerate(step):
            texts[slot] += [*drafts.get(slot, ())[:num_kept], own]
            if leaves:
                del texts[slot]
                drafter.release(slot)
            elif step[slot][2]:
                drafter.observe([Observation(slot, texts[slot], len(texts[slot]) - 1, None)])
    rows = [DraftRow(slot, text, 2) for slot, text in texts.items()]
    for _ in range(8):
        drafts = {row.slot: item.token_ids for row, item in zip(rows, drafter.propose(rows), strict=True)}
    assert drafts == {row.slot: greedy(draft, row.token_ids, 2) for row in rows}


def test_a_released_slot_starts_afresh(draft: DecoderModel) -> None:
    drafter = DraftModelDrafter(draft, num_slots=1)
    draft_one(drafter, DraftRow(0, list(range(30, 60)), 4))
    drafter.release(0)
    drafter.release(0)
    assert draft_one(drafter, DraftRow(0, [5, 6], 3)) == greedy(draft, [5, 6], 3)


def test_prompts_are_read_with_the_target_in_one_pass_for_all_rows(draft: DecoderModel) -> None:
    model = CountingModel(draft)
    drafter = DraftModelDrafter(model, num_slots=2, prefill_chunk=16)  # type: ignore[arg-type]
    texts = [list(range(30, 60)), list(range(100, 120))]
    drafter.observe([Observation(0, texts[0], 10, None), Observation(1, texts[1], 6, None)])
    assert model.num_read == [16]
    drafter.observe([Observation(0, texts[0], 20, None), Observation(1, texts[1], 12, None)])
    assert model.num_read == [16, 16]
    drafter.observe([Observation(0, [*texts[0], 7], 30, None)])  # its prompt is done: the rest goes with the draft
    assert model.num_read == [16, 16]
    drafts = drafter.propose([DraftRow(0, [*texts[0], 7], 2)])
    assert model.num_read == [16, 16, 11, 1]
    assert tokens_of(drafts) == [greedy(draft, [*texts[0], 7], 2)]


def test_a_row_that_is_far_behind_catches_up_in_chunks_along_with_the_others(draft: DecoderModel) -> None:
    """Nothing was drafted for it while the load was high; reading it all at once would stall the other rows."""
    model = CountingModel(draft)
    drafter = DraftModelDrafter(model, num_slots=2, prefill_chunk=8)  # type: ignore[arg-type]
    text = list(range(30, 60))
    rows = [DraftRow(0, text, 3), DraftRow(1, [5, 6], 2)]
    expected = [greedy(draft, text, 3), greedy(draft, [5, 6], 2)]
    for _ in range(3):
        model.num_read.clear()
        assert tokens_of(drafter.propose(rows)) == [(), expected[1]]
        assert max(model.num_read) <= 8 + 2
        assert len(model.num_read) == 2  # no pass of its own
    assert tokens_of(drafter.propose(rows)) == expected


def test_many_rows_behind_share_one_chunk_and_all_arrive(draft: DecoderModel) -> None:
    model = CountingModel(draft)
    drafter = DraftModelDrafter(model, num_slots=4, prefill_chunk=8)  # type: ignore[arg-type]
    rows = [DraftRow(slot, list(range(40 + slot, 60 + slot)), 2) for slot in range(4)]
    answered: set[int] = set()
    while len(answered) < 4:
        answered |= {index for index, item in enumerate(drafter.propose(rows)) if item.token_ids}
        assert len(model.num_read) < 40
    assert max(model.num_read) <= 8 + 4 * 2
    assert tokens_of(drafter.propose(rows)) == [greedy(draft, row.token_ids, 2) for row in rows]


def test_random_rows_sample_and_others_do_not(draft: DecoderModel) -> None:
    drafter = DraftModelDrafter(draft, num_slots=3)
    texts = [[5, 17, 200], [9, 8], [77]]
    rows = [
        DraftRow(0, texts[0], 4, num_output=2, sampling=RANDOM),
        DraftRow(1, texts[1], 3),
        DraftRow(2, texts[2], 2, num_output=1, sampling=SamplingParams(temperature=0.7, top_p=0.9, seed=3)),
    ]
    drafts = drafter.propose(rows)
    for index in (0, 2):
        sampling = rows[index].sampling
        assert sampling is not None
        tokens, probs = sampled(draft, texts[index], rows[index].draft_len, sampling, rows[index].num_output)
        assert drafts[index].token_ids == tokens
        torch.testing.assert_close(drafts[index].probs, probs)  # shape and float32 included
    assert drafts[1] == Draft(greedy(draft, texts[1], 3))


@pytest.mark.parametrize("vocab_size", [320, 400, 7])
def test_probabilities_span_the_vocabulary_of_the_engine(draft: DecoderModel, vocab_size: int) -> None:
    """It may be larger than the draft's, or end before the padding rows of the draft's."""
    drafter = DraftModelDrafter(draft, num_slots=1, vocab_size=vocab_size)
    item = drafter.propose([DraftRow(0, [5, 17, 200], 6, sampling=RANDOM)])[0]
    assert item.probs is not None
    assert item.probs.shape == (6, vocab_size)
    torch.testing.assert_close(item.probs.sum(dim=1), torch.ones(6))
    assert float(item.probs[:, draft.vocab_size :].sum()) == 0.0
    assert max(item.token_ids) < vocab_size
    assert all(float(item.probs[place, token]) > 0.0 for place, token in enumerate(item.token_ids))


def test_a_samples_numbers_belong_to_seed_and_output_position(draft: DecoderModel) -> None:
    def tokens(seed: int, num_output: int) -> tuple[int, ...]:
        sampling = SamplingParams(temperature=2.0, seed=seed)
        row = DraftRow(0, [5, 17, 200], 6, num_output, sampling)
        return draft_one(DraftModelDrafter(draft, num_slots=1), row)

    assert tokens(1, 0) == tokens(1, 0)
    assert tokens(1, 0) != tokens(2, 0)
    assert tokens(1, 0) != tokens(1, 1)


def test_its_memory_is_its_own(draft: DecoderModel) -> None:
    made: list[int] = []

    class Model(CountingModel):
        def new_cache(self, num_slots: int) -> KvCache:
            made.append(num_slots)
            return draft.new_cache(num_slots)

    DraftModelDrafter(Model(draft), num_slots=3)  # type: ignore[arg-type]
    assert made == [3]


def test_rows_at_work_do_not_delay_one_whose_prompt_has_just_been_read(
    target: DecoderModel, draft: DecoderModel
) -> None:
    """A fully accepted draft leaves one token unread, which costs no more than a draft."""
    drafter = DraftModelDrafter(draft, num_slots=4, prefill_chunk=8)
    texts = [list(range(10 + slot, 16 + slot)) for slot in range(3)]
    for slot, text in enumerate(texts):
        drafter.propose([DraftRow(slot, text, 2)])
        text += [20 + slot, 30 + slot]  # two unread tokens
    fresh = list(range(40, 49))  # a prompt of a whole chunk and the first output token
    drafts = drafter.propose([*(DraftRow(slot, text, 2) for slot, text in enumerate(texts)), DraftRow(3, fresh, 2)])
    assert [len(one.token_ids) for one in drafts] == [2, 2, 2, 2]


def test_a_prompt_of_a_chunk_and_one_token_is_drafted_for_at_once(target: DecoderModel, draft: DecoderModel) -> None:
    """With one token left to read such a prompt looks like a row at work, but a whole chunk of it waits."""
    drafter = DraftModelDrafter(draft, num_slots=2, prefill_chunk=8)
    prompt = list(range(40, 49))
    drafter.observe([Observation(0, prompt, 8, None)])
    text = [*prompt, 7]
    drafter.observe([Observation(0, text, 9, None)])
    assert [len(one.token_ids) for one in drafter.propose([DraftRow(0, text, 3)])] == [3]
