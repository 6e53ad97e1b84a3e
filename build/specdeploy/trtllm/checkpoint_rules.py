"""What follows from the checkpoints: heads of the wrong generation, and weights no lane reads on Hopper."""

import re
from collections.abc import Iterator

from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.contract import Lane, Method
from specdeploy.errors import Violation
from specdeploy.trtllm.rule import METHODS_WITH_HEAD, DeploymentFacts, Refusal, family

# What Llama's converter reads: fp8 as --use_fp8, gptq and awq as it finds them in config.json
# (examples/models/core/llama/convert_checkpoint.py@368f8f2a). Qwen's (qwen/convert_checkpoint.py@0df9aaf3) has no FP8
# flag, and flags for gptq that the build does not write; converters of heads were seen with plain weights only.
_READ_BY_LLAMA_CONVERTER: tuple[str, ...] = ("fp8", "gptq", "awq")
# Formats that the LLM API runs on Hopper: docs/source/features/quantization.md@09d4c79b, hardware support matrix.
_RUN_BY_LLMAPI = ("fp8", "gptq", "awq")


def _refuse_old_head(facts: DeploymentFacts) -> Violation | None:
    """Only EAGLE-3 heads load in the LLM API, whatever its decoding_type is called."""
    if not facts.is_llmapi or facts.draft is None or facts.draft.head is None or facts.draft.head.generation != "v1":
        return None
    reason = f"{facts.draft.reference} is an EAGLE-1 or EAGLE-2 head; only EAGLE-3 heads load in the LLM API"
    remedy = f"Use an EAGLE-3 head, or {facts.other_lane(Lane.TRTLLM_ENGINE, Method.EAGLE)}."
    return facts.violation("speculation.draft.checkpoint", reason, remedy)


def _refuse_new_head(facts: DeploymentFacts) -> Violation | None:
    """The engine flow builds EAGLE-1 heads (fc reads 2 x hidden)."""
    if not facts.is_engine or facts.draft is None or facts.draft.head is None or facts.draft.head.generation != "v3":
        return None
    reason = f"{facts.draft.reference} is an EAGLE-3 head; the engine flow builds EAGLE-1 heads only"
    remedy = f"Use an EAGLE-1 head, or {facts.other_lane(Lane.TRTLLM_LLMAPI, Method.EAGLE3)}."
    return facts.violation("speculation.draft.checkpoint", reason, remedy)


def _refuse_missing_medusa_heads(facts: DeploymentFacts) -> Violation | None:
    if facts.method is not Method.MEDUSA or facts.draft is None or facts.draft.head is None:
        return None
    asked, there = facts.config.speculation.medusa.num_heads, facts.draft.head.num_heads
    if there is None or asked <= there:
        return None
    reason = f"{asked} heads, and {facts.draft.reference} holds {there}"
    return facts.violation("speculation.medusa.num_heads", reason, f"Write at most {there}.")


def _refuse_fp4(facts: DeploymentFacts) -> Iterator[Violation]:
    """NVFP4 and FP4 need Blackwell (docs/source/legacy/reference/support-matrix.md@17552a44)."""
    for role, key, info in facts.checkpoints():
        for part, name in _stored_as(info):
            if "fp4" in name and "mxfp4" not in name:
                reason = (
                    f"{role} {info.reference} has {part} in {name}: FP4 needs Blackwell, {facts.section.gpu} is Hopper"
                )
                yield facts.violation(key, reason, "Use the FP8 or the bfloat16 checkpoint of this model.")
                break


def _stored_as(info: CheckpointInfo) -> Iterator[tuple[str, str]]:
    quantization = info.quantization
    if quantization is not None:
        yield "weights", quantization.method.lower()
    cache = (quantization.kv_cache_dtype if quantization is not None else None) or info.kv_dtype
    if cache is not None:
        yield "key/value cache", cache.lower()


