"""Options become a plan: what a gate limits is compared, and what a trace's blocks are is passed on."""

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.trained_tokenizers import rendering_of
from specdeploy.errors import ClientError
from specdeploy.run_contract import GateConfig, MetricName, Percentile
from specdeploy_client.commands.options import LoadOptions, ResultOptions, ServerOptions, WorkloadOptions
from specdeploy_client.measuring import Measurement, plan_measurement
from specdeploy_client.session import open_session
from specdeploy_client.workloads.render import Rendering


def _plan(
    workload: WorkloadOptions,
    gate: GateConfig | None = None,
    rendering: Rendering | None = None,
    endpoint_type: str = "openai-completions",
) -> Measurement:
    server = ServerOptions(url="http://h:9", endpoint_type=endpoint_type, model="m", engines_root=Path("nowhere"))
    session = open_session(server, None)
    if rendering is not None:
        session = replace(session, rendering=replace(rendering, is_by_server=session.rendering.is_by_server))
    return plan_measurement(session, workload, LoadOptions(), ResultOptions(), gate)


def _prompts(folder: Path) -> WorkloadOptions:
    path = folder / "p.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}')
    return WorkloadOptions(input_file=path)


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
    with pytest.raises(ClientError, match="the chat template that the server puts around them"):
        _plan(WorkloadOptions(isl=40), rendering=raw, endpoint_type="openai-chat")
    assert _plan(WorkloadOptions(isl=40), rendering=rendering_of("gpt2"), endpoint_type="openai-chat").plan.num_requests
