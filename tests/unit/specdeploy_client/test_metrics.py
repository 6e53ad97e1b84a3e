"""Every metric reproduces exact values on streams with known times."""

import numpy as np
import pytest

from helpers import record_metrics
from specdeploy.run_contract import FailureKind, MetricName, Objective, Percentile
from specdeploy.units import NS_PER_MS
from specdeploy_client import metrics
from specdeploy_client.records.histogram import LogHistogram
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
    assert record_metrics.token_gaps_ns(record) == pytest.approx([60 * NS_PER_MS / burst] * 6 * burst)
    assert record_metrics.tokens_per_message([record]) == pytest.approx((1 + 6 * burst) / 7)


def test_time_to_first_token_never_enters_tpot() -> None:
    slow, fast = make_record((1000, 1010), (1, 1)), make_record((10, 20), (1, 1))
    assert metrics.tpot_ns(slow) == metrics.tpot_ns(fast) == 10 * NS_PER_MS


def test_the_mean_of_token_gaps_is_the_pooled_tpot() -> None:
    records = [make_record((100, 140, 210), (1, 3, 2)), make_record((50, 80), (2, 4))]
    gaps = [gap for record in records for gap in record_metrics.token_gaps_ns(record)]
    time_after_first = 110 + 30
    assert np.mean(gaps) == pytest.approx(time_after_first * NS_PER_MS / (3 + 2 + 4))


def test_time_to_first_token_never_enters_a_gap() -> None:
    record = make_record((5, 900, 910), (0, 1, 1))
    assert metrics.icl_ns(record) == record_metrics.token_gaps_ns(record) == (10 * NS_PER_MS,)


def test_where_tokens_of_a_message_are_unknown_there_are_gaps_but_none_per_token() -> None:
    record = make_record((50, 70), None, ids=(), reported=7)
    assert metrics.icl_ns(record) == (20 * NS_PER_MS,)
    assert record_metrics.token_gaps_ns(record) == ()
    assert metrics.num_tokens(record) == 7


def test_latencies_run_from_the_moment_a_request_was_due() -> None:
    record = make_record((50, 70), (1, 1), send_ms=1000, lag_ms=30)
    assert metrics.ttft_ns(record) == 50 * NS_PER_MS
    assert record_metrics.send_lag_ns(record) == 30 * NS_PER_MS


def test_single_token_and_empty_answers_have_no_tpot() -> None:
    assert metrics.tpot_ns(make_record((50,), (1,))) is None
    assert metrics.tpot_ns(make_record((), ())) is None
    assert metrics.ttft_ns(make_record((50,), (0,))) is None
    assert metrics.e2e_ns(make_record((), ())) is None
    assert metrics.icl_ns(make_record((50,), (1,))) == ()
    assert record_metrics.tokens_per_message([]) is None


def test_tokens_that_all_arrive_in_one_message_take_no_time_after_the_first() -> None:
    assert metrics.tpot_ns(make_record((50,), (5,))) == 0


def test_output_throughput_counts_block_time_only() -> None:
    records = [
        make_record((500,), (5,), block=0, send_ms=0),
        make_record((1000,), (10,), block=0, send_ms=0),
        make_record((1000,), (15,), block=1, send_ms=60_000),  # the minute between blocks belongs to the other arm
    ]
    assert record_metrics.output_throughput(records) == pytest.approx(30 / 2.0)
    assert record_metrics.request_throughput(records) == pytest.approx(3 / 2.0)
    assert record_metrics.output_throughput([]) is None
    assert record_metrics.request_throughput([]) is None


def test_a_failed_request_takes_time_and_gives_no_tokens_and_a_cancelled_one_neither() -> None:
    records = [
        make_record((500,), (5,)),
        make_record((2000,), (9,), error="timeout", failure=FailureKind.TIMEOUT),
        make_record((9000,), (9,), error="stopped", failure=FailureKind.CANCELLED),
    ]
    assert record_metrics.output_throughput(records) == pytest.approx(5 / 2.0)
    assert record_metrics.request_throughput(records) == pytest.approx(1 / 2.0)


def _objectives(ttft: float, tpot: float) -> list[Objective]:
    return [Objective(metric=MetricName.TTFT, max_ms=ttft), Objective(metric=MetricName.TPOT, max_ms=tpot)]


def test_goodput_counts_requests_that_meet_every_objective() -> None:
    both = make_record((100, 120), (1, 1))
    late = make_record((300, 320), (1, 1))
    slow = make_record((100, 200), (1, 1))
    records = [both, late, slow, make_record((1000,), (1,), error="refused"), both]
    assert record_metrics.goodput(records, _objectives(200, 50)) == pytest.approx(2 / 1.0)
    assert record_metrics.goodput(records, _objectives(1000, 1000)) == pytest.approx(4 / 1.0)
    assert record_metrics.goodput(records, []) is None


def test_goodput_leaves_out_what_this_client_cancelled() -> None:
    good = make_record((500,), (1,))
    cancelled = make_record((9000,), (1,), error="stopped", failure=FailureKind.CANCELLED)
    assert record_metrics.goodput([good, cancelled], _objectives(600, 50)) == pytest.approx(1 / 0.5)


def test_one_token_cannot_miss_a_tpot_but_no_token_meets_nothing() -> None:
    objectives = _objectives(200, 1)
    assert record_metrics.is_good(make_record((100,), (1,)), objectives)
    assert not record_metrics.is_good(make_record((), ()), objectives)
    assert not record_metrics.is_good(make_record((), ()), objectives[1:])


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
    assert (result.p95, result.p99) == (None, None)
    assert result.mean == 50.0


def test_no_values_have_no_percentiles_and_no_mean() -> None:
    result = metrics.percentiles_ms([])
    assert (result.p50, result.mean, result.num_samples) == (None, None, 0)


