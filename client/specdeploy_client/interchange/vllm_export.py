"""Writes a run as `vllm bench serve --save-result --save-detailed` would have: one JSON per arm and cell.

Format as in `vllm_bench.py`. Keys of vLLM's own making that a record cannot give (`max_output_tokens_per_s`, `rtfx`,
`burstiness`) are left out. Requests that this client cancelled are not part of the file: vLLM has none.
"""

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from specdeploy.errors import ClientError
from specdeploy.run_contract import Acceptance, RequestRecord, RunSummary
from specdeploy.units import NS_PER_S
from specdeploy_client.artifacts import write_text
from specdeploy_client.interchange.samples import ArmKey, ArmSamples, as_floats, export_name
from specdeploy_client.judging.run_lookup import find_cell
from specdeploy_client.metrics import is_answered, is_cancelled, num_tokens

_DATE_FORMAT = "%Y%m%d-%H%M%S"
_PERCENTILES = (50, 90, 95, 99)
_MS_PER_S = 1e3
_DETAILS = (
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "latencies",
    "start_times",
    "queue_times",
    "generated_texts",
    "errors",
)


def export_vllm_bench(summary: RunSummary, records: Iterable[RequestRecord], folder: Path) -> tuple[Path, ...]:
    """Write a file per arm of every cell into `folder`; returns their paths. Raises `ClientError` without records."""
    samples: dict[ArmKey, ArmSamples] = {}
    details: dict[ArmKey, dict[str, list[Any]]] = {}
    for record in records:
        key = (record.segment, record.load, record.arm)
        _add_details(
            details.setdefault(key, {name: [] for name in _DETAILS}), record, samples.setdefault(key, ArmSamples())
        )
    if not samples:
        raise ClientError(f"{summary.deployment}: no records to export. Measure with `specdeploy-client bench`")
    paths = []
    for key, arm_samples in samples.items():
        path = folder / f"{export_name(key)}.json"
        content = {**_header(summary, key, arm_samples), **_totals(summary, key, arm_samples), **details.pop(key)}
        write_text(path, json.dumps(content, allow_nan=False) + "\n")
        paths.append(path)
    return tuple(paths)


def _add_details(details: dict[str, list[Any]], record: RequestRecord, samples: ArmSamples) -> None:
    """One request, in seconds; a failed one has zeros, as vLLM writes it."""
    latencies = samples.add(record)
    if is_cancelled(record):
        return
    is_good = is_answered(record)
    waited_ns = 0 if record.request_rate is None else max(record.send_ns - record.scheduled_ns, 0)
    row = {
        "input_lens": record.input_token_count or 0,
        "output_lens": (num_tokens(record) or 0) if is_good else 0,
        "ttfts": 0.0 if latencies is None else latencies.ttft_ms / _MS_PER_S,
        "itls": [] if latencies is None else [gap / _MS_PER_S for gap in latencies.icl_ms],
        "latencies": 0.0 if latencies is None else latencies.e2e_ms / _MS_PER_S,
        "start_times": record.send_ns / NS_PER_S,
        "queue_times": waited_ns / NS_PER_S,
        "generated_texts": record.text,
        "errors": "" if is_good else record.error or str(record.failure),
    }
    for name, value in row.items():
        details[name].append(value)


def _header(summary: RunSummary, key: ArmKey, samples: ArmSamples) -> dict[str, Any]:
    segment, load, arm = key
    return {
        "date": _date(summary.started_at),
        "endpoint_type": "specdeploy",
        "backend": "specdeploy",
        "label": f"{segment}-{arm}",
        "model_id": summary.deployment,
        "tokenizer_id": None,
        "num_prompts": samples.num_answered + samples.num_failed,
        "request_rate": "inf" if load.request_rate is None else load.request_rate,
        "max_concurrency": load.concurrency,
    }


def _totals(summary: RunSummary, key: ArmKey, samples: ArmSamples) -> dict[str, Any]:
    total_in, total_out, duration = sum(samples.input_tokens), sum(samples.output_tokens), samples.duration_s
    cell = find_cell(summary, *key)

    def per_second(amount: float) -> float:
        return amount / duration if duration else 0.0

    return {
        "duration": duration,
        "completed": samples.num_answered,
        "failed": samples.num_failed,
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": per_second(samples.num_answered),
        "request_goodput": None if cell is None else cell.goodput,
        "output_throughput": per_second(total_out),
        "total_token_throughput": per_second(total_in + total_out),
        **_statistics("ttft", samples.ttft_ms),
        **_statistics("tpot", samples.tpot_ms),
        **_statistics("itl", samples.icl_ms),
        **_statistics("e2el", samples.e2e_ms),
        **_spec_decode(None if cell is None else cell.acceptance),
    }


def _statistics(name: str, values: Any) -> dict[str, float]:
    """mean_, median_, std_ and pNN_ of one metric in ms; without a value they are absent rather than 0."""
    numbers = as_floats(values)
    if not len(numbers):
        return {}
    percentiles = np.percentile(numbers, _PERCENTILES)
    return {
        f"mean_{name}_ms": float(numbers.mean()),
        f"median_{name}_ms": float(np.median(numbers)),
        f"std_{name}_ms": float(numbers.std()),
        **{f"p{rank}_{name}_ms": float(value) for rank, value in zip(_PERCENTILES, percentiles, strict=True)},
    }


def _spec_decode(acceptance: Acceptance | None) -> dict[str, Any]:
    """vLLM gives the rate in percent and nothing at all before the first draft."""
    if acceptance is None or acceptance.acceptance_rate is None:
        return {}
    return {
        "spec_decode_acceptance_rate": acceptance.acceptance_rate * 100,
        "spec_decode_acceptance_length": acceptance.mean_acceptance_length,
        "spec_decode_num_drafts": acceptance.num_steps,
        "spec_decode_draft_tokens": acceptance.num_draft_tokens,
        "spec_decode_accepted_tokens": acceptance.num_accepted_tokens,
        "spec_decode_per_position_acceptance_rates": list(acceptance.rate_per_pos or ()),
    }


def _date(started_at: str) -> str:
    try:
        return datetime.fromisoformat(started_at).strftime(_DATE_FORMAT)
    except ValueError:
        return started_at
