"""Model folders of stand-ins: what the packager writes of an engine, with the Python backend in the C++ one's place."""

import json
from dataclasses import asdict, replace
from pathlib import Path

from helpers.engine_standins.engine import Settings
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineRecord
from specdeploy.packager.engine_models import engine_model_config
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.pbtxt import render_pbtxt

TESTS = Path(__file__).parents[2]
SHIM = f"""import sys

sys.path.append({str(TESTS)!r})
from helpers.engine_standins.triton_model import TritonPythonModel
"""


def write_stand_in(
    repository: Path,
    config: DeploymentConfig,
    build: PackagedBuild,
    record: EngineRecord,
    checkpoint: Path,
    settings: Settings,
) -> None:
    """`repository/<model>`: tensors, batching and transaction policy as packed; two parameters more."""
    packed = engine_model_config(config, build, record)
    own = {"checkpoint": str(checkpoint), "settings": json.dumps(asdict(settings), default=str)}
    stand_in = replace(packed, backend="python", parameters={**packed.parameters, **own})
    folder = repository / record.model / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(SHIM)
    (folder.parent / "config.pbtxt").write_text(render_pbtxt(stand_in))
