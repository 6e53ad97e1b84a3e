"""What a person sees in the terminal: everything that matters, within 120 columns."""

import io

import pytest
from rich.console import Console, RenderableType
from rich.progress import Progress

from helpers.example_run import ExampleRun, foreign_run, open_run, small_run
from specdeploy.run_contract import Objective, RunSummary
from specdeploy.verdict_contract import GateConfig, Status, Verdict
from specdeploy_client.judging.gate import judge
from specdeploy_client.judging.stored_runs import compare_runs
from specdeploy_client.reporting.console import (
    methods_table,
    progress_columns,
    run_notes,
    run_table,
    verdict_line,
    verdict_panel,
    void_notes,
)
from specdeploy_client.reporting.console_runs import stored_runs_view
from specdeploy_client.reporting.methods import MeasuredRun, compare_methods
from unit.specdeploy_client.fabricate import make_cell, make_summary


def _shown(content: RenderableType, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(content)
    lines = capture.get().splitlines()
    assert max(map(len, lines), default=0) <= width
    return "\n".join(lines)


@pytest.fixture(scope="module")
def summary() -> RunSummary:
    return small_run().build()[0]


def test_the_table_has_both_arms_of_every_cell(summary: RunSummary) -> None:
    shown = _shown(run_table(summary))
    assert "at c concurrent requests" in shown
    assert shown.count(" off ") == shown.count(" on ") == 9
    assert "goodput" in shown
    assert shown.count("void") == 1
    assert "tok/s" in shown


def test_goodput_is_shown_where_there_are_objectives() -> None:
    records = make_cell(concurrency=4)
    assert "goodput" not in _shown(run_table(make_summary(records)))
    objective = Objective.model_validate({"metric": "tpot", "max_ms": 30})
    assert "goodput" in _shown(run_table(make_summary(records, objectives=[objective])))


@pytest.mark.parametrize("run", [open_run(), foreign_run()])
def test_open_loops_and_foreign_endpoints_have_a_table(run: ExampleRun) -> None:
    summary, _ = run.build()
    shown = _shown(run_table(summary))
    assert ("at r requests/s" in shown) == (summary.load_kind != "closed loop")
    assert "chat" in shown


def test_notes_tell_what_must_not_be_overlooked(summary: RunSummary) -> None:
    conditions = (summary.conditions[0].model_copy(update={"stopped_after": 40}), *summary.conditions[1:])
    notes = run_notes(summary.model_copy(update={"interrupted": "the server is gone", "conditions": conditions}))
    assert notes[0] == "the run ended early: the server is gone"
    assert notes[1].startswith(
        "code_edit: speculation is faster at every level, up to 16 at once (e2e), 4 are expected"
    )
    assert any(note.startswith("chat: speculation is faster up to ") for note in notes)
    assert any(note.startswith("summarisation at concurrency 16 is void: sent late") for note in notes)
    assert any("the server's counters and the answers disagree: drafted tokens" in note for note in notes)
    assert "code_edit at concurrency 1: decided after 40 pairs, stopped early" in notes


def test_levels_that_queue_are_noted() -> None:
    summary = make_summary(make_cell(concurrency=4), effective_concurrency=2)
    assert any("4 requests may queue" in note for note in void_notes(summary))
    assert "queued" in _shown(run_table(summary))


def test_the_verdict_fits_one_line(summary: RunSummary) -> None:
    line = verdict_line(summary, judge(summary, None, GateConfig(name="test", require_integrity=False)))
    assert line.plain.startswith("pass: Speculate for code_edit and chat; switch it off for summarisation (")
    assert "\n" not in line.plain


def test_dashes_and_intervals_are_explained_below_the_table() -> None:
    shown = _shown(run_table(make_summary(make_cell(concurrency=4))))
    assert "\N{EN DASH}: too few requests for this percentile (p50 20, p90 100, p99 1000)" in shown
    assert "e2e on/off: ratio of medians with its 99 % interval, below 1 is faster" in shown
    assert "too few" not in _shown(run_table(make_summary([])))


def test_the_table_says_the_confidence_that_its_intervals_have() -> None:
    summary = make_summary(make_cell(concurrency=4))
    other = [c.model_copy(update={"confidence": 0.95}) for c in summary.comparisons]
    assert "its 95 % interval" in _shown(run_table(summary.model_copy(update={"comparisons": tuple(other)})))
    run = MeasuredRun(summary)
    assert "its 99 % interval" in _shown(methods_table(compare_methods([run])))


def test_a_row_of_few_pairs_shows_means_and_its_interval_whole_at_80_columns() -> None:
    """12 pairs give an interval and no percentile: a table of dashes would tell nothing."""
    shown = _shown(run_table(make_summary(make_cell(concurrency=4, num_pairs=12))), width=80)
    assert "mean in ms" in shown
    assert "mean: too few requests for a percentile (p50 20, p90 100, p99 1000)" in shown
    assert "\N{EN DASH}" not in shown
    assert "[0." in next(line for line in shown.splitlines() if " on " in line)
    assert "/step" in shown


def test_few_pairs_beside_many_are_marked_as_means() -> None:
    cells = [*make_cell("few", 4, num_pairs=12), *make_cell("many", 4)]
    rows = _shown(run_table(make_summary(cells))).splitlines()
    assert ["mean" in row for row in rows if " off " in row] == [True, False]


def test_a_verdict_without_decisions_begins_with_its_findings(summary: RunSummary) -> None:
    verdict = judge(summary, None, GateConfig(name="test", require_integrity=False))
    lines = _shown(verdict_panel(Verdict(**{**dict(verdict), "decisions": ()}))).splitlines()
    assert verdict.findings[0].status is Status.PASS
    assert "errors" in lines[1]
    assert _shown(verdict_panel(verdict)).count(f"\u2502{' ' * 118}\u2502") == 1  # between decisions and findings


def test_the_bar_shows_place_count_and_time() -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=True)
    with Progress(*progress_columns(), console=console) as progress:
        progress.update(progress.add_task("chat, concurrency 4, on", total=40), advance=10)
        progress.refresh()
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "chat, concurrency 4, on" in shown
    assert "10/40" in shown


def test_two_stored_runs_stand_beside_each_other(summary: RunSummary) -> None:
    after, _ = small_run(seed=1, method="ngram").build()
    shown = _shown(stored_runs_view(compare_runs(summary, after)))
    for expected in ("What differs", "draft_model", "ngram", "on/off ratios", "after / before", "Crossovers", "void"):
        assert expected in shown, expected
    assert " of 27 ratios differ by more than the intervals of both runs" in shown


def test_a_run_beside_itself_shows_no_difference(summary: RunSummary) -> None:
    shown = _shown(stored_runs_view(compare_runs(summary, summary)))
    assert "0 of 27 ratios differ" in shown
    assert "gains" not in shown
    assert "no difference shown" in shown


def test_a_worse_run_gains_less(summary: RunSummary) -> None:
    after, _ = small_run(laws={"code_edit": small_run().laws["summarisation"]}, spoils={}).build()
    shown = " ".join(_shown(stored_runs_view(compare_runs(summary, after))).split())
    assert "gains less, reversed" in shown
