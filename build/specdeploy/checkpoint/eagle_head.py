"""EAGLE and EAGLE-3 heads of four producers in one record (`HeadFacts`), and back into each producer's config.json.

    SafeAILab    flat config, architecture of the target; EAGLE-1: `layers.0.`, `fc` [H, 2H] with or without bias;
                 EAGLE-3: `midlayer.`, `fc` [H, 3H], own `lm_head`, `d2t`, `t2d`
    SpecForge    the same tensors; architecture LlamaForCausalLMEagle3; fc_norm and norm_output flat (EAGLE-3.1)
    speculators  layer sizes under transformer_layer_config, verifier under speculators_config; `layers.0.`
    ModelOpt     flat, switches and auxiliary layer ids under eagle_config; `layers.0.` or `midlayer.`

The generation is told from shapes, because configs of one generation are passed off as another: the first layer of
EAGLE-3 attends over embedding and hidden state side by side, so its q_proj reads 2 x hidden.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specdeploy.checkpoint.json_text import ObjectReader
from specdeploy.checkpoint.safetensors_header import TensorEntry
from specdeploy.checkpoint_contract import HeadFacts, HeadLayout, TensorOrigin

Generation = Literal["v1", "v3"]

AUX_ID_KEYS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
# Read in ModelOpt's speculative/plugins/transformers.py (hooks on the outputs of layers), SGLang's llama.py (adds 1),
# vLLM's set_eagle3_aux_hidden_state_layers (adds 1 to target_layer_ids, takes the flat key as it is), SpecForge's
# model_providers.py (eagle_config).
_OUTPUT_KEY, _OUTPUT_SECTION = "target_layer_ids", "eagle_config"
_NUM_AUX_KEYS = ("num_aux_hidden_states", "num_aux_layers", "num_eagle_features")
NORM_SWITCHES = (
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
)
# Switches of an EAGLE-3 head that change its forward pass, and the value that engines take where a config is silent.
_V3_DEFAULTS = {"norm_before_residual": False, "norm_before_fc": False, "fc_norm": False, "norm_output": False}
_NORM_TENSOR = re.compile(r"^(?:input_norm|fc_norm|enorm|hnorm|embedding_layernorm|pre_lm_head_layernorm)\b")
_VISION = re.compile(r"VL|ConditionalGeneration|Vision")
_PREFIXES = ("model.", "draft_model.", "eagle_module.")

# Keys that are read, that tensors tell as well, or that cannot change what a head computes. All others are reported.
# One text: sixty quoted names would be longer and no easier to read.
_KNOWN_KEYS = frozenset(
    """draft_vocab_size head_dim hidden_size intermediate_size max_position_embeddings max_sequence_length
    num_attention_heads num_hidden_layers num_key_value_heads num_target_layers target_hidden_size vocab_size
    kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    architectures attention_bias bias eagle_config fusion_bias has_lm_head hidden_act layer_types layernorms mlp_bias
    model_type pretraining_tp qkv_bias quantization quantization_config rms_norm_eps rope_parameters rope_scaling
    rope_theta sliding_window speculators_config speculators_model_type tie_word_embeddings transformer_layer_config
    use_sliding_window
    _name_or_path attention_dropout auto_map bos_token_id dtype embed_requires_grad eos_token_id id2label
    initializer_range is_decoder label2id max_window_layers output_attentions output_hidden_states pad_token_id
    position_embedding_type speculators_version target_model_type tokenizer_class torch_dtype transformers_version
    use_cache use_return_dict
    add_cross_attention bad_words_ids begin_suppress_tokens chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id is_encoder_decoder
    length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_scores prefix problem_type pruned_heads remove_invalid_values repetition_penalty return_dict
    return_dict_in_generate sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder top_k top_p torchscript typical_p use_bfloat16""".split()  # noqa: SIM905
)
# Objects beside the flat keys, and the keys that only they have.
SECTIONS = {
    "eagle_config": frozenset({"use_aux_hidden_state", "next_layer_regular", "parallel_draft_step"}),
    "speculators_config": frozenset({"algorithm", "default_proposal_method", "proposal_methods", "verifier"}),
    "transformer_layer_config": frozenset[str](),
}
_MAX_LAYERS = 10_000


def canonical_name(name: str) -> str:
    """A head's tensor by one spelling: no prefix, `layers.0.` for `midlayer.`, `fc.` for `fusion_fc.`."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name.startswith("midlayer."):
        return f"layers.0.{name.removeprefix('midlayer.')}"
    if name.startswith("transformer."):
        return f"layers.0.{name.removeprefix('transformer.')}"
    return name.removeprefix("fusion_") if name.startswith("fusion_fc.") else name


