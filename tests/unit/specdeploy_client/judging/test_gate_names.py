"""A gate that speaks of what does not exist."""

import pytest

from specdeploy.errors import ConfigError
from specdeploy.run_contract import MetricName, Percentile, Slo
from specdeploy.verdict_contract import GateConfig, SegmentGate
from specdeploy_client.judging.gate_names import CHECK_NAMES, check_gate_names
from specdeploy_client.judging.integrity import check_integrity


def _complaints(gate: GateConfig, segments: tuple[str, ...] = ("chat", "code")) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        check_gate_names(gate, segments)
    return [str(violation) for violation in raised.value.violations]


def test_every_unknown_name_is_listed_at_once_with_the_known_ones() -> None:
    gate = GateConfig(
        name="typo",
        segments=(SegmentGate(name="chta"),),
        slos=(Slo(segment="vision", metric=MetricName.TTFT, percentile=Percentile.P50, max_ms=1),),
        required_checks=("text on = off", "texts"),
    )
    segment, slo, check = _complaints(gate)
    assert segment == (
        "gate 'typo': segments[0].name: there is no segment 'chta'. Did you mean 'chat'? Known: 'chat', 'code'"
    )
    assert slo.startswith("gate 'typo': slos[0].segment: there is no segment 'vision'. Known:")
    assert check.startswith("gate 'typo': required_checks[1]: there is no integrity check 'texts'.")
    assert "'server counters = client sums'" in check


def test_a_segment_has_one_entry() -> None:
    gate = GateConfig(name="twice", segments=(SegmentGate(name="chat"), SegmentGate(name="chat", max_ratio=0.5)))
    assert _complaints(gate) == [
        f"gate 'twice': segments[{index}].name: segment 'chat' has 2 entries. Give every segment one entry"
        for index in (0, 1)
    ]


def test_a_run_without_any_segment_says_so() -> None:
    assert _complaints(GateConfig(name="g", segments=(SegmentGate(name="chat"),)), ())[0].endswith("Known: none")


def test_the_names_of_checks_are_those_that_verify_makes() -> None:
    report = check_integrity(
        (), deployment="demo", build_id=None, dtype=None, server_counters=None, created_at="2026-01-01"
    )
    assert tuple(check.name for check in report.checks) == CHECK_NAMES
