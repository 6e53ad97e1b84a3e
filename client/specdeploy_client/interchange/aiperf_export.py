"""Writes a run as AIPerf would have: a folder per arm and cell with `profile_export.jsonl` and
`profile_export_aiperf.json`, which AIPerf's own models and its plot command read.

Formats as of AIPerf 0.13.0, export schema 1.4; names as in `aiperf.py`. Times are moved to the wall clock by the start
of the run, because AIPerf's are. `spec_decode_acceptance` needs a histogram of accepted tokens, which no record
holds; the counts go into the metrics of the same names instead.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from specdeploy.errors import ClientError
from specdeploy.run_contract import CellSummary, Load, RequestRecord, RunSummary
from specdeploy.units import NS_PER_S
from specdeploy_client.artifacts import write_text
from specdeploy_client.interchange.aiperf_format import RECORDS_NAME, STATISTICS_NAME
from specdeploy_client.interchange.samples import ArmKey, ArmSamples, Latencies, as_floats, export_name, open_atomically
from specdeploy_client.judging.run_lookup import find_cell
from specdeploy_client.metrics import is_cancelled, num_tokens

_SCHEMA_VERSION = "1.4"
_WRITER = "specdeploy"
_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_CANCELLED_CODE = 499  # what AIPerf gives a request that it cancelled


def export_aiperf(summary: RunSummary, records: Iterable[RequestRecord], folder: Path) -> tuple[Path, ...]:
    """Write the two files of every arm of every cell below `folder`; returns their paths.

    Reads the records once, in any order. Raises `ClientError` when there are none.
    """
    samples: dict[ArmKey, ArmSamples] = {}
    files: dict[ArmKey, TextIO] = {}
    shift_ns: int | None = None
    with ExitStack() as stack:
        for record in records:
            if shift_ns is None:
                shift_ns = _wall_clock_shift(summary, record)
            key = (record.segment, record.load, record.arm)
            if key not in files:
                samples[key] = ArmSamples()
                files[key] = stack.enter_context(open_atomically(folder / export_name(key) / RECORDS_NAME))
            latencies = samples[key].add(record)
            files[key].write(json.dumps(_line(record, latencies, shift_ns), allow_nan=False) + "\n")
    if not samples:
        raise ClientError(f"{summary.deployment}: no records to export. Measure with `specdeploy-client bench`")
    paths = []
    for key, arm_samples in samples.items():
        path = folder / export_name(key) / STATISTICS_NAME
        content = _statistics(summary, key, arm_samples)
        write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
        paths += [path.with_name(RECORDS_NAME), path]
    return tuple(paths)


def _wall_clock_shift(summary: RunSummary, first: RequestRecord) -> int:
    """What to add to the client's monotonic clock; 0 where the run does not say when it began."""
    try:
        return round(datetime.fromisoformat(summary.started_at).timestamp() * NS_PER_S) - first.send_ns
    except ValueError:
        return 0


def _line(record: RequestRecord, latencies: Latencies | None, shift_ns: int) -> dict[str, Any]:
    """One request as MetricRecordInfo."""
    was_cancelled = is_cancelled(record)
    metadata = {
        "session_num": record.index,
        "x_request_id": record.request_id,
        "conversation_id": record.prompt_id,
        "turn_index": 0,
        "credit_issued_ns": record.scheduled_ns + shift_ns,
        "request_start_ns": record.send_ns + shift_ns,
        "request_end_ns": record.end_ns + shift_ns,
        "worker_id": _WRITER,
        "record_processor_id": _WRITER,
        "benchmark_phase": "profiling",
        "was_cancelled": was_cancelled,
        "cancellation_time_ns": record.end_ns + shift_ns if was_cancelled else None,
    }
    return {"metadata": metadata, "metrics": _metrics(record, latencies), "error": _error(record)}


def _metrics(record: RequestRecord, latencies: Latencies | None) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "input_sequence_length": (record.input_token_count, "tokens"),
        "usage_prompt_cache_read_tokens": (record.cached_token_count, "tokens"),
        "spec_decode_steps": (record.num_steps, "count"),
        "spec_decode_draft_tokens": (record.num_draft_tokens, "tokens"),
        "spec_decode_accepted_draft_tokens": (record.num_accepted_tokens, "tokens"),
    }
    if latencies is not None:
        metrics |= {
            "time_to_first_token": (latencies.ttft_ms, "ms"),
            "request_latency": (latencies.e2e_ms, "ms"),
            "inter_token_latency": (latencies.tpot_ms, "ms"),
            "inter_chunk_latency": (list(latencies.icl_ms) or None, "ms"),
            "output_sequence_length": (num_tokens(record), "tokens"),
            "output_token_count": (num_tokens(record), "tokens"),
        }
    return {name: {"value": value, "unit": unit} for name, (value, unit) in metrics.items() if value is not None}


