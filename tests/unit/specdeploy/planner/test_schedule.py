"""The plan a config states: K at every load, and why not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import DeploymentPlan
from specdeploy.planner.schedule import plan_from_config

Range = tuple[int, int | None, int]


def make_config(ranges: list[Range] | None = None, **segment: Any) -> DeploymentConfig:
    return DeploymentConfig.model_validate(
        {
            "schema_version": 1,
            "name": "tiny",
            "lane": "torch",
            "dtype": "float32",
            "target": {"checkpoint": "x"},
            "speculation": {"method": "ngram", "max_draft_len": 4, "draft_len_by_in_flight": listed(ranges or [])},
            "traffic": {"expected_concurrency": 4, "segments": [{"name": "chat", "prompts": "p", **segment}]},
        }
    )


def listed(ranges: list[Range]) -> list[dict[str, int | None]]:
    return [dict(zip(("min_in_flight", "max_in_flight", "draft_len"), entry, strict=True)) for entry in ranges]


def test_without_ranges_k_is_max_draft_len_at_any_load() -> None:
    plan = plan_from_config(make_config())
    assert (plan.source, plan.deployment, plan.default.segment) == ("config", "tiny", "other")
    for segment in (plan.segment("chat"), plan.segment("never heard of")):
        assert [segment.draft_len(load) for load in (1, 7, 10_000)] == [4, 4, 4]
        assert segment.off_reason is None


def test_a_segment_that_never_speculates_says_why() -> None:
    plan = plan_from_config(make_config(speculate=False, off_reason="too creative"))
    assert [plan.segment("chat").draft_len(load) for load in (1, 100)] == [0, 0]
    assert plan.segment("chat").off_reason == "too creative"
    assert plan.default.draft_len(1) == 4


def test_segment_ranges_override_the_deployments() -> None:
    plan = plan_from_config(make_config([(1, 8, 3)], draft_len_by_in_flight=listed([(1, 2, 1)])))
    assert [plan.segment("chat").draft_len(load) for load in (1, 2, 3, 8)] == [1, 1, 0, 0]
    assert [plan.default.draft_len(load) for load in (1, 8, 9)] == [3, 3, 0]


@pytest.mark.parametrize("ranges", [[(2, 4, 4)], [(1, 4, 4)], [(1, 4, 4), (6, None, 2)], [(1, 3, 4), (4, None, 0)]])
def test_loads_without_speculation_have_a_reason(ranges: list[Range]) -> None:
    assert plan_from_config(make_config(ranges)).default.off_reason == "load"


@st.composite
def some_ranges(draw: st.DrawFn) -> list[Range]:
    ends = sorted(draw(st.sets(st.integers(1, 40), max_size=8)))
    pairs = list(zip(ends[::2], ends[1::2], strict=False))
    ranges: list[Range] = [(low, high, draw(st.integers(0, 4))) for low, high in pairs]
    if draw(st.booleans()):
        ranges.append((41, None, draw(st.integers(0, 4))))
    return ranges


@given(some_ranges(), st.integers(1, 60))
def test_plans_cover_every_load_and_agree_with_the_ranges(ranges: list[Range], load: int) -> None:
    plan = plan_from_config(make_config(ranges))
    stated = next((k for low, high, k in ranges if low <= load and (high is None or load <= high)), None)
    expected = 4 if not ranges else stated or 0
    segment = plan.segment("chat")
    assert segment.draft_len(load) == expected
    assert sum(e.min_in_flight <= load and (e.max_in_flight or load) >= load for e in segment.ranges) == 1
    assert (segment.off_reason == "load") == any(entry.draft_len == 0 for entry in segment.ranges)


@given(some_ranges())
def test_plans_survive_json(ranges: list[Range]) -> None:
    plan = plan_from_config(make_config(ranges))
    assert DeploymentPlan.model_validate_json(plan.model_dump_json()) == plan
