"""What was measured, as files: RequestRecord* -> RunSummary. What follows from it is in verdict_contract.py.

All models are frozen and refuse unknown keys. Durations in records are integer nanoseconds of one monotonic clock;
summaries carry milliseconds because people read them. `None` means "not measurable", never zero.

A **cell** is one segment under one load. A load is either a number of workers that send their next request when the
last one is answered (`concurrency`, closed loop) or a rate of requests that are sent at times fixed beforehand
(`request_rate` per second, open loop); the other of the two is None.
"""

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Strict

from specdeploy.contract import ContractModel


class Arm(StrEnum):
    """The two sides of every comparison. `floor` is off at another batch mix, the noise floor of bf16 runs."""

    OFF = "off"
    ON = "on"
    FLOOR = "floor"


class MetricName(StrEnum):
    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


class Percentile(StrEnum):
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"

    @property
    def quantile(self) -> float:
        """0.5, 0.9, 0.95 or 0.99."""
        return int(self.value[1:]) / 100


class Load(NamedTuple):
    """One of the two is None; see the head of this module."""

    concurrency: int | None
    request_rate: float | None = None

    @property
    def value(self) -> float:
        """The one that is not None: what levels are ordered by."""
        return float(self.concurrency or 0) if self.request_rate is None else self.request_rate

    @property
    def in_words(self) -> str:
        """`4 at once` or `2.5 requests/s`."""
        return f"{self.concurrency} at once" if self.request_rate is None else str(self)

    def __str__(self) -> str:
        return f"concurrency {self.concurrency}" if self.request_rate is None else f"{self.request_rate:g} requests/s"


class FailureKind(StrEnum):
    """Why a request has no usable answer. An answer that is only short is one: `CellSummary.num_short` counts it.

    `refused`: the server answered with an error, or ended the request itself. `timeout`: it took longer than the client
    or the server allows. `unreachable`: nobody answers any more. `stream closed`: the answer ended before its last
    message. `protocol`: what came is no answer. `clock`: the client's clock went backwards, so its times mean nothing.
    `cancelled`: this client ended the request by its own wish; that is neither an answer nor a failure of the server.
    """

    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    STREAM_CLOSED = "stream closed"
    PROTOCOL = "protocol"
    CLOCK = "clock"
    CANCELLED = "cancelled"


# Of raw records: neither true nor 7.0 nor "7" is a number of something.
WholeNumber = Annotated[int, Strict()]
Count = Annotated[NonNegativeInt, Strict()]


class RequestRecord(ContractModel):
    """One raw observation of one request. Times are the client's monotonic clock, integer nanoseconds.

    `scheduled_ns` when the request should have been sent, `send_ns` when it was, `message_ns` [M] when its messages
    arrived, `end_ns` when the last of them (or the error) did. `message_tokens` [M] how many tokens each carried; None
    where the server does not say, and then messages without text are left out of `message_ns`.
    `index` numbers the requests of a cell: the same index is the same request in both arms.
    `error` is None for a request that finished. Counts the server did not report are None.
    `expected_input_tokens`: of prompts made to a length. `connect_ns`: spent on a new connection for this request.
    `ignore_eos`: whether the answer had to go on to `max_tokens`; None where nobody asked for it. `finish_reason` is
    the server's word; a request that this client ended itself has `failure` cancelled.
    """

    request_id: str
    segment: str
    concurrency: Annotated[PositiveInt, Strict()] | None
    request_rate: PositiveFloat | None = None
    arm: Arm
    block: Count
    index: Count
    prompt_id: str
    scheduled_ns: WholeNumber
    send_ns: WholeNumber
    end_ns: WholeNumber
    message_ns: tuple[WholeNumber, ...]
    message_tokens: tuple[Count, ...] | None
    output_ids: tuple[WholeNumber, ...]
    text: str
    max_tokens: Annotated[PositiveInt, Strict()] | None = None
    ignore_eos: bool | None = None
    expected_input_tokens: Annotated[PositiveInt, Strict()] | None = None
    connect_ns: Count | None = None
    error: str | None = None
    failure: FailureKind | None = None
    finish_reason: str | None = None
    input_token_count: WholeNumber | None = None
    output_token_count: WholeNumber | None = None
    cached_token_count: WholeNumber | None = None
    num_steps: WholeNumber | None = None
    num_draft_tokens: WholeNumber | None = None
    num_accepted_tokens: WholeNumber | None = None
    speculation: str | None = None

    @property
    def load(self) -> Load:
        """The load of its cell."""
        return Load(self.concurrency, self.request_rate)


class Percentiles(ContractModel):
    """Milliseconds; a percentile the sample does not support (n < 10 / (1 - q)) is None."""

    p50: float | None
    p90: float | None
    p95: float | None = None
    p99: float | None
    mean: float | None = None
    num_samples: NonNegativeInt

    def value(self, percentile: Percentile) -> float | None:
        """The value of one percentile, or None where the sample does not support it."""
        values = {Percentile.P50: self.p50, Percentile.P90: self.p90, Percentile.P95: self.p95}
        return values.get(percentile, self.p99)


