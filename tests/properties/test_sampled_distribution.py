"""Drafts that are drawn at random change nothing in the distribution of the output.

First the ratio rule alone, against distributions made by hand. Then the whole engine: many requests with seeds of
their own each give one text of a tiny model, and how often each pair of neighbouring tokens occurs is compared with
the exact distribution, which is enumerated by plain forward passes. Seeds are fixed, so the tests cannot flake.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from helpers.scripted_drafter import SampledDrafter
from helpers.tiny_checkpoint import make_checkpoint
from specdeploy.runtime.attention import Span
from specdeploy.runtime.drafters.base import Drafter
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest, SamplingParams
from specdeploy.runtime.sampling import TokenCounts, adjusted_logits, draw_index, target_probs, uniform_at
from specdeploy.runtime.verify import verify_sampled

VOCAB = 8
Cells = npt.NDArray[np.float64]


def p_value(observed: Cells, probs: Cells) -> float:
    """Chi-square of counts against probabilities; cells too rare for it are pooled. 0 if the impossible occurred."""
    if observed[probs < 1e-12].any():
        return 0.0
    expected = probs / probs.sum() * observed.sum()
    common = expected >= 5
    observed_cells, expected_cells = observed[common], expected[common]
    if expected[~common].sum() >= 5:
        observed_cells = np.append(observed_cells, observed[~common].sum())
        expected_cells = np.append(expected_cells, expected[~common].sum())
    else:  # too rare together as well: with the smallest of the others
        observed_cells[-1] += observed[~common].sum()
        expected_cells[-1] += expected[~common].sum()
    return float(stats.chisquare(observed_cells, expected_cells).pvalue) if len(expected_cells) > 1 else 1.0


def table(seed: int, scale: float, rows: int = 3) -> torch.Tensor:
    """Random distributions [rows, V]."""
    return torch.softmax(torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale, dim=-1)


def sharpened(probs: torch.Tensor) -> torch.Tensor:
    """The two likeliest tokens of each row alone."""
    kept = probs.topk(2, dim=-1)
    return torch.zeros_like(probs).scatter_(-1, kept.indices, kept.values / kept.values.sum(-1, keepdim=True))


TARGET = table(1, 1.0)
DRAFTS = {
    "another": table(2, 1.0),
    "the same": TARGET,
    "close": torch.softmax(TARGET.log() + 0.2 * table(3, 1.0), -1),
    "uniform": torch.full((3, VOCAB), 1 / VOCAB),
    "sharper": sharpened(TARGET),
    "disjoint": sharpened(1 / TARGET),
}


@pytest.mark.parametrize("draft_probs", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("truncate", [lambda probs: probs, sharpened], ids=["all", "top 2"])
def test_the_ratio_rule_gives_the_targets_distribution(
    draft_probs: torch.Tensor, truncate: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Positions are independent here, so that each has the target's own distribution, whatever came before it."""
    target = truncate(TARGET)
    num_runs, num_accepted = 2500, 0
    counts = np.zeros((3, VOCAB))
    for seed in range(num_runs):
        draft_ids = [draw_index(draft_probs[index], uniform_at(seed, index, "draft")) for index in range(2)]
        result = verify_sampled(
            draft_ids,
            draft_probs[:2],
            target.__getitem__,
            lambda stream, index, seed=seed: uniform_at(seed, index, stream),  # type: ignore[misc]
        )
        num_accepted += result.num_accepted
        for position, token in enumerate(result.token_ids):
            counts[position, token] += 1
    for position in range(3):
        if counts[position].sum() >= 100:
            assert p_value(counts[position], target[position].double().numpy()) > 1e-4
    shared = torch.minimum(target, draft_probs).sum(-1).double()  # the chance to accept (Leviathan et al., theorem 3.5)
    expected = float(shared[0] + shared[0] * shared[1])
    assert num_accepted / num_runs == pytest.approx(expected, abs=0.05)


def test_the_comparison_notices_another_distribution() -> None:
    counts = np.bincount([draw_index(TARGET[0], uniform_at(seed, 0)) for seed in range(2500)], minlength=VOCAB).astype(
        float
    )
    assert p_value(counts, TARGET[0].double().numpy()) > 1e-4
    assert p_value(counts, torch.softmax(TARGET[0].log() * 1.25, -1).double().numpy()) < 1e-4


# The whole engine.