def is_eagle_head(config: Mapping[str, Any], tensors: Mapping[str, TensorEntry]) -> bool:
    """Whether the folder holds a head, by what config.json says or by tensors that only heads have.

    `d2t` is no proof: a draft model with a trimmed lm_head carries it too.
    """
    if declared_generation(config) is not None:
        return True
    names = {canonical_name(name) for name in tensors}
    return "fc.weight" in names or "layers.0.hidden_norm.weight" in names


def declared_generation(config: Mapping[str, Any]) -> Generation | None:
    """What config.json claims to be, by architecture and speculators' names."""
    speculators = config.get("speculators_config")
    algorithm = speculators.get("algorithm") if isinstance(speculators, dict) else None
    architectures = config.get("architectures")
    names = [
        *(architectures if isinstance(architectures, list) else []),
        config.get("speculators_model_type"),
        algorithm,
    ]
    # Eagle is also the name of a family of vision-language models.
    spelled = " ".join(str(name).lower() for name in names if name is not None and not _VISION.search(str(name)))
    if "eagle3" in spelled:
        return "v3"
    return "v1" if "eagle" in spelled else None


def head_layout(config: Mapping[str, Any]) -> HeadLayout:
    """Whose spelling the config has."""
    if any(key in config for key in ("speculators_config", "speculators_model_type", "transformer_layer_config")):
        return HeadLayout.SPECULATORS
    if "eagle_config" in config:
        return HeadLayout.MODELOPT
    return HeadLayout.SAFEAILAB if declared_generation(config) is None else HeadLayout.SPECFORGE


def layer_config(config: ObjectReader) -> ObjectReader:
    """Where the sizes of a head's layers are: nested for speculators, flat for the others."""
    return config.nested("transformer_layer_config") if "transformer_layer_config" in config.content else config


def _sections(config: ObjectReader) -> list[ObjectReader]:
    """The flat config and the objects in it where producers put a head's switches; the first that states one wins."""
    return [config, *(config.nested(key) for key in SECTIONS if key in config.content)]


def _flag(config: ObjectReader, *names: str) -> bool | None:
    return next((value for place in _sections(config) if (value := place.flag(*names)) is not None), None)


def _size(config: ObjectReader, *names: str, maximum: int = (1 << 53) - 1) -> int | None:
    sizes = (place.size(*names, maximum=maximum) for place in _sections(config))
    return next((size for size in sizes if size is not None), None)


