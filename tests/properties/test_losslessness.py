"""Speculation changes nothing but the time: greedy token for token, sampling in distribution and by seed.

First a toy target (logits depend on the last token) is decoded plainly and through the verification of chains and
trees of any kind; then a whole engine serves random mixes of requests, each of which must get what it gets alone.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers.scripted_drafter import CarelessDrafter
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, SamplingParams
from specdeploy.runtime.sampling import choose_token, target_probs
from specdeploy.runtime.verify import verify_chain, verify_tree

VOCAB = 4
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(11))

Draft = Callable[[Sequence[int]], Sequence[int]]
Tree = tuple[list[int], list[int]]


def decode(params: SamplingParams, length: int, draft: Draft) -> list[int]:
    """Generate `length` tokens from token 0; `draft` proposes any number of tokens from the text so far."""
    text = [0]
    while len(text) <= length:
        proposal = list(draft(text))[: length - len(text)]

        def choose(index: int, proposal: Sequence[int] = proposal) -> int:
            before = [*text, *proposal[:index]]
            return choose_token(TABLE[before[-1]], params, len(before) - 1)

        text.extend(verify_chain(proposal, choose).token_ids)
    return text[1:]


drafts = st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=6), min_size=1, max_size=5)


def cycling(proposals: list[list[int]]) -> Draft:
    return lambda text: proposals[len(text) % len(proposals)]


@given(proposals=drafts, length=st.integers(1, 20))
def test_greedy_is_identical_for_any_draft(proposals: list[list[int]], length: int) -> None:
    params = SamplingParams()
    assert decode(params, length, cycling(proposals)) == decode(params, length, lambda text: [])


@given(proposals=drafts, length=st.integers(1, 12), seed=st.integers(0, 2**64 - 1), temperature=st.floats(0.1, 3.0))
def test_a_seed_is_identical_for_any_draft(
    proposals: list[list[int]], length: int, seed: int, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=seed)
    assert decode(params, length, cycling(proposals)) == decode(params, length, lambda text: [])


def exact_distribution(params: SamplingParams, length: int) -> dict[tuple[int, ...], float]:
    """Probability of every text of `length` tokens, by enumeration."""
    texts: dict[tuple[int, ...], float] = {(0,): 1.0}
    for _ in range(length):
        texts = {
            (*text, token): weight * float(prob)
            for text, weight in texts.items()
            for token, prob in enumerate(target_probs(TABLE[text[-1]], params))
        }
    return {text[1:]: weight for text, weight in texts.items()}


def test_sampled_texts_follow_the_targets_distribution() -> None:
    """Drafts that repeat the likeliest token (high acceptance) and drafts that are always the same (low)."""
    likeliest: Draft = lambda text: [int(TABLE[text[-1]].argmax())] * 2  # noqa: E731 - a named draft reads better
    for draft in (likeliest, lambda text: [3, 1]):
        expected = exact_distribution(SamplingParams(temperature=0.9), 3)
        counts = Counter(tuple(decode(SamplingParams(temperature=0.9, seed=seed), 3, draft)) for seed in range(6000))
        texts = sorted(expected)
        probs = np.array([expected[text] for text in texts])
        observed = np.array([counts[text] for text in texts])
        common = probs * 6000 >= 5  # chi-square needs expected counts; the rare texts are pooled
        pooled_observed = np.append(observed[common], observed[~common].sum())
        pooled_expected = np.append(probs[common], probs[~common].sum()) / probs.sum() * 6000
        assert stats.chisquare(pooled_observed, pooled_expected).pvalue > 1e-4


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Token ids and parents; siblings may be alike, as nothing depends on it."""
    size = draw(st.integers(0, 9))
    token_ids = draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size))
    return token_ids, [draw(st.integers(-1, node - 1)) for node in range(size)]


@given(
    proposals=st.lists(trees(), min_size=1, max_size=4),
    length=st.integers(1, 16),
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.5, 1.5]),
)
def test_a_seed_is_identical_for_any_tree(proposals: list[Tree], length: int, seed: int, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=seed)
    text = [0]
    while len(text) <= length:
        token_ids, parents = proposals[len(text) % len(proposals)]
        added: list[int] = []

        def choose(node: int, added: list[int] = added) -> int:
            before = text + added
            return choose_token(TABLE[before[-1]], params, len(before) - 1)

        def ends(token: int, added: list[int] = added) -> bool:
            added.append(token)
            return len(text) + len(added) > length

        result = verify_tree(token_ids, parents, choose, ends)
        assert list(result.token_ids) == added
        assert [token_ids[node] for node in result.accepted_nodes] == added[: result.num_accepted]
        assert [parents[node] for node in result.accepted_nodes] == [-1, *result.accepted_nodes][: result.num_accepted]
        text.extend(added)
    assert text[1:] == decode(params, length, lambda text: [])


# The whole engine.

PROMPTS = [(3, 1, 4), (1,), tuple(range(12)), (5, 5, 5, 2), (9, 8, 7, 6, 5, 4, 3)]
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(temperature=1.4, top_k=5, top_p=0.9, seed=2),
    SamplingParams(repetition_penalty=1.5, presence_penalty=0.3),
    SamplingParams(temperature=0.9, min_p=0.1, logit_bias={3: 1.0}, bad_words=((2,), (1, 4)), seed=3),
]
LONGEST = 20
MAX_SEQ_LEN = 40

Case = tuple[int, int]  # indices of prompt and sampling


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    folder = make_checkpoint(
        tmp_path_factory.mktemp("tiny"), seed=4, num_layers=1, hidden_size=16, vocab_size=16, initializer_range=0.6
    )
    return DecoderModel(folder, dtype=torch.float32, device=torch.device("cpu"), max_seq_len=MAX_SEQ_LEN)


