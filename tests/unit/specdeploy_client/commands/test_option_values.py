"""Texts of the command line become values, or one sentence that says what to write."""

from collections.abc import Callable
from typing import Any

import pytest

from specdeploy.errors import ConfigError, RequestError
from specdeploy.run_contract import MetricName, Objective, Percentile
from specdeploy_client.commands.option_values import (
    OptionProblems,
    parse_goodput,
    parse_levels,
    parse_percentiles,
    parse_rates,
)


def test_levels_and_rates_keep_their_order_and_each_once() -> None:
    assert parse_levels("4, 1,4,16,") == (4, 1, 16)
    assert parse_rates("2,0.5,2.0") == (2.0, 0.5)
    assert parse_percentiles("99,p50,50") == (Percentile.P99, Percentile.P50)


def test_goodput_takes_our_names_and_those_of_other_tools() -> None:
    assert parse_goodput("ttft:200 tpot:30 e2el:4000") == (
        Objective(metric=MetricName.TTFT, max_ms=200),
        Objective(metric=MetricName.TPOT, max_ms=30),
        Objective(metric=MetricName.E2E, max_ms=4000),
    )
    assert parse_goodput("request_latency:1.5,inter_token_latency:3") == (
        Objective(metric=MetricName.E2E, max_ms=1.5),
        Objective(metric=MetricName.TPOT, max_ms=3),
    )


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_levels, "1,x", "--concurrency: '1,x' is not a list of whole numbers"),
        (parse_levels, "0", "--concurrency: '0'"),
        (parse_levels, ",", "--concurrency: ','"),
        (parse_levels, "²", "--concurrency"),
        (parse_rates, "1,0", "--request-rate: '1,0'"),
        (parse_rates, "inf", "--request-rate: 'inf'"),
        (parse_rates, "nan", "--request-rate: 'nan'"),
        (parse_goodput, "speed:3", "--goodput: 'speed' is not a metric of ttft, tpot, e2e, e2el"),
        (parse_goodput, "ttft", "--goodput: 'ttft' has no limit above 0"),
        (parse_goodput, "e2e:1 e2el:2", "--goodput: e2e has two limits"),
        (parse_goodput, " ", "names no objective"),
        (parse_percentiles, "50,97", "--metric-percentiles: '50,97' is not a list of 50, 90, 95, 99"),
    ],
)
def test_what_is_refused(parse: Callable[[str], Any], text: str, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse(text)
    assert message in str(refused.value)
    assert refused.value.remedy


def test_all_problems_come_at_once() -> None:
    problems = OptionProblems()
    assert problems.collect(parse_levels, "1,2", ()) == (1, 2)
    assert problems.collect(parse_levels, "", (7,)) == (7,)
    problems.raise_if_any()
    assert problems.collect(parse_levels, "x", (7,)) == (7,)
    problems.collect(parse_rates, "y", ())
    problems.add("--url", "is missing", "Give one")
    with pytest.raises(ConfigError) as refused:
        problems.raise_if_any()
    assert [violation.file for violation in refused.value.violations] == ["--concurrency", "--request-rate", "--url"]
