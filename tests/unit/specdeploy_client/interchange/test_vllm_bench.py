"""Results in the form of `vllm bench serve`; the keys are those its source writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdeploy.errors import ConfigError, RequestError
from specdeploy.run_contract import Arm, FailureKind, Load
from specdeploy.units import NS_PER_MS
from specdeploy_client.interchange.imported import ImportLabels
from specdeploy_client.interchange.vllm_bench import import_vllm_bench
from specdeploy_client.metrics import e2e_ns, icl_ns, tpot_ns, ttft_ns

LABELS = ImportLabels(segment="chat")
DETAILS: dict[str, Any] = {
    "input_lens": [10, 12, 11],
    "output_lens": [5, 0, 1],
    "ttfts": [0.05, 0.0, 0.04],
    "itls": [[0.02, 0.04], [], []],
    "latencies": [0.11, 0.0, 0.04],
    "start_times": [100.0, 100.5, 101.0],
    "queue_times": [0.25, 0.0, 0.0],
    "generated_texts": ["hello", "", "x"],
    "errors": ["", "Traceback (most recent call last): TimeoutError", ""],
}
RESULT: dict[str, Any] = {
    "date": "20261130-165302",
    "endpoint_type": "openai",
    "backend": "openai",
    "label": None,
    "model_id": "org/model",
    "tokenizer_id": "org/model",
    "num_prompts": 3,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 2,
    "duration": 1.5,
    "completed": 2,
    "failed": 1,
    "total_input_tokens": 21,
    "total_output_tokens": 6,
    "request_throughput": 1.33,
    "request_goodput": None,
    "output_throughput": 4.0,
    "total_token_throughput": 18.0,
    "mean_ttft_ms": 45.0,
    "median_ttft_ms": 45.0,
    "std_ttft_ms": 5.0,
    "p99_ttft_ms": 49.9,
    "mean_tpot_ms": 15.0,
    "median_tpot_ms": 15.0,
    "std_tpot_ms": 0.0,
    "p99_tpot_ms": 15.0,
    "mean_itl_ms": 30.0,
    "median_itl_ms": 30.0,
    "std_itl_ms": 10.0,
    "p99_itl_ms": 39.8,
}
DRAFTING = {
    "spec_decode_acceptance_rate": 55.0,
    "spec_decode_acceptance_length": 3.2,
    "spec_decode_num_drafts": 20,
    "spec_decode_draft_tokens": 80,
    "spec_decode_accepted_tokens": 44,
    "spec_decode_per_position_acceptance_rates": [0.9, 0.6, 0.4, 0.3],
}


def _write(folder: Path, **changes: Any) -> Path:
    path = folder / "result.json"
    content = {name: value for name, value in {**RESULT, **changes}.items() if value != "absent"}
    path.write_text(json.dumps(content))
    return path


def test_details_become_records(tmp_path: Path) -> None:
    run = import_vllm_bench(_write(tmp_path, **DETAILS), LABELS)
    first, failed, single = run.records
    assert (run.model, run.started_at, run.duration_s, run.cells) == ("org/model", "2026-11-30T16:53:02", 1.5, ())
    assert ttft_ns(first) == 50 * NS_PER_MS
    assert e2e_ns(first) == 110 * NS_PER_MS
    assert tpot_ns(first) == 15 * NS_PER_MS  # (110 - 50) / (5 - 1), whatever the chunks held
    assert icl_ns(first) == (20 * NS_PER_MS, 40 * NS_PER_MS)
    assert (first.load, first.text, first.input_token_count) == (Load(2), "hello", 10)
    assert (failed.failure, failed.message_ns, failed.output_token_count) == (FailureKind.TIMEOUT, (), None)
    assert (tpot_ns(single), icl_ns(single)) == (None, ())


def test_a_request_without_a_first_token_failed_also_without_a_reason(tmp_path: Path) -> None:
    run = import_vllm_bench(_write(tmp_path, **{**DETAILS, "errors": ["", "", ""]}), LABELS)
    assert run.records[1].error == "vLLM names no reason"


def test_waiting_for_the_client_counts_in_an_open_loop_only(tmp_path: Path) -> None:
    closed = import_vllm_bench(_write(tmp_path, **DETAILS), LABELS).records[0]
    opened = import_vllm_bench(_write(tmp_path, **DETAILS, request_rate=2.0), LABELS)
    assert closed.scheduled_ns == closed.send_ns
    assert opened.records[0].load == Load(None, 2.0)
    assert opened.records[0].send_ns - opened.records[0].scheduled_ns == 250 * NS_PER_MS
    assert ttft_ns(opened.records[0]) == 300 * NS_PER_MS
    assert any("from when each request was due" in note for note in opened.notes)


def test_statistics_alone_become_a_cell(tmp_path: Path) -> None:
    run = import_vllm_bench(_write(tmp_path, completed=1200, num_prompts=1201, median_e2el_ms=400.0), LABELS)
    (cell,) = run.cells
    assert (cell.load, cell.num_requests, cell.num_errors, cell.arm) == (Load(2), 1201, 1, Arm.OFF)
    assert (cell.ttft_ms.p50, cell.ttft_ms.p99, cell.ttft_ms.p90) == (45.0, 49.9, None)
    assert (cell.e2e_ms.p50, cell.e2e_ms.p99) == (400.0, None)
    assert cell.icl_ms is not None
    assert cell.icl_ms.p50 == 30.0
    assert any("--save-detailed" in note for note in run.notes)


def test_metrics_that_were_not_chosen_are_not_measured(tmp_path: Path) -> None:
    cell = import_vllm_bench(_write(tmp_path), LABELS).cells[0]
    assert (cell.e2e_ms.p50, cell.e2e_ms.num_samples) == (None, 0)
    assert cell.ttft_ms.p99 is None  # two requests do not support it, whatever vLLM wrote
    assert cell.acceptance is None


@pytest.mark.parametrize("details", [{}, DETAILS])
def test_drafting_makes_it_the_arm_with_speculation(tmp_path: Path, details: dict[str, Any]) -> None:
    run = import_vllm_bench(_write(tmp_path, **DRAFTING, **details), LABELS)
    assert {*(cell.arm for cell in run.cells), *(record.arm for record in run.records)} == {Arm.ON}
    assert run.acceptance is not None
    assert run.acceptance.acceptance_rate == 0.55
    assert run.acceptance.mean_acceptance_length == 3.2
    assert run.acceptance.rate_per_pos == (0.9, 0.6, 0.4, 0.3)


@pytest.mark.parametrize(
    ("changes", "load"),
    [
        ({"max_concurrency": None}, Load(3)),  # all at once
        ({"request_rate": 0.5, "max_concurrency": None}, Load(None, 0.5)),
        ({"request_rate": 0.5}, Load(None, 0.5)),
    ],
)
def test_loads(tmp_path: Path, changes: dict[str, Any], load: Load) -> None:
    assert import_vllm_bench(_write(tmp_path, **changes), LABELS).cells[0].load == load


def test_a_rate_that_rose_is_no_load(tmp_path: Path) -> None:
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 10, "max_concurrency": None}
    with pytest.raises(RequestError, match="does not say under which load"):
        import_vllm_bench(_write(tmp_path, **ramp), LABELS)
    run = import_vllm_bench(_write(tmp_path, **ramp), ImportLabels(load=Load(None, 5.0)))
    assert run.cells[0].load == Load(None, 5.0)
    assert any(note.startswith("the request rate rose during the run (linear)") for note in run.notes)


def test_what_was_sent_at_once_is_said_once(tmp_path: Path) -> None:
    path = _write(tmp_path, max_concurrency=None)
    assert "all 3 requests were sent at once: imported as concurrency 3" in import_vllm_bench(path, LABELS).notes
    assert len(import_vllm_bench(path, ImportLabels(load=Load(2))).notes) == 1


def test_results_from_before_start_times_have_no_records(tmp_path: Path) -> None:
    older = {**DETAILS, "start_times": "absent", "queue_times": "absent", "latencies": "absent"}
    run = import_vllm_bench(_write(tmp_path, **older), LABELS)
    assert (run.records, len(run.cells)) == ((), 1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"completed": "absent", "model_id": "absent"}, "completed: Field required"),
        ({"request_rate": "fast"}, "request_rate"),
        ({"request_throughput": float("nan")}, "request_throughput: Input should be a finite number"),
        ({**DETAILS, "itls": [[0.1]]}, "lists differ in length: input_lens 3, output_lens 3, ttfts 3, itls 1"),
        ({**DETAILS, "errors": "absent"}, "has details but not errors"),
        ({**DETAILS, "queue_times": [0.1]}, "generated_texts or queue_times have another length"),
        ({**DETAILS, "ttfts": [0.1, -1.0, 0.1]}, "ttfts.1: Input should be greater than or equal to 0"),
        ({**DETAILS, "start_times": [1e300, 1.0, 1.0]}, "start_times.0: Input should be less than or equal to"),
        ({**DETAILS, "itls": [[4e9] * 3, [], []]}, "itls[0]: lasts longer than 64 bits hold"),
        ({**DETAILS, "itls": [[float("inf")], [], []]}, "itls.0.0: Input should be"),
        ({**DETAILS, "input_lens": [10**30, 1, 1]}, "input_lens.0: Input should be less than or equal to"),
        ({"median_ttft_ms": float("nan")}, "median_ttft_ms: nan is no finite number"),
    ],
)
def test_damaged_results_are_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        import_vllm_bench(_write(tmp_path, **changes), LABELS)
    assert complaint in str(raised.value)


def test_every_missing_key_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        import_vllm_bench(_write(tmp_path, completed="absent", model_id="absent"), LABELS)
    assert [violation.key for violation in raised.value.violations] == ["model_id", "completed"]


def test_a_file_of_appended_results_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps(RESULT) + "\n" + json.dumps(RESULT))
    with pytest.raises(ConfigError, match="holds 2 results"):
        import_vllm_bench(path, LABELS)
