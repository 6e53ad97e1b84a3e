"""Acceptance by position: marginal bars, conditional line."""

import re

import pytest

from specdeploy_client.reporting.plots.positions import conditional, positions_plot


def test_the_conditional_rate_is_of_those_that_got_there() -> None:
    assert conditional([0.8, 0.4, 0.1]) == pytest.approx([0.8, 0.5, 0.25])
    assert conditional([0.5, 0.0, 0.0]) == [0.5, 0.0, None]
    assert conditional([]) == []


def test_bars_are_as_high_as_their_rates() -> None:
    plot = positions_plot("chat", (0.8, 0.4, 0.0))
    bars = re.findall(r'<rect class="accepted" [^>]*height="([\d.]+)"', plot)
    heights = [float(height) for height in bars]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)
    assert heights[2] == 0
    assert "chat, position 2: 40.0 % of drafts are accepted up to here" in plot


def test_long_drafts_keep_their_labels_apart() -> None:
    plot = positions_plot("chat", tuple(0.9**i for i in range(1, 17)))
    assert plot.count('class="accepted"') == 16
    assert plot.count('class="bar-label"') == 8


def test_a_server_that_does_not_count_is_not_measurable() -> None:
    assert "Not measurable" in positions_plot("chat", ())
