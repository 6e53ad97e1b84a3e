"""No drafter changes a token, at any K, in any company; and what a drafter is told by the engine keeps it in step."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from helpers.tiny_checkpoint import EOS_ID, make_checkpoint
from specdeploy.runtime.drafters import (
    AutoDrafter,
    Drafter,
    DraftModelDrafter,
    LayerSkipDrafter,
    NgramDrafter,
    SuffixDrafter,
)
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, SamplingParams
from unit.specdeploy.runtime.conftest import MAX_SEQ_LEN, load

MAX_ROWS = 3
# More requests than rows, so that rows are reused; prompts longer than a chunk; one that ends at the context limit.
PROMPTS = [[5, 17, 200, 31], [9], list(range(30, 70)), [7, 8, 9, 7, 8, 9, 7, 8], [(11 * i) % 300 for i in range(86)]]
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, seed=21)
OWN_RANDOM = SamplingParams(temperature=0.9, seed=22, has_own_seed=False)


@pytest.fixture(scope="module")
def close_draft(target_folder: Path, target: DecoderModel) -> DecoderModel:
    """The target itself with a shorter context: all of its drafts are right."""
    return load(target_folder, max_seq_len=MAX_SEQ_LEN - 16)


Maker = Callable[[DecoderModel, DecoderModel, DecoderModel, KvCache], Drafter]


def lookup_ngram() -> NgramDrafter:
    return NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3)


DRAFTERS: dict[str, Maker] = {
    "ngram": lambda target, draft, close, cache: lookup_ngram(),
    "suffix": lambda target, draft, close, cache: SuffixDrafter(min_matching_size=1),
    "draft_model": lambda target, draft, close, cache: DraftModelDrafter(draft, num_slots=MAX_ROWS, prefill_chunk=8),
    "close_draft": lambda target, draft, close, cache: DraftModelDrafter(close, num_slots=MAX_ROWS, prefill_chunk=8),
    "layer_skip": lambda target, draft, close, cache: LayerSkipDrafter(target, cache, num_layers=1),
    "auto_model": lambda target, draft, close, cache: AutoDrafter(
        NgramDrafter(min_matching_ngram_size=2, max_matching_ngram_size=3),
        DraftModelDrafter(close, num_slots=MAX_ROWS, prefill_chunk=8),
    ),
    "auto_layers": lambda target, draft, close, cache: AutoDrafter(
        SuffixDrafter(min_matching_size=2), LayerSkipDrafter(target, cache, num_layers=1)
    ),
}


def always(depth: int) -> Callable[[int], int]:
    return lambda _in_flight: depth


def generate(
    target: DecoderModel, drafter: Drafter | None, cache: KvCache, draft_len: int, samplings: Sequence[SamplingParams]
) -> tuple[list[list[int]], int]:
    """Output of every prompt, and how many draft tokens were accepted. Rows draft at different depths."""
    engine = Engine(target, drafter, max_rows=MAX_ROWS, max_queue=9, prefill_chunk=16, cache=cache)
    for index, prompt in enumerate(PROMPTS):
        engine.submit(
            GenerationRequest(
                request_id=str(index),
                prompt_ids=tuple(prompt),
                max_tokens=14,
                stop_ids=frozenset({EOS_ID}),
                sampling=samplings[index],
                draft_len=always(max(1, draft_len - index % 2)),
            )
        )
    outputs: dict[str, list[int]] = {str(index): [] for index in range(len(PROMPTS))}
    accepted: dict[str, int] = {}
    while engine.num_in_flight:
        for update in engine.step():
            outputs[update.request_id].extend(update.token_ids)
            accepted[update.request_id] = update.stats.num_accepted_tokens
    return list(outputs.values()), sum(accepted.values())


@pytest.fixture(scope="module")
def plain(target: DecoderModel) -> Callable[[Sequence[SamplingParams]], list[list[int]]]:
    return lambda samplings: generate(target, None, target.new_cache(MAX_ROWS), 0, samplings)[0]


@pytest.mark.parametrize("draft_len", [1, 2, 4, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(
    name: str,
    draft_len: int,
    target: DecoderModel,
    draft: DecoderModel,
    close_draft: DecoderModel,
    plain: Callable[[Sequence[SamplingParams]], list[list[int]]],
) -> None:
    greedy = SamplingParams()
    for samplings in ([greedy] * 5, [greedy, SEEDED, greedy, SEEDED, SEEDED]):
        cache = target.new_cache(MAX_ROWS)
        drafter = DRAFTERS[name](target, draft, close_draft, cache)
        outputs, num_accepted = generate(target, drafter, cache, draft_len, samplings)
        assert outputs == plain(samplings)
        if name in ("close_draft", "auto_model"):
            assert num_accepted > 0


@pytest.mark.parametrize("name", ["draft_model", "close_draft", "layer_skip", "auto_model"])
def test_random_rows_leave_the_texts_beside_them_alone(
    name: str,
    target: DecoderModel,
    draft: DecoderModel,
    close_draft: DecoderModel,
    plain: Callable[[Sequence[SamplingParams]], list[list[int]]],
) -> None:
    """Rows verified by the ratio rule may differ from plain decoding in their tokens; the others may not."""
    samplings = [OWN_RANDOM, SamplingParams(), OWN_RANDOM, SEEDED, SamplingParams()]
    cache = target.new_cache(MAX_ROWS)
    outputs, num_accepted = generate(target, DRAFTERS[name](target, draft, close_draft, cache), cache, 4, samplings)
    expected = plain(samplings)
    for index in (1, 3, 4):
        assert outputs[index] == expected[index]
    assert all(outputs)
    assert num_accepted > 0


def test_a_draft_equal_to_the_target_is_always_accepted_under_sampling(
    target: DecoderModel, target_folder: Path
) -> None:
    """The ratio of equal distributions is 1: every draft token of every depth is kept."""
    same = load(target_folder)
    engine = Engine(target, DraftModelDrafter(same, num_slots=1), max_rows=1, max_queue=1, prefill_chunk=16)
    request = GenerationRequest("0", (5, 17, 200), 41, sampling=OWN_RANDOM, draft_len=always(4))
    engine.submit(request)
    while engine.num_in_flight:
        for update in engine.step():
            stats = update.stats
    assert stats.num_draft_tokens == stats.num_accepted_tokens == 32


def test_a_draft_with_a_shorter_context_stops_drafting_at_every_offset(
    target: DecoderModel, target_folder: Path
) -> None:
    """Prompts that end 0..9 tokens before the draft's context does."""
    short = load(target_folder, max_seq_len=24)
    prompts = [[(13 * i) % 300 for i in range(length)] for length in range(14, 27)]

    def texts(drafter: Drafter | None) -> dict[str, list[int]]:
        engine = Engine(target, drafter, max_rows=4, max_queue=20, prefill_chunk=16)
        outputs: dict[str, list[int]] = {}
        for index, prompt in enumerate(prompts):
            engine.submit(GenerationRequest(str(index), tuple(prompt), 12, draft_len=always(4)))
        while engine.num_in_flight:
            for update in engine.step():
                outputs.setdefault(update.request_id, []).extend(update.token_ids)
        return outputs

    assert texts(DraftModelDrafter(short, num_slots=4)) == texts(None)


def test_a_qwen_draft_for_a_llama_target_is_as_good_as_any(tmp_path: Path, target: DecoderModel) -> None:
    draft = load(make_checkpoint(tmp_path, architecture="qwen3", seed=3, num_layers=1, hidden_size=16))
    samplings = [SamplingParams()] * 5
    expected, _ = generate(target, None, target.new_cache(MAX_ROWS), 0, samplings)
    outputs, _ = generate(
        target, DraftModelDrafter(draft, num_slots=MAX_ROWS), target.new_cache(MAX_ROWS), 4, samplings
    )
    assert outputs == expected
