"""A table of records becomes a summary, with a deployment or without, finished or not."""

from pathlib import Path

import pytest

from helpers.deployment_files import write_deployment
from specdeploy.config.load import load_deployment
from specdeploy.run_contract import (
    Arm,
    CellConditions,
    CellSummary,
    FailureKind,
    Load,
    MetricName,
    Objective,
    Percentile,
    RequestRecord,
    RunSummary,
    VoidCode,
)
from specdeploy_client.records.table import RecordTable
from specdeploy_client.server_facts import ServerFacts
from specdeploy_client.summary import RunFacts, TargetFacts, summarise_run
from unit.specdeploy_client.fabricate import make_cell, make_record, make_summary

RUN = RunFacts("quick", 3, "2026-01-01T12:00:00+00:00", 12.0, {"command": "bench"})


def _cell(summary: RunSummary, arm: Arm) -> CellSummary:
    return next(cell for cell in summary.cells if cell.arm is arm)


def _with(records: list[RequestRecord], arm: Arm, **changes: object) -> list[RequestRecord]:
    return [record.model_copy(update=changes) if record.arm is arm else record for record in records]


def test_without_a_deployment_or_a_metrics_page_there_is_a_summary_too() -> None:
    target = TargetFacts("http://host:8000", expected_concurrency=1)
    summary = summarise_run(RecordTable.from_records(make_cell()), target, ServerFacts(), RUN)
    assert (summary.deployment, summary.lane, summary.method, summary.planned) == ("http://host:8000", None, None, ())
    assert summary.random_seed == 3
    assert {cell.arm for cell in summary.cells} == {Arm.OFF, Arm.ON}
    medians = {c.metric: c.outcome for c in summary.comparisons if c.percentile is Percentile.P50}
    assert medians[MetricName.E2E] == medians[MetricName.TPOT] == "faster"


def test_a_deployment_gives_its_plan_and_the_server_its_identity(tmp_path: Path) -> None:
    config = load_deployment(write_deployment(tmp_path)).config
    facts = ServerFacts(build_id="b7", lane="torch", method="ngram", dtype="float32", max_draft_len=3)
    summary = summarise_run(RecordTable.from_records(make_cell()), config, facts, RUN)
    assert (summary.deployment, summary.expected_concurrency, summary.build_id) == ("tiny", 1, "b7")
    assert summary.max_draft_len == 3
    assert [(plan.segment, plan.draft_len) for plan in summary.planned] == [("chat", 4)]
    unsaid = summarise_run(RecordTable.from_records(make_cell()), config, ServerFacts(), RUN)
    assert (unsaid.max_draft_len, unsaid.method) == (4, "ngram")


def test_one_arm_of_a_cell() -> None:
    summary = _cell(make_summary(make_cell(num_pairs=20, num_tokens=33)), Arm.ON)
    assert (summary.num_requests, summary.num_errors, summary.num_short) == (20, 0, 0)
    assert summary.num_input_tokens == 200
    assert summary.num_output_tokens == 660
    assert summary.tokens_per_message == pytest.approx(33 / 17)
    assert summary.icl_ms is not None
    assert summary.token_gap_ms is not None
    # Every message after the first carries two tokens, so a token's share is half the gap.
    assert summary.token_gap_ms.p50 == pytest.approx((summary.icl_ms.p50 or 0) / 2, rel=0.01)
    assert summary.token_gap_ms.mean == pytest.approx(summary.tpot_ms.mean, rel=1e-6)
    assert summary.send_lag_ms is not None
    assert summary.send_lag_ms.p50 == 0.0
    assert summary.acceptance is not None
    assert summary.acceptance.mean_acceptance_length == pytest.approx(1 + 16 / 17)
    assert summary.acceptance.rate_per_pos is None


def test_only_the_on_arm_accepts() -> None:
    assert _cell(make_summary(make_cell()), Arm.OFF).acceptance is None


def test_failed_requests_are_errors_and_never_latencies_and_cancelled_ones_neither() -> None:
    records = [
        *(make_record(index=i) for i in range(20)),
        make_record((9e6,), (1,), error="refused", failure=FailureKind.REFUSED),
        make_record((9e6,), (1,), error="stopped", failure=FailureKind.CANCELLED),
        make_record((9e6,), (1,), finish_reason="cancelled"),
    ]
    summary = _cell(make_summary(records), Arm.OFF)
    assert (summary.num_requests, summary.num_errors, summary.e2e_ms.num_samples) == (22, 2, 20)
    assert summary.num_cancelled == 1
    assert summary.e2e_ms.p50 == 70.0
    assert summary.e2e_ms.p90 is None


def test_answers_that_stopped_short_are_counted() -> None:
    records = [make_record(index=i, max_tokens=5 if i < 3 else 3, ignore_eos=True) for i in range(20)]
    assert _cell(make_summary(records), Arm.OFF).num_short == 3


