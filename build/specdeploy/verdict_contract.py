"""What was judged, as files: IntegrityReport, and RunSummary + IntegrityReport + GateConfig -> Verdict.

All models are frozen and refuse unknown keys.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from specdeploy.contract import ContractModel
from specdeploy.run_contract import MetricName, Percentile, Slo


class Status(StrEnum):
    """Outcome of a check, a finding or a whole verdict."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class IntegrityCheck(ContractModel):
    """One question about outputs and its answer."""

    name: str
    status: Status
    detail: str
    num_compared: NonNegativeInt = 0
    num_different: NonNegativeInt = 0


class IntegrityReport(ContractModel):
    """Did speculation change anything but the time? `status` is the worst of the checks."""

    schema_version: Literal[1] = 1
    deployment: str
    build_id: str | None
    dtype: str | None
    created_at: str
    status: Status
    checks: tuple[IntegrityCheck, ...]


def _of_the_median(limit: object) -> object:
    """A number alone is the limit of the median."""
    return limit if isinstance(limit, dict) else {Percentile.P50: limit}


# on/off of one metric, by percentile; `1.25` stands for `{p50: 1.25}`.
LimitByPercentile = Annotated[dict[Percentile, PositiveFloat], Field(min_length=1)]
RegressionLimits = Annotated[
    LimitByPercentile, BeforeValidator(_of_the_median, json_schema_input_type=PositiveFloat | LimitByPercentile)
]


class SegmentGate(ContractModel):
    """What one segment must show beside or instead of what all must. Unset: as for all."""

    name: Annotated[str, Field(min_length=1)]
    max_ratio: Annotated[float | None, Field(gt=0)] = None
    max_regression: dict[MetricName, RegressionLimits] = Field(default_factory=dict)


class GateConfig(ContractModel):
    """What a deployment must show before it may take traffic (`configs/gates/*.yaml`).

    `max_ratio`: the whole on/off interval of `decide_metric` must lie below it. `max_regression`: on/off of a metric
    (a number: of its median; `{p50: 1.05, p99: 1.25}`: of each percentile named) may not exceed these, however fast the
    rest is. An interval that does not exceed the limit passes, one wholly above it fails, one that contains it is
    inconclusive; so is a percentile that the sample does not support. `required_checks`: names of integrity checks that
    must be there and pass. `slos` come on top of the deployment's.
    """

    schema_version: Literal[1] = 1
    name: str
    require_integrity: bool = True
    required_checks: tuple[str, ...] = ()
    decide_metric: MetricName = MetricName.E2E
    max_ratio: Annotated[float, Field(gt=0)] = 1.0
    max_regression: dict[MetricName, RegressionLimits] = Field(default_factory=dict)
    segments: tuple[SegmentGate, ...] = ()
    require_slos: bool = True
    slos: tuple[Slo, ...] = ()
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.0


class GateFinding(ContractModel):
    """One line of a verdict."""

    subject: str
    status: Status
    detail: str


class SegmentDecision(ContractModel):
    """What the measurement says about speculation for one segment: at the expected concurrency, or at the one rate of
    an open loop. `is_gain_too_small`: what it gains, if anything, is less than the gate asks, which fails whatever the
    action."""

    segment: str
    concurrency: PositiveInt | None
    request_rate: PositiveFloat | None = None
    action: Literal["speculate", "switch off", "measure more"]
    detail: str
    is_gain_too_small: bool = False


class Verdict(ContractModel):
    """The gate's answer. Pure function of RunSummary, IntegrityReport and GateConfig."""

    schema_version: Literal[1] = 1
    deployment: str
    status: Status
    findings: tuple[GateFinding, ...]
    decisions: tuple[SegmentDecision, ...]
