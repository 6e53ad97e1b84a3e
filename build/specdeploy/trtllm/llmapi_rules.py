"""What the LLM API lane (PyTorch flow) refuses, and what an engine without a switch per request refuses in any lane."""

from specdeploy.config.schema import PlainInstance
from specdeploy.contract import ConstrainedPolicy, Lane, Method, SegmentPlan
from specdeploy.errors import Violation
from specdeploy.trtllm.engine_rules import draft_len_ranges
from specdeploy.trtllm.llm_args_combinations import guides_exclude_drafting
from specdeploy.trtllm.rule import DeploymentFacts, Refusal


def _refuse_pipeline(facts: DeploymentFacts) -> Violation | None:
    pipeline = facts.section.pipeline_parallel
    if not facts.is_llmapi or pipeline == 1:
        return None
    reason = f"{pipeline}: the LLM API does not combine speculation with pipeline parallelism"
    other = facts.other_lane(Lane.TRTLLM_ENGINE, Method.DRAFT_MODEL)
    remedy = f"Write 1 and raise tensor_parallel, or use {other}."
    return facts.violation("tensorrt_llm.pipeline_parallel", reason, remedy)


def _refuse_constrained_drafts(facts: DeploymentFacts) -> Violation | None:
    """No version may draft for them here: what the package allows from 1.1 on, nothing of ours drives or verifies."""
    constrained = facts.config.speculation.constrained
    if not facts.is_llmapi or constrained is ConstrainedPolicy.OFF:
        return None
    if guides_exclude_drafting(facts.version):
        why = f"TensorRT-LLM {facts.version} raises ValueError for guided decoding with speculation"
    else:
        why = "an instance that drafts is handed no constrained request"
    reason = f"{constrained}: this lane does not draft for requests with guided decoding, and {why}"
    remedy = "Write off: where tensorrt_llm.guided_decoding_backend is configured such requests are served plain."
    return facts.violation("speculation.constrained", reason, remedy)


def _refuse_switch_without_plain_instance(facts: DeploymentFacts) -> list[Violation]:
    """Segments that are not drafted for, or differently, need a plain engine to send them to."""
    if facts.can_switch_per_request or facts.section.plain_instance is PlainInstance.BESIDE:
        return []
    found = []
    who = f"method {facts.method} in lane {facts.lane} has no switch per request"
    other = facts.other_lane(Lane.TRTLLM_ENGINE, Method.DRAFT_MODEL)
    remedy = f"Write tensorrt_llm.plain_instance: beside, or use {other}."
    for index, segment in enumerate(facts.config.traffic.segments):
        key = f"traffic.segments[{index}]"
        if not segment.speculate:
            reason = f"false beside plain_instance: swap: {who}"
            found.append(facts.violation(f"{key}.speculate", reason, remedy))
        elif segment.draft_len_by_in_flight:
            reason = f"a K of its own beside plain_instance: swap: {who}"
            found.append(facts.violation(f"{key}.draft_len_by_in_flight", reason, f"{remedy} Or remove the ranges."))
    if facts.is_engine and _varies_by_load(facts):
        reason = f"a K that follows the load beside plain_instance: swap: {who}, and its engine drafts at any load"
        key = "speculation.draft_len_by_in_flight"
        found.append(facts.violation(key, reason, f"{remedy} Or remove the ranges."))
    return found


def _varies_by_load(facts: DeploymentFacts) -> bool:
    speculation = facts.config.speculation
    if not speculation.draft_len_by_in_flight:
        return False
    plan = SegmentPlan(segment="", ranges=speculation.draft_len_by_in_flight)
    return any(
        plan.draft_len(load) != speculation.max_draft_len for load in range(1, facts.config.serving.max_rows + 1)
    )


def _refuse_guides_without_plain_instance(facts: DeploymentFacts) -> Violation | None:
    """Guided requests are served undrafted, which needs an engine that does not draft."""
    backend = facts.section.guided_decoding_backend
    if backend is None or not facts.is_llmapi or facts.section.plain_instance is PlainInstance.BESIDE:
        return None
    reason = f"{backend} beside plain_instance: swap: guided requests would be drafted for"
    remedy = "Write tensorrt_llm.plain_instance: beside, or remove the key: guided requests are then refused."
    return facts.violation("tensorrt_llm.guided_decoding_backend", reason, remedy)


def _refuse_partial_draft_len(facts: DeploymentFacts) -> list[Violation]:
    """With two instances the router picks one of them: all of K or none."""
    if not facts.is_llmapi or facts.section.plain_instance is not PlainInstance.BESIDE:
        return []
    k = facts.config.speculation.max_draft_len
    found, other = [], facts.other_lane(Lane.TRTLLM_ENGINE, Method.DRAFT_MODEL)
    for key, entry in draft_len_ranges(facts):
        if entry.draft_len not in (0, k):
            reason = f"{entry.draft_len} beside plain_instance: beside: the instance that drafts has K {k}, the other 0"
            remedy = f"Write 0 or {k}, or {other}, whose K follows the load."
            found.append(facts.violation(key, reason, remedy))
    return found


def _refuse_quantising(facts: DeploymentFacts) -> Violation | None:
    if not facts.is_llmapi or facts.section.quantization == "none":
        return None
    reason = f"{facts.section.quantization}: the LLM API reads quantisation from the checkpoint and makes none"
    other = facts.other_lane(Lane.TRTLLM_ENGINE)
    remedy = f"Write none and name a checkpoint that is quantised{f', or use {other}' if other else ''}."
    return facts.violation("tensorrt_llm.quantization", reason, remedy)


def _refuse_ngram_minimum(facts: DeploymentFacts) -> Violation | None:
    smallest = facts.config.speculation.ngram.min_matching_ngram_size
    if not facts.is_llmapi or facts.method is not Method.NGRAM or smallest == 1:
        return None
    reason = f"{smallest}: the LLM API has no such limit, it drafts from matches of one token on"
    remedy = f"Write 1 or remove the key, or use lane {Lane.TORCH}."
    return facts.violation("speculation.ngram.min_matching_ngram_size", reason, remedy)


def _refuse_mtp_without_module(facts: DeploymentFacts) -> Violation | None:
    if facts.method is not Method.MTP or facts.target is None or facts.target.num_mtp_layers:
        return None
    reason = f"target {facts.target.reference} holds no MTP module"
    return facts.violation("speculation.method", reason, "Use a target with one, or method ngram or draft_model.")


LLMAPI_RULES: tuple[Refusal, ...] = (
    Refusal("llmapi-pipeline", _refuse_pipeline, "speculation + pipeline parallel > 1"),
    Refusal("llmapi-constrained", _refuse_constrained_drafts, "speculation + guided decoding"),
    Refusal("no-per-request-switch", _refuse_switch_without_plain_instance, "per-request drafting switch"),
    Refusal("guides-need-plain-instance", _refuse_guides_without_plain_instance, "speculation + guided decoding"),
    Refusal("llmapi-partial-draft-len", _refuse_partial_draft_len),
    Refusal("llmapi-quantization", _refuse_quantising),
    Refusal("llmapi-ngram-minimum", _refuse_ngram_minimum),
    Refusal("mtp-module-missing", _refuse_mtp_without_module),
)
