"""K by load in the words of four engines, and what each cannot say."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.planner_standins import deployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import DeploymentPlan, DraftLenRange, SegmentPlan
from specdeploy.planner.dialects import emit_schedules
from specdeploy.planner.ranges import always_off, lowest_of
from specdeploy.planner_contract import EmittedSchedule

LADDER = ((1, 16, 3), (17, 64, 1), (65, None, 0))
TRTLLM = {"version": "1.2.1", "gpu": "h100"}


def segment_plan(name: str, ranges: tuple[tuple[int, int | None, int], ...] = LADDER) -> SegmentPlan:
    entries = tuple(DraftLenRange(min_in_flight=a, max_in_flight=b, draft_len=k) for a, b, k in ranges)
    return SegmentPlan(segment=name, ranges=entries, off_reason="loses by load")


def emitted(config: DeploymentConfig, *plans: SegmentPlan, expected: int = 8) -> dict[str, EmittedSchedule]:
    plan = DeploymentPlan(
        deployment=config.name,
        source="planner",
        method=config.speculation.method,
        max_draft_len=config.speculation.max_draft_len,
        segments=plans,
        default=lowest_of(plans),
    )
    return {one.dialect: one for one in emit_schedules(config, plan, expected)}


def eagle3(folder: Path, **sections: Any) -> DeploymentConfig:
    speculation = {"method": "eagle3", "max_draft_len": 3, "draft": {"checkpoint": "owner/head"}}
    return deployment(
        folder,
        **{"speculation": speculation, "serving": {"max_seq_len": 4096, "max_rows": 96}, **sections},
    )


def test_ours_is_read_back_as_it_was_meant(tmp_path: Path) -> None:
    plan = segment_plan("chat")
    text = emitted(eagle3(tmp_path), plan)["specdeploy"].text
    sections = yaml.safe_load(text)
    speculation = {"method": "eagle3", "max_draft_len": 3, "draft": {"checkpoint": "owner/head"}}
    segments = [{"prompts": "prompts.jsonl", **one} for one in sections["traffic"]["segments"]]

    config = eagle3(
        tmp_path / "again",
        speculation={**speculation, **sections["speculation"]},
        traffic={"expected_concurrency": 8, "segments": segments},
    )

    ranges = config.traffic.segments[0].draft_len_by_in_flight
    assert [(one.min_in_flight, one.max_in_flight, one.draft_len) for one in ranges] == [(1, 16, 3), (17, 64, 1)]


def test_ours_says_off_for_a_segment_that_is_never_drafted_for(tmp_path: Path) -> None:
    text = emitted(eagle3(tmp_path), always_off("chat", "prefill-bound"))["specdeploy"].text

    sections = yaml.safe_load(text)
    assert sections["traffic"]["segments"] == [{"name": "chat", "speculate": False, "off_reason": "prefill-bound"}]
    # Without ranges everything else would be drafted for at any load.
    assert [one["draft_len"] for one in sections["speculation"]["draft_len_by_in_flight"]] == [0]


def test_vllm_has_a_schedule_for_eagle_heads(tmp_path: Path) -> None:
    found = emitted(eagle3(tmp_path), segment_plan("chat"))["vllm"]

    values = json.loads(found.text.split("'")[1])
    assert found.version == "main at 002e77c1"
    assert values == {
        "method": "eagle3",
        "model": "owner/head",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 16, 3], [17, 64, 1], [65, 96, 0]],
    }


def test_vllm_drafts_alike_at_every_load_with_n_grams(tmp_path: Path) -> None:
    found = emitted(deployment(tmp_path), segment_plan("chat"), expected=40)["vllm"]

    values = json.loads(found.text.split("'")[1])
    assert values["num_speculative_tokens"] == 1
    assert values["prompt_lookup_max"] == 3
    assert any("K by load: 1 at every load" in lost for lost in found.lost)


def test_sglang_has_slots_by_batch_size_and_never_0(tmp_path: Path) -> None:
    found = emitted(eagle3(tmp_path), segment_plan("chat"))["sglang"]

    flags, slots = found.text.split("# adaptive_spec.json:\n")
    assert "--speculative-num-steps 3" in flags
    assert "--speculative-num-draft-tokens 4" in flags
    assert json.loads(slots) == {
        "1": {"candidate_steps": [3]},
        "17": {"candidate_steps": [1]},
        "65": {"candidate_steps": [1]},
    }
    assert any("off from 65 at once" in lost for lost in found.lost)


def test_tensorrt_llm_takes_a_schedule_where_the_version_reads_one(tmp_path: Path) -> None:
    config = deployment(
        tmp_path,
        lane="trtllm_llmapi",
        dtype="bfloat16",
        speculation={"method": "ngram", "max_draft_len": 4},
        serving={"max_seq_len": 4096, "max_rows": 96},
        tensorrt_llm=TRTLLM,
    )
    found = emitted(config, segment_plan("chat"))["tensorrt_llm"]

    assert found.version == "1.2.1"
    assert yaml.safe_load(found.text)["speculative_config"] == {
        "max_draft_len": 3,
        "draft_len_schedule": {1: 3, 17: 1, 65: 0},
    }


def test_tensorrt_llm_says_where_it_cannot(tmp_path: Path) -> None:
    found = emitted(eagle3(tmp_path), segment_plan("chat"))["tensorrt_llm"]

    assert "draft_len_schedule" not in found.text
    assert any("not kept" in lost for lost in found.lost)


def test_engines_with_one_k_get_the_largest_segment_and_say_so(tmp_path: Path) -> None:
    traffic = {
        "expected_concurrency": 8,
        "segments": [
            {"name": "chat", "prompts": "prompts.jsonl", "share": 0.2},
            {"name": "code", "prompts": "prompts.jsonl", "share": 0.8},
        ],
    }
    found = emitted(eagle3(tmp_path, traffic=traffic), segment_plan("chat", ((1, None, 1),)), segment_plan("code"))

    assert "[1, 16, 3]" in found["vllm"].text
    assert "K by segment: this is code's; chat should be served otherwise" in found["vllm"].lost


@pytest.mark.parametrize("dialect", ["vllm", "sglang", "tensorrt_llm"])
def test_a_plan_that_never_drafts_leaves_speculation_out(dialect: str, tmp_path: Path) -> None:
    found = emitted(eagle3(tmp_path), always_off("chat", "loses"))[dialect]

    assert "drafts at no load" in found.text


def test_engines_without_the_method_are_left_out(tmp_path: Path) -> None:
    config = deployment(
        tmp_path, speculation={"method": "layer_skip", "max_draft_len": 3, "layer_skip": {"num_layers": 4}}
    )

    assert set(emitted(config, segment_plan("chat"))) == {"specdeploy"}
