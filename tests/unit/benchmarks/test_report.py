"""Tables out of records, and records on disk."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Script = Callable[[str], ModuleType]


def record(script: Script, arm: str, block: str, seconds: float, **changes: Any) -> Any:
    fields = {
        "kind": "single",
        "block": block,
        "segment": "chat",
        "arm": arm,
        "seconds": seconds,
        "first_token_seconds": None,
        "num_tokens": 10,
        "num_steps": 10,
        "num_draft_tokens": 0,
        "num_accepted_tokens": 0,
        "token_ids": [[1, 2]],
    }
    return script("records").Record(**(fields | changes))


def test_a_speedup_pairs_prompts_and_leaves_out_what_one_arm_lacks(script: Script) -> None:
    records = [record(script, "ours", f"p{i}", 1.0) for i in range(4)]
    records += [record(script, "theirs", f"p{i}", 2.0) for i in range(3)]
    ratio = script("report").Measurements(records).speedup("chat", "ours", "theirs")
    assert (ratio.value, ratio.num_pairs) == (2.0, 3)
    assert script("report").Measurements(records).speedup("chat", "ours", "nobody") is None


def test_the_peer_is_judged_at_its_fastest(script: Script) -> None:
    records = []
    for i in range(3):
        records += [record(script, "ours", f"p{i}", 1.0)]
        records += [record(script, "theirs-4", f"p{i}", 2.5), record(script, "theirs-10", f"p{i}", 1.5)]
    report, comparison = script("report"), script("comparison")
    table, verdicts = report.against_table(
        report.Measurements(records), {"ours": ("theirs-4", "theirs-10")}, {}, comparison.Goal(2.0, 1.3)
    )
    assert [(verdict.subject, verdict.row()[3]) for verdict in verdicts] == [
        ("chat: ours against theirs-10", "short of the goal")
    ]
    assert "theirs-10 (its fastest)" in table


def test_a_batch_counts_tokens_over_seconds(script: Script) -> None:
    records = [record(script, "ours", f"p{i}", 2.0) for i in range(4)]
    records += [record(script, "ours", f"b{i}", 2.0, kind="batch", num_tokens=80) for i in range(3)]
    report, comparison = script("report"), script("comparison")
    _, verdicts = report.batch_table(report.Measurements(records), [("ours", "ours", False)], {}, comparison.Goal(3.0))
    assert verdicts[0].ratio.value == pytest.approx(8.0)


def test_method_table_shows_acceptance_and_agreement(script: Script) -> None:
    records = [record(script, "plain", f"p{i}", 2.0) for i in range(3)]
    drafted = {"num_steps": 4, "num_draft_tokens": 8, "num_accepted_tokens": 6}
    records += [record(script, "ngram", f"p{i}", 1.0, **drafted) for i in range(2)]
    records += [record(script, "ngram", "p2", 1.0, token_ids=[[1, 3]], **drafted)]
    table = script("report").method_table(script("report").Measurements(records), {"ngram": "n-gram"}, "plain")
    assert table.splitlines()[2] == "| chat | n-gram | 1.00 | 2.00 (2.00-2.00) | 0.75 | 2.50 | 2 of 3 |"


def test_a_step_is_judged_against_reading_its_weights(script: Script) -> None:
    cost = {
        "dtype": "bfloat16",
        "step_s": 0.025,
        "parts_s": {"linears": 0.02},
        "plain_forward_s": [0.02] * 5,
        "verify_forward_s": [0.025] * 5,
        "verified_tokens": 8,
        "read_once_s": 0.01,
    }
    table, verdicts = script("report").step_table([cost])
    assert "| bfloat16 | 25.00 | 20.00 | 10.00 | 2.50 | 1.25 (1.25-1.25) |" in table
    assert [verdict.row()[3] for verdict in verdicts] == ["short of the goal", "missed"]


def test_records_survive_an_interruption_and_other_settings_set_them_aside(script: Script, tmp_path: Path) -> None:
    module = script("records")
    file = module.RecordFile(tmp_path, "run", {"threads": 2})
    file.add([record(script, "ours", "p0", 1.0), record(script, "theirs", "p0", 2.0)])
    with (tmp_path / "run.jsonl").open("a") as cut:
        cut.write('[{"kind": "single", "blo')
    again = module.RecordFile(tmp_path, "run", {"threads": 2})
    assert again.has("p0", ["ours", "theirs"])
    assert not again.has("p0", ["ours", "theirs", "a new arm"])
    assert not module.RecordFile(tmp_path, "run", {"threads": 4}).records
    assert (tmp_path / "run.old.jsonl").is_file()


def test_a_block_that_is_measured_again_counts_once(script: Script, tmp_path: Path) -> None:
    file = script("records").RecordFile(tmp_path, "run", {})
    file.add([record(script, "ours", "p0", 1.0)])
    file.add([record(script, "ours", "p0", 3.0)])
    assert [kept.seconds for kept in file.records] == [3.0]
    assert [kept.seconds for kept in script("records").read_records(tmp_path / "run.jsonl")] == [3.0]


def test_the_plot_is_xml_with_a_bar_per_arm(script: Script) -> None:
    records = [record(script, arm, f"p{i}", 1.0) for arm in ("plain", "a<b") for i in range(3)]
    svg = script("report").speedup_plot(script("report").Measurements(records), {"a<b": "a<b"}, "plain", "x & y")
    root = ElementTree.fromstring(svg)  # noqa: S314 - our own text
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["chat, a<b: 1.00 (1.00-1.00)"]


def test_no_bar_is_no_plot(script: Script) -> None:
    with pytest.raises(ValueError, match="no bar"):
        script("bars").bar_plot("empty", {"chat": {}})
