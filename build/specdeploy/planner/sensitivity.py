"""What if: the decision at the expected concurrency again, with one input changed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from specdeploy.planner.levels import predict_level
from specdeploy.planner.plan_inputs import PlanInputs, SegmentInputs
from specdeploy.planner.reasons import judge
from specdeploy.planner.traffic_kind import time_alone
from specdeploy.planner_contract import AcceptanceProfile, Sensitivity

ACCEPTANCE_DROP = 0.1


def what_if(inputs: PlanInputs, segment: SegmentInputs) -> Iterator[Sensitivity]:
    """Acceptance 0.1 lower at every position, outputs half as long, twice the concurrency."""
    expected = inputs.expected_concurrency
    worse = replace(segment, acceptance=with_lower_acceptance(segment.acceptance, ACCEPTANCE_DROP))
    shorter = replace(segment, output_tokens=np.maximum(1, segment.output_tokens // 2))
    yield _again(inputs, worse, expected, f"acceptance -{ACCEPTANCE_DROP:g} per token")
    yield _again(inputs, shorter, expected, "outputs half as long")
    yield _again(inputs, segment, 2 * expected, f"{2 * expected} at once")


def _again(inputs: PlanInputs, segment: SegmentInputs, concurrency: int, change: str) -> Sensitivity:
    level = predict_level(inputs, segment, concurrency)
    judgement = judge(inputs, segment, level, time_alone(inputs, segment))
    return Sensitivity(
        segment=segment.segment,
        change=change,
        ratio=level.e2e_ratio,
        draft_len=0 if judgement.blocks else level.draft_len,
        verdict=judgement.verdict,
        is_indicative=level.is_indicative,
    )


def with_lower_acceptance(profile: AcceptanceProfile, drop: float) -> AcceptanceProfile:
    """Each token's chance to be accepted, given that those before it were, lowered by `drop`."""
    return profile.model_copy(
        update={
            key: lowered(values, drop)
            for key in ("survivals", "survivals_low", "survivals_high")
            if (values := getattr(profile, key)) is not None
        }
    )


def with_assumed_interval(profile: AcceptanceProfile) -> AcceptanceProfile:
    """Bounds `ACCEPTANCE_DROP` per token below and above, for a profile that brings none."""
    return profile.model_copy(
        update={
            "survivals_low": lowered(profile.survivals, ACCEPTANCE_DROP),
            "survivals_high": lowered(profile.survivals, -ACCEPTANCE_DROP),
        }
    )


def lowered(survivals: Sequence[float], drop: float) -> tuple[float, ...]:
    """Marginal survivals [K] of the lowered conditional ones."""
    result: list[float] = []
    before = marginal = 1.0
    for survival in survivals:
        conditional = survival / before if before > 0 else 0.0
        marginal *= min(1.0, max(0.0, conditional - drop))
        result.append(marginal)
        before = survival
    return tuple(result)
