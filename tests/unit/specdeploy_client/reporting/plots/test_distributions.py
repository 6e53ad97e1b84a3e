"""Distributions of per-request ratios: counted exactly, whatever the bins."""

import numpy as np
import pytest

from specdeploy.run_contract import Load
from specdeploy_client.reporting.plots.distributions import bin_edges, common_edges, distribution_plot, spread_ratios


def test_one_is_an_edge_so_that_no_bin_is_faster_and_slower() -> None:
    for low, high in ((0.5, 2.0), (0.21, 1.3), (0.9, 1.1)):
        edges = bin_edges(low, high)
        assert np.min(np.abs(edges - 1)) < 1e-12
        assert edges[0] <= low
        assert edges[-1] >= high


def test_a_row_tells_median_and_share_of_slower_requests() -> None:
    ratios = np.array([0.5, 0.6, 0.8, 1.0, 1.2])
    row = spread_ratios(Load(4), ratios, bin_edges(0.25, 4))
    assert (row.num_pairs, row.median, row.share_slower) == (5, 0.8, 0.2)
    assert max(row.heights) == 1.0


def test_ratios_beyond_the_axis_count_in_its_outermost_bins() -> None:
    edges = bin_edges(0.5, 2)
    row = spread_ratios(Load(1), np.array([0.001, 1.01, 400.0]), edges)
    assert len(row.heights) == len(edges) - 1
    assert (row.heights[0], row.heights[-1]) == (1.0, 1.0)
    assert sum(row.heights) == 3


def test_bins_follow_all_rows_but_the_outermost_requests() -> None:
    rng = np.random.default_rng(0)
    narrow, wide = rng.lognormal(0, 0.02, 1000), rng.lognormal(-0.5, 0.3, 1000)
    wide[0] = 1e6
    edges = common_edges([narrow, wide, np.array([])])
    assert 0.2 < edges[0] < 0.4
    assert edges[-1] < 2


def test_every_load_has_a_row_with_its_numbers() -> None:
    edges = bin_edges(0.5, 2)
    rows = [spread_ratios(load, np.array([0.8, 0.9, 1.1]), edges) for load in (Load(1), Load(None, 2.5))]
    plot = distribution_plot("chat & co", rows, edges, "d")
    assert plot.count('class="median"') == 2
    assert plot.count("33 % slower") == 2
    assert "2.5/s" in plot
    assert "1 at once" in plot
    assert "chat &amp; co" in plot


def test_without_pairs_the_plot_says_so() -> None:
    assert "No pair of requests" in distribution_plot("chat", [], bin_edges(0.5, 2), "d")


@pytest.mark.parametrize("num_pairs", [1, 2])
def test_few_pairs_still_make_a_row(num_pairs: int) -> None:
    ratios = np.full(num_pairs, 0.7)
    edges = common_edges([ratios])
    assert distribution_plot("chat", [spread_ratios(Load(1), ratios, edges)], edges, "d").count(">0 % slower<") == 1
