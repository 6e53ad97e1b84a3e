"""Tiny random EAGLE, EAGLE-3 and Medusa heads for a tiny target, as their producers write them or canonical.

    head = write_eagle3_head(tmp_path / "head", target_folder, layout="speculators", draft_vocab=100)

`layout="canonical"` is what the torch lane's builder makes of a producer's folder; `canonicalise` does the same here,
so that the runtime can be tested without the builder.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from helpers.fabricated_checkpoints import (
    LlamaSize,
    Shapes,
    eagle1_tensors,
    eagle3_config,
    eagle3_tensors,
    layer_tensors,
    llama_config,
    medusa_tensors,
)
from specdeploy.checkpoint.eagle_head import canonical_name
from specdeploy.checkpoint.info import inspect_checkpoint

CANONICAL = "canonical"
_STD = 0.3  # as in tiny_checkpoint: random heads must have opinions
_OWN_KEYS = ("speculators_config", "speculators_model_type", "transformer_layer_config", "eagle_config")


def target_size(target_folder: Path) -> LlamaSize:
    """Sizes of the target whose folder is given."""
    config = json.loads((target_folder / "config.json").read_text())
    return LlamaSize(
        num_layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        vocab=config["vocab_size"],
        head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        tied=bool(config.get("tie_word_embeddings")),
    )


def write_eagle3_head(
    folder: Path,
    target_folder: Path,
    *,
    layout: str = CANONICAL,
    seed: int = 0,
    num_layers: int = 1,
    draft_vocab: int | None = None,
    max_positions: int = 2048,
    own_embedding: bool = False,
    own_lm_head: bool = True,
    aux_layer_ids: tuple[int, ...] | None = (1, 2, 3),
    switches: Mapping[str, bool] | None = None,
    **config: Any,
) -> Path:
    """An EAGLE-3 head. `draft_vocab` trims its vocabulary to that many of the target's tokens (d2t, t2d).

    It reads the target's states after `aux_layer_ids` layers; ModelOpt writes each one less, as its heads do.

    `switches` as `eagle_head.NORM_SWITCHES` spells them; the tensors they need are written too. `layout` one of
    safeailab, specforge, speculators, modelopt, canonical.
    """
    size, switches = target_size(target_folder), switches or {}
    producer = "specforge" if layout == CANONICAL else layout
    prefix = "layers.0." if producer in ("speculators", "modelopt") else "midlayer."
    num_aux = len(aux_layer_ids) if aux_layer_ids else 3
    shapes = eagle3_tensors(
        size, draft_vocab=draft_vocab or size.vocab, prefix=prefix, num_aux=num_aux, embedding=own_embedding,
        lm_head=own_lm_head, maps=draft_vocab is not None,
    )  # fmt: skip
    for layer in range(1, num_layers):
        shapes |= layer_tensors(size, f"layers.{layer}.")
    if switches.get("norm_before_fc"):
        shapes["input_norm.weight"] = ("BF16", (num_aux * size.hidden,))
    if switches.get("fc_norm"):
        shapes |= {f"fc_norm.{index}.weight": ("BF16", (size.hidden,)) for index in range(num_aux)}
    settings = eagle3_config(size, producer, draft_vocab=draft_vocab)
    layers = settings.get("transformer_layer_config", settings)
    layers |= {"num_hidden_layers": num_layers, "max_position_embeddings": max_positions, **config}
    place = settings["eagle_config"] if producer == "modelopt" else settings
    place |= dict(switches)
    if aux_layer_ids is not None:
        shift = 1 if producer == "modelopt" else 0
        place["eagle_aux_hidden_state_layer_ids"] = [layer - shift for layer in aux_layer_ids]
    weights = random_weights(shapes, seed)
    if draft_vocab is not None:
        weights |= vocab_maps(size.vocab, draft_vocab, seed)
    return _write(folder, settings, weights, is_canonical=layout == CANONICAL)


def write_eagle_head(
    folder: Path,
    target_folder: Path,
    *,
    layout: str = CANONICAL,
    seed: int = 0,
    num_layers: int = 1,
    bias: bool = True,
    max_positions: int = 2048,
    own_embedding: bool = True,
    **config: Any,
) -> Path:
    """An EAGLE-1 head. `layout` one of safeailab, speculators, canonical."""
    size = target_size(target_folder)
    shapes = eagle1_tensors(size, bias=bias, embedding=own_embedding)
    for layer in range(1, num_layers):
        shapes |= layer_tensors(size, f"layers.{layer}.")
    sizes = llama_config(size, num_hidden_layers=num_layers, max_position_embeddings=max_positions, **config)
    settings: dict[str, Any] = {**sizes, "bias": bias}
    if layout == "speculators":
        shapes = {_speculators_name(name): entry for name, entry in shapes.items()}
        del sizes["architectures"]
        settings = {
            "architectures": ["EagleSpeculator"],
            "speculators_model_type": "eagle",
            "speculators_config": {"algorithm": "eagle", "verifier": {"name_or_path": "target"}},
            "transformer_layer_config": sizes,
            "fusion_bias": bias,
            "layernorms": False,
        }
    return _write(folder, settings, random_weights(shapes, seed), is_canonical=layout == CANONICAL)


def _speculators_name(name: str) -> str:
    return f"fusion_{name}" if name.startswith("fc.") else name.replace("layers.0.", "transformer.")


def write_medusa_heads(
    folder: Path,
    target_folder: Path,
    *,
    layout: str = CANONICAL,
    seed: int = 0,
    num_heads: int = 4,
    num_layers: int = 1,
    own_lm_head: bool = True,
    shared_lm_head: bool = False,
) -> Path:
    """Medusa heads. `layout` one of original, vllm, modelopt, canonical. `shared_lm_head`: one for all of them."""
    size = target_size(target_folder)
    naming = "modelopt" if layout == CANONICAL else layout
    shapes = medusa_tensors(size.hidden, size.vocab, num_heads=num_heads, num_layers=num_layers, naming=naming)
    if shared_lm_head or not own_lm_head:
        shapes = {name: entry for name, entry in shapes.items() if entry[1] != (size.vocab, size.hidden)}
    if shared_lm_head:
        shapes["lm_head.weight"] = ("BF16", (size.vocab, size.hidden))
    settings = {
        "model_type": "medusa",
        "medusa_num_heads": num_heads,
        "medusa_num_layers": num_layers,
        "hidden_size": size.hidden,
        "vocab_size": size.vocab,
    }
    return _write(folder, settings, random_weights(shapes, seed), is_canonical=layout == CANONICAL)


def add_mtp_layer(folder: Path) -> Path:
    """Make a Qwen2 checkpoint what MiMo publishes: another name, and one more layer beside the decoder's."""
    size, base = target_size(folder), "model.mtp_layers.0."
    shapes = layer_tensors(size, base)
    shapes |= {f"{base}{name}_layernorm.weight": ("F32", (size.hidden,)) for name in ("token", "hidden", "final")}
    shapes[f"{base}input_proj.weight"] = ("F32", (size.hidden, 2 * size.hidden))
    shapes |= {
        f"{base}self_attn.{name}.bias": ("F32", (heads * size.head_dim,))
        for name, heads in (("q_proj", size.heads), ("k_proj", size.kv_heads), ("v_proj", size.kv_heads))
    }
    weights = load_file(folder / "model.safetensors") | random_weights(shapes, seed=3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    auto_map = {"AutoConfig": "configuration_mimo.MiMoConfig"}
    path = folder / "config.json"
    names = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "auto_map": auto_map}
    path.write_text(json.dumps(json.loads(path.read_text()) | names | {"num_nextn_predict_layers": 1}))
    return folder


