"""The step loop: whatever is drafted, for whomever, beside whomever, each request gets its plain output."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.scripted_drafter import ScriptedDrafter, ScriptedTreeDrafter
from specdeploy.errors import RequestError
from specdeploy.runtime.drafters import Drafter, DraftModelDrafter, NgramDrafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, RequestStats, RowUpdate, SamplingParams

from .conftest import MAX_SEQ_LEN

PROMPTS = [
    (5, 17, 200, 31, 8),
    (99,),
    (7, 64, 300, 12, 13, 7, 64, 300, 12, 13, 7, 64),
    tuple(range(20, 55)),
    (40, 41),
    (250, 3, 250, 3, 250),
]
NUM_TOKENS = 24


def request(
    prompt: Sequence[int], *, draft_len: int = 0, max_tokens: int = NUM_TOKENS, name: str = "", **fields: object
) -> GenerationRequest:
    base = GenerationRequest(
        request_id=name or str(tuple(prompt)),
        prompt_ids=tuple(prompt),
        max_tokens=max_tokens,
        draft_len=lambda in_flight: draft_len,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def engine(model: DecoderModel, drafter: Drafter | None = None, **settings: Any) -> Engine:
    return Engine(model, drafter, **{"max_rows": 6, "max_queue": 16, "prefill_chunk": 64} | settings)


class Outputs:
    """Everything an engine emitted, by request."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.finish: dict[str, str] = {}
        self.stats: dict[str, RequestStats] = {}
        self.log_probs: dict[str, list[float]] = {}

    def add(self, updates: Sequence[RowUpdate]) -> None:
        for update in updates:
            assert update.request_id not in self.finish, "an update after the end"
            self.tokens.setdefault(update.request_id, []).extend(update.token_ids)
            self.log_probs.setdefault(update.request_id, []).extend(update.log_probs or ())
            self.stats[update.request_id] = update.stats
            if update.finish_reason is not None:
                self.finish[update.request_id] = update.finish_reason


def run(subject: Engine, requests: Sequence[GenerationRequest]) -> Outputs:
    outputs = Outputs()
    for item in requests:
        subject.submit(item)
    for _ in range(2000):
        if not subject.num_in_flight:
            break
        outputs.add(subject.step())
    assert subject.num_in_flight == 0
    assert subject.num_slots_in_use == 0
    return outputs


@pytest.fixture(scope="module")
def plain(target: DecoderModel) -> dict[tuple[int, ...], list[int]]:
    """Each prompt alone, without drafts."""
    return {prompt: run(engine(target), [request(prompt)]).tokens[str(prompt)] for prompt in PROMPTS}


def test_plain_decoding_equals_transformers(target_folder: Path, plain: dict[tuple[int, ...], list[int]]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)
    for prompt, expected in plain.items():
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert tokens[len(prompt) :] == expected


def ngram(_: DecoderModel) -> Drafter:
    return NgramDrafter(min_matching_ngram_size=1, max_matching_ngram_size=3)


def draft_model(model: DecoderModel) -> Drafter:
    return DraftModelDrafter(model, num_slots=6)


@pytest.mark.parametrize("draft_len", [0, 1, 2, 4, 7])
@pytest.mark.parametrize("make_drafter", [ngram, draft_model])
@pytest.mark.parametrize("prefill_chunk", [3, 64])
def test_greedy_output_is_that_of_the_target_alone(
    target: DecoderModel,
    draft: DecoderModel,
    plain: dict[tuple[int, ...], list[int]],
    make_drafter: Callable[[DecoderModel], Drafter],
    draft_len: int,
    prefill_chunk: int,
) -> None:
    subject = engine(target, make_drafter(draft), prefill_chunk=prefill_chunk)
    outputs = run(subject, [request(prompt, draft_len=draft_len) for prompt in PROMPTS])
    assert outputs.tokens == {str(prompt): tokens for prompt, tokens in plain.items()}


def test_a_draft_equal_to_the_target_is_accepted_to_the_end(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]]
) -> None:
    outputs = run(engine(target, draft_model(target)), [request(p, draft_len=4) for p in PROMPTS])
    for prompt, tokens in plain.items():
        stats = outputs.stats[str(prompt)]
        assert outputs.tokens[str(prompt)] == tokens
        assert stats.num_accepted_tokens == stats.num_draft_tokens
        # one token from the prompt's pass, then 5 a step; the last step may draft only what is left
        assert stats.num_steps == 1 + -(-(NUM_TOKENS - 1) // 5)


@pytest.mark.parametrize("draft_len", [1, 3, 5])
def test_ragged_acceptance_side_by_side(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]], draft_len: int
) -> None:
    """Rows accepting 0, 1, K-1 and K tokens in one batch, changing over from step to step."""
    wanted = [0, 1, draft_len - 1, draft_len]

    def num_right(prompt: tuple[int, ...], step: int) -> int:
        return wanted[(PROMPTS.index(prompt) + step) % len(wanted)]

    drafter = ScriptedDrafter(dict(plain), num_right)
    outputs = run(engine(target, drafter), [request(p, draft_len=draft_len) for p in PROMPTS])
    assert outputs.tokens == {str(prompt): tokens for prompt, tokens in plain.items()}
    for stats in outputs.stats.values():
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens or draft_len == 1
        assert stats.num_steps == NUM_TOKENS - stats.num_accepted_tokens
        assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens
        assert stats.num_accepted_tokens_per_pos == sorted(stats.num_accepted_tokens_per_pos, reverse=True)


