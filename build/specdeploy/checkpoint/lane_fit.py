"""Which lane, in which versions, can serve a pair at all: rules with their reasons, nothing guessed.

TensorRT-LLM rules follow its release notes, supported-models and feature-combination pages, and the converters of its
releases up to 1.2.1. What those pages do not say is answered "unknown": such a pair may work, nobody has shown it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specdeploy.checkpoint.hf_config import MTP_ARCHITECTURES, SUPPORTED_ARCHITECTURES
from specdeploy.checkpoint.pair_embeddings import borrows_embedding, borrows_some_rows
from specdeploy.checkpoint.torch_heads import head_refusals
from specdeploy.checkpoint_contract import CheckpointInfo, LaneFit
from specdeploy.contract import Lane, Method, unsupported_reason

# What this project knows the flags and fields of starts at 1.0.
ENGINE_VERSIONS = "TensorRT-LLM 1.0 to 1.2.1"
LLMAPI_VERSIONS = "TensorRT-LLM >= 1.0"
UNKNOWN = "unknown: "

# Rows of the supported-models page of TensorRT-LLM's main branch: does the LLM API run EAGLE-3 / MTP for this family?
_LLMAPI_EAGLE3: Mapping[str, bool] = {
    "Qwen3Moe": True,
    "Llama4": True,
    "GptOss": True,
    "DeepseekV3": False,
    "DeepseekV32": False,
    "Glm4Moe": False,
    "Qwen3_5Moe": False,
    "NemotronH": False,
    "Gemma4": False,
    "Step3p7": False,
    "Qwen3Next": False,
    "Glm4MoeLite": False,
    "MiniMaxM3": False,
}
_LLMAPI_MTP: Mapping[str, bool] = {
    "DeepseekV3": True,
    "DeepseekV32": True,
    "Glm4Moe": True,
    "Qwen3_5Moe": True,
    "NemotronH": True,
    "Gemma4": True,
    "Step3p7": True,
    "Qwen3Moe": False,
    "Llama4": False,
    "GptOss": False,
    "Qwen3Next": False,
    "Glm4MoeLite": False,
    "MiniMaxM3": False,
}
# Release notes of 1.0 and 1.1 name these families for EAGLE-3 with two models.
_LLMAPI_EAGLE3_BY_NOTES = ("Llama", "Qwen3")
# `--model_type` choices of the Medusa converter.
_MEDUSA_FAMILIES = ("Llama", "Mixtral", "Qwen2")


@dataclass(frozen=True, slots=True)
class PairShape:
    """What decides about lanes: the target, its draft (None = the method needs none), and how the draft was cut."""

    target: CheckpointInfo
    draft: CheckpointInfo | None
    has_trimmed_draft_model: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    can_serve: bool
    reason: str
    versions: str | None = None


def fit_lanes(shape: PairShape, method: Method) -> tuple[LaneFit, ...]:
    """One answer per lane for `method`, the lanes in the order of `Lane`."""
    rules: Mapping[Lane, Callable[[PairShape, Method], _Answer]] = {
        Lane.TRTLLM_ENGINE: _fit_engine,
        Lane.TRTLLM_LLMAPI: _fit_llmapi,
        Lane.TORCH: _fit_torch,
    }
    fits = []
    for lane in Lane:
        answer = rules[lane](shape, method)
        fits.append(
            LaneFit(
                lane=lane,
                method=method,
                can_serve=answer.can_serve,
                reason=answer.reason,
                versions=answer.versions if answer.can_serve else None,
            )
        )
    return tuple(fits)


def is_unknown(fit: LaneFit) -> bool:
    """Whether the answer is that nobody has shown it, rather than no."""
    return not fit.can_serve and fit.reason.startswith(UNKNOWN)


def _family(info: CheckpointInfo) -> str:
    """`LlamaForCausalLM` -> `Llama`."""
    return (info.architecture or "").split("For", 1)[0]


def _no(reason: str) -> _Answer:
    return _Answer(can_serve=False, reason=reason)


def _unknown(reason: str) -> _Answer:
    return _Answer(can_serve=False, reason=UNKNOWN + reason)


def _refusal_of_weights(shape: PairShape, lane: Lane) -> _Answer | None:
    """What both TensorRT-LLM lanes refuse or nobody has shown on H100 and H200, whatever the method."""
    if shape.has_trimmed_draft_model:
        return _no(
            "no TensorRT-LLM version reads a draft model whose lm_head was trimmed (d2t beside a full embedding)"
        )
    if borrows_embedding(shape.draft):
        return _no("no TensorRT-LLM version lends a draft model its target's embeddings, and this one has none")
    if borrows_some_rows(shape.draft):
        return _no("no TensorRT-LLM version makes a head's lm_head of the target's rows that d2t names")
    unproven = None
    for role, info in (("target", shape.target), ("draft", shape.draft)):
        if info is None:
            continue
        weights = (info.quantization.method if info.quantization is not None else "").lower()
        cache = ((info.quantization.kv_cache_dtype if info.quantization is not None else None) or info.kv_dtype) or ""
        for part, dtype in (("weights are", weights), ("KV cache is", cache.lower())):
            if "mxfp4" in dtype:
                unproven = unproven or _judge_mxfp4(f"{role} {part} {dtype}", lane)
            elif "fp4" in dtype:
                return _no(f"{role} {part} {dtype}: FP4 needs Blackwell, H100 and H200 cannot run it")
    return unproven


def _judge_mxfp4(what: str, lane: Lane) -> _Answer:
    """MXFP4 is unpacked to 16 bit on Hopper where it runs at all.

    Source: TensorRT-LLM docs/source/blogs/tech_blog/blog9_Deploying_GPT_OSS_on_TRTLLM.md@04a2a261 (GPT-OSS on H200),
    against docs/source/features/quantization.md@09d4c79b, whose hardware matrix leaves Hopper empty.
    """
    if lane is Lane.TRTLLM_ENGINE:
        return _no(f"{what}: no converter of the engine flow has a flag for it")
    return _unknown(f"pages disagree whether H100 and H200 run it: {what}")


def _fit_engine(shape: PairShape, method: Method) -> _Answer:
    if (refusal := _refusal_of_weights(shape, Lane.TRTLLM_ENGINE)) is not None:
        return refusal
    family = _family(shape.target)
    if method is Method.DRAFT_MODEL:
        return _Answer(True, "speculative_decoding_mode draft_tokens_external, KV block reuse on both", ENGINE_VERSIONS)
    if method is Method.MEDUSA:
        if family in _MEDUSA_FAMILIES:
            return _Answer(True, "speculative_decoding_mode medusa, greedy acceptance only", ENGINE_VERSIONS)
        return _no(f"the Medusa converter knows {', '.join(_MEDUSA_FAMILIES)}, not {family or 'this architecture'}")
    if method is Method.EAGLE:
        if family == "Llama":
            return _Answer(True, "speculative_decoding_mode eagle (v1), pipeline parallelism 1", ENGINE_VERSIONS)
        return _unknown(
            f"the EAGLE converter is documented for Vicuna (Llama), not for {family or 'this architecture'}"
        )
    if method is Method.LOOKAHEAD:
        return _Answer(True, "speculative_decoding_mode lookahead_decoding, any decoder-only model", ENGINE_VERSIONS)
    if method is Method.REDRAFTER:
        return _unknown("the families of the ReDrafter converter are not listed")
    if method is Method.NGRAM:
        return _no("prompt lookup exists there only in the Python example runner, not behind Triton")
    if method is Method.EAGLE3:
        return _no("the engine flow builds EAGLE-1 heads only; EAGLE-3 heads load in lane trtllm_llmapi")
    return _no(f"the engine flow has no method {method}")


def _fit_llmapi(shape: PairShape, method: Method) -> _Answer:
    if (refusal := _refusal_of_weights(shape, Lane.TRTLLM_LLMAPI)) is not None:
        return refusal
    if method is Method.EAGLE3:
        return _fit_llmapi_eagle3(_family(shape.target))
    if method is Method.MTP:
        return _fit_llmapi_mtp(shape.target)
    if method is Method.DRAFT_MODEL:
        reason = "decoding_type DraftTarget (Draft_Target from 1.3 on), any model with the same tokenizer"
        return _Answer(True, reason, LLMAPI_VERSIONS)
    if method is Method.NGRAM:
        reason = "decoding_type NGram, overlap scheduler off, max_matching_ngram_size written out"
        return _Answer(True, reason, LLMAPI_VERSIONS)
    if method is Method.EAGLE:
        return _no("EAGLE-1 and EAGLE-2 heads do not load in the LLM API; its decoding_type Eagle means EAGLE-3")
    return _no(f"the LLM API (PyTorch flow) has no method {method}")


def _fit_llmapi_eagle3(family: str) -> _Answer:
    if family in _LLMAPI_EAGLE3:
        if _LLMAPI_EAGLE3[family]:
            reason = f"EAGLE-3 is listed for {family}, decoding_type Eagle (Eagle3 from 1.3 on)"
            return _Answer(True, reason, "TensorRT-LLM main branch; check the installed release")
        return _no(f"the supported-models page says no to EAGLE-3 for {family}")
    if family in _LLMAPI_EAGLE3_BY_NOTES:
        reason = f"release notes name {family} models for EAGLE-3, decoding_type Eagle (Eagle3 from 1.3 on)"
        return _Answer(True, reason, LLMAPI_VERSIONS)
    return _unknown(f"no page says whether EAGLE-3 runs for {family or 'this architecture'}")


def _fit_llmapi_mtp(target: CheckpointInfo) -> _Answer:
    if not target.num_mtp_layers:
        return _no("the target holds no MTP module")
    family = _family(target)
    if family not in _LLMAPI_MTP:
        return _unknown(f"no page says whether MTP runs for {family or 'this architecture'}")
    if not _LLMAPI_MTP[family]:
        return _no(f"the supported-models page says no to MTP for {family}")
    versions = LLMAPI_VERSIONS if family == "DeepseekV3" else "TensorRT-LLM main branch; check the installed release"
    return _Answer(True, f"MTP is listed for {family}", versions)


def _fit_torch(shape: PairShape, method: Method) -> _Answer:
    if reason := unsupported_reason(Lane.TORCH, method):
        return _no(reason)
    for role, info in (("target", shape.target), ("draft", shape.draft)):
        if info is None:
            continue
        if info.head is not None:
            if refusals := head_refusals(info, info.head):
                return _no("; ".join(refusals))
        elif info.architecture not in SUPPORTED_ARCHITECTURES:
            return _no(f"{role} architecture {info.architecture} is none of {', '.join(SUPPORTED_ARCHITECTURES)}")
        if info.quantization is not None:
            return _no(
                f"{role} weights are quantised ({info.quantization.method}); the runtime computes in 16 or 32 bit"
            )
    if method is Method.MTP and (reason := _refusal_of_mtp(shape.target)):
        return _no(reason)
    return _Answer(True, "runs on any CPU and any CUDA GPU", "this version of specdeploy")


def _refusal_of_mtp(target: CheckpointInfo) -> str | None:
    if not target.num_mtp_layers:
        return "the target holds no MTP module"
    if target.architecture not in MTP_ARCHITECTURES:
        return f"the runtime knows the MTP layers of {', '.join(MTP_ARCHITECTURES)}, not of {target.architecture}"
    if target.num_mtp_layers > 1:
        return f"the target holds {target.num_mtp_layers} MTP layers; the runtime drafts with one"
    return None
