from helpers.simulator_standins import ChainAcceptance, plan_of
from specdeploy.contract import DraftLenRange, SegmentPlan
from specdeploy.planner.simulator.draft_lengths import UNBOUNDED, DraftLengths


def test_a_boundary_of_any_plan_starts_a_regime() -> None:
    lengths = DraftLengths([plan_of((1, 4), (8, 0)), plan_of((1, 2), (3, 1))], [ChainAcceptance(0.5, 0.5)] * 2)
    regimes = [lengths.at(load) for load in (1, 2, 3, 7, 8, 5000)]
    assert [(regime.low, regime.high) for regime in regimes] == [(1, 2), (1, 2), (3, 7), (3, 7)] + [(8, UNBOUNDED)] * 2
    assert [regime.draft_lens for regime in regimes[::2]] == [(4, 2), (4, 1), (0, 1)]
    assert lengths.choices == ((0, 4), (1, 2))
    assert regimes[0].positions == (1, 1)
    assert regimes[0].drafted_tokens == (2.0, 1.0)


def test_ranges_that_agree_are_one_regime_and_gaps_do_not_draft() -> None:
    ranges = [(2, 3, 4), (4, 9, 4)]
    plan = SegmentPlan(
        segment="all",
        ranges=tuple(DraftLenRange(min_in_flight=low, max_in_flight=high, draft_len=k) for low, high, k in ranges),
    )
    lengths = DraftLengths([plan], [ChainAcceptance(0.5)])
    assert [lengths.at(load).draft_lens for load in (1, 2, 9, 10)] == [(0,), (4,), (4,), (0,)]
    assert (lengths.at(5).low, lengths.at(5).high) == (2, 9)
