"""The target's choice: hand-made cases, and the drawn distribution."""

import numpy as np
import pytest
import torch
from scipy import stats

from specdeploy.runtime.request import SamplingParams
from specdeploy.runtime.sampling import (
    Stream,
    TokenCounts,
    adjusted_logits,
    choose_token,
    draw_index,
    target_probs,
    uniform_at,
)

KNOWN_UNIFORMS = (0.011546754286331562, 0.1401652168437143)
LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def adjusted(params: SamplingParams, output_ids: list[int], prompt_ids: tuple[int, ...] = ()) -> list[float]:
    counts = TokenCounts(prompt_ids, 8)
    for token in output_ids:
        counts.add(token)
    result = adjusted_logits(
        LOGITS,
        params,
        token_ids=[*prompt_ids, *output_ids],
        num_output=len(output_ids),
        stop_ids=frozenset({1}),
        counts=counts,
    )
    return result.tolist()


def test_repetition_penalty_counts_prompt_and_output() -> None:
    values = adjusted(SamplingParams(repetition_penalty=2.0), [3], prompt_ids=(0,))
    assert values == [1.0, 1.0, 0.5, -2.0, -3.0]


def test_presence_and_frequency_count_the_output_only() -> None:
    values = adjusted(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), [2, 2, 4], prompt_ids=(0, 1))
    assert values == pytest.approx([2.0, 1.0, -0.5, -1.0, -3.75])


def test_bias_is_added() -> None:
    assert adjusted(SamplingParams(logit_bias={4: 10.0}), []) == [2.0, 1.0, 0.5, -1.0, 7.0]


def test_stop_ids_are_impossible_before_min_tokens() -> None:
    params = SamplingParams(min_tokens=2)
    assert adjusted(params, [0])[1] == float("-inf")
    assert adjusted(params, [0, 0])[1] == 1.0


def test_bad_words_cannot_be_completed() -> None:
    params = SamplingParams(bad_words=((2,), (0, 3)))
    assert adjusted(params, [1])[2] == float("-inf")
    assert adjusted(params, [1])[3] == -1.0
    assert adjusted(params, [1, 0])[3] == float("-inf")
    assert adjusted(params, [], prompt_ids=(0,))[3] == -1.0  # what the prompt ends with completes no word of the output


def test_the_given_logits_are_not_changed() -> None:
    adjusted(SamplingParams(logit_bias={0: 1.0}), [])
    assert LOGITS.tolist() == [2.0, 1.0, 0.5, -1.0, -3.0]


def test_top_k_top_p_and_min_p_keep_what_they_say() -> None:
    probs = torch.softmax(LOGITS, -1)
    assert (target_probs(LOGITS, SamplingParams(temperature=1.0, top_k=2)) > 0).tolist() == [True, True] + [False] * 3
    assert (target_probs(LOGITS, SamplingParams(temperature=1.0, top_p=0.5)) > 0).sum() == 1
    assert (target_probs(LOGITS, SamplingParams(temperature=1.0, top_p=0.7)) > 0).sum() == 2
    kept = target_probs(LOGITS, SamplingParams(temperature=1.0, min_p=0.2)) > 0
    assert kept.tolist() == (probs >= 0.2 * probs.max()).tolist()
    assert float(target_probs(LOGITS, SamplingParams(temperature=2.0, top_k=3)).sum()) == pytest.approx(1.0)


def test_penalties_follow_a_growing_text() -> None:
    """Counts kept up token by token are those of the whole text."""
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25)
    values = adjusted(params, [2, 0, 2], prompt_ids=(3, 3, 0))
    expected = [
        2.0 / 1.5 - 0.5 - 0.25,
        1.0,
        0.5 / 1.5 - 0.5 - 0.5,
        -1.0 * 1.5,
        -3.0,
    ]
    assert values == pytest.approx(expected)


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 0.999])
def test_top_p_of_a_large_vocabulary_is_exact(top_p: float, scale: float) -> None:
    """Flat and peaked, so that each shortcut is taken and is not taken."""
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * scale
    ordered = torch.softmax(logits, -1).sort(descending=True).values.double()
    expected = int((ordered.cumsum(0) - ordered < top_p).sum())
    probs = target_probs(logits, SamplingParams(temperature=1.0, top_p=top_p))
    is_kept = probs > 0
    assert abs(int(is_kept.sum()) - expected) <= 1
    assert logits[is_kept].min() >= logits[~is_kept].max()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7, top_k=7, top_p=0.6, min_p=0.3),
        SamplingParams(temperature=1.5, top_k=20, min_p=0.2),
        SamplingParams(temperature=2.0, top_p=0.8, min_p=0.1),
        SamplingParams(temperature=3.0, min_p=0.05),
    ],
)
def test_truncations_together_are_those_of_the_definition(params: SamplingParams) -> None:
    """Step by step over the whole vocabulary, in float64."""
    logits = torch.randn(500, generator=torch.Generator().manual_seed(3))
    scaled = logits.double() / params.temperature
    if params.top_k:
        scaled[scaled < scaled.topk(params.top_k).values[-1]] = float("-inf")
    probs = torch.softmax(scaled, -1)
    ordered, order = probs.sort(descending=True)
    kept = torch.zeros_like(probs, dtype=torch.bool)
    kept[order[ordered.cumsum(0) - ordered < params.top_p]] = True
    kept &= probs >= params.min_p * probs.max()
    expected = torch.where(kept, probs, 0.0)
    actual = target_probs(logits, params).double()
    assert torch.allclose(actual, expected / expected.sum(), atol=1e-6)


