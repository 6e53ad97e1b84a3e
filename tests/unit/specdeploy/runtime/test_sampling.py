"""The target's choice: hand-made cases, and the drawn distribution."""

import pytest
import torch
from scipy import stats

from specdeploy.runtime.request import SamplingParams
from specdeploy.runtime.sampling import adjusted_logits, choose_token, target_probs, uniform_at

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def adjusted(params: SamplingParams, output_ids: list[int], prompt_ids: tuple[int, ...] = ()) -> list[float]:
    result = adjusted_logits(LOGITS, params, prompt_ids=prompt_ids, output_ids=output_ids, stop_ids=frozenset({1}))
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


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.999])
def test_top_p_of_a_large_flat_vocabulary_is_exact(top_p: float) -> None:
    logits = torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 0.01
    ordered = torch.softmax(logits, -1).sort(descending=True).values.double()
    expected = int((ordered.cumsum(0) - ordered < top_p).sum())
    kept = int((target_probs(logits, SamplingParams(temperature=1.0, top_p=top_p)) > 0).sum())
    assert abs(kept - expected) <= 1


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


def test_random_numbers_depend_on_seed_and_position_alone() -> None:
    assert uniform_at(7, 3) == uniform_at(7, 3)
    values = {uniform_at(seed, position) for seed in (0, 1, 2**64 - 1) for position in range(50)}
    assert len(values) == 150
    assert all(0 <= value < 1 for value in values)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45])
def test_a_tiny_temperature_is_greedy_not_garbage(temperature: float) -> None:
    logits = LOGITS.roll(2)
    for seed in range(5):
        params = SamplingParams(temperature=temperature, seed=seed)
        assert choose_token(logits, params, 0) == int(logits.argmax())