@pytest.fixture(scope="module")
def alone(tiny: DecoderModel) -> dict[Case, list[int]]:
    """What each prompt gives with each way of sampling, by itself and without drafts."""
    texts: dict[Case, list[int]] = {}
    for case in itertools.product(range(len(PROMPTS)), range(len(SAMPLINGS))):
        engine = Engine(tiny, None, max_rows=1, max_queue=1, prefill_chunk=64)
        engine.submit(GenerationRequest("", PROMPTS[case[0]], LONGEST, sampling=SAMPLINGS[case[1]]))
        texts[case] = [token for _ in range(LONGEST) for update in engine.step() for token in update.token_ids]
    return texts


@dataclass
class Mix:
    """An engine under random traffic, and what each request is to get."""

    engine: Engine
    alone: dict[Case, list[int]]
    expected: dict[str, list[int]] = field(default_factory=dict)
    received: dict[str, list[int]] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)

    def submit(self, case: Case, *, draft_len: int, max_tokens: int, stop_ids: frozenset[int]) -> None:
        name = f"{len(self.expected)}"
        text = self.alone[case][:max_tokens]
        end = next((place for place, token in enumerate(text) if token in stop_ids), len(text))
        self.expected[name] = text[: end + 1]
        self.received[name] = []
        self.engine.submit(
            GenerationRequest(
                name,
                PROMPTS[case[0]],
                max_tokens,
                stop_ids,
                SAMPLINGS[case[1]],
                draft_len=lambda in_flight: draft_len,
            )
        )

    def step(self) -> None:
        for update in self.engine.step():
            assert update.request_id not in self.finished
            self.received[update.request_id] += update.token_ids
            if update.finish_reason is not None:
                self.finished[update.request_id] = update.finish_reason

    def cancel(self, index: int) -> None:
        names = self.engine.row_request_ids + self.engine.waiting_request_ids
        if names:
            update = self.engine.cancel(names[index % len(names)])
            assert update is not None
            self.finished[update.request_id] = "cancelled"

    def check(self) -> None:
        """Everything was answered as if alone; a cancelled request as far as it came; no memory is held."""
        while self.engine.num_in_flight:
            self.step()
        assert self.finished.keys() == self.expected.keys()
        for name, expected in self.expected.items():
            received = self.received[name]
            assert received == expected[: len(received)]
            assert len(received) == len(expected) or self.finished[name] == "cancelled"
        assert self.engine.num_slots_in_use == 0


def careless(alone: dict[Case, list[int]], seed: int) -> CarelessDrafter:
    texts = [[*PROMPTS[prompt], *text] for (prompt, _), text in alone.items()]
    return CarelessDrafter(texts, seed=seed, vocab_size=16)


submissions = st.tuples(
    st.tuples(st.integers(0, len(PROMPTS) - 1), st.integers(0, len(SAMPLINGS) - 1)),
    st.integers(0, 5),
    st.integers(1, LONGEST),
    st.frozensets(st.integers(0, 15), max_size=2),
)
actions = st.lists(st.one_of(submissions, st.just("step"), st.integers(0, 9)), max_size=25)


@settings(max_examples=40, deadline=None)
@given(traffic=actions, seed=st.integers(0, 99), max_rows=st.integers(1, 4), prefill_chunk=st.sampled_from([1, 5, 64]))
def test_a_request_gets_in_any_traffic_what_it_gets_alone(
    tiny: DecoderModel,
    alone: dict[Case, list[int]],
    traffic: list[object],
    seed: int,
    max_rows: int,
    prefill_chunk: int,
) -> None:
    cache = tiny.new_cache(max_rows, num_tokens=45 * max_rows, extra_tokens=6)
    drafter = careless(alone, seed)
    mix = Mix(Engine(tiny, drafter, max_rows=max_rows, max_queue=99, prefill_chunk=prefill_chunk, cache=cache), alone)
    for action in traffic:
        if isinstance(action, tuple):
            case, draft_len, max_tokens, stop_ids = action
            mix.submit(case, draft_len=draft_len, max_tokens=max_tokens, stop_ids=stop_ids)
        elif isinstance(action, int):
            mix.cancel(action)
        else:
            mix.step()
    mix.check()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_long_run_loses_nothing_and_keeps_nothing(
    tiny: DecoderModel, alone: dict[Case, list[int]], seed: int
) -> None:
    """A thousand steps of requests that come, go and are cancelled, in memory for two and a half of four rows."""
    rng = random.Random(seed)
    cache = tiny.new_cache(4, num_tokens=100)
    drafter = careless(alone, seed)
    mix = Mix(Engine(tiny, drafter, max_rows=4, max_queue=8, prefill_chunk=6, cache=cache), alone)
    for _ in range(1000):
        if mix.engine.num_in_flight < 6 and rng.random() < 0.5:
            mix.submit(
                rng.choice(list(alone)),
                draft_len=rng.randrange(6),
                max_tokens=rng.randint(1, LONGEST),
                stop_ids=frozenset(rng.sample(range(16), rng.randrange(2))),
            )
        if rng.random() < 0.03:
            mix.cancel(rng.randrange(9))
        mix.step()
    mix.check()
    assert len(mix.expected) > 100
    assert {"stop", "length", "cancelled"} == set(mix.finished.values())
    assert (cache.num_free, cache.num_tokens_in_use) == (4, 0)
    assert cache.allocate(cache.max_request_tokens) is not None  # in one piece again
    assert len(drafter.released) >= len([reason for reason in mix.finished.values() if reason != "cancelled"])
