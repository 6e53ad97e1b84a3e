"""The decision from made-up step times: verdicts, K by load, crossover, reasons. Numbers of a real device are golden
tests and tests of the cost model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.planner_standins import (
    StandInTimes,
    checkpoint,
    deployment,
    memory,
    mixture,
    plan_inputs,
    profile,
    segment,
)
from specdeploy.contract import OTHER_SEGMENT, Method
from specdeploy.planner.decide import decide
from specdeploy.planner.plan_inputs import BorrowedTimes, OfferedTraffic, PlanInputs
from specdeploy.planner.simulated_traffic import SimulatedTraffic
from specdeploy.planner_contract import AcceptanceOrigin, PlanReport, PlanVerdict, TrafficKind

SWEEP = [1, 2, 4, 8, 16, 32, 64]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> PlanInputs:
    return plan_inputs(tmp_path_factory.mktemp("configs"))


@pytest.fixture(scope="module")
def good(inputs: PlanInputs) -> PlanReport:
    """The report of the stand-in as it is, made once."""
    return decide(inputs)


def only(report: PlanReport) -> Any:
    return report.segments[0]


def test_a_good_draft_is_a_go_with_the_arithmetic(good: PlanReport) -> None:
    report, found = good, only(good)
    assert report.verdict is PlanVerdict.GO
    assert report.plan.source == "planner"
    assert [level.concurrency for level in found.levels] == SWEEP
    # One step of K 3 takes 10 + 3 ms and gives 1 + 0.7 + 0.49 + 0.343 tokens: 0.513 of plain.
    level = next(one for one in found.levels if one.concurrency == 8)
    assert (level.draft_len, level.verified_tokens, level.is_compute_bound) == (3, 32, False)
    assert level.tpot_ratio is not None
    assert level.tpot_ratio.value == pytest.approx(0.513, rel=0.05)
    assert "a step costs 1.30x and gives 2.53 tokens" in found.reasons[0]
    assert any("ridge of 200" in reason for reason in found.reasons)
    assert report.traffic is not None
    assert report.traffic.on.output_throughput > 1.5 * report.traffic.off.output_throughput


def test_the_same_inputs_give_the_same_bytes(inputs: PlanInputs, good: PlanReport) -> None:
    assert decide(inputs).model_dump_json() == good.model_dump_json()


def test_a_heavy_draft_is_a_no_go_and_nothing_is_planned(inputs: PlanInputs) -> None:
    report = decide(replace(inputs, times=StandInTimes(draft_s=0.02)))

    assert report.verdict is PlanVerdict.NO_GO
    assert only(report).crossover.kind == "never faster"
    assert {entry.draft_len for entry in report.plan.segments[0].ranges} == {0}
    assert report.plan.segments[0].off_reason
    assert report.plan.default.segment == OTHER_SEGMENT


def test_an_interval_with_1_in_it_is_measured_first(inputs: PlanInputs) -> None:
    unsure = profile(0.35, 0.3)
    report = decide(replace(inputs, segments=(segment(acceptance=unsure),), times=StandInTimes(draft_s=0.0027)))

    assert report.verdict is PlanVerdict.MEASURE_FIRST
    assert "contains 1" in only(report).reasons[0]
    assert only(report).alternatives[0].startswith("measure ")


def test_the_verdict_is_of_the_expected_concurrency_not_of_the_best(tmp_path: Path) -> None:
    """Beyond the ridge verifying costs in proportion: a gain at 1 request, a loss at 64."""
    times = StandInTimes(ridge=48, draft_s=0.0005)
    traffic = {"segments": [{"name": "chat", "prompts": "prompts.jsonl"}]}

    def at(concurrency: int) -> PlanReport:
        config = deployment(tmp_path, traffic={**traffic, "expected_concurrency": concurrency})
        return decide(plan_inputs(tmp_path, config=config, times=times))

    low, high = at(1), at(64)
    assert low.verdict is PlanVerdict.GO
    assert high.verdict is PlanVerdict.NO_GO
    assert only(high).draft_len == 0
    crossover = only(high).crossover
    assert crossover.kind == "crosses"
    assert crossover.low < crossover.concurrency < crossover.high
    assert 16 < crossover.concurrency < 64
    # The limit is emitted: drafts up to the last level that gains, none above.
    ranges = low.plan.segments[0].ranges
    assert ranges[0].draft_len > 0
    assert ranges[-1].draft_len == 0
    assert only(high).levels[-1].off_reason.startswith("loses at 64 at once")


def test_k_never_rises_with_the_load(tmp_path: Path) -> None:
    report = decide(plan_inputs(tmp_path, times=StandInTimes(ridge=100, draft_s=0.0003)))

    lens = [level.best_static_draft_len for level in only(report).levels]
    assert lens == sorted(lens, reverse=True)
    assert len(set(lens)) > 1
    assert max(entry.draft_len for entry in report.plan.segments[0].ranges) <= 4


def test_beyond_the_crossover_a_deployment_that_drafts_is_a_no_go(tmp_path: Path) -> None:
    """The interval contains 1, and nothing of the deployment's own stops the drafts."""
    times = StandInTimes(ridge=48, draft_s=0.0005)
    segments = [{"name": "chat", "prompts": "prompts.jsonl"}]
    unsure = (segment(acceptance=profile(0.7, 0.25)),)

    def verdict(**speculation: Any) -> PlanReport:
        config = deployment(
            tmp_path,
            speculation={"method": "ngram", "max_draft_len": 4, **speculation},
            traffic={"expected_concurrency": 48, "segments": segments},
        )
        return decide(plan_inputs(tmp_path, config=config, times=times, segments=unsure))

    drafting = verdict()
    limited = verdict(draft_len_by_in_flight=[{"min_in_flight": 1, "max_in_flight": 16, "draft_len": 4}])
    assert drafting.verdict is PlanVerdict.NO_GO
    assert "lies beyond the crossover" in only(drafting).reasons[0]
    assert limited.verdict is PlanVerdict.MEASURE_FIRST


