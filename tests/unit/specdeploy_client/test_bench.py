"""A run against a mock becomes files, whatever befalls it."""

import asyncio
import errno
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdeploy.errors import ClientError, ConfigError
from specdeploy.run_contract import Arm, FailureKind, MetricName, Objective, Percentile, RunSummary, VoidCode
from specdeploy.verdict_contract import Status
from specdeploy_client import bench, server_counters
from specdeploy_client.artifacts import empty_run_folder
from specdeploy_client.bench import BenchResult, JudgingConfig, run_bench
from specdeploy_client.bench_plan import BUDGETS, BenchOptions, plan_bench
from specdeploy_client.judging.integrity import check_integrity
from specdeploy_client.load.arms import PerRequestSwitch
from specdeploy_client.records.files import RecordWriter, load_records
from specdeploy_client.server_counters import load_counters, write_counters
from specdeploy_client.server_facts import SegmentCounters, ServerFacts
from specdeploy_client.transport import GenerationRequest, Message, RequestRefusedError, ServerUnreachableError
from unit.specdeploy_client.fabricate import MockTransport
from unit.specdeploy_client.test_bench_plan import _Prompts, make_config

FACTS = ServerFacts("demo", "b1", "torch", "ngram", "float32", 1, 4, prefix_cache=False)
OPTIONS = BenchOptions(BUDGETS["quick"], segments=("chat",), concurrencies=(2,), request_count=20, max_tokens=6)


@pytest.fixture(autouse=True)
def _no_waiting_for_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_counters, "_SETTLE_INTERVAL_S", 0.0)


def _facts_of(transport: MockTransport, facts: ServerFacts | None) -> Callable[[], Awaitable[ServerFacts]]:
    """A metrics page that counts what the mock answered."""

    async def read_facts() -> ServerFacts:
        if facts is None:
            raise ServerUnreachableError("no metrics")
        told = [r for r in transport.requests if r.segment == "chat" and r.num_draft_tokens]
        counters = SegmentCounters(3 * len(told), 12 * len(told), 3 * len(told), (3 * len(told), 0))
        return replace(facts, counters={"chat": counters})

    return read_facts


async def _bench(
    transport: MockTransport,
    folder: Path,
    *,
    facts: ServerFacts | None = FACTS,
    options: BenchOptions = OPTIONS,
    judging: JudgingConfig | None = None,
    on_stopped: Callable[[BenchResult], None] | None = None,
) -> BenchResult:
    plan = plan_bench(_Prompts(), options, "|".join, make_config())
    return await run_bench(
        plan,
        options,
        make_config(),
        arms=PerRequestSwitch(transport),
        read_facts=_facts_of(transport, facts),
        artifact_dir=folder,
        environment={"command": "bench"},
        on_record=lambda record: None,
        judging=judging,
        on_stopped=on_stopped,
    )


def test_a_run_writes_records_summary_and_counters(tmp_path: Path) -> None:
    for name in ("verdict.json", "verdict.md", "report.html"):
        (tmp_path / name).write_text("of an earlier run")
    judging = JudgingConfig((Objective(metric=MetricName.E2E, max_ms=60_000),), (Percentile.P50,))
    result = asyncio.run(_bench(MockTransport(), tmp_path, judging=judging))
    records = load_records(tmp_path / "records.jsonl")
    assert {(record.arm, record.index) for record in records} == {(a, i) for a in (Arm.OFF, Arm.ON) for i in range(20)}
    assert RunSummary.model_validate_json((tmp_path / "run_summary.json").read_text()) == result.summary
    # Twenty answers with speculation on; what the warm-up drafted is counted as segment other.
    assert result.server_counters == {"chat": SegmentCounters(60, 240, 60, (60, 0))}
    assert load_counters(tmp_path / "server_counters.json") == result.server_counters
    assert {path.name for path in tmp_path.iterdir()} == {"records.jsonl", "run_summary.json", "server_counters.json"}
    summary = result.summary
    assert (summary.build_id, summary.dtype, summary.server_threads, summary.switch) == (
        "b1",
        "float32",
        1,
        "per request",
    )
    assert {c.percentile for c in summary.comparisons} == {Percentile.P50}
    assert {c.num_pairs for c in summary.comparisons if c.metric is MetricName.E2E} == {20}
    assert {cell.goodput is not None and cell.goodput > 0 for cell in summary.cells} == {True}
    (conditions,) = summary.conditions
    assert conditions.counter_mismatch is None
    assert conditions.num_draft_tokens == 240
    assert conditions.client_cpu_share is not None
    assert set(conditions.cold_ttft_ms) == {Arm.OFF, Arm.ON}
    assert summary.environment["acceptance by position, chat"].startswith("marginal 1.00 0.00")
    assert result.is_whole


