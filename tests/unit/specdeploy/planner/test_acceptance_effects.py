"""Temperature and guided output as factors on accepted tokens."""

from itertools import pairwise

import pytest

from specdeploy.contract import Method
from specdeploy.planner.acceptance_effects import (
    NO_EFFECT,
    Effect,
    constraint_effect,
    scaled,
    temperature_effect,
    with_effect,
)
from specdeploy.planner_contract import AcceptanceOrigin, AcceptanceProfile, DraftForm

PROFILE = AcceptanceProfile(
    method=Method.EAGLE3,
    form=DraftForm.CHAIN,
    survivals=(0.8, 0.6, 0.5),
    survivals_low=(0.7, 0.5, 0.4),
    survivals_high=(0.9, 0.7, 0.6),
    origin=AcceptanceOrigin.STATED,
    source="a test",
)


def test_the_measured_condition_changes_nothing() -> None:
    assert temperature_effect(Method.EAGLE3, 0.7, 0.7) is NO_EFFECT
    assert temperature_effect(Method.EAGLE3, None, 0.0) is NO_EFFECT
    assert constraint_effect(Method.NGRAM, measured=True, is_constrained=True) is NO_EFFECT
    assert with_effect(PROFILE, NO_EFFECT) is PROFILE


def test_temperature_one_costs_what_was_published() -> None:
    effect = temperature_effect(Method.EAGLE3, 0.0, 1.0)

    assert effect.low <= (4.24 - 1) / (6.13 - 1) <= effect.high  # Llama-3.1-8B on MT-bench, the largest loss
    assert 1 + effect.value * (6.13 - 1) == pytest.approx(0.86 * 6.13, rel=0.02)  # 10 to 30 % of tokens per step


def test_between_the_temperatures_the_effect_is_in_between() -> None:
    half, full = temperature_effect(Method.EAGLE, None, 0.5), temperature_effect(Method.EAGLE, None, 1.0)

    assert full.value < half.value < 1
    assert full.low < half.low < half.high < 1
    back = temperature_effect(Method.EAGLE, 1.0, 0.0)
    assert back.value == pytest.approx(1 / full.value)
    assert back.low <= back.value <= back.high


@pytest.mark.parametrize(("measured", "served"), [(0.0, 1.5), (1.2, 0.0)])
def test_beyond_what_was_published_nothing_is_said(measured: float, served: float) -> None:
    with pytest.raises(ValueError, match="measure it"):
        temperature_effect(Method.EAGLE3, measured, served)


def test_a_guided_drafter_loses_less_than_a_filtered_one() -> None:
    filtered = constraint_effect(Method.EAGLE3, measured=False, is_constrained=True)
    guided = constraint_effect(Method.EAGLE3, measured=False, is_constrained=True, guides_draft=True)
    back = constraint_effect(Method.EAGLE3, measured=True, is_constrained=False)

    assert filtered is not None
    assert guided is not None
    assert back is not None
    assert (filtered.low, filtered.high) == pytest.approx((1.33 / 1.79, 1.65 / 1.79), abs=0.006)
    assert guided.value > filtered.value
    assert back.value == pytest.approx(1 / filtered.value)
    assert constraint_effect(Method.NGRAM, measured=False, is_constrained=True) is None


def test_an_effect_multiplies_accepted_tokens_and_widens_the_bounds() -> None:
    changed = with_effect(PROFILE, Effect(0.8, 0.6, 1.0, "somewhere"))

    assert sum(changed.survivals) == pytest.approx(0.8 * 1.9)
    assert sum(changed.survivals_low or ()) == pytest.approx(0.6 * 1.6)
    assert sum(changed.survivals_high or ()) == pytest.approx(2.2)
    assert "somewhere" in changed.source


def test_a_profile_without_bounds_gets_those_of_its_counts() -> None:
    bare = PROFILE.model_copy(update={"survivals_low": None, "survivals_high": None, "num_steps": 50})

    changed = with_effect(bare, Effect(1.0, 0.9, 1.0, "somewhere"))

    assert sum(changed.survivals_low or ()) < 0.9 * 1.9 - 0.1
    assert sum(changed.survivals_high or ()) > 1.9 + 0.1


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.2, 5.0])
def test_scaling_stays_within_what_chances_can_be(factor: float) -> None:
    survivals = scaled((0.8, 0.6, 0.0), factor)

    assert sum(survivals) == pytest.approx(min(factor * 1.4, 2.0), abs=1e-6)
    assert all(0 <= later <= earlier <= 1 for earlier, later in pairwise(survivals))
