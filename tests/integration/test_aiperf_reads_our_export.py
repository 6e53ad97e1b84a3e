"""AIPerf's own models and the loader of its plots read what we write for it. Needs AIPerf in a venv of its own."""

import json
import subprocess
from pathlib import Path

import pytest

from helpers.run_summaries import cell, run_summary
from specdeploy.run_contract import Arm
from specdeploy_client.interchange.files import ExportFormat, export_run
from unit.specdeploy_client.fabricate import make_cell

PYTHON = Path(__file__).parents[2] / ".venv-aiperf" / "bin" / "python"
READ = """
import json, sys
from pathlib import Path
from aiperf.common.models.export_models import JsonExportData
from aiperf.common.models.record_models import MetricRecordInfo
from aiperf.plot.core.data_loader import DataLoader

folder = Path(sys.argv[1])
lines = (folder / "profile_export.jsonl").read_text().splitlines()
records = [MetricRecordInfo.model_validate_json(line) for line in lines]
statistics = JsonExportData.model_validate_json((folder / "profile_export_aiperf.json").read_text())
run = DataLoader().load_run(folder)
print(json.dumps({
    "records": len(records),
    "failed": sum(record.error is not None for record in records),
    "p50": statistics.request_latency.p50,
    "concurrency": statistics.input_config.phases[0].concurrency,
    "plotted": [run.metadata.model, run.metadata.concurrency, len(run.requests)],
}))
"""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PYTHON.is_file(), reason=f"no AIPerf: {PYTHON} does not exist"),
]


def test_aiperf_reads_both_files(tmp_path: Path) -> None:
    records = make_cell(concurrency=4, num_pairs=8)
    records[0] = records[0].model_copy(update={"error": "refused: too long"})
    summary = run_summary((), [cell(Arm.OFF), cell(Arm.ON)])
    export_run(ExportFormat.AIPERF, summary, records, tmp_path)
    command = [str(PYTHON), "-c", READ, str(tmp_path / "chat-concurrency4-off")]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr
    seen = json.loads(finished.stdout.splitlines()[-1])
    assert (seen["records"], seen["failed"], seen["concurrency"]) == (8, 1, 4)
    assert seen["p50"] > 0
    assert seen["plotted"] == ["demo", 4, 8]