@pytest.mark.parametrize("num_wrong", [1, 3])
@pytest.mark.parametrize("prefill_chunk", [4, 64])
def test_trees_side_by_side(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]], num_wrong: int, prefill_chunk: int
) -> None:
    """Every row takes another path of its tree, and rows with chains of one token are in the batch too."""
    drafter = ScriptedTreeDrafter(
        dict(plain), lambda prompt, step: (PROMPTS.index(prompt) + step) % 5, num_wrong=num_wrong
    )
    cache = target.new_cache(6, extra_tokens=drafter.max_draft_tokens(4))
    subject = engine(target, drafter, prefill_chunk=prefill_chunk, cache=cache)
    outputs = run(subject, [request(p, draft_len=(4, 1)[i % 2]) for i, p in enumerate(PROMPTS)])
    assert outputs.tokens == {str(prompt): tokens for prompt, tokens in plain.items()}
    for stats in outputs.stats.values():
        assert stats.num_steps == NUM_TOKENS - stats.num_accepted_tokens
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
        assert len(stats.num_accepted_tokens_per_pos) <= 4
        assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens


def test_rows_join_and_leave_and_mix_draft_lengths(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]]
) -> None:
    subject = engine(target, ngram(target), max_rows=3, prefill_chunk=4)
    outputs = Outputs()
    for index, prompt in enumerate(PROMPTS):
        subject.submit(request(prompt, draft_len=(0, 2, 5)[index % 3], max_tokens=NUM_TOKENS - index))
        for _ in range(3):
            outputs.add(subject.step())
    while subject.num_in_flight:
        outputs.add(subject.step())
    for index, (prompt, tokens) in enumerate(plain.items()):
        assert outputs.tokens[str(prompt)] == tokens[: NUM_TOKENS - index]


def test_a_long_prompt_does_not_stop_the_others(target: DecoderModel) -> None:
    subject = engine(target, prefill_chunk=8)
    subject.submit(request(PROMPTS[1], name="short"))
    subject.step()
    subject.submit(request(range(10, 74), name="long", max_tokens=2))
    for _ in range(8):  # 64 prompt tokens at 8 a step: the short one gets a token in each
        updates = subject.step()
        assert "short" in {update.request_id for update in updates}
    assert "long" in {update.request_id for update in updates}


Script = Callable[[dict[tuple[int, ...], list[int]]], ScriptedDrafter]

# Blocks of K = 5: all accepted, the third token wrong, changing from step to step, and the same as trees.
SCRIPTS: dict[str, Script] = {
    "perfect": lambda texts: ScriptedDrafter(dict(texts), lambda prompt, step: 5),
    "wrong at 2": lambda texts: ScriptedDrafter(dict(texts), lambda prompt, step: 2),
    "changing": lambda texts: ScriptedDrafter(dict(texts), lambda prompt, step: (0, 1, 4, 5)[step % 4]),
    "perfect tree": lambda texts: ScriptedTreeDrafter(dict(texts), lambda prompt, step: 5),
    "changing tree": lambda texts: ScriptedTreeDrafter(dict(texts), lambda prompt, step: (5, 0, 3, 1)[step % 4]),
}
with_each_script = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)


@pytest.mark.parametrize("offset", range(6))
@with_each_script
def test_a_stop_id_ends_the_output_at_every_place_of_a_block(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]], offset: int, script: Script
) -> None:
    """The stop token falls on each offset of a block in turn; another stop id comes later."""
    prompt = PROMPTS[2]
    tokens = plain[prompt]
    position = next(i for i in range(6 + offset, len(tokens)) if tokens[i] not in tokens[:i])
    drafter = script(plain)
    stop_ids = frozenset({tokens[position], 9999} | (set(tokens[position:]) - set(tokens[:position])))
    outputs = run(engine(target, drafter), [request(prompt, draft_len=5, stop_ids=stop_ids)])
    assert outputs.tokens[str(prompt)] == tokens[: position + 1]
    assert outputs.finish[str(prompt)] == "stop"
    stats = outputs.stats[str(prompt)]
    assert stats.num_accepted_tokens == position + 1 - (stats.num_steps or 0) or stats.num_accepted_tokens == (
        position + 2 - (stats.num_steps or 0)
    )  # the last step has no token of the target's own when the stop token was drafted
    assert drafter.released == [0]


