"""The page of two stored runs."""

from helpers.run_summaries import cell, comparison, crosses, run_summary
from specdeploy.run_contract import Arm, MetricName
from specdeploy_client.judging.stored_runs import compare_runs
from specdeploy_client.judging.stored_runs_markdown import render_run_comparison


def test_the_page_names_what_exceeds_and_shows_both_intervals() -> None:
    before = run_summary([comparison((0.58, 0.60, 0.62))], crossovers=(crosses(6.0, 8.0, 12.0),))
    after = run_summary([comparison((1.18, 1.20, 1.22)), comparison(None, MetricName.TTFT)], build_id="b2")
    text = render_run_comparison(compare_runs(before, after))
    assert "1 of 1 ratios changed by more than the intervals of both runs allow: chat e2e p50 at concurrency 4." in text
    assert (
        "| chat | concurrency 4 | e2e p50 | 0.60 [0.58, 0.62] | 1.20 [1.18, 1.22] | 2.00 [1.93, 2.08] "
        "| **higher**: speculation gains less, reversed |"
    ) in text
    assert "| chat | e2e | 8.0 [6.0, 12.0] | \N{EN DASH} |" in text
    assert "| build | b1 | b2 |" in text


def test_two_runs_without_ratios_say_so() -> None:
    lone = run_summary((), [cell(Arm.OFF)])
    assert "No ratio was measured in both runs." in render_run_comparison(compare_runs(lone, lone))
