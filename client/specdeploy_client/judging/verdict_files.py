"""A verdict as files for those who did not run it: JSON, JUnit XML for CI servers, Markdown for a pull request.

JUnit has no binding schema; the elements used here (`testsuites`, `testsuite`, `properties`, `testcase`, `failure`,
`skipped`) are those that Jenkins, GitLab and the usual test reporters read. A finding that fails is a failed test
case, an inconclusive one a skipped test case with its reason.
"""

from collections import Counter
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from specdeploy.run_contract import Load, RunSummary
from specdeploy.verdict_contract import GateFinding, SegmentDecision, Status, Verdict
from specdeploy_client.artifacts import VERDICT_FILE, write_model, write_text
from specdeploy_client.judging.verdict_markdown import render_markdown

VERDICT_JUNIT_FILE = "verdict.junit.xml"
VERDICT_MARKDOWN_FILE = "verdict.md"


def write_verdict_files(folder: Path, summary: RunSummary, verdict: Verdict) -> tuple[Path, ...]:
    """Write the three files into `folder`, each atomically; returns their paths."""
    paths = tuple(folder / name for name in (VERDICT_FILE, VERDICT_JUNIT_FILE, VERDICT_MARKDOWN_FILE))
    write_model(paths[0], verdict)
    write_text(paths[1], render_junit(summary, verdict))
    write_text(paths[2], render_markdown(summary, verdict))
    return paths


def render_junit(summary: RunSummary, verdict: Verdict) -> str:
    """One test case per finding. The time of the suite is that of the run; single findings take none."""
    num_failed = sum(finding.status is Status.FAIL for finding in verdict.findings)
    num_skipped = sum(finding.status is Status.INCONCLUSIVE for finding in verdict.findings)
    counts = {
        "tests": str(len(verdict.findings)),
        "failures": str(num_failed),
        "errors": "0",
        "skipped": str(num_skipped),
        "time": f"{summary.duration_s:.3f}",
    }
    root = Element("testsuites", {"name": "specdeploy gate", **counts})
    named = {"name": _xml_text(f"gate {verdict.deployment}"), "timestamp": _xml_text(summary.started_at)}
    suite = SubElement(root, "testsuite", {**named, **counts})
    properties = SubElement(suite, "properties")
    for name, value in _properties(summary, verdict).items():
        SubElement(properties, "property", {"name": _xml_text(name), "value": _xml_text(value)})
    for finding in verdict.findings:
        _add_case(suite, verdict.deployment, finding)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _add_case(suite: Element, deployment: str, finding: GateFinding) -> None:
    attributes = {"classname": f"gate.{deployment}", "name": finding.subject, "time": "0"}
    case = SubElement(suite, "testcase", {name: _xml_text(value) for name, value in attributes.items()})
    detail = _xml_text(finding.detail)
    if finding.status is Status.FAIL:
        SubElement(case, "failure", {"message": detail, "type": "gate"}).text = detail
    elif finding.status is Status.INCONCLUSIVE:
        SubElement(case, "skipped", {"message": f"inconclusive: {detail}"})
    else:
        SubElement(case, "system-out").text = detail


def _properties(summary: RunSummary, verdict: Verdict) -> dict[str, str]:
    known = {
        "verdict": verdict.status,
        "build": summary.build_id,
        "lane": summary.lane,
        "method": summary.method,
        "load": summary.load_kind,
        "interrupted": summary.interrupted,
    }
    num_decisions = Counter(decision.segment for decision in verdict.decisions)
    decisions = {
        f"decision for {decision.segment}"
        + (f" at {_load_of(decision)}" if num_decisions[decision.segment] > 1 else ""): decision.action
        for decision in verdict.decisions
    }
    return {**{name: value for name, value in known.items() if value is not None}, **decisions}


def _load_of(decision: SegmentDecision) -> Load:
    return Load(decision.concurrency, decision.request_rate)


def _xml_text(text: str) -> str:
    """`text` without the characters that XML 1.0 cannot hold (section 2.2, production Char), each as U+FFFD."""
    return "".join(character if _is_xml(ord(character)) else "\ufffd" for character in text)


def _is_xml(code: int) -> bool:
    return code in (0x9, 0xA, 0xD) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
