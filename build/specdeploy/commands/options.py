"""Options that several commands share, as typer annotations."""

from pathlib import Path
from typing import Annotated

import typer

Deployment = Annotated[str, typer.Argument(help="Name of a file in configs/deployments, or the path of a YAML file.")]
ConfigsRoot = Annotated[Path, typer.Option(help="Folder that holds deployments/.")]
EnginesRoot = Annotated[Path, typer.Option(help="Where builds are kept.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

CONFIGS = Path("configs")
ENGINES = Path("engines")
