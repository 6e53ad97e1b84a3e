"""Two stored runs: what changed, and what may be said of it."""

from math import exp, log, sqrt
from typing import Any

import numpy as np
import pytest

from helpers.run_summaries import PLANNED_OFF, cell, comparison, percentiles, run_summary, void
from specdeploy.run_contract import Arm, Load, Percentile, RunSummary, VoidCode
from specdeploy_client.judging.stored_runs import RatioChange, compare_runs
from specdeploy_client.judging.stored_runs_markdown import render_run_comparison

MACHINE = {"client machine": "Linux x86_64, 2 CPUs"}
Interval = tuple[float, float, float]


FASTER, SLOWER = (0.58, 0.6, 0.62), (1.2, 1.3, 1.4)


def _change(before: Interval | None, after: Interval | None) -> RatioChange:
    (ratio,) = compare_runs(run_summary([comparison(before)]), run_summary([comparison(after)])).ratios
    return ratio


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ((0.78, 0.80, 0.82), (0.58, 0.60, 0.62), "lower"),
        ((0.58, 0.60, 0.62), (0.78, 0.80, 0.82), "higher"),
        ((0.75, 0.80, 0.85), (0.74, 0.79, 0.84), "none shown"),
        # The intervals overlap a little, and the difference exceeds them all the same.
        ((0.95, 1.00, 1.05), (1.04, 1.09, 1.14), "higher"),
        (None, (0.58, 0.60, 0.62), "not comparable"),
    ],
)
def test_a_ratio_changed_when_the_change_exceeds_both_intervals(
    before: Interval | None, after: Interval | None, difference: str
) -> None:
    assert _change(before, after).difference == difference


def test_the_interval_of_a_change_by_hand() -> None:
    # Symmetric on the log scale: half widths 0.1 and 0.2, so the change has sqrt(0.1^2 + 0.2^2).
    change = _change((exp(-0.1), 1.0, exp(0.1)), (exp(0.3), exp(0.5), exp(0.7)))
    half = sqrt(0.05)
    expected = [exp(0.5), exp(0.5 - half), exp(0.5 + half)]
    assert [change.change, change.ci_low, change.ci_high] == pytest.approx(expected)


def test_the_interval_uses_the_facing_sides_of_lopsided_intervals() -> None:
    change = _change((0.9, 1.0, 1.5), (1.0, 1.2, 1.3))
    assert change.ci_low == pytest.approx(1.2 * exp(-sqrt(log(1.2) ** 2 + log(1.5) ** 2)))
    assert change.ci_high == pytest.approx(1.2 * exp(sqrt(log(1.3 / 1.2) ** 2 + log(1 / 0.9) ** 2)))


def test_the_interval_of_a_change_covers_the_truth_as_often_as_its_parts_do() -> None:
    rng = np.random.default_rng(7)
    covered, z, runs = 0, 2.576, 1000  # 99 % intervals, as two runs would estimate them
    for _ in range(runs):
        spreads = rng.uniform(0.01, 0.1, size=2)
        means = np.array([log(0.8), log(0.7)]) + rng.normal(size=2) * spreads
        a, b = ((exp(m - z * s), exp(m), exp(m + z * s)) for m, s in zip(means, spreads, strict=True))
        change = _change(a, b)
        assert change.ci_low is not None
        assert change.ci_high is not None
        covered += change.ci_low <= 0.7 / 0.8 <= change.ci_high
    assert 0.98 <= covered / runs <= 1.0


def test_faster_in_one_run_and_slower_in_the_other_is_reversed() -> None:
    assert _change((0.8, 0.9, 0.95), (1.05, 1.1, 1.2)).is_reversed
    assert not _change((0.8, 0.9, 0.95), (0.9, 1.0, 1.2)).is_reversed


def test_a_void_ratio_is_shown_and_not_judged() -> None:
    voided = comparison((0.5, 0.6, 0.7), voids=[void(VoidCode.SENT_LATE)])
    (ratio,) = compare_runs(run_summary([comparison()]), run_summary([voided])).ratios
    assert (ratio.after, ratio.change, ratio.difference) == (voided, None, "not comparable")


