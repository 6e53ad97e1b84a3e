"""Reads what AIPerf writes: `profile_export.jsonl` (a line per request) and `profile_export_aiperf.json` (statistics).

Formats as of AIPerf 0.13.0 (`aiperf_format.py`). Their names and ours:

    time_to_first_token   ttft
    inter_token_latency   tpot: (request_latency - time_to_first_token) / (output_sequence_length - 1)
    inter_chunk_latency   icl
    request_latency       e2e: to the last message with content

AIPerf's latencies run from the actual send. For a closed loop that is our definition too; in an open loop ours run
from when the request was due, which is when AIPerf issued its credit. Requests of the warm-up phase are left out;
requests that AIPerf cancelled are kept as cancelled, neither answers nor failures.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from specdeploy.errors import ConfigError, Violation
from specdeploy.run_contract import Arm, CellSummary, FailureKind, Load, Percentile, Percentiles, RequestRecord
from specdeploy.units import NS_PER_MS, NS_PER_S, ns_to_s
from specdeploy_client.interchange.aiperf_format import (
    NS_PER_UNIT,
    STATISTICS_NAME,
    Line,
    MetricValue,
    Statistic,
    Statistics,
)
from specdeploy_client.interchange.imported import (
    ImportedRun,
    ImportLabels,
    StatedRates,
    arm_by_drafting,
    arrivals_ns,
    failure_kind,
    finite_number,
    known_load,
    parse_json,
    parse_lines,
    read_text,
    summed_acceptance,
    supported_percentiles,
    validate,
)
from specdeploy_client.metrics import is_answered
from specdeploy_client.workloads.line_files import MAX_NS, MAX_TOKENS

_TOOL = "AIPerf"


def import_aiperf_records(path: Path, labels: ImportLabels) -> ImportedRun:
    """`profile_export.jsonl` as records. The load is taken from `profile_export_aiperf.json` beside it.

    Raises `ConfigError` with every bad line, and for a run without `--streaming`, whose lines hold no time of a
    message; `RequestError` where nothing says the load.
    """
    beside = path.with_name(STATISTICS_NAME)
    statistics = _load_statistics(beside) if beside.is_file() else None
    load = known_load(labels, None if statistics is None else _load_of(statistics), str(path))
    notes: list[str] = []

    def parse(data: object, place: str) -> RequestRecord | None:
        line = validate(data, Line, place, _TOOL)
        return _record(line, labels, load, place) if line.metadata.benchmark_phase == "profiling" else None

    parsed = parse_lines(read_text(path), str(path), parse, notes.append)
    records = sorted((record for record in parsed if record is not None), key=lambda record: record.send_ns)
    if num_warmup := len(parsed) - len(records):
        notes.append(f"{num_warmup} requests of the warm-up left out")
    _require_streamed_requests(path, records)
    if load.request_rate is not None:
        notes.append("latencies run from when each request was due (the credit), AIPerf's own from when it was sent")
    arm = arm_by_drafting(labels, [record.num_draft_tokens for record in records])
    started_ns = records[0].send_ns
    span_s = ns_to_s(max(record.end_ns for record in records) - started_ns)
    return ImportedRun(
        tool=_tool_name(statistics),
        model=None if statistics is None else _model_of(statistics),
        started_at=datetime.fromtimestamp(ns_to_s(started_ns), tz=UTC).isoformat(timespec="seconds"),
        duration_s=span_s if statistics is None else _duration_s(statistics, str(beside)) or span_s,
        records=tuple(record.model_copy(update={"index": index, "arm": arm}) for index, record in enumerate(records)),
        rates=StatedRates() if statistics is None else _rates(statistics),
        notes=tuple(notes),
    )


def import_aiperf_statistics(path: Path, labels: ImportLabels) -> ImportedRun:
    """`profile_export_aiperf.json` as one cell. Raises `ConfigError` naming what is missing."""
    statistics = _load_statistics(path)
    load = known_load(labels, _load_of(statistics), str(path))
    notes = []
    if statistics.was_cancelled:
        notes.append("the run was cancelled")
    if statistics.is_complete is False:
        notes.append(f"the run is not complete: {statistics.incomplete_reason or 'no reason given'}")
    return ImportedRun(
        tool=_tool_name(statistics),
        model=_model_of(statistics),
        started_at=statistics.start_time or "unknown",
        duration_s=_duration_s(statistics, str(path)) or 0.0,
        cells=(_cell(statistics, labels, load, str(path)),),
        notes=tuple(notes),
    )


def _load_statistics(path: Path) -> Statistics:
    statistics = validate(parse_json(read_text(path), str(path)), Statistics, str(path), _TOOL)
    if statistics.schema_version is not None and statistics.schema_version.split(".")[0] != "1":
        raise _problem(
            path, f"schema_version {statistics.schema_version} is not known", "Export with AIPerf 0.13 (1.4)"
        )
    if statistics.request_count is None and statistics.error_request_count is None:
        reason = "has neither request_count nor error_request_count"
        raise _problem(path, reason, f"Give {STATISTICS_NAME} of a run, not of a sweep or a phase list")
    return statistics


def _require_streamed_requests(path: Path, records: Sequence[RequestRecord]) -> None:
    if not records:
        raise _problem(path, "holds no request of the profiling phase", "Import a finished run")
    answered = [record for record in records if is_answered(record)]
    if answered and not any(record.message_ns for record in answered):
        reason = "no request has time_to_first_token: the run was not streamed"
        raise _problem(path, reason, f"Import {STATISTICS_NAME} of the same run, or measure again with --streaming")


def _load_of(statistics: Statistics) -> Load | None:
    """The load of the profiling phase, None where it has none of ours (a replayed schedule, a sweep)."""
    config = statistics.input_config
    if config is None:
        return None
    phases = [phase for phase in config.phases if "profiling" in (phase.kind, phase.name)]
    if len(phases) == 1:
        phase = phases[0]
        if phase.type == "concurrency":
            return Load(phase.concurrency or 1)  # AIPerf leaves its default of 1 out
        return None if phase.rate is None else Load(None, phase.rate)
    flags = config.loadgen
    if flags is not None and flags.request_rate is not None:
        return Load(None, flags.request_rate)
    return None if flags is None or flags.concurrency is None else Load(flags.concurrency)


def _record(line: Line, labels: ImportLabels, load: Load, place: str) -> RequestRecord:
    """One line as a record; its index and arm are known when all were read.

    AIPerf does not say how many tokens a message carried, only how many there were.
    """
    metadata = line.metadata
    steps, drafted, accepted = _drafting(line, place)
    is_open_loop = load.request_rate is not None and metadata.credit_issued_ns is not None
    error = str(line.error) if line.error is not None and not metadata.was_cancelled else None
    prompt = metadata.conversation_id or f"session-{metadata.session_num}"
    return RequestRecord(
        request_id=metadata.x_request_id or f"aiperf-{metadata.session_num}-{metadata.turn_index or 0}",
        segment=labels.segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        arm=labels.arm or Arm.OFF,
        block=0,
        index=0,
        prompt_id=f"{prompt}/{metadata.turn_index}" if metadata.turn_index else prompt,
        scheduled_ns=metadata.credit_issued_ns or 0 if is_open_loop else metadata.request_start_ns,
        send_ns=metadata.request_start_ns,
        end_ns=metadata.request_end_ns,
        message_ns=_message_times(line, place),
        message_tokens=None,
        output_ids=(),
        text="",
        error=error,
        failure=_failure_of(line, error),
        input_token_count=_count(line, "usage_prompt_tokens", place) or _count(line, "input_sequence_length", place),
        output_token_count=_count(line, "output_sequence_length", place),
        cached_token_count=_count(line, "usage_prompt_cache_read_tokens", place),
        num_steps=steps,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
    )


def _drafting(line: Line, place: str) -> tuple[int | None, int | None, int | None]:
    """(steps, drafted, accepted) of a request; AIPerf has them once as a record and once as metrics."""
    own = line.spec_decode_acceptance
    if own is not None:
        return own.num_spec_steps, own.num_draft_tokens, own.num_accepted_draft_tokens
    names = ("spec_decode_steps", "spec_decode_draft_tokens", "spec_decode_accepted_draft_tokens")
    steps, drafted, accepted = (_count(line, name, place) for name in names)
    return steps, drafted, accepted


def _failure_of(line: Line, words: str | None) -> FailureKind | None:
    if line.metadata.was_cancelled:
        return FailureKind.CANCELLED
    if line.error is None or words is None:
        return None
    is_http = line.error.code is not None and 400 <= line.error.code < 600
    return FailureKind.REFUSED if is_http else failure_kind(words)


def _message_times(line: Line, place: str) -> tuple[int, ...]:
    """[M] when the messages with content arrived: the first token, then the gaps."""
    metrics = line.metrics or {}
    if "time_to_first_token" not in metrics:
        return ()
    firsts = _durations_ns(metrics["time_to_first_token"], f"{place}: metrics.time_to_first_token")
    if len(firsts) != 1:
        where = f"{place}: metrics.time_to_first_token"
        raise ConfigError([Violation(where, "", f"holds {len(firsts)} durations", "A request has one first token")])
    gaps: tuple[float, ...] = ()
    if "inter_chunk_latency" in metrics:
        gaps = _durations_ns(metrics["inter_chunk_latency"], f"{place}: metrics.inter_chunk_latency")
    return arrivals_ns(line.metadata.request_start_ns + round(firsts[0]), gaps, place)


def _durations_ns(metric: MetricValue, place: str) -> tuple[float, ...]:
    values = metric.value if isinstance(metric.value, list) else [metric.value]
    scale = _ns_per(metric.unit, place)
    numbers = [finite_number(value, place) for value in values]
    durations = tuple(number * scale for number in numbers if number is not None and 0 <= number * scale <= MAX_NS)
    if len(durations) < len(values):
        raise ConfigError([Violation(place, "", "is not a duration", "Export again; AIPerf writes numbers >= 0")])
    return durations


def _count(line: Line, name: str, place: str) -> int | None:
    metric = (line.metrics or {}).get(name)
    if metric is None:
        return None
    where = f"{place}: metrics.{name}"
    number = finite_number(metric.value, where)
    if number is None or not 0 <= number <= MAX_TOKENS:
        raise ConfigError([Violation(where, "", "is not a count", "AIPerf writes numbers >= 0")])
    return round(number)


def _cell(statistics: Statistics, labels: ImportLabels, load: Load, place: str) -> CellSummary:
    num_good = round(_average(statistics.request_count) or 0)
    num_errors = round(_average(statistics.error_request_count) or 0)
    counts = [statistics.total_spec_decode_steps, statistics.total_draft_tokens, statistics.total_accepted_draft_tokens]
    rates = _rates(statistics)
    steps, drafted, accepted = (None if one is None else round(one.avg or 0) for one in counts)

    def percentiles(name: str) -> Percentiles:
        return _percentiles(getattr(statistics, name), num_good, f"{place}: {name}")

    return CellSummary(
        segment=labels.segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        arm=arm_by_drafting(labels, [drafted]),
        num_requests=num_good + num_errors,
        num_errors=num_errors,
        ttft_ms=percentiles("time_to_first_token"),
        tpot_ms=percentiles("inter_token_latency"),
        e2e_ms=percentiles("request_latency"),
        icl_ms=percentiles("inter_chunk_latency") if statistics.inter_chunk_latency else None,
        tokens_per_message=None,
        output_throughput=rates.output_throughput,
        request_throughput=rates.request_throughput,
        goodput=rates.goodput,
        num_input_tokens=None if statistics.total_isl is None else round(statistics.total_isl.avg or 0),
        num_output_tokens=None if statistics.total_osl is None else round(statistics.total_osl.avg or 0),
        acceptance=None
        if steps is None or drafted is None or accepted is None
        else summed_acceptance(steps, drafted, accepted),
    )


def _percentiles(statistic: Statistic | None, num_requests: int, place: str) -> Percentiles:
    if statistic is None:
        return supported_percentiles(0, {})
    values = {Percentile.P50: statistic.p50, Percentile.P90: statistic.p90}
    values |= {Percentile.P95: statistic.p95, Percentile.P99: statistic.p99}
    scale = _ns_per(statistic.unit, place) / NS_PER_MS
    return supported_percentiles(
        num_requests if statistic.count is None else statistic.count,
        {percentile: None if value is None else value * scale for percentile, value in values.items()},
        None if statistic.avg is None else statistic.avg * scale,
    )


def _rates(statistics: Statistics) -> StatedRates:
    return StatedRates(
        output_throughput=_average(statistics.output_token_throughput),
        request_throughput=_average(statistics.request_throughput),
        goodput=_average(statistics.goodput),
    )


def _duration_s(statistics: Statistics, place: str) -> float | None:
    """How long AIPerf says that it measured."""
    duration = statistics.benchmark_duration
    if duration is None or duration.avg is None:
        return None
    return duration.avg * _ns_per(duration.unit, f"{place}: benchmark_duration") / NS_PER_S


def _average(statistic: Statistic | None) -> float | None:
    return None if statistic is None else statistic.avg


def _ns_per(unit: str, place: str) -> float:
    if unit not in NS_PER_UNIT:
        reason = f"unit {unit!r} is not one of time"
        raise ConfigError([Violation(place, "", reason, f"Known: {', '.join(NS_PER_UNIT)}")])
    return NS_PER_UNIT[unit]


def _tool_name(statistics: Statistics | None) -> str:
    version = None if statistics is None else statistics.aiperf_version
    return f"{_TOOL} {version}" if version else _TOOL


def _model_of(statistics: Statistics) -> str | None:
    models = None if statistics.input_config is None else statistics.input_config.models
    return ", ".join(model.name for model in models.items if model.name) or None if models is not None else None


def _problem(path: Path, reason: str, remedy: str) -> ConfigError:
    return ConfigError([Violation(str(path), "", reason, remedy)])
