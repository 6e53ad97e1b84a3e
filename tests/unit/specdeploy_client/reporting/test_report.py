"""The report is one self-contained, well-formed page that says what was found."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from helpers.example_run import ExampleRun, foreign_run, open_run, small_run
from specdeploy.run_contract import Arm, Load, MetricName, RunSummary
from specdeploy.verdict_contract import GateConfig, IntegrityCheck, IntegrityReport, Status
from specdeploy_client.judging.gate import judge
from specdeploy_client.records.table import RecordTable
from specdeploy_client.reporting.report import ReportInput, render_report, request_ratios
from unit.specdeploy_client.fabricate import make_cell, make_columns, make_record, make_summary

VOID_ELEMENTS = {"meta", "br", "link", "img", "input", "hr"}


class _Checker(HTMLParser):
    """Every tag that opens also closes; nothing is loaded from outside; ids are unique, and links lead to them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in {"script", "link", "img", "iframe", "object"} or values.keys() & {"src", "xlink:href"}:
            self.problems.append(f"<{tag}> loads something")
        if "id" in values:
            self.ids.append(values["id"] or "")
        if (href := values.get("href")) is not None:
            self.links.append(href)
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
    assert len(checker.ids) == len(set(checker.ids))
    assert set(checker.links) <= {f"#{name}" for name in checker.ids}
    assert set(re.findall(r"url\(#([\w-]+)\)", page)) <= set(checker.ids)
    assert not re.search(r"https?://|@import|url\((?!#)", page)


def _text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page.split("<body>")[1]).split())


def _section(page: str, name: str) -> str:
    return _text("<body>" + page.split(f'<section aria-labelledby="{name}">')[1].split("</section>")[0])


def _input(run: ExampleRun, *, judged: bool = True) -> ReportInput:
    summary, table = run.build()
    check = IntegrityCheck(name="text on = off", status=Status.PASS, detail="360 answers are equal")
    integrity = IntegrityReport(
        deployment=summary.deployment,
        build_id=summary.build_id,
        dtype=summary.dtype,
        created_at="now",
        status=Status.PASS,
        checks=(check,),
    )
    verdict = judge(summary, integrity, GateConfig(name="test")) if judged else None
    return ReportInput(summary, integrity, verdict, table)


@pytest.fixture(scope="module")
def small() -> ReportInput:
    return _input(small_run())


@pytest.fixture(scope="module")
def page(small: ReportInput) -> str:
    return render_report(small)


def test_the_page_is_self_contained_and_well_formed(page: str) -> None:
    _check_page(page)


def test_the_answer_comes_first(page: str) -> None:
    text = _text(page)
    answer = "Speculate for code_edit and chat; switch it off for summarisation"
    assert text.index("\N{CHECK MARK} pass") < text.index(answer) < text.index("Decision per segment")
    parts = [page.index(f'id="{name}"') for name in ("decisions", "ratio", "heat", "latency", "voids", "cells")]
    assert parts == sorted(parts)


def test_every_part_is_there(small: ReportInput, page: str) -> None:
    text = _text(page)
    (crossover,) = (c for c in small.summary.crossovers if (c.segment, c.metric) == ("chat", MetricName.E2E))
    for expected in (
        "called ITL by AIPerf",
        "called ITL by vLLM",
        "text on = off",
        "planned off: acceptance is low",
        f"Faster up to {crossover} at once",
        "Faster at every level, up to 16 at once",
        "Not faster at any level",
        "sent late: 60 of 60 requests off",
        "Lower the load, or give the client more CPU.",
        "counted by the server",
        "sha256:41b0c7",
        "TTFT at most 200 ms, TPOT at most 30 ms",
        "percentile with speculation / percentile without",
        "(last - first message with a token) / (tokens - 1)",
    ):
        assert expected in text, expected
    assert "\N{EN DASH}" in text  # percentiles that 60 requests do not support


def test_plots_stand_for_every_segment(page: str) -> None:
    """3 ratio panels, 3 x 4 latency panels, 3 distributions, 3 of positions, and an interval per line of a card."""
    assert page.count('<svg class="plot"') == 3 + 12 + 3 + 3
    assert page.count('<svg class="forest"') == 3 * 3
    assert page.count('class="crossing-mark"') == 1