PROMPT = (3, 1, 4)
LENGTH = 4
NUM_REQUESTS = 1200
NUM_ROWS = 40
ENDED = VOCAB  # in place of a token behind the end
CASES: dict[str, tuple[SamplingParams, frozenset[int]]] = {
    "temperature": (SamplingParams(temperature=1.2), frozenset()),
    "top_k": (SamplingParams(temperature=1.0, top_k=3), frozenset()),
    "top_p": (SamplingParams(temperature=1.0, top_p=0.8), frozenset()),
    "min_p": (SamplingParams(temperature=1.5, min_p=0.15), frozenset()),
    "penalties": (
        SamplingParams(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.6, frequency_penalty=0.4),
        frozenset(),
    ),
    "bias and bans": (SamplingParams(temperature=1.0, logit_bias={2: 1.5}, bad_words=((5,), (2, 1))), frozenset()),
    "stop ids": (SamplingParams(temperature=1.0), frozenset({1, 6})),
    "min_tokens": (SamplingParams(temperature=1.0, min_tokens=2), frozenset({0, 1, 6})),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    folder = make_checkpoint(
        tmp_path_factory.mktemp("tiny"), seed=2, num_layers=1, hidden_size=16, vocab_size=VOCAB, initializer_range=0.5
    )
    return DecoderModel(folder, dtype=torch.float32, device=torch.device("cpu"), max_seq_len=32)


@pytest.fixture(scope="module")
def logits_after(model: DecoderModel) -> dict[tuple[int, ...], torch.Tensor]:
    """Of every output shorter than LENGTH, the target's logits [V] for the next token."""
    outputs = [text for length in range(LENGTH) for text in itertools.product(range(VOCAB), repeat=length)]
    cache = model.new_cache(1)
    return {
        text: model.forward(
            [*PROMPT, *text], [Span(0, len(PROMPT) + len(text), 0, 0)], [len(PROMPT) + len(text) - 1], cache
        ).logits[0]
        for text in outputs
    }


def exact_pairs(
    logits_after: dict[tuple[int, ...], torch.Tensor], params: SamplingParams, stop_ids: frozenset[int]
) -> Cells:
    """[LENGTH - 1, V+1, V+1]: how likely each pair of tokens is at each two neighbouring positions."""
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for text, weight in texts.items():
            if text and (text[-1] in stop_ids or text[-1] == ENDED):
                longer[(*text, ENDED)] = weight
                continue
            counts = TokenCounts(PROMPT, LENGTH)
            for token in text:
                counts.add(token)
            adjusted = adjusted_logits(
                logits_after[text],
                params,
                token_ids=[*PROMPT, *text],
                num_output=len(text),
                stop_ids=stop_ids,
                counts=counts,
            )
            probs = target_probs(adjusted, params).tolist()
            longer |= {(*text, token): weight * prob for token, prob in enumerate(probs) if prob}
        texts = longer
    return pairs(texts)


def pairs(texts: dict[tuple[int, ...], float]) -> Cells:
    cells = np.zeros((LENGTH - 1, VOCAB + 1, VOCAB + 1))
    for text, weight in texts.items():
        for position in range(LENGTH - 1):
            cells[position, text[position], text[position + 1]] += weight
    return cells


def served(
    model: DecoderModel, drafter: Drafter | None, params: SamplingParams, stop_ids: frozenset[int]
) -> tuple[dict[tuple[int, ...], float], float]:
    """How often each text came, and the share of draft tokens that was accepted."""
    engine = Engine(model, drafter, max_rows=NUM_ROWS, max_queue=NUM_REQUESTS, prefill_chunk=200)
    for seed in range(NUM_REQUESTS):
        sampling = SamplingParams(
            **{name: getattr(params, name) for name in params.__slots__} | {"seed": seed, "has_own_seed": False}
        )
        engine.submit(
            GenerationRequest(
                str(seed), PROMPT, LENGTH, stop_ids, sampling, draft_len=lambda in_flight: 1 + in_flight % 3
            )
        )
    tokens: dict[str, tuple[int, ...]] = {}
    drafted = accepted = 0
    while engine.num_in_flight:
        for update in engine.step():
            tokens[update.request_id] = tokens.get(update.request_id, ()) + update.token_ids
            if update.finish_reason is not None:
                drafted += update.stats.num_draft_tokens
                accepted += update.stats.num_accepted_tokens
    texts: dict[tuple[int, ...], float] = {}
    for text in tokens.values():
        padded = text + (ENDED,) * (LENGTH - len(text))
        texts[padded] = texts.get(padded, 0) + 1
    return texts, accepted / max(drafted, 1)


def by_last_token(seed: int) -> Callable[[Sequence[int]], torch.Tensor]:
    """A draft that knows the last token only; half of what it draws is what the target likes anyway."""
    probs = table(seed, 1.0, rows=VOCAB)
    return lambda text: probs[text[-1] % VOCAB]


def beyond_the_vocabulary(text: Sequence[int]) -> torch.Tensor:
    """A draft that draws ids which the target does not have, as often as not."""
    return torch.full((2 * VOCAB,), 1 / (2 * VOCAB))


@pytest.mark.parametrize(
    ("case", "probs_of"),
    [*((case, by_last_token(7)) for case in CASES), ("temperature", beyond_the_vocabulary)],
    ids=[*CASES, "beyond the vocabulary"],
)
def test_texts_of_the_engine_follow_the_targets_distribution(
    model: DecoderModel,
    logits_after: dict[tuple[int, ...], torch.Tensor],
    case: str,
    probs_of: Callable[[Sequence[int]], torch.Tensor],
) -> None:
    params, stop_ids = CASES[case]
    exact = exact_pairs(logits_after, params, stop_ids)
    texts, acceptance = served(model, SampledDrafter(probs_of), params, stop_ids)
    assert 0.02 < acceptance < 0.98  # both ways of the rule were gone
    observed = pairs(texts)
    for position in range(LENGTH - 1):
        assert p_value(observed[position].ravel(), exact[position].ravel()) > 1e-4


def test_the_comparison_of_texts_notices_another_temperature(
    model: DecoderModel, logits_after: dict[tuple[int, ...], torch.Tensor]
) -> None:
    exact = exact_pairs(logits_after, SamplingParams(temperature=1.5), frozenset())
    texts, _ = served(model, SampledDrafter(by_last_token(7)), SamplingParams(temperature=1.2), frozenset())
    observed = pairs(texts)
    assert min(p_value(observed[position].ravel(), exact[position].ravel()) for position in range(LENGTH - 1)) < 1e-4
