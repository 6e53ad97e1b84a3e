"""Facts of target and draft for a plan, from whatever is on this machine. Nothing is fetched.

In this order: the folder or the hub's cache, the current build (of a wheel), and at last the shapes that travel with
this software for well-known checkpoints (configs/models), which have no weights.
"""

from dataclasses import dataclass
from pathlib import Path

from specdeploy.builders.pair import locate_built
from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint.known_models import known_model_folder
from specdeploy.checkpoint.pair_serving import draft_cost_ratio
from specdeploy.checkpoint.source import locate_folder
from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import TargetConfig
from specdeploy.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class PairFacts:
    """`tokenizer` is the target's tokenizer.json, None where it is not on this machine. `assumptions` say what came
    from elsewhere than the checkpoints. `draft_cost_ratio` as in `PairReport`."""

    target: CheckpointInfo
    draft: CheckpointInfo | None
    draft_cost_ratio: float | None
    tokenizer: Path | None
    assumptions: tuple[str, ...]


def read_pair(loaded: LoadedDeployment, configs_root: Path, engines_root: Path) -> PairFacts:
    """Facts of both checkpoints. Raises `CheckpointError` for one of which nothing is known here."""
    published: list[str] = []
    target_folder = _find(loaded, "target", loaded.config.target, configs_root, engines_root, published)
    target = inspect_checkpoint(target_folder, reference=loaded.config.target.checkpoint)
    draft = None
    if (source := loaded.config.speculation.draft) is not None:
        folder = _find(loaded, "draft", source, configs_root, engines_root, published)
        draft = inspect_checkpoint(folder, reference=source.checkpoint)
    num_kept = draft.head.draft_vocab_size if draft is not None and draft.head is not None else None
    tokenizer = target_folder / "tokenizer.json"
    return PairFacts(
        target=target,
        draft=draft,
        draft_cost_ratio=draft_cost_ratio(target, draft, num_kept=num_kept),
        tokenizer=tokenizer if tokenizer.is_file() else None,
        assumptions=_assumptions(published),
    )


def _assumptions(published: list[str]) -> tuple[str, ...]:
    if not published:
        return ()
    are = "is" if len(published) == 1 else "are"
    return (f"{' and '.join(published)} {are} not on this machine: published shapes are taken (configs/models)",)


def _find(
    loaded: LoadedDeployment,
    role: str,
    source: TargetConfig,
    configs_root: Path,
    engines_root: Path,
    published: list[str],
) -> Path:
    """Where the checkpoint lies; its reference is added to `published` where only its shapes are known."""
    failure: CheckpointError | None = None
    try:
        folder = locate_folder(source.checkpoint, source.revision, base=loaded.path.parent)
    except CheckpointError as error:
        folder, failure = None, error
    folder = folder or locate_built(loaded.config.name, role, source, engines_root)
    if folder is not None:
        return folder
    if (known := known_model_folder(source.checkpoint, configs_root)) is not None:
        published.append(source.checkpoint)
        return known
    if failure is not None:
        raise failure
    raise CheckpointError(
        f"{loaded.path}: {role}: {source.checkpoint} lies in a wheel as one GGUF file and can be read once it is "
        f"converted. Run: make engines DEPLOYMENT={loaded.config.name}"
    )
