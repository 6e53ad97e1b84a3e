"""What the engine tells its drafter, its policy and its grammar, and how it admits by memory."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from helpers.scripted_drafter import SampledDrafter, ScriptedDrafter, ScriptedTreeDrafter
from specdeploy.errors import RequestError
from specdeploy.runtime import commit
from specdeploy.runtime.attention import Span
from specdeploy.runtime.draft_length import FixedDraftLength, StepTiming
from specdeploy.runtime.drafters.base import Draft, DraftRow, Observation
from specdeploy.runtime.model import FINAL_NORM, DecoderModel
from specdeploy.runtime.request import SamplingParams
from specdeploy.runtime.sampling import Stream, uniform_at

from .test_engine import NUM_TOKENS, PROMPTS, SCRIPTS, Outputs, Script, engine, plain, request, run, with_each_script

__all__ = ["plain"]  # a fixture

Texts = dict[tuple[int, ...], list[int]]


class Watched:
    """A drafter that asks for hidden states and remembers what it is told."""

    hidden_layers = (1, FINAL_NORM)

    def __init__(self, inner: ScriptedDrafter) -> None:
        self._inner = inner
        self.observed: dict[int, list[Observation]] = {}
        self.num_calls = 0
        self.asked: list[DraftRow] = []

    def max_draft_tokens(self, draft_len: int) -> int:
        return self._inner.max_draft_tokens(draft_len)

    def observe(self, observations: Sequence[Observation]) -> None:
        self.num_calls += 1
        for seen in observations:
            assert 1 <= seen.num_read < len(seen.token_ids)
            kept = Observation(seen.slot, tuple(seen.token_ids), seen.num_read, seen.hidden)
            self.observed.setdefault(seen.slot, []).append(kept)

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        self.asked += [replace(row, token_ids=tuple(row.token_ids)) for row in rows]
        return self._inner.propose(rows)

    def release(self, slot: int) -> None:
        self._inner.release(slot)


@with_each_script
@pytest.mark.parametrize("prefill_chunk", [3, 64])
def test_a_drafter_is_told_every_position_of_the_text_once(
    target: DecoderModel, plain: Texts, script: Script, prefill_chunk: int
) -> None:
    drafter = Watched(script(plain))
    subject = engine(target, drafter, prefill_chunk=prefill_chunk)
    num_steps = 0
    for prompt in PROMPTS:
        subject.submit(request(prompt, draft_len=5))
    while subject.num_in_flight:
        subject.step()
        num_steps += 1
    assert drafter.num_calls <= num_steps
    assert sorted(drafter.observed) == list(range(len(PROMPTS)))
    for slot, observations in drafter.observed.items():
        final = observations[-1]
        assert tuple(final.token_ids[: len(PROMPTS[slot])]) == PROMPTS[slot]
        assert len(final.token_ids) > len(PROMPTS[slot])
        told: list[torch.Tensor] = []
        for seen in observations:
            assert seen.hidden is not None
            told.extend(seen.hidden)
            assert seen.num_read == len(told)
            assert seen.token_ids == final.token_ids[: len(seen.token_ids)]
        text = list(final.token_ids[: final.num_read])
        expected = target.forward(
            text, [Span(0, len(text), 0, 0)], [], target.new_cache(1), hidden_layers=drafter.hidden_layers
        ).hidden
        assert expected is not None
        assert torch.allclose(torch.stack(told), expected, atol=1e-4)


def test_rows_that_may_not_draft_are_not_reported(target: DecoderModel, plain: Texts) -> None:
    drafter = Watched(SCRIPTS["perfect"](plain))
    run(engine(target, drafter), [request(PROMPTS[0], draft_len=0), request(PROMPTS[1], draft_len=2)])
    assert {tuple(row.token_ids[:1]) for row in drafter.asked} == {PROMPTS[1]}
    assert list(drafter.observed) == [1]


def test_random_rows_may_be_drafted_for_at_random_unless_the_client_named_the_seed(
    target: DecoderModel, plain: Texts
) -> None:
    own = SamplingParams(temperature=1.0, seed=1)
    drawn = SamplingParams(temperature=1.0, seed=2, has_own_seed=False)
    greedy = SamplingParams(has_own_seed=False)
    drafter = Watched(SCRIPTS["perfect"](plain))
    requests = [
        request(prompt, draft_len=2, sampling=sampling)
        for prompt, sampling in zip(PROMPTS, (own, drawn, greedy), strict=False)
    ]
    guided = request(PROMPTS[3], draft_len=2, sampling=drawn, guided=Modulo(9))
    run(engine(target, drafter), [*requests, guided])
    assert {row.slot: row.sampling for row in drafter.asked} == {0: None, 1: drawn, 2: None, 3: None}
    assert all(row.num_output == len(row.token_ids) - len(PROMPTS[row.slot]) for row in drafter.asked)


def test_random_numbers_of_drawn_drafts_come_from_streams_of_their_own(
    target: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per position one number says whether the draft token is accepted, and another one what is drawn instead."""
    asked: list[tuple[int, int, str]] = []

    def recorded(seed: int, position: int, stream: Stream = "target") -> float:
        asked.append((seed, position, stream))
        return uniform_at(seed, position, stream)

    monkeypatch.setattr(commit, "uniform_at", recorded)
    sampling = SamplingParams(temperature=1.0, seed=77, has_own_seed=False)
    drafter = SampledDrafter(lambda text: torch.full((target.vocab_size,), 1 / target.vocab_size))
    outputs = run(engine(target, drafter), [request(PROMPTS[0], draft_len=3, sampling=sampling)])
    stats = outputs.stats[str(PROMPTS[0])]
    assert stats.num_drafts > 1
    drafted = [position for _, position, stream in asked if stream == "accept"]
    drawn = [position for _, position, stream in asked if stream == "target"]
    assert {seed for seed, *_ in asked} == {77}
    assert len(set(drafted)) == len(drafted)
    assert len(drawn) == stats.num_drafts  # the token of the target's own, each step at its place
    assert len(drawn) + stats.num_accepted_tokens == NUM_TOKENS - 2  # the first and the last were not drafted for
    assert set(drawn) <= set(range(1, NUM_TOKENS - 1))


