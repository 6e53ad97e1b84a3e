"""The report is one self-contained, well-formed page that says what was found."""

import re
from html.parser import HTMLParser

import pytest

from specdeploy.run_contract import GateConfig, PlannedDraftLen, RequestRecord, RunSummary
from specdeploy_client.gate import judge
from specdeploy_client.integrity import check_integrity
from specdeploy_client.report import ReportInput, describe_run, render_report
from specdeploy_client.server_facts import SegmentCounters
from unit.specdeploy_client.fabricate import make_cell, make_summary

VOID_ELEMENTS = {"meta", "br", "link", "img", "input", "hr"}
PLANNED = (
    PlannedDraftLen(segment="code_edit", draft_len=4),
    PlannedDraftLen(segment="chat", draft_len=4),
    PlannedDraftLen(segment="summarisation", draft_len=0, off_reason="<off> & out"),
)


def _records() -> list[RequestRecord]:
    return [
        *make_cell("code_edit", 1, speedup=1.9),
        *make_cell("code_edit", 4, speedup=1.4),
        *make_cell("chat", 1, speedup=1.1),
        *make_cell("chat", 4, speedup=0.8),
    ]


def _input(summary: RunSummary) -> ReportInput:
    records = _records()
    counters = {"chat": SegmentCounters(), "code_edit": SegmentCounters()}
    integrity = check_integrity(
        records, deployment="demo", build_id="b1", dtype="float32", server_counters=counters, created_at="now"
    )
    return ReportInput(summary, integrity, judge(summary, integrity, GateConfig(name="test")))


class _Checker(HTMLParser):
    """Every tag that opens also closes; nothing is loaded from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if tag in {"script", "link", "img", "iframe", "object"} or names & {"src", "href", "xlink:href"}:
            self.problems.append(f"<{tag}> loads something")
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID_ELEMENTS:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")


def _check_page(page: str) -> None:
    checker = _Checker()
    checker.feed(page)
    checker.close()
    assert checker.problems == []
    assert checker.open == []
    assert not re.search(r"https?://|@import|url\(", page)


@pytest.fixture
def page() -> str:
    main = _input(make_summary(_records(), planned=PLANNED))
    row = make_summary(make_cell("code_edit", 1, seed=3), deployment="demo-bf16", dtype="bfloat16")
    return render_report(main, [ReportInput(row)])


def test_a_level_above_the_servers_limit_is_labelled_queued() -> None:
    page = render_report(_input(make_summary(_records(), planned=PLANNED, effective_concurrency=2)))
    assert page.count('class="queued">queued') == sum(
        level > 2 for level in {(r.segment, r.load): r.load.value for r in _records()}.values()
    )
    assert "2, serving.max_rows" in page
    assert "queued" not in render_report(_input(make_summary(_records(), planned=PLANNED))).split("<body")[1]


def test_the_page_is_self_contained_and_well_formed(page: str) -> None:
    _check_page(page)


def test_the_page_carries_verdict_decisions_and_definitions(page: str) -> None:
    text = re.sub(r"<[^>]+>", " ", page)
    for expected in (
        "fail",
        "switch off",
        "speculate",
        "measure more",
        "called ITL by AIPerf",
        "demo-bf16",
        "bfloat16",
        "server counters = client sums",
        "&lt;off&gt; &amp; out",
        "specdeploy-client smoke",
    ):
        assert expected in text, expected
    assert page.count("<svg") == 3
    assert "\N{EN DASH}" in text  # percentiles that 20 requests do not support


def _method(method: str, speedup: float, *, counters: bool = True) -> ReportInput:
    records = (*make_cell("code_edit", 1, speedup=speedup), *make_cell("chat", 1, speedup=speedup, seed=1))
    summary = make_summary(records, deployment=f"demo-{method}", dtype="bfloat16")
    return ReportInput(
        summary.model_copy(update={"method": method}),
        records=records,
        counters={"chat": SegmentCounters(10, 30, 6, (4, 2, 0))} if counters else None,
    )


def _methods_section(page: str) -> str:
    section = page.split('<section aria-labelledby="methods">')[1].split("</section>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", section).split())


@pytest.mark.parametrize("num_further", [0, 1, 3])
def test_methods_stand_side_by_side(num_further: int) -> None:
    further = [_method("ngram", 1.9), _method("draft_model", 0.6), _method("eagle3", 1.0, counters=False)][:num_further]
    page = render_report(_input(make_summary(_records(), planned=PLANNED)), further)
    _check_page(page)
    text = _methods_section(page)
    if not further:
        assert text.startswith("Does drafting pay, and why")
        assert text.count("at once") == 4  # every cell of the only run
        return
    assert text.startswith("Methods side by side")
    assert text.count("at once") == 2
    assert "ngram, float32" in text
    for run, outcome in zip(further, ("pays", "does not pay", "not decided"), strict=False):
        assert text.count(f"{run.summary.method}, bfloat16") == 2
        assert f"{outcome} :" in text
    assert "0.40 0.20 0.00" in text


def test_a_run_without_records_shows_dashes_for_its_steps() -> None:
    text = _methods_section(render_report(ReportInput(_method("ngram", 1.9).summary)))
    assert "\N{EN DASH} \N{EN DASH} \N{EN DASH} pays : what a step costs is not known" in text


def test_text_from_files_is_escaped() -> None:
    summary = make_summary(_records(), planned=PLANNED, environment={"note": "<script>alert(1)</script>"})
    named = summary.model_copy(update={"method": "<script>alert(2)</script>"})
    page = render_report(ReportInput(named), [ReportInput(summary)])
    assert "<script" not in page
    assert "&lt;script&gt;alert(2)" in _methods_section(page)
    _check_page(page)


@pytest.mark.parametrize("records", [[], make_cell(num_pairs=3), make_cell(num_pairs=1)])
def test_empty_and_void_runs_still_make_a_page(records: list[RequestRecord]) -> None:
    page = render_report(ReportInput(make_summary(records)))
    _check_page(page)
    assert "No cell has" in page


def test_two_sentences_say_what_was_measured_and_found() -> None:
    first, second = describe_run(make_summary(_records(), planned=PLANNED))
    assert first.startswith("160 requests of 2 traffic segments (code_edit, chat) were answered")
    assert "at concurrency 1 and 4, in float32." in first
    assert "At the expected concurrency of 4, speculation answers faster on code_edit (e2e on/off 0.7" in second
    assert "speculation answers slower on chat" in second
    assert "nothing was measured on summarisation" in second
