"""The acceptance model: any K, spread over requests, bounds, drawn steps."""

import time
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, ndtri

from specdeploy.contract import Method
from specdeploy.planner.acceptance import AcceptanceModel, single_alpha_of
from specdeploy.planner.closed_form import alpha_of, conditional_acceptances, expected_tokens
from specdeploy.planner.request_classes import NUM_CLASSES, RequestClasses
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm

MT_BENCH = (0.676, 0.43, 0.272, 0.179, 0.127, 0.092, 0.069)  # Kimi-K3, DSpark (vLLM blog 2026-07-27)


def profile(survivals: tuple[float, ...] = (0.7, 0.5, 0.3), **changes: Any) -> AcceptanceProfile:
    settings: dict[str, Any] = {
        "method": Method.EAGLE3,
        "form": DraftForm.CHAIN,
        "origin": AcceptanceOrigin.STATED,
        "source": "a test",
        **changes,
    }
    return AcceptanceProfile(survivals=survivals, **settings)


def model(survivals: tuple[float, ...] = (0.7, 0.5, 0.3), **changes: Any) -> AcceptanceModel:
    return AcceptanceModel.from_profile(profile(survivals, **changes))


def test_without_a_spread_the_profile_is_what_comes_back() -> None:
    acceptance = model()

    assert acceptance.survivals(3) == pytest.approx((0.7, 0.5, 0.3))
    assert acceptance.survivals(2) == pytest.approx((0.7, 0.5))
    assert acceptance.mean_tokens(3) == pytest.approx(2.5)
    assert acceptance.mean_tokens(1) == pytest.approx(1.7)
    assert acceptance.mean_tokens(0) == 1.0
    assert acceptance.survivals(0) == ()
    assert acceptance.mean_draft_tokens(2) == pytest.approx(2.0)


def test_steps_without_a_draft_emit_one_token() -> None:
    acceptance = model(draft_share=0.4)

    assert acceptance.mean_tokens(3) == pytest.approx(1 + 0.4 * 1.5)
    assert acceptance.survivals(3) == pytest.approx((0.7, 0.5, 0.3))
    assert acceptance.mean_draft_tokens(3) == pytest.approx(1.2)


@pytest.mark.parametrize(("draft_share", "request_sd"), [(1.0, 0.3), (1.0, 0.8), (0.6, 0.5), (0.3, 0.9)])
def test_the_spread_keeps_survivals_over_all_steps(draft_share: float, request_sd: float) -> None:
    acceptance = model(MT_BENCH, draft_share=draft_share, request_sd=request_sd)

    assert acceptance.survivals(7) == pytest.approx(MT_BENCH, abs=1e-9)
    assert acceptance.mean_tokens(7) == pytest.approx(1 + draft_share * sum(MT_BENCH), abs=1e-9)
    assert acceptance.mean_draft_tokens(7) == pytest.approx(7 * draft_share, abs=1e-9)
    assert acceptance.classes.request_sd() == pytest.approx(request_sd, abs=1e-6)


def test_a_spread_beyond_reach_becomes_the_largest_there_is() -> None:
    acceptance = model((0.5,), request_sd=5.0)

    assert acceptance.survivals(1) == pytest.approx((0.5,), abs=1e-9)
    assert 0.4 < acceptance.classes.request_sd() < 0.6


def test_one_alpha_per_request_makes_conditional_acceptance_rise() -> None:
    alphas = expit(0.6 + 0.9 * ndtri((np.arange(NUM_CLASSES) + 0.5) / NUM_CLASSES))
    classes = RequestClasses(np.column_stack([np.ones(NUM_CLASSES), *[alphas] * 7]), 0.9)

    mixed = AcceptanceModel(profile(MT_BENCH), classes).survivals(7)

    assert np.diff(conditional_acceptances(mixed)).min() > 0.01


def test_a_rise_in_the_survivals_is_explained_by_requests_that_differ() -> None:
    """MT-bench: .63 at position 3, .75 at position 7. Within a class of requests it rises less: who gets that far is
    easy."""
    acceptance = model(MT_BENCH, request_sd=0.8)
    over_all, within = conditional_acceptances(MT_BENCH), acceptance.classes.chances[:, 1:]

    assert over_all[6] - over_all[2] > 0.11
    assert (within[:, 6] - within[:, 2]).max() < 0.08


def test_a_chain_goes_on_with_its_last_conditional_acceptance() -> None:
    acceptance = model((0.8, 0.4))

    assert acceptance.survivals(4) == pytest.approx((0.8, 0.4, 0.2, 0.1))
    assert acceptance.problem(4) is None
    assert acceptance.note(2) is None
    assert "up to K 2" in (acceptance.note(4) or "")


def test_a_lookup_goes_on_too_but_says_to_measure() -> None:
    note = model((0.8, 0.4), form=DraftForm.LOOKUP, method=Method.NGRAM).note(4) or ""

    assert "heavy-tailed" in note
    assert "measure at K 4" in note