def test_a_draft_too_heavy_for_a_mixture_of_experts_is_a_no_go_with_the_numbers(inputs: PlanInputs) -> None:
    """397B with 17B active, a dense draft of 9B, K 3: reported as 35.3 -> 22.9 tokens/s."""
    report = decide(
        replace(inputs, target=checkpoint(moe=mixture(), parameters=397_000_000_000), draft_cost_ratio=9 / 17)
    )

    assert report.verdict is PlanVerdict.NO_GO
    assert "0.53 of the parameters" in only(report).reasons[0]
    assert "0.25" in only(report).reasons[0]
    assert report.plan.segments[0].draft_len(1) == 0
    allowed = decide(
        replace(inputs, target=checkpoint(moe=mixture()), draft_cost_ratio=9 / 17, max_draft_cost_ratio=0.6)
    )
    assert allowed.verdict is PlanVerdict.GO
    assert any("experts" in reason for reason in only(allowed).reasons)


def test_the_same_ratio_is_no_rule_for_a_dense_target(inputs: PlanInputs) -> None:
    assert decide(replace(inputs, draft_cost_ratio=0.6)).verdict is PlanVerdict.GO


def test_prefill_bound_traffic_is_called_by_its_name(inputs: PlanInputs) -> None:
    long = segment(inputs=(20_000,), outputs=(20,))
    report = decide(replace(inputs, segments=(long,), times=StandInTimes(draft_s=0.02)))

    found = only(report)
    assert found.traffic_kind is TrafficKind.PREFILL_BOUND
    assert found.decode_share < 0.5
    assert "prefill-bound" in found.reasons[0]
    assert "no ratio falls below" in found.reasons[0]
    assert report.plan.segments[0].off_reason.startswith("prefill-bound")  # type: ignore[union-attr]


def test_short_outputs_are_called_by_their_name(inputs: PlanInputs) -> None:
    report = decide(replace(inputs, segments=(segment(inputs=(10,), outputs=(4,)),)))

    assert only(report).traffic_kind is TrafficKind.SHORT_OUTPUT


def test_one_token_outputs_have_no_tpot_and_gain_nothing(inputs: PlanInputs) -> None:
    report = decide(replace(inputs, segments=(segment(outputs=(1,)),)))

    assert only(report).levels[0].tpot_ratio is None
    assert report.verdict is not PlanVerdict.GO


def test_what_does_not_fit_is_a_no_go_that_names_the_largest_item(inputs: PlanInputs) -> None:
    report = decide(replace(inputs, memory=memory(0, 0, misfit="weights of target, 150.0 GiB")))

    assert report.verdict is PlanVerdict.NO_GO
    assert "weights of target, 150.0 GiB" in only(report).reasons[0]


