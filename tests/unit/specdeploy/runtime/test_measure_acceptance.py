"""Acceptance counted in the engine's own loop, against drafts whose acceptance the test decides."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from helpers.scripted_drafter import ScriptedDrafter
from helpers.tiny_checkpoint import EOS_ID
from specdeploy.contract import Method
from specdeploy.errors import SpecDeployError
from specdeploy.runtime.assemble import EngineParts, EngineSettings, load_parts
from specdeploy.runtime.drafters.base import Drafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.measure_acceptance import (
    CountedDrafts,
    CountingDraftLength,
    MeasuredPrompt,
    measure_acceptance,
)
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest

DRAFT_LEN = 3
PROMPTS = [tuple(random.Random(seed).randrange(1, 300) for _ in range(12)) for seed in range(4)]


def settings(method: Method | None = Method.NGRAM) -> EngineSettings:
    return EngineSettings(
        method=method,
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_draft_len=DRAFT_LEN,
        max_rows=2,
        max_seq_len=96,
    )


def parts_with(target: DecoderModel, drafter: Drafter | None) -> EngineParts:
    return EngineParts(target, drafter, target.new_cache(2))


@torch.inference_mode()
def plain_texts(target: DecoderModel, num_tokens: int) -> dict[tuple[int, ...], Sequence[int]]:
    """What the target says to each prompt by itself."""
    engine = Engine(target, None, max_rows=2, max_queue=8, prefill_chunk=64)
    for prompt in PROMPTS:
        engine.submit(GenerationRequest(str(prompt), prompt, num_tokens))
    texts: dict[tuple[int, ...], list[int]] = {prompt: [] for prompt in PROMPTS}
    while engine.num_in_flight:
        for update in engine.step():
            texts[next(prompt for prompt in PROMPTS if str(prompt) == update.request_id)] += update.token_ids
    return dict(texts)


def measure(
    target: DecoderModel, num_right: Callable[[tuple[int, ...], int], int], max_tokens: int = 24
) -> tuple[CountedDrafts, ...]:
    drafter = ScriptedDrafter(plain_texts(target, 60), num_right)
    prompts = [MeasuredPrompt(prompt, max_tokens) for prompt in PROMPTS]
    return measure_acceptance(parts_with(target, drafter), settings(), prompts, stop_ids=frozenset())


def test_what_the_drafter_gets_right_is_what_is_counted(target: DecoderModel) -> None:
    counts = measure(target, lambda _, step: (0, 1, 3)[step % 3])

    assert len(counts) == len(PROMPTS)
    for one in counts:
        # 24 tokens behind the first at 1 + 0, 1 + 1, 1 + 3 a step
        assert one.num_drafts == one.num_steps >= 9
        shares = [accepted / one.num_drafts for accepted in one.accepted_per_pos]
        assert shares == pytest.approx([2 / 3, 1 / 3, 1 / 3], abs=0.08)


def test_every_step_before_the_limit_is_allowed_the_full_draft(target: DecoderModel) -> None:
    """Nothing is accepted, so each step gives one token: those that measured the 20 tokens had room for all of K."""
    counts = measure(target, lambda *_: 0, max_tokens=20)

    assert [one.num_steps for one in counts] == [20] * len(PROMPTS)
    assert all(one.accepted_per_pos == [0] * DRAFT_LEN for one in counts)


def test_all_accepted_fills_every_position(target: DecoderModel) -> None:
    counts = measure(target, lambda *_: DRAFT_LEN)

    assert all(one.accepted_per_pos == [one.num_drafts] * DRAFT_LEN for one in counts)


def test_lookups_count_the_steps_in_which_they_found_nothing(target_folder: Path) -> None:
    parts = load_parts(target_folder, None, settings())
    repeating = MeasuredPrompt((7, 8, 9) * 6, 24)

    counts = measure_acceptance(parts, settings(), [repeating, MeasuredPrompt(PROMPTS[0], 24)], stop_ids=frozenset())

    assert all(one.num_drafts <= one.num_steps for one in counts)
    assert any(one.num_drafts < one.num_steps for one in counts)
    again = measure_acceptance(parts, settings(), [repeating, MeasuredPrompt(PROMPTS[0], 24)], stop_ids=frozenset())
    assert again == counts


def test_sampled_answers_are_the_same_each_time(target_folder: Path) -> None:
    parts = load_parts(target_folder, None, settings())
    prompts = [MeasuredPrompt(prompt, 20) for prompt in PROMPTS]

    first, second = (
        measure_acceptance(parts, settings(), prompts, stop_ids=frozenset({EOS_ID}), temperature=1.0) for _ in range(2)
    )

    assert first == second


def test_a_prompt_that_fills_the_context_is_left_out(target_folder: Path) -> None:
    parts = load_parts(target_folder, None, settings())
    said: list[str] = []

    counts = measure_acceptance(
        parts,
        settings(),
        [MeasuredPrompt((5,) * 95, 8), MeasuredPrompt((5,) * 20, 8)],
        stop_ids=frozenset(),
        report=said.append,
    )

    assert len(counts) == 1
    assert said == ["prompt 1 of 95 tokens leaves no room for an answer: left out"]


def test_a_failing_engine_is_an_error(target: DecoderModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdeploy.runtime.commit.verify_chain", lambda *_: 1 / 0)

    with pytest.raises(SpecDeployError, match="prompt 1 failed"):
        measure(target, lambda *_: 0)


def test_steps_without_room_for_the_full_draft_are_not_counted() -> None:
    policy = CountingDraftLength(3)
    for cap, accepted in ((3, 2), (2, 2), (3, 0)):
        assert policy.draft_len(0, cap, 1) == cap
        policy.record(0, cap, accepted)
    policy.release(0)
    policy.release(1)

    assert policy.counts == [CountedDrafts(2, 2, [1, 1, 0])]
