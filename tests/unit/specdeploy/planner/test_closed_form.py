"""Every number that is printed of the closed form, within the rounding of its print."""

import pytest

from specdeploy.planner.closed_form import (
    alpha_of,
    best_draft_len,
    best_len_of_survivals,
    break_even_alpha,
    break_even_tokens,
    conditional_acceptances,
    expected_tokens,
    speedup,
    speedup_of_survivals,
    survivals_of,
    tokens_of_survivals,
)

# (c, v) by column; K 5 throughout
COSTS = ((0.0, 1.0), (0.02, 1.0), (0.05, 1.0), (0.083, 1.0), (0.125, 1.0), (0.144, 1.18), (0.2, 1.0), (0.375, 1.0))
SPEEDUPS = {
    0.4: (1.66, 1.51, 1.33, 1.17, 1.02, 0.87, 0.83, 0.58),
    0.5: (1.97, 1.79, 1.57, 1.39, 1.21, 1.04, 0.98, 0.68),
    0.6: (2.38, 2.17, 1.91, 1.68, 1.47, 1.25, 1.19, 0.83),
    0.8: (3.69, 3.35, 2.95, 2.61, 2.27, 1.94, 1.84, 1.28),
}
ALPHAS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
BEST = {
    0.02: ((3, 1.53), (4, 1.79), (6, 2.17), (8, 2.76), (11, 3.82), (19, 6.37)),
    0.05: ((2, 1.42), (3, 1.63), (4, 1.92), (6, 2.35), (8, 3.09), (13, 4.67)),
    0.15: ((1, 1.22), (2, 1.35), (2, 1.51), (3, 1.75), (5, 2.11), (8, 2.78)),
    0.375: ((1, 1.02), (1, 1.09), (1, 1.16), (2, 1.25), (2, 1.39), (4, 1.64)),
}
DRAFT_LENS = (1, 2, 3, 5, 7)
BREAK_EVENS = {
    (0.02, 1.0): (0.02, 0.04, 0.06, 0.09, 0.12),
    (0.05, 1.0): (0.05, 0.09, 0.13, 0.20, 0.26),
    (0.083, 1.0): (0.08, 0.14, 0.20, 0.29, 0.37),
    (0.105, 1.09): (0.19, 0.24, 0.29, 0.38, 0.45),
    (0.125, 1.0): (0.12, 0.21, 0.28, 0.39, 0.47),
    (0.144, 1.18): (0.32, 0.35, 0.39, 0.48, 0.55),
    (0.375, 1.0): (0.37, 0.50, 0.58, 0.69, 0.75),
}
ROUNDING = 0.00501


@pytest.mark.parametrize("alpha", SPEEDUPS)
def test_speedups_of_five_drafted_tokens(alpha: float) -> None:
    computed = [speedup(alpha, 5, *cost) for cost in COSTS]

    assert computed == pytest.approx(SPEEDUPS[alpha], abs=ROUNDING)


@pytest.mark.parametrize("cost", BEST)
def test_the_best_draft_length_and_its_speedup(cost: float) -> None:
    for alpha, (draft_len, gain) in zip(ALPHAS, BEST[cost], strict=True):
        assert speedup(alpha, draft_len, cost) == pytest.approx(gain, abs=ROUNDING)
        best = best_draft_len(alpha, cost)
        # Two lengths may be within rounding of each other: the printed one is then as good.
        assert best == draft_len or speedup(alpha, best, cost) - gain < 0.01
        assert abs(best - draft_len) <= 1


@pytest.mark.parametrize("costs", BREAK_EVENS)
def test_break_even_acceptance(costs: tuple[float, float]) -> None:
    computed = [break_even_alpha(draft_len, *costs) for draft_len in DRAFT_LENS]

    assert computed == pytest.approx(BREAK_EVENS[costs], abs=0.00601)  # .375 is printed as .37


def test_folk_claims_are_tokens_per_step_and_no_speedups() -> None:
    assert expected_tokens(0.6, 5) == pytest.approx(2.38, abs=ROUNDING)
    assert expected_tokens(0.8, 5) == pytest.approx(3.69, abs=ROUNDING)
    assert speedup(0.6, 5, 0.007) == pytest.approx(2.3, abs=0.01)  # as wall-clock it needs a draft that is nearly free
    assert speedup(0.6, 5, 0.144, 1.18) == pytest.approx(1.25, abs=ROUNDING)
    assert speedup(0.8, 5, 0.144, 1.18) == pytest.approx(1.94, abs=ROUNDING)
    assert (
        (break_even_alpha(5, 0.05) or 0) < 0.5 < (break_even_alpha(5, 0.375) or 0)
    )  # "below 0.5 is slower" is neither


def test_no_draft_is_a_plain_step_whatever_verifying_costs() -> None:
    assert speedup(0.9, 0, 0.5, 3.0) == 1.0
    assert break_even_tokens(0, 0.5, 3.0) == 1.0
    assert break_even_alpha(0, 0.5, 3.0) == 0.0


def test_a_step_that_costs_more_than_it_can_emit_never_breaks_even() -> None:
    assert break_even_alpha(1, 1.5) is None
    assert break_even_alpha(3, 0.0, 0.9) == 0.0
    assert best_draft_len(0.9, 5.0) == 0


@pytest.mark.parametrize(
    ("first", "tokens", "alphas"),
    [
        (2, (2.36, 2.79, 3.08, 3.32, 3.46, 3.54), (0.769, 0.763, 0.755, 0.754, 0.749, 0.744)),  # EAGLE-3, 8B
        (2, (2.10, 2.29, 2.39, 2.43, 2.45, 2.47), (0.662, None, None, None, None, 0.602)),  # EAGLE, 8B
        (1, (1.92, 2.58, 2.82, 2.99, 3.01), (0.92, None, None, None, 0.711)),  # DeepSeek-R1 MTP
    ],
)
def test_alpha_from_published_tokens_per_step(
    first: int, tokens: tuple[float, ...], alphas: tuple[float | None, ...]
) -> None:
    for draft_len, (mean, alpha) in enumerate(zip(tokens, alphas, strict=True), start=first):
        if alpha is not None:
            assert alpha_of(mean, draft_len) == pytest.approx(alpha, abs=0.00051)


def test_survivals_of_one_alpha_are_the_same_formula() -> None:
    survivals = survivals_of(0.7, 4)

    assert tokens_of_survivals(survivals) == pytest.approx(expected_tokens(0.7, 4))
    assert speedup_of_survivals(survivals, 0.1, 1.05) == pytest.approx(speedup(0.7, 4, 0.1, 1.05))
    assert best_len_of_survivals(survivals_of(0.7, 20), 0.1) == best_draft_len(0.7, 0.1)
    assert conditional_acceptances(survivals) == pytest.approx((0.7,) * 4)
    assert conditional_acceptances((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)


@pytest.mark.parametrize("call", [lambda: expected_tokens(1.2, 3), lambda: expected_tokens(0.5, -1)])
def test_impossible_inputs_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"alpha 1\.2|K -1"):
        call()  # type: ignore[operator]


def test_more_tokens_than_a_step_can_emit_are_refused() -> None:
    with pytest.raises(ValueError, match="at most K \\+ 1"):
        alpha_of(4.5, 3)
    with pytest.raises(ValueError, match="v > 0"):
        break_even_tokens(3, 0.1, 0.0)