def test_memory_queues_requests_and_the_draft_costs_some(inputs: PlanInputs) -> None:
    report = decide(replace(inputs, memory=memory(4, 6)))

    level = next(one for one in only(report).levels if one.concurrency == 8)
    assert level.is_queued
    assert any(
        "memory holds 4 of serving.max_rows 64 requests" in reason
        and "6 without speculation: the draft costs 2" in reason
        for reason in only(report).reasons
    )


def test_outside_the_calibrated_range_no_ratio_is_promised(inputs: PlanInputs) -> None:
    report = decide(replace(inputs, times=StandInTimes(max_rows=4)))

    found = only(report)
    assert report.verdict is PlanVerdict.MEASURE_FIRST
    assert "8 rows, calibrated to 4" in found.reasons[0]
    assert report.traffic is None
    beyond = [level for level in found.levels if level.concurrency > 4]
    assert all(level.e2e_ratio is None and level.range_problem for level in beyond)
    assert report.plan.segments[0].draft_len(4) > 0
    assert report.plan.segments[0].draft_len(5) == 0


def test_borrowed_times_fill_ratios_that_decide_nothing(inputs: PlanInputs) -> None:
    borrowed = BorrowedTimes(StandInTimes(max_rows=32), "another engine's overheads", 0.25)
    report = decide(replace(inputs, times=StandInTimes(max_rows=4), borrowed=borrowed))

    found = only(report)
    levels = {level.concurrency: level for level in found.levels}
    assert report.verdict is PlanVerdict.MEASURE_FIRST
    assert [levels[load].is_promised for load in (4, 8, 32, 64)] == [True, False, False, False]
    assert [levels[load].is_indicative for load in (4, 8, 32, 64)] == [False, True, True, False]
    ratio = levels[8].e2e_ratio
    assert ratio is not None
    assert ratio.low < 0.78 * ratio.value
    assert ratio.high > 1.2 * ratio.value
    assert "with another engine's overheads e2e would be about" in found.reasons[0]
    # Only what is promised is drafted for; what is indicative is marked wherever it is shown.
    assert report.plan.segments[0].draft_len(4) > 0
    assert report.plan.segments[0].draft_len(5) == 0
    assert found.crossover.is_indicative
    assert found.crossover.max_concurrency == 32
    assert all(one.is_indicative for one in report.sensitivities)
    assert report.traffic is None
    assert "indicative" in report.headline


def test_peaks_of_a_trace_beyond_the_calibrated_range_are_flagged(inputs: PlanInputs) -> None:
    num_requests = 60
    arrival_s = np.where(np.arange(num_requests) < 20, np.arange(num_requests) * 5.0, 100.0)
    lengths = np.full(num_requests, 100, np.int64)
    burst = SimulatedTraffic(arrival_s, lengths, lengths, np.zeros(num_requests, np.int64), ("chat",))
    offered = OfferedTraffic("burst", burst, None)

    flagged = decide(replace(inputs, offered=offered, times=StandInTimes(max_rows=16))).traffic
    calm = decide(replace(inputs, offered=offered)).traffic

    assert flagged is not None
    assert calm is not None
    assert flagged.range_problem is not None
    assert "up to 40 requests are in flight" in flagged.range_problem
    assert "40 rows, calibrated to 16" in flagged.range_problem
    assert calm.range_problem is None


def test_k_stays_in_the_calibrated_range(inputs: PlanInputs) -> None:
    report = decide(replace(inputs, times=StandInTimes(max_draft_len=2, draft_s=0.0001)))

    assert {level.best_static_draft_len for level in only(report).levels} == {2}


def test_an_acceptance_nobody_measured_is_never_a_go_and_switches_nothing_off(inputs: PlanInputs) -> None:
    unknown = profile(0.5, 0.4, origin=AcceptanceOrigin.UNKNOWN, source="range over published pairs")
    report = decide(replace(inputs, segments=(segment(acceptance=unknown),), times=StandInTimes(draft_s=0.004)))

    assert report.verdict is PlanVerdict.MEASURE_FIRST
    assert "range over published pairs" in only(report).reasons[0]
    assert report.plan.segments[0].draft_len(8) > 0
    sure = profile(0.9, 0.02, origin=AcceptanceOrigin.UNKNOWN, source="range")
    assert decide(replace(inputs, segments=(segment(acceptance=sure),))).verdict is PlanVerdict.MEASURE_FIRST