@pytest.mark.parametrize("place", range(1, 13))
@with_each_script
def test_a_stop_string_ends_the_request_at_its_token(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]], place: int, script: Script
) -> None:
    prompt = PROMPTS[0]
    told: list[int] = []

    def ends_here(token: int) -> bool:
        told.append(token)
        return len(told) == place

    outputs = run(engine(target, script(plain)), [request(prompt, draft_len=5, ends_with_stop_string=ends_here)])
    assert outputs.tokens[str(prompt)] == told == plain[prompt][:place]
    assert outputs.finish[str(prompt)] == "stop"


@pytest.mark.parametrize("max_tokens", range(1, 13))
@with_each_script
def test_max_tokens_is_exact(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]], max_tokens: int, script: Script
) -> None:
    prompt = PROMPTS[0]
    outputs = run(engine(target, script(plain)), [request(prompt, draft_len=5, max_tokens=max_tokens)])
    assert outputs.tokens[str(prompt)] == plain[prompt][:max_tokens]
    assert outputs.finish[str(prompt)] == "length"


@pytest.mark.parametrize("room", range(1, 9))
@pytest.mark.parametrize("script", [None, *SCRIPTS.values()], ids=["draft model", *SCRIPTS])
def test_the_context_limit_is_exact(
    target: DecoderModel, draft: DecoderModel, room: int, script: Script | None
) -> None:
    prompt = tuple(range(10, 10 + MAX_SEQ_LEN - room))
    expected = run(engine(target), [request(prompt, max_tokens=50)]).tokens[str(prompt)]
    assert len(expected) == room
    drafter = draft_model(draft) if script is None else script({prompt: expected})
    outputs = run(engine(target, drafter), [request(prompt, draft_len=4, max_tokens=50)])
    assert outputs.tokens[str(prompt)] == expected


@pytest.mark.parametrize("min_tokens", [0, 1, 3, 8])
@pytest.mark.parametrize("draft_len", [0, 5])
def test_min_tokens_counts_tokens_not_steps(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]], min_tokens: int, draft_len: int
) -> None:
    prompt = PROMPTS[5]
    stop_ids = frozenset(plain[prompt][:2])
    sampling = SamplingParams(min_tokens=min_tokens)
    alone = run(engine(target), [request(prompt, stop_ids=stop_ids, sampling=sampling)])
    drafted = run(
        engine(target, ngram(target)), [request(prompt, stop_ids=stop_ids, sampling=sampling, draft_len=draft_len)]
    )
    assert drafted.tokens == alone.tokens
    tokens = drafted.tokens[str(prompt)]
    assert not set(tokens[:min_tokens]) & stop_ids
    assert len(tokens) > min_tokens or not min_tokens


SAMPLINGS = [
    SamplingParams(temperature=1.0, seed=0),
    SamplingParams(temperature=0.8, top_k=20, seed=1),
    SamplingParams(temperature=1.3, top_p=0.7, seed=2**64 - 1),
    SamplingParams(temperature=1.0, min_p=0.05, seed=3),
    SamplingParams(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(logit_bias={17: 4.0, 5: -3.0}, bad_words=((31,), (8, 9))),
]


@pytest.mark.parametrize("draft_len", [1, 4])
@pytest.mark.parametrize("make_drafter", [ngram, draft_model])
def test_a_seed_gives_the_same_tokens_alone_in_a_batch_and_with_drafts(
    target: DecoderModel, draft: DecoderModel, make_drafter: Callable[[DecoderModel], Drafter], draft_len: int
) -> None:
    requests = [
        request(prompt, sampling=sampling, name=str(index))
        for index, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True))
    ]
    alone: dict[str, list[int]] = {}
    for item in requests:
        alone |= run(engine(target), [item]).tokens
    drafting = [replace(item, draft_len=lambda in_flight: draft_len) for item in requests]
    together = run(engine(target, make_drafter(draft)), drafting)
    assert together.tokens == alone


def test_different_seeds_differ(target: DecoderModel) -> None:
    requests = [
        request(PROMPTS[0], sampling=SamplingParams(temperature=1.5, seed=seed), name=str(seed)) for seed in range(6)
    ]
    assert len({tuple(tokens) for tokens in run(engine(target), requests).tokens.values()}) == 6