def test_top_k_keeps_exactly_k_of_equal_logits() -> None:
    assert int((target_probs(torch.zeros(9), SamplingParams(temperature=1.0, top_k=4)) > 0).sum()) == 4


def test_greedy_means_argmax() -> None:
    assert choose_token(LOGITS, SamplingParams(), 0) == 0
    assert choose_token(LOGITS, SamplingParams(temperature=5.0, top_k=1), 0) == 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=4),
        SamplingParams(temperature=1.2, top_p=0.9),
    ],
)
def test_choices_over_seeds_follow_the_distribution(params: SamplingParams) -> None:
    expected = target_probs(LOGITS, params).double().numpy()
    expected /= expected.sum()
    draws = [
        choose_token(LOGITS, SamplingParams(params.temperature, params.top_k, params.top_p, seed=seed), 3)
        for seed in range(4000)
    ]
    counts = torch.bincount(torch.tensor(draws), minlength=5).numpy()
    kept = expected > 0
    assert counts[~kept].sum() == 0
    assert stats.chisquare(counts[kept], expected[kept] * 4000).pvalue > 1e-4


def test_random_numbers_depend_on_seed_position_and_stream_alone() -> None:
    streams: tuple[Stream, ...] = ("target", "draft", "accept")
    assert uniform_at(7, 3) == uniform_at(7, 3, "target") == uniform_at(7, 3)
    values = {
        uniform_at(seed, position, stream) for seed in (0, 1, 2**64 - 1) for position in range(50) for stream in streams
    }
    assert len(values) == 450
    assert all(0 <= value < 1 for value in values)


def test_random_numbers_of_known_seeds_stay_what_they_are() -> None:
    """A seed's text must survive an update."""
    assert uniform_at(0, 0) == pytest.approx(KNOWN_UNIFORMS[0], abs=0)
    assert uniform_at(12345, 6) == pytest.approx(KNOWN_UNIFORMS[1], abs=0)


def test_streams_are_independent() -> None:
    """Over a grid of 5 x 5 cells every pair of streams fills all cells alike, at the same and at the next position."""
    numbers = {
        stream: np.array([uniform_at(seed, position, stream) for seed in range(40) for position in range(51)])
        for stream in ("target", "draft", "accept")
    }
    for first, second in (("target", "draft"), ("target", "accept"), ("draft", "accept")):
        for shift in (0, 1):
            a, b = numbers[first][: len(numbers[first]) - shift], numbers[second][shift:]
            cells = np.bincount((a * 5).astype(int) * 5 + (b * 5).astype(int), minlength=25)
            assert stats.chisquare(cells).pvalue > 1e-4


@pytest.mark.parametrize("size", [3, 1023, 1024, 5000])
def test_an_index_is_drawn_where_the_running_sum_passes_the_number(size: int) -> None:
    """Short weights and long ones, which are summed in blocks."""
    weights = torch.rand(size, generator=torch.Generator().manual_seed(size))
    weights[::3] = 0.0
    cumulative = weights.double().cumsum(0) / weights.double().sum()
    for uniform in (0.0, 0.1, 0.5, 0.77, 0.999, 1.0 - 2**-53):
        index = draw_index(weights, uniform)
        assert weights[index] > 0
        before = float(cumulative[index - 1]) if index else 0.0
        assert before - 1e-5 <= uniform <= float(cumulative[index]) + 1e-5


def test_blocks_do_not_change_the_distribution() -> None:
    weights = torch.rand(2000, generator=torch.Generator().manual_seed(1))
    weights[300:600] = 0.0
    draws = np.array([draw_index(weights, (number + 0.5) / 20_000) for number in range(20_000)])
    cells = np.bincount(draws // 50, minlength=40)
    expected = weights.view(40, 50).sum(1).double().numpy()
    assert np.abs(cells - expected / expected.sum() * 20_000).max() <= 2.0


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45])
def test_a_tiny_temperature_is_greedy_not_garbage(temperature: float) -> None:
    logits = LOGITS.roll(2)
    for seed in range(5):
        params = SamplingParams(temperature=temperature, seed=seed)
        assert choose_token(logits, params, 0) == int(logits.argmax())
