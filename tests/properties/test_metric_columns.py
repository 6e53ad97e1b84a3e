"""Any records: the formulas over columns give what the formulas over records give."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import record_metrics
from specdeploy.run_contract import FailureKind, MetricName, Objective, RequestRecord
from specdeploy_client import arm_metrics, metrics
from specdeploy_client.comparison.pairing import metric_column
from specdeploy_client.records.columns import FAILURE_CODES
from specdeploy_client.records.table import ArmColumns, RecordTable
from unit.specdeploy_client.fabricate import make_record

OBJECTIVES = (Objective(metric=MetricName.TTFT, max_ms=60.0), Objective(metric=MetricName.TPOT, max_ms=20.0))


@st.composite
def records_of_one_arm(draw: st.DrawFn) -> list[RequestRecord]:
    """Requests with any number of messages, some of them empty, uncounted, failed or cancelled."""
    has_counts = draw(st.booleans())
    rate = draw(st.none() | st.just(4.0))
    records: list[RequestRecord] = []
    for index in range(draw(st.integers(1, 12))):
        gaps = draw(st.lists(st.integers(0, 90), max_size=7))
        arrivals = [sum(gaps[: number + 1]) + 1 for number in range(len(gaps))]
        sizes = draw(st.none() | st.lists(st.integers(0, 4), min_size=len(gaps), max_size=len(gaps)))
        steps = draw(st.integers(0, 9)) if has_counts else None
        failure = draw(st.sampled_from([None, None, None, FailureKind.REFUSED, FailureKind.CANCELLED]))
        records.append(
            make_record(
                arrivals,
                sizes,
                index=index,
                block=draw(st.integers(0, 3)),
                send_ms=draw(st.integers(0, 500)),
                lag_ms=draw(st.sampled_from([0, 0, 3])),
                reported=draw(st.sampled_from([None, 0, 3, 9])) if sizes is None else -1,
                error=None if failure is None else "it did",
                failure=failure,
                finish_reason=draw(st.sampled_from(["length", "stop", "cancelled"])),
                request_rate=rate,
                steps=steps,
                drafted=None if steps is None else draw(st.integers(0, 3 * steps)),
                accepted=None if steps is None else draw(st.integers(0, 9)),
            ).model_copy(update={"input_token_count": draw(st.sampled_from([10, 10, None]))})
        )
    return records


def _columns(records: Sequence[RequestRecord]) -> ArmColumns:
    ((columns,),) = (arms.values() for arms in RecordTable.from_records(records).cells.values())
    return columns


@settings(max_examples=80, deadline=None)
@given(records_of_one_arm())
def test_request_metrics_of_columns_are_those_of_records(records: list[RequestRecord]) -> None:
    columns = _columns(records)
    for row, record in enumerate(records):
        assert columns.num_tokens[row] == (-1 if (tokens := metrics.num_tokens(record)) is None else tokens)
        assert columns.num_messages[row] == len(metrics.token_arrivals_ns(record))
        assert columns.is_answered[row] == metrics.is_answered(record)
        for metric, formula in metrics.METRICS.items():
            expected = formula(record) if metrics.is_answered(record) else None
            value = float(metric_column(columns, metric)[row])
            assert math.isnan(value) if expected is None else value == pytest.approx(expected, rel=1e-12, abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(records_of_one_arm())
def test_arm_metrics_of_columns_are_those_of_records(records: list[RequestRecord]) -> None:
    columns, load = _columns(records), records[0].load
    answered = [record for record in records if metrics.is_answered(record)]
    kept = [record for record in records if not metrics.is_cancelled(record)]
    pairs = [
        (arm_metrics.tokens_per_message(columns), record_metrics.tokens_per_message(answered)),
        (arm_metrics.output_throughput(columns, load), record_metrics.output_throughput(records)),
        (arm_metrics.request_throughput(columns, load), record_metrics.request_throughput(records)),
        (arm_metrics.goodput(columns, OBJECTIVES, load), record_metrics.goodput(records, OBJECTIVES)),
    ]
    for of_columns, of_records in pairs:
        assert of_columns == (None if of_records is None else pytest.approx(of_records, rel=1e-12, abs=1e-9))
    assert arm_metrics.block_time_ns(columns, load) == record_metrics.block_time_ns(records)
    assert arm_metrics.send_lag_ns(columns).tolist() == [record_metrics.send_lag_ns(record) for record in kept]
    assert arm_metrics.is_good(columns, OBJECTIVES).tolist() == [record_metrics.is_good(r, OBJECTIVES) for r in records]


@settings(max_examples=80, deadline=None)
@given(records_of_one_arm())
def test_gaps_of_columns_are_those_of_records(records: list[RequestRecord]) -> None:
    columns = _columns(records)
    answered = [record for record in records if metrics.is_answered(record)]
    icl = [gap for record in answered for gap in metrics.icl_ns(record)]
    token_gaps = [gap for record in answered for gap in record_metrics.token_gaps_ns(record)]
    for histogram, gaps in ((columns.icl, icl), (columns.token_gaps, token_gaps)):
        assert histogram.num_samples == len(gaps)
        assert histogram.mean_ns == (pytest.approx(sum(gaps) / len(gaps)) if gaps else None)


@settings(max_examples=80, deadline=None)
@given(records_of_one_arm())
def test_acceptance_of_columns_is_that_of_records(records: list[RequestRecord]) -> None:
    expected = record_metrics.acceptance([record for record in records if metrics.is_answered(record)])
    found = arm_metrics.acceptance(_columns(records))
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        values, expected_values = found.model_dump(exclude_none=True), expected.model_dump(exclude_none=True)
        assert values == pytest.approx(expected_values, rel=1e-12, abs=1e-9)


def test_every_kind_of_failure_has_its_code() -> None:
    codes = [FAILURE_CODES[kind] for kind in FailureKind]
    assert len(set(codes)) == len(codes)
    assert [kind for kind, code in zip(FailureKind, codes, strict=True) if code <= 0] == [FailureKind.CANCELLED]