def test_the_heat_map_has_a_field_per_cell(page: str) -> None:
    heat = page.split('<section aria-labelledby="heat">')[1].split("</section>")[0]
    fields = re.findall(r'<td class="(\w+)[^"]*" style="--strength: (\d+)%"', heat)
    assert len(fields) == 3 * 3 * 3
    assert sum(outcome == "void" for outcome, _ in fields) == 3  # one cell, in three maps
    strengths = [int(strength) for outcome, strength in fields if outcome == "faster"]
    assert max(strengths) > min(strengths) > 0


def test_a_void_cell_is_left_out_of_the_distributions(small: ReportInput, page: str) -> None:
    spreads = page.split('<section aria-labelledby="requests">')[1].split("</section>")[0]
    assert spreads.count('class="median"') == 3 * 3 - 1


def test_without_records_everything_but_distributions_and_step_costs_remains(small: ReportInput) -> None:
    page = render_report(replace(small, table=None))
    _check_page(page)
    assert 'aria-labelledby="requests"' not in page
    assert "what a step costs is not known" in _section(page, "methods")
    assert page.count('<svg class="plot"') == 3 + 12 + 3


def test_a_level_above_the_servers_limit_is_labelled_queued() -> None:
    page = render_report(_input(small_run(limit=8)))
    assert page.count('class="queued">queued') == 3  # level 16 of three segments
    assert page.count("queue-area") == 3 + 1  # and its style
    assert "8, key/value memory" in page
    assert 'is-queued" style' in page


def test_an_interrupted_run_says_so_at_the_top() -> None:
    page = render_report(_input(small_run(interrupted="the server <died> at chat")))
    _check_page(page)
    assert _text(page).index("The run ended early: the server &lt;died&gt; at chat") < _text(page).index("Decision per")


@pytest.mark.parametrize("reason", ["nobody answers on port 16", "nobody answers on port 16."])
def test_what_ended_a_run_ends_with_one_full_stop(reason: str) -> None:
    text = _text(render_report(_input(small_run(interrupted=reason))))
    assert "nobody answers on port 16. All numbers are of what was measured until then." in text


def test_an_open_loop_is_told_in_rates() -> None:
    run = open_run()
    laws = {name: replace(law, num_pairs=40) for name, law in run.laws.items()}
    page = render_report(_input(replace(run, laws=laws)))
    _check_page(page)
    text = _text(page)
    assert "At 2.5 requests/s, speculation" in text
    assert "open loop, poisson arrivals" in text
    assert "One load was measured" in text
    assert "requests per second" in page
    assert "at once" not in _section(page, "cells")


def test_a_foreign_endpoint_without_a_gate_makes_a_page() -> None:
    page = render_report(_input(foreign_run(), judged=False))
    _check_page(page)
    text = _text(page)
    assert "not judged" in text
    assert "Speculation is undecided on chat" in text
    assert "in an unreported dtype" in text
    assert "By position it is not measurable" in text
    assert "not measurable" in _section(page, "acceptance")


def test_notes_about_the_records_are_shown(small: ReportInput) -> None:
    assert small.table is not None
    noted = RecordTable(small.table.cells, ("the last line <was> cut off",))
    assert "the last line &lt;was&gt; cut off" in render_report(replace(small, table=noted))


def _method(method: str, *, ratio: float, deployment: str) -> ReportInput:
    run = small_run(method=method, deployment=deployment, dtype="float32", loads=(Load(4),), spoils={})
    laws = {name: replace(run.laws[name], ratio_at_one=ratio, slope=0.0, ttft_ratio=1.0) for name in ("chat",)}
    return _input(replace(run, laws=laws), judged=False)


@pytest.mark.parametrize("num_further", [0, 1, 3])
def test_methods_stand_side_by_side(small: ReportInput, num_further: int) -> None:
    further = [
        _method("ngram", ratio=0.5, deployment="a"),
        _method("draft_model", ratio=1.5, deployment="b"),
        _method("eagle3", ratio=1.0, deployment="c"),
    ][:num_further]
    page = render_report(small, further)
    _check_page(page)
    text = _section(page, "methods")
    if not further:
        assert text.startswith("Does drafting pay, and why")
        assert text.count("at once") == 9  # every cell of the only run
        return
    assert text.startswith("Methods side by side")
    assert text.count("at once") == 1
    assert "draft_model, bfloat16" in text
    for run, outcome in zip(further, ("pays", "does not pay", "not decided"), strict=False):
        assert f"{run.summary.method}, float32" in text
        assert f"{outcome} :" in text
    assert "0.68 0.44 0.27 0.16" in text
    assert "Beside it: a (ngram, float32)" in _text(page)


