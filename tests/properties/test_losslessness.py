"""Speculation changes nothing but the time: greedy token for token, sampling in distribution and by seed.

A toy target (logits depend on the last token) is decoded plainly and through `verify` with drafts of any kind.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specdeploy.runtime.request import SamplingParams
from specdeploy.runtime.sampling import choose_token, target_probs
from specdeploy.runtime.verify import verify

VOCAB = 4
TABLE = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(11))

Draft = Callable[[Sequence[int]], Sequence[int]]


def decode(params: SamplingParams, length: int, draft: Draft) -> list[int]:
    """Generate `length` tokens from token 0; `draft` proposes any number of tokens from the text so far."""
    text = [0]
    while len(text) <= length:
        proposal = list(draft(text))[: length - len(text)]

        def choose(index: int, proposal: Sequence[int] = proposal) -> int:
            before = [*text, *proposal[:index]]
            return choose_token(TABLE[before[-1]], params, len(before) - 1)

        text.extend(verify(proposal, choose).token_ids)
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
