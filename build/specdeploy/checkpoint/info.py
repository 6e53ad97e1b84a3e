"""`CheckpointInfo` of a folder: a model, or an EAGLE, EAGLE-3 or Medusa head, from headers and small files alone."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specdeploy.checkpoint import model_facts
from specdeploy.checkpoint.eagle_head import canonical_name, is_eagle_head, layer_config, read_head_facts
from specdeploy.checkpoint.head_counts import count_head
from specdeploy.checkpoint.json_text import FETCH_AGAIN, ObjectReader, is_present, load_json_object
from specdeploy.checkpoint.medusa_head import is_medusa_head, read_medusa_facts
from specdeploy.checkpoint.safetensors_header import TensorEntry, WeightFiles, read_weight_files
from specdeploy.checkpoint.tensor_names import decoder_name, decoder_tensors, other_modality
from specdeploy.checkpoint.tokenizer import TokenMap, has_tokenizer, load_token_map
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, HeadFacts, VocabularySizes
from specdeploy.errors import CheckpointError

ResultT = TypeVar("ResultT")
_PICKLED_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_NOT_WEIGHTS = {"training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """What a folder holds, read once. `tokens` is None without a tokenizer, as in most heads."""

    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    weights: WeightFiles
    tokens: TokenMap | None

    def find(self, name: str) -> TensorEntry | None:
        """A tensor by its canonical name, such as `embed_tokens.weight`, whatever prefix the file gives it."""
        tensors = self.weights.tensors
        if name in tensors:
            return tensors[name]
        for stored, entry in tensors.items():
            if canonical_name(stored) == name or (decoder_name(stored) == name and other_modality(stored) is None):
                return entry
        return None


def inspect_checkpoint(folder: Path, *, reference: str | None = None) -> CheckpointInfo:
    """Facts of `folder`. Raises `CheckpointError` with everything that is broken in its files."""
    return describe_checkpoint(read_checkpoint_files(folder), reference=reference)


def read_checkpoint_files(folder: Path) -> CheckpointFiles:
    """Config, headers and token map of `folder`. Raises `CheckpointError` with the faults of all of them."""
    problems: list[str] = []

    def attempt(read: Callable[[], ResultT], otherwise: ResultT) -> ResultT:
        try:
            return read()
        except CheckpointError as error:
            problems.append(str(error))
            return otherwise

    if not os.path.isdir(folder):  # `Path.is_dir` raises for a name longer than a file can have
        raise CheckpointError(f"{folder}: not a folder. Write the folder of a checkpoint")
    generation = folder / "generation_config.json"
    nothing: dict[str, Any] = {}
    config = attempt(lambda: load_json_object(folder / "config.json"), nothing)
    generation_config = attempt(lambda: load_json_object(generation), nothing) if is_present(generation) else nothing
    weights = attempt(lambda: read_weight_files(folder), WeightFiles((), None, {}))
    tokens = attempt(lambda: load_token_map(folder), None) if has_tokenizer(folder) else None
    if not weights.files and (pickled := pickled_weights(folder)):
        problems.append(conversion_remedy(folder, pickled))
    if problems:
        raise CheckpointError("\n".join(problems))
    return CheckpointFiles(folder, config, generation_config, weights, tokens)


def pickled_weights(folder: Path) -> list[str]:
    """Names of weight files that can run code when they are read."""
    names = {path.name for pattern in _PICKLED_WEIGHTS for path in folder.glob(pattern)}
    return sorted(names - _NOT_WEIGHTS)


def conversion_remedy(folder: Path, names: list[str]) -> str:
    """Why pickled weights are refused, and the command that converts them."""
    return (
        f"{folder}: weights only as {', '.join(names[:3])}, a format that can run code when it is read. "
        "Convert them once, in a place you trust: "
        'python -c "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; '
        '[C.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for C in (M, T)]" '
        f"{folder} {folder}-safetensors, or a head without transformers' help: "
        'python -c "import sys, torch; from safetensors.torch import save_file; '
        'save_file({k: v.contiguous() for k, v in torch.load(sys.argv[1], weights_only=True).items()}, sys.argv[2])" '
        f"{folder / names[0]} {folder / 'model.safetensors'}"
    )


def describe_checkpoint(files: CheckpointFiles, *, reference: str | None = None) -> CheckpointInfo:
    """Facts of files already read. Raises `CheckpointError` with every wrong value of the configs at once."""
    config = ObjectReader(files.config, str(files.folder / "config.json"))
    generation = ObjectReader(files.generation_config, str(files.folder / "generation_config.json"))
    generation.problems = config.problems
    tensors = files.weights.tensors
    head: HeadFacts | None = None
    if is_medusa_head(files.config, tensors):
        head = read_medusa_facts(config, tensors)
    elif is_eagle_head(files.config, tensors):
        head = read_head_facts(config, tensors)
    info = _describe(files, config, generation, head, reference or str(files.folder))
    config.check()
    return info


def _kind(head: HeadFacts | None) -> CheckpointKind:
    if head is None:
        return CheckpointKind.CAUSAL_LM
    kinds = {"v1": CheckpointKind.EAGLE, "v3": CheckpointKind.EAGLE3, "medusa": CheckpointKind.MEDUSA}
    return kinds[head.generation]


def _describe(
    files: CheckpointFiles,
    config: ObjectReader,
    generation: ObjectReader,
    head: HeadFacts | None,
    reference: str,
) -> CheckpointInfo:
    tensors, others = decoder_tensors(files.weights.tensors)
    sizes = model_facts.text_config(config) if head is None else layer_config(config)
    if head is not None and head.generation == "medusa":
        sizes = ObjectReader({}, config.file)
    model_type = sizes.text("model_type") or config.text("model_type")
    # A head's first layer reads two states at once: its projections are no rule for the model's.
    shape = model_facts.decoder_shape(sizes, model_type, tensors if head is None else {})
    moe = model_facts.moe_shape(sizes, shape.num_layers, tensors)
    is_unclear = model_facts.is_unclear_mixture(sizes, moe, tensors)
    quantized = model_facts.quantization(config, files.folder)
    stored_dtypes = model_facts.stored_dtypes(files.weights.tensors.values())
    # All of a head's layers attend.
    num_caching = shape.num_layers
    if head is None and shape.num_layers is not None:
        num_caching = model_facts.num_attention_layers(sizes, shape.num_layers, tensors)
        if num_caching is None:
            sizes.not_found.append("which layers cache keys and values (kv_elements_per_token)")
    counts: model_facts.ParameterCounts | None
    if files.weights.tensors:
        counts = model_facts.count_stored(
            tensors,
            others,
            moe=moe,
            is_unclear=is_unclear,
            num_layers=shape.num_layers if head is None else None,
            quantized=quantized,
            is_tied=bool(shape.tie_word_embeddings),
        )
    elif head is not None:
        elements = count_head(head, shape)
        counts = None if elements is None else model_facts.ParameterCounts(elements, elements, {})
    elif is_unclear or num_caching != shape.num_layers:  # unknown experts, or layers that are not all alike
        counts = None
    else:
        counts = model_facts.count_by_config(sizes, shape, moe)
    if is_unclear:
        sizes.not_found.append("which experts a token uses (num_active_parameters)")
    kv_dtype = model_facts.kv_cache_dtype(
        sizes if sizes.first(("dtype", "torch_dtype")) else config, stored_dtypes, quantized
    )
    kv_elements = model_facts.kv_elements_per_token(sizes, shape, num_caching)
    kv_element_bytes = model_facts.dtype_bytes(kv_dtype)
    return CheckpointInfo(
        reference=reference,
        folder=str(files.folder),
        kind=_kind(head),
        architecture=next(iter(config.texts("architectures")), None),
        model_type=model_type,
        num_layers=shape.num_layers or (head.num_layers or None if head else None),
        hidden_size=shape.hidden_size or (head.hidden_size if head else None),
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        num_parameters=counts.total if counts else None,
        num_active_parameters=counts.active if counts else None,
        parameters_from=None if counts is None else "headers" if files.weights.tensors else "config",
        left_out_parameters=counts.left_out if counts else {},
        num_bytes=files.weights.num_bytes if files.weights.tensors else None,
        dtype=model_facts.compute_dtype(sizes if sizes.first(("dtype", "torch_dtype")) else config, stored_dtypes),
        stored_dtypes=stored_dtypes,
        quantization=quantized,
        vocabulary=_vocabulary(files, shape.vocab_size or (head.target_vocab_size if head else None)),
        tie_word_embeddings=shape.tie_word_embeddings,
        max_positions=shape.max_positions,
        sliding_window=shape.sliding_window,
        rope=model_facts.rope_scaling(sizes),
        special_tokens=model_facts.special_tokens((generation, config, sizes), files.folder),
        kv_elements_per_token=kv_elements,
        kv_bytes_per_token=kv_elements * kv_element_bytes if kv_elements and kv_element_bytes else None,
        kv_dtype=kv_dtype,
        moe=moe,
        num_mtp_layers=model_facts.num_mtp_layers(sizes, shape.num_layers, tensors) if head is None else 0,
        head=head,
        not_found=tuple(dict.fromkeys(sizes.not_found)) if head is None or head.generation != "medusa" else (),
    )


def _vocabulary(files: CheckpointFiles, config_vocab_size: int | None) -> VocabularySizes:
    embedding = next((entry for name in _EMBEDDINGS if (entry := files.find(name)) is not None), None)
    lm_head = files.find("lm_head.weight")
    return VocabularySizes(
        tokenizer_length=(files.tokens.length or None) if files.tokens else None,
        config_vocab_size=config_vocab_size,
        lm_head_rows=_rows(lm_head),
        embedding_rows=_rows(embedding),
    )


def _rows(entry: TensorEntry | None) -> int | None:
    if entry is None:
        return None
    if not entry.shape or entry.shape[0] < 1:
        raise CheckpointError(f"{entry.path}: {entry.name}: shape {list(entry.shape)} has no rows. {FETCH_AGAIN}")
    return entry.shape[0]
