"""How the requests of one segment fared one by one: their own on/off ratios, one row per load."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from specdeploy.charts.scales import LogScale, ratio_scale, ratio_ticks
from specdeploy.charts.svg import Point, clip_path, group, line, polygon, svg, text
from specdeploy.run_contract import Load

WIDTH = 440
_LEFT, _RIGHT, _TOP = 76.0, 346.0, 8.0
_ROW, _PEAK, _AXIS = 44.0, 36.0, 42.0
_NUM_BINS = 56
_TRIM = 0.005  # of the requests on either side may lie beyond the axis; they are counted in its last bin

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RatioSpread:
    """The on/off ratios of the pairs of one cell, reduced to what a row of the plot shows."""

    load: Load
    num_pairs: int
    median: float
    share_slower: float
    low: float  # the ends of the middle 99 %
    high: float
    heights: tuple[float, ...]  # [bins] relative to the highest, over the bins of `bin_edges`


def bin_edges(low: float, high: float) -> FloatArray:
    """Edges of equal width in log2 that cover [low, high]; 1 is one of them, so that no bin is on both sides."""
    width = (np.log2(high) - np.log2(low)) / _NUM_BINS
    first, last = np.floor(np.log2(low) / width), np.ceil(np.log2(high) / width)
    return np.asarray(2.0 ** (width * np.arange(first, last + 1)), dtype=np.float64)


def spread_bounds(ratios: FloatArray) -> tuple[float, float]:
    """Between which ratios all but the outermost requests lie."""
    low, high = np.quantile(ratios, (_TRIM, 1 - _TRIM))
    return float(low), float(high)


def spread_ratios(load: Load, ratios: FloatArray, edges: FloatArray) -> RatioSpread:
    """Reduce the ratios [n] > 0 of one cell to a row. Ratios beyond the edges count in the outermost bins."""
    counts, _ = np.histogram(np.clip(ratios, edges[0], np.nextafter(edges[-1], 0)), edges)
    low, high = spread_bounds(ratios)
    return RatioSpread(
        load=load,
        num_pairs=len(ratios),
        median=float(np.median(ratios)),
        share_slower=float(np.mean(ratios > 1)),
        low=low,
        high=high,
        heights=tuple((counts / counts.max()).tolist()),
    )


def distribution_plot(segment: str, rows: Sequence[RatioSpread], edges: FloatArray, name: str) -> Markup:
    """Rows of histograms on a common log axis, lowest load first. `name` is unique on the page."""
    if not rows:
        return Markup('<p class="empty">No pair of requests has a ratio.</p>')
    height = _TOP + _ROW * len(rows) + _AXIS
    bottom = _TOP + _ROW * len(rows)
    x = LogScale(float(edges[0]), float(edges[-1]), _LEFT, _RIGHT)
    parts = [
        clip_path(f"{name}-faster", _LEFT, 0, x.at(1) - _LEFT, height),
        clip_path(f"{name}-slower", x.at(1), 0, _RIGHT - x.at(1), height),
        *(line(x.at(tick), _TOP, x.at(tick), bottom, "grid") for tick in ratio_ticks(x, 30)),
        line(x.at(1), _TOP, x.at(1), bottom, "one"),
    ]
    for number, row in enumerate(rows):
        parts.append(_row(segment, row, _TOP + _ROW * (number + 1), edges, x, name))
    parts += [
        text(x.at(tick), bottom + 16, f"{tick:g}", "tick strong" if tick == 1 else "tick")
        for tick in ratio_ticks(x, 30)
    ]
    parts.append(text((_LEFT + _RIGHT) / 2, bottom + 36, "a request's own e2e, on/off", "tick title"))
    return svg(WIDTH, height, f"{segment}: distribution of per-request e2e on/off ratios by load", parts)


def common_edges(ratios: Iterable[FloatArray]) -> FloatArray:
    """The bins that rows of several cells share."""
    bounds = [value for values in ratios if len(values) for value in spread_bounds(values)]
    scale = ratio_scale(bounds, 0, 1)
    return bin_edges(scale.low, scale.high)


def _row(segment: str, row: RatioSpread, base: float, edges: FloatArray, x: LogScale, name: str) -> str:
    steps: list[Point] = [(x.at(float(edges[0])), base)]
    for left, right, share in zip(edges, edges[1:], row.heights, strict=False):
        top = base - _PEAK * share
        steps += [(x.at(float(left)), top), (x.at(float(right)), top)]
    steps.append((x.at(float(edges[-1])), base))
    label = f"{row.load.value:g}" + ("/s" if row.load.request_rate is not None else " at once")
    tip = (
        f"{segment}, {row.load}: median of {row.num_pairs} requests {row.median:.2f}, middle 99 % from {row.low:.2f} "
        f"to {row.high:.2f}, {100 * row.share_slower:.1f} % slower with speculation"
    )
    median = x.at(row.median)
    return group(
        [
            polygon(steps, "bars faster", f"{name}-faster"),
            polygon(steps, "bars slower", f"{name}-slower"),
            line(_LEFT, base, _RIGHT, base, "axis"),
            line(median, base - _PEAK, median, base, "median"),
            text(_LEFT - 8, base - 10, label, "tick", "end"),
            text(_RIGHT + 8, base - 10, f"{100 * row.share_slower:.0f} % slower", "tick slower-share", "start"),
        ],
        tip,
    )
