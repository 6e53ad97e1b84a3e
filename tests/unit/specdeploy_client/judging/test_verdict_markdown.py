"""A verdict in Markdown."""

from helpers.judged_runs import VERDICT, judged_summary
from helpers.run_summaries import run_summary
from specdeploy.verdict_contract import GateFinding, Status, Verdict
from specdeploy_client.judging.verdict_markdown import render_markdown


def test_markdown_begins_with_the_verdict_and_lists_failures_first() -> None:
    text = render_markdown(judged_summary(), VERDICT)
    assert text.splitlines()[0] == "## ❌ demo: fail, must not take traffic as planned"
    places = [text.index(words) for words in ("**switch off**", "plan for chat", "SLO chat", "errors")]
    assert places == sorted(places)


def test_markdown_holds_the_ratios_the_crossover_the_voids_and_the_mismatch() -> None:
    text = render_markdown(judged_summary(), VERDICT)
    assert "| segment | load | e2e p50 | e2e p99 |" in text  # ttft was measured nowhere
    assert "| chat | **concurrency 4** | 1.30 [1.20, 1.40] slower | 1.10 [1.00, 1.20] undecided |" in text
    assert "| chat | e2e | 2.0 [1.5, 3.0] |" in text
    assert "| chat | concurrency 4 | sent late: p99 lag 5 ms |" in text
    assert "| chat | concurrency 4 | server 90, client 80 |" in text


def test_markdown_leaves_out_what_there_is_not() -> None:
    passed = Verdict(deployment="demo", status=Status.PASS, findings=VERDICT.findings[:1], decisions=())
    text = render_markdown(run_summary(), passed)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "## ✅ demo: pass, may take traffic",
        "### Findings",
    ]


def test_markdown_says_that_the_run_ended_early() -> None:
    text = render_markdown(run_summary(interrupted="the server is gone"), VERDICT)
    assert "**The run ended early:** the server is gone" in text


def test_texts_of_the_run_stay_texts_in_a_table() -> None:
    nasty = GateFinding(subject="a|b", status=Status.FAIL, detail="<img src=x> @team `code`\n| new row | [x](y)")
    text = render_markdown(run_summary(), VERDICT.model_copy(update={"findings": (nasty,)}))
    (row,) = [line for line in text.splitlines() if "a\\|b" in line]
    assert row.count(" | ") == 2
    assert "\\<img" in row
    assert "@team" not in row


def test_numbers_of_issues_formulas_and_strokes_stay_text() -> None:
    nasty = GateFinding(subject="fix #12 of $x$ and ~~that~~", status=Status.FAIL, detail="## no heading #")
    text = render_markdown(run_summary(), VERDICT.model_copy(update={"findings": (nasty,)}))
    (row,) = [line for line in text.splitlines() if "of" in line and "and" in line and line.startswith("| ❌")]
    assert "\\#\u200b12 of \\$x\\$ and \\~\\~that\\~\\~" in row
    assert "#12" not in row
