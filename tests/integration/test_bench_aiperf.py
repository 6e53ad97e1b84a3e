"""AIPerf load-tests our server: its template endpoint speaks to Triton's `generate_stream`.

AIPerf has a virtual environment of its own (.venv-aiperf); without one this test is skipped.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from integration.conftest import Deployed
from specdeploy.run_contract import RunSummary
from specdeploy_client.cli import main

ROOT = Path(__file__).parents[2]
AIPERF = ROOT / ".venv-aiperf" / "bin" / "aiperf"
NUM_REQUESTS = 12
MAX_TOKENS = 10
# AIPerf counts its own requests; the segment shows them in the server's counters.
TEMPLATE = (
    '{"text_input": {{ text|tojson }}, "max_tokens": {{ max_tokens|tojson }}, "stream": {{ stream|tojson }}, '
    '"ignore_eos": true, "segment": "edit"}'
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not AIPERF.is_file(), reason="no AIPerf: python3 -m venv .venv-aiperf, then pip install aiperf"),
]


def test_aiperf_measures_our_server_and_its_files_are_read(deployed: Deployed, tmp_path: Path) -> None:
    build = json.loads((deployed.root / "engines" / "tiny.json").read_text())
    template, prompts = tmp_path / "template.json", tmp_path / "prompts.jsonl"
    template.write_text(TEMPLATE)
    prompts.write_text(
        "".join(json.dumps({"text": f"item {i} then item {i}", "output_length": MAX_TOKENS}) + "\n" for i in range(6))
    )
    drafted_before = deployed.facts.counters["edit"].num_draft_tokens if "edit" in deployed.facts.counters else 0
    state = deployed.state
    command = [
        str(AIPERF), "profile", "--model", "llm", "--url", f"http://{state.host}:{state.http_port}",
        "--custom-endpoint", "/v2/models/llm/generate_stream", "--endpoint-type", "template", "--streaming",
        "--extra-inputs", f"payload_template:{template}", "--extra-inputs", "response_field:text_output",
        "--tokenizer", str(deployed.root / "engines" / build["target_folder"]),
        "--input-file", str(prompts), "--custom-dataset-type", "single_turn",
        "--concurrency", "2", "--request-count", str(NUM_REQUESTS), "--ui", "none",
        "--no-gpu-telemetry", "--no-server-metrics", "--artifact-dir", str(tmp_path / "aiperf"),
    ]  # fmt: skip
    # Offline mode would look for the tokenizer's folder on the model hub.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert deployed.facts.counters["edit"].num_draft_tokens > drafted_before
    into = tmp_path / "imported"
    assert main(["import", str(tmp_path / "aiperf"), "--artifact-dir", str(into), "--arm", "on"]) == 0
    (cell,) = RunSummary.model_validate_json((into / "run_summary.json").read_text()).cells
    assert (cell.num_requests, cell.num_errors, cell.concurrency) == (NUM_REQUESTS, 0, 2)
    assert cell.ttft_ms.mean is not None
    assert cell.ttft_ms.mean > 0
