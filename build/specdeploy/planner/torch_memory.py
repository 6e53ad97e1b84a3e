"""Memory of lane torch before anything is loaded: one process on one device, everything allocated at its start.

target weights   linear layers in the block layout of oneDNN (`runtime/linear.py`), so a tied output layer is a
                 second copy of the embedding; in bfloat16 on a processor without bfloat16 products in float32.
                 Where the file has the dtype that is served, embedding and norms are read in place, which keeps
                 the whole file mapped beside the packed copies. On a GPU nothing is packed or mapped
draft weights    the same, without tables that the draft borrows from its target
arenas           `serving.kv_cache_tokens`, or `max_rows` full contexts, zeroed and therefore resident from the
                 start; a drafter's own arena has a context for every row
process          interpreter, PyTorch, the server: measured, see `PROCESS_BYTES`
"""

from collections.abc import Iterator
from dataclasses import dataclass

from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.method_rules import tree_of
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Dtype, EngineModel, MemoryBudget, MemoryLine, Method
from specdeploy.errors import CheckpointError
from specdeploy.planner.memory import RUNTIME_RESERVE_BYTES, largest_item
from specdeploy.planner.request_tokens import RequestTokens
from specdeploy.planner.weight_bytes import MTP, num_norm_elements, num_table_elements
from specdeploy.planner_contract import PlanMemory

# Measured with PyTorch 2.13 (CPU build) on x86: 465 MiB for the demo's server and its process when ready, weights and
# arenas left out; 545 MiB after 3,000 requests, by kernels and buffers for every number of rows that was seen.
PROCESS_BYTES = 512 << 20
_LOGIT_BYTES = 8  # float32, and the probabilities that sampling makes of them
_DTYPE_BYTES = {Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2, Dtype.FLOAT16: 2}
_STORED_AS = {Dtype.FLOAT32: "F32", Dtype.BFLOAT16: "BF16", Dtype.FLOAT16: "F16"}


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """Where lane torch runs: bytes that its process may use, and what its processor can do."""

    name: str
    memory_bytes: int
    is_gpu: bool = False
    has_bfloat16_products: bool = True

    def linear_bytes(self, dtype: Dtype) -> int:
        """Bytes of a linear layer's weight."""
        is_widened = dtype is Dtype.BFLOAT16 and not self.is_gpu and not self.has_bfloat16_products
        return 4 if is_widened else _DTYPE_BYTES[dtype]


