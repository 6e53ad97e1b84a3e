"""Reads the `benchmarks.json` of GuideLLM: one cell per benchmark in it, that is, per load.

Format as of GuideLLM 0.8.1, report version 2: `guidellm/benchmark/schemas/report.py` (GenerativeBenchmarksReport),
`guidellm/benchmark/schemas/benchmark.py`, `guidellm/schemas/base/request_stats.py` (per request),
`guidellm/scheduler/strategies.py` (the load). Their names and ours:

    time_to_first_token_ms     ttft
    inter_token_latency_ms     tpot: (last token - first token) / (output_tokens - 1)
    last_token_iteration - request_start   e2e; `request_latency` ends with the response, a little after its last token,
                               and is used where single requests are not kept or were not streamed
    time_per_output_token_ms   none: it counts the first token's wait in

GuideLLM keeps the first and the last time of a token but none between them, so its requests cannot become records:
there is no gap between messages to measure. Percentiles are taken over its requests where the file holds all of them;
its own percentiles of `inter_token_latency_ms` weigh each request by its tokens, and are used, with a note, where it
kept only a sample. Its own latencies run from the actual send. Where the times of all requests of an open loop are
there, those here run from when each was due (`targeted_start`), as ours do. `incomplete` requests were cut off by
GuideLLM at the end of the run and count neither as answers nor as failures.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from specdeploy.errors import ConfigError, Violation
from specdeploy.run_contract import Arm, CellSummary, Load, Percentile, Percentiles
from specdeploy.units import NS_PER_MS
from specdeploy_client.interchange.imported import (
    ForeignModel,
    ImportedRun,
    ImportLabels,
    Milliseconds,
    Seconds,
    TokenCount,
    known_load,
    parse_json,
    read_text,
    supported_percentiles,
    validate,
)
from specdeploy_client.metrics import percentiles_ms

RESULT_NAME = "benchmarks.json"
_TOOL = "GuideLLM"
_REPORT_VERSION = 2
_MS_PER_S = 1e3


class _Metadata(ForeignModel):
    version: int
    guidellm_version: str


class _Strategy(ForeignModel):
    type_: str
    streams: PositiveInt | None = None
    rate: PositiveFloat | None = None
    max_concurrency: PositiveInt | None = None


class _Config(ForeignModel):
    strategy: _Strategy
    backend: Mapping[str, Any] = Field(default_factory=dict)


class _Timings(ForeignModel):
    targeted_start: Seconds | None = None
    request_start: Seconds | None = None
    last_token_iteration: Seconds | None = None

    @property
    def waited_s(self) -> float | None:
        """From when it was due to when it was sent."""
        if self.targeted_start is None or self.request_start is None:
            return None
        return max(0.0, self.request_start - self.targeted_start)


class _Info(ForeignModel):
    timings: _Timings


class _Request(ForeignModel):
    info: _Info
    request_start_time: Seconds | None
    request_end_time: Seconds
    request_latency: Seconds | None
    time_to_first_token_ms: Milliseconds | None
    inter_token_latency_ms: Milliseconds | None
    prompt_tokens: TokenCount | None
    output_tokens: TokenCount | None


class _Requests(ForeignModel):
    successful: tuple[_Request, ...] | None = None


class _Totals(ForeignModel):
    successful: NonNegativeInt
    errored: NonNegativeInt
    incomplete: NonNegativeInt


class _Percentiles(ForeignModel):
    p50: float
    p90: float
    p95: float
    p99: float


class _Distribution(ForeignModel):
    mean: float
    count: NonNegativeInt
    total_sum: float
    percentiles: _Percentiles


class _ByStatus(ForeignModel):
    successful: _Distribution | None = None


class _Metrics(ForeignModel):
    request_totals: _Totals
    requests_per_second: _ByStatus
    output_tokens_per_second: _ByStatus
    request_latency: _ByStatus
    time_to_first_token_ms: _ByStatus
    inter_token_latency_ms: _ByStatus
    prompt_token_count: _ByStatus
    output_token_count: _ByStatus
    request_goodput: _ByStatus | None = None


class _Window(ForeignModel):
    measure_start_time: Seconds
    measure_end_time: Seconds
    requests_made: _Totals


class _Benchmark(ForeignModel):
    config: _Config
    scheduler_metrics: _Window
    metrics: _Metrics
    requests: _Requests


class _Report(ForeignModel):
    metadata: _Metadata
    benchmarks: tuple[_Benchmark, ...] = Field(min_length=1)


def import_guidellm(path: Path, labels: ImportLabels) -> ImportedRun:
    """Every benchmark of the file as a cell.

    Raises `ConfigError` for a report of another version and for two benchmarks of the same load; `RequestError` for
    a strategy that is no load of ours (`throughput` without a limit, `trace`) where the user gives none.
    """
    data = parse_json(read_text(path), str(path))
    _check_version(data, path)
    report = validate(data, _Report, str(path), _TOOL)
    notes = ["GuideLLM keeps no times of single messages"]
    cells = tuple(
        _cell(benchmark, labels, f"{path}: benchmarks[{index}]", notes)
        for index, benchmark in enumerate(report.benchmarks)
    )
    if len({cell.load for cell in cells}) < len(cells):
        reason = f"{len(cells)} benchmarks have the same load ({', '.join(str(cell.load) for cell in cells)})"
        raise ConfigError([Violation(str(path), "benchmarks", reason, "Import one benchmark per load and file")])
    windows = [benchmark.scheduler_metrics for benchmark in report.benchmarks]
    started = min(window.measure_start_time for window in windows)
    model = report.benchmarks[0].config.backend.get("model")
    return ImportedRun(
        tool=f"{_TOOL} {report.metadata.guidellm_version}",
        model=model if isinstance(model, str) else None,
        started_at=datetime.fromtimestamp(started, tz=UTC).isoformat(timespec="seconds"),
        duration_s=sum(window.measure_end_time - window.measure_start_time for window in windows),
        cells=cells,
        notes=tuple(notes),
    )


def _check_version(data: object, path: Path) -> None:
    """Another report version is named before its keys are, which would be missing by the dozen."""
    metadata = data.get("metadata") if isinstance(data, dict) else None
    version = metadata.get("version") if isinstance(metadata, dict) else None
    if version is not None and version != _REPORT_VERSION:
        reason = f"report version {version} is not {_REPORT_VERSION}"
        raise ConfigError([Violation(str(path), "metadata.version", reason, "Write it with GuideLLM 0.8")])


def _cell(benchmark: _Benchmark, labels: ImportLabels, place: str, notes: list[str]) -> CellSummary:
    metrics = benchmark.metrics
    totals = metrics.request_totals
    load = known_load(labels, _load_of(benchmark.config.strategy), place)
    complete = _all_successful(benchmark)
    if complete is None:
        kept = len(benchmark.requests.successful or ())
        notes.append(
            f"{load}: the file holds {kept} of {benchmark.scheduler_metrics.requests_made.successful} requests; "
            "percentiles are GuideLLM's own, those of TPOT weighed by tokens"
        )
    if totals.incomplete:
        notes.append(f"{load}: {totals.incomplete} requests cut off by GuideLLM are left out")
    waits = None if complete is None or load.request_rate is None else _waits_s(complete)
    since = "was sent" if waits is None else "was due, GuideLLM's own from when it was sent"
    notes.append(f"{load}: latencies run from when each request {since}")
    percentiles = _own_percentiles(metrics) if complete is None else _request_percentiles(complete, waits)
    return CellSummary(
        segment=labels.segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        arm=labels.arm or Arm.OFF,
        num_requests=totals.successful + totals.errored,
        num_errors=totals.errored,
        ttft_ms=percentiles[0],
        tpot_ms=percentiles[1],
        e2e_ms=percentiles[2],
        tokens_per_message=None,
        output_throughput=_mean(metrics.output_tokens_per_second),
        request_throughput=_mean(metrics.requests_per_second),
        goodput=None if metrics.request_goodput is None else _mean(metrics.request_goodput),
        num_input_tokens=_sum(metrics.prompt_token_count),
        num_output_tokens=_sum(metrics.output_token_count),
        acceptance=None,
    )


def _load_of(strategy: _Strategy) -> Load | None:
    if strategy.type_ == "synchronous":
        return Load(1)
    if strategy.type_ == "concurrent" and strategy.streams is not None:
        return Load(strategy.streams)
    if strategy.type_ == "throughput" and strategy.max_concurrency is not None:
        return Load(strategy.max_concurrency)  # always that many in flight
    if strategy.type_ in ("constant", "poisson") and strategy.rate is not None:
        return Load(None, strategy.rate)
    return None


def _all_successful(benchmark: _Benchmark) -> tuple[_Request, ...] | None:
    """The successful requests inside the measured window, or None where the file holds only a sample of them."""
    kept, window = benchmark.requests.successful or (), benchmark.scheduler_metrics
    if len(kept) < window.requests_made.successful:
        return None
    return tuple(
        request
        for request in kept
        if request.request_end_time >= window.measure_start_time
        and (request.request_start_time or request.request_end_time) <= window.measure_end_time
    )


def _waits_s(requests: Sequence[_Request]) -> tuple[float, ...] | None:
    """How long each request waited to be sent after it was due; None where that is not known of all of them."""
    waits = [request.info.timings.waited_s for request in requests]
    return None if None in waits else tuple(wait for wait in waits if wait is not None)


def _request_percentiles(
    requests: Sequence[_Request], waits_s: Sequence[float] | None
) -> tuple[Percentiles, Percentiles, Percentiles]:
    """TTFT, TPOT, e2e over single requests. `waits_s`: what TTFT and e2e have on top of GuideLLM's."""
    waits = [0.0] * len(requests) if waits_s is None else waits_s

    def over(value_ms: Callable[[_Request], float | None], waits_s: Sequence[float]) -> Percentiles:
        known = ((value_ms(request), wait) for request, wait in zip(requests, waits_s, strict=True))
        return percentiles_ms([(value + wait * _MS_PER_S) * NS_PER_MS for value, wait in known if value is not None])

    return (
        over(lambda request: request.time_to_first_token_ms, waits),
        over(lambda request: request.inter_token_latency_ms, [0.0] * len(requests)),
        over(_e2e_ms, waits),
    )


