"""What the commands of an engine build will write, before the checkpoints they read are on this machine."""

from collections.abc import Mapping
from pathlib import Path

from specdeploy.builders.engine_records import EngineInputs, is_quantized_here, plan_engines
from specdeploy.checkpoint.hub import DiskNeed, HubDownload
from specdeploy.contract import EngineModel

WORK = ".steps"  # below the engines root


def estimate_commands(inputs: EngineInputs, downloads: Mapping[str, HubDownload], engines_root: Path) -> DiskNeed:
    """The least that converting and compiling takes of the checkpoints that are to be fetched, by role.

    Two copies of the weights per engine. Steps that are finished may be used again, so what they hold is subtracted:
    too little is counted rather than too much, since `run_graph` compares again, with the sizes of what was fetched.
    """
    total = 0
    for engine in plan_engines(inputs):
        download = downloads.get("draft" if engine.model is EngineModel.DRAFT else "target")
        if download is not None:
            total += 2 * _least_bytes(download, is_quantized=is_quantized_here(inputs, engine.model))
    work = engines_root / WORK
    finished = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    return DiskNeed(work, max(0, total - finished), "the commands of the build at least")


def _least_bytes(download: HubDownload, *, is_quantized: bool) -> int:
    """Bytes of the weights after conversion: at most 2 bytes each, 1 in fp8, and never more than in the checkpoint.

    Without a count of the parameters they are taken for 4 bytes each in the checkpoint.
    """
    if download.num_parameters is None:
        return download.weight_bytes // (4 if is_quantized else 2)
    return min(download.weight_bytes, download.num_parameters * (1 if is_quantized else 2))
