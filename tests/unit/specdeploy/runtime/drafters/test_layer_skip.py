"""The target's first layers draft on the target's own key/value memory."""

from collections.abc import Sequence

import pytest
import torch

from helpers.naive_rollout import greedy, sampled
from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters import DraftRow, LayerSkipDrafter, Observation
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import SamplingParams

NUM_LAYERS = 1


def read(target: DecoderModel, cache: KvCache, slot: int, token_ids: Sequence[int], start: int = 0) -> None:
    """What the engine has done when it asks for a draft: the target read everything but the newest token."""
    tokens = token_ids[start : len(token_ids) - 1]
    if tokens:
        target.forward(tokens, [Span(0, len(tokens), slot, start)], [], cache)


def test_it_drafts_what_the_first_layers_would_say(target: DecoderModel) -> None:
    cache = target.new_cache(3)
    drafter = LayerSkipDrafter(target, cache, num_layers=NUM_LAYERS)
    texts = {2: [5, 17, 200, 31], 0: [9], 1: list(range(30, 60))}
    depths = {2: 4, 0: 1, 1: 3}
    for slot, text in texts.items():
        read(target, cache, slot, text)
    drafts = drafter.propose([DraftRow(slot, text, depths[slot]) for slot, text in texts.items()])
    assert [draft.token_ids for draft in drafts] == [
        greedy(target, text, depths[slot], NUM_LAYERS) for slot, text in texts.items()
    ]
    assert greedy(target, texts[1], 3, NUM_LAYERS) != greedy(target, texts[1], 3)  # the other layers matter


def test_rejected_drafts_leave_no_trace(target: DecoderModel) -> None:
    cache = target.new_cache(1)
    drafter = LayerSkipDrafter(target, cache, num_layers=NUM_LAYERS)
    text, num_read = [5, 17, 200, 31], 0
    for kept, own in [(0, 9), (2, 11), (4, 12), (1, 13)]:
        read(target, cache, 0, text, num_read)
        num_read = len(text) - 1
        proposal = drafter.propose([DraftRow(0, text, 4)])[0].token_ids
        assert proposal == greedy(target, text, 4, NUM_LAYERS)
        text += [*proposal[:kept], own]
        drafter.observe([Observation(0, text, len(text) - 1, None)])


def test_the_text_and_the_layers_above_are_left_alone(target: DecoderModel) -> None:
    cache = target.new_cache(2)
    text = [5, 17, 200, 31]
    read(target, cache, 0, text)
    before = [layer.clone() for layer in (*cache.keys, *cache.values)]
    LayerSkipDrafter(target, cache, num_layers=NUM_LAYERS).propose([DraftRow(0, text, 4)])
    written = range(3, 7)  # the newest token, and all drafted ones but the last
    for index, (old, new) in enumerate(zip(before, (*cache.keys, *cache.values), strict=True)):
        changed = [place for place in range(len(old)) if not torch.equal(old[place], new[place])]
        assert changed == (list(written) if index % target.num_layers < NUM_LAYERS else [])


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_drafts_end_with_the_context(target: DecoderModel, room: int) -> None:
    cache = target.new_cache(2)
    text = [(7 * place) % 300 for place in range(target.max_seq_len - room)]
    read(target, cache, 0, text)
    drafter = LayerSkipDrafter(target, cache, num_layers=NUM_LAYERS)
    assert drafter.propose([DraftRow(0, text, 3)])[0].token_ids == greedy(target, text, min(3, room + 1), NUM_LAYERS)


def test_random_rows_sample(target: DecoderModel) -> None:
    cache = target.new_cache(2)
    sampling = SamplingParams(temperature=1.5, seed=5, has_own_seed=False)
    texts = [[5, 17, 200], [9, 8]]
    for slot, text in enumerate(texts):
        read(target, cache, slot, text)
    drafter = LayerSkipDrafter(target, cache, num_layers=NUM_LAYERS)
    random, definite = drafter.propose([DraftRow(0, texts[0], 4, 1, sampling), DraftRow(1, texts[1], 3)])
    tokens, probs = sampled(target, texts[0], 4, sampling, 1, NUM_LAYERS)
    assert random.token_ids == tokens
    assert random.probs is not None
    torch.testing.assert_close(random.probs, probs)
    assert definite.token_ids == greedy(target, texts[1], 3, NUM_LAYERS)
    assert definite.probs is None


def test_ids_beyond_the_tokenizer_are_never_drafted(target: DecoderModel) -> None:
    text = [5, 17, 200, 31]
    limit = max(greedy(target, text, 12, NUM_LAYERS))
    cache = target.new_cache(1)
    read(target, cache, 0, text)
    drafter = LayerSkipDrafter(target, cache, num_layers=NUM_LAYERS, vocab_size=limit)
    assert max(drafter.propose([DraftRow(0, text, 12)])[0].token_ids) < limit


@pytest.mark.parametrize("num_layers", [0, 2, 3])
def test_some_layers_draft_and_some_are_skipped(target: DecoderModel, num_layers: int) -> None:
    with pytest.raises(ValueError, match=r"num_layers: \d is not in 1\.\.1"):
        LayerSkipDrafter(target, target.new_cache(1), num_layers=num_layers)
