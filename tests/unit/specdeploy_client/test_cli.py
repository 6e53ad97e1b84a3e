"""Commands, their exit codes and what they print."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specdeploy.run_contract import GateConfig, IntegrityReport, PlannedDraftLen, RunSummary, Status, Verdict
from specdeploy_client import cli, session
from specdeploy_client.artifacts import write_model
from specdeploy_client.bench import write_counters
from specdeploy_client.console import integrity_panel, run_table, truth_line, verdict_panel, void_notes
from specdeploy_client.gate import judge
from specdeploy_client.records import RecordWriter
from specdeploy_client.server_facts import SegmentCounters, ServerFacts
from unit.specdeploy_client.fabricate import MockTransport, make_cell, make_record, make_summary

ROOT = Path(__file__).parents[3]
GATE = ROOT / "configs" / "gates" / "default.yaml"
DEMO = str(ROOT / "configs" / "deployments" / "demo.yaml")


class _Server(MockTransport):
    """A mock that is opened like the real transport."""

    url = "mock:1"

    async def __aenter__(self) -> "_Server":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        pass

    async def is_ready(self) -> bool:
        return True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Server:
    mock = _Server(ttft_s=0.0005, gap_s=0.0002, num_tokens=8)

    async def read_facts(metrics_url: str) -> ServerFacts:
        counters = {}
        for segment in {request.segment for request in mock.requests if request.segment}:
            on = [r for r in mock.requests if r.segment == segment and r.num_draft_tokens]
            steps = 4 * len(on)
            counters[segment] = SegmentCounters(steps, 4 * steps, steps, (steps,))
        return ServerFacts("demo", "b1", "torch", "ngram", "float32", 1, 4, counters)

    monkeypatch.setattr(session, "GrpcTransport", lambda url, timeout_s: mock)
    monkeypatch.setattr(session, "read_server_facts", read_facts)
    monkeypatch.chdir(tmp_path)
    return mock


def _save(folder: Path, records: list[Any], **changes: Any) -> RunSummary:
    summary = make_summary(records, **changes)
    write_model(folder / "run_summary.json", summary)
    return summary


def _integrity(folder: Path, status: Status) -> None:
    report = IntegrityReport(
        deployment="demo", build_id="b1", dtype="float32", created_at="now", status=status, checks=()
    )
    write_model(folder / "integrity" / "b1-demo.json", report)


@pytest.mark.parametrize(("speedup", "exit_code"), [(2.0, 0), (0.6, 1), (1.0, 2)])
def test_gate_exit_codes(tmp_path: Path, speedup: float, exit_code: int) -> None:
    _save(tmp_path, make_cell(concurrency=4, speedup=speedup))
    _integrity(tmp_path, Status.PASS)
    arguments = ["gate", "--gate", str(GATE), "--artifact-dir", str(tmp_path), "--engines-root", str(tmp_path)]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == exit_code, result.output
    assert cli.main(arguments) == exit_code
    verdict = Verdict.model_validate_json((tmp_path / "verdict.json").read_text())
    assert cli.EXIT_CODES[verdict.status] == exit_code


def test_report_writes_a_page_with_further_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(tmp_path / "a", make_cell(concurrency=4))
    _save(tmp_path / "b", make_cell(), deployment="demo-bf16", dtype="bfloat16")
    _save(tmp_path / "c", make_cell(concurrency=4), deployment="demo-eagle3")
    also = ["--also", str(tmp_path / "b"), "--also", str(tmp_path / "c")]
    assert cli.main(["report", "--artifact-dir", str(tmp_path / "a"), *also]) == 0
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    assert "demo-bf16" in page
    assert "demo-eagle3" in page
    shown = capsys.readouterr().out
    assert "Methods side by side" in shown
    assert "report.html" in shown


def test_a_report_explains_its_ratio_from_the_records_beside_it(tmp_path: Path) -> None:
    records = make_cell(speedup=0.6)
    _save(tmp_path, records)
    with RecordWriter(tmp_path / "records.jsonl") as writer:
        for record in records:
            writer.write(record)
    write_counters(tmp_path / "server_counters.json", {"chat": SegmentCounters(100, 300, 55, (40, 15))})
    assert cli.main(["report", "--artifact-dir", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "accepts 1.00 tokens per step; a step takes 3.3" in page
    assert "0.40 0.15" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--no-such-option"], "No such option"),
        (["bench", "--request-count", "0"], "--request-count"),
        (["bench", "--warmup-request-count", "0"], "--warmup-request-count"),
        (["nonsense"], "nonsense"),
        (["query"], "PROMPT"),
        (["query", " ", "--deployment", DEMO], "PROMPT: is empty"),
        (["query", "\udcff", "--deployment", DEMO], "PROMPT: is not valid UTF-8"),
        (["bench", "--concurrency", "1,x"], "--concurrency: '1,x'"),
        (["bench", "--concurrency", "0"], "--concurrency: '0'"),
        (["bench", "--budget", "huge"], "--budget: 'huge' is not a budget. Use one of quick, full, row"),
        (["bench", "--deployment", "nowhere/none.yaml"], "none.yaml"),
        (["query", "hi", "--deployment", DEMO, "--raw", "--chat-template", "x"], "contradicts"),
        (["gate", "--artifact-dir", "nowhere"], "run_summary.json: cannot be read"),
        (["report", "--artifact-dir", "nowhere"], "Measure with `specdeploy-client bench`"),
    ],
)
def test_bad_usage_exits_64_with_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 64
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_a_broken_gate_file_lists_everything_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = tmp_path / "gate.yaml"
    gate.write_text("name: x\nmax_ratio: -1\ncolour: red\n")
    assert cli.main(["smoke", "--gate", str(gate)]) == 64
    message = capsys.readouterr().err
    assert "max_ratio" in message
    assert "colour" in message


def test_an_absent_server_exits_1_with_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", "hi", "--deployment", DEMO, "--url", "127.0.0.1:1", "--raw"]) == 1
    message = capsys.readouterr().err
    assert "no Triton server answers at 127.0.0.1:1" in message
    assert "make serve" in message


def test_a_defect_exits_70_and_an_interrupt_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raising(error: BaseException) -> Any:
        def load(*arguments: Any) -> None:
            raise error

        return load

    monkeypatch.setattr(cli, "load_deployment", raising(ZeroDivisionError()))
    assert cli.main(["bench"]) == 70
    assert "defect" in capsys.readouterr().err
    monkeypatch.setattr(cli, "load_deployment", raising(KeyboardInterrupt()))
    assert cli.main(["bench"]) == 130


def test_query_streams_and_ends_with_one_line_of_truth(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", "What [bold]is[/bold] it?", "--deployment", DEMO, "--max-tokens", "5", "--raw"]) == 0
    answer, truth = capsys.readouterr().out.rstrip("\n").split("\n")
    assert answer == "x" * 5
    assert truth.startswith("tokens 5 | steps 5 | drafted 0 | accepted 0 | mean acceptance length n/a | TTFT ")
    (request,) = server.requests
    assert (request.num_draft_tokens, request.prompt) == (None, "What [bold]is[/bold] it?")


def test_without_a_chat_template_a_note_is_shown(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", "hi", "--deployment", DEMO]) == 0
    assert "note: no chat template" in capsys.readouterr().err


def test_smoke_leaves_every_artefact_and_returns_the_verdict(server: _Server, tmp_path: Path) -> None:
    server.gap_s = 0.002
    exit_code = cli.main(
        ["smoke", "--deployment", DEMO, "--segments", "code_edit", "--request-count", "20", "--gate", str(GATE)]
    )
    folder = tmp_path / "artifacts" / "demo"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "records.jsonl",
        "run_summary.json",
        "server_counters.json",
        "integrity.json",
        "verdict.json",
        "report.html",
    }
    verdict = Verdict.model_validate_json((folder / "verdict.json").read_text())
    assert exit_code == cli.EXIT_CODES[verdict.status] == 2  # two segments of the plan were not measured
    integrity = IntegrityReport.model_validate_json((tmp_path / "engines/integrity/b1-demo.json").read_text())
    assert integrity.status is Status.PASS, integrity
    assert cli.main(["verify", "--from-run", "--deployment", DEMO]) == 0


def test_verify_measures_into_its_own_folder(server: _Server, tmp_path: Path) -> None:
    assert cli.main(["verify", "--deployment", DEMO, "--segments", "chat", "--request-count", "8"]) == 0
    assert (tmp_path / "artifacts/demo/verify/integrity.json").is_file()
    assert (tmp_path / "engines/integrity/b1-demo.json").is_file()


def test_compare_shows_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(tmp_path, make_cell())
    assert cli.main(["compare", str(tmp_path / "run_summary.json")]) == 0
    assert "chat" in capsys.readouterr().out


def test_missing_counts_are_shown_as_such() -> None:
    line = truth_line(make_record((50,), (1,), steps=None))
    assert line == (
        "tokens 1 | steps n/a | drafted n/a | accepted n/a | mean acceptance length n/a | TTFT 50 ms | TPOT n/a | "
        "e2e 50 ms | speculation n/a"
    )


def test_terminal_tables_render(capsys: pytest.CaptureFixture[str]) -> None:
    summary = make_summary(
        [*make_cell(concurrency=4), *make_cell("code_edit", 1, num_pairs=3)],
        planned=[PlannedDraftLen(segment="chat", draft_len=4)],
    )
    report = IntegrityReport(
        deployment="demo", build_id="b1", dtype="float32", created_at="", status=Status.PASS, checks=()
    )
    for part in (
        run_table(summary),
        verdict_panel(judge(summary, report, GateConfig(name="x"))),
        integrity_panel(report),
    ):
        cli.stdout.print(part, width=120)
    shown = capsys.readouterr().out
    assert "0.6" in shown
    assert void_notes(summary) == ["code_edit at concurrency 1 is void: too few pairs: 3, at least 8 are needed"]
    assert "verdict: pass" in shown
