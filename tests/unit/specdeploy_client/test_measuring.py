"""Options become a plan: what a gate limits is compared, and what a trace's blocks are is passed on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.trained_tokenizers import rendering_of
from specdeploy.errors import ConfigError
from specdeploy.run_contract import MetricName, Percentile
from specdeploy.verdict_contract import GateConfig
from specdeploy_client.commands.options import EndpointOptions, LoadOptions, ResultOptions, WorkloadOptions
from specdeploy_client.measuring import MeasurementPlan, plan_measurement
from specdeploy_client.session import open_session
from specdeploy_client.workloads.render import Rendering


def _plan(
    workload: WorkloadOptions,
    gate: GateConfig | None = None,
    rendering: Rendering | None = None,
    endpoint_type: str = "openai-completions",
    load: LoadOptions | None = None,
    artifact_dir: Path | None = None,
) -> MeasurementPlan:
    server = EndpointOptions(url="http://h:9", endpoint_type=endpoint_type, model="m", engines_root=Path("nowhere"))
    session = open_session(server, artifact_dir=artifact_dir)
    if rendering is not None:
        session = replace(session, rendering=replace(rendering, is_by_server=session.rendering.is_by_server))
    return plan_measurement(session, workload, load or LoadOptions(), ResultOptions(), gate=gate)


def _prompts(folder: Path) -> WorkloadOptions:
    path = folder / "p.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}')
    return WorkloadOptions(input_file=path)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"request_rate": "1", "concurrency_ramp_duration": 1.0}, "--concurrency-ramp-duration: belongs to a closed"),
        ({"concurrency": "1", "request_rate_ramp_duration": 1.0}, "--request-rate-ramp-duration: belongs to an open"),
        ({"max_in_flight": 512}, "--max-in-flight: belongs to an open loop"),
    ],
)
def test_ramps_and_limits_of_the_other_loop_are_refused(tmp_path: Path, load: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _plan(_prompts(tmp_path), load=LoadOptions(**load))


def test_a_traces_own_arrivals_have_no_ramp(tmp_path: Path) -> None:
    load = LoadOptions(request_rate_ramp_duration=1.0, concurrency_ramp_duration=1.0)
    with pytest.raises(ConfigError, match="a trace has its own arrivals") as refused:
        _plan(WorkloadOptions(trace=tmp_path / "t.csv"), load=load)
    assert len(refused.value.violations) == 2


def test_a_file_in_place_of_the_folder_is_said_before_any_server_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"file is a file\. Choose another --artifact-dir"):
        _plan(_prompts(tmp_path), artifact_dir=tmp_path / "file" / "below")


def test_a_named_tokenizer_counts(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(rendering_of("gpt2").require_counter("x").tokenizer.to_str())
    plan = _plan(WorkloadOptions(isl=40, tokenizer=tmp_path)).plan
    assert {request.expected_input_tokens for request in plan.cells[0].requests} == {40}
    with pytest.raises(ConfigError, match="there is no such file"):
        _plan(WorkloadOptions(isl=40, tokenizer=tmp_path / "none"))
    with pytest.raises(ConfigError, match="--tokenizer"):
        _plan(WorkloadOptions(isl=40))


def test_every_percentile_that_a_gate_limits_is_compared(tmp_path: Path) -> None:
    gate = GateConfig.model_validate(
        {
            "name": "g",
            "max_ratio": 0.9,
            "max_regression": {"ttft": {"p50": 1.05, "p95": 1.2}, "tpot": {"p99": 1.5}},
            "segments": [{"name": "default", "max_regression": {"ttft": {"p90": 1.1}}}],
        }
    )
    judging = _plan(_prompts(tmp_path), gate).judging
    assert set(judging.percentiles) == set(Percentile)
    assert judging.limits == {MetricName.TTFT: 1.05, MetricName.E2E: 0.9}
    assert set(_plan(_prompts(tmp_path)).judging.percentiles) == {Percentile.P50, Percentile.P99}


def test_the_size_of_blocks_is_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    rows = (
        f'{{"timestamp": {at}, "input_length": 64, "output_length": 4, "hash_ids": [1, 2, 3, {at}]}}' for at in (7, 9)
    )
    path.write_text("\n".join(rows))
    workload = WorkloadOptions(trace=path, trace_block_tokens=16)
    rendering = rendering_of("gpt2")
    first, second = (request.prompt for request in _plan(workload, rendering=rendering).plan.cells[0].requests[:2])
    ids = rendering.require_counter("x").ids
    assert (len(ids(first)), len(ids(second))) == (64, 64)
    assert ids(first)[:48] == ids(second)[:48]
    assert ids(first)[48] != ids(second)[48]


def test_lengths_cannot_be_made_where_only_the_server_knows_the_template() -> None:
    raw = rendering_of("gpt2", None)
    assert _plan(WorkloadOptions(isl=40), rendering=raw).plan.num_requests
    with pytest.raises(ConfigError, match="the chat template that the server puts around them"):
        _plan(WorkloadOptions(isl=40), rendering=raw, endpoint_type="openai-chat")
    assert _plan(WorkloadOptions(isl=40), rendering=rendering_of("gpt2"), endpoint_type="openai-chat").plan.num_requests
