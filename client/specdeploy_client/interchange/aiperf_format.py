"""The parts of AIPerf's two result files that are read here.

Formats as of AIPerf 0.13.0, export schema 1.4: `aiperf/common/models/record_models.py` (MetricRecordInfo),
`aiperf/common/models/export_models.py` (JsonExportData), `aiperf/config/phases.py` (the load). AIPerf leaves out what
was not set, so nearly everything is optional.
"""

from typing import Any, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from specdeploy.units import NS_PER_MS, NS_PER_S
from specdeploy_client.interchange.imported import EpochNs, ForeignModel, TokenCount

RECORDS_NAME = "profile_export.jsonl"
STATISTICS_NAME = "profile_export_aiperf.json"
NS_PER_UNIT = {"ns": 1.0, "us": 1e3, "ms": float(NS_PER_MS), "sec": float(NS_PER_S), "s": float(NS_PER_S)}


class Metadata(ForeignModel):
    """When a request ran and which it was."""

    session_num: NonNegativeInt
    x_request_id: str | None = None
    conversation_id: str | None = None
    turn_index: NonNegativeInt | None = None
    credit_issued_ns: EpochNs | None = None
    request_start_ns: EpochNs
    request_end_ns: EpochNs
    benchmark_phase: Literal["warmup", "profiling"]
    was_cancelled: bool = False


class MetricValue(ForeignModel):
    """One metric of one request: a number, or a list of them."""

    value: Any
    unit: str


class RecordError(ForeignModel):
    """Why a request failed."""

    code: int | None = None
    type: str | None = None
    message: str

    def __str__(self) -> str:
        return ", ".join(str(part) for part in (self.type, self.code, self.message) if part is not None)


class Acceptance(ForeignModel):
    """What a request drafted, as the engine told."""

    num_spec_steps: TokenCount
    num_draft_tokens: TokenCount
    num_accepted_draft_tokens: TokenCount


class Line(ForeignModel):
    """One line of `profile_export.jsonl`."""

    metadata: Metadata
    metrics: dict[str, MetricValue] | None
    spec_decode_acceptance: Acceptance | None = None
    error: RecordError | None = None


class Statistic(ForeignModel):
    """One metric over all requests; scalars have `avg` only."""

    unit: str
    avg: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    count: NonNegativeInt | None = None


class Phase(ForeignModel):
    """One phase of the load."""

    type: str | None = None
    kind: str | None = None
    name: str | None = None
    concurrency: PositiveInt | None = None
    rate: PositiveFloat | None = None


class LoadGenerator(ForeignModel):
    """Of older versions, which wrote the flags and no phases."""

    concurrency: PositiveInt | None = None
    request_rate: PositiveFloat | None = None


class Model(ForeignModel):
    """The name a model is asked for by."""

    name: str | None = None


class Models(ForeignModel):
    """All models of a run."""

    items: tuple[Model, ...] = ()


class InputConfig(ForeignModel):
    """What the run was asked to do."""

    phases: tuple[Phase, ...] = ()
    loadgen: LoadGenerator | None = None
    models: Models | None = None


class Statistics(ForeignModel):
    """`profile_export_aiperf.json`."""

    schema_version: str | None = None
    aiperf_version: str | None = None
    request_count: Statistic | None = None
    error_request_count: Statistic | None = None
    request_latency: Statistic | None = None
    time_to_first_token: Statistic | None = None
    inter_token_latency: Statistic | None = None
    inter_chunk_latency: Statistic | None = None
    request_throughput: Statistic | None = None
    output_token_throughput: Statistic | None = None
    goodput: Statistic | None = None
    total_isl: Statistic | None = None
    total_osl: Statistic | None = None
    total_spec_decode_steps: Statistic | None = None
    total_draft_tokens: Statistic | None = None
    total_accepted_draft_tokens: Statistic | None = None
    benchmark_duration: Statistic | None = None
    input_config: InputConfig | None = None
    start_time: str | None = None
    was_cancelled: bool | None = None
    is_complete: bool | None = None
    incomplete_reason: str | None = None
