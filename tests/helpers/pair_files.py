"""Targets and drafts on disk at true shapes, whose misfits the tests decide."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helpers.fabricated_checkpoints import (
    LlamaSize,
    Shapes,
    byte_level_tokenizer,
    eagle3_config,
    eagle3_tensors,
    llama_config,
    llama_tensors,
    write_checkpoint,
)
from specdeploy.checkpoint.pair import PairSettings, inspect_pair
from specdeploy.checkpoint.vocab_maps import maps_of_kept_ids
from specdeploy.checkpoint_contract import PairFinding, PairReport

DRAFT_VOCAB = 32000
NUM_SHARDS = 4


def rename_tokens(tokenizer: dict[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """The tokenizer with other pieces for some ids of its vocabulary."""
    vocab = {names.get(token_id, piece): token_id for piece, token_id in tokenizer["model"]["vocab"].items()}
    return {**tokenizer, "model": {**tokenizer["model"], "vocab": vocab}}


def foreign_tokenizer(num_tokens: int) -> dict[str, Any]:
    """A tokenizer of another family: the same kind of pieces in another order."""
    tokenizer = byte_level_tokenizer(num_tokens)
    pieces = list(tokenizer["model"]["vocab"])
    return rename_tokens(tokenizer, dict(enumerate([*pieces[256:], *pieces[:256]])))


def write_model(
    folder: Path,
    size: LlamaSize,
    *,
    tokenizer: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    **overrides: Any,
) -> Path:
    """A llama-like model with sparse weights."""
    write_checkpoint(
        folder,
        llama_config(size, **overrides),
        llama_tensors(size),
        num_shards=NUM_SHARDS,
        tokenizer=tokenizer,
        generation_config=generation_config,
    )
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return folder


def kept_ids(size: LlamaSize, draft_vocab: int = DRAFT_VOCAB) -> NDArray[Any]:
    """Some rising ids of the target's vocabulary."""
    return np.sort(np.random.default_rng(0).choice(size.vocab, draft_vocab, replace=False)).astype(np.int64)


def write_eagle3(
    folder: Path,
    size: LlamaSize,
    *,
    layout: str = "safeailab",
    draft_vocab: int = DRAFT_VOCAB,
    d2t: NDArray[Any] | None = None,
    leave_out: tuple[str, ...] = (),
    extra: Shapes | None = None,
    values: Mapping[str, NDArray[Any]] | None = None,
    embedding: bool = False,
    **overrides: Any,
) -> Path:
    """An EAGLE-3 head with right maps unless `d2t` says otherwise; `overrides` go into its config.json."""
    right, t2d = maps_of_kept_ids(kept_ids(size, draft_vocab), size.vocab)
    shapes = {**eagle3_tensors(size, draft_vocab=draft_vocab, embedding=embedding), **(extra or {})}
    shapes = {name: shape for name, shape in shapes.items() if name not in leave_out}
    maps = {"d2t": right if d2t is None else d2t, "t2d": t2d}
    stored = {name: array for name, array in {**maps, **(values or {})}.items() if name in shapes}
    config = eagle3_config(size, layout, draft_vocab=draft_vocab, **overrides)
    return write_checkpoint(folder, config, shapes, values=stored)


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None removes one."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def compare(target: Path, draft: Path | None, **settings: Any) -> PairReport:
    """The report on two folders."""
    return inspect_pair(target, draft, PairSettings(**settings), target_reference="target", draft_reference="draft")


def only(report: PairReport, code: str) -> PairFinding:
    """The one finding with this code."""
    found = [one for one in report.findings if one.code == code]
    assert len(found) == 1, [f"{one.code}: {one.detail}" for one in report.findings]
    return found[0]


def codes(report: PairReport) -> set[str]:
    """Codes of all findings."""
    return {one.code for one in report.findings}
