"""Latency panels show both arms side by side, as far as the samples go."""

import re

import pytest

from specdeploy.run_contract import Load, Percentiles
from specdeploy_client.reporting.plots.latencies import LatencySeries, format_ms, format_tick, latency_plot


def _percentiles(p50: float | None, p90: float | None = None, p99: float | None = None) -> Percentiles:
    return Percentiles(p50=p50, p90=p90, p99=p99, num_samples=100)


def _plot(off: dict[Load, Percentiles], on: dict[Load, Percentiles]) -> str:
    return str(latency_plot(LatencySeries("chat <1>", "e2e", off, on)))


def test_off_stands_left_of_on_at_the_same_level() -> None:
    load = {Load(1): _percentiles(100.0, 200.0, 300.0), Load(4): _percentiles(150.0, 250.0, 350.0)}
    plot = _plot(load, load)
    off = [float(x) for x in re.findall(r'<circle class="dot off" cx="([\d.]+)"', plot)]
    on = [float(x) for x in re.findall(r'<rect class="dot on" x="([\d.]+)"', plot)]
    assert len(off) == len(on) == 2
    assert off[0] < on[0] < off[1] < on[1]
    assert "chat &lt;1&gt;, concurrency 1, e2e, speculation off: p50 100, p90 200, p99 300 ms" in plot


def test_percentiles_that_the_sample_does_not_support_are_left_out() -> None:
    plot = _plot({Load(1): _percentiles(100.0)}, {Load(1): _percentiles(80.0, 120.0)})
    assert plot.count('class="body on"') == 1
    assert "body off" not in plot
    assert "tail" not in plot
    assert "speculation off: p50 100 ms" in plot


def test_an_arm_that_was_not_measured_leaves_the_other() -> None:
    plot = _plot({}, {Load(None, 2.5): _percentiles(80.0)})
    assert "dot off" not in plot
    assert "requests per second" in plot


def test_too_few_requests_are_said() -> None:
    assert "Too few requests for a median" in _plot({Load(1): _percentiles(None)}, {})


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "\N{EN DASH}"), (0.4567, "0.46"), (9.994, "9.99"), (45.67, "45.7"), (1234.5, "1,234")],
)
def test_milliseconds_have_three_digits(value: float | None, text: str) -> None:
    assert format_ms(value) == text


def test_ticks_are_short() -> None:
    assert [format_tick(value) for value in (0.5, 20, 5000, 10_000, 2e6)] == ["0.5", "20", "5,000", "10k", "2,000k"]