class Oversized(ScriptedDrafter):
    """Drafts deeper than asked, ids that do not exist, trees beyond its own word."""

    def _draft(self, row: DraftRow) -> Draft:
        text = self._texts[next(p for p in self._texts if tuple(row.token_ids[: len(p)]) == p)]
        right = tuple(text[row.num_output : row.num_output + 3])
        long = right + (7,) * 40
        return (
            Draft(long),
            Draft((*right, 10**6, 5)),
            Draft(long, tuple(range(-1, len(long) - 1))),
            Draft((10**6, *right, -5), (-1, -1, *range(1, 1 + len(right)))[: len(right) + 2]),
        )[row.num_output % 4]


def test_what_a_drafter_may_not_propose_is_cut(target: DecoderModel, plain: Texts) -> None:
    drafter = Oversized(dict(plain), lambda prompt, step: 0)
    outputs = run(engine(target, drafter), [request(prompt, draft_len=3) for prompt in PROMPTS])
    assert outputs.tokens == {str(prompt): tokens for prompt, tokens in plain.items()}
    assert all(len(stats.num_accepted_tokens_per_pos) == 3 for stats in outputs.stats.values())


class Modulo:
    """The grammar of the texts whose tokens are 0, 1, 2, 0, 1, .. modulo 3, up to a length.

    It notices a token it was not asked about, one that is told twice, and one it had forbidden.
    """

    is_stuck = False

    def __init__(self, length: int) -> None:
        self.told: list[int] = []
        self._length = length
        self._was_masked = False

    def mask_logits(self, logits: torch.Tensor) -> None:
        assert not self.is_finished, "asked about text behind the end"
        logits[torch.arange(len(logits)) % 3 != len(self.told) % 3] = float("-inf")
        self._was_masked = True

    def accept(self, token_id: int) -> None:
        assert self._was_masked, "told a token that it did not mask, or twice"
        assert token_id % 3 == len(self.told) % 3
        self._was_masked = False
        self.told.append(token_id)

    def legal_draft(self, token_ids: Sequence[int], parents: Sequence[int] | None) -> list[int]:
        depths: dict[int, int] = {-1: len(self.told) - 1}
        for node, token in enumerate(token_ids):
            parent = node - 1 if parents is None else parents[node]
            if parent in depths and token % 3 == (depths[parent] + 1) % 3 and depths[parent] + 1 < self._length:
                depths[node] = depths[parent] + 1
        return [node for node in depths if node >= 0]

    @property
    def is_finished(self) -> bool:
        return len(self.told) >= self._length


