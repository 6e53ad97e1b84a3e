"""Finding what a summary holds, and saying it."""

import pytest

from helpers.run_summaries import cell, comparison, run_summary, void
from specdeploy.run_contract import Arm, Load, MetricName, Percentile, VoidCode
from specdeploy_client.judging import run_lookup
from specdeploy_client.judging.run_lookup import (
    arm_voids,
    decision_loads,
    find_cell,
    find_comparison,
    measured_arms,
    measured_loads,
    measured_segments,
)

RATE_2, RATE_5 = Load(None, 2.0), Load(None, 5.0)


def test_comparisons_are_found_by_percentile_too() -> None:
    tail = comparison((0.8, 0.9, 1.0), percentile=Percentile.P99)
    summary = run_summary([comparison(), tail])
    assert find_comparison(summary, "chat", Load(4), MetricName.E2E, Percentile.P99) == tail
    assert find_comparison(summary, "chat", Load(4), MetricName.TTFT) is None
    assert find_comparison(summary, "chat", Load(None, 4.0), MetricName.E2E) is None
    assert find_cell(summary, "chat", Load(4), Arm.FLOOR) is None


def test_a_closed_loop_is_judged_at_the_expected_concurrency_measured_or_not() -> None:
    assert decision_loads(run_summary([comparison(load=Load(1))]), "chat") == (Load(4),)
    assert decision_loads(run_summary(), "chat") == (Load(4),)


def test_an_open_loop_is_judged_at_each_of_its_rates() -> None:
    summary = run_summary([comparison(load=RATE_5), comparison(load=RATE_2)])
    assert decision_loads(summary, "chat") == (RATE_2, RATE_5)


def test_rates_beside_the_expected_concurrency_do_not_decide() -> None:
    summary = run_summary([comparison(load=RATE_2), comparison(load=Load(4))])
    assert decision_loads(summary, "chat") == (Load(4),)


def test_loads_and_segments_keep_an_order() -> None:
    comparisons = [comparison(load=load) for load in (RATE_2, Load(16), Load(4))]
    summary = run_summary([*comparisons, comparison(segment="code")])
    assert measured_loads(summary, "chat") == (Load(4), Load(16), RATE_2)
    assert measured_segments(summary) == ("chat", "code")


@pytest.mark.parametrize(
    ("code", "of_off", "of_on"),
    [
        (VoidCode.CLIENT_SATURATED, True, True),
        (VoidCode.NOTHING_DRAFTED, False, True),
        (VoidCode.OFF_ARM_DRAFTED, True, False),
        (VoidCode.TOO_FEW_PAIRS, False, False),
        (VoidCode.LENGTHS_DIFFER, False, False),
    ],
)
def test_a_void_concerns_an_arm_only_where_it_spoils_its_latencies(code: VoidCode, of_off: bool, of_on: bool) -> None:
    summary = run_summary([comparison(None, voids=[void(code)])])
    assert [bool(arm_voids(summary, "chat", Load(4), arm)) for arm in (Arm.OFF, Arm.ON)] == [of_off, of_on]
    assert not arm_voids(summary, "chat", Load(1), Arm.ON)


def test_a_void_of_several_metrics_is_named_once() -> None:
    reason = void(VoidCode.SENT_LATE)
    summary = run_summary([comparison(None, metric, voids=[reason]) for metric in MetricName])
    assert arm_voids(summary, "chat", Load(4), Arm.ON) == (reason,)


def test_one_arm_alone_is_found() -> None:
    lone = cell(Arm.OFF, Load(2))
    assert find_cell(run_summary(cells=[lone]), "chat", Load(2), Arm.OFF) == lone


def test_which_arms_were_measured_of_a_run_a_segment_or_a_cell() -> None:
    summary = run_summary(cells=[cell(Arm.OFF), cell(Arm.FLOOR), cell(Arm.ON, segment="code", load=Load(1))])
    assert measured_arms(summary) == (Arm.OFF, Arm.ON)
    assert measured_arms(summary, "chat") == (Arm.OFF,)
    assert measured_arms(summary, "code", Load(4)) == ()


def test_a_copy_with_other_cells_is_looked_up_by_itself() -> None:
    summary = run_summary([comparison()])
    assert find_comparison(summary, "chat", Load(4), MetricName.E2E) == comparison()
    changed = summary.model_copy(update={"comparisons": (), "cells": ()})
    assert find_comparison(changed, "chat", Load(4), MetricName.E2E) is None
    assert find_cell(changed, "chat", Load(4), Arm.ON) is None


def test_what_is_kept_for_look_ups_goes_with_its_summary() -> None:
    before = len(run_lookup._INDEXES)
    summary = run_summary([comparison()])
    find_cell(summary, "chat", Load(4), Arm.ON)
    assert len(run_lookup._INDEXES) == before + 1
    del summary
    assert len(run_lookup._INDEXES) == before
