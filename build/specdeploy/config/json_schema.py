"""JSON schemas of the config files, for editors: `python -m specdeploy.config.json_schema --write` or `--check`."""

import argparse
import json
import sys
from pathlib import Path

from pydantic import BaseModel

from specdeploy.config.schema import DeploymentConfig
from specdeploy.verdict_contract import GateConfig

SCHEMA_FOLDER = Path("configs/schema")
MODELS: dict[str, type[BaseModel]] = {"deployment.schema.json": DeploymentConfig, "gate.schema.json": GateConfig}


def render_schema(model: type[BaseModel]) -> str:
    """The schema file of one config model."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def list_stale_schemas(folder: Path = SCHEMA_FOLDER) -> list[str]:
    """Names of the schema files that are missing or differ from the models."""
    return [name for name, model in MODELS.items() if not _holds(folder / name, render_schema(model))]


def write_schemas(folder: Path = SCHEMA_FOLDER) -> None:
    """Write every schema file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        (folder / name).write_text(render_schema(model), encoding="utf-8")


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when the files are written or current, 1 when one is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the schema files")
    mode.add_argument("--check", action="store_true", help="fail when a schema file is stale")
    parser.add_argument("--folder", type=Path, default=SCHEMA_FOLDER)
    options = parser.parse_args(arguments)
    if options.write:
        write_schemas(options.folder)
        return 0
    stale = list_stale_schemas(options.folder)
    if stale:
        sys.stderr.write(f"stale in {options.folder}: {', '.join(stale)}. Run `make schema`.\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
