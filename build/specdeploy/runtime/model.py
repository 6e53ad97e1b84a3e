"""A decoder-only transformer of the Llama family, written for one thing: a flat, ragged batch per step.

transformers' own modules were measured first: with padding, cache objects and unpacked weights a step of the demo
target costs about twice as much (docs/benchmarks.md). Configs and rotary tables still come from transformers.

Shapes: N tokens of all rows of the step laid end to end, H hidden, V vocabulary, D head dim, Q/KV heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from specdeploy.errors import CheckpointError
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.linear import Linear

# Architectures whose layers are: RMSNorm, grouped-query attention with rotary positions, gated SiLU MLP.
SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens of one row within a step: flat positions [start, end), its cache slot, tokens cached before."""

    start: int
    end: int
    slot: int
    cached_len: int


@dataclass(slots=True)
class _Layer:
    input_norm: torch.Tensor  # [H]
    qkv: Linear
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None  # [D]
    out: Linear
    post_norm: torch.Tensor  # [H]
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class _SpanAttention:
    """Where one span's queries and its whole context lie, and which of it each query may see."""

    start: int
    end: int
    context_start: int
    context_end: int
    mask: torch.Tensor | None  # [T, context] additive, None where everything is visible


class DecoderModel:
    """Weights and one forward pass. Holds no per-request state: that is KvCache's and the engine's.

    A draft whose lm_head was trimmed to n of the V tokens has n logits; `target_ids` [n] names the token of each
    (None = logit i is token i).
    """

    def __init__(self, folder: Path, *, dtype: torch.dtype, device: torch.device, max_seq_len: int) -> None:
        """Load the checkpoint in `folder` (Hugging Face layout, safetensors).

        Raises CheckpointError for an architecture, rotary scaling or attention window this decoder does not have.
        """
        self.config = _load_config(folder)
        self.dtype, self.device = dtype, device
        self.max_seq_len = max_seq_len
        self.num_layers: int = self.config.num_hidden_layers
        self.num_heads: int = self.config.num_attention_heads
        self.num_kv_heads: int = self.config.num_key_value_heads
        self.head_dim: int = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.num_heads
        self.vocab_size: int = self.config.vocab_size
        self._eps: float = self.config.rms_norm_eps
        _check_supported(self.config, folder, max_seq_len)
        cos, sin = _rotary_tables(self.config, self.head_dim, max_seq_len, folder)
        self._cos, self._sin = cos.to(device, dtype), sin.to(device, dtype)  # [max_seq_len, D]
        self._load_weights(folder)

    def new_cache(self, num_slots: int) -> KvCache:
        """Key/value memory for `num_slots` rows of this model."""
        return KvCache(
            num_slots=num_slots,
            max_seq_len=self.max_seq_len,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(
        self, token_ids: Sequence[int], spans: Sequence[Span], logit_positions: Sequence[int], cache: KvCache
    ) -> torch.Tensor:
        """Run N tokens; return logits [len(logit_positions), V] at those flat positions.

        Each span's keys and values are written to its slot from `cached_len` on, and its tokens see the slot's
        `cached_len` earlier tokens and, causally, each other. Spans never see another slot.
        """
        tokens = torch.tensor(token_ids, dtype=torch.long, device=self.device)
        positions = torch.tensor(
            [span.cached_len + i for span in spans for i in range(span.end - span.start)],
            dtype=torch.long,
            device=self.device,
        )
        targets = positions + torch.tensor(
            [cache.start_of(span.slot) for span in spans for _ in range(span.end - span.start)],
            dtype=torch.long,
            device=self.device,
        )
        attention = [self._span_attention(span, cache) for span in spans]
        cos, sin = self._cos[positions].unsqueeze(1), self._sin[positions].unsqueeze(1)  # [N, 1, D]
        hidden = F.embedding(tokens, self._embedding)  # [N, H]
        for index, layer in enumerate(self._layers):
            hidden = hidden + self._attend(index, layer, hidden, cos, sin, targets, attention, cache)
            normed = F.rms_norm(hidden, (hidden.shape[1],), layer.post_norm, self._eps)
            gate, up = layer.gate_up(normed).chunk(2, dim=1)
            hidden = hidden + layer.down(F.silu(gate) * up)
        if not logit_positions:
            return hidden.new_empty(0, self.vocab_size if self.target_ids is None else len(self.target_ids))
        wanted = hidden[torch.tensor(logit_positions, dtype=torch.long, device=self.device)]
        return self._lm_head(F.rms_norm(wanted, (wanted.shape[1],), self._final_norm, self._eps))

    def _attend(
        self,
        index: int,
        layer: _Layer,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        targets: torch.Tensor,
        attention: list[_SpanAttention],
        cache: KvCache,
    ) -> torch.Tensor:
        num_tokens = hidden.shape[0]
        heads, kv_heads, dim = self.num_heads, self.num_kv_heads, self.head_dim
        qkv = layer.qkv(F.rms_norm(hidden, (hidden.shape[1],), layer.input_norm, self._eps))
        qkv = qkv.view(num_tokens, heads + 2 * kv_heads, dim)
        queries_keys, values = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            queries_keys = torch.cat(
                (
                    F.rms_norm(queries_keys[:, :heads], (dim,), layer.q_norm, self._eps),
                    F.rms_norm(queries_keys[:, heads:], (dim,), layer.k_norm, self._eps),
                ),
                dim=1,
            )
        queries_keys = _rotate(queries_keys, cos, sin)
        cache.keys[index].index_copy_(0, targets, queries_keys[:, heads:])
        cache.values[index].index_copy_(0, targets, values)
        mixed = torch.empty(num_tokens, heads * dim, dtype=self.dtype, device=self.device)
        for span in attention:
            # [KV, Q/KV, T, D] against [KV, 1 -> Q/KV, context, D]: grouped heads share keys without a copy.
            queries = queries_keys[span.start : span.end, :heads].view(-1, kv_heads, heads // kv_heads, dim)
            queries = queries.permute(1, 2, 0, 3)
            keys = cache.keys[index][span.context_start : span.context_end].transpose(0, 1).unsqueeze(1)
            vals = cache.values[index][span.context_start : span.context_end].transpose(0, 1).unsqueeze(1)
            out = F.scaled_dot_product_attention(
                queries, keys.expand(-1, queries.shape[1], -1, -1), vals.expand(-1, queries.shape[1], -1, -1), span.mask
            )
            mixed[span.start : span.end] = out.permute(2, 0, 1, 3).reshape(span.end - span.start, heads * dim)
        return layer.out(mixed)

    def _span_attention(self, span: Span, cache: KvCache) -> _SpanAttention:
        num_tokens = span.end - span.start
        context = span.cached_len + num_tokens
        mask = None
        if num_tokens > 1:
            mask = torch.full((num_tokens, context), float("-inf"), dtype=self.dtype, device=self.device)
            mask.triu_(diagonal=span.cached_len + 1)
        begin = cache.start_of(span.slot)
        return _SpanAttention(span.start, span.end, begin, begin + context, mask)

    def _load_weights(self, folder: Path) -> None:
        weights = _read_safetensors(folder)

        def take(name: str) -> torch.Tensor:
            try:
                return weights.pop(name).to(self.device, self.dtype)
            except KeyError:
                raise CheckpointError(f"{folder}: tensor {name} is missing from the safetensors files") from None

        def take_bias(name: str) -> torch.Tensor | None:
            return take(name) if name in weights else None

        def fused(prefix: str, names: tuple[str, ...]) -> Linear:
            weight = torch.cat([take(f"{prefix}.{name}.weight") for name in names])
            biases = [take_bias(f"{prefix}.{name}.bias") for name in names]
            present = [bias for bias in biases if bias is not None]
            if present and len(present) != len(names):
                raise CheckpointError(f"{folder}: {prefix} has a bias on some of {', '.join(names)} but not on all")
            return Linear(weight, torch.cat(present) if present else None)

        self._embedding = take("model.embed_tokens.weight")  # [V, H]
        self._layers: list[_Layer] = []
        for index in range(self.num_layers):
            base = f"model.layers.{index}"
            has_qk_norm = f"{base}.self_attn.q_norm.weight" in weights
            self._layers.append(
                _Layer(
                    input_norm=take(f"{base}.input_layernorm.weight"),
                    qkv=fused(f"{base}.self_attn", ("q_proj", "k_proj", "v_proj")),
                    q_norm=take(f"{base}.self_attn.q_norm.weight") if has_qk_norm else None,
                    k_norm=take(f"{base}.self_attn.k_norm.weight") if has_qk_norm else None,
                    out=fused(f"{base}.self_attn", ("o_proj",)),
                    post_norm=take(f"{base}.post_attention_layernorm.weight"),
                    gate_up=fused(f"{base}.mlp", ("gate_proj", "up_proj")),
                    down=fused(f"{base}.mlp", ("down_proj",)),
                )
            )
        self._final_norm = take("model.norm.weight")
        target_ids = _pop_target_ids(weights, self.vocab_size, folder)
        self.target_ids = None if target_ids is None else target_ids.to(self.device)  # [n]
        head = self._embedding if self.config.tie_word_embeddings else take("lm_head.weight")
        if self.target_ids is not None and len(head) != len(self.target_ids):
            raise CheckpointError(f"{folder}: lm_head has {len(head)} rows, d2t {len(self.target_ids)}. Trim it again")
        self._lm_head = Linear(head)
        weights.pop("lm_head.weight", None)  # some exporters store the tied copy too
        leftover = [name for name in weights if not name.endswith("rotary_emb.inv_freq")]
        if leftover:
            raise CheckpointError(
                f"{folder}: {len(leftover)} tensors are not part of {self.config.architectures[0]}, "
                f"first {leftover[0]}; leaving them out would change the output"
            )


def _pop_target_ids(weights: dict[str, torch.Tensor], vocab_size: int, folder: Path) -> torch.Tensor | None:
    """Token of each row of a trimmed lm_head [n]: draft id + d2t[draft id]. `t2d` says the same as a mask."""
    d2t = weights.pop("d2t", None)
    weights.pop("t2d", None)
    if d2t is None:
        return None
    ids = torch.arange(len(d2t)) + d2t.long()
    if not len(ids) or ids.min() < 0 or ids.max() >= vocab_size or not (ids.diff() > 0).all():
        raise CheckpointError(f"{folder}: d2t is no rising map into {vocab_size} tokens. Trim the draft again")
    return ids


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, half-split form (RoFormer, as in transformers' Llama). x [N, heads, D]."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return torch.addcmul(x * cos, rotated, sin)


def _load_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: config.json cannot be read: {error}") from None


def _check_supported(config: Any, folder: Path, max_seq_len: int) -> None:
    architecture = (config.architectures or ["none"])[0]
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise CheckpointError(
            f"{folder}/config.json: architectures: {architecture} is not supported by the torch lane. "
            f"Use one of {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    rope = config.rope_parameters
    scaled_positions = int((rope.get("original_max_position_embeddings") or 0) * (rope.get("factor") or 1.0))
    max_positions = max(config.max_position_embeddings, scaled_positions)  # YaRN configs state the unscaled number
    if max_seq_len > max_positions:
        raise CheckpointError(
            f"{folder}/config.json: max_position_embeddings: {max_positions} is below "
            f"serving.max_seq_len {max_seq_len}. Lower serving.max_seq_len"
        )
    if config.hidden_act not in ("silu", "swish"):
        raise CheckpointError(f"{folder}/config.json: hidden_act: {config.hidden_act} is not supported. Only silu is")
    window = getattr(config, "sliding_window", None)
    uses_window = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    if window is not None and uses_window and window < max_seq_len:
        raise CheckpointError(
            f"{folder}/config.json: sliding_window: {window} is below serving.max_seq_len {max_seq_len}. "
            "The torch lane has full attention only: lower serving.max_seq_len to the window"
        )


def _rotary_tables(config: Any, head_dim: int, max_seq_len: int, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [max_seq_len, D] in float32, scaled as the checkpoint says."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = config.rope_parameters
    rope_type = parameters.get("rope_type", "default")
    if rope_type == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        inv_freq, scaling = 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    elif rope_type in ("linear", "llama3", "yarn") and rope_type in ROPE_INIT_FUNCTIONS:
        inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, torch.device("cpu"))
    else:
        # dynamic and longrope change the table with the length of the text: rows of one batch would disagree.
        raise CheckpointError(f"{folder}/config.json: rope_parameters: rope_type {rope_type} is not supported")
    angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float32), inv_freq.float())
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scaling, angles.sin() * scaling


def _read_safetensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no *.safetensors file. Convert the checkpoint to safetensors first")
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            weights.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: not a readable safetensors file: {error}") from None
    return weights
