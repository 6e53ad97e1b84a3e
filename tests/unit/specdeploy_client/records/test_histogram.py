"""Percentiles out of buckets stay within 1 % of those of the values."""

import numpy as np
import pytest

from specdeploy_client.records.histogram import GROWTH, MAX_NS, NUM_BUCKETS, LogHistogram, bucket_of, middle_ns

QUANTILES = (0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0)


def _histogram(values: object) -> LogHistogram:
    histogram = LogHistogram()
    histogram.add(np.asarray(values))
    return histogram


@pytest.mark.parametrize("quantile", QUANTILES)
@pytest.mark.parametrize("median_ns", [1_000, 300_000, 20_000_000, 4_000_000_000])
def test_percentiles_are_within_one_percent(median_ns: float, quantile: float) -> None:
    values = np.random.default_rng(1).lognormal(np.log(median_ns), 0.8, 5_000)
    expected = float(np.quantile(values, quantile))
    assert _histogram(values).quantile_ns(quantile) == pytest.approx(expected, rel=0.01)


def test_interpolation_between_two_ranks_is_numpys() -> None:
    values = [1e6, 3e6]
    assert _histogram(values).quantile_ns(0.25) == pytest.approx(np.quantile(values, 0.25), rel=0.005)


def test_the_mean_is_exact() -> None:
    values = np.random.default_rng(2).integers(0, 10**9, 1000)
    assert _histogram(values).mean_ns == pytest.approx(float(values.mean()), rel=1e-12)


def test_nothing_counted_is_not_zero() -> None:
    assert LogHistogram().quantile_ns(0.5) is None
    assert LogHistogram().mean_ns is None


def test_weights_count_a_value_several_times() -> None:
    weighted = LogHistogram()
    weighted.add([2e6, 5e6], [3, 1])
    repeated = _histogram([2e6, 2e6, 2e6, 5e6])
    assert (weighted.counts == repeated.counts).all()
    assert weighted.mean_ns == repeated.mean_ns
    assert weighted.num_samples == 4


def test_merged_halves_are_the_whole() -> None:
    values = np.random.default_rng(3).exponential(1e7, 2000)
    merged = _histogram(values[:700]).merge(_histogram(values[700:]))
    whole = _histogram(values)
    assert (merged.counts == whole.counts).all()
    assert merged.mean_ns == pytest.approx(whole.mean_ns)


def test_a_bucket_is_half_a_percent_wide_and_the_ends_are_open() -> None:
    assert bucket_of([0.0, 0.5]).tolist() == [0, 0]
    assert middle_ns(0) == 0.0
    assert bucket_of([1.0, 1.0 * GROWTH**0.99, GROWTH * 1.0001]).tolist() == [1, 1, 2]
    assert bucket_of([100.0 * MAX_NS]).tolist() == [NUM_BUCKETS - 1]
