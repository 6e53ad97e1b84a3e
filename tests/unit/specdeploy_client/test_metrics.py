"""Every metric reproduces exact values on streams with known times."""

import pytest

from specdeploy.run_contract import Percentile
from specdeploy.units import NS_PER_MS
from specdeploy_client import metrics
from unit.specdeploy_client.fabricate import make_record


def test_ttft_skips_messages_without_tokens() -> None:
    record = make_record(arrivals_ms=(5, 40, 50), sizes=(0, 1, 1))
    assert metrics.ttft_ns(record) == 40 * NS_PER_MS


def test_e2e_runs_to_the_last_message_even_when_it_is_empty() -> None:
    record = make_record(arrivals_ms=(40, 50, 90), sizes=(1, 1, 0))
    assert metrics.e2e_ns(record) == 90 * NS_PER_MS


@pytest.mark.parametrize("burst", [1, 2, 3, 4, 5])
def test_tpot_of_bursts_is_time_per_token_not_per_message(burst: int) -> None:
    # First token at 100 ms, then six bursts of `burst` tokens, one every 60 ms.
    arrivals = [100 + 60 * i for i in range(7)]
    record = make_record(arrivals, [1] + [burst] * 6)
    assert metrics.tpot_ns(record) == pytest.approx(60 * NS_PER_MS / burst)
    assert metrics.icl_ns(record) == (60 * NS_PER_MS,) * 6
    assert metrics.tokens_per_message([record]) == pytest.approx((1 + 6 * burst) / 7)


def test_time_to_first_token_never_enters_tpot() -> None:
    slow, fast = make_record((1000, 1010), (1, 1)), make_record((10, 20), (1, 1))
    assert metrics.tpot_ns(slow) == metrics.tpot_ns(fast) == 10 * NS_PER_MS


def test_single_token_and_empty_answers_have_no_tpot() -> None:
    assert metrics.tpot_ns(make_record((50,), (1,))) is None
    assert metrics.tpot_ns(make_record((), ())) is None
    assert metrics.ttft_ns(make_record((50,), (0,))) is None
    assert metrics.e2e_ns(make_record((), ())) is None
    assert metrics.icl_ns(make_record((50,), (1,))) == ()
    assert metrics.tokens_per_message([]) is None


def test_tokens_that_all_arrive_in_one_message_take_no_time_after_the_first() -> None:
    assert metrics.tpot_ns(make_record((50,), (5,))) == 0


def test_output_throughput_counts_block_time_only() -> None:
    records = [
        make_record((500,), (5,), block=0, send_ms=0),
        make_record((1000,), (10,), block=0, send_ms=0),
        make_record((1000,), (15,), block=1, send_ms=60_000),  # the minute between blocks belongs to the other arm
    ]
    assert metrics.output_throughput(records) == pytest.approx(30 / 2.0)
    assert metrics.output_throughput([]) is None


@pytest.mark.parametrize(("percentile", "needed"), [("p50", 20), ("p90", 100), ("p99", 1000)])
def test_percentiles_need_ten_samples_beyond_them(percentile: str, needed: int) -> None:
    name = Percentile(percentile)
    assert metrics.samples_needed(name) == needed
    assert metrics.percentiles_ms([1.0] * (needed - 1)).value(name) is None
    assert metrics.percentiles_ms([1.0] * needed).value(name) is not None


def test_percentiles_interpolate_linearly() -> None:
    values = [i * NS_PER_MS for i in range(101)]
    result = metrics.percentiles_ms(values)
    assert (result.p50, result.p90, result.num_samples) == (50.0, 90.0, 101)


def test_acceptance_fixture() -> None:
    assert metrics.acceptance_rate(129, 10) == pytest.approx(0.0775, abs=5e-5)
    assert metrics.mean_acceptance_length(43, 129, 10) == pytest.approx(1.2326, abs=5e-5)


def test_acceptance_sums_over_requests() -> None:
    records = [
        make_record(sizes=(1, 1, 1), steps=23, drafted=69, accepted=4),
        make_record(sizes=(1, 1, 1), steps=20, drafted=60, accepted=6),
    ]
    result = metrics.acceptance(records)
    assert result is not None
    assert result.acceptance_rate == pytest.approx(10 / 129)
    assert result.mean_acceptance_length == pytest.approx(1 + 10 / 43)


def test_acceptance_before_the_first_draft_is_none_not_a_division_by_zero() -> None:
    assert metrics.acceptance_rate(0, 0) is None
    assert metrics.mean_acceptance_length(0, 0, 0) is None
    result = metrics.acceptance([make_record(steps=3, drafted=0, accepted=0)])
    assert result is not None
    assert (result.acceptance_rate, result.mean_acceptance_length) == (None, None)


def test_acceptance_without_counts_is_none() -> None:
    assert metrics.acceptance([]) is None
    assert metrics.acceptance([make_record(steps=3, drafted=None, accepted=None)]) is None


def test_a_counter_that_contradicts_tokens_per_step_is_unavailable_not_zero() -> None:
    record = make_record(sizes=(5, 5, 5), steps=3, drafted=12, accepted=0)
    assert metrics.acceptance([record]) is None