def test_text_from_files_is_escaped(small: ReportInput) -> None:
    evil = "<script>alert(1)</script>"
    summary = small.summary.model_copy(
        update={"method": evil, "environment": {evil: evil}, "deployment": evil, "build_id": evil, "load_kind": evil}
    )
    renamed = summary.model_copy(
        update={
            "cells": tuple(cell.model_copy(update={"segment": evil}) for cell in summary.cells),
            "comparisons": tuple(c.model_copy(update={"segment": evil}) for c in summary.comparisons),
            "conditions": tuple(c.model_copy(update={"segment": evil}) for c in summary.conditions),
            "crossovers": tuple(c.model_copy(update={"segment": evil}) for c in summary.crossovers),
        }
    )
    page = render_report(ReportInput(renamed), [ReportInput(summary)])
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    _check_page(page)


@pytest.mark.parametrize("num_pairs", [0, 1, 3])
def test_empty_and_void_runs_still_make_a_page(num_pairs: int) -> None:
    summary: RunSummary = make_summary(make_cell(num_pairs=num_pairs))
    page = render_report(ReportInput(summary))
    _check_page(page)
    assert "no cell" in _text(page).lower() or "void" in _text(page)


def test_a_run_of_one_arm_has_nothing_to_compare() -> None:
    only_on = [record for record in make_cell() if record.arm is Arm.ON]
    page = render_report(ReportInput(make_summary(only_on), table=RecordTable.from_records(only_on)))
    _check_page(page)
    assert "speculation on and off were not both measured" in page
    text = _text(page)
    assert "Only the arm with speculation was measured, so nothing was compared." in text
    assert "Nothing was compared, so there was nothing to void." in text
    assert "Nothing was compared: a decision needs speculation both on and off." in text
    assert "interleaved, in float32" not in text


def test_the_page_says_the_confidence_that_its_intervals_have(small: ReportInput) -> None:
    text = _text(render_report(small))
    assert "an on/off ratio with its 99 % interval;" in text
    assert "The same ratio for every metric, with its 99 % interval." in text
    others = tuple(c.model_copy(update={"confidence": 0.9}) for c in small.summary.comparisons)
    text = _text(render_report(replace(small, summary=small.summary.model_copy(update={"comparisons": others}))))
    assert "with its 90 % interval" in text
    assert "99 % interval" not in text.replace("middle 99 %", "")


def test_few_pairs_show_their_means_where_there_is_no_median() -> None:
    text = _text(render_report(ReportInput(make_summary(make_cell(concurrency=4, num_pairs=12)))))
    assert re.search(r"Too few requests for a median. Mean at concurrency 4: [\d,]+ off, [\d,]+ on\.", text)


def test_arms_of_a_cell_stand_together_however_they_are_stored() -> None:
    summary = make_summary([*make_cell("chat", 1), *make_cell("chat", 4)])
    mixed = summary.model_copy(update={"cells": (*summary.cells[::2], *summary.cells[1::2])})
    page = render_report(ReportInput(mixed))
    _check_page(page)
    section = page.split('id="cells"')[1]
    assert re.findall(r'<td class="arm-(\w+)">', section)[:4] == ["off", "on", "off", "on"]


def test_a_request_is_held_against_itself() -> None:
    """Failed requests and those of one arm only have no ratio."""
    off = [make_record((50, 100 * (i + 1)), (1, 1), index=i) for i in range(4)]
    on = [make_record((50, 60 * (i + 1)), (1, 1), arm=Arm.ON, index=i) for i in (3, 1, 0)]
    on.append(make_record((), (), arm=Arm.ON, index=2, error="refused"))
    assert request_ratios(make_columns(off), make_columns(on)).tolist() == pytest.approx([0.6, 0.6, 0.6])


def test_gaps_are_also_shown_per_token() -> None:
    """Messages of 4 tokens 80 ms apart: 80 ms between messages, 20 ms per token."""
    record = make_record([100 + 80 * i for i in range(30)], [4] * 30)
    page = render_report(ReportInput(make_summary([record])))
    row = page.split('<td class="arm-off">')[1].split("</tr>")[0]
    shown = re.findall(r">([\d.,\N{EN DASH}]+)</td>", row)
    assert float(shown[-6]) == pytest.approx(80, rel=0.01)  # p50 of the gaps, before p90, p95 and p99 of them
    assert float(shown[-2]) == pytest.approx(20, rel=0.01)