@pytest.mark.parametrize("form", [DraftForm.BLOCK, DraftForm.TREE])
def test_blocks_and_trees_answer_for_their_own_depth_only(form: DraftForm) -> None:
    acceptance = model(form=form)

    assert acceptance.problem(3) is None
    assert acceptance.problem(0) is None
    assert f"a {form.value} was measured at K 3" in (acceptance.problem(2) or "")
    with pytest.raises(ValueError, match="says nothing of K 4"):
        acceptance.mean_tokens(4)
    with pytest.raises(ValueError, match="at least 0"):
        acceptance.mean_tokens(-1)


def test_bounds_are_those_of_the_profile() -> None:
    acceptance = model(survivals_low=(0.6, 0.4, 0.2), survivals_high=(0.8, 0.6, 0.4))

    assert acceptance.has_interval
    assert acceptance.at("low").survivals(3) == pytest.approx((0.6, 0.4, 0.2))
    assert acceptance.at("high").mean_tokens(3) == pytest.approx(2.8)
    assert acceptance.at("value") is acceptance


def test_without_counts_there_is_no_interval() -> None:
    acceptance = model()

    assert not acceptance.has_interval
    assert acceptance.at("low") is acceptance


def test_counts_give_a_binomial_interval() -> None:
    acceptance = model((0.5,), num_steps=400)

    low, high = (acceptance.at(bound).survivals(1)[0] for bound in ("low", "high"))

    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025))


def test_steps_that_come_in_clusters_say_less() -> None:
    alike = model(num_steps=1000, num_requests=20)
    differing = model(num_steps=1000, num_requests=20, request_sd=0.6)

    def width(acceptance: AcceptanceModel) -> float:
        return acceptance.at("high").mean_tokens(3) - acceptance.at("low").mean_tokens(3)

    assert width(differing) > 2 * width(alike)


def test_never_and_always_are_no_certainty() -> None:
    low = model((1.0, 0.0), num_steps=30).at("low").survivals(2)
    high = model((1.0, 0.0), num_steps=30).at("high").survivals(2)

    assert low == pytest.approx((0.9, 0.0))
    assert high == pytest.approx((1.0, 0.1))


def test_one_alpha_and_what_it_costs() -> None:
    stated = AcceptanceModel.from_alpha(0.6, 5)
    single = single_alpha_of(profile((0.92, 0.66, 0.24, 0.17, 0.02)))  # DeepSeek-R1 MTP

    assert stated.mean_tokens(5) == pytest.approx(expected_tokens(0.6, 5))
    assert stated.profile.origin is AcceptanceOrigin.STATED
    assert single.alpha == pytest.approx(alpha_of(3.01, 5))
    assert single.errors[0] == pytest.approx(1.711 / 1.92 - 1, abs=1e-3)
    assert single.errors[-1] == pytest.approx(0.0, abs=1e-9)
    assert single.largest_error < -0.1


# --- drawn steps ----------------------------------------------------------------------------------------------------


def test_no_draft_takes_a_step_per_token_and_draws_nothing() -> None:
    rng = np.random.default_rng(0)
    steps = model().draw_steps(np.array([1, 2, 100]), 0, rng)

    assert steps.tolist() == [0, 1, 99]
    assert rng.random() == np.random.default_rng(0).random()


def test_all_accepted_ends_with_what_is_left() -> None:
    """K 3 emits four tokens a step; the last step ends the request, whatever it could still emit."""
    steps = model((1.0, 1.0, 1.0)).draw_steps(np.array([1, 2, 5, 6, 9]), 3, np.random.default_rng(1))

    assert steps.tolist() == [0, 1, 1, 2, 2]


def test_drawn_steps_have_the_mean_of_the_closed_form() -> None:
    outputs = np.full(6000, 300)
    acceptance = model(MT_BENCH, request_sd=0.6)

    steps = acceptance.draw_steps(outputs, 7, np.random.default_rng(3))

    expected = 299 / acceptance.mean_tokens(7)
    assert steps.mean() == pytest.approx(expected, rel=0.015)  # the last step overshoots by half a token or so
    own = 299 / steps
    assert own.std() == pytest.approx(0.6, rel=0.15)  # the spread, and a little chance on top


def test_requests_alike_differ_by_chance_alone() -> None:
    steps = model(MT_BENCH).draw_steps(np.full(3000, 300), 7, np.random.default_rng(3))

    assert (299 / steps).std() < 0.25


def test_equal_seeds_draw_equal_steps_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = np.random.default_rng(5).integers(1, 400, 500)
    acceptance = model(request_sd=0.3)
    whole = acceptance.draw_steps(outputs, 3, np.random.default_rng(7))

    monkeypatch.setattr("specdeploy.planner.drawn_steps._CHUNK_TOKENS", 100)

    assert np.array_equal(whole, acceptance.draw_steps(outputs, 3, np.random.default_rng(7)))


def test_millions_of_tokens_are_drawn_at_once() -> None:
    outputs = np.full(19_366, 211)
    acceptance = model((0.76, 0.58, 0.44, 0.33), request_sd=0.4)

    started = time.perf_counter()
    steps = acceptance.draw_steps(outputs, 4, np.random.default_rng(0))

    assert time.perf_counter() - started < 3.0  # about 0.1 s on a free core
    assert steps.shape == outputs.shape