@with_each_script
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=5, has_own_seed=False),
        SamplingParams(repetition_penalty=1.3, bad_words=((6,),)),
    ],
)
def test_guided_output_is_the_same_with_any_draft(
    target: DecoderModel, script: Script, sampling: SamplingParams
) -> None:
    for length in (1, 6, 11):
        grammars = [Modulo(length) for _ in PROMPTS]
        alone: Texts = {}
        for prompt, grammar in zip(PROMPTS, grammars, strict=True):
            alone[prompt] = run(engine(target), [request(prompt, sampling=sampling, guided=grammar)]).tokens[
                str(prompt)
            ]
            assert alone[prompt] == grammar.told
        grammars = [Modulo(length) for _ in PROMPTS]
        subject = engine(target, script(alone))
        outputs = run(
            subject,
            [
                request(prompt, draft_len=5, sampling=sampling, guided=grammar)
                for prompt, grammar in zip(PROMPTS, grammars, strict=True)
            ],
        )
        assert outputs.tokens == {str(prompt): tokens for prompt, tokens in alone.items()}
        assert [grammar.told for grammar in grammars] == list(alone.values())
        assert set(outputs.finish.values()) == {"stop"}


def test_a_draft_the_grammar_forbids_is_not_read(target: DecoderModel, plain: Texts) -> None:
    """Drafts of the unguided text beside a grammar: illegal ones are dropped before they cost anything."""
    grammar = Modulo(12)
    drafter = SCRIPTS["changing"](plain)
    outputs = run(engine(target, drafter), [request(PROMPTS[0], draft_len=5, guided=grammar)])
    assert outputs.finish[str(PROMPTS[0])] == "stop"
    assert outputs.stats[str(PROMPTS[0])].num_draft_tokens < 12


def test_a_grammar_outranks_a_ban_of_everything_it_allows(target: DecoderModel) -> None:
    multiples = tuple((token,) for token in range(0, target.vocab_size, 3))
    item = request(PROMPTS[0], guided=Modulo(1), sampling=SamplingParams(bad_words=multiples))
    assert run(engine(target), [item]).tokens[str(PROMPTS[0])][0] % 3 == 0


def test_the_logits_of_a_neighbour_are_not_masked(target: DecoderModel, plain: Texts) -> None:
    outputs = run(engine(target), [request(PROMPTS[0], guided=Modulo(20)), request(PROMPTS[1])])
    assert outputs.tokens[str(PROMPTS[1])] == plain[PROMPTS[1]]


