"""Heads as the builder leaves them: one folder layout, read strictly.

    config.json         flat sizes as a Llama config spells them, rotary parameters included
    head.json           `HeadFacts`: which forward pass this is, and its switches
    *.safetensors       eagle, eagle3: layers.{i}.*, fc.*, norms, optional embed_tokens.weight, lm_head.weight, d2t, t2d
                        medusa: {head}.{block}.linear.weight|bias, {head}.lm_head.weight or lm_head.weight of all heads

Every tensor is taken once; one that is missing, has another shape or is left over is a CheckpointError naming it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdeploy.checkpoint_contract import HeadFacts
from specdeploy.errors import CheckpointError
from specdeploy.runtime.decoder_layer import LayerShape
from specdeploy.runtime.linear import Linear
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.weights import CheckpointWeights

_BUILD_AGAIN = "Build the deployment again from the head's original folder"
_REQUIRED_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "max_position_embeddings")
# What else a config may say about its layers; defaults of the absent ones are those of Llama.
_OPTIONAL_KEYS = (
    "head_dim", "hidden_act", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
    "tie_word_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeadFolder:
    """One head: its sizes as a transformers config, what `inspect` found of it, its tensors not yet taken.

    `max_positions`: positions from here on are beyond what the head was made for. A sliding window counts as such a
    limit, because attention here is full and up to the window the two are the same.
    """

    folder: Path
    config: Any
    facts: HeadFacts
    weights: CheckpointWeights
    max_positions: int

    @property
    def shape(self) -> LayerShape:
        """What the head's decoder layers share."""
        return LayerShape(
            self.config.num_attention_heads,
            self.config.num_key_value_heads,
            self.config.head_dim,
            self.config.rms_norm_eps,
        )

    @property
    def num_layers(self) -> int:
        """Decoder layers of the head."""
        return self.facts.num_layers or 1

    def check_shapes(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Raises CheckpointError naming a tensor that is there in another shape than expected."""
        for name, shape in expected.items():
            found = self.weights.shape_of(name)
            if found is not None and found != shape:
                raise CheckpointError(
                    f"{self.folder}: {name}: shape {list(found)}, but config.json and the target make it "
                    f"{list(shape)}. {_BUILD_AGAIN}, for the target it was trained for"
                )

    def layer_shapes(self, index: int, *, attention_inputs: int = 1) -> dict[str, tuple[int, ...]]:
        """Shapes of one decoder layer; its attention reads `attention_inputs` vectors of the hidden size."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        queries = self.shape.num_heads * self.shape.head_dim
        keys = self.shape.num_kv_heads * self.shape.head_dim
        width = attention_inputs * hidden
        parts = {
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        return {f"layers.{index}.{name}.weight": shape for name, shape in parts.items()}

    def refuse_switches(self, supported: Mapping[str, tuple[bool, ...]]) -> None:
        """Raises CheckpointError for a switch of the head's config with a value that is not in `supported`.

        A switch that `supported` does not know must be off.
        """
        for key, value in self.facts.norm_switches.items():
            if value not in supported.get(key, (False,)):
                raise CheckpointError(
                    f"{self.folder}/head.json: norm_switches: {key} {str(value).lower()} is not supported by the torch "
                    f"lane for generation {self.facts.generation}. Use a head without it, or another lane"
                )


def open_head(folder: Path, generation: str, *, dtype: torch.dtype, device: torch.device) -> HeadFolder:
    """Open a canonical folder. Raises CheckpointError when it is not a whole one or not of this generation."""
    facts = read_facts(folder / "head.json")
    if facts.generation != generation:
        raise CheckpointError(
            f"{folder}/head.json: generation: {facts.generation} where {generation} is expected. "
            "Set speculation.method to what the head is"
        )
    settings = _read_object(folder / "config.json")
    config = None if generation == "medusa" else _layer_config(settings, folder)
    return HeadFolder(
        folder=folder,
        config=config,
        facts=facts,
        weights=CheckpointWeights(folder, dtype=dtype, device=device),
        max_positions=0 if config is None else _max_positions(config, settings),
    )


def take_embedding(head: HeadFolder, target: DecoderModel) -> torch.Tensor:
    """The head's embeddings [V, H], or the target's where it was trained on them and leaves them out."""
    own = head.weights.take_optional("embed_tokens.weight")
    embedding = target.embedding if own is None else own
    if embedding.shape[1] != head.config.hidden_size or embedding.shape[0] < target.vocab_size:
        whose = "the target's" if own is None else "its own"
        raise CheckpointError(
            f"{head.folder}: embed_tokens.weight: {whose} of shape {list(embedding.shape)} cannot be read with hidden "
            f"size {head.config.hidden_size} and {target.vocab_size} tokens. Use the target it was trained for"
        )
    return embedding


def take_lm_head(
    head: HeadFolder, target: DecoderModel, embedding: torch.Tensor, target_ids: torch.Tensor | None
) -> Linear | None:
    """The head's own lm_head, or rows of tied embeddings that d2t names. None: the target's (`DecoderModel.head`)."""
    hidden: int = head.config.hidden_size
    own = head.weights.take_optional("lm_head.weight")
    if own is None and target_ids is not None:
        if not head.config.tie_word_embeddings:
            raise CheckpointError(
                f"{head.folder}: tensor lm_head.weight is missing: with d2t the target's cannot serve"
            )
        return Linear(embedding[target_ids])
    if own is None:
        if target.config.hidden_size != hidden:
            raise CheckpointError(
                f"{head.folder}: tensor lm_head.weight is missing, and the target's reads {target.config.hidden_size} "
                f"values where the head has {hidden}"
            )
        return None
    most = target.vocab_size if target_ids is None else len(target_ids)
    if own.shape[1] != hidden or own.shape[0] != most:
        raise CheckpointError(
            f"{head.folder}: lm_head.weight: shape {list(own.shape)} where {[most, hidden]} is expected. {_BUILD_AGAIN}"
        )
    return Linear(own)


def read_facts(path: Path) -> HeadFacts:
    """The facts in a head.json. Raises CheckpointError where it cannot be read or holds something else."""
    from pydantic import ValidationError

    try:
        return HeadFacts.model_validate(_read_object(path))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise CheckpointError(f"{path}: not the facts of a head: {wrong}. {_BUILD_AGAIN}") from None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}. {_BUILD_AGAIN}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: not a JSON object. {_BUILD_AGAIN}")
    return content


def _layer_config(settings: Mapping[str, Any], folder: Path) -> Any:
    """A Llama config of the sizes alone: which class the producer named does not matter to the layers."""
    from transformers import LlamaConfig

    missing = [key for key in _REQUIRED_SIZES if not isinstance(settings.get(key), int)]
    if missing:
        raise CheckpointError(f"{folder}/config.json: {', '.join(missing)}: missing or not a number. {_BUILD_AGAIN}")
    # Older producers write null for "no scaling"; the config class of today wants the key left out.
    known = {key: settings[key] for key in (*_REQUIRED_SIZES, *_OPTIONAL_KEYS) if settings.get(key) is not None}
    try:
        config = LlamaConfig(**known)
    except Exception as error:  # strict config classes raise types of their own
        raise CheckpointError(f"{folder}/config.json: {error}. {_BUILD_AGAIN}") from None
    if config.hidden_act not in ("silu", "swish"):
        raise CheckpointError(f"{folder}/config.json: hidden_act: {config.hidden_act} is not supported. Only silu is")
    return config


def _max_positions(config: Any, settings: Mapping[str, Any]) -> int:
    rope = config.rope_parameters
    scaled = int((rope.get("original_max_position_embeddings") or 0) * (rope.get("factor") or 1.0))
    limit: int = max(config.max_position_embeddings, scaled)  # YaRN configs state the unscaled number
    window = settings.get("sliding_window")
    uses_window = "sliding_attention" in (settings.get("layer_types") or ["sliding_attention"])
    if isinstance(window, int) and uses_window and settings.get("use_sliding_window") is not False:
        limit = min(limit, window)
    return limit
