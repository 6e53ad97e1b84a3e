"""What follows from numbers: GPUs, nodes, heads and experts to share, tokens of one step."""

from specdeploy.config.schema import PlainInstance, SpeculationConfig
from specdeploy.contract import Lane, Method
from specdeploy.errors import Violation
from specdeploy.trtllm.rule import METHODS_WITH_HEAD, DeploymentFacts, Refusal

# An HGX H100 or H200 board, the node these lanes are made for, carries 8 GPUs.
GPUS_PER_NODE = 8

# Nodes of the default tree mc_sim_7b_63, and the converters' own default (--max_medusa_token_len and --max_draft_len).
DEFAULT_TREE_TOKENS = 63


def tokens_per_step(speculation: SpeculationConfig) -> int:
    """Draft tokens that one step verifies: K, or the nodes of a tree (ReDrafter: beams x tokens of a beam)."""
    if speculation.method in (Method.MEDUSA, Method.EAGLE):
        choices = (speculation.medusa if speculation.method is Method.MEDUSA else speculation.eagle).choices
        return DEFAULT_TREE_TOKENS if choices is None else len(choices)
    if speculation.method is Method.REDRAFTER:
        return speculation.redrafter.num_beams * speculation.redrafter.draft_len_per_beam
    return speculation.max_draft_len


def engine_step_tokens(stated: int, rows: int, seq_len: int, draft_len: int) -> int:
    """Tokens of one step as trtllm-build would change them by itself, so that command and engine agree.

    At most all rows at full length, at least one block of 32 and one draft with its token per row
    (tensorrt_llm/builder.py@008b2b8d and the check_max_num_tokens it calls).
    """
    tokens = max(min(stated, rows * seq_len), 32)
    return max(tokens, rows * (draft_len + 1)) if draft_len else tokens


