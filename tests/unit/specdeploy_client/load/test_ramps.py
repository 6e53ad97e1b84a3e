"""Workers start one by one; a rate rises to its target."""

from itertools import pairwise

import pytest

from specdeploy_client.load.ramps import ramp_offsets_ns, ramped_time_s, worker_starts_ns


def test_workers_start_evenly_over_the_ramp() -> None:
    assert worker_starts_ns(5, 8_000) == (0, 2_000, 4_000, 6_000, 8_000)
    assert worker_starts_ns(3, 0) == (0, 0, 0)
    assert worker_starts_ns(1, 8_000) == (0,)


def test_the_rate_rises_linearly_to_its_target() -> None:
    rate, ramp_s = 10.0, 4.0
    # During the ramp N(t) = rate * t^2 / (2 * ramp): 5 requests after 2 s, 20 at its end; then 10 a second.
    assert ramped_time_s(5, rate, ramp_s) == pytest.approx(2.0)
    assert ramped_time_s(20, rate, ramp_s) == pytest.approx(4.0)
    assert ramped_time_s(30, rate, ramp_s) == pytest.approx(5.0)
    assert ramped_time_s(19.9999999, rate, ramp_s) == pytest.approx(4.0)
    assert ramped_time_s(7, rate, 0.0) == pytest.approx(0.7)


def test_a_ramp_sends_half_of_what_the_full_rate_would_ever_faster() -> None:
    offsets = ramp_offsets_ns(4.0, 10.0)
    assert len(offsets) == 20
    assert offsets[:2] == (0, round(1e9 * 5**0.5))
    assert offsets[-1] < 10e9
    gaps = [later - earlier for earlier, later in pairwise(offsets)]
    assert gaps == sorted(gaps, reverse=True)
    assert ramp_offsets_ns(4.0, 0.0) == ()
