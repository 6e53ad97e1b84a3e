"""Shapes of published models that are not on this machine: `configs/models/<owner>--<name>/config.json`.

Such a folder is a checkpoint without weights and tokenizer, read like any other. configs/models/README.md says where
each one's sizes were found; a model that is not there is not known.
"""

import re
from pathlib import Path

from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint_contract import CheckpointInfo

FOLDER = "models"
# As the hub spells them: owner and name of letters, digits, dots, dashes and underscores. No path leads out of FOLDER.
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def known_model_folder(reference: str, configs_root: Path) -> Path | None:
    """The folder with the shapes of a hub id (`owner/name`); None for one that is not known, or no hub id."""
    if _HUB_ID.fullmatch(reference) is None:
        return None
    folder = configs_root / FOLDER / reference.replace("/", "--")
    return folder if (folder / "config.json").is_file() else None


def known_model(reference: str, configs_root: Path) -> CheckpointInfo | None:
    """Its facts: sizes, and parameters that follow from them. None where it is not known.

    Raises `CheckpointError` for a folder whose config.json is broken.
    """
    folder = known_model_folder(reference, configs_root)
    return None if folder is None else inspect_checkpoint(folder, reference=reference)


def list_known_models(configs_root: Path) -> tuple[str, ...]:
    """Every hub id that is known, sorted."""
    folders = (path.parent.name for path in (configs_root / FOLDER).glob("*/config.json"))
    return tuple(sorted(name.replace("--", "/", 1) for name in folders))