def test_percentiles_of_counted_gaps_are_those_of_the_gaps() -> None:
    values = np.random.default_rng(0).lognormal(17, 0.5, 1500)
    histogram = LogHistogram()
    histogram.add(values)
    counted, exact = metrics.histogram_percentiles_ms(histogram), metrics.percentiles_ms(values)
    assert counted is not None
    for percentile in Percentile:
        assert counted.value(percentile) == pytest.approx(exact.value(percentile), rel=0.01)
    assert counted.mean == pytest.approx(exact.mean)
    assert metrics.histogram_percentiles_ms(LogHistogram()) is None


def test_acceptance_fixture() -> None:
    assert metrics.acceptance_rate(129, 10) == pytest.approx(0.0775, abs=5e-5)
    assert metrics.mean_acceptance_length(43, 129, 10) == pytest.approx(1.2326, abs=5e-5)
    # 39 drafts had none accepted, 1 one, none two, 3 all three: up to position i were accepted 4, 3, 3.
    assert metrics.acceptance_rates_per_pos(43, (4, 3, 3)) == pytest.approx((4 / 43, 3 / 43, 3 / 43))
    assert sum((4, 3, 3)) == 10


def test_acceptance_sums_over_requests() -> None:
    records = [
        make_record(sizes=(1, 1, 1), steps=23, drafted=69, accepted=4),
        make_record(sizes=(1, 1, 1), steps=20, drafted=60, accepted=6),
    ]
    result = record_metrics.acceptance(records)
    assert result is not None
    assert result.acceptance_rate == pytest.approx(10 / 129)
    assert result.mean_acceptance_length == pytest.approx(1 + 10 / 43)
    assert result.mean_acceptance_length_per_request == pytest.approx((1 + 4 / 23 + 1 + 6 / 20) / 2)


def test_acceptance_before_the_first_draft_is_none_not_a_division_by_zero() -> None:
    assert metrics.acceptance_rate(0, 0) is None
    assert metrics.mean_acceptance_length(0, 0, 0) is None
    assert metrics.acceptance_rates_per_pos(0, (0, 0)) is None
    result = record_metrics.acceptance([make_record(steps=3, drafted=0, accepted=0)])
    assert result is not None
    assert (result.acceptance_rate, result.mean_acceptance_length) == (None, None)


def test_acceptance_without_counts_is_none() -> None:
    assert record_metrics.acceptance([]) is None
    assert record_metrics.acceptance([make_record(steps=3, drafted=None, accepted=None)]) is None


def test_a_counter_that_contradicts_tokens_per_step_is_unavailable_not_zero() -> None:
    record = make_record(sizes=(5, 5, 5), steps=3, drafted=12, accepted=0)
    assert record_metrics.acceptance([record]) is None


def test_one_token_of_each_answer_comes_of_its_prompt_and_not_of_a_step() -> None:
    # 16 tokens of 15 plain steps: 16 / 15 is above the limit, 15 / 15 is not.
    plain = make_record(range(16), (1,) * 16, steps=15, drafted=45, accepted=0)
    result = record_metrics.acceptance([plain] * 3)
    assert result is not None
    assert (result.acceptance_rate, result.mean_acceptance_length) == (0.0, 1.0)
    burst = make_record((1, 2, 3), (1, 2, 2), steps=2, drafted=8, accepted=0)
    assert record_metrics.acceptance([burst]) is None


def test_tpot_ends_with_the_last_token_and_the_mean_token_gap_agrees() -> None:
    record = make_record((100, 140, 180, 400), (1, 4, 4, 0))
    assert metrics.e2e_ns(record) == 400 * NS_PER_MS
    assert metrics.tpot_ns(record) == 80 * NS_PER_MS / 8
    assert np.mean(record_metrics.token_gaps_ns(record)) == pytest.approx(metrics.tpot_ns(record))


def test_unknown_tokens_are_not_zero_tokens() -> None:
    unknown = make_record((100, 5000), None, ids=(), reported=None)
    records = [make_record((100, 110), (1, 1)), unknown]
    assert metrics.num_tokens(unknown) is None
    assert metrics.tpot_ns(unknown) is None
    assert record_metrics.output_throughput(records) is None
    assert record_metrics.request_throughput(records) == pytest.approx(2 / 5.0)
    assert record_metrics.goodput(records, _objectives(200, 50)) is None
    assert not record_metrics.is_good(unknown, _objectives(200, 50))
    assert record_metrics.goodput(records, _objectives(200, 50)[:1]) == pytest.approx(2 / 5.0)


@pytest.mark.parametrize("reason", ["cancelled", "timeout", "error", "abort"])
def test_what_the_server_gave_up_is_no_answer_and_not_cancelled_by_this_client(reason: str) -> None:
    record = make_record(finish_reason=reason)
    assert not metrics.is_answered(record)
    assert not metrics.is_cancelled(record)


def test_an_open_loop_that_keeps_up_shows_its_rate_however_long_its_answers_take() -> None:
    def throughput(latency_ms: float, num_blocks: int = 2) -> float | None:
        records = [
            make_record((latency_ms,), (5,), request_rate=2.0, block=block, send_ms=60_000 * block + 500.0 * i, index=i)
            for block in range(num_blocks)
            for i in range(10)
        ]
        return record_metrics.request_throughput(records)

    assert throughput(100.0) == throughput(4000.0) == pytest.approx(2.0)
    # One that falls further behind with each request gives what it can: 1 a second.
    slow = [make_record((500.0 + 500.0 * i,), (5,), request_rate=2.0, send_ms=500.0 * i) for i in range(40)]
    assert record_metrics.request_throughput(slow) == pytest.approx(1.0, rel=0.03)
