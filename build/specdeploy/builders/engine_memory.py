"""Memory of the engines of a deployment: weights with their heads, caches, and whether one request fits at all."""

from collections.abc import Sequence

from specdeploy.builders.engine_records import EngineInputs
from specdeploy.config.schema import Gpu, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import EngineRecord, MemoryBudget
from specdeploy.errors import Violation
from specdeploy.planner.hardware import HARDWARE
from specdeploy.planner.loaded_models import is_draft_pair, loaded_models
from specdeploy.planner.memory import budget_memory, describe_budget
from specdeploy.trtllm.rule import METHODS_WITH_HEAD
from specdeploy.units import format_bytes


def plan_memory(inputs: EngineInputs, engines: tuple[EngineRecord, ...]) -> MemoryBudget | None:
    """The budget of all engines on one GPU; None where a checkpoint is not on this machine.

    Raises `CheckpointError` when the files of a checkpoint do not say what is needed.
    """
    needs_draft = inputs.config.speculation.draft is not None
    if inputs.target is None or (needs_draft and inputs.draft is None):
        return None
    section, config = inputs.section, inputs.config
    return budget_memory(
        HARDWARE[section.gpu],
        loaded_models(config, section, inputs.target, inputs.draft),
        kv_cache_fraction=section.kv_cache_fraction,
        max_num_tokens=max(engine.max_num_tokens for engine in engines),
        max_seq_len=config.serving.max_seq_len,
        max_rows=config.serving.max_rows,
        is_draft_pair=is_draft_pair(config, inputs.draft),
        max_draft_tokens=max(engine.max_draft_len for engine in engines),
    )


def find_misfit(inputs: EngineInputs, memory: MemoryBudget, file: str) -> list[Violation]:
    """A violation with every line of the budget where not even one request of full length fits.

    What to do comes first, with the key that has to change; it depends on which lines are too large.
    """
    longest = inputs.config.serving.max_seq_len
    if memory.kv_bytes > 0 and min(memory.kv_tokens.values()) >= longest:
        return []
    swap = []
    if inputs.method in METHODS_WITH_HEAD and inputs.section.plain_instance is PlainInstance.BESIDE:
        swap = ["write plain_instance: swap, which leaves the second engine out"]
    if _may_quantize(inputs):
        swap.append("write tensorrt_llm.quantization: fp8, which halves the weights of the target")
    return [describe_misfit(inputs.section, memory, longest, file, first=swap)]


def describe_misfit(
    section: TensorRtLlmConfig, memory: MemoryBudget, longest: int, file: str, *, first: Sequence[str] = ()
) -> Violation:
    """Why not even one request of `longest` tokens fits, by the lines that are too large: weights, the largest step, or
    the caches. `first` are ways out that this deployment alone has; the arithmetic comes after the remedy."""
    weights = sum(line.num_bytes for line in memory.lines if line.subject.startswith("weights "))
    more_gpus = f"raise tensorrt_llm.tensor_parallel above {section.tensor_parallel}"
    largest = "" if section.gpu is Gpu.H200 else ", or use gpu h200"
    if weights >= memory.num_bytes:
        key = "tensorrt_llm.tensor_parallel"
        reason = f"the weights of one GPU, {format_bytes(weights)}, are more than its {format_bytes(memory.num_bytes)}"
        ways = [*first, f"{more_gpus}{largest}"]
    elif memory.kv_bytes <= 0:
        key = "tensorrt_llm.max_num_tokens"
        reason = f"weights and a step of {section.max_num_tokens} tokens leave no room for keys and values"
        ways = [*first, "lower tensorrt_llm.max_num_tokens or serving.max_rows", f"{more_gpus}{largest}"]
    else:
        key, tokens = "serving.max_seq_len", min(memory.kv_tokens.values())
        reason = f"the caches hold {tokens} tokens, and one request may have {longest}"
        fitting = [f"write at most {tokens}"] if tokens > 0 else []
        ways = [*fitting, "lower serving.max_rows, which sizes a step", *first, f"{more_gpus}{largest}"]
    lines = "".join(f"\n  {line}" for line in describe_budget(memory))
    remedy = ", or ".join(ways)
    return Violation(file, key, reason, f"{remedy[0].upper()}{remedy[1:]}. Counted:{lines}")


def _may_quantize(inputs: EngineInputs) -> bool:
    """Whether the build itself could make fp8 weights: as the rules about quantization have it."""
    if inputs.method in METHODS_WITH_HEAD or inputs.section.quantization == "fp8" or inputs.target is None:
        return False
    return inputs.target.quantization is None and (inputs.section.expert_parallel or 1) == 1


def with_kv_tokens(engines: tuple[EngineRecord, ...], memory: MemoryBudget | None) -> tuple[EngineRecord, ...]:
    """The records with the tokens that the budget gives their caches."""
    if memory is None:
        return engines
    return tuple(
        engine.model_copy(update={"kv_tokens": memory.kv_tokens.get(engine.model) or None}) for engine in engines
    )
