"""Budgets become cells; a run against a mock becomes files."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.errors import ClientError, RequestError
from specdeploy.run_contract import Arm, MetricName, RunSummary, Status
from specdeploy_client.bench import (
    BUDGETS,
    BenchOptions,
    BenchResult,
    load_counters,
    plan_bench,
    run_bench,
    write_counters,
)
from specdeploy_client.integrity import check_integrity
from specdeploy_client.records import load_records
from specdeploy_client.server_facts import SegmentCounters, ServerFacts
from specdeploy_client.stats import MIN_PAIRS
from specdeploy_client.summary import planned_draft_lens
from specdeploy_client.transport import ServerUnreachableError
from unit.specdeploy_client.fabricate import MockTransport

FACTS = ServerFacts("demo", "b1", "torch", "ngram", "float32", 1, 4)


@pytest.fixture
def deployment(tmp_path: Path) -> LoadedDeployment:
    segments = []
    for name in ("chat", "code_edit", "summarisation"):
        lines = [json.dumps({"id": f"{name}-{i}", "prompt": f"prompt {i}"}) for i in range(24)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        segments.append({"name": name, "prompts": f"{name}.jsonl", "max_tokens": 8})
    config = DeploymentConfig.model_validate(
        {
            "schema_version": 1,
            "name": "demo",
            "lane": "torch",
            "dtype": "float32",
            "target": {"checkpoint": "folder"},
            "speculation": {"method": "ngram", "max_draft_len": 4},
            "traffic": {"expected_concurrency": 4, "segments": segments},
        }
    )
    return LoadedDeployment(config=config, path=tmp_path / "demo.yaml", digest="", text="")


def _cells(deployment: LoadedDeployment, options: BenchOptions) -> list[tuple[str, int, tuple[Arm, ...], int, int]]:
    plan = plan_bench(deployment, options, str)
    return [(c.segment, c.concurrency, tuple(c.draft_lens), len(c.requests), len(c.warmup)) for c in plan.cells]


def test_the_on_arm_sends_the_plans_k_and_the_most_where_the_plan_is_off(deployment: LoadedDeployment) -> None:
    """A verdict on K = 1 must come from K = 1; what an off plan misses is measured with all of it."""
    ranges = [
        {"min_in_flight": 1, "max_in_flight": 1, "draft_len": 4},
        {"min_in_flight": 2, "max_in_flight": 4, "draft_len": 1},
    ]
    raw = deployment.config.model_dump(mode="json")
    raw["speculation"]["draft_len_by_in_flight"] = ranges
    planned = replace(deployment, config=DeploymentConfig.model_validate(raw))
    plan = plan_bench(planned, BenchOptions(BUDGETS["quick"], segments=("chat",), concurrencies=(1, 4, 8)), str)
    assert [(cell.concurrency, cell.draft_lens[Arm.ON]) for cell in plan.cells] == [(1, 4), (4, 1), (8, 4)]
    assert plan.notes["K of the on arm, by the plan"] == "chat at 4: 1"


def test_quick_takes_two_segments_at_one_and_four(deployment: LoadedDeployment) -> None:
    plan = plan_bench(deployment, BenchOptions(BUDGETS["quick"]), str)
    both = (Arm.OFF, Arm.ON)
    assert _cells(deployment, BenchOptions(BUDGETS["quick"])) == [
        ("chat", 1, both, 20, 1),
        ("chat", 4, both, 20, 4),
        ("code_edit", 1, both, 20, 1),
        ("code_edit", 4, both, 20, 4),
    ]
    assert plan.num_requests == 160
    assert plan.notes == {
        "answers": "at most 16 tokens in budget quick",
        "segments not measured": "summarisation",
    }
    assert {request.max_tokens for cell in plan.cells for request in cell.requests} <= set(range(1, 17))


def test_full_supports_p90_and_says_that_prompts_repeat(deployment: LoadedDeployment) -> None:
    plan = plan_bench(deployment, BenchOptions(BUDGETS["full"]), str)
    assert len(plan.cells) == 12
    assert {len(cell.requests) for cell in plan.cells} == {100}
    assert plan.notes["prompts of chat"] == "24 prompts for 100 requests per arm: prompts repeat"


def test_row_adds_the_floor_arm_over_the_same_prompts(deployment: LoadedDeployment) -> None:
    plan = plan_bench(deployment, BenchOptions(BUDGETS["row"]), str)
    assert [cell.segment for cell in plan.cells] == ["chat", "chat", "code_edit", "code_edit"]
    for pair, floor in (plan.cells[:2], plan.cells[2:]):
        assert (pair.concurrency, floor.concurrency) == (1, 4)
        assert (pair.draft_lens, floor.draft_lens) == ({Arm.OFF: 0, Arm.ON: 4}, {Arm.FLOOR: 0})
        assert pair.requests == floor.requests
        assert len(pair.requests) >= MIN_PAIRS


def test_the_command_line_overrides_the_budget(deployment: LoadedDeployment) -> None:
    options = BenchOptions(BUDGETS["quick"], 3, ("summarisation",), (2,), 9, 5, 7)
    (cell,) = plan_bench(deployment, options, str.upper).cells
    assert (cell.segment, cell.concurrency, len(cell.requests), len(cell.warmup)) == ("summarisation", 2, 9, 5)
    assert {request.max_tokens for request in cell.requests} == {7}
    assert cell.requests[0].prompt.startswith("PROMPT")


def test_unknown_segments_are_refused_with_the_known_ones(deployment: LoadedDeployment) -> None:
    with pytest.raises(RequestError, match=r"no segment poetry\. It has chat, code_edit, summarisation"):
        plan_bench(deployment, BenchOptions(BUDGETS["quick"], segments=("poetry",)), str)


def test_the_plan_at_the_expected_concurrency(deployment: LoadedDeployment) -> None:
    data = deployment.config.model_dump(mode="json")
    data["traffic"]["segments"][0] |= {"speculate": False, "off_reason": "slower"}
    data["traffic"]["segments"][1]["draft_len_by_in_flight"] = [
        {"min_in_flight": 1, "max_in_flight": 2, "draft_len": 4}
    ]
    planned = planned_draft_lens(DeploymentConfig.model_validate(data))
    assert [(p.draft_len, p.off_reason) for p in planned] == [
        (0, "slower"),
        (0, "the config gives K = 0 at 4 requests in flight"),
        (4, None),
    ]


def _run(
    deployment: LoadedDeployment, transport: MockTransport, folder: Path, facts: ServerFacts | None = FACTS
) -> BenchResult:
    async def read_facts() -> ServerFacts:
        if facts is None:
            raise ServerUnreachableError("no metrics")
        told = [r for r in transport.requests if r.segment == "chat" and r.num_draft_tokens]
        counters = SegmentCounters(3 * len(told), 12 * len(told), 3 * len(told), (3 * len(told), 0))
        return replace(facts, counters={"chat": counters})

    options = BenchOptions(BUDGETS["quick"], segments=("chat",), concurrencies=(2,), request_count=20)
    return asyncio.run(
        run_bench(
            deployment.config,
            plan_bench(deployment, options, str),
            options,
            transport=transport,
            read_facts=read_facts,
            artifact_dir=folder,
            environment={"command": "bench"},
            on_record=lambda record: None,
        )
    )


def test_a_run_writes_records_summary_and_counters(deployment: LoadedDeployment, tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    folder.mkdir()
    (folder / "verdict.json").write_text("of an earlier run")
    result = _run(deployment, MockTransport(), folder)
    assert load_records(folder / "records.jsonl") == result.records
    assert RunSummary.model_validate_json((folder / "run_summary.json").read_text()) == result.summary
    assert load_counters(folder / "server_counters.json") == result.server_counters
    assert not (folder / "verdict.json").exists()
    assert (result.summary.build_id, result.summary.dtype, result.summary.server_threads) == ("b1", "float32", 1)
    e2e = next(c for c in result.summary.comparisons if c.metric is MetricName.E2E)
    assert e2e.num_pairs == 20
    assert "client wake-up lag" in result.summary.environment
    assert result.summary.environment["acceptance by position, chat"].startswith("marginal 1.00 0.00")


def test_the_records_of_a_run_pass_the_integrity_check(deployment: LoadedDeployment, tmp_path: Path) -> None:
    result = _run(deployment, MockTransport(), tmp_path)
    report = check_integrity(
        result.records,
        deployment="demo",
        build_id="b1",
        dtype="float32",
        server_counters=result.server_counters,
        created_at="",
    )
    assert report.status is Status.PASS, report


def test_without_metrics_the_run_goes_on_and_says_so(deployment: LoadedDeployment, tmp_path: Path) -> None:
    result = _run(deployment, MockTransport(), tmp_path, facts=None)
    assert result.server_counters is None
    assert result.summary.dtype is None
    assert result.summary.environment["server facts"] == "not read: no metrics"
    assert load_counters(tmp_path / "server_counters.json") is None


def test_another_deployments_server_is_refused(deployment: LoadedDeployment, tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="serves deployment other, not demo"):
        _run(deployment, MockTransport(), tmp_path, facts=replace(FACTS, deployment="other"))


def test_a_dying_server_leaves_its_records(deployment: LoadedDeployment, tmp_path: Path) -> None:
    transport = MockTransport(die_after=20, death=ServerUnreachableError("gone"))
    with pytest.raises(ClientError, match=r"ended at chat, concurrency 2: gone.*records\.jsonl"):
        _run(deployment, transport, tmp_path)
    assert 10 <= len(load_records(tmp_path / "records.jsonl")) <= 20
    assert not (tmp_path / "run_summary.json").exists()


def test_counters_survive_the_disk_and_garbage_does_not(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_counters(path, {"chat": SegmentCounters(1, 2, 3, (4, 5))})
    assert load_counters(path) == {"chat": SegmentCounters(1, 2, 3, (4, 5))}
    for garbage in ("[1]", '{"chat": {}}', "{"):
        path.write_text(garbage)
        with pytest.raises(ClientError, match="not a file of server counters"):
            load_counters(path)


def test_broken_records_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"request_id": 1}\n')
    with pytest.raises(ClientError, match=r"records\.jsonl:1: segment"):
        load_records(path)
    with pytest.raises(ClientError, match="cannot be read"):
        load_records(tmp_path / "none.jsonl")
