"""The decision: will speculative decoding pay, from which concurrency on not, with which K? A pure function.

Per segment every level of concurrency is predicted (levels.py); the verdict falls at the expected one and nowhere else
(reasons.py). The levels become K by requests in flight (ranges.py), with which the traffic is served once in simulated
time, for latencies, objectives and goodput (offered.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specdeploy.contract import DeploymentPlan, SegmentPlan
from specdeploy.planner.alternatives import alternatives
from specdeploy.planner.crossover import find_crossover
from specdeploy.planner.dialects import emit_schedules
from specdeploy.planner.headline import headline
from specdeploy.planner.levels import levels_of, predict_levels, static_step
from specdeploy.planner.offered import MissedObjective, serve_traffic
from specdeploy.planner.plan_inputs import PlanInputs, SegmentInputs
from specdeploy.planner.ranges import always_off, lowest_of, ranges_of
from specdeploy.planner.reasons import Judgement, context_reasons, find_block, judge, off_cause
from specdeploy.planner.schedule import plan_from_config
from specdeploy.planner.sensitivity import what_if
from specdeploy.planner.traffic_kind import TimeAlone, time_alone
from specdeploy.planner_contract import (
    AcceptanceOrigin,
    ArithmeticLine,
    LevelPrediction,
    PlannedSegment,
    PlanReport,
    PlanVerdict,
    Sensitivity,
)


def decide(inputs: PlanInputs) -> PlanReport:
    """Everything `specdeploy plan` says. The same inputs give the same report."""
    decisions = [_decide_segment(inputs, segment) for segment in inputs.segments]
    plan = _plan(inputs, decisions)
    # Latencies of a load that the cost model was not calibrated for would be promises too.
    is_known = all(_level(one.planned.levels, inputs.expected_concurrency).is_promised for one in decisions)
    served = serve_traffic(inputs, plan) if is_known else None
    missed = served.missed if served is not None else ()
    segments = tuple(_with_objectives(decision.planned, missed) for decision in decisions)
    verdict = overall_verdict(inputs, segments)
    return PlanReport(
        deployment=inputs.config.name,
        hardware=inputs.hardware,
        engine=inputs.engine,
        calibration=inputs.calibration,
        method=inputs.config.speculation.method,
        plan=plan,
        verdict=verdict,
        headline=headline(verdict, segments, plan),
        memory=inputs.memory,
        segments=segments,
        traffic=served.prediction if served is not None else None,
        sensitivities=tuple(line for segment in inputs.segments for line in _what_if(inputs, segment)),
        schedules=emit_schedules(inputs.config, plan, inputs.expected_concurrency),
        arithmetic=tuple(line for decision in decisions for line in decision.arithmetic),
        draft_cost_ratio=inputs.draft_cost_ratio,
        ridge_tokens=inputs.times.ridge_tokens,
        model_error=inputs.model_error,
        model_error_source=inputs.model_error_source,
        indicative_source=inputs.borrowed.source if inputs.borrowed is not None else None,
        indicative_error=inputs.borrowed.model_error if inputs.borrowed is not None else None,
        max_rows=inputs.config.serving.max_rows,
        assumptions=inputs.assumptions,
        random_seed=inputs.random_seed,
    )


@dataclass(frozen=True, slots=True)
class _Decision:
    """One segment: what is said of it and what is planned for it."""

    planned: PlannedSegment
    plan: SegmentPlan
    arithmetic: tuple[ArithmeticLine, ...]


def _decide_segment(inputs: PlanInputs, segment: SegmentInputs) -> _Decision:
    expected = inputs.expected_concurrency
    levels = predict_levels(inputs, segment, levels_of(expected, inputs.config.serving.max_rows))
    alone, crossover = time_alone(inputs, segment), find_crossover(levels)
    planned_by_config = plan_from_config(inputs.config).segment(segment.segment).draft_len(expected)
    level = _level(levels, expected)
    judgement = judge(inputs, segment, level, alone, crossover, planned_by_config)
    levels = _settle(inputs, segment, levels, alone)
    plan = _segment_plan(inputs, segment, levels, judgement)
    reasons = judgement.reasons if not level.is_promised else (*judgement.reasons, *context_reasons(inputs, level))
    planned = PlannedSegment(
        segment=segment.segment,
        verdict=judgement.verdict,
        expected_concurrency=expected,
        draft_len=plan.draft_len(expected),
        reasons=reasons,
        traffic_kind=alone.kind,
        decode_share=alone.decode_share,
        mean_input_tokens=segment.mean_input,
        mean_output_tokens=segment.mean_output,
        acceptance=segment.acceptance,
        levels=levels,
        crossover=crossover,
        alternatives=tuple(alternatives(inputs, segment, levels, judgement.verdict, planned_by_config)),
    )
    return _Decision(planned, plan, _arithmetic(inputs, segment, level, alone))


def _level(levels: Sequence[LevelPrediction], concurrency: int) -> LevelPrediction:
    return next(level for level in levels if level.concurrency == concurrency)


# --- K --------------------------------------------------------------------------------------------------------------


def _settle(
    inputs: PlanInputs, segment: SegmentInputs, levels: Sequence[LevelPrediction], alone: TimeAlone
) -> tuple[LevelPrediction, ...]:
    """K of every level for good, with the reason wherever it is 0.

    An acceptance that nobody measured switches nothing off while its better bound gains: it is to be measured.
    """
    block = find_block(inputs, segment)
    is_unknown = segment.acceptance.origin is AcceptanceOrigin.UNKNOWN
    settled = []
    for level in levels:
        draft_len, reason = level.draft_len, None
        if block is not None:
            draft_len, reason = 0, block.reasons[0]
        elif level.e2e_ratio is None or not level.is_promised:
            reason = level.range_problem
        elif draft_len == 0 and is_unknown and level.e2e_ratio.low < 1:
            draft_len = level.best_static_draft_len
        elif draft_len == 0:
            reason = off_cause(level, alone)
        settled.append(level.model_copy(update={"draft_len": draft_len, "off_reason": reason}))
    return tuple(settled)


def _segment_plan(
    inputs: PlanInputs, segment: SegmentInputs, levels: Sequence[LevelPrediction], judgement: Judgement
) -> SegmentPlan:
    """Where no level could be predicted the deployment's own K stays: there is nothing to say against it yet."""
    if judgement.blocks:
        return always_off(segment.segment, judgement.reasons[0])
    if not any(level.is_promised for level in levels):
        return plan_from_config(inputs.config).segment(segment.segment)
    ranges = ranges_of(levels, inputs.config.serving.max_rows)
    reason = next((level.off_reason for level in levels if level.draft_len == 0), None)
    if reason is None and any(entry.draft_len == 0 for entry in ranges):
        reason = f"not predicted above {levels[-1].concurrency} at once"
    return SegmentPlan(segment=segment.segment, ranges=ranges, off_reason=reason)


