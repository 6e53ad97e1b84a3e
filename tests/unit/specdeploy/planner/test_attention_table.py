"""Attention as a fixed part and a slope: what the fit keeps of the measurements."""

import pytest

from helpers.cost_models import CONFIGS
from specdeploy.planner.attention_table import AttentionPoint, AttentionTable, fit_attention
from specdeploy.planner.hardware_records import load_hardware, load_kernel_tables
from specdeploy.planner_contract import Precision


@pytest.fixture(scope="module")
def table() -> AttentionTable:
    record = load_hardware("h200-sxm", CONFIGS)
    return load_kernel_tables(record, CONFIGS / "hardware").attention[Precision.BFLOAT16]


@pytest.mark.parametrize(
    ("rows", "kv_len", "measured_us"), [(1, 1024, 13.6), (32, 1024, 46.8), (32, 4096, 135.5), (32, 16384, 494.0)]
)
def test_published_times_of_32_heads_over_8(table: AttentionTable, rows: int, kv_len: int, measured_us: float) -> None:
    assert table.seconds(32, 8, rows, kv_len) * 1e6 == pytest.approx(measured_us, rel=0.06)


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s"])
def test_a_cached_token_is_read_at_a_bandwidth_that_the_memory_has(name: str) -> None:
    """On an L40S the raw points of small caches say more than the memory can give: they sat in its 96 MB cache."""
    record = load_hardware(name, CONFIGS)
    table = load_kernel_tables(record, CONFIGS / "hardware").attention[Precision.BFLOAT16]
    for (_, kv_heads), fit in table.fits.items():
        assert 0.6 * record.bandwidth < kv_heads * 128 * 2 * 2 / fit.token_s < record.bandwidth
        assert list(fit.fixed_s) == sorted(fit.fixed_s)


def test_counts_not_measured_take_the_bytes_of_a_token(table: AttentionTable) -> None:
    assert table.token_s(32, 32, 128) == pytest.approx(4 * table.token_s(32, 8, 128))
    assert table.token_s(32, 8, 64) == pytest.approx(table.token_s(32, 8, 128) / 2)
    assert table.fit(28, 4) is table.fits[16, 4]


def test_rows_beyond_the_table_and_none(table: AttentionTable) -> None:
    fit = table.fits[32, 8]
    assert fit.fixed(1024) == pytest.approx(2 * fit.fixed(512))
    assert fit.fixed(0) == 0
    assert fit.fixed(0.5) == fit.fixed(1)


def test_a_fit_finds_what_points_were_made_of() -> None:
    points = [
        AttentionPoint(32, 8, rows, kv_len, 10e-6 + 0.1e-6 * rows + 1e-9 * rows * kv_len)
        for rows in (1, 8, 64)
        for kv_len in (2, 128, 8192, 131072)
    ]
    fit = fit_attention(points, 2).fits[32, 8]
    assert fit.token_s == pytest.approx(1e-9, rel=1e-3)
    assert fit.fixed_s == pytest.approx([10.1e-6, 10.8e-6, 16.4e-6], rel=1e-2)