def test_the_records_of_a_run_pass_the_integrity_check(tmp_path: Path) -> None:
    result = asyncio.run(_bench(MockTransport(), tmp_path))
    report = check_integrity(
        load_records(tmp_path / "records.jsonl"),
        deployment="demo",
        build_id="b1",
        dtype="float32",
        server_counters=result.server_counters,
        created_at="",
    )
    assert report.status is Status.PASS, report


def test_without_metrics_the_run_goes_on_and_says_so(tmp_path: Path) -> None:
    result = asyncio.run(_bench(MockTransport(), tmp_path, facts=None))
    assert result.server_counters is None
    assert result.summary.dtype is None
    assert result.summary.environment["server facts"] == "not read: no metrics"
    assert result.summary.conditions[0].num_draft_tokens is None
    assert load_counters(tmp_path / "server_counters.json") is None


def test_counters_that_disagree_with_the_answers_are_reported(tmp_path: Path) -> None:
    result = asyncio.run(_bench(MockTransport(tokens_on=3), tmp_path))
    mismatch = result.summary.conditions[0].counter_mismatch
    assert mismatch is not None
    assert "240 counted by the server" in mismatch


def test_another_deployments_server_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    (tmp_path / "run_summary.json").write_text("of an earlier run")
    with pytest.raises(ClientError, match="serves deployment other, not demo"):
        asyncio.run(_bench(MockTransport(), tmp_path, facts=replace(FACTS, deployment="other")))
    assert (tmp_path / "run_summary.json").read_text() == "of an earlier run"


def test_a_dying_server_leaves_records_and_a_summary_that_says_so(tmp_path: Path) -> None:
    # Two arms warm up with about five requests each.
    transport = MockTransport(die_after=30, death=ServerUnreachableError("gone"))
    result = asyncio.run(_bench(transport, tmp_path))
    records = load_records(tmp_path / "records.jsonl")
    assert 5 <= len([record for record in records if record.error is None]) <= 25
    assert {record.failure for record in records if record.error} == {FailureKind.UNREACHABLE}
    summary = RunSummary.model_validate_json((tmp_path / "run_summary.json").read_text())
    assert summary.interrupted == "chat at concurrency 2: the server went away during the run (gone)"
    assert {reason.code for c in summary.comparisons for reason in c.void_reasons} >= {VoidCode.INTERRUPTED}
    assert not result.is_whole
    assert any("requests failed" in shortcoming for shortcoming in result.shortcomings)


def test_a_server_that_dies_while_warming_up_leaves_an_empty_run(tmp_path: Path) -> None:
    transport = MockTransport(die_after=1, death=ServerUnreachableError("gone"))
    result = asyncio.run(_bench(transport, tmp_path))
    assert result.summary.interrupted == "chat at concurrency 2: the server went away during the run (gone)"
    assert result.summary.cells == ()
    assert not result.is_whole
    assert load_records(tmp_path / "records.jsonl") == ()


def test_refused_requests_are_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    transport = MockTransport(refuse=frozenset({"chat-c2-on-3", "chat-c2-on-7"}))
    result = asyncio.run(_bench(transport, tmp_path))
    assert result.summary.interrupted is None
    assert result.shortcomings == ("chat at concurrency 2, on: 2 of 20 requests failed",)
    failures = [record.failure for record in load_records(tmp_path / "records.jsonl") if record.failure]
    assert failures == [FailureKind.REFUSED] * 2


def test_a_cancelled_run_is_summarised_too(tmp_path: Path) -> None:
    async def cancel() -> None:
        transport = MockTransport(ttft_s=0.01)
        task = asyncio.create_task(_bench(transport, tmp_path))
        while len(transport.requests) < 25:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    summary = RunSummary.model_validate_json((tmp_path / "run_summary.json").read_text())
    assert summary.interrupted == "stopped by its user"
    assert load_records(tmp_path / "records.jsonl")


def test_a_stopped_run_hands_over_what_it_measured(tmp_path: Path) -> None:
    stopped: list[BenchResult] = []

    async def cancel() -> None:
        transport = MockTransport(ttft_s=0.01)
        task = asyncio.create_task(_bench(transport, tmp_path, on_stopped=stopped.append))
        while len(transport.requests) < 25:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    (result,) = stopped
    assert result.summary.interrupted == "stopped by its user"
    assert result.summary.cells