def _e2e_ms(request: _Request) -> float | None:
    start, last = request.info.timings.request_start, request.info.timings.last_token_iteration
    latency = request.request_latency if start is None or last is None else last - start
    return None if latency is None else latency * _MS_PER_S


def _own_percentiles(metrics: _Metrics) -> tuple[Percentiles, Percentiles, Percentiles]:
    """TTFT, TPOT, e2e as GuideLLM computed them."""
    num_requests = metrics.request_totals.successful

    def of(by_status: _ByStatus, ms_per_unit: float) -> Percentiles:
        found = by_status.successful
        if found is None:
            return supported_percentiles(0, {})
        own = found.percentiles
        values = {Percentile.P50: own.p50, Percentile.P90: own.p90, Percentile.P95: own.p95, Percentile.P99: own.p99}
        scaled: dict[Percentile, float | None] = {name: value * ms_per_unit for name, value in values.items()}
        # A count weighed by tokens is larger than the sample that supports a percentile.
        return supported_percentiles(min(found.count, num_requests), scaled, found.mean * ms_per_unit)

    return (
        of(metrics.time_to_first_token_ms, 1.0),
        of(metrics.inter_token_latency_ms, 1.0),
        of(metrics.request_latency, _MS_PER_S),
    )


def _mean(by_status: _ByStatus) -> float | None:
    return None if by_status.successful is None else by_status.successful.mean


def _sum(by_status: _ByStatus) -> int | None:
    return None if by_status.successful is None else round(by_status.successful.total_sum)
