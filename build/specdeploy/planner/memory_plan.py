"""Memory of a TensorRT-LLM deployment before anything is built: every rank line by line, and how many requests fit.

What a build counts (`memory.py`), and on top of it

    CUDA graphs    10 MB for each captured batch size (LLM API lane; the engine lane's engines capture none)
    draft state    what a head keeps of the target's states, by method: see `_draft_state`

Requests are counted at a segment's own length: prompt + output + the draft tokens of one step, in whole blocks of 32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.schema import DeploymentConfig, TensorRtLlmConfig
from specdeploy.contract import EngineModel, Lane, MemoryBudget, MemoryLine, Method
from specdeploy.planner.hardware import Hardware
from specdeploy.planner.loaded_models import (
    is_draft_pair,
    loaded_models,
    plain_target,
    step_tokens,
    verified_tokens,
)
from specdeploy.planner.memory import TOKENS_PER_BLOCK, budget_ranks, fullest_rank, largest_item
from specdeploy.planner.model_memory import LoadedModel, StepSizes
from specdeploy.planner.request_tokens import RequestTokens
from specdeploy.planner.torch_memory import TorchDevice, plan_torch_memory
from specdeploy.planner_contract import PlanMemory

# NVIDIA/TensorRT-LLM docs/source/blogs/tech_blog/blog20: about 10 MB per captured graph.
GRAPH_BYTES = 10_000_000
# Batch sizes that TensorRT-LLM captures where the arguments name none: `CudaGraphConfig` without padding, up to 128
# (tensorrt_llm/llmapi/llm_args.py, 1.0 to 1.2.1).
_DEFAULT_SIZES = (*range(1, 33), 64, 128)
_NUM_AUX_STATES = 3  # of every published EAGLE-3 head
_STATE_BYTES = 2
_LOGIT_BYTES = 4


def plan_memory_of(
    config: DeploymentConfig,
    target: CheckpointInfo,
    draft: CheckpointInfo | None,
    device: Hardware | TorchDevice,
    request: RequestTokens,
    *,
    num_captured_graphs: int | None = None,
) -> PlanMemory:
    """What lies on the fullest rank of `config`, and the requests that fit with and without the draft.

    `device` is one GPU of the TensorRT-LLM lanes, or the machine (or GPU) of lane torch. `num_captured_graphs` of each
    LLM object, None = as TensorRT-LLM chooses by itself. Nothing is raised for what does not fit: `misfit` names the
    largest item. Raises `CheckpointError` where the files do not say what a formula needs.
    """
    if config.lane is Lane.TORCH or config.tensorrt_llm is None or isinstance(device, TorchDevice):
        if not isinstance(device, TorchDevice) or config.lane is not Lane.TORCH:
            raise ValueError(f"lane {config.lane} does not run on {device.name}")
        return plan_torch_memory(config, target, draft, device, request)
    plan = _Plan(config, config.tensorrt_llm, target, draft, device, num_captured_graphs)
    return plan.count(request)


def default_captured_sizes(max_rows: int) -> tuple[int, ...]:
    """Batch sizes that get a graph each, none above the rows of the engine."""
    return tuple(size for size in _DEFAULT_SIZES if size <= max_rows)


@dataclass(frozen=True, slots=True)
class _Plan:
    """One deployment of a TensorRT-LLM lane on GPUs of one model."""

    config: DeploymentConfig
    section: TensorRtLlmConfig
    target: CheckpointInfo
    draft: CheckpointInfo | None
    device: Hardware
    num_captured_graphs: int | None

    def count(self, request: RequestTokens) -> PlanMemory:
        """With the draft, and beside it the target alone."""
        is_pair, longest = is_draft_pair(self.config, self.draft), self.config.serving.max_seq_len
        models = loaded_models(self.config, self.section, self.target, self.draft)
        ranks = self._ranks([self._with_reserves(model) for model in models], is_pair=is_pair)
        budget = fullest_rank(ranks, longest, is_draft_pair=is_pair)
        alone = self._plain_reserves(plain_target(self.config, self.section, self.target))
        without = fullest_rank(self._ranks([alone], is_pair=False, is_plain=True), longest, is_draft_pair=False)
        drafted = request.with_draft(verified_tokens(self.config))
        num_requests = _num_requests(budget, drafted)
        return PlanMemory(
            budget=budget,
            request_tokens=drafted,
            num_requests=num_requests,
            num_requests_without_draft=_num_requests(without, request.plain),
            num_requests_without_plain=self._without_plain(models, drafted, longest),
            misfit=None if num_requests else largest_item(budget.lines),
            ranks=ranks,
        )

    def _without_plain(self, models: Sequence[LoadedModel], request_tokens: int, longest: int) -> int | None:
        """Requests that fit with the draft and no plain instance beside; None where there is none."""
        kept = [model for model in models if model.model is not EngineModel.TARGET_PLAIN]
        if len(kept) == len(models):
            return None
        is_pair = is_draft_pair(self.config, self.draft)
        ranks = self._ranks([self._with_reserves(model) for model in kept], is_pair=is_pair)
        return _num_requests(fullest_rank(ranks, longest, is_draft_pair=is_pair), request_tokens)

    def _ranks(
        self, models: Sequence[LoadedModel], *, is_pair: bool, is_plain: bool = False
    ) -> tuple[MemoryBudget, ...]:
        draft_tokens = 0 if is_plain else verified_tokens(self.config)
        serving = self.config.serving
        step = StepSizes(step_tokens(self.config, self.section), serving.max_rows * (1 + draft_tokens))
        fraction = self.section.kv_cache_fraction
        return budget_ranks(self.device, models, step, fraction, serving.max_seq_len, is_draft_pair=is_pair)

    def _with_reserves(self, model: LoadedModel) -> LoadedModel:
        model = self._plain_reserves(model)
        state = self._draft_state() if model.model is EngineModel.TARGET else None
        return model if state is None else replace(model, reserves=(*model.reserves, state))

    def _plain_reserves(self, model: LoadedModel) -> LoadedModel:
        """Graphs: a draft model of the LLM API captures its own, a head runs inside the target's."""
        is_own = model.model is not EngineModel.DRAFT or self.config.speculation.method is Method.DRAFT_MODEL
        if self.config.lane is Lane.TRTLLM_ENGINE or not is_own:
            return model
        num = self.num_captured_graphs
        if num is None:
            num = len(default_captured_sizes(self.config.serving.max_rows))
        line = MemoryLine(
            subject=f"CUDA graphs of {model.model}",
            formula=f"{num} captured batch sizes x {GRAPH_BYTES} B",
            num_bytes=num * GRAPH_BYTES,
        )
        return replace(model, reserves=(*model.reserves, line))

    def _draft_state(self) -> MemoryLine | None:
        """Small, and not counted by anything else, all estimates:

        eagle3       states of the target's auxiliary layers, of every token of a step: tokens x layers x hidden x 2 B
        eagle        the last layer's state of every token of a step: tokens x hidden x 2 B
        mtp          the states of each row's last K tokens: rows x K x hidden x 2 B
        medusa       logits of every head at every node: rows x (nodes + 1) x heads x vocabulary x 4 B
        the others   none on the GPU (n-grams are kept by the host; a draft model's state is its cache)
        """
        hidden, rows = self.target.hidden_size or 0, self.config.serving.max_rows
        method, tokens = self.config.speculation.method, step_tokens(self.config, self.section)
        if method is Method.EAGLE3:
            head = self.draft.head if self.draft is not None else None
            layers = (head.num_aux_layers if head is not None else None) or _NUM_AUX_STATES
            return _state_line(("tokens", tokens), ("layers", layers), ("wide", hidden), ("B", _STATE_BYTES))
        if method is Method.EAGLE:
            return _state_line(("tokens", tokens), ("wide", hidden), ("B", _STATE_BYTES))
        if method is Method.MTP:
            depth = self.config.speculation.max_draft_len
            return _state_line(("rows", rows), ("deep", depth), ("wide", hidden), ("B", _STATE_BYTES))
        if method is Method.MEDUSA:
            vocabulary = self.target.vocabulary.config_vocab_size or 0
            nodes, heads = verified_tokens(self.config) + 1, self.config.speculation.medusa.num_heads
            return _state_line(
                ("rows", rows), ("tokens", nodes), ("heads", heads), ("logits", vocabulary), ("B", _LOGIT_BYTES)
            )
        return None


def _state_line(*factors: tuple[str, int]) -> MemoryLine:
    """The product of the factors, each with its unit."""
    return MemoryLine(
        subject="draft state",
        formula="estimated: " + " x ".join(f"{number} {unit}" for unit, number in factors),
        num_bytes=math.prod(number for _, number in factors),
    )


def _num_requests(budget: MemoryBudget, request_tokens: int) -> int:
    """Requests that hold their blocks at the same time."""
    blocks = min(budget.kv_tokens.values()) // TOKENS_PER_BLOCK
    return blocks // math.ceil(request_tokens / TOKENS_PER_BLOCK)