class Acceptance(ContractModel):
    """Acceptance over a set of requests. Rates are None before the first draft, never 0/0.

    `mean_acceptance_length` is per step; `per_request` the mean of the requests' own lengths, which differs where long
    answers accept otherwise than short ones. `rate_per_pos` [K] is marginal: the first i tokens were all accepted, over
    drafts; from the server's counters, None where it has none.
    """

    num_steps: NonNegativeInt
    num_draft_tokens: NonNegativeInt
    num_accepted_tokens: NonNegativeInt
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    mean_acceptance_length_per_request: float | None = None
    rate_per_pos: tuple[float, ...] | None = None


class CellSummary(ContractModel):
    """One arm of one cell. `num_requests` were answered or failed (`num_errors`); the `num_cancelled` that this client
    ended itself come on top and enter nothing else. `num_short`: answers with fewer tokens than asked for although
    their text could not end them, because the request ignored its end or the server names the limit of tokens as the
    reason. `cold_ttft_ms`: of the first warm-up request, which nothing else counts.

    `goodput`: requests per second that met every objective of the run, None without objectives. `icl_ms` are the gaps
    between messages, `token_gap_ms` the same gaps shared out over the tokens of the message that ends them.
    """

    segment: str
    concurrency: PositiveInt | None
    request_rate: PositiveFloat | None = None
    arm: Arm
    num_requests: NonNegativeInt
    num_errors: NonNegativeInt
    num_cancelled: NonNegativeInt = 0
    num_short: NonNegativeInt = 0
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles
    icl_ms: Percentiles | None = None
    token_gap_ms: Percentiles | None = None
    send_lag_ms: Percentiles | None = None
    cold_ttft_ms: NonNegativeFloat | None = None
    tokens_per_message: float | None
    output_throughput: float | None
    request_throughput: float | None = None
    goodput: float | None = None
    num_input_tokens: NonNegativeInt | None = None
    num_output_tokens: NonNegativeInt | None = None
    acceptance: Acceptance | None

    @property
    def load(self) -> Load:
        """The load of its cell."""
        return Load(self.concurrency, self.request_rate)


class VoidCode(StrEnum):
    """Why a cell must not be compared. The words are shown to people."""

    ERRORS = "requests failed"
    TOO_FEW_PAIRS = "too few pairs"
    TOO_FEW_TOKENS = "too few tokens"
    NOTHING_DRAFTED = "nothing drafted"
    OFF_ARM_DRAFTED = "off arm drafted"
    LENGTHS_DIFFER = "output lengths differ"
    PREFIX_CACHE_WARM = "prefix cache warm"
    PROMPTS_REPEATED = "prompts repeated"
    WRONG_PROMPT_LENGTH = "wrong prompt length"
    DEGENERATE_OUTPUT = "degenerate output"
    CLIENT_SATURATED = "client saturated"
    SENT_LATE = "sent late"
    SERVER_WARMING = "server still warming"
    MESSAGES_BUFFERED = "messages buffered"
    INTERRUPTED = "run interrupted"


class VoidReason(ContractModel):
    """One reason, with the numbers behind it."""

    code: VoidCode
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class Comparison(ContractModel):
    """on/off ratio of one percentile of one metric of one cell, with a paired bootstrap interval. Below 1 is faster.

    `median_request_ratio` is the median over pairs of their own ratios. `num_pairs_needed`: pairs after which an
    interval that contains the limit is expected not to, None where it does not or no number would do.
    """

    segment: str
    concurrency: PositiveInt | None
    request_rate: PositiveFloat | None = None
    metric: MetricName
    percentile: Percentile = Percentile.P50
    ratio: float | None
    ci_low: float | None
    ci_high: float | None
    confidence: float
    num_pairs: NonNegativeInt
    median_request_ratio: float | None = None
    num_pairs_needed: PositiveInt | None = None
    void_reasons: tuple[VoidReason, ...] = ()

    @property
    def load(self) -> Load:
        """The load of its cell."""
        return Load(self.concurrency, self.request_rate)

    @property
    def outcome(self) -> Literal["faster", "slower", "undecided", "void"]:
        """What the interval says of speculation in this cell."""
        if self.void_reasons or self.ci_low is None or self.ci_high is None:
            return "void"
        if self.ci_high < 1.0:
            return "faster"
        return "slower" if self.ci_low > 1.0 else "undecided"


