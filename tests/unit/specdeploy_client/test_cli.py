"""Commands, their exit codes and what they print."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from helpers.mock_llm_server import MockBehaviour, MockFailure, MockLlmServer
from helpers.served_mock import serve_mock
from specdeploy.run_contract import MetricName, RunSummary
from specdeploy.verdict_contract import IntegrityCheck, IntegrityReport, Status, Verdict
from specdeploy_client import cli, server_counters
from specdeploy_client.artifacts import write_model
from specdeploy_client.commands import measure as cli_measure
from specdeploy_client.commands.terminal import EXIT_CODES
from specdeploy_client.records.files import RecordWriter, load_records
from specdeploy_client.server_counters import write_counters
from specdeploy_client.server_facts import SegmentCounters
from unit.specdeploy_client.fabricate import make_cell, make_summary

ROOT = Path(__file__).parents[3]
GATE = ROOT / "configs" / "gates" / "default.yaml"
DEMO = str(ROOT / "configs" / "deployments" / "demo.yaml")
INFO = {
    "deployment": "demo",
    "build_id": "b1",
    "lane": "torch",
    "method": "ngram",
    "dtype": "float32",
    "max_draft_len": "4",
    "prefix_cache": "off",
}


@pytest.fixture(scope="module")
def mock() -> Iterator[MockLlmServer]:
    with serve_mock() as server:
        yield server


@pytest.fixture
def server(mock: MockLlmServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MockLlmServer:
    """A fast server of deployment demo; commands run in an empty folder."""
    mock.behaviour = MockBehaviour(info=INFO)
    mock.requests.clear()
    monkeypatch.setattr(server_counters, "_SETTLE_INTERVAL_S", 0.0)
    monkeypatch.chdir(tmp_path)
    return mock


def _demo(server: MockLlmServer) -> list[str]:
    return ["--deployment", DEMO, "--url", server.grpc_url, "--metrics-url", server.metrics_url]


def _asked(server: MockLlmServer) -> list[str]:
    return ["--deployment", DEMO, "--url", server.grpc_url]


def _save(folder: Path, records: list[Any], **changes: Any) -> RunSummary:
    summary = make_summary(records, **changes)
    write_model(folder / "run_summary.json", summary)
    return summary


def _integrity(folder: Path, status: Status) -> None:
    report = IntegrityReport(
        deployment="demo",
        build_id="b1",
        dtype="float32",
        created_at="now",
        status=status,
        checks=(IntegrityCheck(name="output tokens on = off", status=status, detail="seen"),),
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
    assert EXIT_CODES[verdict.status] == exit_code
    assert "<testsuites" in (tmp_path / "verdict.junit.xml").read_text()
    assert (tmp_path / "verdict.md").is_file()


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
    assert "tokens per step" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--no-such-option"], "No such option"),
        (["bench", "--request-count", "0"], "--request-count"),
        (["bench", "--warmup-request-count", "0"], "--warmup-request-count"),
        (["bench", "--ui", "curses"], "dashboard"),
        (["nonsense"], "nonsense"),
        (["query"], "PROMPT"),
        (["query", " ", "--deployment", DEMO], "PROMPT: is empty"),
        (["query", "\udcff", "--deployment", DEMO], "PROMPT: is not valid UTF-8"),
        (["bench", "--deployment", DEMO, "--concurrency", "1,x"], "--concurrency: '1,x'"),
        (["bench", "--deployment", DEMO, "--concurrency", "0"], "--concurrency: '0'"),
        (["bench", "--deployment", DEMO, "--budget", "huge"], "'huge' is not a budget. Use one of quick, full, row"),
        (["bench", "--deployment", DEMO, "--segments", "poetry"], "demo has no segment poetry"),
        (["bench", "--deployment", "nowhere/none.yaml"], "none.yaml"),
        (["bench", "--deployment", DEMO, "--url", "carrier pigeon"], "--url: 'carrier pigeon'"),
        (["bench", "--model", "m"], "--url: is missing"),
        (["bench", "--model", "m", "--url", "h:1"], "--draft-len: is missing"),
        (["bench", "--endpoint-type", "openai-chat", "--url", "http://h"], "--model: an OpenAI-compatible server"),
        (["query", "hi", "--metrics-url", "x"], "--metrics-url"),
        (["verify", "--budget", "row"], "--budget"),
        (["verify", "--from-run", "--url", "h:1", "--isl", "3"], "--isl: says how to measure"),
        (["bench", "--deployment", DEMO, "--artifact-dir", f"{DEMO}/x"], "demo.yaml is a file"),
        (["bench", "--deployment", DEMO, "--isl", "9", "--engines-root", "x"], "Name its tokenizer.json"),
        (["bench", "--deployment", DEMO, "--isl", "9", "--tokenizer", "nowhere.json"], "there is no such file"),
        (["query", "hi", "--deployment", DEMO, "--chat-template", "nowhere.jinja"], "nowhere.jinja cannot be read"),
        (["export", "nowhere"], "run_summary.json: cannot be read"),
        (["query", "hi", "--deployment", DEMO, "--raw", "--chat-template", "x"], "contradicts"),
        (["gate", "--artifact-dir", "nowhere"], "run_summary.json: cannot be read"),
        (["report", "--artifact-dir", "nowhere"], "Measure with `specdeploy-client bench`"),
        (["compare", "nowhere"], "Measure with `specdeploy-client bench`"),
        (["import", "nowhere.json"], "nowhere.json: cannot be read"),
        (["import", DEMO, "--concurrency", "1,2"], "--concurrency: a file has one load"),
    ],
)
def test_bad_usage_exits_64_with_one_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 64
    shown = capsys.readouterr()
    assert message in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_all_wrong_options_are_named_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--concurrency", "x", "--request-rate", "1", "--goodput", "speed:1", "--metric-percentiles", "12"]
    assert cli.main(["bench", "--deployment", DEMO, *arguments, "--arrival-smoothness", "2"]) == 64
    message = capsys.readouterr().err
    for option in ("--concurrency", "--request-rate", "--goodput", "--metric-percentiles", "--arrival-smoothness"):
        assert option in message


def test_a_broken_prompt_file_is_named_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "x", "segment": "chat"}\n{broken\n')
    assert cli.main(["bench", "--deployment", DEMO, "--input-file", str(prompts)]) == 64
    assert "prompts.jsonl:2" in capsys.readouterr().err


def test_a_broken_gate_file_lists_everything_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gate = tmp_path / "gate.yaml"
    gate.write_text("name: x\nmax_ratio: -1\ncolour: red\n")
    assert cli.main(["smoke", "--gate", str(gate)]) == 64
    message = capsys.readouterr().err
    assert "max_ratio" in message
    assert "colour" in message


@pytest.mark.parametrize(("command", "exit_code"), [(["query", "hi"], 1), (["bench"], 2), (["smoke"], 2)])
def test_an_absent_server_is_named(
    command: list[str], exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main([*command, "--deployment", DEMO, "--url", "127.0.0.1:1", "--raw"]) == exit_code
    message = capsys.readouterr().err
    assert "no Triton server answers at 127.0.0.1:1" in message
    assert "Is it running? --url gives another address" in message
    assert "make serve" not in message


def test_a_defect_exits_70_and_an_interrupt_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raising(error: BaseException) -> Any:
        def load(*arguments: Any) -> None:
            raise error

        return load

    monkeypatch.setattr(cli_measure, "open_session", raising(ZeroDivisionError()))
    assert cli.main(["bench"]) == 70
    assert "defect" in capsys.readouterr().err
    monkeypatch.setattr(cli_measure, "open_session", raising(KeyboardInterrupt()))
    assert cli.main(["bench"]) == 130


def test_query_streams_and_ends_with_one_line_of_truth(
    server: MockLlmServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["query", "What [bold]is[/bold] it?", *_asked(server), "--max-tokens", "5", "--raw"]) == 0
    answer, truth = capsys.readouterr().out.rstrip("\n").split("\n")
    assert len(answer.split()) == 5
    assert truth.startswith("tokens 5 | steps 3 | drafted 12 | accepted 2 | mean acceptance length 1.67 | TTFT ")
    (request,) = server.requests
    assert (request.num_draft_tokens, request.prompt) == (None, "What [bold]is[/bold] it?")


def test_without_a_chat_template_a_note_is_shown(server: MockLlmServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["query", "hi", *_asked(server)]) == 0
    assert "note: no chat template" in capsys.readouterr().err


def test_smoke_leaves_every_artefact_and_returns_the_verdict(server: MockLlmServer, tmp_path: Path) -> None:
    arguments = ["--segments", "code_edit", "--request-count", "20", "--concurrency", "2", "--gate", str(GATE)]
    exit_code = cli.main(["smoke", *_demo(server), *arguments])
    folder = tmp_path / "artifacts" / "demo"
    assert {path.name for path in folder.iterdir()} == {
        "records.jsonl",
        "run_summary.json",
        "server_counters.json",
        "integrity.json",
        "verdict.json",
        "verdict.junit.xml",
        "verdict.md",
        "report.html",
    }
    verdict = Verdict.model_validate_json((folder / "verdict.json").read_text())
    assert exit_code == EXIT_CODES[verdict.status] == 2  # two segments of the plan were not measured
    integrity = IntegrityReport.model_validate_json((tmp_path / "engines/integrity/b1-demo.json").read_text())
    assert integrity.status is Status.PASS, integrity
    assert cli.main(["verify", "--from-run", "--deployment", DEMO]) == 0


def test_verify_measures_into_its_own_folder(server: MockLlmServer, tmp_path: Path) -> None:
    assert cli.main(["verify", *_demo(server), "--segments", "chat", "--request-count", "8"]) == 0
    assert (tmp_path / "artifacts/demo/verify/integrity.json").is_file()
    assert (tmp_path / "engines/integrity/b1-demo.json").is_file()


SHORT = ["--segments", "chat", "--concurrency", "2", "--request-count", "8", "--max-tokens", "6", "--ui", "none"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"failure": MockFailure.REFUSE, "fail_numbers": frozenset({16, 20})}, "requests failed"),
        ({"failure": MockFailure.CLOSE_EARLY, "fail_numbers": frozenset({16})}, "1 of 8 requests failed"),
        ({"failure": MockFailure.ERROR_MID_STREAM, "fail_numbers": frozenset({16})}, "1 of 8 requests failed"),
        ({"failure": MockFailure.WRONG_DTYPE, "fail_numbers": frozenset({16})}, "1 of 8 requests failed"),
        ({"num_tokens": 3}, "8 of 8 answers are shorter than asked"),
    ],
)
def test_a_run_that_is_not_whole_is_saved_and_inconclusive(
    server: MockLlmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    server.behaviour = replace(server.behaviour, **change)
    assert cli.main(["bench", *_demo(server), *SHORT]) == 2
    assert message in capsys.readouterr().err
    folder = tmp_path / "artifacts" / "demo"
    assert len(load_records(folder / "records.jsonl")) == 16
    summary = RunSummary.model_validate_json((folder / "run_summary.json").read_text())
    assert any(comparison.void_reasons for comparison in summary.comparisons)


def test_a_wrong_model_name_is_inconclusive(server: MockLlmServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *_demo(server), *SHORT, "--model", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize("endpoint_type", ["openai-completions", "openai-chat", "triton-http"])
def test_a_foreign_endpoint_is_measured_as_it_is(server: MockLlmServer, tmp_path: Path, endpoint_type: str) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"p{i}", "prompt": f"prompt {i}"}) + "\n" for i in range(12)))
    arguments = ["--url", server.http_url, "--endpoint-type", endpoint_type, "--model", "llm", "--switch", "none"]
    load = ["--concurrency", "2", "--request-count", "8", "--max-tokens", "6", "--input-file", str(prompts)]
    assert cli.main(["bench", *arguments, *load]) == 0
    summary = RunSummary.model_validate_json((tmp_path / "artifacts/llm/run_summary.json").read_text())
    (cell,) = summary.cells
    assert (cell.arm, cell.num_requests, cell.num_errors) == ("on", 8, 0)
    assert summary.switch == "none: the server as it is"
    assert summary.comparisons == ()
    assert {request.num_draft_tokens for request in server.requests} == {None}


def test_two_endpoints_are_compared(server: MockLlmServer, tmp_path: Path) -> None:
    server.behaviour = replace(server.behaviour, step_s=0.02)
    with serve_mock(MockBehaviour(draft_len=0, step_s=0.02)) as off:
        arguments = [*_demo(server), *SHORT, "--off-url", off.grpc_url]
        assert cli.main(["bench", *arguments]) == 0
        assert off.requests
    summary = RunSummary.model_validate_json((tmp_path / "artifacts/demo/run_summary.json").read_text())
    assert summary.switch.startswith("two endpoints: off llm at localhost")
    assert {c.num_pairs for c in summary.comparisons if c.metric is MetricName.E2E} == {8}
    assert summary.conditions[0].counter_mismatch is None


def test_an_open_loop_sends_at_its_times(server: MockLlmServer, tmp_path: Path) -> None:
    server.behaviour = replace(server.behaviour, step_s=0.002)
    load = ["--segments", "chat", "--request-rate", "50", "--arrival-pattern", "constant", "--max-tokens", "6"]
    assert cli.main(["bench", *_demo(server), *load, "--request-count", "10", "--ui", "dashboard"]) == 0
    records = load_records(tmp_path / "artifacts/demo/records.jsonl")
    for block in (0, 1):
        off = sorted(r.scheduled_ns for r in records if (r.arm, r.block) == ("off", block))
        assert {later - earlier for earlier, later in pairwise(off)} == {20_000_000}
    assert {record.request_rate for record in records} == {50.0}


def test_compare_shows_every_run_and_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(tmp_path / "a", make_cell())
    _save(tmp_path / "b", make_cell(speedup=0.5), build_id="b2")
    assert cli.main(["compare", str(tmp_path / "a" / "run_summary.json")]) == 0
    assert "chat" in capsys.readouterr().out
    page = tmp_path / "changes.md"
    assert cli.main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "b2" in shown
    assert "b2" in page.read_text()


def test_what_is_exported_can_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = make_cell()
    summary = _save(tmp_path / "run", records)
    with RecordWriter(tmp_path / "run" / "records.jsonl") as writer:
        for record in records:
            writer.write(record)
    for tool, name in (("aiperf", "profile_export.jsonl"), ("vllm", "*.json")):
        output = tmp_path / tool
        assert cli.main(["export", str(tmp_path / "run"), "--format", tool, "--output", str(output)]) == 0
        on_files = sorted(path for path in output.rglob(name) if "-on" in str(path.relative_to(output)))
        assert on_files, sorted(output.rglob("*"))
        into = tmp_path / f"from-{tool}"
        arguments = ["--arm", "on", "--concurrency", "1", "--artifact-dir", str(into)]
        assert cli.main(["import", str(on_files[0]), *arguments]) == 0, capsys.readouterr().err
        (cell,) = RunSummary.model_validate_json((into / "run_summary.json").read_text()).cells
        (own,) = (cell for cell in summary.cells if cell.arm == "on")
        assert cell.num_requests == own.num_requests
        assert cell.e2e_ms.p50 == pytest.approx(own.e2e_ms.p50, rel=0.01)


COMMANDS = ["query", "bench", "verify", "smoke", "gate", "report", "compare", "import", "export"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_whole_at_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    shown = CliRunner().invoke(cli.app, [command, "--help"]).output
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    parameters = get_command(cli.app).commands[command].params  # type: ignore[attr-defined]
    options = [name for parameter in parameters for name in parameter.opts if name.startswith("--")]
    assert options
    for name in options:
        assert re.search(rf"^.{{1,8}}{re.escape(name)}[ ,]", shown, re.MULTILINE), name


def test_the_page_of_another_server_is_not_read_for_the_measured_one(
    server: MockLlmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The config's metrics port answers, and names a build that the address given does not serve."""
    config = tmp_path / "demo.yaml"
    port = server.metrics_url.split(":")[2].split("/")[0]
    text = Path(DEMO).read_text().replace("../traffic", str(ROOT / "configs" / "traffic"))
    config.write_text(re.sub(r"metrics_port: \d+", f"metrics_port: {port}", text))
    cli.main(["bench", "--deployment", str(config), "--url", server.grpc_url, *SHORT])
    summary = RunSummary.model_validate_json((tmp_path / "artifacts/demo/run_summary.json").read_text())
    assert (summary.build_id, summary.dtype) == (None, None)
    assert {conditions.counter_mismatch for conditions in summary.conditions} == {None}
    assert "note: server facts: not read: nothing tells where" in capsys.readouterr().out
    assert cli.main(["verify", "--from-run", "--deployment", str(config)]) == 2
    assert not (tmp_path / "engines").exists()


