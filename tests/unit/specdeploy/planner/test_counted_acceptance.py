"""Counts of requests as a profile."""

import numpy as np
import pytest

from specdeploy.contract import Method
from specdeploy.planner.counted_acceptance import (
    RequestCounts,
    profile_of_counts,
    request_sd_of_means,
    step_variance,
)
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm


def profile(counts: list[RequestCounts], draft_len: int = 3) -> AcceptanceProfile | None:
    return profile_of_counts(counts, draft_len, method=Method.NGRAM, form=DraftForm.LOOKUP, source="a test")


def drawn(alphas: list[float], num_steps: int, draft_len: int = 4, seed: int = 0) -> list[RequestCounts]:
    """Requests of `num_steps` steps, each with its own alpha."""
    rng = np.random.default_rng(seed)
    counts = []
    for alpha in alphas:
        accepted = np.minimum(rng.geometric(1 - alpha, num_steps) - 1, draft_len)
        per_pos = tuple(int((accepted > position).sum()) for position in range(draft_len))
        counts.append(RequestCounts(num_steps, num_steps, per_pos))
    return counts


def test_survivals_are_ratios_of_sums() -> None:
    found = profile([RequestCounts(10, 5, (4, 2)), RequestCounts(30, 15, (8, 4, 2))])

    assert found is not None
    assert found.survivals == pytest.approx((0.6, 0.3, 0.1))
    assert found.draft_share == pytest.approx(0.5)
    assert (found.num_steps, found.num_requests) == (40, 2)
    assert found.origin is AcceptanceOrigin.PROFILE


def test_nothing_drafted_is_no_acceptance() -> None:
    assert profile([RequestCounts(10, 0, ())]) is None
    assert profile([]) is None


def test_one_request_has_no_interval_and_no_spread() -> None:
    found = profile([RequestCounts(10, 10, (4,))])

    assert found is not None
    assert found.survivals_low is None
    assert found.request_sd is None


def test_the_interval_covers_the_truth_and_never_rises() -> None:
    hits = 0
    for seed in range(60):
        found = profile(drawn([0.5 + 0.02 * i for i in range(12)], 60, seed=seed), 4)
        assert found is not None
        low, high = found.survivals_low or (), found.survivals_high or ()
        assert list(low) == sorted(low, reverse=True)
        assert list(high) == sorted(high, reverse=True)
        truth = float(np.mean([0.5 + 0.02 * i for i in range(12)]))
        hits += low[0] <= truth <= high[0]
    assert hits >= 54


def test_chance_alone_is_no_spread() -> None:
    alike = profile(drawn([0.6] * 40, 30), 4)
    differing = profile(drawn([0.2, 0.8] * 20, 30), 4)

    assert alike is not None
    assert differing is not None
    truth = float(np.std([1 + sum(alpha**i for i in range(1, 5)) for alpha in (0.2, 0.8)]))
    assert (alike.request_sd or 0) < 0.2
    assert differing.request_sd == pytest.approx(truth, rel=0.15)


def test_the_spread_follows_from_two_means() -> None:
    own = np.array([1.5, 3.0] * 200)
    num_steps = round(float((500 / own).sum()))

    spread = request_sd_of_means(
        step_mean=1 / float((1 / own).mean()),
        request_mean=float(own.mean()),
        num_steps=num_steps,
        num_requests=400,
        survivals=(0.5, 0.3, 0.2),
        draft_share=1.0,
    )

    assert spread == pytest.approx(own.std(), rel=0.12)  # to second order


def test_an_unknown_mean_is_an_unknown_spread() -> None:
    spread = request_sd_of_means(
        step_mean=2.0, request_mean=None, num_steps=10, num_requests=3, survivals=(0.5,), draft_share=1.0
    )
    assert spread is None


def test_variance_of_a_step() -> None:
    assert step_variance((0.5,), 1.0) == pytest.approx(0.25)
    assert step_variance((1.0, 1.0), 0.5) == pytest.approx(1.0)  # 0 or 2 accepted