def read_head_facts(config: ObjectReader, tensors: Mapping[str, TensorEntry]) -> HeadFacts:
    """The head in one record; wrong values in config.json are left in `config.problems`."""
    shapes = {canonical_name(name): entry.shape for name, entry in tensors.items()}
    layers = layer_config(config)
    hidden = layers.size("hidden_size")
    generation = _generation(shapes, hidden, declared_generation(config.content))
    fc = shapes.get("fc.weight")
    fc_out, fc_in = fc if fc is not None and len(fc) == 2 else (None, None)
    target_vocab = layers.size("vocab_size") or config.size("vocab_size")
    draft_vocab = _size(config, "draft_vocab_size")
    aux = _aux_layer_ids(config)
    num_aux = _num_aux_layers(config, generation, None if aux is None else aux.ids, fc_in, hidden)
    target_hidden = _size(config, "target_hidden_size")
    if target_hidden is None and fc_in is not None:
        parts = num_aux if generation == "v3" else 2
        target_hidden = fc_in // parts if parts and fc_in % parts == 0 else None
    switches = _norm_switches(config)
    is_tied = bool(layers.flag("tie_word_embeddings") or config.flag("tie_word_embeddings"))
    needed = _NeededTensors(config, layers, shapes, generation)
    origins = needed.origins(
        can_borrow_embedding=target_hidden in (None, hidden or fc_out),
        # Tied, it borrows rows of the embedding: all of them, or those that d2t names.
        can_borrow_lm_head=(draft_vocab in (None, target_vocab) or ("d2t" in shapes and is_tied))
        and target_hidden in (None, hidden or fc_out),
        needs_map=draft_vocab is not None and target_vocab is not None and draft_vocab < target_vocab,
        switches=switches,
        num_aux=num_aux,
    )
    return HeadFacts(
        layout=head_layout(config.content),
        generation=generation,
        declared_generation=declared_generation(config.content),
        fc_in_features=fc_in or None,
        fc_out_features=fc_out or None,
        has_fc_bias="fc.bias" in shapes,
        num_layers=layers.size("num_hidden_layers", maximum=_MAX_LAYERS),
        hidden_size=hidden,
        target_hidden_size=target_hidden or None,
        draft_vocab_size=draft_vocab,
        target_vocab_size=target_vocab,
        num_aux_layers=num_aux,
        aux_layer_ids=None if aux is None else aux.ids,
        aux_layer_ids_source=None if aux is None else aux.source,
        aux_ids_name_outputs=aux is not None and aux.name_outputs,
        norm_switches=switches,
        norm_tensors=tuple(sorted(name for name in shapes if _NORM_TENSOR.match(name))),
        has_own_embedding="embed_tokens.weight" in shapes,
        has_own_lm_head="lm_head.weight" in shapes,
        has_d2t="d2t" in shapes,
        has_t2d="t2d" in shapes,
        tensors=origins,
        unexpected_tensors=needed.unexpected(origins),
        unknown_config_keys=_unknown_keys(config),
        defaults_applied=_defaults_applied(generation, switches),
    )


def _generation(shapes: Mapping[str, tuple[int, ...]], hidden: int | None, declared: Generation | None) -> Generation:
    query = next(
        (shapes[name] for name in shapes if re.fullmatch(r"layers\.0\.self_attn\.(?:q_proj|q_a_proj)\.weight", name)),
        None,
    )
    fc = shapes.get("fc.weight")
    width = hidden or (fc[0] if fc else None)
    if query is not None and len(query) == 2 and width:
        return "v3" if query[1] == 2 * width else "v1"
    if "d2t" in shapes or "layers.0.hidden_norm.weight" in shapes:
        return "v3"
    if fc is not None and len(fc) == 2 and width:
        return "v1" if fc[1] == 2 * width else "v3"
    return declared or "v1"


@dataclass(frozen=True, slots=True)
class _AuxLayers:
    """Ids of one place; `name_outputs` as in HeadFacts."""

    ids: tuple[int, ...]
    source: str
    name_outputs: bool

    @property
    def states(self) -> tuple[int, ...]:
        return tuple(layer + self.name_outputs for layer in self.ids)


def _aux_layer_ids(config: ObjectReader) -> _AuxLayers | None:
    """Ids and the key that states them; a second place that means other states is named. An empty list is none."""
    found: list[_AuxLayers] = []
    places = [*_sections(config), *([config.nested("dflash_config")] if "dflash_config" in config.content else [])]
    for place in places:
        is_output_section = place.prefix == f"{_OUTPUT_SECTION}."
        for key in AUX_ID_KEYS:
            ids = place.sizes(key)
            if ids:
                # Trainers store a set, whose order is chance: states are collected in the order of the layers.
                ids = tuple(sorted(ids)) if is_output_section else ids
                found.append(_AuxLayers(ids, f"{place.prefix}{key}", is_output_section or key == _OUTPUT_KEY))
    if not found:
        return None
    first = found[0]
    others = [f"{other.source} says {list(other.ids)}" for other in found[1:] if other.states != first.states]
    return replace(first, source=f"{first.source} ({'; '.join(others)})") if others else first


def _num_aux_layers(
    config: ObjectReader, generation: Generation, ids: tuple[int, ...] | None, fc_in: int | None, hidden: int | None
) -> int | None:
    if generation != "v3":
        return None
    if ids is not None:
        return len(ids)
    eagle = config.nested("eagle_config")
    stated = _size(config, *_NUM_AUX_KEYS, maximum=_MAX_LAYERS)
    if stated is not None:
        return stated
    if eagle.flag("use_aux_hidden_state") is False:
        return 1  # reads the last hidden state only
    width = _size(config, "target_hidden_size") or hidden
    if fc_in and width and fc_in % width == 0 and fc_in // width > 1:
        return fc_in // width
    return 3 if fc_in else None  # as every published EAGLE-3 head; the target's width then follows from fc