def _plan(inputs: PlanInputs, decisions: Sequence[_Decision]) -> DeploymentPlan:
    plans = tuple(decision.plan for decision in decisions)
    speculation = inputs.config.speculation
    return DeploymentPlan(
        deployment=inputs.config.name,
        source="planner",
        method=speculation.method,
        max_draft_len=speculation.max_draft_len,
        constrained=speculation.constrained,
        segments=plans,
        default=lowest_of(plans),
    )


# --- verdict --------------------------------------------------------------------------------------------------------


def _with_objectives(planned: PlannedSegment, missed: Sequence[MissedObjective]) -> PlannedSegment:
    """An objective that only drafting misses turns a go into measure first; others are named."""
    mine = [one for one in missed if one.slo.segment == planned.segment]
    if not mine:
        return planned
    by_drafts = [str(one) for one in mine if one.is_met_off]
    either_way = [f"{one}: missed either way" for one in mine if not one.is_met_off]
    turns = bool(by_drafts) and planned.verdict is PlanVerdict.GO
    return planned.model_copy(
        update={
            "verdict": PlanVerdict.MEASURE_FIRST if turns else planned.verdict,
            "reasons": (*by_drafts, *planned.reasons, *either_way)
            if turns
            else (*planned.reasons, *by_drafts, *either_way),
        }
    )


def overall_verdict(inputs: PlanInputs, segments: Sequence[PlannedSegment]) -> PlanVerdict:
    """Of the segments that the deployment drafts for: measure first where one is, else go where one is. A no-go beside
    a go is part of the plan: that segment is switched off."""
    drafting = {segment.segment for segment in inputs.drafting_segments()}
    verdicts = {one.verdict for one in segments if one.segment in drafting}
    for verdict in (PlanVerdict.MEASURE_FIRST, PlanVerdict.GO):
        if verdict in verdicts:
            return verdict
    return PlanVerdict.NO_GO


def _what_if(inputs: PlanInputs, segment: SegmentInputs) -> tuple[Sensitivity, ...]:
    return () if find_block(inputs, segment) is not None else tuple(what_if(inputs, segment))


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _arithmetic(
    inputs: PlanInputs, segment: SegmentInputs, level: LevelPrediction, alone: TimeAlone
) -> tuple[ArithmeticLine, ...]:
    """The expected concurrency, line by line: the request alone, the cost model's own lines, and the closed form.
    Where only indicative ratios are known it is the borrowed cost model's."""
    if level.is_indicative:
        inputs = inputs.as_borrowed() or inputs
    if level.e2e_ratio is None:
        return alone.arithmetic(segment.segment)
    rows, name = inputs.num_rows(inputs.expected_concurrency), segment.segment
    kv_tokens = rows * (segment.mean_input + segment.mean_output / 2)
    draft_len = level.best_static_draft_len
    plain, chosen = static_step(inputs, segment, rows, 0), static_step(inputs, segment, rows, draft_len)
    survivals = segment.model().survivals(draft_len)
    of_step = [
        line.model_copy(update={"subject": f"{name}: K {k}: {line.subject}"})
        for k in (0, draft_len)
        for line in inputs.times.explain(rows, k, kv_tokens)
    ]
    lines = (
        ("tokens per step", f"1 + {' + '.join(f'{one:.3f}' for one in survivals)}", chosen.tokens, "tokens"),
        ("plain step", f"step({rows} rows, K 0, {kv_tokens:.0f} cached tokens)", plain.seconds, "s"),
        ("drafted step", f"step({rows} rows, K {draft_len}, {kv_tokens:.0f} cached tokens)", chosen.seconds, "s"),
        (
            "time per token, on/off",
            f"({chosen.seconds:.4g} / {chosen.tokens:.3f}) / {plain.seconds:.4g}",
            chosen.tpot_s / plain.tpot_s,
            "of plain",
        ),
    )
    closed = [ArithmeticLine(subject=f"{name}: {a}", formula=b, value=c, unit=d) for a, b, c, d in lines]
    return (*alone.arithmetic(name), *of_step, *closed)
