"""Formulas about many requests, on columns with known values."""

import pytest

from specdeploy.run_contract import Acceptance, Arm, FailureKind, Load, MetricName, Objective, RequestRecord
from specdeploy_client import arm_metrics
from specdeploy_client.reconcile import CounterIncrease
from unit.specdeploy_client.fabricate import make_columns, make_record


def test_throughput_counts_the_time_of_blocks_only() -> None:
    columns = make_columns(
        [
            make_record((1000,), (15,), block=1, send_ms=60_000),
            make_record((500,), (5,), block=0),
            make_record((1000,), (10,), block=0),
        ]
    )
    assert arm_metrics.output_throughput(columns, Load(1)) == pytest.approx(30 / 2.0)
    assert arm_metrics.request_throughput(columns, Load(1)) == pytest.approx(3 / 2.0)


def test_goodput_of_columns() -> None:
    objectives = (Objective(metric=MetricName.E2E, max_ms=600),)
    columns = make_columns(
        [make_record((500,), (5,)), make_record((1000,), (10,)), make_record((500,), (5,), error="no")]
    )
    assert arm_metrics.goodput(columns, objectives, Load(1)) == pytest.approx(1.0)
    assert arm_metrics.goodput(columns, (), Load(1)) is None


def test_all_cancelled_is_no_time_and_no_rate() -> None:
    columns = make_columns([make_record(error="stopped", failure=FailureKind.CANCELLED)])
    assert arm_metrics.output_throughput(columns, Load(1)) is None
    assert arm_metrics.send_lag_ns(columns).size == 0


def test_input_tokens_are_known_of_all_or_of_none() -> None:
    known = make_record()
    unknown = known.model_copy(update={"input_token_count": None})
    assert arm_metrics.num_input_tokens(make_columns([known, known])) == 20
    assert arm_metrics.num_input_tokens(make_columns([known, unknown])) is None
    assert arm_metrics.num_input_tokens(make_columns([make_record(error="no")])) is None


def test_acceptance_per_step_and_per_request_differ() -> None:
    long = make_record((1, 2), (1, 9), arm=Arm.ON, steps=8, drafted=24, accepted=2)
    short = make_record((1, 2), (1, 3), arm=Arm.ON, steps=2, drafted=6, accepted=2)
    result = arm_metrics.acceptance(make_columns([long, short]))
    assert result is not None
    assert result.mean_acceptance_length == pytest.approx(1 + 4 / 10)
    assert result.mean_acceptance_length_per_request == pytest.approx((1 + 2 / 8 + 1 + 2 / 2) / 2)
    assert result.acceptance_rate == pytest.approx(4 / 30)


def test_a_counter_that_contradicts_tokens_per_step_is_unavailable() -> None:
    record = make_record(sizes=(5, 5, 5), steps=3, drafted=12, accepted=0)
    assert arm_metrics.acceptance(make_columns([record])) is None


PLAIN = make_record(sizes=(1, 1, 1))


def _counted(counters: CounterIncrease, record: RequestRecord = PLAIN) -> Acceptance | None:
    return arm_metrics.counted_acceptance(make_columns([record]), counters)


def test_acceptance_from_the_servers_counters_alone() -> None:
    result = _counted(CounterIncrease(43, 129, 10, (4, 3, 3)))
    assert result is not None
    assert result.acceptance_rate == pytest.approx(0.0775, abs=5e-5)
    assert result.mean_acceptance_length == pytest.approx(1.2326, abs=5e-5)
    assert result.mean_acceptance_length_per_request is None
    with_positions = arm_metrics.with_positions(result, CounterIncrease(43, 129, 10, (4, 3, 3)))
    assert with_positions is not None
    assert with_positions.rate_per_pos == pytest.approx((4 / 43, 3 / 43, 3 / 43))


@pytest.mark.parametrize(
    ("counters", "sizes"),
    [
        (CounterIncrease(), (1, 1, 1)),
        (CounterIncrease(0, 0, 0), (1, 1, 1)),
        (CounterIncrease(None, 40, 15), (1, 1, 1)),
        (CounterIncrease(10, 40, None), (1, 1, 1)),
        (CounterIncrease(10, 40, 0), (1, 3, 3)),  # drafts were accepted, whatever the counter says
    ],
)
def test_counters_that_say_nothing_give_no_acceptance(counters: CounterIncrease, sizes: tuple[int, ...]) -> None:
    assert _counted(counters, make_record(sizes=sizes)) is None


def test_a_first_message_of_two_tokens_does_not_contradict_counters() -> None:
    assert _counted(CounterIncrease(10, 40, 0), make_record(range(15), (2,) + (1,) * 14)) is not None


def test_positions_stay_out_where_the_server_does_not_count_them() -> None:
    acceptance = _counted(CounterIncrease(10, 40, 15))
    assert arm_metrics.with_positions(acceptance, CounterIncrease(10, 40, 15)) == acceptance
    assert arm_metrics.with_positions(None, CounterIncrease(10, 40, 15, (9,))) is None


def test_unknown_tokens_are_not_zero_tokens() -> None:
    columns = make_columns([make_record(), make_record((50, 5000), None, ids=(), reported=None)])
    tpot = (Objective(metric=MetricName.TPOT, max_ms=0.001),)
    assert arm_metrics.num_tokens(columns) is None
    assert arm_metrics.output_throughput(columns, Load(1)) is None
    assert arm_metrics.goodput(columns, tpot, Load(1)) is None
    assert arm_metrics.request_throughput(columns, Load(1)) == pytest.approx(2 / 5.0)
