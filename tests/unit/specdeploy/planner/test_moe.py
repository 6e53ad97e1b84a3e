"""Experts touched: the published counts, and the bounds of the formula."""

import pytest

from specdeploy.planner.moe import experts_touched, random_tokens

# (experts, per token, tokens in a row, experts touched per layer): published, grade C (seen in a third party's note).
PUBLISHED = [
    (256, 8, 1, 8.0),
    (256, 8, 2, 13.4),
    (256, 8, 3, 18.0),
    (256, 8, 8, 35.0),
    (128, 8, 1, 8.0),
    (128, 8, 4, 22.0),
    (128, 8, 8, 36.0),
    (128, 8, 16, 56.0),
]


@pytest.mark.parametrize(("experts", "used", "tokens", "seen"), PUBLISHED)
def test_tokens_in_a_row(experts: int, used: int, tokens: int, seen: float) -> None:
    assert experts_touched(experts, used, random_tokens(1, tokens)) == pytest.approx(seen, rel=0.07)


def test_they_touch_fewer_than_tokens_routed_at_random() -> None:
    assert experts_touched(256, 8, 8) == pytest.approx(57, abs=1)
    assert experts_touched(256, 8, random_tokens(1, 8)) < experts_touched(256, 8, 8)


def test_rows_are_independent_of_each_other() -> None:
    assert random_tokens(8, 1) == 8
    assert random_tokens(4, 3) == pytest.approx(4 * random_tokens(1, 3))


def test_bounds() -> None:
    assert experts_touched(8, 2, 0) == 0
    assert experts_touched(8, 2, 1) == pytest.approx(2)
    assert experts_touched(8, 8, 1) == 8
    assert experts_touched(8, 2, 1e6) == pytest.approx(8)
