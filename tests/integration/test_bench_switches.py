"""Speculation is off because another model is loaded: two models of one real Triton server, one at a time."""

import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from integration.conftest import Deployed, prepare
from specdeploy.run_contract import Arm, MetricName, RunSummary, VoidCode
from specdeploy.serving.launch import LaunchPlan, plan_launch
from specdeploy.serving.server import start_server, stop_server
from specdeploy_client.cli import main
from specdeploy_client.records.files import load_records

pytestmark = pytest.mark.integration

PLAIN = "llm_plain"


class _ExplicitPlan(LaunchPlan):
    """A server that loads a model only when it is told to."""

    def command(self) -> list[str]:
        return [
            "--model-control-mode=explicit" if part.startswith("--model-control-mode=") else part
            for part in super().command()
        ]


@pytest.fixture(scope="module")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """`llm` drafts; `llm_plain`, of a deployment that drafts for nobody, lies beside it."""
    root = tmp_path_factory.mktemp("two_models")
    loaded = prepare(root, "swapped")
    prompts = {"prompts": "prompts.jsonl", "max_tokens": 12, "speculate": False, "off_reason": "the plain one"}
    segments = [{"name": name, **prompts} for name in ("chat", "edit", "quiet")]
    prepare(root, "plain", {"traffic": {"expected_concurrency": 1, "segments": segments}})
    folder = root / "triton_repo" / "swapped" / PLAIN
    shutil.copytree(root / "triton_repo" / "plain" / "llm", folder)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "llm"', f'name: "{PLAIN}"', 1))
    plan = plan_launch(loaded, engines_root=root / "engines", repo_root=root / "triton_repo", state_root=root / "state")
    explicit = _ExplicitPlan(**{field.name: getattr(plan, field.name) for field in fields(plan)})
    try:
        state, _ = start_server(explicit, timeout_s=90.0, on_wait=lambda seconds: None)
        yield Deployed(root, loaded, state)
    finally:
        stop_server(root / "state", "swapped")


def _arguments(deployed: Deployed, folder: Path) -> list[str]:
    engines = str(deployed.root / "engines")
    load = ["--segments", "chat", "--concurrency", "2", "--request-count", "8", "--ui", "none"]
    return ["--deployment", str(deployed.loaded.path), "--engines-root", engines, "--artifact-dir", str(folder), *load]


def test_models_are_swapped_between_blocks(two_models: Deployed, tmp_path: Path) -> None:
    switch = ["--switch", "model-control", "--off-model", PLAIN]
    assert main(["bench", *_arguments(two_models, tmp_path), *switch]) in (0, 2)  # 2: a busy machine voids latencies
    summary = RunSummary.model_validate_json((tmp_path / "run_summary.json").read_text())
    assert summary.switch == f"model control: off {PLAIN}; on llm"
    assert {c.num_pairs for c in summary.comparisons if c.metric is MetricName.E2E} == {8}
    voided = {reason.code for comparison in summary.comparisons for reason in comparison.void_reasons}
    assert not voided & {VoidCode.NOTHING_DRAFTED, VoidCode.OFF_ARM_DRAFTED, VoidCode.ERRORS}
    records = load_records(tmp_path / "records.jsonl")
    said = {arm: {record.speculation for record in records if record.arm == arm} for arm in (Arm.OFF, Arm.ON)}
    assert said[Arm.ON] == {"on"}
    assert all(text is not None and text.startswith("off:") for text in said[Arm.OFF])
    assert len({record.block for record in records}) > 1
    # The counters of a model begin anew whenever it is loaded.
    assert summary.conditions[0].num_draft_tokens is None
    files = ["--engines-root", str(two_models.root / "engines"), "--artifact-dir", str(tmp_path)]
    assert main(["verify", "--from-run", "--deployment", str(two_models.loaded.path), *files]) in (0, 2)


def test_a_server_that_controls_its_models_itself_is_refused_by_name(
    deployed: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    switch = ["--switch", "model-control", "--off-model", PLAIN]
    assert main(["bench", *_arguments(deployed, tmp_path), *switch]) == 2
    assert f"has no model {PLAIN}" in capsys.readouterr().err