def test_goodput_is_there_with_objectives() -> None:
    objectives = [Objective(metric=MetricName.E2E, max_ms=10_000)]
    summary = make_summary(make_cell(), objectives=objectives)
    cell = _cell(summary, Arm.ON)
    assert summary.objectives == tuple(objectives)
    assert cell.goodput == cell.request_throughput
    assert _cell(make_summary(make_cell()), Arm.ON).goodput is None


def _conditions(records: list[RequestRecord], **fields: object) -> CellConditions:
    values = {
        "segment": "chat",
        "concurrency": 1,
        "num_drafts": 100,
        "num_draft_tokens": sum(record.num_draft_tokens or 0 for record in records),
        "num_accepted_tokens": sum(record.num_accepted_tokens or 0 for record in records),
        "accepted_per_pos": (80, 40, 10),
        "cold_ttft_ms": {Arm.ON: 1500.0},
    }
    return CellConditions.model_validate({**values, **fields})


def test_conditions_bring_positions_and_cold_times_and_are_reconciled() -> None:
    records = make_cell()
    summary = make_summary(records, conditions=[_conditions(records)])
    on = _cell(summary, Arm.ON)
    assert on.acceptance is not None
    assert on.acceptance.rate_per_pos == (0.8, 0.4, 0.1)
    assert on.cold_ttft_ms == 1500.0
    assert _cell(summary, Arm.OFF).cold_ttft_ms is None
    assert summary.conditions[0].counter_mismatch is None
    wrong = make_summary(records, conditions=[_conditions(records, num_draft_tokens=1)])
    assert "drafted tokens: 1 counted by the server" in (wrong.conditions[0].counter_mismatch or "")


def test_where_answers_carry_no_counts_the_servers_counters_tell_acceptance() -> None:
    records = make_cell()
    unknown: dict[str, object] = {"num_steps": None, "num_draft_tokens": None, "num_accepted_tokens": None}
    uncounted = _with(_with(records, Arm.ON, **unknown), Arm.OFF, **unknown)
    conditions = _conditions(records, num_drafts=100, num_draft_tokens=400, num_accepted_tokens=120)
    acceptance = _cell(make_summary(uncounted, conditions=[conditions]), Arm.ON).acceptance
    assert acceptance is not None
    assert acceptance.mean_acceptance_length == pytest.approx(2.2)
    assert acceptance.rate_per_pos == (0.8, 0.4, 0.1)
    assert _cell(make_summary(uncounted), Arm.ON).acceptance is None


def test_broken_counters_are_unavailable_not_zero() -> None:
    records = _with(make_cell(), Arm.ON, num_accepted_tokens=0)
    assert _cell(make_summary(records), Arm.ON).acceptance is None


def test_an_open_loop_keeps_its_rate() -> None:
    summary = make_summary(make_cell(concurrency=None, request_rate=2.5))
    assert {cell.load for cell in summary.cells} == {Load(None, 2.5)}
    assert {comparison.load for comparison in summary.comparisons} == {Load(None, 2.5)}
    assert summary.crossovers == ()


def test_an_interrupted_run_voids_the_cell_that_was_being_measured_only() -> None:
    records = [*make_cell("chat", 1), *make_cell("chat", 4)]
    summary = make_summary(records, interrupted="the server is gone")
    assert summary.interrupted == "the server is gone"
    interrupted = {
        comparison.concurrency
        for comparison in summary.comparisons
        if any(reason.code is VoidCode.INTERRUPTED for reason in comparison.void_reasons)
    }
    assert interrupted == {4}


def test_an_interrupted_run_without_a_record_is_a_summary_too() -> None:
    summary = make_summary([], interrupted="the server was not there")
    assert (summary.cells, summary.comparisons) == ((), ())


def test_a_crossover_is_told_per_segment() -> None:
    records = [
        record
        for level, speedup in ((1, 1.8), (4, 1.3), (16, 0.7))
        for record in make_cell("chat", level, speedup=speedup, num_pairs=40)
    ]
    crossover = next(c for c in make_summary(records).crossovers if c.metric is MetricName.E2E)
    assert crossover.kind == "crosses"
    assert crossover.concurrency is not None
    assert 4 < crossover.concurrency < 16


def test_a_summary_survives_its_file() -> None:
    summary = make_summary(make_cell(), objectives=[Objective(metric=MetricName.TTFT, max_ms=200)])
    assert RunSummary.model_validate_json(summary.model_dump_json()) == summary


def test_arms_that_were_measured_one_after_the_other_are_noted() -> None:
    records = make_cell(num_pairs=20)
    assert "arms not interleaved" not in make_summary(records).environment
    late = [
        record.model_copy(
            update={
                "scheduled_ns": record.scheduled_ns + 10**13,
                "send_ns": record.send_ns + 10**13,
                "end_ns": record.end_ns + 10**13,
                "message_ns": tuple(at + 10**13 for at in record.message_ns),
            }
        )
        if record.arm is Arm.ON
        else record
        for record in records
    ]
    note = make_summary(late).environment["arms not interleaved"]
    assert note == "one block of each arm, in chat at concurrency 1"
