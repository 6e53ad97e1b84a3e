"""The ratio plot: every level has its mark, bands stop at voids, the crossover stands where it is."""

import re

import pytest

from helpers.example_run import small_run
from specdeploy.charts.scales import level_scale
from specdeploy.run_contract import Comparison, Crossover, MetricName, RunSummary, VoidCode, VoidReason
from specdeploy_client.reporting.plots.ratios import describe, forest_plot, ratio_bounds, ratio_plot
from unit.specdeploy_client.fabricate import make_summary

LATE = VoidReason(code=VoidCode.SENT_LATE, detail="<p99> 14 ms")


def _at(level: int, ratio: float | None, *, width: float = 0.05, voids: tuple[VoidReason, ...] = ()) -> Comparison:
    return Comparison(
        segment="chat",
        concurrency=level,
        metric=MetricName.E2E,
        ratio=ratio,
        ci_low=None if ratio is None else ratio - width,
        ci_high=None if ratio is None else ratio + width,
        confidence=0.99,
        num_pairs=40,
        void_reasons=voids,
    )


def _crossing(at: float, low: float | None, high: float | None) -> Crossover:
    return Crossover(
        segment="chat", metric=MetricName.E2E, kind="crosses", concurrency=at, ci_low=low, ci_high=high,
        max_concurrency=16,
    )  # fmt: skip


def _plot(comparisons: list[Comparison], crossover: Crossover | None = None, summary: RunSummary | None = None) -> str:
    bounds = ratio_bounds(comparisons)
    return str(ratio_plot(summary or make_summary([]), comparisons, crossover, bounds, "r"))


def test_every_level_is_marked_by_what_its_interval_says() -> None:
    plot = _plot([_at(1, 0.7), _at(4, 1.01), _at(16, 1.2)])
    assert [plot.count(f'"dot {tone}"') for tone in ("faster", "undecided", "slower")] == [1, 1, 1]
    assert "chat, concurrency 1, e2e p50 on/off: 0.70 [0.65, 0.75] at 99 %, faster, 40 pairs" in plot


def test_a_band_does_not_run_across_a_void_level() -> None:
    whole = _plot([_at(1, 0.7), _at(4, 0.8), _at(16, 0.9)])
    broken = _plot([_at(1, 0.7), _at(2, 0.75), _at(4, None, voids=(LATE,)), _at(8, 0.85), _at(16, 0.9)])
    assert whole.count('class="trend"') == 1
    assert broken.count('class="trend"') == 2
    assert "void, sent late: &lt;p99&gt; 14 ms" in broken


def test_the_crossover_stands_at_its_place_with_its_interval() -> None:
    plot = _plot([_at(1, 0.7), _at(16, 1.2)], _crossing(5.0, 3.0, 9.0))
    x = level_scale([1, 16, 4], 44, 428)  # 4 are expected
    (area,) = re.findall(r'class="crossing-area" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', plot)
    assert [float(value) for value in area] == pytest.approx([x.at(3), x.at(9) - x.at(3)], abs=0.1)
    (line,) = re.findall(r'class="crossing" x1="([\d.]+)"', plot)
    assert float(line) == pytest.approx(x.at(5), abs=0.1)
    assert "crossover 5.0" in plot


def test_an_interval_without_an_end_reaches_the_border() -> None:
    plot = _plot([_at(1, 0.7), _at(16, 1.2)], _crossing(5.0, None, None))
    (area,) = re.findall(r'class="crossing-area" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', plot)
    assert [float(value) for value in area] == pytest.approx([44, 428 - 44])


def test_levels_that_queue_are_shaded() -> None:
    comparisons = [_at(1, 0.7), _at(16, 0.9)]
    assert "queue-area" not in _plot(comparisons)
    assert "queue-area" in _plot(comparisons, summary=make_summary([], effective_concurrency=8))


def test_a_lower_ratio_stands_lower_and_one_stands_on_the_line() -> None:
    plot = _plot([_at(1, 0.5, width=0.01), _at(4, 1.0, width=0.01), _at(16, 2.0, width=0.01)])
    heights = [float(y) for y in re.findall(r'<circle class="dot \w+" cx="[\d.]+" cy="([\d.]+)"', plot)]
    (one,) = re.findall(r'class="one" x1="[\d.]+" y1="([\d.]+)"', plot)
    assert heights[0] > heights[1] > heights[2]  # SVG counts downwards
    assert heights[1] == pytest.approx(float(one), abs=0.1)
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)


def test_an_open_loop_is_drawn_over_its_rates() -> None:
    rates = [
        _at(1, ratio).model_copy(update={"concurrency": None, "request_rate": rate})
        for rate, ratio in ((0.5, 0.8), (2.5, 0.9))
    ]
    plot = _plot(rates)
    assert "requests per second" in plot
    assert ">2.5<" in plot
    assert "expected" not in plot


def test_nothing_compared_is_said() -> None:
    assert "not both measured" in _plot([])


def test_a_run_of_void_levels_only_is_still_drawn() -> None:
    plot = _plot([_at(1, None, voids=(LATE,)), _at(4, None, voids=(LATE,))])
    assert plot.count('class="void-mark"') == 4
    assert "band" not in plot


def test_what_cannot_be_measured_is_not_called_void() -> None:
    assert describe(_at(1, None)).endswith("not measurable")
    assert 'class="dot' not in forest_plot(_at(1, None), [0.5])


def test_a_real_summary_draws_every_segment() -> None:
    summary, _ = small_run().build()
    for segment in ("code_edit", "chat", "summarisation"):
        own = [c for c in summary.comparisons if (c.segment, c.metric) == (segment, MetricName.E2E)]
        assert _plot(own, summary=summary).count("<title>") >= 3
