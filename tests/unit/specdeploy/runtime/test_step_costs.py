"""The prices of a step are found from its times."""

import random

import pytest

from specdeploy.runtime.step_costs import StepCostModel, StepCosts


def feed(
    model: StepCostModel, shapes: list[tuple[int, int, int]], *, plain: int = 5_000_000, token: int = 100_000
) -> None:
    """(rows, draft tokens, depth) per step; a row costs 300 µs, a first draft token 1 ms, a depth 400 µs."""
    for num_rows, num_draft_tokens, depth in shapes:
        first = 1_000_000 if num_draft_tokens else 0
        model.record(
            num_rows=num_rows,
            num_draft_tokens=num_draft_tokens,
            depth=depth,
            draft_ns=50_000 + 400_000 * depth,
            verify_ns=plain + 300_000 * num_rows + first + token * num_draft_tokens,
        )


def mixed_shapes(num_steps: int) -> list[tuple[int, int, int]]:
    chance = random.Random(0)
    shapes = []
    for _ in range(num_steps):
        num_rows, depth = chance.randint(1, 8), chance.randint(0, 6)
        shapes.append((num_rows, depth * chance.randint(1, num_rows), depth))
    return shapes


def check_known(costs: StepCosts) -> None:
    assert costs.plain_ns == pytest.approx(5_050_000 + 300_000 * costs.num_rows, rel=0.01)
    assert costs.draft_idle_ns == pytest.approx(50_000, rel=0.02)
    assert costs.target_first_ns == pytest.approx(1_000_000, rel=0.02)
    assert costs.target_token_ns == pytest.approx(100_000, rel=0.02)
    assert costs.draft_depth_ns == pytest.approx(400_000, rel=0.02)
    assert costs.draft_first_ns + costs.draft_token_ns == pytest.approx(0, abs=10_000)


def test_varied_steps_give_every_price() -> None:
    model = StepCostModel()
    feed(model, mixed_shapes(60))
    check_known(model.costs(4))
    check_known(model.costs(16))


def test_ratios_are_those_of_the_papers() -> None:
    model = StepCostModel()
    feed(model, mixed_shapes(60))
    costs = model.costs(2)
    assert costs.draft_cost_ratio == pytest.approx(400_000 / 5_650_000, rel=0.02)
    assert costs.verify_cost_ratio(0) == 1.0
    assert costs.verify_cost_ratio(3) == pytest.approx(1 + 1_600_000 / 5_650_000, rel=0.02)


def test_a_step_that_was_held_up_changes_little() -> None:
    model = StepCostModel()
    feed(model, mixed_shapes(60))
    feed(model, [(4, 0, 0)], plain=2_000_000_000)
    assert model.costs(4).plain_ns < 1.15 * (5_050_000 + 1_200_000)


def test_a_change_of_price_is_followed() -> None:
    model = StepCostModel()
    feed(model, mixed_shapes(300))
    feed(model, mixed_shapes(600), token=500_000)
    assert model.costs(4).target_token_ns == pytest.approx(500_000, rel=0.15)


def test_a_single_load_prices_itself_and_charges_rows_nothing_extra() -> None:
    model = StepCostModel()
    feed(model, [(4, 4 * depth, depth) for depth in (6, 3, 0)] * 10)
    costs = model.costs(4)
    for depth in (6, 3):
        drafted_ns = costs.plain_ns + costs.first_ns + depth * costs.draft_depth_ns + 4 * depth * costs.token_ns
        assert drafted_ns == pytest.approx(7_250_000 + 800_000 * depth, rel=0.01)
    assert costs.plain_ns == pytest.approx(6_250_000, rel=0.01)
    assert model.costs(8).plain_ns == pytest.approx(6_250_000, rel=0.01)


def test_prices_are_never_negative() -> None:
    model = StepCostModel()
    for step in range(60):  # more draft tokens, less time: chance, not a discount
        depth = step % 4
        model.record(
            num_rows=1, num_draft_tokens=depth, depth=depth, draft_ns=1000, verify_ns=1_000_000 - 50_000 * depth
        )
    costs = model.costs(1)
    assert min(costs.first_ns, costs.token_ns, costs.draft_depth_ns) >= 0
    assert costs.plain_ns == pytest.approx(930_000, rel=0.05)


def test_no_step_is_free_where_times_fell_and_cells_remember() -> None:
    costs = StepCosts(
        num_rows=1,
        plain_ns=1000.0,
        draft_idle_ns=0.0,
        target_first_ns=0.0,
        target_token_ns=1.0,
        draft_first_ns=0.0,
        draft_depth_ns=0.0,
        draft_token_ns=0.0,
        kinks=((1, -5000.0), (5, 0.0)),
    )
    assert costs.step_ns(0, 0) == pytest.approx(100.0)
    assert costs.step_ns(1, 1) > 0.0
    assert costs.verify_cost_ratio(4) > 0.0
