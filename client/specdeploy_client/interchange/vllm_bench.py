"""Reads the result JSON of `vllm bench serve` (`--save-result`, better with `--save-detailed`).

Format as of vLLM's main branch in 2026: `vllm/benchmarks/serve.py` (`benchmark` and `main_async`, which write it) and
`vllm/benchmarks/lib/endpoint_request_func.py` (what the times are). Their names and ours:

    ttft   ttft
    tpot   tpot: (latency - ttft) / (output_lens - 1)
    itl    icl: the gap between two streamed chunks, not between two tokens
    e2el   e2e

With `--save-detailed` every request has its times and becomes a record; without, only the statistics are there. vLLM
measures from the actual send: in an open loop the time a request waited for `--max-concurrency` (`queue_times`) is
added here, because our latencies run from when a request was due.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from specdeploy.errors import ConfigError, Violation
from specdeploy.run_contract import Acceptance, Arm, CellSummary, Load, Percentile, Percentiles, RequestRecord
from specdeploy.units import NS_PER_S
from specdeploy_client.interchange.imported import (
    ForeignModel,
    ImportedRun,
    ImportLabels,
    Seconds,
    StatedRates,
    TokenCount,
    arm_by_drafting,
    arrivals_ns,
    failure_kind,
    finite_number,
    known_load,
    parse_json,
    read_text,
    summed_acceptance,
    supported_percentiles,
    validate,
)

_TOOL = "`vllm bench serve`"
_DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "errors")
_DATE_FORMAT = "%Y%m%d-%H%M%S"
_NO_REASON = "vLLM names no reason"


class _Result(ForeignModel):
    """Statistics of metrics that were not chosen by `--percentile-metrics` are absent."""

    date: str
    model_id: str
    num_prompts: PositiveInt
    request_rate: PositiveFloat | Literal["inf"]
    max_concurrency: PositiveInt | None = None
    ramp_up_strategy: str | None = None
    duration: NonNegativeFloat
    completed: NonNegativeInt
    failed: NonNegativeInt | None = None
    total_input_tokens: NonNegativeInt
    total_output_tokens: NonNegativeInt
    request_throughput: NonNegativeFloat
    request_goodput: NonNegativeFloat | None = None
    output_throughput: NonNegativeFloat
    spec_decode_num_drafts: NonNegativeInt | None = None
    spec_decode_draft_tokens: NonNegativeInt | None = None
    spec_decode_accepted_tokens: NonNegativeInt | None = None
    spec_decode_per_position_acceptance_rates: tuple[float, ...] | None = None
    input_lens: tuple[TokenCount, ...] | None = None
    output_lens: tuple[TokenCount, ...] | None = None
    ttfts: tuple[Seconds, ...] | None = None
    itls: tuple[tuple[Seconds, ...], ...] | None = None
    errors: tuple[str, ...] | None = None
    generated_texts: tuple[str, ...] | None = None
    start_times: tuple[Seconds, ...] | None = None
    queue_times: tuple[Seconds, ...] | None = None


def import_vllm_bench(path: Path, labels: ImportLabels) -> ImportedRun:
    """One result file as records, or as one cell where it has no details.

    Raises `ConfigError` for a file with several results (`--append-result`), for missing keys and for details whose
    lists differ in length.
    """
    data = parse_json(_single_result(read_text(path), path), str(path))
    result = validate(data, _Result, str(path), _TOOL)
    raw = data if isinstance(data, dict) else {}
    load = known_load(labels, _load_of(result), str(path))
    arm = arm_by_drafting(labels, [result.spec_decode_draft_tokens])
    notes = []
    if result.ramp_up_strategy is not None:
        notes.append(f"the request rate rose during the run ({result.ramp_up_strategy}): its load is what you gave")
    elif result.request_rate == "inf" and result.max_concurrency is None and labels.load is None:
        notes.append(f"all {result.num_prompts} requests were sent at once: imported as {load}")
    records = _records(result, labels.segment, load, arm, path) if _has_details(result, path) else ()
    if records and load.request_rate is not None:
        notes.append("latencies run from when each request was due, vLLM's own from when it was sent")
    if not records:
        notes.append("no details (--save-detailed): only the statistics that vLLM computed")
    return ImportedRun(
        tool="vllm bench serve",
        model=result.model_id,
        started_at=_started_at(result.date),
        duration_s=result.duration,
        records=records,
        cells=() if records else (_cell(result, raw, labels.segment, load, arm, path),),
        acceptance=_acceptance(result),
        rates=StatedRates(result.output_throughput, result.request_throughput, result.request_goodput),
        notes=tuple(notes),
    )


def _single_result(text: str, path: Path) -> str:
    """`--append-result` writes one result per line; each is a run of its own."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(line.startswith("{") and line.endswith("}") for line in lines):
        reason = f"holds {len(lines)} results"
        remedy = "Save each line as a file of its own and import them one by one"
        raise ConfigError([Violation(str(path), "", reason, remedy)])
    return text


def _load_of(result: _Result) -> Load | None:
    """A finite rate is an open loop, whatever limits it; without one, `--max-concurrency` requests are in flight.

    None for a rate that rose during the run, which vLLM writes as rate `inf` too: that is no single load.
    """
    if result.ramp_up_strategy is not None:
        return None
    if result.request_rate != "inf":
        return Load(None, result.request_rate)
    return Load(result.max_concurrency or result.num_prompts)