def _send_signal(number: signal.Signals, is_time: Callable[[], bool]) -> threading.Thread:
    def send() -> None:
        while not is_time():
            time.sleep(0.005)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_sigterm_ends_a_run_as_ctrl_c_does(
    server: MockLlmServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.behaviour = replace(server.behaviour, step_s=0.01)
    before = signal.getsignal(signal.SIGTERM)
    thread = _send_signal(signal.SIGTERM, lambda: len([r for r in server.requests if r.segment == "chat"]) > 5)
    assert cli.main(["bench", *_demo(server), "--segments", "chat", "--ui", "none"]) == 130
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
    folder = tmp_path / "artifacts" / "demo"
    summary = RunSummary.model_validate_json((folder / "run_summary.json").read_text())
    assert summary.interrupted == "stopped by its user"
    assert load_records(folder / "records.jsonl")
    assert {path.name for path in folder.iterdir()} == {"records.jsonl", "run_summary.json", "server_counters.json"}
    shown = capsys.readouterr()
    assert "the run ended early: stopped by its user" in shown.out
    assert "TTFT" in shown.out
    assert "what was measured until then is in artifacts/demo" in shown.err
    assert "interrupted" in shown.err


def test_an_interrupted_query_ends_its_line(server: MockLlmServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.behaviour = replace(server.behaviour, step_s=0.03)
    pieces: list[int] = []

    def is_time() -> bool:
        pieces.extend([1] if server.requests else [])
        return len(pieces) > 20

    thread = _send_signal(signal.SIGINT, is_time)
    exit_code = cli.main(["query", "hi", *_asked(server), "--raw", "--max-tokens", "200"])
    thread.join()
    assert exit_code == 130
    shown = capsys.readouterr()
    assert shown.out.strip()
    assert shown.out.endswith("\n")
    assert "interrupted" in shown.err


def test_a_run_of_void_cells_exits_2(server: MockLlmServer, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--segments", "chat", "--concurrency", "1", "--request-count", "1", "--ui", "none"]
    assert cli.main(["bench", *_demo(server), *arguments]) == 2
    assert "void" in capsys.readouterr().out


def test_refused_warm_up_requests_are_told(server: MockLlmServer, capsys: pytest.CaptureFixture[str]) -> None:
    # Request 0 is the probe, 1 the first of the warm-up, which is asked again more plainly.
    numbers = frozenset({1, 2})
    server.behaviour = replace(server.behaviour, failure=MockFailure.REFUSE, fail_numbers=numbers, step_s=0.02)
    assert cli.main(["bench", *_demo(server), *SHORT]) == 0
    assert "chat at concurrency 2, off: 1 warm-up requests were not answered" in capsys.readouterr().err


def test_a_server_that_dies_is_not_told_to_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with serve_mock(MockBehaviour(info=INFO, failure=MockFailure.DIE, fail_numbers=frozenset({3}))) as dying:
        assert cli.main(["bench", *_demo(dying), *SHORT]) == 2
    shown = capsys.readouterr()
    assert "the server went away during the run" in shown.out
    assert "make serve" not in shown.out + shown.err
    assert "TTFT" not in shown.out  # no table without a row


def test_records_without_a_summary_are_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = make_cell()
    with RecordWriter(tmp_path / "records.jsonl") as writer:
        for record in records:
            writer.write(record)
    for command in (["report", "--artifact-dir", str(tmp_path)], ["compare", str(tmp_path)]):
        assert cli.main(command) == 64
        assert f"records.jsonl holds {len(records)} records of a run that was killed" in capsys.readouterr().err


def test_a_summary_of_another_version_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(tmp_path, make_cell())
    path = tmp_path / "run_summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 1, "colour": "red"}))
    assert cli.main(["report", "--artifact-dir", str(tmp_path)]) == 64
    message = capsys.readouterr().err
    assert "another version of this tool (schema 1; this one reads 2). Use that version, or: Measure with" in message
    assert "colour" not in message


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_report_goes_on_with_what_can_be_read_of_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_cut: bool
) -> None:
    _save(tmp_path, make_cell())
    lines = [record.model_dump_json() + "\n" for record in make_cell()]
    bad = [*lines, lines[0][:40]] if is_cut else [*lines[:3], "{broken\n", *lines[3:]]
    (tmp_path / "records.jsonl").write_text("".join(bad))
    assert cli.main(["report", "--artifact-dir", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").is_file()
    message = capsys.readouterr().err
    if is_cut:
        assert "note:" in message
        assert "the last line is cut and left out" in message
        return
    assert "note: the report goes without single requests" in message
    assert "records.jsonl:4" in message
    assert cli.main(["verify", "--from-run", "--artifact-dir", str(tmp_path), "--deployment", DEMO]) == 64
    assert cli.main(["export", str(tmp_path)]) == 64


@pytest.mark.parametrize("output", ["folder", "file/below.html"])
def test_a_page_that_cannot_be_written_is_the_users_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    _save(tmp_path, make_cell())
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    assert cli.main(["report", "--artifact-dir", str(tmp_path), "--output", str(tmp_path / output)]) == 64
    shown = capsys.readouterr().err
    assert "cannot be written" in shown
    assert "Traceback" not in shown