def test_ratios_of_a_level_that_queues_are_shown_and_not_judged() -> None:
    levels = [comparison(interval, load=load) for load, interval in ((Load(1), FASTER), (Load(8), FASTER))]
    slower = [comparison(SLOWER, load=load) for load in (Load(1), Load(8))]
    for changes in ((4, None), (None, 4)):
        before, after = (
            run_summary(own, effective_concurrency=limit) for own, limit in zip((levels, slower), changes, strict=True)
        )
        ratios = compare_runs(before, after).ratios
        assert [(ratio.load, ratio.difference, ratio.is_reversed) for ratio in ratios] == [
            (Load(1), "higher", True),
            (Load(8), "not comparable", False),
        ]
        assert ratios[1].before is not None


def test_cells_of_either_run_are_kept() -> None:
    before = run_summary([comparison(load=Load(1)), comparison(load=Load(4))])
    after = run_summary([comparison(load=Load(4)), comparison(load=Load(4), percentile=Percentile.P99)])
    compared = compare_runs(before, after)
    assert [(ratio.load, ratio.percentile, ratio.difference) for ratio in compared.ratios] == [
        (Load(1), Percentile.P50, "not comparable"),
        (Load(4), Percentile.P50, "none shown"),
        (Load(4), Percentile.P99, "not comparable"),
    ]
    assert [(pair.load, pair.arm, pair.after is None) for pair in compared.cells] == [
        (Load(1), Arm.OFF, True),
        (Load(1), Arm.ON, True),
        (Load(4), Arm.OFF, False),
        (Load(4), Arm.ON, False),
    ]


def _changed(**changes: Any) -> dict[str, tuple[str | None, str | None]]:
    compared = compare_runs(run_summary([comparison()]), run_summary([comparison()], **changes))
    return {change.name: (change.before, change.after) for change in compared.changes}


def test_what_changed_is_named_and_what_did_not_is_not() -> None:
    assert _changed() == {}
    assert _changed(build_id="b2", dtype=None) == {"build": ("b1", "b2"), "dtype": ("float32", None)}
    assert _changed(planned=(PLANNED_OFF,)) == {"planned K of chat": ("4", "0 (measured slower)")}
    assert _changed(environment={"client machine": "Linux x86_64, 2 CPUs", "client": "specdeploy 0.2"}) == {
        "client": (None, "specdeploy 0.2")
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interrupted": "Ctrl-C"}, "the run after ended early: Ctrl-C"),
        ({"load_kind": "open loop, poisson"}, "the load was another: closed loop before, open loop, poisson after"),
        ({"switch": "two endpoints"}, "the arms were told apart differently"),
        ({"environment": {"client machine": "Darwin arm64, 8 CPUs"}}, "the machines differ or are not known"),
        ({"environment": {}}, "the machines differ or are not known"),
        (
            {"environment": {**MACHINE, "workload": "b.jsonl"}},
            "other prompts were asked: not known before, b.jsonl after",
        ),
        ({"environment": {**MACHINE, "answers": "at most 16 tokens"}}, "answers had other limits: not known before"),
        (
            {"effective_concurrency": 3},
            "ratios at concurrency 4 are not comparable: the server of the run after decodes 3",
        ),
        ({"comparisons": ()}, "one of the runs has no ratios"),
    ],
)
def test_cautions(changes: dict[str, Any], words: str) -> None:
    before = run_summary([comparison()])
    after = RunSummary.model_validate({**before.model_dump(), **changes})
    assert compare_runs(before, before).cautions == ()
    (caution,) = compare_runs(before, after).cautions
    assert words in caution


def test_intervals_of_different_confidence_are_a_caution() -> None:
    other = comparison().model_copy(update={"confidence": 0.95})
    assert "different confidences" in compare_runs(run_summary([comparison()]), run_summary([other])).cautions[0]


def test_milliseconds_never_judge() -> None:
    cells = [[cell(arm, e2e=percentiles(ms)) for arm in (Arm.OFF, Arm.ON)] for ms in (100.0, 900.0)]
    before, after = (run_summary([comparison()], own) for own in cells)
    compared = compare_runs(before, after)
    assert compared.exceeding == ()
    assert render_run_comparison(compared).startswith("## demo")
    assert "None of 1 ratios changed by more than the intervals of both runs allow." in render_run_comparison(compared)
    assert "100.00 / 900.00" in render_run_comparison(compared)
