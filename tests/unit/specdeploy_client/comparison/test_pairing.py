"""A pair is the same request in both arms, wherever it stands in them."""

import numpy as np

from specdeploy.run_contract import Arm, FailureKind, MetricName
from specdeploy_client.comparison.pairing import metric_column, pair_rows, paired_values
from unit.specdeploy_client.fabricate import make_columns, make_record


def test_pairs_meet_by_block_and_index_in_any_order() -> None:
    off = make_columns([make_record(block=b, index=i) for b, i in [(0, 0), (0, 1), (1, 0)]])
    on = make_columns([make_record(arm=Arm.ON, block=b, index=i) for b, i in [(1, 0), (0, 0), (2, 0)]])
    off_rows, on_rows = pair_rows(off, on)
    assert off_rows.tolist() == [0, 2]
    assert on_rows.tolist() == [1, 0]


def test_a_request_without_an_answer_in_one_arm_is_no_pair() -> None:
    off = make_columns(
        [make_record(index=0, error="no", failure=FailureKind.REFUSED), make_record(index=1), make_record(index=2)]
    )
    on = make_columns(
        [make_record(arm=Arm.ON, index=i, failure=FailureKind.CANCELLED if i == 1 else None) for i in range(3)]
    )
    off_rows, on_rows = pair_rows(off, on)
    assert (off_rows.tolist(), on_rows.tolist()) == ([2], [2])


def test_a_request_that_an_arm_holds_twice_counts_once() -> None:
    off = make_columns([make_record((10, 20, 30), index=0), make_record((40, 50, 60), index=0)])
    on = make_columns([make_record(arm=Arm.ON, index=0)])
    off_rows, on_rows = pair_rows(off, on)
    assert (off_rows.tolist(), on_rows.tolist()) == ([0], [0])


def test_values_are_left_out_where_one_arm_does_not_support_them() -> None:
    off = make_columns([make_record(index=0, block=4), make_record((50,), (1,), index=1, block=4)])
    on = make_columns([make_record((20, 40, 60), arm=Arm.ON, index=i, block=4) for i in range(2)])
    tpot, e2e = (paired_values(off, on, metric) for metric in (MetricName.TPOT, MetricName.E2E))
    assert (tpot.off.tolist(), tpot.on.tolist(), tpot.block.tolist()) == ([10e6], [20e6], [4])
    assert (len(e2e), e2e.off.tolist(), e2e.on.tolist()) == (2, [70e6, 50e6], [60e6, 60e6])


def test_a_pair_needs_the_value_in_both_arms() -> None:
    whole, single = make_record(), make_record((50,), (1,), arm=Arm.ON)
    off, on = make_columns([whole]), make_columns([single])
    assert len(paired_values(off, on, MetricName.TPOT)) == 0
    assert len(paired_values(on, off, MetricName.TPOT)) == 0


def test_every_metric_has_its_column() -> None:
    columns = make_columns([make_record((50, 60, 80))])
    values = [metric_column(columns, metric)[0] / 1e6 for metric in MetricName]
    assert np.allclose(values, [50, 15, 80])
