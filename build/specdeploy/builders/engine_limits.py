"""What the converters and `trtllm-build` cannot do with the checkpoints of a deployment, found before anything runs.

Most rules are in `specdeploy.trtllm.refusals`; these need what only the builder knows.
"""

from collections.abc import Iterator, Mapping

from specdeploy.builders.engine_records import EngineInputs
from specdeploy.contract import Method
from specdeploy.errors import Violation
from specdeploy.trtllm.facts import ConvertScript
from specdeploy.trtllm.parallel_rules import tokens_per_step

# Which convert script reads a family: the model table of tensorrt_llm/models/__init__.py (1.0 line) maps these to its
# Llama and Qwen classes; examples/models/core/mixtral/README.md@10c1d594 converts Mixtral with Llama's script.
FAMILY_OF_ARCHITECTURE: Mapping[str, ConvertScript] = {
    "LlamaForCausalLM": ConvertScript.LLAMA,
    "MistralForCausalLM": ConvertScript.LLAMA,
    "MixtralForCausalLM": ConvertScript.LLAMA,
    "Qwen2ForCausalLM": ConvertScript.QWEN,
    "Qwen2MoeForCausalLM": ConvertScript.QWEN,
    "Qwen3ForCausalLM": ConvertScript.QWEN,
    "Qwen3MoeForCausalLM": ConvertScript.QWEN,
}
# `--model_type` of examples/medusa/convert_checkpoint.py@b93e14ca.
MEDUSA_TYPE_OF_ARCHITECTURE: Mapping[str, str] = {
    "LlamaForCausalLM": "llama",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
}
# tensorrt_llm/builder.py@008b2b8d asserts both.
MAX_EAGLE_ROWS, MAX_EAGLE_TOKENS = 512, 256


def find_unconvertible(inputs: EngineInputs, file: str) -> Iterator[Violation]:
    """Architectures that no script here is known to convert, and heads that only go with some of them."""
    for role, key, info in (
        ("target", "target.checkpoint", inputs.target),
        ("draft", "speculation.draft.checkpoint", inputs.draft if inputs.method is Method.DRAFT_MODEL else None),
    ):
        if info is not None and info.architecture not in FAMILY_OF_ARCHITECTURE:
            known = ", ".join(FAMILY_OF_ARCHITECTURE)
            reason = f"{role} {info.reference} is {info.architecture}, for which no convert script is known"
            yield Violation(file, key, reason, f"Use one of {known}, or lane trtllm_llmapi")
    if inputs.target is None:
        return
    architecture = inputs.target.architecture or "no architecture"
    allowed: Mapping[Method, tuple[str, ...]] = {
        Method.MEDUSA: tuple(MEDUSA_TYPE_OF_ARCHITECTURE),
        # Both scripts load the target as Llama: examples/eagle/convert_checkpoint.py@65b31db1, redrafter's @0e8b9484.
        Method.EAGLE: ("LlamaForCausalLM",),
        Method.REDRAFTER: ("LlamaForCausalLM",),
    }
    if inputs.method in allowed and architecture not in allowed[inputs.method]:
        reason = f"the {inputs.method} converter does not read {architecture} ({inputs.target.reference})"
        remedy = f"Use a target of {', '.join(allowed[inputs.method])}, or method draft_model or lookahead"
        yield Violation(file, "speculation.method", reason, remedy)


def find_build_limits(inputs: EngineInputs, file: str) -> Iterator[Violation]:
    """Sizes that a script refuses, and precisions that it takes and makes something wrong of."""
    if inputs.method is Method.EAGLE:
        yield from _find_eagle_limits(inputs, file)
    yield from _find_fp8_caches(inputs, file)
    experts = inputs.section.expert_parallel or 1
    if experts > 1 and inputs.section.quantization == "fp8":
        reason = f"{experts} with quantization fp8: quantize.py has no flag that shares out experts"
        remedy = "Write 1, or name a checkpoint that is fp8 already, which the convert script reads"
        yield Violation(file, "tensorrt_llm.expert_parallel", reason, remedy)


def _find_eagle_limits(inputs: EngineInputs, file: str) -> Iterator[Violation]:
    rows, tokens = inputs.config.serving.max_rows, tokens_per_step(inputs.config.speculation)
    if rows > MAX_EAGLE_ROWS:
        reason = f"{rows} exceeds the {MAX_EAGLE_ROWS} rows of an EAGLE engine"
        yield Violation(file, "serving.max_rows", reason, f"Write at most {MAX_EAGLE_ROWS}")
    if tokens > MAX_EAGLE_TOKENS:
        reason = f"{tokens} paths exceed the {MAX_EAGLE_TOKENS} draft tokens of an EAGLE engine"
        yield Violation(file, "speculation.eagle.choices", reason, f"Write at most {MAX_EAGLE_TOKENS} paths")
    head = None if inputs.draft is None else inputs.draft.head
    if inputs.draft is not None and head is not None and head.generation == "v1" and not head.has_own_embedding:
        # tensorrt_llm/models/eagle/weight.py@535c9cc6 reads it from the head, never from the target.
        reason = f"{inputs.draft.reference} has no embed_tokens.weight, which the EAGLE converter reads from the head"
        remedy = "Use a head that holds it, or copy it into the head from its target's checkpoint"
        yield Violation(file, "speculation.draft.checkpoint", reason, remedy)


def _find_fp8_caches(inputs: EngineInputs, file: str) -> Iterator[Violation]:
    """An fp8 cache beside weights that are not fp8 makes trtllm-build switch paged context attention off
    (tensorrt_llm/builder.py@008b2b8d), without which neither drafts nor reuse of the cache work."""
    for key, info in (
        ("target.checkpoint", inputs.target),
        ("speculation.draft.checkpoint", inputs.draft if inputs.method is Method.DRAFT_MODEL else None),
    ):
        stored = None if info is None else info.quantization
        if info is None or stored is None or (stored.kv_cache_dtype or "").lower() != "fp8":
            continue
        if "fp8" not in stored.method.lower():
            reason = f"{info.reference} keeps its cache in fp8 and its weights in {stored.method}"
            remedy = "Use a checkpoint with both in fp8, or one without an fp8 cache: else paged attention is lost"
            yield Violation(file, key, reason, remedy)
