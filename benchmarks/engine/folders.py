"""Where the checkpoints of a run are."""

import json
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Folders:
    """The target, and drafts for it, which may be absent. `assistant`: the draft model as transformers can load it."""

    target: Path
    draft_model: Path
    eagle3: Path
    assistant: Path


def built_target(deployment: str) -> Path:
    """The target folder of the current build of the deployment. Ends the program when it was never built."""
    folder = _built(deployment, "target_folder")
    if folder is None:
        raise SystemExit(
            f"{deployment} was not built: run `make engines DEPLOYMENT={deployment}` first, or give --target"
        )
    return folder


def built_draft(deployment: str) -> Path:
    """The draft folder of the current build of the deployment; a folder that is not there when it has none."""
    return _built(deployment, "draft_folder") or REPOSITORY / "engines" / f"{deployment} (not built)"


def _built(deployment: str, key: str) -> Path | None:
    pointer = REPOSITORY / "engines" / f"{deployment}.json"
    folder = json.loads(pointer.read_text()).get(key) if pointer.is_file() else None
    return None if folder is None else pointer.parent / str(folder)
