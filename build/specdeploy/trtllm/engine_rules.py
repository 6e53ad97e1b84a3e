"""What the engine lane (convert, build, C++ backend) refuses.

Sources are named by the commit of TensorRT-LLM they were read at.
"""

from collections.abc import Iterator

from specdeploy.config.methods import EagleConfig, MedusaConfig
from specdeploy.contract import ConstrainedPolicy, DraftLenRange, Lane, Method, unsupported_reason
from specdeploy.errors import Violation
from specdeploy.trtllm.rule import METHODS_WITH_HEAD, DeploymentFacts, Refusal
from specdeploy.trtllm.versions import FIRST_KNOWN, LAST_WITH_ENGINE_FLOW, container_of, engine_flow_refusal, image_of

# The default tree mc_sim_7b_63 of Medusa and EAGLE: 63 nodes, its longest path has 4.
# Source: cpp/include/tensorrt_llm/runtime/medusaModule.h@06255cb7, eagleModule.h@2931b93f.
DEFAULT_TREE_DEPTH = 4

# Methods whose number of draft tokens is frozen when the engine is built.
_FROZEN_METHODS = (Method.MEDUSA, Method.EAGLE, Method.REDRAFTER, Method.LOOKAHEAD)


def _refuse_removed_engine_flow(facts: DeploymentFacts) -> Violation | None:
    if not facts.is_engine or facts.version < FIRST_KNOWN:
        return None
    reason = engine_flow_refusal(facts.version)
    container = container_of(LAST_WITH_ENGINE_FLOW)
    inside = "" if container is None else f" ({image_of(container)})"
    last = f"version {LAST_WITH_ENGINE_FLOW}{inside}, the last one with the engine flow."
    other = facts.other_lane(Lane.TRTLLM_LLMAPI)
    remedy = f"Use {last}" if other is None else f"Use {other}, or {last}"
    return facts.violation("tensorrt_llm.version", reason, remedy) if reason else None


def _refuse_unknown_version(facts: DeploymentFacts) -> Violation | None:
    if facts.version >= FIRST_KNOWN:
        return None
    reason = f"{facts.version} is older than {FIRST_KNOWN}: its flags and fields are not known here"
    remedy = f"Use a version from {FIRST_KNOWN} to {LAST_WITH_ENGINE_FLOW}, the last one with the engine flow."
    if not facts.is_engine:
        remedy = f"Use {LAST_WITH_ENGINE_FLOW}, or any version from {FIRST_KNOWN} on."
    return facts.violation("tensorrt_llm.version", reason, remedy)


def _refuse_foreign_method(facts: DeploymentFacts) -> Violation | None:
    if (reason := unsupported_reason(facts.lane, facts.method)) is None:
        return None
    where = [other for lane in Lane if (other := facts.other_lane(lane)) is not None]
    other = f"Use {' or '.join(where)}, or another method." if where else "Use another method."
    return facts.violation("speculation.method", reason, other)


def _refuse_pipeline(facts: DeploymentFacts) -> Violation | None:
    if not facts.is_engine or facts.section.pipeline_parallel == 1:
        return None
    if facts.method is Method.EAGLE:
        reason = f"{facts.section.pipeline_parallel} with method eagle: its converter asserts 1"
    elif facts.method is Method.REDRAFTER:
        reason = f"{facts.section.pipeline_parallel} with method redrafter: its converter has no --pp_size"
    else:
        return None
    remedy = "Write 1 and raise tensor_parallel, or use method draft_model or lookahead."
    return facts.violation("tensorrt_llm.pipeline_parallel", reason, remedy)


def _refuse_constrained_drafts(facts: DeploymentFacts) -> Violation | None:
    constrained = facts.config.speculation.constrained
    if not facts.is_engine or constrained is ConstrainedPolicy.OFF:
        return None
    reason = f"{constrained}: guided decoding with speculation is verified nowhere in the engine flow, and drafting "
    reason += "restarts the grammar at every round"
    other = facts.other_lane(Lane.TRTLLM_LLMAPI)
    remedy = "Write off." + (f" In {other} such requests are served, without drafts." if other else "")
    return facts.violation("speculation.constrained", reason, remedy)


def _refuse_guides(facts: DeploymentFacts) -> Violation | None:
    """Any backend of guided decoding.

    The C++ backend constrains outputs with xgrammar alone, from a file that holds the tokenizer's vocabulary in
    xgrammar's form (`xgrammar_tokenizer_info_path`). Upstream makes it with a script of the examples that was not
    read, so no builder here writes it: such a build would take hours and could never be packed. Packager and adapter
    handle a build that has the file; this rule goes when a builder writes it.
    """
    backend = facts.section.guided_decoding_backend
    if not facts.is_engine or backend is None:
        return None
    reason = f"{backend}: no build of lane {facts.lane} writes what its backend needs to constrain outputs"
    other = facts.other_lane(Lane.TRTLLM_LLMAPI)
    remedy = f"{f'Use {other}, or remove' if other else 'Remove'} the key: guided requests are then refused."
    return facts.violation("tensorrt_llm.guided_decoding_backend", reason, remedy)


def _refuse_no_reuse(facts: DeploymentFacts) -> Violation | None:
    """Source: examples/draft_target_model/README.md@11925f62."""
    if not facts.is_engine or facts.method is not Method.DRAFT_MODEL or facts.section.kv_cache_reuse:
        return None
    reason = "draft and target engine both need it: each round resumes from the blocks of the round before"
    remedy = "Write true, or use method lookahead, which needs no second engine."
    return facts.violation("tensorrt_llm.kv_cache_reuse", reason, remedy)


