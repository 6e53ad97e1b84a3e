"""What the planner reads and says, as files: hardware, calibration, acceptance, traffic -> PlanReport (plan.json).

All models are frozen and refuse unknown keys. Durations are float seconds, rates per second, sizes tokens or bytes.
A **ratio** is on/off time: below 1 speculation is faster. `None` means "not known", never zero.
"""

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from specdeploy.contract import ContractModel, DeploymentPlan, MemoryBudget, Method
from specdeploy.run_contract import MetricName, Percentile

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Estimate(ContractModel):
    """A predicted number between the bounds that its inputs' uncertainty gives it."""

    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat


# --- hardware -------------------------------------------------------------------------------------------------------


class Precision(StrEnum):
    """Arithmetic of a matrix product. Weights of fewer bits are multiplied in one of these."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"  # float16 takes the same time
    FP8 = "fp8"
    FP4 = "fp4"


class HardwareRecord(ContractModel):
    """One device: `configs/hardware/<name>.yaml`. Rates are peaks; tables hold what kernels reach, where measured.

    `bandwidth` of its memory in bytes/s, `peak_flops` dense per precision, `link_bandwidth` bytes/s per direction to
    its peers. Tables are CSV files beside the record: time of one linear layer, of decode attention, of an all-reduce.
    Where a precision has no table, `memory_efficiency` and `compute_efficiency` of the peaks are assumed, and every
    prediction made from them says so.
    """

    schema_version: Literal[1] = 1
    name: str
    device: str
    kind: Literal["gpu", "accelerator", "cpu"] = "gpu"
    memory_bytes: PositiveInt
    bandwidth: PositiveFloat
    peak_flops: dict[Precision, PositiveFloat]
    link_bandwidth: PositiveFloat | None = None
    linear_tables: dict[Precision, str] = Field(default_factory=dict)
    attention_tables: dict[Precision, str] = Field(default_factory=dict)
    all_reduce_table: str | None = None
    memory_efficiency: Annotated[float, Field(gt=0, le=1)] = 0.75
    compute_efficiency: Annotated[float, Field(gt=0, le=1)] = 0.7
    source: str
    licence: str | None = None
    notes: str | None = None


# --- calibration ----------------------------------------------------------------------------------------------------


class Overheads(ContractModel):
    """What an engine adds to the time of its kernels.

    A step of R rows takes `target_scale` x kernels + `step_s` + `row_s` x R. A step that drafts takes on top
    `speculation_s` + `speculation_row_s` x R (host work that grows with the batch) and, for each of the drafter's
    passes one after the other, `draft_scale` x kernels + `draft_step_s`.
    """

    target_scale: PositiveFloat = 1.0
    step_s: Seconds = 0.0
    row_s: Seconds = 0.0
    speculation_s: Seconds = 0.0
    speculation_row_s: Seconds = 0.0
    draft_scale: NonNegativeFloat = 1.0
    draft_step_s: Seconds = 0.0


class MeasuredTarget(ContractModel):
    """A target measured as a whole: a step with m tokens in R rows over C cached tokens takes
    curve(m) + `row_s` x (R - 1) + `kv_token_s` x C + `pair_s` x P. `curve_s` [n] at the `curve_tokens` [n], rising,
    linear between them and beyond the last as in its last piece. P: pairs of a token read and a token cached before it,
    what attention computes; it matters on processors and where prompts are long."""

    curve_tokens: tuple[PositiveInt, ...]
    curve_s: tuple[PositiveFloat, ...]
    row_s: Seconds = 0.0
    kv_token_s: Seconds = 0.0
    pair_s: Seconds = 0.0

    @model_validator(mode="after")
    def _curve_is_one(self) -> Self:
        tokens = self.curve_tokens
        if not tokens or len(tokens) != len(self.curve_s) or list(tokens) != sorted(set(tokens)):
            raise ValueError("curve_tokens and curve_s: as many, at least one, tokens rising")
        return self


class MeasuredDraft(ContractModel):
    """A drafter measured as a whole: `idle_s` in every step, and in a step that drafts n tokens over all rows, d deep,
    `first_s` + `depth_s` x d + `token_s` x n; `prefill_token_s` per prompt token it has to read too."""

    idle_s: Seconds = 0.0
    first_s: Seconds = 0.0
    depth_s: Seconds = 0.0
    token_s: Seconds = 0.0
    prefill_token_s: Seconds = 0.0


class CalibratedRange(ContractModel):
    """Loads that a calibration was fitted to; beyond them nothing is promised."""

    max_rows: PositiveInt
    max_draft_len: NonNegativeInt
    max_step_tokens: PositiveInt


class Residual(ContractModel):
    """One observation against its prediction. `is_held_out`: it was not fitted to. `context` tokens per row, and
    `prefill_tokens` of prompts in the step."""

    num_rows: NonNegativeInt
    draft_len: NonNegativeInt
    context: NonNegativeInt | None = None
    prefill_tokens: NonNegativeInt = 0
    measured_s: PositiveFloat
    predicted_s: PositiveFloat
    is_held_out: bool = False

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1


class Calibration(ContractModel):
    """What one engine on one device was seen to take: either `overheads` on top of kernel tables, or `target` (and
    `draft`) measured as a whole.

    `captured_tokens`: sizes of step (tokens) with a recorded graph, or kernel, rising; a step is rounded up to the next
    one, and beyond the last it runs without and takes `eager_step_s` more. Empty = no rounding. `threads` of a
    processor. `median_relative_error` and `p90_relative_error` are of the held-out residuals where there are any, else
    of all.
    """

    schema_version: Literal[1] = 1
    name: str
    hardware: str
    engine: str
    engine_version: str | None = None
    target_reference: str | None = None
    method: Method | None = None
    dtype: str | None = None
    threads: PositiveInt | None = None
    overheads: Overheads | None = None
    target: MeasuredTarget | None = None
    draft: MeasuredDraft | None = None
    captured_tokens: tuple[PositiveInt, ...] = ()
    eager_step_s: Seconds = 0.0
    range: CalibratedRange
    residuals: tuple[Residual, ...] = ()
    median_relative_error: NonNegativeFloat
    p90_relative_error: NonNegativeFloat
    source: str

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if (self.overheads is None) == (self.target is None):
            raise ValueError("either overheads or target, not both")
        return self


# --- acceptance -----------------------------------------------------------------------------------------------------


class AcceptanceOrigin(StrEnum):
    """Where an acceptance comes from, most trusted first."""

    RUN = "run"  # a finished client run of this deployment
    PROFILE = "profile"  # measured offline on the user's prompts by `specdeploy profile`
    IMPORTED = "imported"  # a speculation_profile.json of another tool
    PUBLISHED = "published"  # somebody else's measurement of a like pair and task
    STATED = "stated"  # an alpha or survivals given by hand
    UNKNOWN = "unknown"  # a range over published pairs of this method


class DraftForm(StrEnum):
    """How a draft is made: decides whether survivals may be continued beyond the K they were measured at."""

    CHAIN = "chain"  # one token after the other: deeper positions follow from the ones before
    BLOCK = "block"  # all at once: to be measured per K
    TREE = "tree"  # several candidates per position: to be measured per tree
    LOOKUP = "lookup"  # copied from text: heavy-tailed, often nothing drafted


class AcceptanceProfile(ContractModel):
    """How many drafted tokens survive, for one segment. `method` None: a drafter that no lane here has (DFlash,
    DSpark).

    `survivals` [K] marginal: share of drafts whose first i tokens were all accepted, never rising; mean tokens per
    step of a drafted step = 1 + their sum. `survivals_low` and `_high` [K] bound them. `draft_share`: steps in which
    there was a draft at all. `request_sd`: standard deviation over requests of their own mean tokens per step.
    """

    segment: str | None = None
    method: Method | None
    form: DraftForm
    survivals: Annotated[tuple[Share, ...], Field(min_length=1)]
    survivals_low: tuple[Share, ...] | None = None
    survivals_high: tuple[Share, ...] | None = None
    draft_share: Share = 1.0
    request_sd: NonNegativeFloat | None = None
    temperature: NonNegativeFloat | None = None
    is_constrained: bool = False
    num_steps: NonNegativeInt | None = None
    num_requests: NonNegativeInt | None = None
    target: str | None = None
    draft: str | None = None
    origin: AcceptanceOrigin
    source: str

    @model_validator(mode="after")
    def _survivals_never_rise(self) -> Self:
        for key in ("survivals", "survivals_low", "survivals_high"):
            values: tuple[float, ...] = getattr(self, key) or ()
            if any(later > earlier + 1e-9 for earlier, later in pairwise(values)):
                raise ValueError(f"{key}: a deeper position cannot survive more often than the one before it")
            if values and len(values) != len(self.survivals):
                raise ValueError(f"{key}: as many as survivals, {len(self.survivals)}")
        return self


class AcceptanceFile(ContractModel):
    """`*.acceptance.json`: profiles of one pair, one per segment; segment None = any other."""

    schema_version: Literal[1] = 1
    profiles: Annotated[tuple[AcceptanceProfile, ...], Field(min_length=1)]


# --- traffic --------------------------------------------------------------------------------------------------------


class LengthShape(ContractModel):
    """A length in tokens: log-normal with this mean and coefficient of variation; cv 0 = constant."""

    mean: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    cv: Annotated[float, Field(ge=0, le=10)] = 0.0


class MixSegment(ContractModel):
    """One kind of request: lengths from a trace beside the file (CSV), or shapes."""

    name: str
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    trace: str | None = None
    input_tokens: LengthShape | None = None
    output_tokens: LengthShape | None = None
    temperature: NonNegativeFloat = 0.0

    @model_validator(mode="after")
    def _has_lengths(self) -> Self:
        if (self.trace is None) == (self.input_tokens is None or self.output_tokens is None):
            raise ValueError("either trace, or input_tokens and output_tokens")
        return self


class Arrivals(ContractModel):
    """When requests come: as the trace says, at random at `request_rate` with `cv` of the gaps (1 = Poisson), or from
    `concurrency` clients that wait for their answer."""

    kind: Literal["trace", "random", "closed"]
    request_rate: PositiveFloat | None = None
    cv: Annotated[float, Field(gt=0, le=50)] = 1.0
    concurrency: PositiveInt | None = None

    @model_validator(mode="after")
    def _says_enough(self) -> Self:
        if self.kind == "random" and self.request_rate is None:
            raise ValueError("kind random needs request_rate")
        if self.kind == "closed" and self.concurrency is None:
            raise ValueError("kind closed needs concurrency")
        return self


class TrafficMix(ContractModel):
    """`configs/traffic/<name>.yaml`."""

    schema_version: Literal[1]
    name: str
    segments: Annotated[tuple[MixSegment, ...], Field(min_length=1)]
    arrivals: Arrivals
    source: str | None = None


# --- what the planner says ------------------------------------------------------------------------------------------


class PlanVerdict(StrEnum):
    GO = "go"
    NO_GO = "no-go"
    MEASURE_FIRST = "measure first"


class TrafficKind(StrEnum):
    """What limits a segment by its lengths."""

    DECODE_BOUND = "decode-bound"
    PREFILL_BOUND = "prefill-bound"  # most of the time goes into prompts, which speculation does not shorten
    SHORT_OUTPUT = "short-output"  # too few tokens to win anything


class LevelPrediction(ContractModel):
    """One segment at one concurrency (closed loop), with the K that is best there; 0 = off.

    Ratios are of medians, on/off, of the best K that drafts (`best_static_draft_len`), also where `draft_len` is 0.
    `verified_tokens`: of one step, rows x (K + 1). `is_compute_bound`: that is beyond the roofline's ridge.
    `is_queued`: more requests than are decoded at once. `off_reason` says why K is 0; `range_problem` why nothing is
    promised here: ratios, times and rates are indicative at most then (another engine's or device's calibration, see
    `PlanReport.indicative_source`), or None. `tpot_ratio` is None too where no output has two tokens.
    """

    concurrency: PositiveInt
    draft_len: NonNegativeInt
    best_static_draft_len: NonNegativeInt
    tpot_ratio: Estimate | None
    e2e_ratio: Estimate | None
    ttft_ratio: Estimate | None
    off_ttft_s: Seconds | None = None
    on_ttft_s: Seconds | None = None
    off_tpot_s: Seconds | None
    on_tpot_s: Seconds | None
    off_throughput: NonNegativeFloat | None
    on_throughput: NonNegativeFloat | None
    tokens_per_step: NonNegativeFloat
    verified_tokens: NonNegativeInt
    is_compute_bound: bool
    is_queued: bool = False
    off_reason: str | None = None
    range_problem: str | None = None

    @property
    def is_promised(self) -> bool:
        """Whether a verdict may rest on the ratios."""
        return self.range_problem is None and self.e2e_ratio is not None

    @property
    def is_indicative(self) -> bool:
        """Whether there are ratios that no verdict may rest on."""
        return self.range_problem is not None and self.e2e_ratio is not None


class PredictedCrossover(ContractModel):
    """From which concurrency on speculation is not faster. Words as `run_contract.Crossover`. `is_indicative`: levels
    took part that nothing is promised at."""

    kind: Literal["crosses", "none up to", "never faster", "undecided"]
    concurrency: PositiveFloat | None = None
    low: PositiveFloat | None = None
    high: PositiveFloat | None = None
    max_concurrency: PositiveInt
    is_indicative: bool = False


class PlannedSegment(ContractModel):
    """The decision for one segment, made at the expected concurrency and nowhere else.

    `levels` always contain 1, 2, 4, 8, 16, 32, 64 and the expected concurrency. `decode_share` of the time of a
    request alone. `reasons` first the one that decided. `alternatives` in the order to try them.
    """

    segment: str
    verdict: PlanVerdict
    expected_concurrency: PositiveInt
    draft_len: NonNegativeInt
    reasons: tuple[str, ...]
    traffic_kind: TrafficKind
    decode_share: Share
    mean_input_tokens: NonNegativeFloat
    mean_output_tokens: NonNegativeFloat
    acceptance: AcceptanceProfile
    levels: tuple[LevelPrediction, ...]
    crossover: PredictedCrossover
    alternatives: tuple[str, ...] = ()


class SimulatedArm(ContractModel):
    """One arm of the simulated traffic: latencies in seconds by percentile, and rates per second.

    `histogram_counts` [n] of e2e between `histogram_edges_s` [n + 1], the same edges in both arms. `goodput`: requests
    per second that met every objective, None without objectives.
    """

    arm: Literal["off", "on"]
    latency_s: dict[MetricName, dict[Percentile, Seconds]]
    output_throughput: NonNegativeFloat
    request_throughput: NonNegativeFloat
    goodput: NonNegativeFloat | None = None
    num_requests: NonNegativeInt
    num_refused: NonNegativeInt = 0
    mean_in_flight: NonNegativeFloat
    histogram_edges_s: tuple[Seconds, ...]
    histogram_counts: tuple[NonNegativeInt, ...]


class TrafficPrediction(ContractModel):
    """The user's trace, or mix, served by the plan and without speculation. `range_problem`: its peaks lie beyond what
    was calibrated, so its tails are extrapolated."""

    traffic: str
    off: SimulatedArm
    on: SimulatedArm
    is_overloaded: bool
    range_problem: str | None = None


class Sensitivity(ContractModel):
    """What if: the decision again with one input changed. `ratio` of e2e, outside the calibrated range indicative at
    most, or None."""

    segment: str
    change: str
    ratio: Estimate | None
    draft_len: NonNegativeInt
    verdict: PlanVerdict
    is_indicative: bool = False


class PlanMemory(ContractModel):
    """Memory of the fullest rank, and the concurrency that fits. None of a budget: without a draft nothing differs.

    `num_requests_*` of `request_tokens` tokens (prompt + output + K) at once; `num_requests_without_plain` with the
    draft but without a plain instance beside, None where there is none. `misfit` names the largest item where
    nothing fits. `ranks` every GPU by itself, in order, with the tokens that it alone would allow; empty in lane
    torch.
    """

    budget: MemoryBudget
    request_tokens: PositiveInt
    num_requests: NonNegativeInt
    num_requests_without_draft: NonNegativeInt
    num_requests_without_plain: NonNegativeInt | None = None
    misfit: str | None = None
    ranks: tuple[MemoryBudget, ...] = ()

    @property
    def draft_costs_requests(self) -> int:
        """The draft costs so many concurrent requests."""
        with_draft = self.num_requests_without_plain
        return max(self.num_requests_without_draft - (self.num_requests if with_draft is None else with_draft), 0)

    @property
    def plain_costs_requests(self) -> int:
        """The plain instance beside, which shares the caches, costs so many on top."""
        return max((self.num_requests_without_plain or 0) - self.num_requests, 0)


class EmittedSchedule(ContractModel):
    """K by load in the words of one engine. `version` it was checked for; `lost` what that engine cannot express."""

    dialect: str
    version: str
    text: str
    lost: tuple[str, ...] = ()


class ArithmeticLine(ContractModel):
    """One line of `--explain`: the formula with its numbers filled in, and what comes out, in `unit`."""

    subject: str
    formula: str
    value: FiniteFloat
    unit: str


class PlanReport(ContractModel):
    """plan.json. The same inputs and seed give the same bytes: nothing in it comes from a clock.

    `plan` is what a build can take over. `model_error`: relative error of predicted ratios that every interval
    includes, and `model_error_source` where it was seen. `ridge_tokens` of a step: beyond them it is compute-bound.
    `max_rows` requests are decoded at once at most. `indicative_source`: whose calibration the indicative ratios rest
    on, with `indicative_error` in their intervals. `assumptions` everything taken for want of a fact.
    """

    schema_version: Literal[1] = 1
    deployment: str
    hardware: str
    engine: str
    calibration: str
    method: Method
    plan: DeploymentPlan
    verdict: PlanVerdict
    headline: str
    memory: PlanMemory | None
    segments: tuple[PlannedSegment, ...]
    traffic: TrafficPrediction | None
    sensitivities: tuple[Sensitivity, ...]
    schedules: tuple[EmittedSchedule, ...]
    arithmetic: tuple[ArithmeticLine, ...]
    draft_cost_ratio: NonNegativeFloat | None = None
    ridge_tokens: NonNegativeFloat | None = None
    model_error: NonNegativeFloat
    model_error_source: str
    indicative_source: str | None = None
    indicative_error: NonNegativeFloat | None = None
    max_rows: PositiveInt | None = None
    assumptions: tuple[str, ...] = ()
    random_seed: NonNegativeInt