def canonicalise(producer_folder: Path, folder: Path) -> Path:
    """A producer's head in the layout that the runtime loads: names, flat config.json, head.json."""
    facts = inspect_checkpoint(producer_folder).head
    assert facts is not None, producer_folder
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.loads((producer_folder / "config.json").read_text())
    flat = {key: value for key, value in settings.items() if key not in _OWN_KEYS}
    flat |= settings.get("transformer_layer_config", {})
    (folder / "config.json").write_text(json.dumps(flat))
    (folder / "head.json").write_text(facts.model_dump_json())
    weights = load_file(producer_folder / "model.safetensors")
    rename = _canonical_medusa_name if facts.generation == "medusa" else canonical_name
    save_file({rename(name): tensor for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def _canonical_medusa_name(name: str) -> str:
    return name.removeprefix("medusa_heads.").replace("medusa_layers.", "")


def random_weights(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    """Normal weights; norms around one, maps left out."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, (dtype, shape) in shapes.items():
        if dtype in ("I64", "BOOL"):
            continue
        noise = torch.randn(shape, generator=generator) * _STD
        weights[name] = noise + 1.0 if "norm" in name else noise
    return weights


def vocab_maps(vocab: int, draft_vocab: int, seed: int) -> dict[str, torch.Tensor]:
    """d2t and t2d for a random choice of `draft_vocab` tokens."""
    kept = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:draft_vocab].sort().values
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[kept] = True
    return {"d2t": kept - torch.arange(draft_vocab), "t2d": mask}


def _write(folder: Path, settings: Mapping[str, Any], weights: dict[str, torch.Tensor], *, is_canonical: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(weights, folder / "model.safetensors")
    if not is_canonical:
        return folder
    producer = folder.with_name(f"{folder.name}-producer")
    folder.rename(producer)
    canonicalise(producer, folder)
    shutil.rmtree(producer)
    return folder
