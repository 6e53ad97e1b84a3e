"""From folders to an engine: target, its key/value memory, the drafter of a method, the policy that chooses K."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch

from specdeploy.contract import Method
from specdeploy.errors import CheckpointError
from specdeploy.runtime.draft_length import AdaptiveDraftLength, DraftLengthPolicy
from specdeploy.runtime.drafters import (
    AutoDrafter,
    Drafter,
    DraftModelDrafter,
    LayerSkipDrafter,
    NgramDrafter,
    SuffixDrafter,
)
from specdeploy.runtime.drafters.draft_tree import DraftTree
from specdeploy.runtime.drafters.eagle import EagleHead
from specdeploy.runtime.drafters.eagle3 import Eagle3Head
from specdeploy.runtime.drafters.feature_draft import FeatureDrafter
from specdeploy.runtime.drafters.feature_head import FeatureHead
from specdeploy.runtime.drafters.medusa import MedusaDrafter, MedusaHeads
from specdeploy.runtime.drafters.mtp import MtpHead
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.graphed_model import GraphedModel
from specdeploy.runtime.head_files import read_facts
from specdeploy.runtime.kv_cache import KvCache
from specdeploy.runtime.model import DecoderModel, context_of

TreePaths = tuple[tuple[int, ...], ...]

_METHOD_OF_GENERATION = {"v1": Method.EAGLE, "v3": Method.EAGLE3, "medusa": Method.MEDUSA}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How to run a target and draft for it. `method` None never drafts. Lengths and sizes are tokens.

    `trees` the paths of ranks that a head drafts by, for methods that have any; the others draft a chain of
    `max_draft_len`. `kv_cache_tokens` None: full contexts for `max_rows`. `num_token_ids` the tokenizer's length.
    """

    method: Method | None
    dtype: torch.dtype
    device: torch.device
    max_draft_len: int = 0
    max_rows: int = 8
    max_queue: int = 256
    max_seq_len: int = 2048
    prefill_chunk: int = 256
    num_token_ids: int | None = None
    kv_cache_tokens: int | None = None
    is_draft_len_dynamic: bool = False
    min_ngram_size: int = 1
    max_ngram_size: int = 3
    min_suffix_size: int = 2
    num_skip_layers: int | None = None
    trees: Mapping[Method, TreePaths] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is put together from: its target, the drafter beside it (None: it never drafts), and the target's
    key/value memory."""

    model: DecoderModel
    drafter: Drafter | None
    cache: KvCache


def load_engine(target_folder: Path, draft_folder: Path | None, settings: EngineSettings) -> Engine:
    """Load everything and put it together. Raises CheckpointError for a checkpoint that cannot be served so."""
    parts = load_parts(target_folder, draft_folder, settings)
    return Engine(
        parts.model,
        parts.drafter,
        max_rows=settings.max_rows,
        max_queue=settings.max_queue,
        prefill_chunk=settings.prefill_chunk,
        num_token_ids=settings.num_token_ids,
        cache=parts.cache,
        policy=draft_length_policy(settings),
        clock=time.perf_counter_ns,
    )


def load_parts(target_folder: Path, draft_folder: Path | None, settings: EngineSettings) -> EngineParts:
    """Load everything. Raises CheckpointError for a checkpoint that cannot be served so."""
    model = load_target(target_folder, settings)
    if settings.device.type == "cuda":
        model = GraphedModel.of(model)
    shared: KvCache | None = None
    if settings.method is Method.LAYER_SKIP:
        shared = model.new_cache(settings.max_rows, num_tokens=settings.kv_cache_tokens)  # a chain needs no extra room
    source = target_folder if settings.method is Method.MTP else draft_folder
    drafter = load_drafter(model, source, settings, cache=shared)
    cache = shared or model.new_cache(
        settings.max_rows, num_tokens=settings.kv_cache_tokens, extra_tokens=extra_tokens(drafter, settings)
    )
    return EngineParts(model, drafter, cache)


def load_target(folder: Path, settings: EngineSettings) -> DecoderModel:
    """The target, for contexts of `max_seq_len`."""
    return DecoderModel(folder, dtype=settings.dtype, device=settings.device, max_seq_len=settings.max_seq_len)


def extra_tokens(drafter: Drafter | None, settings: EngineSettings) -> int:
    """Key/value positions that a row needs beyond its context: nodes of a tree that stand beside its deepest path."""
    if drafter is None:
        return 0
    return max(0, drafter.max_draft_tokens(settings.max_draft_len) - settings.max_draft_len)


def load_drafter(
    model: DecoderModel, folder: Path | None, settings: EngineSettings, *, cache: KvCache | None = None
) -> Drafter | None:
    """The drafter of `settings.method` beside its target.

    `folder` holds the draft, of the methods that have one (mtp: the target's own); `cache` is the target's, for
    layer_skip.
    """
    method = settings.method
    if method is None:
        return None
    if method is Method.NGRAM:
        return _ngram(settings)
    if method is Method.SUFFIX:
        return SuffixDrafter(min_matching_size=settings.min_suffix_size)
    if method is Method.LAYER_SKIP:
        return _layer_skip(model, settings, cache)
    if folder is None:
        raise CheckpointError(f"speculation.method: {method} drafts with a checkpoint, and there is none. Build again")
    if method is Method.AUTO:
        return AutoDrafter(_ngram(settings), _draft_of(method_of_folder(folder), model, folder, settings))
    return _draft_of(method, model, folder, settings)


def method_of_folder(folder: Path) -> Method:
    """What the draft in a build is for: a head says it in head.json, everything else is a draft model.

    Raises CheckpointError for a head.json that is damaged.
    """
    path = folder / "head.json"
    if not path.is_file():
        return Method.DRAFT_MODEL
    return _METHOD_OF_GENERATION[read_facts(path).generation]


def _draft_of(method: Method, model: DecoderModel, folder: Path, settings: EngineSettings) -> Drafter:
    paths = settings.trees.get(method)
    tree = None if paths is None else DraftTree(paths)
    num_tokens = _num_tokens(model, settings)
    if method is Method.DRAFT_MODEL:
        return DraftModelDrafter(
            load_draft_model(folder, model, settings),
            num_slots=settings.max_rows,
            prefill_chunk=settings.prefill_chunk,
            vocab_size=num_tokens,
        )
    if method is Method.MEDUSA:
        return MedusaDrafter(MedusaHeads(folder, model), vocab_size=num_tokens, tree=tree)
    return FeatureDrafter(
        load_feature_head(method, folder, model),
        num_slots=settings.max_rows,
        vocab_size=num_tokens,
        tree=tree,
        prefill_chunk=settings.prefill_chunk,
    )


def load_feature_head(method: Method, folder: Path, target: DecoderModel) -> FeatureHead:
    """A head that reads the target's states, beside its target. Of mtp `folder` is the target's own."""
    if method is Method.MTP:
        return MtpHead(folder, target)
    if method is Method.EAGLE:
        return EagleHead(folder, target)
    if method is Method.EAGLE3:
        return Eagle3Head(folder, target)
    raise CheckpointError(f"speculation.method: {method} is not served by the torch lane. Choose another method")


def load_draft_model(folder: Path, target: DecoderModel, settings: EngineSettings) -> DecoderModel:
    """A draft model; embeddings that it leaves out are the target's. Where its own context is shorter, drafting ends
    there."""
    return DecoderModel(
        folder,
        dtype=settings.dtype,
        device=settings.device,
        max_seq_len=min(settings.max_seq_len, context_of(folder)),
        borrow_from=target,
    )


def _ngram(settings: EngineSettings) -> NgramDrafter:
    return NgramDrafter(
        min_matching_ngram_size=settings.min_ngram_size, max_matching_ngram_size=settings.max_ngram_size
    )


def _layer_skip(model: DecoderModel, settings: EngineSettings, cache: KvCache | None) -> LayerSkipDrafter:
    num_layers = settings.num_skip_layers
    if num_layers is None or not 0 < num_layers < model.num_layers or cache is None:
        raise CheckpointError(
            f"speculation.layer_skip.num_layers: {num_layers} of a target with {model.num_layers} layers. "
            f"Write a number from 1 to {model.num_layers - 1}"
        )
    return LayerSkipDrafter(model, cache, num_layers=num_layers, vocab_size=_num_tokens(model, settings))


def _num_tokens(model: DecoderModel, settings: EngineSettings) -> int:
    """Tokens the engine chooses from: those of the tokenizer, as far as the target has rows for them."""
    return min(model.vocab_size, settings.num_token_ids or model.vocab_size)


def draft_length_policy(settings: EngineSettings) -> DraftLengthPolicy | None:
    """None drafts as deep as requests allow."""
    if not settings.is_draft_len_dynamic or settings.max_draft_len < 1:
        return None
    return AdaptiveDraftLength(max_draft_len=settings.max_draft_len)
