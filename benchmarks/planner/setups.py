"""How each series is predicted: with kernel tables where shapes and device are known, else measured as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shapes import (
    DEEPSEEK_R1_FP4,
    GPT_OSS_120B,
    LLAMA_2_7B,
    LLAMA_3_8B,
    QWEN3_8B,
    TINYLLAMA,
    draft_model,
    eagle,
    eagle3,
    mtp,
)

from specdeploy.contract import Method
from specdeploy.planner.draft_shape import DraftShape
from specdeploy.planner.model_shape import ModelShape
from specdeploy.planner_contract import DraftForm


class TauRule(StrEnum):
    """Where tokens per step come from."""

    PUBLISHED = "as published"
    PER_ARM = "one per drafter, fitted"
    ALPHA = "one acceptance per token, fitted"
    DECAYING = "survivals of two parameters, fitted"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Setup:
    """One series. `kind` is a key of the goals; `target` None = measured as a whole. By arm: its `drafts` and
    `methods`; `names` of the calibrations that are kept in configs/calibrations. `plain_of`: the series that says what
    plain steps take where this one published ratios alone."""

    series: str
    title: str
    kind: str
    engine: str
    hardware: str
    tau: TauRule
    methods: Mapping[str, Method] = field(default_factory=dict)
    target: ModelShape | None = None
    target_reference: str | None = None
    drafts: Mapping[str, DraftShape] = field(default_factory=dict)
    tensor_parallel: int = 1
    assumed_tau: float | None = None
    plain_of: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)


_EAGLES = {"EAGLE": Method.EAGLE, "EAGLE-3": Method.EAGLE3}
_EAGLE_HEADS = {"EAGLE": eagle(LLAMA_3_8B), "EAGLE-3": eagle3(LLAMA_3_8B)}
_LLAMA_8B = "meta-llama/Llama-3.1-8B-Instruct"

SETUPS: tuple[Setup, ...] = (
    Setup(
        series="vllm-h100-8b",
        title="Llama-3.1-8B, one H100, vLLM, one request, K 2 to 7",
        kind="tpot",
        engine="vllm",
        hardware="h100-sxm",
        tau=TauRule.PUBLISHED,
        methods=_EAGLES,
        target=LLAMA_3_8B,
        target_reference=_LLAMA_8B,
        drafts=_EAGLE_HEADS,
        names={"EAGLE": "vllm-h100-eagle", "EAGLE-3": "vllm-h100-eagle3"},
    ),
    Setup(
        series="trtllm-r1-mtp",
        title="DeepSeek-R1 fp4, eight B200, TensorRT-LLM, one request, K 0 to 5",
        kind="tpot",
        engine="tensorrt_llm",
        hardware="b200-sxm",
        tau=TauRule.PUBLISHED,
        methods={"MTP": Method.MTP},
        target=DEEPSEEK_R1_FP4,
        target_reference="nvidia/DeepSeek-R1-FP4",
        drafts={"MTP": mtp(DEEPSEEK_R1_FP4)},
        tensor_parallel=8,
        names={"MTP": "tensorrt-llm-b200-mtp"},
    ),
    Setup(
        series="sglang-h100-8b",
        title="Llama-3.1-8B, one H100, SGLang, chain of 3, 2 to 64 requests",
        kind="throughput",
        engine="sglang",
        hardware="h100-sxm",
        tau=TauRule.PUBLISHED,
        methods=_EAGLES,
        target=LLAMA_3_8B,
        target_reference=_LLAMA_8B,
        drafts=_EAGLE_HEADS,
        plain_of="sglang-h100-8b",
        names={"EAGLE": "sglang-h100-eagle", "EAGLE-3": "sglang-h100-eagle3"},
    ),
    Setup(
        series="vllm-a100-qwen3-8b",
        title="Qwen3-8B, one A100, vLLM of 2026, 2 to 30 requests",
        kind="throughput",
        engine="vllm",
        hardware="a100-sxm-80gb",
        tau=TauRule.PER_ARM,
        methods={"EAGLE-3": Method.EAGLE3, "P-EAGLE": Method.EAGLE3},
        target=QWEN3_8B,
        target_reference="Qwen/Qwen3-8B",
        drafts={"EAGLE-3": eagle3(QWEN3_8B), "P-EAGLE": eagle3(QWEN3_8B, DraftForm.BLOCK)},
        names={"EAGLE-3": "vllm-a100-eagle3"},
    ),
    Setup(
        series="vllm-a100-8b",
        title="Llama-3.1-8B, one A100, vLLM of 2025, chain of 2, 2 to 56 requests",
        kind="throughput",
        engine="vllm",
        hardware="a100-sxm-80gb",
        tau=TauRule.PUBLISHED,
        methods=_EAGLES,
        target=LLAMA_3_8B,
        target_reference=_LLAMA_8B,
        drafts=_EAGLE_HEADS,
        plain_of="vllm-a100-qwen3-8b",
    ),
    Setup(
        series="vllm-h100-gpt-oss-120b",
        title="gpt-oss-120b, one H100, vLLM, 8 requests, K 2 to 6",
        kind="throughput",
        engine="vllm",
        hardware="h100-sxm",
        tau=TauRule.PUBLISHED,
        methods={"EAGLE-3 chain": Method.EAGLE3},
        target=GPT_OSS_120B,
        target_reference="openai/gpt-oss-120b",
        drafts={"EAGLE-3 chain": eagle3(GPT_OSS_120B)},
    ),
    Setup(
        series="magicdec-7b",
        title="Llama-2-7B with TinyLlama, eight A100, contexts of 8000 and 32000",
        kind="throughput",
        engine="magicdec",
        hardware="a100-sxm-80gb",
        tau=TauRule.ALPHA,
        methods={"draft_model": Method.DRAFT_MODEL},
        target=LLAMA_2_7B,
        drafts={"draft_model": draft_model(TINYLLAMA)},
        tensor_parallel=8,
        plain_of="gpt-fast-a100",
    ),
    Setup(
        series="v4-pro",
        title="DeepSeek-V4-Pro, eight B300, vLLM, block of K 0 to 7, 1 to 256 requests",
        kind="throughput",
        engine="vllm",
        hardware="b300",
        tau=TauRule.DECAYING,
    ),
    Setup(
        series="vllm-a100-qwen3-30b-moe",
        title="Qwen3-30B-A3B, two A100, vLLM, 3 to 50 requests",
        kind="throughput",
        engine="vllm",
        hardware="a100-sxm-80gb",
        tau=TauRule.PER_ARM,
    ),
    Setup(
        series="vllm-a100-gemma-31b",
        title="Gemma-4-31B, two A100, vLLM, 2 to 41 requests",
        kind="throughput",
        engine="vllm",
        hardware="a100-sxm-80gb",
        tau=TauRule.PER_ARM,
    ),
    Setup(
        series="vllm-b200-gpt-oss-20b",
        title="gpt-oss-20b, one B200, vLLM, best K, 1 to 64 requests; other tasks held out",
        kind="throughput",
        engine="vllm",
        hardware="b200-sxm",
        tau=TauRule.PUBLISHED,
    ),
    Setup(
        series="sglang-h200-30b-moe",
        title="GLM-4.7-Flash (30B-A3B), one H200, SGLang, tree of 6, 1 and 32 requests; other tasks held out",
        kind="throughput",
        engine="sglang",
        hardware="h200-sxm",
        tau=TauRule.PUBLISHED,
    ),
    Setup(
        series="vllm-mi355x-kimi-k2.5",
        title="Kimi-K2.5, four MI355X, vLLM, K 3, 4 to 64 requests",
        kind="throughput",
        engine="vllm",
        hardware="mi355x",
        tau=TauRule.ASSUMED,
        assumed_tau=2.69,
    ),
    Setup(
        series="vllm-mi355x-minimax-m2.5",
        title="MiniMax-M2.5, four MI355X, vLLM, K 3, 4 to 64 requests",
        kind="throughput",
        engine="vllm",
        hardware="mi355x",
        tau=TauRule.ASSUMED,
        assumed_tau=2.69,
    ),
    Setup(
        series="tilert-b200-glm-5.1",
        title="GLM-5.1 fp8, eight B200, TileRT, one request, contexts of 1K to 192K",
        kind="tpot",
        engine="tilert",
        hardware="b200-sxm",
        tau=TauRule.ASSUMED,
        assumed_tau=3.2,
    ),
)
