"""Speculation in closed form: more acceptance never loses, free drafts gain all their tokens."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.planner.closed_form import (
    alpha_of,
    best_draft_len,
    break_even_alpha,
    expected_tokens,
    speedup,
)

alphas = st.floats(0, 1)
draft_lens = st.integers(0, 20)
draft_costs = st.floats(0, 2)
verify_costs = st.floats(0.5, 4)


@given(alphas, alphas, draft_lens, draft_costs, verify_costs)
def test_more_acceptance_is_never_less(one: float, other: float, draft_len: int, c: float, v: float) -> None:
    low, high = sorted((one, other))

    assert speedup(low, draft_len, c, v) <= speedup(high, draft_len, c, v) + 1e-12


@given(alphas, draft_lens)
def test_a_free_draft_gains_its_tokens(alpha: float, draft_len: int) -> None:
    assert math.isclose(speedup(alpha, draft_len, 0.0), expected_tokens(alpha, draft_len))
    assert 1 <= expected_tokens(alpha, draft_len) <= draft_len + 1


@given(alphas, draft_costs, verify_costs)
def test_no_draft_is_exactly_one(alpha: float, c: float, v: float) -> None:
    assert speedup(alpha, 0, c, v) == 1.0
    assert speedup(alpha, best_draft_len(alpha, c, v, 12), c, v) >= 1.0


@given(st.integers(1, 20), draft_costs, verify_costs)
def test_at_break_even_nothing_is_gained_or_lost(draft_len: int, c: float, v: float) -> None:
    alpha = break_even_alpha(draft_len, c, v)

    if alpha is None:
        assert speedup(1.0, draft_len, c, v) < 1
    elif alpha > 0:
        assert speedup(alpha, draft_len, c, v) == pytest.approx(1.0, abs=1e-9)
    else:
        assert speedup(0.0, draft_len, c, v) >= 1


@given(alphas, st.integers(1, 20))
def test_alpha_comes_back_from_its_tokens(alpha: float, draft_len: int) -> None:
    assert alpha_of(expected_tokens(alpha, draft_len), draft_len) == pytest.approx(alpha, abs=1e-6)
