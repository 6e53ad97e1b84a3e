"""The page says what plan.json says, and nothing runs out of it."""

import re

from helpers.plan_reports import estimate, plan_report, planned_segment
from specdeploy.planner.plan_page import render_plan_page
from specdeploy.planner.plan_plots import crossover_in_words, in_words, memory_bar, outcome, segment_panel
from specdeploy.planner_contract import Estimate, PlanReport, PredictedCrossover


def _without_draft_memory(report: PlanReport) -> PlanReport:
    return report.model_copy(update={"memory": None, "traffic": None, "sensitivities": ()})


def test_page_is_self_contained_and_escapes_what_people_wrote() -> None:
    page = render_plan_page(plan_report())
    assert "<script" not in page
    assert re.search(r'(?:src|href)="(?!#)', page) is None
    assert "a table &lt;of somebody&gt;" in page


def test_page_says_the_verdict_the_crossover_and_what_the_draft_costs() -> None:
    page = render_plan_page(plan_report())
    assert "Speculate up to 32 requests at once, then switch it off." in page
    assert "Crossover: 41.3 [24.0, above 64]" in page
    assert "89 requests of 671 tokens fit at once; 97 without speculation: the draft costs 8." in page
    assert "0.80 [0.72, 0.88]" in page
    assert "fp8 weights: a step takes 0.63 of its time" in page
    assert "acceptance 0.1 lower" in page


def test_page_without_memory_and_traffic_leaves_their_parts_out() -> None:
    page = render_plan_page(_without_draft_memory(plan_report()))
    assert 'id="memory"' not in page
    assert 'id="traffic"' not in page
    assert "Nothing was varied" in page


def test_a_level_outside_the_calibrated_range_has_a_mark_but_no_ratio() -> None:
    panel = str(segment_panel(planned_segment(), [0.5, 1.3], "r"))
    assert panel.count("not calibrated") == 1
    assert "calibrated up to 64" in panel
    assert panel.count('class="dot') == 7


def test_an_indicative_level_is_hollow_and_says_so() -> None:
    report = plan_report()
    segment = report.segments[0]
    levels = tuple(one.model_copy(update={"range_problem": "not calibrated"}) for one in segment.levels[:7])
    update = {"segments": (segment.model_copy(update={"levels": levels}),), "indicative_source": "another engine's"}
    page = render_plan_page(report.model_copy(update={**update, "indicative_error": 0.25}))
    assert page.count('class="dot undecided indicative"') == 7 + 3  # the panel, and the card's e2e, TPOT and TTFT
    assert "~0.80 [0.72, 0.88]" in page
    assert "it rests on another engine&#39;s" in page
    assert 'class="dot undecided indicative"' not in render_plan_page(report)


def test_memory_bar_is_as_long_as_its_parts() -> None:
    report = plan_report()
    assert report.memory is not None
    bar = str(memory_bar(report.memory.budget))
    widths = [
        float(width) for width in re.findall(r'<rect class="part-[^"]+" x="[\d.]+" y="8.0" width="([\d.]+)"', bar)
    ]
    assert len(widths) == 6
    shares = [width / 896 for width in widths]
    assert abs(shares[0] - 15 / 131) < 0.005
    assert abs(shares[-1] - 84 / 131) < 0.005


def test_words() -> None:
    assert in_words(None) == "\N{EN DASH}"
    assert in_words(estimate(0.5)) == "0.50 [0.45, 0.55]"
    assert outcome(Estimate(value=1.2, low=1.1, high=1.3)) == "slower"
    assert outcome(Estimate(value=1.0, low=0.9, high=1.1)) == "undecided"
    assert crossover_in_words(PredictedCrossover(kind="none up to", max_concurrency=64)) == "none up to 64"