def _refuse_unreadable_weights(facts: DeploymentFacts) -> Iterator[Violation]:
    """Quantised weights, or a cache of the checkpoint's own, that the converter is not known to read."""
    if not facts.is_engine:
        return
    for role, key, info in facts.checkpoints():
        name, readable, converter = _quantization(info), _READ_BY_LLAMA_CONVERTER, "Llama's converter"
        if _is_fp4(name or ""):
            continue  # another rule's
        if facts.method in METHODS_WITH_HEAD:
            readable, converter = (), f"the converter of method {facts.method}"
        elif family(info).startswith("Qwen"):
            readable, converter = (), "Qwen's converter"
        has_fp8_cache = info.quantization is not None and (info.quantization.kv_cache_dtype or "").lower() == "fp8"
        what = f"{name} weights" if name is not None else "an fp8 key/value cache"
        if (name is not None and not _is_one_of(name, readable)) or (name is None and has_fp8_cache and not readable):
            known = ", ".join(readable) or "unquantised ones only"
            reason = f"{role} {info.reference} has {what}; {converter} is known to read {known}"
            yield facts.violation(key, reason, _remedy_for_weights(facts, name))


def _remedy_for_weights(facts: DeploymentFacts, name: str | None) -> str:
    if (other := facts.other_lane(Lane.TRTLLM_LLMAPI)) is None:
        return "Use its unquantised checkpoint."
    if name is None or _is_one_of(name, _RUN_BY_LLMAPI):
        return f"Use its unquantised checkpoint, or {other}, which reads this one as it is."
    return f"Use its unquantised checkpoint, or an FP8 one in {other}."


def _is_fp4(name: str) -> bool:
    """NVFP4 or FP4; MXFP4 is another matter, see `checkpoint_notes`."""
    return "fp4" in name and "mxfp4" not in name


def _refuse_quantising_twice(facts: DeploymentFacts) -> Violation | None:
    if facts.section.quantization == "none" or facts.target is None or (name := _quantization(facts.target)) is None:
        return None
    reason = f"{facts.section.quantization}, and target {facts.target.reference} is {name} already"
    return facts.violation("tensorrt_llm.quantization", reason, "Write none, or name the unquantised checkpoint.")


def _quantization(info: CheckpointInfo) -> str | None:
    """How the weights are quantised, in lower case; None for plain ones ("none": only the cache is quantised)."""
    if info.quantization is None or (name := info.quantization.method.lower()) == "none":
        return None
    return name


def _is_one_of(name: str, known: tuple[str, ...]) -> bool:
    return any(re.search(rf"(?<![a-z]){word}(?![a-z0-9])", name) for word in known)


def checkpoint_notes(facts: DeploymentFacts) -> Iterator[str]:
    """What no page answers about these weights: it may work, nobody has shown it."""
    for role, _, info in facts.checkpoints():
        name = _quantization(info)
        if name is None or not facts.is_llmapi or _is_one_of(name, _RUN_BY_LLMAPI):
            continue
        if "mxfp4" in name:
            # docs/source/blogs/tech_blog/blog9_Deploying_GPT_OSS_on_TRTLLM.md@04a2a261 runs it on H200 as W4A16 and
            # recommends moe_config.backend TRITON; the hardware matrix of quantization.md@09d4c79b leaves Hopper empty.
            yield f"{role} {info.reference}: MXFP4 on Hopper is described for GPT-OSS on H200 and missing in the matrix"
        elif not _is_fp4(name):
            yield f"{role} {info.reference}: no page says whether the LLM API runs {name} weights on Hopper"


CHECKPOINT_RULES: tuple[Refusal, ...] = (
    Refusal("eagle-head-generation", _refuse_old_head, "EAGLE v1/v2 checkpoints"),
    Refusal("eagle3-head-in-engine", _refuse_new_head),
    Refusal("medusa-heads-missing", _refuse_missing_medusa_heads),
    Refusal("fp4-on-hopper", _refuse_fp4, "NVFP4 / FP4 weights or KV, DFlash/DSpark attention TRTLLM"),
    Refusal("weights-not-read", _refuse_unreadable_weights),
    Refusal("quantised-already", _refuse_quantising_twice),
)