@with_each_script
def test_log_probs_are_the_targets_and_one_per_token(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]], script: Script
) -> None:
    prompt = PROMPTS[2]
    alone = run(engine(target), [request(prompt, wants_log_probs=True)])
    drafted = run(engine(target, script(plain)), [request(prompt, draft_len=5, wants_log_probs=True)])
    assert len(drafted.log_probs[str(prompt)]) == NUM_TOKENS
    assert drafted.log_probs[str(prompt)] == pytest.approx(alone.log_probs[str(prompt)], abs=1e-4)
    assert all(value < 0 for value in drafted.log_probs[str(prompt)])


def test_log_probs_of_a_cut_block_are_those_of_what_was_emitted(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]]
) -> None:
    prompt = PROMPTS[2]
    stop_ids = frozenset({plain[prompt][8]} - set(plain[prompt][:8]))
    fields: dict[str, Any] = {"wants_log_probs": True, "stop_ids": stop_ids}
    alone = run(engine(target), [request(prompt, **fields)])
    drafted = run(engine(target, SCRIPTS["perfect tree"](plain)), [request(prompt, draft_len=5, **fields)])
    assert drafted.tokens == alone.tokens
    assert drafted.log_probs[str(prompt)] == pytest.approx(alone.log_probs[str(prompt)], abs=1e-4)


@pytest.mark.parametrize("num_steps_before", range(6))
def test_cancelling_frees_the_row_and_leaves_the_others_alone(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]], num_steps_before: int
) -> None:
    subject = engine(target, ngram(target), max_rows=2, prefill_chunk=8)
    outputs = Outputs()
    for prompt in (PROMPTS[3], PROMPTS[0], PROMPTS[1]):  # the third waits for a row
        subject.submit(request(prompt, draft_len=3))
    for _ in range(num_steps_before):
        outputs.add(subject.step())
    for prompt in (PROMPTS[3], PROMPTS[1]):
        update = subject.cancel(str(prompt))
        assert update is not None
        assert update.finish_reason == "cancelled"
        assert subject.cancel(str(prompt)) is None
    assert subject.num_in_flight == 1
    while subject.num_in_flight:
        outputs.add(subject.step())
    assert outputs.tokens[str(PROMPTS[0])] == plain[PROMPTS[0]]
    assert subject.num_slots_in_use == 0


def test_k_follows_the_load(target: DecoderModel, plain: dict[tuple[int, ...], list[int]]) -> None:
    seen: set[int] = set()

    def draft_len(in_flight: int) -> int:
        seen.add(in_flight)
        return 4 if in_flight == 1 else 0

    subject = engine(target, ScriptedDrafter(dict(plain), lambda prompt, step: 4))
    first = run(subject, [replace(request(PROMPTS[0]), draft_len=draft_len)])
    both = run(subject, [replace(request(p), draft_len=draft_len) for p in PROMPTS[:2]])
    assert first.stats[str(PROMPTS[0])].num_draft_tokens > 0
    assert seen == {1, 2}
    assert all(stats.num_draft_tokens == 0 for stats in both.stats.values())


def test_what_cannot_be_served_is_refused(target: DecoderModel) -> None:
    subject = engine(target, max_rows=1, max_queue=1)
    with pytest.raises(RequestError, match="text_input: 96 tokens leave no room"):
        subject.submit(request(range(96)))
    with pytest.raises(RequestError, match="text_input: no tokens"):
        subject.submit(request(()))
    with pytest.raises(RequestError, match="token id 100000 has no row"):
        subject.submit(request((1, 100_000)))
    subject.submit(request(PROMPTS[0], name="a"))
    subject.step()
    subject.submit(request(PROMPTS[0], name="b"))
    with pytest.raises(RequestError, match="1 requests wait already"):
        subject.submit(request(PROMPTS[0], name="c"))
    subject.reset()
    assert (subject.num_in_flight, subject.num_slots_in_use) == (0, 0)


def test_padding_rows_of_the_vocabulary_are_never_emitted(
    target: DecoderModel, plain: dict[tuple[int, ...], list[int]]
) -> None:
    limit = max(plain[PROMPTS[0]])
    outputs = run(engine(target, draft_model(target), num_token_ids=limit), [request(PROMPTS[0], draft_len=4)])
    assert max(outputs.tokens[str(PROMPTS[0])]) < limit


def test_a_request_that_may_draft_but_finds_nothing_is_still_speculating(target: DecoderModel) -> None:
    never_matches = NgramDrafter(min_matching_ngram_size=9, max_matching_ngram_size=9)
    may = run(engine(target, never_matches), [request(PROMPTS[0], draft_len=4, max_tokens=3)])
    may_not = run(engine(target, never_matches), [request(PROMPTS[0], draft_len=0, max_tokens=3)])
    assert may.stats[str(PROMPTS[0])].num_draft_tokens == 0
    assert may.stats[str(PROMPTS[0])].was_allowed_to_draft
    assert not may_not.stats[str(PROMPTS[0])].was_allowed_to_draft