class HalfPolicy(FixedDraftLength):
    """Half the cap, every other time nothing; remembers what it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.recorded: list[tuple[int, int, int]] = []
        self.timings: list[StepTiming] = []
        self.released: list[int] = []

    def draft_len(self, slot: int, cap: int, num_rows: int) -> int:
        self.asked.append((slot, cap, num_rows))
        return 0 if len(self.asked) % 3 == 0 else (cap + 1) // 2

    def record(self, slot: int, num_drafted: int, num_accepted: int) -> None:
        self.recorded.append((slot, num_drafted, num_accepted))

    def record_step(self, timing: StepTiming) -> None:
        self.timings.append(timing)

    def release(self, slot: int) -> None:
        self.released.append(slot)


@with_each_script
def test_a_policy_chooses_below_the_cap_and_learns_what_came_of_it(
    target: DecoderModel, plain: Texts, script: Script
) -> None:
    policy = HalfPolicy()
    subject = engine(target, script(plain), policy=policy)
    outputs = run(subject, [request(prompt, draft_len=4) for prompt in PROMPTS[:3]])
    assert outputs.tokens == {str(prompt): plain[prompt] for prompt in PROMPTS[:3]}
    assert all(1 <= cap <= 4 and 1 <= num_rows <= 3 for _, cap, num_rows in policy.asked)
    assert all(0 <= accepted <= drafted <= 2 for _, drafted, accepted in policy.recorded)
    assert any(accepted for *_, accepted in policy.recorded)
    assert len(policy.recorded) <= len(policy.asked) - len(policy.asked) // 3
    assert sorted(policy.released) == [0, 1, 2]
    assert policy.timings == []  # no clock


def test_times_of_a_step_are_split_between_drafter_and_target(target: DecoderModel, plain: Texts) -> None:
    """A clock that ticks 10 per reading: drafting, verifying and observing are one interval each."""
    policy = HalfPolicy()
    ticks = itertools.count(0, 10)
    subject = engine(target, SCRIPTS["perfect"](plain), policy=policy, clock=lambda: next(ticks), prefill_chunk=4)
    run(subject, [request(PROMPTS[0], draft_len=4), request(PROMPTS[3], draft_len=0)])
    assert {(timing.draft_ns, timing.verify_ns) for timing in policy.timings} == {(20, 10)}
    assert policy.timings[0] == StepTiming(0, 0, 0, 20, 10, has_prefill=True)
    last = policy.timings[-1]
    assert (last.num_rows, last.has_prefill) == (1, False)
    assert {timing.depth for timing in policy.timings} >= {0, 2}
    for timing in policy.timings:
        assert timing.num_tokens == timing.num_rows + timing.depth  # one row drafts


def test_memory_decides_who_joins_and_nobody_is_overtaken(target: DecoderModel, plain: Texts) -> None:
    subject = engine(target, max_rows=4, cache=target.new_cache(4, num_tokens=80))
    for name, max_tokens in (("first", 30), ("second", 40), ("large", 60), ("small", 2)):
        subject.submit(request(PROMPTS[0], name=name, max_tokens=max_tokens))
    outputs = Outputs()
    outputs.add(subject.step())
    assert subject.row_request_ids == ["first", "second"]  # 35 + 45 positions
    while "first" not in outputs.finish:
        outputs.add(subject.step())
    outputs.add(subject.step())
    assert subject.row_request_ids == ["second"]  # the small one would fit, but waits its turn
    while subject.num_in_flight:
        outputs.add(subject.step())
    assert list(outputs.tokens) == ["first", "second", "large", "small"]
    assert all(tokens[:NUM_TOKENS] == plain[PROMPTS[0]][: len(tokens)] for tokens in outputs.tokens.values())
    assert subject.num_slots_in_use == 0


def test_a_request_larger_than_all_memory_is_refused(target: DecoderModel) -> None:
    subject = engine(target, cache=target.new_cache(4, num_tokens=40))
    with pytest.raises(RequestError, match=r"max_tokens: .* up to 41 tokens .* for 40\. .*serving\.kv_cache_tokens"):
        subject.submit(request(PROMPTS[0], max_tokens=36))
    subject.submit(request(PROMPTS[0], max_tokens=35))
    assert len(run(subject, []).tokens[str(PROMPTS[0])]) == 35


@pytest.mark.parametrize("extra_tokens", [0, 2, 40])
def test_trees_keep_to_the_memory_of_their_row(target: DecoderModel, plain: Texts, extra_tokens: int) -> None:
    """Two rows back to back in memory that is just large enough: a tree too many would write into the other one."""
    drafter = ScriptedTreeDrafter(dict(plain), lambda prompt, step: step % 5)
    num_tokens = sum(len(prompt) + NUM_TOKENS for prompt in PROMPTS) + extra_tokens
    cache = target.new_cache(6, num_tokens=num_tokens, extra_tokens=extra_tokens)
    outputs = run(engine(target, drafter, cache=cache), [request(prompt, draft_len=4) for prompt in PROMPTS])
    assert outputs.tokens == {str(prompt): tokens for prompt, tokens in plain.items()}
