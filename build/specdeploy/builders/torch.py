"""Lane `torch`: the checkpoint as a Hugging Face folder, in its source precision, that the runtime loads and casts.

A folder or hub snapshot is taken over as it is. A GGUF file is converted once: de-quantised, saved as safetensors with
its tokenizer and chat template, loaded again and compared. A head of any producer is rewritten into the one layout that
the runtime loads. No weights are fetched from anywhere in here.
"""

import importlib.metadata
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specdeploy.builders.base import BuildRecipe, BuildResult, BuildStep, Report, link_or_copy, run_build
from specdeploy.builders.pair import Consent, check_pair
from specdeploy.builders.torch_gguf import convert_weights, save_config, save_tokenizer
from specdeploy.builders.torch_load import check_loads
from specdeploy.builders.torch_method import check_method
from specdeploy.builders.torch_reuse import reuse_converted
from specdeploy.checkpoint.canonical_head import HEAD_FILE, write_canonical_head
from specdeploy.checkpoint.pair import PairSettings, check_allowed_codes, digest_of_pair, inspect_pair
from specdeploy.checkpoint.source import CheckpointReference, resolve_checkpoint, resolve_draft
from specdeploy.checkpoint_contract import PairReport
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import BuildCheck, CheckpointSource, Lane, Method

# Raise it when a conversion writes other bytes than before.
CONVERTER_VERSION = "1"
# Their versions decide what a conversion writes; a folder that is copied depends on none of them.
_CONVERSION_LIBRARIES = ("transformers", "gguf", "tokenizers", "safetensors")

Role = Literal["target", "draft"]


@dataclass(frozen=True, slots=True)
class _Source:
    role: Role
    checkpoint: CheckpointReference


def build_torch(
    config: DeploymentConfig, engines_root: Path, base: Path, *, report: Report, consent: Consent | None = None
) -> BuildResult:
    """Build the target and, for methods that have one, the draft. `base` is where relative folders start from.

    `report` is told the findings of now, also where the build is reused and its manifest keeps those of its first time.
    """
    recipe = plan_torch_build(config, base, consent)
    for check in recipe.checks:
        report(f"{check.name}: {check.detail}")
    return run_build(recipe, engines_root, report)


def plan_torch_build(config: DeploymentConfig, base: Path, consent: Consent | None = None) -> BuildRecipe:
    """Find and check the sources; nothing is written. Raises `CheckpointError` when draft and target do not fit,
    or when `consent` lacks a warning that needs it or names a code that no finding has."""
    consent = consent or Consent()
    check_allowed_codes(consent.allow)
    target = config.target
    sources = [_Source("target", resolve_checkpoint(target.checkpoint, target.revision, base=base))]
    if (draft := config.speculation.draft) is not None:
        sources.append(_Source("draft", resolve_draft(draft.checkpoint, draft.revision, base=base)))
    checks: tuple[BuildCheck, ...] = ()
    is_lone_gguf = len(sources) == 1 and sources[0].checkpoint.gguf is not None
    if not is_lone_gguf or config.speculation.method is Method.LAYER_SKIP:  # else nothing is to be compared
        pair = _compare(config, [source.checkpoint for source in sources])
        checks = check_pair(pair, consent)
        check_method(config, pair)
    converts = any(source.checkpoint.gguf is not None for source in sources)
    versions = {name: importlib.metadata.version(name) for name in _CONVERSION_LIBRARIES} if converts else {}
    versions = {"converter": CONVERTER_VERSION, **versions}
    checkpoints = tuple(
        CheckpointSource(
            role=source.role,
            reference=source.checkpoint.reference,
            digest=source.checkpoint.digest(),
            folder=source.role,
        )
        for source in sources
    )
    return BuildRecipe(
        lane=Lane.TORCH,
        checkpoints=checkpoints,
        versions=versions,
        steps=tuple(step for source in sources for step in _steps(source, versions)),
        checks=checks,
        pair_digest=lambda staging: digest_of_pair(
            staging / "target",
            target_digest=checkpoints[0].digest,
            draft_digest=checkpoints[1].digest if len(checkpoints) > 1 else None,
            lane=Lane.TORCH,
            versions=versions,
        ),
    )


def _steps(source: _Source, versions: Mapping[str, str]) -> tuple[BuildStep, ...]:
    role, files, gguf = source.role, source.checkpoint.files, source.checkpoint.gguf
    config, tokenizer = f"{role}/config.json", f"{role}/tokenizer.json"
    folder = source.checkpoint.folder
    # A draft is loaded beside its target, from which it may borrow.
    load = BuildStep(f"load {role}", (role,), (), lambda staging: check_loads(role, staging))
    if source.checkpoint.is_head:
        outputs = (config, f"{role}/{HEAD_FILE}", f"{role}/model.safetensors")
        return (
            BuildStep(
                f"rewrite {role} head", (str(folder),), outputs, lambda staging: _rewrite(folder, staging / role)
            ),
            load,
        )
    if gguf is None:
        copy = BuildStep(
            f"copy {role}", (str(folder),), (config, tokenizer), lambda staging: _copy(files, staging / role)
        )
        return copy, load
    digest = source.checkpoint.digest()

    def convert_tokenizer(staging: Path) -> tuple[BuildCheck, ...]:
        reused = reuse_converted(staging.parent.parent, role, digest, versions, staging / role)
        return save_tokenizer(gguf, staging / role) if reused is None else reused

    def convert(staging: Path) -> tuple[BuildCheck, ...]:
        return () if (staging / config).exists() else convert_weights(role, gguf, staging / role)

    return (
        BuildStep(f"convert {role} tokenizer", (gguf.name,), (tokenizer,), convert_tokenizer),
        BuildStep(
            f"convert {role} weights",
            (gguf.name, tokenizer),
            (config, f"{role}/generation_config.json"),
            convert,
        ),
    )


def _compare(config: DeploymentConfig, checkpoints: list[CheckpointReference]) -> PairReport:
    """The pair as it lies on disk; of a GGUF file its config and tokenizer, written out for the comparison alone."""
    settings = PairSettings(method=config.speculation.method, lane=config.lane, max_seq_len=config.serving.max_seq_len)
    with tempfile.TemporaryDirectory(prefix="specdeploy-pair-") as temporary:
        folders = []
        for index, checkpoint in enumerate(checkpoints):
            folders.append(checkpoint.folder)
            if checkpoint.gguf is not None:
                folders[-1] = Path(temporary) / str(index)
                save_tokenizer(checkpoint.gguf, folders[-1])
                save_config(checkpoint.gguf, folders[-1])
        return inspect_pair(
            folders[0],
            folders[1] if len(folders) > 1 else None,
            settings,
            target_reference=checkpoints[0].reference,
            draft_reference=checkpoints[1].reference if len(folders) > 1 else None,
        )


def _copy(files: tuple[Path, ...], folder: Path) -> tuple[BuildCheck, ...]:
    folder.mkdir(parents=True)
    for path in files:
        # Weights are replaced as a whole when they change; small text files get edited in place, so they are copied.
        place = link_or_copy if path.suffix == ".safetensors" else shutil.copyfile
        place(path, folder / path.name)
    return ()


def _rewrite(source: Path, folder: Path) -> tuple[BuildCheck, ...]:
    head = write_canonical_head(source, folder)
    detail = f"{head.layout} {head.generation} head in the runtime's layout"
    return (BuildCheck(name="draft head", detail=detail),)
