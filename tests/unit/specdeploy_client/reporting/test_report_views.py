"""What the template is given: cards, heat maps, voids and conditions, from a summary alone."""

import pytest

from helpers.example_run import small_run
from specdeploy.run_contract import (
    Comparison,
    Load,
    MetricName,
    Percentile,
    PlannedDraftLen,
    RunSummary,
    VoidCode,
    VoidReason,
)
from specdeploy.verdict_contract import GateConfig
from specdeploy_client.judging.gate import judge
from specdeploy_client.reporting.definitions import DEFINITIONS, VOID_REMEDIES
from specdeploy_client.reporting.report_views import conditions_rows, decision_cards, heat_maps, split_tails, void_rows
from unit.specdeploy_client.fabricate import make_cell, make_summary


@pytest.fixture(scope="module")
def summary() -> RunSummary:
    return small_run().build()[0]


def _comparison(segment: str, load: Load, ratio: float | None = 0.8, **changes: object) -> Comparison:
    values: dict[str, object] = {
        "segment": segment,
        **load._asdict(),
        "metric": MetricName.E2E,
        "ratio": ratio,
        "ci_low": None if ratio is None else ratio - 0.05,
        "ci_high": None if ratio is None else ratio + 0.05,
        "confidence": 0.95,
        "num_pairs": 40,
    }
    return Comparison.model_validate({**values, **changes})


def _with(*comparisons: Comparison, **changes: object) -> RunSummary:
    base = make_summary(make_cell(num_pairs=2), planned=())
    return base.model_copy(update={"comparisons": comparisons, "crossovers": (), **changes})


def test_a_card_carries_the_verdicts_decision(summary: RunSummary) -> None:
    cards = decision_cards(summary, judge(summary, None, GateConfig(name="test")))
    assert [(card.segment, card.action) for card in cards] == [
        ("code_edit", "speculate"),
        ("chat", "speculate"),
        ("summarisation", "switch off"),
    ]
    assert all(card.is_judged and card.load == Load(4) for card in cards)
    assert [row.name for row in cards[0].rows] == ["e2e p50", "TPOT p50", "TTFT p50"]
    assert cards[0].rows[0].change == "43 % less time"
    assert cards[2].plan == "planned off: acceptance is low"


def test_without_a_gate_a_card_says_what_the_interval_says(summary: RunSummary) -> None:
    cards = decision_cards(summary, None)
    assert [card.action for card in cards] == ["speculate", "speculate", "switch off"]
    assert not any(card.is_judged for card in cards)
    assert cards[2].detail.startswith("e2e is slower, over 60 pairs")


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"comparisons": ()}, "not measured where it is decided"),
        ({"effective_concurrency": 2}, "requests wait for each other at this level: both arms measure that queue"),
        (
            {
                "comparisons": (
                    _comparison(
                        "chat", Load(4), None, void_reasons=(VoidReason(code=VoidCode.SENT_LATE, detail="p99 9 ms"),)
                    ),
                )
            },
            "the measurement is void: sent late: p99 9 ms",
        ),
    ],
)
def test_nothing_is_recommended_where_nothing_is_known(changes: dict[str, object], detail: str) -> None:
    summary = _with(_comparison("chat", Load(4))).model_copy(update=changes)
    (card,) = decision_cards(summary, None)
    assert (card.action, card.detail) == ("measure more", detail)


def test_the_tail_on_a_card_is_the_highest_that_holds() -> None:
    tails = [_comparison("chat", Load(4), percentile=percentile) for percentile in (Percentile.P90, Percentile.P95)]
    (card,) = decision_cards(_with(_comparison("chat", Load(4)), *tails), None)
    assert [row.name for row in card.rows] == ["e2e p50", "e2e p95"]


def test_an_open_loop_has_a_card_per_rate() -> None:
    rates = (Load(None, 1.0), Load(None, 4.0))
    summary = _with(*(_comparison("chat", rate) for rate in rates))
    cells = tuple(summary.cells[0].model_copy(update=rate._asdict()) for rate in rates)
    cards = decision_cards(summary.model_copy(update={"cells": cells}), None)
    assert [card.load for card in cards] == list(rates)