def _error(record: RequestRecord) -> dict[str, Any] | None:
    if is_cancelled(record):
        return {"code": _CANCELLED_CODE, "type": "RequestCancellationError", "message": "cancelled by the client"}
    if record.error is None and record.failure is None:
        return None
    return {"type": record.failure, "message": record.error or str(record.failure)}


def _statistics(summary: RunSummary, key: ArmKey, samples: ArmSamples) -> dict[str, Any]:
    """One arm of one cell as JsonExportData; metrics without a value are left out, as AIPerf does."""
    cell = find_cell(summary, *key)
    total_in, total_out = sum(samples.input_tokens), sum(samples.output_tokens)
    content: dict[str, Any] = {
        "schema_version": _SCHEMA_VERSION,
        "time_to_first_token": _distribution(as_floats(samples.ttft_ms), "ms"),
        "request_latency": _distribution(as_floats(samples.e2e_ms), "ms"),
        "inter_token_latency": _distribution(as_floats(samples.tpot_ms), "ms"),
        "inter_chunk_latency": _distribution(as_floats(samples.icl_ms), "ms"),
        "input_sequence_length": _distribution(as_floats(samples.input_tokens), "tokens"),
        "output_sequence_length": _distribution(as_floats(samples.output_tokens), "tokens"),
        "request_count": _scalar(samples.num_answered, "requests"),
        "error_request_count": _scalar(samples.num_failed or None, "requests"),
        "total_isl": _scalar(total_in or None, "tokens"),
        "total_osl": _scalar(total_out, "tokens"),
        "benchmark_duration": _scalar(samples.duration_s, "sec"),
        **_rates(samples, total_out),
        **_of_cell(cell),
        "input_config": _input_config(summary, key[1], samples),
        "was_cancelled": summary.interrupted is not None,
        "is_complete": summary.interrupted is None,
        "incomplete_reason": summary.interrupted,
        "error_summary": [
            {"error_details": {"message": words}, "count": count} for words, count in samples.errors.items()
        ],
        "start_time": summary.started_at,
        "metadata": {"writer": _WRITER, "segment": key[0], "speculation": key[2], "build": summary.build_id},
    }
    return {name: value for name, value in content.items() if value is not None}


def _rates(samples: ArmSamples, total_out: int) -> dict[str, Any]:
    duration = samples.duration_s
    if not duration:
        return {}
    return {
        "request_throughput": _scalar(samples.num_answered / duration, "requests/sec"),
        "output_token_throughput": _scalar(total_out / duration, "tokens/sec"),
    }


def _of_cell(cell: CellSummary | None) -> Mapping[str, Any]:
    """What the summary knows and single records do not."""
    if cell is None:
        return {}
    acceptance = cell.acceptance
    counts: dict[str, Any] = {"goodput": _scalar(cell.goodput, "requests/sec")}
    if acceptance is not None:
        counts |= {
            "total_spec_decode_steps": _scalar(acceptance.num_steps, "count"),
            "total_draft_tokens": _scalar(acceptance.num_draft_tokens, "tokens"),
            "total_accepted_draft_tokens": _scalar(acceptance.num_accepted_tokens, "tokens"),
        }
    return counts


def _input_config(summary: RunSummary, load: Load, samples: ArmSamples) -> dict[str, Any]:
    """The least that AIPerf's readers ask for: which model, and the load of the one phase."""
    num_requests = samples.num_answered + samples.num_failed + samples.num_cancelled
    phase: dict[str, Any] = {"name": "profiling", "kind": "profiling", "requests": num_requests}
    if load.request_rate is None:
        phase |= {"type": "concurrency", "concurrency": load.concurrency}
    else:
        phase |= {"type": _arrival_pattern(summary), "rate": load.request_rate}
    return {
        "models": {"items": [{"name": summary.deployment}]},
        "endpoint": {"urls": ["http://localhost"], "streaming": True},
        "datasets": [{"name": "main", "type": "synthetic", "entries": num_requests, "prompts": {"isl": {"mean": 1.0}}}],
        "phases": [phase],
    }


def _arrival_pattern(summary: RunSummary) -> str:
    """AIPerf's word for the arrivals; a replayed trace has none with a rate and counts as constant."""
    return next((word for word in ("poisson", "gamma") if word in summary.load_kind.lower()), "constant")


def _distribution(values: npt.NDArray[np.float64], unit: str) -> dict[str, Any] | None:
    if not len(values):
        return None
    percentiles = np.percentile(values, _PERCENTILES)
    return {
        "unit": unit,
        "avg": float(values.mean()),
        **{f"p{name}": float(value) for name, value in zip(_PERCENTILES, percentiles, strict=True)},
        "min": float(values.min()),
        "max": float(values.max()),
        "std": float(values.std()),
        "count": len(values),
        "sum": float(values.sum()),
    }


def _scalar(value: float | None, unit: str) -> dict[str, Any] | None:
    return None if value is None else {"unit": unit, "avg": value}
