"""A head of any producer as the one folder that the torch runtime loads. Bytes are copied, torch is never loaded.

model.safetensors   eagle, eagle3: names as `eagle_head.canonical_name` spells them; medusa: `{h}.{l}.linear.weight`,
                    `{h}.{l}.linear.bias`, `{h}.lm_head.weight` or `lm_head.weight` of all heads
config.json         the sizes of its layers, flat
head.json           HeadFacts
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specdeploy.checkpoint.eagle_head import SECTIONS, canonical_name
from specdeploy.checkpoint.info import CheckpointFiles, describe_checkpoint, read_checkpoint_files
from specdeploy.checkpoint.medusa_head import SHARED_LM_HEAD, canonical_medusa_name
from specdeploy.checkpoint.safetensors_header import TensorEntry
from specdeploy.checkpoint.safetensors_writer import CopiedTensor, write_safetensors
from specdeploy.checkpoint.torch_heads import head_refusals
from specdeploy.checkpoint_contract import CheckpointInfo, HeadFacts, TensorOrigin
from specdeploy.errors import CheckpointError

HEAD_FILE = "head.json"
WEIGHTS_FILE = "model.safetensors"

_FLOATS = ("F32", "F16", "BF16")
_MAPS = {"d2t": ("I64", "I32", "I16"), "t2d": ("BOOL", "U8", "I8", "I32", "I64")}


def write_canonical_head(source: Path, folder: Path) -> HeadFacts:
    """Write `folder` (made here) from the head in `source`.

    Raises `CheckpointError` with every reason why the runtime cannot have it: not a head, quantised, tensors that are
    missing or unknown, switches that its forward pass does not follow.
    """
    files = read_checkpoint_files(source)
    info = describe_checkpoint(files)
    if info.head is None:
        raise CheckpointError(f"{source}: no EAGLE, EAGLE-3 or Medusa head. Name a head, or use method draft_model")
    tensors, problems = _rename(files, info.head)
    problems = [*_refusals(info, info.head), *problems, *_wrong_dtypes(tensors)]
    if problems:
        raise CheckpointError("\n".join(f"{source}: {problem}" for problem in problems))
    folder.mkdir(parents=True)
    write_safetensors(folder / WEIGHTS_FILE, tensors)
    _write_json(folder / "config.json", _flat_config(files.config, info.head))
    _write_json(folder / HEAD_FILE, info.head.model_dump(mode="json"))
    return info.head


def _refusals(info: CheckpointInfo, head: HeadFacts) -> Iterator[str]:
    if info.quantization is not None:
        method = info.quantization.method
        yield f"weights are quantised ({method}); the runtime computes in 16 or 32 bit. Use the unquantised head"
    missing = [name for name, origin in head.tensors.items() if origin is TensorOrigin.MISSING]
    if missing:
        yield f"needed and not there: {', '.join(missing)}. Take a complete head"
    if unexpected := head.unexpected_tensors:
        more = f" and {len(unexpected) - 5} more" if len(unexpected) > 5 else ""
        yield (
            f"in the file, but no part of a {head.generation} head that the runtime knows: "
            f"{', '.join(unexpected[:5])}{more}. Leaving them out would change what it drafts"
        )
    yield from (f"{reason}. Use another head" for reason in head_refusals(info, head))


def _rename(files: CheckpointFiles, head: HeadFacts) -> tuple[list[CopiedTensor], list[str]]:
    """Every tensor that the runtime reads under its one name, and names that two tensors would have."""
    tensors: dict[str, CopiedTensor] = {}
    problems = []
    for entry in files.weights.tensors.values():
        name = _name_of(entry, head)
        if name is None:
            continue
        if name in tensors:
            problems.append(f"{tensors[name].source.name} and {entry.name} are the same tensor {name}. Keep one")
        tensors[name] = CopiedTensor(name, entry)
    own = sorted(name for name in tensors if name.endswith(f".{SHARED_LM_HEAD}"))
    if head.generation == "medusa" and SHARED_LM_HEAD in tensors and own:
        problems.append(f"{SHARED_LM_HEAD} is of all heads and {own[0]} of one. Keep one of the two kinds")
    return list(tensors.values()), problems


def _name_of(entry: TensorEntry, head: HeadFacts) -> str | None:
    """By what name the runtime finds a tensor; None for one that is computed from config.json, or unknown."""
    if head.generation != "medusa":
        return None if entry.name.endswith("rotary_emb.inv_freq") else canonical_name(entry.name)
    return SHARED_LM_HEAD if entry.name == SHARED_LM_HEAD else canonical_medusa_name(entry.name)


def _wrong_dtypes(tensors: list[CopiedTensor]) -> Iterator[str]:
    for tensor in tensors:
        allowed = _MAPS.get(tensor.name, _FLOATS)
        if tensor.dtype not in allowed:
            yield f"{tensor.source.name} is stored as {tensor.dtype}, not as {', '.join(allowed)}. Export it so"


def _flat_config(config: dict[str, Any], head: HeadFacts) -> dict[str, Any]:
    """Sizes and settings of the layers at the top level, whatever object they were in."""
    layers = config.get("transformer_layer_config")
    flat = {key: value for key, value in config.items() if key not in (*SECTIONS, "speculators_model_type")}
    flat |= layers if isinstance(layers, dict) else {}
    if head.generation == "medusa":
        sizes = {"hidden_size": head.hidden_size, "vocab_size": head.target_vocab_size}
        return {**flat, **sizes, "num_heads": head.num_heads, "num_layers": head.num_layers, "model_type": "medusa"}
    flat.setdefault("model_type", "llama")
    return flat


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