def _norm_switches(config: ObjectReader) -> dict[str, bool]:
    found = {key: _flag(config, key) for key in NORM_SWITCHES}
    return {key: value for key, value in found.items() if value is not None}


def _defaults_applied(generation: Generation, switches: Mapping[str, bool]) -> dict[str, str]:
    if generation != "v3":
        return {}
    return {key: str(value).lower() for key, value in _V3_DEFAULTS.items() if key not in switches}


def _unknown_keys(config: ObjectReader) -> tuple[str, ...]:
    known = _KNOWN_KEYS | set(AUX_ID_KEYS) | set(_NUM_AUX_KEYS) | set(NORM_SWITCHES)
    unknown = [key for key in config.content if key not in known]
    switches = _norm_switches(config)
    for section in _sections(config)[1:]:
        understood = known | SECTIONS[section.prefix.removesuffix(".")]
        # A switch that another place states otherwise is not understood either.
        unknown += [
            f"{section.prefix}{key}"
            for key, value in section.content.items()
            if key not in understood or (key in switches and isinstance(value, bool) and value != switches[key])
        ]
    return tuple(sorted(unknown))


# --- which tensors a head needs -------------------------------------------------------------------------------------

_ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_LATENT_ATTENTION = (
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_a_layernorm",
    "self_attn.kv_b_proj",
    "self_attn.o_proj",
)
_GATED_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


class _NeededTensors:
    """Tensors that the forward pass reads, by canonical name, compared with those in the file."""

    def __init__(
        self,
        config: ObjectReader,
        layers: ObjectReader,
        shapes: Mapping[str, tuple[int, ...]],
        generation: Generation,
    ) -> None:
        self._config, self._layers, self._names, self._generation = config, layers, set(shapes), generation
        # ModelOpt's heads may read the last hidden state alone, without fc and its norm.
        self._reads_aux_layers = config.nested("eagle_config").flag("use_aux_hidden_state") is not False

    def origins(
        self,
        *,
        can_borrow_embedding: bool,
        can_borrow_lm_head: bool,
        needs_map: bool,
        switches: Mapping[str, bool],
        num_aux: int | None,
    ) -> dict[str, TensorOrigin]:
        """Every needed tensor and where it comes from."""
        origins = {name: self._origin(name, can_borrow=False) for name in self._own(switches, num_aux)}
        origins["embed_tokens.weight"] = self._origin("embed_tokens.weight", can_borrow=can_borrow_embedding)
        origins["lm_head.weight"] = self._origin("lm_head.weight", can_borrow=can_borrow_lm_head)
        if needs_map:
            origins["d2t"] = self._origin("d2t", can_borrow=False)
        return origins

    def _origin(self, name: str, *, can_borrow: bool) -> TensorOrigin:
        stem = name.removesuffix("weight")  # quantised: `fc.weight_packed` and scales instead of `fc.weight`
        if name in self._names or (stem.endswith(".") and any(found.startswith(f"{name}_") for found in self._names)):
            return TensorOrigin.IN_HEAD
        return TensorOrigin.BORROWED_FROM_TARGET if can_borrow else TensorOrigin.MISSING

    def _own(self, switches: Mapping[str, bool], num_aux: int | None) -> list[str]:
        names = ["fc.weight"] if self._generation == "v1" or self._reads_aux_layers else []
        if self._generation == "v1" and _flag(self._config, "bias", "fusion_bias"):
            names.append("fc.bias")
        for layer in range(min(self._layers.size("num_hidden_layers") or 1, 64)):
            names += [f"layers.{layer}.{part}.weight" for part in self._layer_parts(layer)]
        if self._generation == "v3":
            names.append("norm.weight")
            if switches.get("norm_before_fc"):
                names.append("input_norm.weight")
            if switches.get("fc_norm"):
                names += [f"fc_norm.{index}.weight" for index in range(min(num_aux or 3, 64))]
        if _flag(self._config, "layernorms"):
            names += ["embedding_layernorm.weight", "pre_lm_head_layernorm.weight"]
        return names

    def _layer_parts(self, layer: int) -> list[str]:
        is_latent = any(".kv_a_proj_with_mqa." in name for name in self._names)
        has_experts = any(".mlp.experts." in name for name in self._names)
        parts = [*(_LATENT_ATTENTION if is_latent else _ATTENTION), *(() if has_experts else _GATED_MLP)]
        parts.append("post_attention_layernorm")
        if layer > 0 or self._generation == "v3":
            parts.append("input_layernorm")
        if layer == 0 and self._generation == "v3" and self._reads_aux_layers:
            parts.append("hidden_norm")
        return parts

    def unexpected(self, origins: Mapping[str, TensorOrigin]) -> tuple[str, ...]:
        """Tensors in the file that the forward pass does not read, as far as is known."""
        known = set(origins)
        return tuple(sorted(name for name in self._names if not self._is_expected(name, known)))

    def _is_expected(self, name: str, known: set[str]) -> bool:
        if name in known or name in ("d2t", "t2d") or name.endswith("rotary_emb.inv_freq"):
            return True
        stem = name.rsplit(".", 1)[0]
        if name.endswith(".bias") and stem.startswith("layers.") and f"{stem}.weight" in known:
            return bool(self._layers.flag("attention_bias", "mlp_bias", "qkv_bias"))
        if re.match(r"layers\.\d+\.(?:mlp\.(?:experts|gate)\.|self_attn\.(?:q_norm|k_norm|q_a_|q_b_))", name):
            return True
        if self._generation == "v1" and name == "fc.bias" and _flag(self._config, "bias", "fusion_bias") is None:
            return True  # old configs do not say whether fc has one
        return any(name.startswith(f"{weight}_") for weight in known) or name.endswith(
            ("_scale", "_scale_inv", ".scales")
        )