class Crossover(ContractModel):
    """From which concurrency on speculation is not faster, for one segment and metric.

    `crosses`: at `concurrency`, between `ci_low` and `ci_high` (None: beyond what was measured on that side).
    `none up to`: faster at every measured level, the highest of which is `max_concurrency`; `never faster`: slower at
    the lowest level already; `undecided`: the intervals do not say.
    """

    segment: str
    metric: MetricName
    kind: Literal["crosses", "none up to", "never faster", "undecided"]
    concurrency: PositiveFloat | None = None
    ci_low: PositiveFloat | None = None
    ci_high: PositiveFloat | None = None
    max_concurrency: PositiveInt

    def __str__(self) -> str:
        if self.kind == "none up to":
            return f"none up to {self.max_concurrency}"
        if self.kind != "crosses" or self.concurrency is None:
            return self.kind
        low = "below" if self.ci_low is None else f"{self.ci_low:.1f}"
        high = f"above {self.max_concurrency}" if self.ci_high is None else f"{self.ci_high:.1f}"
        return f"{self.concurrency:.1f} [{low}, {high}]"


class CellConditions(ContractModel):
    """What surrounded the measured requests of one cell; all arms together.

    `client_cpu_share`: CPU time of the client process / wall time, 1 = one core; the largest of the arms' own shares,
    `client_cpu_share_by_arm`, because an arm that sends fewer messages would hide what the other one costs.
    `wake_up_lag_p99_ms`: how late its event loop woke up. `accepted_per_pos` and `num_drafts`: increase of the server's
    counters over the cell, None where unread. `cached_share`: of the prompt tokens of the cell those that came from the
    server's prefix cache, by its counters. `counter_mismatch`: what differs between counters and the sums over answers,
    None where they agree or where one of the two is missing. `stopped_after`: pairs after which the cell was decided,
    None where it ran to its end. `num_warmup_failed`: warm-up requests without an answer, by arm; arms without any are
    left out.
    """

    segment: str
    concurrency: PositiveInt | None
    request_rate: PositiveFloat | None = None
    client_cpu_share: NonNegativeFloat | None = None
    client_cpu_share_by_arm: dict[Arm, NonNegativeFloat] = Field(default_factory=dict)
    wake_up_lag_p99_ms: NonNegativeFloat | None = None
    num_drafts: NonNegativeInt | None = None
    num_draft_tokens: NonNegativeInt | None = None
    num_accepted_tokens: NonNegativeInt | None = None
    accepted_per_pos: tuple[NonNegativeInt, ...] | None = None
    cached_share: NonNegativeFloat | None = None
    counter_mismatch: str | None = None
    cold_ttft_ms: dict[Arm, NonNegativeFloat] = Field(default_factory=dict)
    stopped_after: PositiveInt | None = None
    num_warmup_failed: dict[Arm, NonNegativeInt] = Field(default_factory=dict)

    @property
    def load(self) -> Load:
        """The load of its cell."""
        return Load(self.concurrency, self.request_rate)


class Slo(ContractModel):
    """A latency objective of one segment at the expected concurrency."""

    segment: str
    metric: MetricName
    percentile: Percentile
    max_ms: PositiveFloat


class Objective(ContractModel):
    """What one request must meet to be good (`--goodput ttft:200`)."""

    metric: MetricName
    max_ms: PositiveFloat


class PlannedDraftLen(ContractModel):
    """K the plan gives a segment at the expected concurrency (0 = off, with its reason)."""

    segment: str
    draft_len: NonNegativeInt
    off_reason: str | None = None


class RunSummary(ContractModel):
    """Everything one `bench` run saw; `gate` and `report` need nothing else of it.

    `effective_concurrency` is how many requests of full length the server decodes at once and `concurrency_limit` what
    bounds it (rows, engine batch, key/value memory); None where the server does not say.
    `interrupted` says why a run ended early; its numbers are of what was measured until then.
    `switch`: how the arms were told apart; `load_kind`: closed loop, or the arrivals of an open one.
    """

    schema_version: Literal[2] = 2
    deployment: str
    build_id: str | None
    lane: str | None
    method: str | None
    max_draft_len: int | None
    dtype: str | None
    server_threads: int | None
    budget: str
    random_seed: int
    started_at: str
    duration_s: float
    expected_concurrency: PositiveInt
    slos: tuple[Slo, ...]
    objectives: tuple[Objective, ...] = ()
    planned: tuple[PlannedDraftLen, ...]
    cells: tuple[CellSummary, ...]
    comparisons: tuple[Comparison, ...]
    crossovers: tuple[Crossover, ...] = ()
    conditions: tuple[CellConditions, ...] = ()
    environment: dict[str, str]
    effective_concurrency: PositiveInt | None = None
    concurrency_limit: str | None = None
    switch: str = "per request"
    load_kind: str = "closed loop"
    interrupted: str | None = None

    def is_queued(self, concurrency: int | None) -> bool:
        """Whether `concurrency` requests cannot run at once on this server: its latencies then contain a queue."""
        limit = self.effective_concurrency
        return limit is not None and concurrency is not None and concurrency > limit