def test_refused_warm_up_requests_are_counted(tmp_path: Path) -> None:
    class Refusing(MockTransport):
        async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
            if request.segment == "other" and request.num_draft_tokens:
                raise RequestRefusedError("not while warming up")
            async for message in super().stream(request):
                yield message

    result = asyncio.run(_bench(Refusing(), tmp_path))
    (conditions,) = result.summary.conditions
    assert conditions.num_warmup_failed.keys() == {Arm.ON}
    number = conditions.num_warmup_failed[Arm.ON]
    assert number >= 4
    assert result.warm_up_failures == (f"chat at concurrency 2, on: {number} warm-up requests were not answered",)
    assert result.shortcomings == ()


def test_a_run_of_void_cells_is_not_comparable(tmp_path: Path) -> None:
    assert asyncio.run(_bench(MockTransport(), tmp_path)).is_comparable
    result = asyncio.run(_bench(MockTransport(), tmp_path, options=replace(OPTIONS, request_count=1)))
    assert result.is_whole
    assert not result.is_comparable
    alone = asyncio.run(_bench(MockTransport(), tmp_path, options=replace(OPTIONS, arms=(Arm.ON,))))
    assert alone.is_comparable


def test_an_old_reserve_is_dropped_and_a_folder_in_the_way_named(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"records\.jsonl: cannot be written"):
        asyncio.run(_bench(MockTransport(), tmp_path))
    (tmp_path / "records.jsonl").rmdir()
    (tmp_path / ".records.jsonl.reserve").write_bytes(b"x")
    empty_run_folder(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_duration_ends_a_cell_after_a_whole_block(tmp_path: Path) -> None:
    result = asyncio.run(_bench(MockTransport(), tmp_path, options=replace(OPTIONS, duration_s=0.001)))
    (conditions,) = result.summary.conditions
    assert conditions.stopped_after is not None
    assert conditions.stopped_after < 20
    e2e = [c for c in result.summary.comparisons if c.metric is MetricName.E2E]
    assert {c.num_pairs for c in e2e} == {conditions.stopped_after}
    assert result.is_whole


@pytest.mark.parametrize("room", [0, 3000])
def test_a_full_disk_leaves_a_summary_of_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    written = 0

    def write(file: Any, content: memoryview) -> int:
        nonlocal written
        size = min(len(content), room - written)
        if size <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written += size
        return int(file.write(content[:size]))

    class Full(RecordWriter):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            file = self._file
            self._file = SimpleNamespace(write=lambda content: write(file, content), close=file.close)  # type: ignore[assignment]

    monkeypatch.setattr(bench, "RecordWriter", Full)
    result = asyncio.run(_bench(MockTransport(), tmp_path))
    summary = RunSummary.model_validate_json((tmp_path / "run_summary.json").read_text())
    assert summary == result.summary
    assert "No space left on device" in (summary.interrupted or "")
    assert not result.is_whole
    assert bool(summary.cells) is (room > 0)


def test_counters_that_the_server_lacks_are_not_zeros(tmp_path: Path) -> None:
    async def of_another_product() -> ServerFacts:
        return ServerFacts(server="SGLang", whole_server={"num_drafts": 7})

    result = asyncio.run(
        run_bench(
            plan_bench(_Prompts(), OPTIONS, "|".join, make_config()),
            OPTIONS,
            make_config(),
            arms=PerRequestSwitch(MockTransport()),
            read_facts=of_another_product,
            artifact_dir=tmp_path,
            environment={},
            on_record=lambda record: None,
        )
    )
    assert result.server_counters is None
    assert load_counters(tmp_path / "server_counters.json") is None
    assert result.summary.conditions[0].num_drafts == 0
    assert result.summary.conditions[0].num_draft_tokens is None
    assert set(result.summary.conditions[0].client_cpu_share_by_arm) == {Arm.OFF, Arm.ON}


def test_counters_survive_the_disk_and_garbage_does_not(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_counters(path, {"chat": SegmentCounters(1, 2, 3, (4, 5))})
    assert load_counters(path) == {"chat": SegmentCounters(1, 2, 3, (4, 5))}
    for garbage in ("[1]", '{"chat": {}}', "{"):
        path.write_text(garbage)
        with pytest.raises(ConfigError, match="not a file of server counters"):
            load_counters(path)