def _refuse_gpus_beyond_nodes(facts: DeploymentFacts) -> Violation | None:
    section = facts.section
    room = GPUS_PER_NODE * section.num_nodes
    if section.num_gpus <= room:
        return None
    nodes = -(-section.num_gpus // GPUS_PER_NODE)
    key = "tensor_parallel" if section.tensor_parallel > room else "pipeline_parallel"
    shape = f"tensor_parallel {section.tensor_parallel} x pipeline_parallel {section.pipeline_parallel}"
    reason = f"{shape} is {section.num_gpus} GPUs, num_nodes {section.num_nodes} has {room} at {GPUS_PER_NODE} each"
    return facts.violation(f"tensorrt_llm.{key}", reason, f"Use at most {room} GPUs, or write num_nodes: {nodes}.")


def _refuse_uneven_nodes(facts: DeploymentFacts) -> Violation | None:
    section = facts.section
    if section.num_gpus % section.num_nodes == 0:
        return None
    reason = f"{section.num_gpus} GPUs cannot be shared evenly by {section.num_nodes} nodes"
    remedy = "Write a number of nodes that divides tensor_parallel x pipeline_parallel."
    return facts.violation("tensorrt_llm.num_nodes", reason, remedy)


def _refuse_engines_on_several_nodes(facts: DeploymentFacts) -> Violation | None:
    """Triton's orchestrator spawns the ranks of a second engine on its own node."""
    section, has_head = facts.section, facts.method in METHODS_WITH_HEAD
    if not facts.is_engine or section.num_nodes == 1:
        return None
    reason = f"{section.num_nodes} nodes and two engines: their processes are spawned on one node only"
    if facts.method is Method.DRAFT_MODEL:
        remedy = f"Write 1, or use method lookahead or lane {Lane.TRTLLM_LLMAPI}, which need one engine."
    elif has_head and section.plain_instance is PlainInstance.BESIDE:
        remedy = "Write 1, or plain_instance: swap, or use method lookahead, which needs one engine."
    else:
        return None
    return facts.violation("tensorrt_llm.num_nodes", reason, remedy)


def _refuse_experts(facts: DeploymentFacts) -> Violation | None:
    """moe_tp x moe_ep = tp: the converters assert it, and the LLM API divides the same way."""
    experts, key = facts.section.expert_parallel, "tensorrt_llm.expert_parallel"
    if experts is None:
        return None
    if facts.section.tensor_parallel % experts:
        reason = f"{experts} does not divide tensor_parallel {facts.section.tensor_parallel}"
        return facts.violation(key, reason, "Write a divisor of tensor_parallel, or remove the key.")
    if experts > 1 and facts.target is not None and facts.target.moe is None:
        reason = f"{experts}, and target {facts.target.reference} has no experts"
        return facts.violation(key, reason, "Remove the key.")
    return None


def _refuse_uneven_heads(role: str, facts: DeploymentFacts) -> Violation | None:
    """Attention heads must divide; key/value heads must divide, or be repeated a whole number of times."""
    section = facts.section
    gpus = section.tensor_parallel if role == "target" else facts.draft_tensor_parallel
    key = "tensor_parallel" if role == "target" or gpus != section.draft_tensor_parallel else "draft_tensor_parallel"
    for name, _, info in facts.checkpoints():
        if name != role:
            continue
        heads, kv_heads = info.num_heads, info.num_kv_heads
        if heads is not None and heads % gpus:
            reason = f"{gpus} does not divide the {heads} attention heads of {role} {info.reference}"
            return facts.violation(f"tensorrt_llm.{key}", reason, _divisors(heads, facts, role))
        if kv_heads is not None and kv_heads % gpus and gpus % kv_heads:
            reason = f"{gpus} and the {kv_heads} key/value heads of {role} {info.reference}: neither divides the other"
            return facts.violation(f"tensorrt_llm.{key}", reason, _divisors(kv_heads, facts, role))
    return None


def _divisors(heads: int, facts: DeploymentFacts, role: str) -> str:
    """What fits; the draft of the engine lane may have GPUs of its own number."""
    fitting = [count for count in range(1, GPUS_PER_NODE + 1) if heads % count == 0]
    remedy = f"Write one of {', '.join(map(str, fitting))}."
    if role == "target" or not facts.is_engine or facts.method is not Method.DRAFT_MODEL:
        return remedy
    fewer = [str(count) for count in fitting if count <= facts.section.tensor_parallel]
    if facts.section.draft_tensor_parallel is not None:
        return f"Write one of {', '.join(fewer)}."
    return f"{remedy[:-1]}, or tensorrt_llm.draft_tensor_parallel: {' or '.join(fewer)} for the draft alone."


def _refuse_step_beyond_limit(facts: DeploymentFacts) -> Violation | None:
    tokens = tokens_per_step(facts.config.speculation) + 1
    if tokens <= facts.section.max_num_tokens:
        return None
    reason = f"{facts.section.max_num_tokens} is less than the {tokens} tokens that verify one draft"
    remedy = f"Write at least {tokens} for each request decoded at once, or draft less."
    return facts.violation("tensorrt_llm.max_num_tokens", reason, remedy)


def _refuse_draft_beyond_context(facts: DeploymentFacts) -> Violation | None:
    tokens, longest = tokens_per_step(facts.config.speculation), facts.config.serving.max_seq_len
    if tokens < longest:
        return None
    reason = f"{longest} leaves no room beside the {tokens} tokens of one draft"
    return facts.violation("serving.max_seq_len", reason, "Raise it, or draft less.")


def _refuse_uneven_target_heads(facts: DeploymentFacts) -> Violation | None:
    return _refuse_uneven_heads("target", facts)


def _refuse_uneven_draft_heads(facts: DeploymentFacts) -> Violation | None:
    return _refuse_uneven_heads("draft", facts)


PARALLEL_RULES: tuple[Refusal, ...] = (
    Refusal("gpus-beyond-nodes", _refuse_gpus_beyond_nodes),
    Refusal("uneven-nodes", _refuse_uneven_nodes),
    Refusal("engines-on-several-nodes", _refuse_engines_on_several_nodes),
    Refusal("expert-parallel", _refuse_experts),
    Refusal("target-heads", _refuse_uneven_target_heads),
    Refusal("draft-heads", _refuse_uneven_draft_heads),
    Refusal("step-beyond-limit", _refuse_step_beyond_limit),
    Refusal("draft-beyond-context", _refuse_draft_beyond_context),
)
