"""Marginals survive the spread over requests; more acceptance, or a deeper draft, never takes more steps."""

from itertools import accumulate, pairwise
from operator import mul

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdeploy.planner.acceptance import AcceptanceModel
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm

conditionals = st.lists(st.floats(0.02, 0.99), min_size=1, max_size=6)
sds = st.floats(0, 1.5)
shares = st.floats(0.05, 1.0)
seeds = st.integers(0, 2**32 - 1)
outputs_of = st.lists(st.integers(1, 120), min_size=1, max_size=60)


def model_of(chances: list[float], request_sd: float = 0.0, draft_share: float = 1.0) -> AcceptanceModel:
    return AcceptanceModel.from_profile(
        AcceptanceProfile(
            method=None,
            form=DraftForm.CHAIN,
            survivals=tuple(accumulate(chances, mul)),
            request_sd=request_sd,
            draft_share=draft_share,
            origin=AcceptanceOrigin.STATED,
            source="a test",
        )
    )


@settings(max_examples=40, deadline=None)
@given(conditionals, sds, shares)
def test_marginals_survive_any_spread(chances: list[float], request_sd: float, draft_share: float) -> None:
    model = model_of(chances, request_sd, draft_share)
    draft_len = len(chances)

    assert model.survivals(draft_len) == pytest.approx(model.profile.survivals, abs=1e-6)
    assert model.mean_tokens(draft_len) == pytest.approx(1 + draft_share * sum(model.profile.survivals), abs=1e-6)
    assert model.mean_draft_tokens(draft_len) == pytest.approx(draft_len * draft_share, abs=1e-6)
    assert model.classes.request_sd() <= request_sd + 1e-5


@settings(max_examples=40, deadline=None)
@given(conditionals, sds, shares)
def test_a_deeper_draft_emits_more(chances: list[float], request_sd: float, draft_share: float) -> None:
    model = model_of(chances, request_sd, draft_share)
    tokens = [model.mean_tokens(draft_len) for draft_len in range(len(chances) + 4)]

    assert tokens[0] == 1.0
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(tokens))


@settings(max_examples=40, deadline=None)
@given(conditionals, sds, shares, outputs_of, seeds)
def test_deeper_drafts_never_take_more_steps_on_the_same_luck(
    chances: list[float], request_sd: float, draft_share: float, outputs: list[int], seed: int
) -> None:
    model = model_of(chances, request_sd, draft_share)
    tokens = np.array(outputs)
    before = tokens - 1
    for draft_len in range(1, len(chances) + 3):
        steps = model.draw_steps(tokens, draft_len, np.random.default_rng(seed))
        assert (steps <= before).all()
        assert (steps >= np.ceil((tokens - 1) / (draft_len + 1))).all()
        before = steps


@settings(max_examples=40, deadline=None)
@given(conditionals, st.floats(0.3, 1.0), outputs_of, seeds)
def test_more_acceptance_never_takes_more_steps_on_the_same_luck(
    chances: list[float], power: float, outputs: list[int], seed: int
) -> None:
    worse, better = model_of(chances), model_of([chance**power for chance in chances])
    tokens = np.array(outputs)

    slow, fast = (m.draw_steps(tokens, len(chances), np.random.default_rng(seed)) for m in (worse, better))

    assert (fast <= slow).all()


@settings(max_examples=30, deadline=None)
@given(conditionals, st.floats(0.05, 0.8), st.floats(0.5, 0.95), seeds)
def test_bounds_stay_on_their_sides_with_a_spread(
    chances: list[float], request_sd: float, power: float, seed: int
) -> None:
    value = model_of(chances, request_sd)
    low = tuple(accumulate((chance ** (1 / power) for chance in chances), mul))
    high = tuple(accumulate((chance**power for chance in chances), mul))
    model = AcceptanceModel.from_profile(
        value.profile.model_copy(update={"survivals_low": low, "survivals_high": high})
    )
    tokens, draft_len = np.full(64, 90), len(chances)

    steps = [
        int(model.at(bound).draw_steps(tokens, draft_len, np.random.default_rng(seed)).sum())
        for bound in ("high", "value", "low")
    ]

    assert steps == sorted(steps)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.2, 0.9), min_size=1, max_size=4), st.floats(0, 0.5), shares, seeds)
def test_drawn_steps_average_to_tokens_over_tokens_per_step(
    chances: list[float], request_sd: float, draft_share: float, seed: int
) -> None:
    model = model_of(chances, request_sd, draft_share)
    draft_len, num_requests, needed = len(chances), 2000, 200

    steps = model.draw_steps(np.full(num_requests, needed + 1), draft_len, np.random.default_rng(seed))

    # A request's last step overshoots by less than K tokens; the rest is sampling error.
    expected = needed / model.mean_tokens(draft_len)
    error = 5 * steps.std() / np.sqrt(num_requests)
    assert expected - error <= steps.mean() <= expected + draft_len / model.mean_tokens(draft_len) + error
