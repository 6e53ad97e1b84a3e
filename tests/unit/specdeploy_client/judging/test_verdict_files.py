"""A verdict as JSON, JUnit XML and Markdown."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from helpers.judged_runs import VERDICT, judged_summary
from specdeploy.verdict_contract import GateFinding, SegmentDecision, Status, Verdict
from specdeploy_client.judging.verdict_files import render_junit, write_verdict_files


def _suite(text: str) -> ElementTree.Element:
    root = ElementTree.fromstring(text)  # noqa: S314 - our own text
    (suite,) = root
    return suite


def test_a_test_case_per_finding() -> None:
    suite = _suite(render_junit(judged_summary(), VERDICT))
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "3", "failures": "1", "errors": "0", "skipped": "1", "time": "93.400"}
    passed, failed, skipped = suite.findall("testcase")
    assert (passed.get("name"), passed.get("classname")) == ("errors", "gate.demo")
    assert passed.find("failure") is None
    assert passed.find("skipped") is None
    failure = failed.find("failure")
    assert failure is not None
    assert failure.get("message") == failure.text == "measured slower: 1.3 [1.2, 1.4] & <rising>"
    reason = skipped.find("skipped")
    assert reason is not None
    assert reason.get("message") == "inconclusive: 40 samples do not support p99"


def test_the_suite_says_what_was_measured() -> None:
    properties = {
        one.get("name"): one.get("value") for one in _suite(render_junit(judged_summary(), VERDICT)).iter("property")
    }
    assert properties["verdict"] == "fail"
    assert properties["build"] == "b1"
    assert properties["decision for chat"] == "switch off"
    assert "interrupted" not in properties


def test_decisions_at_several_rates_are_told_apart() -> None:
    decisions = tuple(
        SegmentDecision(segment="chat", concurrency=None, request_rate=rate, action=action, detail="x")
        for rate, action in ((2.0, "speculate"), (8.0, "switch off"))
    )
    suite = _suite(render_junit(judged_summary(), VERDICT.model_copy(update={"decisions": decisions})))
    found = {
        one.get("name"): one.get("value") for one in suite.iter("property") if "decision" in (one.get("name") or "")
    }
    assert found == {
        "decision for chat at 2 requests/s": "speculate",
        "decision for chat at 8 requests/s": "switch off",
    }


@pytest.mark.parametrize("bad", ["\x00", "\x1b", "\x0b", "\ud800", "\ufffe"])
def test_characters_that_xml_cannot_hold_are_replaced(bad: str) -> None:
    finding = GateFinding(subject="errors", status=Status.FAIL, detail=f"text{bad}damaged")
    suite = _suite(render_junit(judged_summary(), VERDICT.model_copy(update={"findings": (finding,)})))
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.text == "text\ufffddamaged"


def test_the_three_files_replace_older_ones(tmp_path: Path) -> None:
    (tmp_path / "verdict.md").write_text("old")
    paths = write_verdict_files(tmp_path, judged_summary(), VERDICT)
    assert [path.name for path in paths] == ["verdict.json", "verdict.junit.xml", "verdict.md"]
    assert Verdict.model_validate_json(paths[0].read_text()) == VERDICT
    assert paths[2].read_text().startswith("## ❌")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
