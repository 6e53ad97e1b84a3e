"""Times of linear layers: how far interpolation is off, and the rules outside the grid."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from helpers.cost_models import CONFIGS
from specdeploy.planner.linear_table import LinearTable, NarrowWeights, RooflineLinear, linear_table
from specdeploy.planner.monotone import Floats

Grid = tuple[list[float], list[float], list[float], Floats]


def raw_table(name: str) -> Grid:
    """Grid and seconds [N, K, M] as they lie in the file; fp8 without sizes that are not multiples of 16."""
    path: Path = CONFIGS / "hardware" / "tables" / f"{name}.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = list(csv.reader(lines))
    cells = np.array([[float(cell) if cell else math.nan for cell in row] for row in rows[1:]])
    sizes = [int(size) for size in rows[0][2:]]
    kept = [index for index, size in enumerate(sizes) if "fp8" not in name or size <= 16 or size % 16 == 0]
    ns, ks = sorted(set(cells[:, 0])), sorted(set(cells[:, 1]))
    seconds = np.full((len(ns), len(ks), len(kept)), math.nan)
    for row in cells:
        seconds[ns.index(row[0]), ks.index(row[1])] = row[2:][kept] * 1e-6
    return ns, ks, [float(sizes[index]) for index in kept], seconds


def left_out_errors(grid: Grid, axis: int) -> Floats:
    """Relative errors at every inner line of `axis`, each predicted from a table without it."""
    errors: list[float] = []
    lines: list[list[float]] = [list(line) for line in grid[:3]]
    for index in range(1, len(lines[axis]) - 1):
        kept = [place for place in range(len(lines[axis])) if place != index]
        rest = [line if number != axis else [line[place] for place in kept] for number, line in enumerate(lines)]
        table = linear_table(rest[0], rest[1], rest[2], np.take(grid[3], kept, axis=axis))
        for place, measured in list(np.ndenumerate(np.take(grid[3], index, axis=axis)))[:: 1 + 2 * (axis < 2)]:
            where = [*place[:axis], index, *place[axis:]]
            predicted = table.seconds(*(lines[number][where[number]] for number in range(3)))
            errors.append(abs(predicted / measured - 1))
    return np.array([error for error in errors if not math.isnan(error)])


@pytest.mark.parametrize("name", ["h100-sxm.linear.bfloat16", "h200-sxm.linear.fp8"])
def test_points_left_out_are_predicted_within_a_few_per_cent(name: str) -> None:
    """A whole line of the grid at a time, so that the gap is twice the table's: median below 5 %, p90 below 15 %."""
    grid = raw_table(name)
    for axis in range(3):
        errors = left_out_errors(grid, axis)
        assert np.median(errors) < 0.05
        assert np.quantile(errors, 0.9) < 0.15


@pytest.mark.parametrize("name", ["h100-sxm.linear.bfloat16", "b200-sxm.linear.fp8", "l40s.linear.bfloat16"])
def test_a_table_rises_along_every_axis_and_keeps_its_median(name: str) -> None:
    grid = raw_table(name)
    table = linear_table(*grid)
    for axis in range(3):
        assert (np.diff(table.log_seconds, axis=axis) >= -1e-12).all()
    change = np.exp(table.log_seconds) / grid[3]
    assert abs(np.nanmedian(change) - 1) < 0.005


def test_one_token_is_never_dearer_than_two() -> None:
    """B200 in fp8 was measured so: 33 us for one token, 19 us for 3."""
    grid = raw_table("b200-sxm.linear.fp8")
    row, column = grid[0].index(8192), grid[1].index(8192)
    assert grid[3][row, column, 0] > 1.5 * grid[3][row, column, 2]
    assert linear_table(*grid).seconds(8192, 8192, 1) < 1.05 * grid[3][row, column, 2]


@pytest.fixture
def table() -> LinearTable:
    return linear_table(*raw_table("h100-sxm.linear.bfloat16"))


def test_beyond_the_grid_time_is_in_proportion(table: LinearTable) -> None:
    assert table.seconds(131072, 4096, 8) == pytest.approx(2 * table.seconds(65536, 4096, 8))
    assert table.seconds(8192, 32768, 8) == pytest.approx(2 * table.seconds(8192, 16384, 8))
    assert table.seconds(8192, 8192, 4096) == pytest.approx(2 * table.seconds(8192, 8192, 2048))


def test_below_the_grid_the_number_of_weights_decides_and_the_smallest_layer_is_the_floor(table: LinearTable) -> None:
    assert table.seconds(8192, 256, 8) == pytest.approx(table.seconds(4096, 512, 8))
    assert table.seconds(256, 8192, 8) == pytest.approx(table.seconds(512, 4096, 8))
    assert table.seconds(8, 8, 8) == pytest.approx(table.seconds(512, 512, 8))
    assert table.seconds(4096, 4096, 0.5) == table.seconds(4096, 4096, 1)


def test_a_roofline_is_the_longer_of_reading_and_multiplying() -> None:
    roofline = RooflineLinear(2.0, 2e12, 8e14)
    assert roofline.seconds(1000, 1000, 1) == pytest.approx(1e-6)
    assert roofline.seconds(1000, 1000, 4000) == pytest.approx(1e-5)


def test_narrow_weights_are_read_faster_and_multiplied_as_the_wide_ones(table: LinearTable) -> None:
    narrow = NarrowWeights(table, 0.25, 2048)
    assert narrow.seconds(8192, 8192, 1) == pytest.approx(table.seconds(8192, 8192, 1) / 4)
    assert narrow.seconds(8192, 8192, 2048) == pytest.approx(table.seconds(8192, 8192, 2048))
    assert all(narrow.seconds(8192, 8192, m) <= table.seconds(8192, 8192, m) * 1.001 for m in (1, 8, 64, 256, 1024))
