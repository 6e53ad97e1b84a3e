"""Deployments of the TensorRT-LLM lanes in memory, and for each rule of refusals one it forbids and one it does not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, HeadFacts, HeadLayout, MoeShape, Quantization
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Lane, Method
from specdeploy.errors import Violation
from specdeploy.trtllm.refusals import REFUSALS, DeploymentFacts
from specdeploy.trtllm.versions import parse_version

FILE = "configs/deployments/tiny.yaml"

SPECULATION: Mapping[Method, dict[str, Any]] = {
    Method.DRAFT_MODEL: {"draft": {"checkpoint": "draft"}, "max_draft_len": 4},
    Method.EAGLE3: {"draft": {"checkpoint": "head"}, "max_draft_len": 3},
    Method.EAGLE: {"draft": {"checkpoint": "head"}, "max_draft_len": 4},
    Method.MEDUSA: {"draft": {"checkpoint": "head"}, "max_draft_len": 4},
    Method.REDRAFTER: {"draft": {"checkpoint": "head"}, "max_draft_len": 5},
    Method.LOOKAHEAD: {"max_draft_len": 83},
    Method.NGRAM: {"max_draft_len": 4},
    Method.MTP: {"max_draft_len": 1},
}
ENGINE_METHODS = (Method.DRAFT_MODEL, Method.MEDUSA, Method.EAGLE, Method.REDRAFTER, Method.LOOKAHEAD)
LLMAPI_METHODS = (Method.EAGLE3, Method.DRAFT_MODEL, Method.NGRAM, Method.MTP)


def info(**facts: object) -> CheckpointInfo:
    shape = {"num_heads": 32, "num_kv_heads": 8, "architecture": "LlamaForCausalLM"}
    return CheckpointInfo.model_validate(
        {"reference": "m", "folder": "m", "kind": CheckpointKind.CAUSAL_LM} | shape | facts
    )


def head(generation: str, **facts: object) -> CheckpointInfo:
    kind = {"v1": CheckpointKind.EAGLE, "v3": CheckpointKind.EAGLE3, "medusa": CheckpointKind.MEDUSA}[generation]
    parts = HeadFacts.model_validate({"layout": HeadLayout.SAFEAILAB, "generation": generation} | facts)
    return info(reference="h", kind=kind, head=parts)


def quantised(method: str, cache: str | None = None, **facts: object) -> CheckpointInfo:
    return info(quantization=Quantization(method=method, kv_cache_dtype=cache, source="config.json"), **facts)


QWEN = info(architecture="Qwen2ForCausalLM")
MOE = info(moe=MoeShape(num_experts=8, num_experts_per_token=2, num_moe_layers=4, num_dense_layers=0))


@dataclass(frozen=True)
class Case:
    """A deployment: changes of the sections, and what is known of the checkpoints."""

    method: Method = Method.DRAFT_MODEL
    engine: bool = True
    version: str = "1.2.1"
    section: dict[str, Any] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)
    serving: dict[str, Any] = field(default_factory=dict)
    segment: dict[str, Any] = field(default_factory=dict)
    target: CheckpointInfo | None = None
    draft: CheckpointInfo | None = None

    def config(self) -> DeploymentConfig:
        values = {
            "schema_version": 1,
            "name": "tiny",
            "lane": Lane.TRTLLM_ENGINE if self.engine else Lane.TRTLLM_LLMAPI,
            "dtype": "bfloat16",
            "target": {"checkpoint": "target"},
            "speculation": {"method": self.method} | SPECULATION[self.method] | self.speculation,
            "serving": {"max_seq_len": 4096} | self.serving,
            "tensorrt_llm": {"version": self.version, "gpu": "h100"} | self.section,
            "traffic": {
                "expected_concurrency": 1,
                "segments": [{"name": "chat", "prompts": "prompts.jsonl"} | self.segment],
            },
        }
        return DeploymentConfig.model_validate(values)

    def facts(self) -> DeploymentFacts:
        return DeploymentFacts(self.config(), parse_version(self.version), self.target, self.draft, FILE)

    def refusals(self) -> dict[str, Violation]:
        """What forbids it, by the code of the rule."""
        facts = self.facts()
        return {rule.code: found[0] for rule in REFUSALS if (found := rule.find(facts))}


@dataclass(frozen=True)
class Pair:
    """A deployment that a rule forbids, for the key and words given, and one that it does not."""

    bad: Case
    key: str
    words: str
    good: Case


def llmapi(method: Method = Method.NGRAM, **changes: Any) -> Case:
    return Case(method=method, engine=False, **changes)


SWAP = {"plain_instance": "swap"}
OFF = {"speculate": False, "off_reason": "too short"}
BY_LOAD = [{"min_in_flight": 1, "max_in_flight": 4, "draft_len": 4}]
PARTIAL = [{"min_in_flight": 1, "max_in_flight": None, "draft_len": 2}]

PAIRS: Mapping[str, tuple[Pair, ...]] = {
    "engine-flow-removed": (
        Pair(Case(version="1.3.0"), "tensorrt_llm.version", "no engine flow", Case(version="1.2.1")),
        Pair(Case(version="1.3.0rc1"), "tensorrt_llm.version", "no engine flow", llmapi(version="1.3.0")),
    ),
    "version-unknown": (
        Pair(Case(version="0.21.0"), "tensorrt_llm.version", "older than 1.0.0", Case(version="1.0.0")),
        Pair(llmapi(version="0.20.0"), "tensorrt_llm.version", "older than 1.0.0", llmapi(version="1.0.3.2510")),
    ),
    "engine-pipeline": (
        Pair(
            Case(Method.EAGLE, section={"pipeline_parallel": 2}),
            "tensorrt_llm.pipeline_parallel",
            "its converter asserts 1",
            Case(Method.LOOKAHEAD, section={"pipeline_parallel": 2}),
        ),
        Pair(
            Case(Method.REDRAFTER, section={"pipeline_parallel": 2}),
            "tensorrt_llm.pipeline_parallel",
            "no --pp_size",
            Case(Method.REDRAFTER, section={"tensor_parallel": 2}),
        ),
    ),
    "engine-constrained": (
        Pair(
            Case(speculation={"constrained": "on"}),
            "speculation.constrained",
            "restarts the grammar",
            Case(),
        ),
        Pair(
            Case(Method.LOOKAHEAD, speculation={"constrained": "canary"}),
            "speculation.constrained",
            "canary: guided decoding with speculation",
            llmapi(speculation={"constrained": "canary"}),
        ),
    ),
    "engine-guides": (
        *(
            Pair(
                Case(method, section={"guided_decoding_backend": backend}),
                "tensorrt_llm.guided_decoding_backend",
                f"{backend}: no build of lane trtllm_engine writes what its backend needs",
                llmapi(section={"guided_decoding_backend": backend}),
            )
            for method in ENGINE_METHODS
            for backend in ("xgrammar", "llguidance")
        ),
    ),
    "engine-kv-reuse": (
        Pair(
            Case(section={"kv_cache_reuse": False}),
            "tensorrt_llm.kv_cache_reuse",
            "draft and target engine both need it",
            Case(Method.LOOKAHEAD, section={"kv_cache_reuse": False}),
        ),
    ),
    "engine-partial-draft-len": (
        Pair(
            Case(Method.MEDUSA, speculation={"draft_len_by_in_flight": PARTIAL}),
            "speculation.draft_len_by_in_flight[0].draft_len",
            "2 with method medusa: an engine drafts its 4 tokens or none",
            Case(speculation={"draft_len_by_in_flight": PARTIAL}),
        ),
        Pair(
            Case(Method.LOOKAHEAD, segment={"draft_len_by_in_flight": PARTIAL}),
            "traffic.segments[0].draft_len_by_in_flight[0].draft_len",
            "2 with method lookahead",
            Case(Method.MEDUSA, segment={"draft_len_by_in_flight": BY_LOAD}),
        ),
    ),
    "default-tree-depth": (
        Pair(
            Case(Method.MEDUSA, speculation={"medusa": {"num_heads": 3}, "max_draft_len": 3}),
            "speculation.medusa.choices",
            "4 tokens deep and does not fit 3 heads",
            Case(Method.MEDUSA, speculation={"medusa": {"num_heads": 3, "choices": [[0]]}, "max_draft_len": 1}),
        ),
        Pair(
            Case(Method.EAGLE, speculation={"eagle": {"num_layers": 5}, "max_draft_len": 5}),
            "speculation.eagle.choices",
            "does not fit num_layers 5",
            Case(Method.EAGLE),
        ),
    ),
    "draft-tensor-parallel": (
        Pair(
            Case(section={"draft_tensor_parallel": 2}),
            "tensorrt_llm.draft_tensor_parallel",
            "2 GPUs for the draft and 1 for the target",
            Case(section={"draft_tensor_parallel": 1, "tensor_parallel": 4}),
        ),
        Pair(
            llmapi(Method.DRAFT_MODEL, section={"draft_tensor_parallel": 1}),
            "tensorrt_llm.draft_tensor_parallel",
            "only method draft_model of lane trtllm_engine",
            llmapi(Method.DRAFT_MODEL),
        ),
    ),
    "engine-quantised-heads": (
        Pair(
            Case(Method.MEDUSA, section={"quantization": "fp8"}),
            "tensorrt_llm.quantization",
            "takes the target without its head",
            Case(section={"quantization": "fp8"}, target=QWEN),
        ),
    ),
    "engine-cache-without-scales": (
        Pair(
            Case(section={"kv_cache_dtype": "fp8"}, target=info()),
            "tensorrt_llm.kv_cache_dtype",
            "neither target m nor the build brings the scales",
            Case(section={"kv_cache_dtype": "fp8", "quantization": "fp8"}, target=info()),
        ),
        Pair(
            Case(section={"kv_cache_dtype": "fp8"}, target=quantised("fp8")),
            "tensorrt_llm.kv_cache_dtype",
            "neither target m",
            Case(section={"kv_cache_dtype": "fp8"}, target=quantised("fp8", "fp8")),
        ),
    ),
    "llmapi-pipeline": (
        Pair(
            llmapi(section={"pipeline_parallel": 2}),
            "tensorrt_llm.pipeline_parallel",
            "does not combine speculation with pipeline parallelism",
            Case(section={"pipeline_parallel": 2}),
        ),
    ),
    "llmapi-constrained": (
        Pair(
            llmapi(version="1.0.3.2510", speculation={"constrained": "on"}),
            "speculation.constrained",
            "TensorRT-LLM 1.0.3.2510 raises ValueError",
            llmapi(version="1.0.3.2510", section={"guided_decoding_backend": "xgrammar"}),
        ),
        Pair(
            llmapi(version="1.2.1", speculation={"constrained": "canary"}),
            "speculation.constrained",
            "canary: this lane does not draft for requests with guided decoding",
            llmapi(version="1.2.1", section={"guided_decoding_backend": "xgrammar"}),
        ),
    ),
    "no-per-request-switch": (
        Pair(
            llmapi(section=SWAP, segment=OFF),
            "traffic.segments[0].speculate",
            "method ngram in lane trtllm_llmapi has no switch per request",
            llmapi(segment=OFF),
        ),
        Pair(
            Case(Method.MEDUSA, section=SWAP, segment=OFF),
            "traffic.segments[0].speculate",
            "method medusa in lane trtllm_engine has no switch",
            Case(section=SWAP, segment=OFF),
        ),
        Pair(
            llmapi(section=SWAP, segment={"draft_len_by_in_flight": BY_LOAD}),
            "traffic.segments[0].draft_len_by_in_flight",
            "a K of its own",
            llmapi(section=SWAP, speculation={"draft_len_by_in_flight": BY_LOAD}),
        ),
        Pair(
            Case(Method.EAGLE, section=SWAP, speculation={"draft_len_by_in_flight": BY_LOAD}),
            "speculation.draft_len_by_in_flight",
            "drafts at any load",
            Case(Method.EAGLE, section=SWAP, speculation={"draft_len_by_in_flight": BY_LOAD}, serving={"max_rows": 4}),
        ),
    ),
    "guides-need-plain-instance": (
        Pair(
            llmapi(section=SWAP | {"guided_decoding_backend": "xgrammar"}),
            "tensorrt_llm.guided_decoding_backend",
            "guided requests would be drafted for",
            llmapi(section={"guided_decoding_backend": "xgrammar"}),
        ),
    ),
    "llmapi-partial-draft-len": (
        Pair(
            llmapi(speculation={"draft_len_by_in_flight": PARTIAL}),
            "speculation.draft_len_by_in_flight[0].draft_len",
            "the instance that drafts has K 4, the other 0",
            llmapi(section=SWAP, speculation={"draft_len_by_in_flight": PARTIAL}),
        ),
    ),
    "llmapi-quantization": (
        Pair(
            llmapi(section={"quantization": "fp8"}),
            "tensorrt_llm.quantization",
            "reads quantisation from the checkpoint",
            Case(section={"quantization": "fp8"}),
        ),
    ),
    "llmapi-ngram-minimum": (
        Pair(
            llmapi(speculation={"ngram": {"min_matching_ngram_size": 2}}),
            "speculation.ngram.min_matching_ngram_size",
            "has no such limit",
            llmapi(speculation={"ngram": {"max_matching_ngram_size": 5}}),
        ),
    ),
    "mtp-module-missing": (
        Pair(
            llmapi(Method.MTP, target=info()),
            "speculation.method",
            "target m holds no MTP module",
            llmapi(Method.MTP, target=info(num_mtp_layers=1)),
        ),
    ),
    "eagle-head-generation": (
        Pair(
            llmapi(Method.EAGLE3, draft=head("v1")),
            "speculation.draft.checkpoint",
            "h is an EAGLE-1 or EAGLE-2 head",
            llmapi(Method.EAGLE3, draft=head("v3")),
        ),
    ),
    "eagle3-head-in-engine": (
        Pair(
            Case(Method.EAGLE, draft=head("v3")),
            "speculation.draft.checkpoint",
            "h is an EAGLE-3 head",
            Case(Method.EAGLE, draft=head("v1")),
        ),
    ),
    "medusa-heads-missing": (
        Pair(
            Case(Method.MEDUSA, draft=head("medusa", num_heads=3)),
            "speculation.medusa.num_heads",
            "4 heads, and h holds 3",
            Case(Method.MEDUSA, draft=head("medusa", num_heads=5)),
        ),
    ),
    "fp4-on-hopper": (
        Pair(
            llmapi(target=quantised("modelopt NVFP4")),
            "target.checkpoint",
            "target m has weights in modelopt nvfp4: FP4 needs Blackwell, h100 is Hopper",
            llmapi(target=quantised("mxfp4")),
        ),
        Pair(
            Case(draft=quantised("none", "nvfp4")),
            "speculation.draft.checkpoint",
            "draft m has key/value cache in nvfp4",
            Case(draft=quantised("fp8", "fp8")),
        ),
        Pair(
            Case(target=info(kv_dtype="FP4")),
            "target.checkpoint",
            "key/value cache in fp4",
            Case(target=info(kv_dtype="bfloat16")),
        ),
    ),
    "weights-not-read": (
        Pair(
            Case(target=quantised("bitsandbytes")),
            "target.checkpoint",
            "Llama's converter is known to read fp8, gptq, awq",
            Case(target=quantised("awq")),
        ),
        Pair(
            Case(target=quantised("fp8", architecture="Qwen2ForCausalLM")),
            "target.checkpoint",
            "m has fp8 weights; Qwen's converter is known to read unquantised ones only",
            llmapi(target=quantised("fp8", architecture="Qwen2ForCausalLM")),
        ),
        Pair(
            Case(draft=quantised("gptq", architecture="Qwen2ForCausalLM")),
            "speculation.draft.checkpoint",
            "draft m has gptq weights",
            Case(draft=quantised("gptq")),
        ),
        Pair(
            Case(target=quantised("none", "fp8", architecture="Qwen2ForCausalLM")),
            "target.checkpoint",
            "an fp8 key/value cache",
            Case(target=quantised("none", "fp8")),
        ),
        Pair(
            Case(Method.MEDUSA, target=quantised("fp8")),
            "target.checkpoint",
            "the converter of method medusa",
            Case(Method.LOOKAHEAD, target=quantised("compressed-tensors fp8")),
        ),
        Pair(Case(target=quantised("mxfp4")), "target.checkpoint", "mxfp4 weights", llmapi(target=quantised("mxfp4"))),
    ),
    "quantised-already": (
        Pair(
            Case(section={"quantization": "fp8"}, target=quantised("fp8")),
            "tensorrt_llm.quantization",
            "target m is fp8 already",
            Case(section={"quantization": "fp8"}, target=quantised("none", "fp8")),
        ),
    ),
    "gpus-beyond-nodes": (
        Pair(
            Case(section={"tensor_parallel": 16}),
            "tensorrt_llm.tensor_parallel",
            "is 16 GPUs, num_nodes 1 has 8 at 8 each",
            Case(section={"tensor_parallel": 16, "num_nodes": 2}),
        ),
        Pair(
            Case(Method.LOOKAHEAD, section={"tensor_parallel": 8, "pipeline_parallel": 2}),
            "tensorrt_llm.pipeline_parallel",
            "is 16 GPUs",
            Case(Method.LOOKAHEAD, section={"tensor_parallel": 4, "pipeline_parallel": 2}),
        ),
    ),
    "uneven-nodes": (
        Pair(
            Case(section={"tensor_parallel": 8, "num_nodes": 3}),
            "tensorrt_llm.num_nodes",
            "8 GPUs cannot be shared evenly by 3 nodes",
            Case(section={"tensor_parallel": 8, "num_nodes": 2}),
        ),
        Pair(Case(section={"num_nodes": 2}), "tensorrt_llm.num_nodes", "1 GPUs cannot be shared", Case()),
    ),
    "engines-on-several-nodes": (
        Pair(
            Case(section={"tensor_parallel": 16, "num_nodes": 2}),
            "tensorrt_llm.num_nodes",
            "2 nodes and two engines",
            Case(Method.LOOKAHEAD, section={"tensor_parallel": 16, "num_nodes": 2}),
        ),
        Pair(
            Case(Method.MEDUSA, section={"tensor_parallel": 16, "num_nodes": 2}),
            "tensorrt_llm.num_nodes",
            "spawned on one node only",
            Case(Method.MEDUSA, section=SWAP | {"tensor_parallel": 16, "num_nodes": 2}),
        ),
    ),
    "expert-parallel": (
        Pair(
            llmapi(section={"tensor_parallel": 8, "expert_parallel": 3}, target=MOE),
            "tensorrt_llm.expert_parallel",
            "3 does not divide tensor_parallel 8",
            llmapi(section={"tensor_parallel": 8, "expert_parallel": 4}, target=MOE),
        ),
        Pair(
            llmapi(section={"tensor_parallel": 8, "expert_parallel": 2}, target=info()),
            "tensorrt_llm.expert_parallel",
            "target m has no experts",
            llmapi(section={"tensor_parallel": 8, "expert_parallel": 1}, target=info()),
        ),
    ),
    "target-heads": (
        Pair(
            Case(section={"tensor_parallel": 5}, target=info()),
            "tensorrt_llm.tensor_parallel",
            "5 does not divide the 32 attention heads of target m",
            Case(section={"tensor_parallel": 8}, target=info(num_kv_heads=2)),
        ),
        Pair(
            llmapi(section={"tensor_parallel": 6}, target=info(num_heads=24, num_kv_heads=4)),
            "tensorrt_llm.tensor_parallel",
            "6 and the 4 key/value heads of target m: neither divides the other",
            llmapi(section={"tensor_parallel": 6}, target=info(num_heads=24, num_kv_heads=12)),
        ),
    ),
    "draft-heads": (
        Pair(
            Case(section={"tensor_parallel": 8}, draft=info(num_heads=14, num_kv_heads=2)),
            "tensorrt_llm.tensor_parallel",
            "8 does not divide the 14 attention heads of draft m",
            Case(section={"tensor_parallel": 8, "draft_tensor_parallel": 2}, draft=info(num_heads=14, num_kv_heads=2)),
        ),
        Pair(
            Case(section={"tensor_parallel": 8, "draft_tensor_parallel": 4}, draft=info(num_heads=14, num_kv_heads=2)),
            "tensorrt_llm.draft_tensor_parallel",
            "4 does not divide the 14 attention heads",
            Case(section={"tensor_parallel": 8, "draft_tensor_parallel": 1}, draft=info(num_heads=14, num_kv_heads=2)),
        ),
    ),
    "step-beyond-limit": (
        Pair(
            Case(Method.MEDUSA, section={"max_num_tokens": 63}),
            "tensorrt_llm.max_num_tokens",
            "63 is less than the 64 tokens that verify one draft",
            Case(Method.MEDUSA, section={"max_num_tokens": 64}),
        ),
    ),
    "draft-beyond-context": (
        Pair(
            Case(Method.LOOKAHEAD, serving={"max_seq_len": 80}, segment={"max_tokens": 8}),
            "serving.max_seq_len",
            "80 leaves no room beside the 83 tokens of one draft",
            Case(Method.LOOKAHEAD, serving={"max_seq_len": 84}, segment={"max_tokens": 8}),
        ),
    ),
}