def test_a_ttft_objective_that_only_drafts_miss_turns_a_go_into_measure_first(tmp_path: Path) -> None:
    config = deployment(tmp_path, slos=[{"segment": "chat", "metric": "ttft", "percentile": "p50", "max_ms": 35}])
    report = decide(plan_inputs(tmp_path, config=config, times=StandInTimes(draft_prefill_s=0.0002)))

    assert report.verdict is PlanVerdict.MEASURE_FIRST
    assert "ttft p50 is predicted at" in only(report).reasons[0]
    assert "the objective is 35 ms" in only(report).reasons[0]


def test_a_ttft_that_people_notice_turns_a_go_into_measure_first(inputs: PlanInputs) -> None:
    slow = StandInTimes(base_s=0.1, draft_s=0.001, draft_prefill_s=0.002)
    report = decide(replace(inputs, times=slow, segments=(segment(inputs=(400,), outputs=(400,)),)))

    assert report.verdict is PlanVerdict.MEASURE_FIRST
    assert only(report).reasons[0].startswith("TTFT grows from")


def test_segments_are_decided_one_by_one(inputs: PlanInputs) -> None:
    good = segment("code", acceptance=profile(0.9, 0.02))
    bad = segment("chat", acceptance=profile(0.05, 0.02))
    report = decide(replace(inputs, segments=(good, bad), times=StandInTimes(draft_s=0.003)))

    assert [one.verdict for one in report.segments] == [PlanVerdict.GO, PlanVerdict.NO_GO]
    assert report.verdict is PlanVerdict.GO  # the other is switched off by the plan
    assert report.headline == (
        "For code speculate with K 4 to 2 by load; for chat switch speculation off: loses at 8 at once"
    )
    assert report.plan.segment("chat").draft_len(8) == 0
    assert report.plan.segment("code").draft_len(8) > 0
    assert report.plan.segment("anything else").draft_len(8) == 0


def test_a_segment_that_the_deployment_excludes_stays_off_and_decides_nothing(inputs: PlanInputs) -> None:
    excluded = segment("tools", off_by_config="drafts corrupt tool calls")
    report = decide(replace(inputs, segments=(segment(), excluded)))

    assert report.verdict is PlanVerdict.GO
    assert report.plan.segment("tools").off_reason == "off by the deployment: drafts corrupt tool calls"
    assert not [one for one in report.sensitivities if one.segment == "tools"]


def test_what_if(good: PlanReport) -> None:
    now = next(level for level in only(good).levels if level.concurrency == 8).e2e_ratio
    ratios = {one.change: one.ratio for one in good.sensitivities}
    assert list(ratios) == ["acceptance -0.1 per token", "outputs half as long", "16 at once"]
    assert ratios["acceptance -0.1 per token"].value > now.value  # type: ignore[union-attr]


def test_alternatives_in_order_with_numbers(inputs: PlanInputs) -> None:
    slow = StandInTimes(draft_s=0.02)
    report = decide(
        replace(
            inputs,
            config=inputs.config.model_copy(
                update={
                    "speculation": inputs.config.speculation.model_copy(update={"method": Method.DRAFT_MODEL}),
                }
            ),
            draft=checkpoint(parameters=3_000_000_000),
            times=slow,
            lookup_times=StandInTimes(draft_s=0.0),
            fp8_times=StandInTimes(base_s=0.006),
        )
    )

    found = only(report).alternatives
    assert found[0].startswith("a shorter draft: K 1")
    assert "costs 1.00x, so it pays from 1.00 tokens" in found[1]
    assert "a plain step takes 0.60 of today's" in found[2]
    assert "smaller draft: this one has 3B" in found[3]
    assert "109M" in found[3]  # 2.71e-3 x 8e9 + 8.71e7


def test_levels_go_on_to_the_rows_of_the_server(tmp_path: Path) -> None:
    config = deployment(
        tmp_path,
        serving={"max_seq_len": 4096, "max_rows": 192},
        traffic={"expected_concurrency": 24, "segments": [{"name": "chat", "prompts": "prompts.jsonl"}]},
    )
    report = decide(plan_inputs(tmp_path, config=config))

    assert [level.concurrency for level in only(report).levels] == sorted([*SWEEP, 24, 128, 192])


def test_lengths_are_whatever_the_traffic_is(inputs: PlanInputs) -> None:
    lengths = np.random.default_rng(1).integers(1, 2000, 500)
    report = decide(replace(inputs, segments=(segment(inputs=lengths.tolist(), outputs=lengths.tolist()),)))

    assert only(report).mean_output_tokens == pytest.approx(lengths.mean())
