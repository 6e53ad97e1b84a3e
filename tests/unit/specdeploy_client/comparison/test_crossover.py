"""The crossover lies where it was planted, its interval holds it, and what the levels do not say is not said."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from specdeploy.run_contract import Arm, Comparison, Crossover, Load, MetricName
from specdeploy_client.comparison.compare import compare_cell
from specdeploy_client.comparison.crossover import LevelPairs, find_crossover, find_crossovers
from specdeploy_client.comparison.pairing import PairedValues
from specdeploy_client.comparison.voids import VoidFacts
from specdeploy_client.records.table import ArmColumns, CellKey, RecordTable
from unit.specdeploy_client.fabricate import make_cell


def _level(concurrency: int, ratio: float, num_pairs: int = 100, noise: float = 0.05, seed: int = 0) -> LevelPairs:
    rng = np.random.default_rng([seed, concurrency])
    prompts = rng.normal(0.0, 0.1, num_pairs)
    off, on = np.exp(prompts + rng.normal(0.0, noise, (2, num_pairs)))
    return LevelPairs(concurrency, PairedValues(off, ratio * on, np.arange(num_pairs) // 10))


def _find(levels: Mapping[int, float], **options: float) -> Crossover:
    pairs = [_level(concurrency, ratio) for concurrency, ratio in levels.items()]
    found = find_crossover("chat", MetricName.E2E, pairs, seed=0, **options)
    assert found is not None
    return found


def test_it_is_interpolated_over_the_logarithm_of_the_concurrency() -> None:
    # log ratio -0.2 at 4 and +0.2 at 16: 1 at half the way between, in doublings.
    crossover = _find({1: 0.6, 4: math.exp(-0.2), 16: math.exp(0.2), 64: 2.0})
    assert crossover.kind == "crosses"
    assert crossover.concurrency == pytest.approx(8, rel=0.1)
    assert crossover.ci_low is not None
    assert crossover.ci_high is not None
    assert 4 < crossover.ci_low < crossover.concurrency < crossover.ci_high < 16  # type: ignore[operator]
    assert crossover.max_concurrency == 64


def test_the_order_of_the_levels_does_not_matter() -> None:
    assert _find({16: 1.2, 1: 0.6, 4: 0.8}) == _find({1: 0.6, 4: 0.8, 16: 1.2})


def test_a_stricter_limit_is_crossed_earlier() -> None:
    levels = {1: 0.6, 4: 0.8, 16: 1.2}
    early, late = _find(levels, limit=0.7), _find(levels)
    assert early.concurrency == pytest.approx(2 ** (2 * math.log(0.7 / 0.6) / math.log(0.8 / 0.6)), rel=0.1)
    assert late.concurrency is not None
    assert early.concurrency is not None
    assert early.concurrency < 4 < late.concurrency


def test_faster_everywhere_and_slower_at_once() -> None:
    assert str(_find({1: 0.5, 8: 0.7})) == "none up to 8"
    assert str(_find({2: 1.3, 8: 1.7})) == "never faster"
    assert str(_find({4: 0.7})) == "none up to 4"
    assert str(_find({4: 1.3})) == "never faster"


def test_what_no_interval_says_is_undecided() -> None:
    assert _find({1: 1.0, 8: 1.0}).kind == "undecided"
    assert _find({4: 1.0}).kind == "undecided"
    assert find_crossover("chat", MetricName.E2E, [], seed=0) is None


def test_an_end_beyond_the_levels_is_open() -> None:
    crossover = _find({1: 0.7, 8: 1.015})
    assert crossover.kind == "crosses"
    assert crossover.ci_low is not None
    assert crossover.ci_high is None
    assert str(crossover).endswith("above 8]")
    below = _find({2: 0.985, 16: 1.5})
    assert (below.kind, below.ci_low) == ("crosses", None)
    assert below.ci_high is not None
    assert "[below, " in str(below)


def test_the_interval_holds_the_planted_crossover() -> None:
    hits = 0
    for seed in range(40):
        levels = [_level(2**i, math.exp(0.15 * (i - 2.5)), noise=0.1, seed=seed) for i in range(6)]
        found = find_crossover("chat", MetricName.E2E, levels, seed=seed, confidence=0.9)
        assert found is not None
        low, high = found.ci_low or 0.0, found.ci_high or math.inf
        hits += found.kind == "crosses" and low <= 2**2.5 <= high
    assert hits >= 32  # 36 expected


def _table(levels: Mapping[int, float]) -> tuple[dict[CellKey, dict[Arm, ArmColumns]], list[Comparison]]:
    records = [r for level, speedup in levels.items() for r in make_cell("chat", level, speedup=speedup)]
    cells = RecordTable.from_records(records).cells
    compared = [
        comparison
        for key, arms in cells.items()
        for comparison in compare_cell(key, arms[Arm.OFF], arms[Arm.ON], facts=VoidFacts(), seed=0)
    ]
    return cells, compared


def test_every_metric_of_a_segment_has_its_own() -> None:
    cells, comparisons = _table({1: 2.0, 4: 1.4, 16: 0.7})
    found = {c.metric: c for c in find_crossovers(cells, comparisons, seed=0)}
    assert set(found) == set(MetricName)
    assert found[MetricName.TPOT].kind == "crosses"
    assert 4 < (found[MetricName.TPOT].concurrency or 0) < 16
    assert found[MetricName.TTFT].kind == "undecided"


def test_void_cells_open_loops_and_queued_levels_play_no_part() -> None:
    cells, comparisons = _table({1: 2.0, 4: 1.4, 16: 0.7})
    queued = find_crossovers(cells, comparisons, seed=0, max_concurrency=4)
    assert [str(c) for c in queued if c.metric is MetricName.TPOT] == ["none up to 4"]
    void = [c.model_copy(update={"ci_low": None}) if c.concurrency == 16 else c for c in comparisons]
    assert find_crossovers(cells, void, seed=0) == queued
    rate = [c.model_copy(update={"concurrency": None, "request_rate": 2.0}) for c in comparisons]
    assert find_crossovers({("chat", Load(None, 2.0)): cells["chat", Load(1)]}, rate, seed=0) == ()


def test_limits_are_by_metric() -> None:
    cells, comparisons = _table({1: 2.0, 4: 1.4})
    found = {c.metric: c for c in find_crossovers(cells, comparisons, seed=0, limits={MetricName.TPOT: 0.6})}
    assert found[MetricName.TPOT].kind == "crosses"
    assert found[MetricName.E2E].kind == "none up to"