def _refuse_partial_draft_len(facts: DeploymentFacts) -> list[Violation]:
    """Every K between 0 and max_draft_len, where an engine drafts all or nothing."""
    k = facts.config.speculation.max_draft_len
    if not facts.is_engine or facts.method not in _FROZEN_METHODS:
        return []
    remedy = f"Write 0 or {k}, or use method draft_model, whose K may follow the load."
    return [
        facts.violation(
            key, f"{entry.draft_len} with method {facts.method}: an engine drafts its {k} tokens or none", remedy
        )
        for key, entry in draft_len_ranges(facts)
        if entry.draft_len not in (0, k)
    ]


def draft_len_ranges(facts: DeploymentFacts) -> Iterator[tuple[str, DraftLenRange]]:
    """(key, range) of every K by load in the config, of the deployment first, then of its segments."""
    for index, entry in enumerate(facts.config.speculation.draft_len_by_in_flight):
        yield f"speculation.draft_len_by_in_flight[{index}].draft_len", entry
    for position, segment in enumerate(facts.config.traffic.segments):
        for index, entry in enumerate(segment.draft_len_by_in_flight):
            yield f"traffic.segments[{position}].draft_len_by_in_flight[{index}].draft_len", entry


def _refuse_default_tree(facts: DeploymentFacts) -> Violation | None:
    """The default tree is 4 deep: too deep for fewer Medusa heads, and EAGLE wants exactly as many layers."""
    speculation = facts.config.speculation
    tree: MedusaConfig | EagleConfig
    if facts.method is Method.MEDUSA:
        tree, key, size = speculation.medusa, "medusa", speculation.medusa.num_heads
        is_wrong, what = size < DEFAULT_TREE_DEPTH, f"{size} heads"
    elif facts.method is Method.EAGLE:
        tree, key, size = speculation.eagle, "eagle", speculation.eagle.num_layers
        is_wrong, what = size != DEFAULT_TREE_DEPTH, f"num_layers {size}"
    else:
        return None
    if tree.choices is not None or not is_wrong:
        return None
    reason = f"the default tree mc_sim_7b_63 is {DEFAULT_TREE_DEPTH} tokens deep and does not fit {what}"
    return facts.violation(f"speculation.{key}.choices", reason, f"Write paths that fit {what}.")


def _refuse_draft_parallelism(facts: DeploymentFacts) -> Violation | None:
    draft_gpus = facts.section.draft_tensor_parallel
    if draft_gpus is None:
        return None
    key = "tensorrt_llm.draft_tensor_parallel"
    if not facts.is_engine or facts.method is not Method.DRAFT_MODEL:
        reason = f"only method draft_model of lane {Lane.TRTLLM_ENGINE} has a draft on GPUs of its own choice"
        return facts.violation(key, reason, "Remove the key: the draft runs on the GPUs of the target.")
    if draft_gpus > facts.section.num_gpus:
        reason = f"{draft_gpus} GPUs for the draft and {facts.section.num_gpus} for the target"
        remedy = f"Write at most {facts.section.num_gpus}, or remove the key: then it is as many as the target's."
        return facts.violation(key, reason, remedy)
    return None


def _refuse_quantised_heads(facts: DeploymentFacts) -> Violation | None:
    """Quantising replaces the converter, and the converters of heads are what joins head and target."""
    if not facts.is_engine or facts.section.quantization == "none" or facts.method not in METHODS_WITH_HEAD:
        return None
    reason = f"{facts.section.quantization} with method {facts.method}: quantising takes the target without its head"
    remedy = "Write none, or use method draft_model or lookahead."
    return facts.violation("tensorrt_llm.quantization", reason, remedy)


def _refuse_cache_without_scales(facts: DeploymentFacts) -> Violation | None:
    """Scales of an FP8 cache come from a calibration: of this build, or of the checkpoint's maker."""
    if not facts.is_engine or facts.section.kv_cache_dtype != "fp8" or facts.section.quantization == "fp8":
        return None
    if facts.target is None:
        return None
    stored = facts.target.quantization
    if stored is not None and (stored.kv_cache_dtype or "").lower() == "fp8":
        return None
    reason = f"fp8, and neither target {facts.target.reference} nor the build brings the scales for it"
    remedy = "Write auto, or quantization: fp8, or name a checkpoint whose key/value cache is FP8 already."
    return facts.violation("tensorrt_llm.kv_cache_dtype", reason, remedy)


ENGINE_RULES: tuple[Refusal, ...] = (
    Refusal("engine-flow-removed", _refuse_removed_engine_flow, "engine flow"),
    Refusal("version-unknown", _refuse_unknown_version),
    Refusal("method-not-in-lane", _refuse_foreign_method, "Medusa, lookahead, ReDrafter"),
    Refusal("engine-pipeline", _refuse_pipeline, "speculation + pipeline parallel > 1"),
    Refusal("engine-constrained", _refuse_constrained_drafts, "speculation + guided decoding"),
    Refusal("engine-guides", _refuse_guides, "speculation + guided decoding"),
    Refusal("engine-kv-reuse", _refuse_no_reuse),
    Refusal("engine-partial-draft-len", _refuse_partial_draft_len),
    Refusal("default-tree-depth", _refuse_default_tree),
    Refusal("draft-tensor-parallel", _refuse_draft_parallelism),
    Refusal("engine-quantised-heads", _refuse_quantised_heads),
    Refusal("engine-cache-without-scales", _refuse_cache_without_scales),
)