def _has_details(result: _Result, path: Path) -> bool:
    """Whether every list that a record needs is there. Raises `ConfigError` when some are, or their lengths differ."""
    lists: dict[str, Sequence[object] | None] = {name: getattr(result, name) for name in (*_DETAILS, "start_times")}
    present = {name: values for name, values in lists.items() if values is not None}
    missing = [name for name in _DETAILS if name not in present]
    if not present or "ttfts" not in present:
        return False
    if missing:
        reason = f"has details but not {', '.join(missing)}"
        raise ConfigError([Violation(str(path), "", reason, "Save with --save-detailed and change nothing")])
    if result.start_times is None:
        return False  # before start_times were written there was no way to say when a request ran
    if len({len(values) for values in present.values()}) > 1:
        lengths = ", ".join(f"{name} {len(values)}" for name, values in present.items())
        raise ConfigError([Violation(str(path), "", f"lists differ in length: {lengths}", "Save the result again")])
    return True


def _records(result: _Result, segment: str, load: Load, arm: Arm, path: Path) -> tuple[RequestRecord, ...]:
    starts, ttfts, itls = result.start_times or (), result.ttfts or (), result.itls or ()
    errors, inputs, outputs = result.errors or (), result.input_lens or (), result.output_lens or ()
    texts = result.generated_texts or ("",) * len(starts)
    waited = result.queue_times or (0.0,) * len(starts)
    if len(texts) != len(starts) or len(waited) != len(starts):
        reason = "generated_texts or queue_times have another length than start_times"
        raise ConfigError([Violation(str(path), "", reason, "Save the result again")])
    records = []
    for index, start in enumerate(starts):
        # A request without a first token failed, also where the server gave no reason with it.
        error = errors[index] or (None if ttfts[index] > 0 else _NO_REASON)
        send_ns = round(start * NS_PER_S)
        messages: tuple[int, ...] = ()
        if error is None:
            gaps = (gap * NS_PER_S for gap in itls[index])
            messages = arrivals_ns(send_ns + round(ttfts[index] * NS_PER_S), gaps, f"{path}: itls[{index}]")
        due_ns = send_ns if load.request_rate is None else send_ns - round(waited[index] * NS_PER_S)
        records.append(
            RequestRecord(
                request_id=f"vllm-{index}",
                segment=segment,
                concurrency=load.concurrency,
                request_rate=load.request_rate,
                arm=arm,
                block=0,
                index=index,
                prompt_id=f"prompt-{index}",
                scheduled_ns=due_ns,
                send_ns=send_ns,
                end_ns=messages[-1] if messages else send_ns,
                message_ns=messages,
                message_tokens=None,
                output_ids=(),
                text=texts[index],
                error=error,
                failure=None if error is None else failure_kind(error),
                input_token_count=inputs[index],
                output_token_count=outputs[index] if error is None else None,
            )
        )
    return tuple(records)


def _cell(result: _Result, raw: dict[str, Any], segment: str, load: Load, arm: Arm, path: Path) -> CellSummary:
    def percentiles(metric: str) -> Percentiles:
        return _percentiles(raw, metric, result.completed, path)

    num_failed = result.num_prompts - result.completed if result.failed is None else result.failed
    return CellSummary(
        segment=segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        arm=arm,
        num_requests=result.completed + num_failed,
        num_errors=num_failed,
        ttft_ms=percentiles("ttft"),
        tpot_ms=percentiles("tpot"),
        e2e_ms=percentiles("e2el"),
        icl_ms=percentiles("itl") if "median_itl_ms" in raw else None,
        tokens_per_message=None,
        output_throughput=result.output_throughput,
        request_throughput=result.request_throughput,
        goodput=result.request_goodput,
        num_input_tokens=result.total_input_tokens,
        num_output_tokens=result.total_output_tokens,
        acceptance=_acceptance(result),
    )


def _acceptance(result: _Result) -> Acceptance | None:
    """From the server's counters over the run; vLLM counts a draft per step that had one."""
    steps, drafted, accepted = (
        result.spec_decode_num_drafts,
        result.spec_decode_draft_tokens,
        result.spec_decode_accepted_tokens,
    )
    if steps is None or drafted is None or accepted is None:
        return None
    per_pos = result.spec_decode_per_position_acceptance_rates
    return summed_acceptance(steps, drafted, accepted).model_copy(update={"rate_per_pos": per_pos or None})


def _percentiles(raw: dict[str, Any], metric: str, num_samples: int, path: Path) -> Percentiles:
    """Of one metric; percentiles that `--metric-percentiles` did not ask for are None."""

    def number(key: str) -> float | None:
        return finite_number(raw.get(key), f"{path}: {key}")

    if f"median_{metric}_ms" not in raw:
        return supported_percentiles(0, {})
    keys = {Percentile.P50: f"median_{metric}_ms"}
    keys |= {percentile: f"{percentile}_{metric}_ms" for percentile in (Percentile.P90, Percentile.P95, Percentile.P99)}
    values = {percentile: number(key) for percentile, key in keys.items()}
    return supported_percentiles(num_samples, values, number(f"mean_{metric}_ms"))


def _started_at(date: str) -> str:
    """vLLM writes its local time without a zone; what it cannot say is not added."""
    try:
        return datetime.strptime(date, _DATE_FORMAT).isoformat()  # noqa: DTZ007 - the file has no zone
    except ValueError:
        return date
