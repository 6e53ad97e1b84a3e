"""Ratios and their intervals are written one way, and say which confidence they have."""

import pytest

from helpers.run_summaries import comparison, void
from specdeploy.run_contract import MetricName, Percentile, VoidCode
from specdeploy_client.comparison.wording import (
    DASH,
    describe_intervals,
    describe_ratio,
    format_comparison,
    format_confidence,
    format_interval,
)


def test_an_interval_has_one_form() -> None:
    assert format_interval(0.62, 0.58, 0.67) == format_comparison(comparison()) == "0.62 [0.58, 0.67]"
    assert format_interval(0.62, None, 0.67) == format_comparison(comparison(None)) == format_comparison(None) == DASH
    assert format_comparison(comparison(None, voids=[void(VoidCode.SENT_LATE)])) == "void"


@pytest.mark.parametrize(
    ("confidences", "words"),
    [((0.99,), "99 %"), ((0.9915, 0.9915), "99.15 %"), ((0.99, 0.95), "95 % and 99 %"), ((), "")],
)
def test_the_confidence_is_that_of_the_intervals(confidences: tuple[float, ...], words: str) -> None:
    compared = [comparison().model_copy(update={"confidence": confidence}) for confidence in confidences]
    unmeasured = comparison(None).model_copy(update={"confidence": 0.5})
    assert format_confidence([*compared, unmeasured]) == words
    assert describe_intervals([*compared, unmeasured]) == f"{words} interval".strip()


def test_ratios_name_what_is_not_the_median_and_a_limit_that_is_not_one() -> None:
    assert describe_ratio(comparison()) == "e2e on/off 0.62 [0.58, 0.67] at 99 % over 40 pairs"
    tail = comparison((1.0, 1.1, 1.2), MetricName.TTFT, Percentile.P99)
    assert describe_ratio(tail, 1.05) == "ttft p99 on/off 1.10 [1.00, 1.20] at 99 % over 40 pairs, limit 1.05"
    assert describe_ratio(comparison(None)) == "e2e on/off not measured"