# --- back into a config.json ----------------------------------------------------------------------------------------


def render_head_config(head: HeadFacts, layout: HeadLayout | None = None) -> dict[str, Any]:
    """What config.json must say of this head in `layout`'s spelling: sizes of its vocabulary, layer ids, norm switches.

    Reading the result gives the same facts, with layer ids as `layout` counts them, so nothing is lost between
    producers.
    """
    layout = layout or head.layout
    facts: dict[str, Any] = dict(head.norm_switches)
    states = head.aux_states
    # No layer puts out the embeddings (state 0): such ids only the flat key can say.
    counts_outputs = layout is HeadLayout.MODELOPT and states is not None and 0 not in states
    if states is not None and counts_outputs:
        facts[AUX_ID_KEYS[0]] = [state - 1 for state in states]
    config: dict[str, Any] = {"architectures": [_architecture(head, layout)]}
    sizes = {
        "hidden_size": head.hidden_size,
        "num_hidden_layers": head.num_layers,
        "vocab_size": head.target_vocab_size,
    }
    sizes = {key: value for key, value in sizes.items() if value is not None}
    if layout is HeadLayout.SPECULATORS:
        algorithm = "eagle3" if head.generation == "v3" else "eagle"
        config |= {"speculators_model_type": algorithm, "speculators_config": {"algorithm": algorithm}}
        config |= {"transformer_layer_config": sizes, **facts}
    elif layout is HeadLayout.MODELOPT:
        config |= {**sizes, "eagle_config": facts}
    else:
        config |= {**sizes, **facts}
    if states is not None and not counts_outputs:
        config[AUX_ID_KEYS[0]] = list(states)
    optional = {"draft_vocab_size": head.draft_vocab_size, "target_hidden_size": head.target_hidden_size}
    return config | {key: value for key, value in optional.items() if value is not None}


def _architecture(head: HeadFacts, layout: HeadLayout) -> str:
    if layout is HeadLayout.SAFEAILAB:
        return "LlamaForCausalLM"
    if layout is HeadLayout.SPECULATORS:
        return "Eagle3Speculator" if head.generation == "v3" else "EagleSpeculator"
    return "LlamaForCausalLMEagle3" if head.generation == "v3" else "LlamaForCausalLMEagle"
