"""A decoder-only transformer of the Llama family, written for one thing: a flat, ragged batch per step.

transformers' own modules were measured first: with padding, cache objects and unpacked weights a step of the demo
target costs about twice as much (docs/benchmarks.md). Configs and rotary tables still come from transformers.

Shapes: N tokens of all rows of the step laid end to end, H hidden, V vocabulary, D head dim, Q/KV heads.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from specdeploy.errors import CheckpointError
from specdeploy.runtime.attention import Span, StepAttention
from specdeploy.runtime.decoder_layer import LayerAttention, LayerShape
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.linear import Linear
from specdeploy.runtime.rotary import rotary_tables
from specdeploy.runtime.weights import CheckpointWeights

# Architectures whose layers are: RMSNorm, grouped-query attention with rotary positions, gated SiLU MLP.
SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MiMoForCausalLM",
)  # fmt: skip

# Layers of an architecture that only draft (`drafters.mtp`): the decoder leaves the tensors under this name alone.
MTP_PREFIXES = {"MiMoForCausalLM": "model.mtp_layers."}
# Model types that transformers has no class for, and the one whose decoder they are.
_SAME_DECODER = {"mimo": "qwen2"}

# In `hidden_layers`: the states after the final norm.
FINAL_NORM = -1

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class StepOutput:
    """`logits` [P, V] at the asked positions; `hidden` [N, A*H]: the asked layers' states side by side, or None."""

    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class DecoderModel:
    """Weights and one forward pass. Holds no per-request state: that is KvCache's and the engine's.

    A draft whose lm_head was trimmed to n of the V tokens has n logits; `target_ids` [n] names the token of each
    (None = logit i is token i).
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_seq_len: int,
        borrow_from: "DecoderModel | None" = None,
    ) -> None:
        """Load the checkpoint in `folder` (Hugging Face layout, safetensors).

        `borrow_from`: the target, for a draft that has no embeddings of its own and shares the target's.
        Raises CheckpointError for an architecture, rotary scaling or attention window this decoder does not have.
        """
        config = _load_config(folder)
        self._set_up(config, folder, dtype=dtype, device=device, max_seq_len=max_seq_len)
        self._take_weights(CheckpointWeights(folder, dtype=dtype, device=device), borrow_from)

    @classmethod
    def from_config(
        cls, config: Any, *, dtype: torch.dtype, device: torch.device, max_seq_len: int, seed: int = 0
    ) -> "DecoderModel":
        """A model of random weights, drawn where it will run: for measuring and for tests. Its text means nothing."""
        from specdeploy.runtime.random_weights import RandomWeights

        model = cls.__new__(cls)
        weights = RandomWeights(config, dtype=dtype, device=device, seed=seed)
        model._set_up(config, weights.folder, dtype=dtype, device=device, max_seq_len=max_seq_len)
        model._take_weights(weights, None)
        return model

    def _set_up(self, config: Any, folder: Path, *, dtype: torch.dtype, device: torch.device, max_seq_len: int) -> None:
        self.config = config
        self.dtype, self.device = dtype, device
        self.max_seq_len = max_seq_len
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.num_heads
        self.vocab_size: int = config.vocab_size
        self._eps: float = config.rms_norm_eps
        _check_supported(config, folder, max_seq_len)
        cos, sin = rotary_tables(config, self.head_dim, max_seq_len, folder)
        self._cos, self._sin = cos.to(device, dtype), sin.to(device, dtype)  # [max_seq_len, D]

    def new_cache(self, num_slots: int, *, num_tokens: int | None = None, extra_tokens: int = 0) -> KvCache:
        """Key/value memory for `num_slots` rows of this model; the rest as KvCache says."""
        return KvCache(
            num_slots=num_slots,
            max_seq_len=self.max_seq_len,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
            num_tokens=num_tokens,
            extra_tokens=extra_tokens,
        )

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Sequence[int],
        spans: Sequence[Span],
        logit_positions: Sequence[int],
        cache: KvCache,
        *,
        hidden_layers: Sequence[int] = (),
        num_layers: int | None = None,
    ) -> StepOutput:
        """Run N tokens; return logits [len(logit_positions), V] at those flat positions.

        Each span's keys and values are written to its slot from `cached_len` on, and its tokens see the slot's
        `cached_len` earlier tokens and, causally or as their tree says, each other. Spans never see another slot.

        `hidden_layers` asks for the states of all N tokens after that many layers (0 = embeddings), or after the final
        norm (`FINAL_NORM`). `num_layers` runs the first layers only, then final norm and head.
        """
        tokens = torch.tensor(token_ids, dtype=torch.long, device=self.device)
        attention = StepAttention(
            spans,
            cache,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            dtype=self.dtype,
            device=self.device,
        )
        captured: dict[int, torch.Tensor] = {}  # only what is asked for: the others' memory is free again
        for index, hidden in enumerate(self.states(tokens, attention.positions, attention, cache, num_layers)):
            if index in hidden_layers:
                captured[index] = hidden
        if FINAL_NORM in hidden_layers:  # asked for all tokens: the head reads the same rows
            captured[FINAL_NORM] = self.final_norm(hidden)
            logits = self._head_at(captured[FINAL_NORM], logit_positions)
        else:
            logits = self._head_at(hidden, logit_positions, is_normed=False)
        stacked = torch.cat([captured[layer] for layer in hidden_layers], dim=1) if hidden_layers else None
        return StepOutput(logits, stacked)

    def states(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: LayerAttention,
        cache: KvCache,
        num_layers: int | None = None,
    ) -> Iterator[torch.Tensor]:
        """Hidden states [N, H] of token ids [N] at rotary positions [N]: the embeddings, then after each layer.

        Fills the cache on the way. For steps of fixed shape; `forward` is this with everything around it.
        """
        cos = self._cos.index_select(0, positions).unsqueeze(1)  # [N, 1, D]
        sin = self._sin.index_select(0, positions).unsqueeze(1)
        hidden = F.embedding(tokens, self.embedding)
        yield hidden
        for index, layer in enumerate(self._layers[:num_layers]):
            hidden = layer(hidden, cos, sin, attention, cache.keys[index], cache.values[index])
            yield hidden

    @property
    def num_logits(self) -> int:
        """Rows of the lm_head: V, or n where it was trimmed."""
        return self.vocab_size if self.target_ids is None else len(self.target_ids)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [P, V] of hidden states [P, H] after the final norm."""
        return self._lm_head(hidden)

    def _head_at(self, hidden: torch.Tensor, positions: Sequence[int], *, is_normed: bool = True) -> torch.Tensor:
        """Logits [P, V] at rows `positions` of the last states [N, H]."""
        if not positions:
            return hidden.new_empty(0, self.num_logits)
        if len(positions) < hidden.shape[0]:
            hidden = hidden[torch.tensor(positions, dtype=torch.long, device=self.device)]
        return self._lm_head(hidden if is_normed else self.final_norm(hidden))

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The last norm, before the head: [P, H] -> [P, H]."""
        return F.rms_norm(hidden, (hidden.shape[1],), self._final_norm, self._eps)

    def _take_weights(self, weights: CheckpointWeights, borrow_from: "DecoderModel | None") -> None:
        self.embedding = _embedding(weights, self.config, borrow_from)  # [V, H]
        shape = LayerShape(self.num_heads, self.num_kv_heads, self.head_dim, self._eps)
        self._layers = [weights.take_layer(f"model.layers.{index}", shape) for index in range(self.num_layers)]
        self._final_norm = weights.take("model.norm.weight")
        self.target_ids = weights.take_target_ids(self.vocab_size)  # [n]
        head = self.embedding if self.config.tie_word_embeddings else weights.take("lm_head.weight")
        if self.target_ids is not None and self.config.tie_word_embeddings:
            head = head[self.target_ids]
        if self.target_ids is not None and len(head) != len(self.target_ids):
            raise CheckpointError(
                f"{weights.folder}: lm_head has {len(head)} rows, d2t {len(self.target_ids)}. Trim it again"
            )
        self._lm_head = Linear(head)
        weights.discard("lm_head.weight")  # some exporters store the tied copy too
        if (mtp := MTP_PREFIXES.get(self.config.architectures[0])) is not None:
            weights.discard_under(mtp)
        weights.check_all_taken(self.config.architectures[0])


def _embedding(weights: CheckpointWeights, config: Any, borrow_from: DecoderModel | None) -> torch.Tensor:
    """The checkpoint's embeddings [V, H], or the target's for a draft that was trained on them and leaves them out."""
    name = "model.embed_tokens.weight"
    if name in weights or borrow_from is None:
        return weights.take(name)
    shape = (config.vocab_size, config.hidden_size)
    if tuple(borrow_from.embedding.shape) != shape:
        raise CheckpointError(
            f"{weights.folder}: {name} is missing, and the target's of shape {tuple(borrow_from.embedding.shape)} "
            f"cannot stand in for {shape}. Use the draft with the target it was trained for"
        )
    return borrow_from.embedding


def _load_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        settings = json.loads((folder / "config.json").read_text())
        model_type = _SAME_DECODER.get(str(settings.get("model_type"))) if isinstance(settings, dict) else None
        if model_type is not None:
            return AutoConfig.for_model(**(settings | {"model_type": model_type}))
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: config.json cannot be read: {error}") from None


def context_of(folder: Path) -> int:
    """Most positions that the checkpoint in `folder` can be run for: those it was made for, within its window."""
    config = _load_config(folder)
    return min(_max_positions(config), _window(config) or _max_positions(config))


def _max_positions(config: Any) -> int:
    rope = config.rope_parameters
    scaled_positions = int((rope.get("original_max_position_embeddings") or 0) * (rope.get("factor") or 1.0))
    return max(int(config.max_position_embeddings), scaled_positions)  # YaRN configs state the unscaled number


def _window(config: Any) -> int | None:
    window: int | None = getattr(config, "sliding_window", None)
    uses_window = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    return window if uses_window else None


def _check_supported(config: Any, folder: Path, max_seq_len: int) -> None:
    architecture = (config.architectures or ["none"])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise CheckpointError(
            f"{folder}/config.json: architectures: {architecture} is not supported by the torch lane. "
            f"Use one of {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    max_positions = _max_positions(config)
    if max_seq_len > max_positions:
        raise CheckpointError(
            f"{folder}/config.json: max_position_embeddings: {max_positions} is below "
            f"serving.max_seq_len {max_seq_len}. Lower serving.max_seq_len"
        )
    if config.hidden_act not in ("silu", "swish"):
        raise CheckpointError(f"{folder}/config.json: hidden_act: {config.hidden_act} is not supported. Only silu is")
    window = _window(config)
    if window is not None and window < max_seq_len:
        raise CheckpointError(
            f"{folder}/config.json: sliding_window: {window} is below serving.max_seq_len {max_seq_len}. "
            "The torch lane has full attention only: lower serving.max_seq_len to the window"
        )