def test_a_planned_segment_that_was_not_measured_has_a_card(summary: RunSummary) -> None:
    planned = (*summary.planned, PlannedDraftLen(segment="rag", draft_len=2))
    cards = decision_cards(summary.model_copy(update={"planned": planned}), None)
    assert (cards[-1].segment, cards[-1].action, cards[-1].rows) == ("rag", "measure more", ())


def test_heat_maps_hold_every_cell_in_order(summary: RunSummary) -> None:
    maps = heat_maps(summary)
    assert [found.title for found in maps] == ["e2e p50", "TPOT p50", "TTFT p50"]
    assert maps[0].loads == (Load(1), Load(4), Load(16))
    rows = {segment: (cells, crossover) for segment, cells, crossover in maps[0].rows}
    cells, crossover = rows["chat"]
    assert [cell.outcome for cell in cells if cell] == ["faster", "faster", "slower"]
    assert crossover is not None
    assert 4 < float(crossover.split(" [")[0]) < 16
    void = rows["summarisation"][0][2]
    assert void is not None
    assert (void.ratio, void.reasons, void.strength) == ("void", ("sent late",), 0)
    assert "sent late: 60 of 60" in void.tip


def test_a_stronger_effect_has_a_stronger_colour() -> None:
    summary = _with(*(_comparison("chat", Load(level), ratio) for level, ratio in ((1, 0.5), (2, 0.8), (4, 0.98))))
    cells = tuple(summary.cells[0].model_copy(update={"concurrency": level}) for level in (1, 2, 4, 8))
    ((_, row, _),) = heat_maps(summary.model_copy(update={"cells": cells}))[0].rows
    strengths = [cell.strength for cell in row if cell]
    assert strengths == sorted(strengths, reverse=True)
    assert len(set(strengths)) == 3
    assert row[3] is None  # measured in one arm only


def test_the_tail_shown_at_once_is_the_one_that_most_cells_support() -> None:
    comparisons = [
        *(_comparison("chat", Load(level), percentile=Percentile.P95) for level in (1, 4)),
        _comparison("chat", Load(1), percentile=Percentile.P99),
        _comparison("chat", Load(1)),
    ]
    summary = _with(*comparisons)
    cells = tuple(summary.cells[0].model_copy(update={"concurrency": level}) for level in (1, 4))
    shown, rest = split_tails(heat_maps(summary.model_copy(update={"cells": cells})))
    assert [found.title for found in shown] == ["e2e p50", "e2e p95"]
    assert [found.title for found in rest] == ["e2e p99"]


def test_voids_are_told_once_with_what_they_void() -> None:
    late = VoidReason(code=VoidCode.SENT_LATE, detail="p99 9 ms")
    few = VoidReason(code=VoidCode.TOO_FEW_PAIRS, detail="5")
    rows = void_rows(
        _with(
            _comparison("chat", Load(1), None, void_reasons=(late, few)),
            _comparison("chat", Load(1), None, metric=MetricName.TPOT, void_reasons=(late,)),
            _comparison("chat", Load(4)),
        )
    )
    assert [(str(row.reason), row.metrics) for row in rows] == [
        ("sent late: p99 9 ms", "everything"),
        ("too few pairs: 5", "e2e p50"),
    ]
    assert rows[1].remedy == "Raise --request-count."


def test_every_void_code_has_a_remedy_and_every_word_a_meaning() -> None:
    assert set(VOID_REMEDIES) == set(VoidCode)
    assert all(word.name and word.text for word in DEFINITIONS)
    assert len({word.name for word in DEFINITIONS}) == len(DEFINITIONS)


def test_conditions_show_the_worse_arm(summary: RunSummary) -> None:
    rows = {(row.conditions.segment, row.conditions.load): row for row in conditions_rows(summary)}
    assert len(rows) == 9
    late, usual = rows["summarisation", Load(16)].send_lag_p99, rows["chat", Load(1)].send_lag_p99
    assert late is not None
    assert usual is not None
    assert late > 40 > 1 > usual > 0
    assert rows["chat", Load(1)].num_pairs == 60