def plan_torch_memory(
    config: DeploymentConfig,
    target: CheckpointInfo,
    draft: CheckpointInfo | None,
    device: TorchDevice,
    request: RequestTokens,
) -> PlanMemory:
    """The budget of the device, and the requests decoded at once.

    Everything is allocated when the engine is loaded, so a deployment fits as a whole or not at all: `misfit` then
    names the largest item and no request is served. Raises `CheckpointError` where the files do not say what is needed.
    """
    plan, alone = _Plan(config, target, draft, device), _Plan(config, target, None, device, is_plain=True)
    lines, arena, left = plan.lines(), plan.arena_line, plan.left_bytes
    if left >= 0:
        lines = (*lines, MemoryLine(subject="left", formula="not asked for by this deployment", num_bytes=left))
    drafted = request.with_draft(plan.num_nodes)
    per_token = {EngineModel.TARGET: plan.bytes_per_token}
    if plan.draft_kv_elements:
        per_token[EngineModel.DRAFT] = plan.draft_kv_elements * plan.element_bytes
    longest = config.serving.max_seq_len
    return PlanMemory(
        budget=MemoryBudget(
            gpu=device.name,
            num_bytes=device.memory_bytes,
            lines=lines,
            kv_bytes=arena.num_bytes + min(left, 0),
            kv_bytes_per_token=per_token,
            kv_tokens={EngineModel.TARGET: plan.num_positions if left >= 0 else 0},
            max_sequences=plan.num_requests(longest),
            max_sequences_without_draft=alone.num_requests(longest),
        ),
        request_tokens=drafted,
        num_requests=plan.num_requests(drafted),
        num_requests_without_draft=alone.num_requests(request.plain),
        misfit=None if left >= 0 else largest_item((*lines, arena)),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    config: DeploymentConfig
    target: CheckpointInfo
    draft: CheckpointInfo | None
    device: TorchDevice
    is_plain: bool = False  # without drafts

    @property
    def element_bytes(self) -> int:
        """Of keys, values, embeddings and norms."""
        return _DTYPE_BYTES[self.config.dtype]

    @property
    def method(self) -> Method:
        """How the draft is made; of `auto` what its checkpoint is for."""
        method = self.config.speculation.method
        if method is not Method.AUTO or self.draft is None:
            return method
        return Method.DRAFT_MODEL if self.draft.head is None else Method(str(self.draft.kind))

    @property
    def num_nodes(self) -> int:
        """Tokens of the deepest chain, or of a tree; none without drafts."""
        if self.is_plain:
            return 0
        tree = tree_of(self.config.speculation, self.method)
        longest = self.config.speculation.max_draft_len
        return longest if tree is None or tree.choices is None else max(len(tree.choices), longest)

    @property
    def left_bytes(self) -> int:
        """What nothing asks for; below 0 so much is missing."""
        asked = sum(line.num_bytes for line in self.lines())
        return self.device.memory_bytes - asked - self.arena_line.num_bytes

    def lines(self) -> tuple[MemoryLine, ...]:
        """Everything but the target's arena."""
        draft = () if self.is_plain else self._draft_lines()
        return (*self._weight_lines("target", self.target), *draft, self._activations_line(), self._process_line())

    def _process_line(self) -> MemoryLine:
        if self.device.is_gpu:
            formula = "assumed: CUDA context, kernels, workspaces, recorded graphs"
            return MemoryLine(subject="runtime", formula=formula, num_bytes=RUNTIME_RESERVE_BYTES)
        formula = "measured: interpreter, PyTorch, server, kernels of the shapes in use"
        return MemoryLine(subject="process", formula=formula, num_bytes=PROCESS_BYTES)

    # --- the target's arena -------------------------------------------------------------------------------------

    @property
    def num_positions(self) -> int:
        """Of the arena; a tree's nodes beside its deepest path lie behind each context."""
        serving = self.config.serving
        most = serving.max_rows * (serving.max_seq_len + self._num_side_nodes)
        return most if serving.kv_cache_tokens is None else min(serving.kv_cache_tokens, most)

    @property
    def _num_side_nodes(self) -> int:
        return max(self.num_nodes - self.config.speculation.max_draft_len, 0)

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token of the target."""
        return _fact(self.target, "kv_elements_per_token") * self.element_bytes

    @property
    def arena_line(self) -> MemoryLine:
        """Zeroed when it is made: resident from the start."""
        formula = f"{self.num_positions} tokens x {self.bytes_per_token} B"
        num_bytes = self.num_positions * self.bytes_per_token
        return MemoryLine(subject="key/value arena of target", formula=formula, num_bytes=num_bytes)

    def num_requests(self, tokens: int) -> int:
        """Requests of `tokens` that have a row and room at the same time; none where not everything fits."""
        serving = self.config.serving
        if self.left_bytes < 0:
            return 0
        is_uniform = self.num_positions == serving.max_rows * (serving.max_seq_len + self._num_side_nodes)
        return serving.max_rows if is_uniform else min(serving.max_rows, self.num_positions // tokens)

    # --- the draft ----------------------------------------------------------------------------------------------

    @property
    def draft_kv_elements(self) -> int:
        """Elements that a drafter caches per token: of a draft model, of a head's layers, of one layer (mtp)."""
        if self.method is Method.MTP:
            return _fact(self.target, "kv_elements_per_token") // _fact(self.target, "num_layers")
        if self.draft is None or self.method is Method.MEDUSA:
            return 0
        return _fact(self.draft, "kv_elements_per_token")

    def _draft_lines(self) -> Iterator[MemoryLine]:
        if self.method is Method.MTP:
            elements = self.target.left_out_parameters.get(MTP, 0)
            yield self._linear_line("draft", elements)
        elif self.draft is not None:
            yield from self._weight_lines("draft", self.draft)
        if self.draft_kv_elements:
            rows, longest = self.config.serving.max_rows, self.config.serving.max_seq_len
            made_for = self.draft.max_positions if self.draft is not None else None
            context = min(longest, made_for or longest)
            # Branches of a tree lie behind a head's text while it drafts.
            extra = self.num_nodes if self._num_side_nodes else 0
            per_token = self.draft_kv_elements * self.element_bytes
            yield MemoryLine(
                subject="key/value arena of draft",
                formula=f"{rows} rows x {context + extra} tokens x {per_token} B",
                num_bytes=rows * (context + extra) * per_token,
            )

    # --- weights ------------------------------------------------------------------------------------------------

    def _weight_lines(self, name: str, info: CheckpointInfo) -> Iterator[MemoryLine]:
        elements = _fact(info, "num_parameters")
        is_borrowed = name == "draft" and info.vocabulary.embedding_rows is None and info.parameters_from == "headers"
        table = 0 if is_borrowed or info.head is not None else min(num_table_elements(info), elements)
        norms = min(num_norm_elements(info), elements - table)
        if self.device.is_gpu:
            num_bytes = elements * self.element_bytes
            yield MemoryLine(
                subject=f"weights of {name}", formula=f"{elements} x {self.element_bytes} B", num_bytes=num_bytes
            )
            return
        again = table if info.tie_word_embeddings else 0
        yield self._linear_line(name, elements - table - norms + again)
        mapped = self._mapped_bytes(info, elements)
        if mapped:
            yield MemoryLine(
                subject=f"mapped file of {name}",
                formula=f"stored in {self.config.dtype}, so embedding and norms are read in place",
                num_bytes=mapped,
            )
        else:
            yield MemoryLine(
                subject=f"embedding and norms of {name}",
                formula=f"({table} + {norms}) x {self.element_bytes} B",
                num_bytes=(table + norms) * self.element_bytes,
            )

    def _linear_line(self, name: str, elements: int) -> MemoryLine:
        each = self.device.linear_bytes(self.config.dtype)
        return MemoryLine(
            subject=f"weights of {name}", formula=f"linear layers {elements} x {each} B", num_bytes=elements * each
        )

    def _mapped_bytes(self, info: CheckpointInfo, elements: int) -> int:
        """The checkpoint's files stay mapped while a tensor of theirs is read in place: where one has this dtype."""
        if info.stored_dtypes:
            own = info.stored_dtypes.get(_STORED_AS[self.config.dtype], 0)
            return (info.num_bytes or 0) if own else 0
        return elements * self.element_bytes if info.dtype == str(self.config.dtype) else 0

    def _activations_line(self) -> MemoryLine:
        """One decoder layer over the largest step, and logits of every position that is verified."""
        info, serving = self.target, self.config.serving
        rows = serving.max_rows * (1 + self.num_nodes)
        tokens = serving.prefill_chunk + rows
        heads, kv_heads = info.num_heads or 0, info.num_kv_heads or info.num_heads or 0
        width = 2 * _fact(info, "hidden_size") + (heads + 2 * kv_heads) * (info.head_dim or 0)
        width += 3 * (info.intermediate_size or 0)
        vocabulary = info.vocabulary.lm_head_rows or info.vocabulary.config_vocab_size or 0
        each = self.device.linear_bytes(self.config.dtype)
        return MemoryLine(
            subject="activations",
            formula=f"{tokens} tokens x {width} x {each} B + {rows} rows x {vocabulary} logits x {_LOGIT_BYTES} B",
            num_bytes=tokens * width * each + rows * vocabulary * _LOGIT_BYTES,
        )


def _fact(info: CheckpointInfo, name: str) -> int:
    value: int | None = getattr(info, name)
    if value is None:
        raise CheckpointError(
            f"{info.reference}: {name} is not stated by its files, and its memory cannot be counted without it. "
            "Complete its config.json"
        )
    return value
