"""AIPerf's files as AIPerf wrote them, and what is made of damaged ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdeploy.errors import ConfigError, RequestError
from specdeploy.run_contract import Arm, FailureKind, Load
from specdeploy.units import NS_PER_MS
from specdeploy_client.interchange.aiperf import import_aiperf_records, import_aiperf_statistics
from specdeploy_client.interchange.aiperf_format import RECORDS_NAME, STATISTICS_NAME
from specdeploy_client.interchange.imported import ImportLabels
from specdeploy_client.metrics import e2e_ns, icl_ns, is_answered, is_cancelled, tpot_ns, ttft_ns

DATA = Path(__file__).parent / "data" / "aiperf"
LABELS = ImportLabels(segment="chat")
AT_4 = ImportLabels(segment="chat", load=Load(4))
Line = dict[str, Any]


def _lines() -> list[Line]:
    return [json.loads(line) for line in (DATA / RECORDS_NAME).read_text().splitlines()]


def _write(folder: Path, lines: list[Line]) -> Path:
    path = folder / RECORDS_NAME
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _changed(folder: Path, change: Callable[[Line], None]) -> Path:
    """The real lines, the last of them changed."""
    lines = _lines()
    change(lines[-1])
    return _write(folder, lines)


def test_records_have_the_latencies_that_aiperf_computed() -> None:
    run = import_aiperf_records(DATA / RECORDS_NAME, LABELS)
    by_id = {record.request_id: record for record in run.records}
    profiled = [line for line in _lines() if line["metadata"]["benchmark_phase"] == "profiling"]
    assert len(by_id) == len(profiled) == 6
    for line in profiled:
        record, metrics = by_id[line["metadata"]["x_request_id"]], line["metrics"]
        assert ttft_ns(record) == pytest.approx(metrics["time_to_first_token"]["value"] * NS_PER_MS, abs=1)
        assert e2e_ns(record) == pytest.approx(metrics["request_latency"]["value"] * NS_PER_MS, abs=1)
        assert tpot_ns(record) == pytest.approx(metrics["inter_token_latency"]["value"] * NS_PER_MS, abs=1)
        gaps = [gap * NS_PER_MS for gap in metrics["inter_chunk_latency"]["value"]]
        assert icl_ns(record) == pytest.approx(gaps, abs=2)
        assert record.input_token_count == metrics["input_sequence_length"]["value"]


def test_the_run_is_described_by_the_file_beside_it() -> None:
    run = import_aiperf_records(DATA / RECORDS_NAME, LABELS)
    assert (run.tool, run.model) == ("AIPerf 0.13.0", "llm")
    assert {(record.load, record.segment, record.arm) for record in run.records} == {(Load(4), "chat", Arm.OFF)}
    assert [record.index for record in run.records] == list(range(6))
    assert [record.send_ns for record in run.records] == sorted(record.send_ns for record in run.records)
    assert run.started_at == "2026-11-30T16:53:02+00:00"
    assert run.notes == ("2 requests of the warm-up left out",)


def test_statistics_become_a_cell_and_tails_of_few_requests_are_dropped() -> None:
    run = import_aiperf_statistics(DATA / STATISTICS_NAME, LABELS)
    (cell,) = run.cells
    assert (cell.load, cell.num_requests, cell.num_errors) == (Load(4), 40, 0)
    assert (cell.ttft_ms.p50, cell.tpot_ms.p50, cell.e2e_ms.p50) == (52.220473, 9.845692603174601, 672.1465605)
    assert cell.ttft_ms.p90 is None  # 40 requests do not support it
    assert cell.icl_ms is not None
    assert (cell.icl_ms.num_samples, cell.icl_ms.p99) == (1240, 24.125216209999998)
    assert (cell.num_input_tokens, cell.num_output_tokens) == (240, 2560)
    assert cell.output_throughput == 374.62302361942346
    assert run.duration_s == 6.828330496


def test_the_load_is_never_guessed(tmp_path: Path) -> None:
    path = _write(tmp_path, _lines())
    with pytest.raises(RequestError, match="does not say under which load"):
        import_aiperf_records(path, LABELS)
    assert import_aiperf_records(path, AT_4).records[0].load == Load(4)


def _of_phase(**phase: Any) -> dict[str, Any]:
    return {"phases": [{"name": "warmup", "type": "concurrency", "concurrency": 9}, {"name": "profiling", **phase}]}


@pytest.mark.parametrize(
    ("config", "load"),
    [
        (_of_phase(type="concurrency", concurrency=8), Load(8)),
        (_of_phase(type="concurrency"), Load(1)),  # AIPerf leaves its default out
        (_of_phase(type="poisson", rate=2.5, concurrency=64), Load(None, 2.5)),
        (_of_phase(type="fixed_schedule"), None),
        ({"loadgen": {"concurrency": 16}}, Load(16)),
        ({"loadgen": {"concurrency": 16, "request_rate": 4.0}}, Load(None, 4.0)),
    ],
)
def test_the_load_of_every_kind_of_phase(tmp_path: Path, config: dict[str, Any], load: Load | None) -> None:
    statistics = json.loads((DATA / STATISTICS_NAME).read_text())
    path = tmp_path / STATISTICS_NAME
    path.write_text(json.dumps({**statistics, "input_config": config}))
    if load is None:
        with pytest.raises(RequestError):
            import_aiperf_statistics(path, LABELS)
    else:
        assert import_aiperf_statistics(path, LABELS).cells[0].load == load


def test_in_an_open_loop_the_wait_for_the_send_counts() -> None:
    labels = ImportLabels(load=Load(None, 2.0))
    run = import_aiperf_records(DATA / RECORDS_NAME, labels)
    credit = {line["metadata"]["x_request_id"]: line["metadata"]["credit_issued_ns"] for line in _lines()}
    assert all(record.scheduled_ns == credit[record.request_id] < record.send_ns for record in run.records)
    assert any("from when each request was due" in note for note in run.notes)


def _fail(**error: Any) -> Callable[[Line], None]:
    def change(line: Line) -> None:
        line["error"] = {"message": "it failed", **error}
        line["metrics"] = None

    return change


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 503, "type": "Service Unavailable"}, FailureKind.REFUSED),
        ({"type": "TimeoutError"}, FailureKind.TIMEOUT),
        ({"type": "ServerDisconnectedError"}, FailureKind.STREAM_CLOSED),
        ({"type": "ClientConnectorError"}, FailureKind.UNREACHABLE),
        ({"type": "JSONDecodeError"}, FailureKind.PROTOCOL),
    ],
)
def test_failed_requests_are_labelled(tmp_path: Path, error: dict[str, Any], kind: FailureKind) -> None:
    record = import_aiperf_records(_changed(tmp_path, _fail(**error)), AT_4).records[-1]
    assert (record.failure, record.message_ns, record.output_token_count) == (kind, (), None)
    assert record.error is not None
    assert "it failed" in record.error
    assert not is_answered(record)


def test_cancelled_requests_are_neither_answers_nor_failures(tmp_path: Path) -> None:
    def cancel(line: Line) -> None:
        _fail(code=499, type="RequestCancellationError")(line)
        line["metadata"]["was_cancelled"] = True

    record = import_aiperf_records(_changed(tmp_path, cancel), AT_4).records[-1]
    assert is_cancelled(record)
    assert (record.error, record.failure, record.finish_reason) == (None, FailureKind.CANCELLED, None)


def test_what_was_drafted_makes_it_the_arm_with_speculation(tmp_path: Path) -> None:
    def draft(line: Line) -> None:
        line["spec_decode_acceptance"] = {
            "num_spec_steps": 20,
            "num_draft_tokens": 80,
            "num_accepted_draft_tokens": 44,
        }

    run = import_aiperf_records(_changed(tmp_path, draft), AT_4)
    record = run.records[-1]
    assert {one.arm for one in run.records} == {Arm.ON}
    assert (record.num_steps, record.num_draft_tokens, record.num_accepted_tokens) == (20, 80, 44)
    assert run.records[0].num_draft_tokens is None


def test_units_are_heeded(tmp_path: Path) -> None:
    def in_seconds(line: Line) -> None:
        line["metrics"]["time_to_first_token"] = {"value": 0.25, "unit": "sec"}

    record = import_aiperf_records(_changed(tmp_path, in_seconds), AT_4).records[-1]
    assert ttft_ns(record) == 250 * NS_PER_MS


def _set(key: str, value: object) -> Callable[[Line], None]:
    def change(line: Line) -> None:
        line["metrics"][key] = value

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set("time_to_first_token", {"value": 1, "unit": "fortnights"}), "unit 'fortnights' is not one of time"),
        (_set("time_to_first_token", {"value": -1, "unit": "ms"}), "metrics.time_to_first_token: is not a duration"),
        (_set("inter_chunk_latency", {"value": ["1"], "unit": "ms"}), "inter_chunk_latency: is not a duration"),
        (_set("time_to_first_token", {"value": [], "unit": "ms"}), "time_to_first_token: holds 0 durations"),
        (_set("time_to_first_token", {"value": [1, 2], "unit": "ms"}), "time_to_first_token: holds 2 durations"),
        (_set("time_to_first_token", {"value": float("inf"), "unit": "ms"}), "token: inf is no finite number"),
        (_set("inter_chunk_latency", {"value": [1.0, float("nan")], "unit": "ms"}), "latency: nan is no finite number"),
        (_set("inter_chunk_latency", {"value": [1e300], "unit": "ms"}), "inter_chunk_latency: is not a duration"),
        (_set("inter_chunk_latency", {"value": [4e12] * 3, "unit": "ms"}), ":8: lasts longer than 64 bits hold"),
        (_set("output_sequence_length", {"value": "many", "unit": "tokens"}), "is not a count"),
        (_set("output_sequence_length", {"value": float("nan"), "unit": "tokens"}), "nan is no finite number"),
        (_set("output_sequence_length", {"value": 10**400, "unit": "tokens"}), "inf is no finite number"),
        (_set("output_sequence_length", {"value": 1e30, "unit": "tokens"}), "is not a count"),
        (lambda line: line["metadata"].update(request_start_ns=10**30), "request_start_ns: Input should be less than"),
        (lambda line: line["metadata"].update(request_end_ns=-1), "request_end_ns: Input should be greater than"),
        (_set("request_latency", {"value": 1}), "metrics.request_latency.unit: Field required"),
        (lambda line: line.pop("metadata"), ":8: metadata: Field required"),
        (lambda line: line["metadata"].pop("request_start_ns"), ":8: metadata.request_start_ns: Field required"),
        (lambda line: line["metadata"].update(benchmark_phase="cooldown"), "metadata.benchmark_phase"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, change: Callable[[Line], None], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        import_aiperf_records(_changed(tmp_path, change), AT_4)
    assert complaint in str(raised.value)


def test_every_bad_line_is_named_and_a_cut_last_one_forgiven(tmp_path: Path) -> None:
    path = tmp_path / RECORDS_NAME
    good = (DATA / RECORDS_NAME).read_text()
    path.write_text("{\n" + good + "{'x'}\n" + '{"metadata": {"sess')
    with pytest.raises(ConfigError) as raised:
        import_aiperf_records(path, AT_4)
    assert [violation.file.rsplit(":", 1)[1] for violation in raised.value.violations] == ["1", "10"]
    path.write_text(good + '{"metadata": {"sess')
    assert "line 9 breaks off and was left out" in import_aiperf_records(path, AT_4).notes
    path.write_text(good + '{"metadata": {"session_num": 3}}')  # whole, and wrong
    with pytest.raises(ConfigError, match=":9: metrics: Field required"):
        import_aiperf_records(path, AT_4)


def test_a_run_that_was_not_streamed_has_no_times_of_messages(tmp_path: Path) -> None:
    lines = _lines()
    for line in lines:
        line["metrics"].pop("time_to_first_token")
    with pytest.raises(ConfigError, match="the run was not streamed"):
        import_aiperf_records(_write(tmp_path, lines), AT_4)


def test_a_warm_up_alone_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no request of the profiling phase"):
        import_aiperf_records(_write(tmp_path, _lines()[:2]), AT_4)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"schema_version": "2.0", "request_count": {"unit": "requests", "avg": 1}}, "schema_version 2.0 is not known"),
        ({"request_latency": {"unit": "ms", "avg": 1}}, "has neither request_count nor error_request_count"),
        ({"request_count": {"avg": 1}}, "request_count.unit: Field required"),
    ],
)
def test_statistics_of_another_kind_are_refused(tmp_path: Path, content: dict[str, Any], complaint: str) -> None:
    path = tmp_path / STATISTICS_NAME
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=complaint):
        import_aiperf_statistics(path, AT_4)


def test_a_run_in_which_everything_failed_is_still_a_run(tmp_path: Path) -> None:
    path = tmp_path / STATISTICS_NAME
    path.write_text(json.dumps({"error_request_count": {"unit": "requests", "avg": 7}, "is_complete": False}))
    run = import_aiperf_statistics(path, AT_4)
    assert (run.cells[0].num_requests, run.cells[0].num_errors, run.cells[0].ttft_ms.num_samples) == (7, 7, 0)
    assert run.notes == ("the run is not complete: no reason given",)
