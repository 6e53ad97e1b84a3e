"""The plan's K by load in the words of engines, each for one named version, with what that engine cannot say.

Keys are those of the upstream files named beside them; nothing is guessed. An engine that knows one K for all requests
gets the segment with the largest share of the traffic.
"""

from collections.abc import Sequence

import yaml
from packaging.version import InvalidVersion, Version

from specdeploy.config.schema import DeploymentConfig, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import DeploymentPlan, DraftLenRange, Lane, Method, SegmentPlan
from specdeploy.errors import BuildError
from specdeploy.planner.other_engines import emit_sglang, emit_vllm
from specdeploy.planner_contract import EmittedSchedule
from specdeploy.trtllm.argument_draft import ArgumentDraft
from specdeploy.trtllm.decoding import class_fields, mtp_depth_key, spelling
from specdeploy.trtllm.load_limits import put_load_limits

# What a deployment of lane torch would be served with elsewhere: the last release with both TensorRT-LLM flows.
DEFAULT_TENSORRT_LLM = "1.2.1"


def emit_schedules(
    config: DeploymentConfig, plan: DeploymentPlan, expected_concurrency: int
) -> tuple[EmittedSchedule, ...]:
    """One per engine that has the method; ours first."""
    segment, lost = shared_plan(config, plan)
    emitted = (
        _emit_own(config, plan),
        _emit_tensorrt_llm(config, segment, lost),
        emit_vllm(config, segment, expected_concurrency, lost),
        emit_sglang(config, segment, expected_concurrency, lost),
    )
    return tuple(schedule for schedule in emitted if schedule is not None)


def shared_plan(config: DeploymentConfig, plan: DeploymentPlan) -> tuple[SegmentPlan, tuple[str, ...]]:
    """The plan of the segment with the largest share that drafts, and what is lost where plans differ."""
    shares = {segment.name: segment.share for segment in config.traffic.segments}
    by_share = sorted(plan.segments, key=lambda one: -shares.get(one.segment, 0.0))
    drafting = [one for one in by_share if highest(one.ranges) > 0]
    chosen = (drafting or by_share)[0]
    others = [one.segment for one in plan.segments if one.ranges != chosen.ranges]
    if not others:
        return chosen, ()
    return chosen, (f"K by segment: this is {chosen.segment}'s; {', '.join(others)} should be served otherwise",)


def highest(ranges: Sequence[DraftLenRange]) -> int:
    """The largest K of all loads."""
    return max((entry.draft_len for entry in ranges), default=0)


def default_ranges(config: DeploymentConfig, plan: DeploymentPlan) -> tuple[DraftLenRange, ...]:
    """`speculation.draft_len_by_in_flight` of the plan: for traffic that no segment covers, and where one instance
    drafts alike for all requests for all of it. Never empty: that would mean K at any load."""
    section = config.tensorrt_llm
    is_shared = section is not None and section.plain_instance is PlainInstance.SWAP
    ranges = shared_plan(config, plan)[0].ranges if is_shared else plan.default.ranges
    return tuple(entry for entry in ranges if entry.draft_len) or ranges


# --- ours -----------------------------------------------------------------------------------------------------------


def _emit_own(config: DeploymentConfig, plan: DeploymentPlan) -> EmittedSchedule:
    """`traffic.segments` of the deployment's YAML file; see config/schema.py."""
    segments = [_own_segment(one) for one in plan.segments]
    others = [entry.model_dump() for entry in default_ranges(config, plan)]
    text = "# Beside the other keys of each section. A load that is not covered is not drafted for.\n" + "".join(
        yaml.safe_dump(section, sort_keys=False, default_flow_style=None, width=110)
        for section in ({"speculation": {"draft_len_by_in_flight": others}}, {"traffic": {"segments": segments}})
    )
    return EmittedSchedule(dialect="specdeploy", version="1", text=text, lost=tuple(_own_losses(config, plan)))


def _own_segment(plan: SegmentPlan) -> dict[str, object]:
    if highest(plan.ranges) == 0:
        return {"name": plan.segment, "speculate": False, "off_reason": plan.off_reason or "the plan drafts at no load"}
    ranges = [entry.model_dump() for entry in plan.ranges if entry.draft_len]
    return {"name": plan.segment, "draft_len_by_in_flight": ranges}


def _own_losses(config: DeploymentConfig, plan: DeploymentPlan) -> list[str]:
    if config.lane is Lane.TORCH and config.speculation.dynamic_draft_len is not False:
        return ["K is an upper limit here: the engine lowers it per request and step where that pays (not credited)"]
    section, method = config.tensorrt_llm, config.speculation.method
    if section is None or (config.lane is Lane.TRTLLM_ENGINE and method is Method.DRAFT_MODEL):
        return []
    if section.plain_instance is PlainInstance.SWAP:
        return ["K by segment and a switch-off by load: one instance drafts alike for all requests of a step"]
    between = {entry.draft_len for one in plan.segments for entry in one.ranges} - {0, plan.max_draft_len}
    if between:
        return [f"K between 0 and {plan.max_draft_len}: the router switches to the plain instance, or drafts all"]
    return []


# --- TensorRT-LLM ---------------------------------------------------------------------------------------------------


def _emit_tensorrt_llm(config: DeploymentConfig, plan: SegmentPlan, lost: tuple[str, ...]) -> EmittedSchedule | None:
    """`speculative_config` of the LLM API, of one instance; None where that version has no such method."""
    section = config.tensorrt_llm or TensorRtLlmConfig(version=DEFAULT_TENSORRT_LLM, gpu="h100")
    method, most = config.speculation.method, highest(plan.ranges)
    try:
        version = Version(section.version)
        decoding_type = spelling(method, version, None)
        names = class_fields(decoding_type, version, None)
    except (BuildError, InvalidVersion):
        return None
    if names is None:
        return None
    if most == 0:
        text = "# speculative_config is left out: the plan drafts at no load.\n"
        return EmittedSchedule(dialect="tensorrt_llm", version=section.version, text=text, lost=lost)
    speculation = config.speculation.model_copy(update={"max_draft_len": most, "draft_len_by_in_flight": plan.ranges})
    segments = tuple(
        one.model_copy(update={"draft_len_by_in_flight": (), "speculate": True}) for one in config.traffic.segments
    )
    alone = config.model_copy(
        update={
            "speculation": speculation,
            "traffic": config.traffic.model_copy(update={"segments": segments}),
        }
    )
    depth = mtp_depth_key(version, names) if method is Method.MTP else "max_draft_len"
    rendered: dict[str, object] = {depth: most}
    draft = ArgumentDraft(version)
    put_load_limits(draft, rendered, alone, section.model_copy(update={"plain_instance": PlainInstance.SWAP}), names)
    text = "# Beside decoding_type and the draft.\n" + yaml.safe_dump({"speculative_config": rendered}, sort_keys=False)
    return EmittedSchedule(dialect="tensorrt_llm", version=section.version, text=text, lost=(*lost, *draft.notes))
