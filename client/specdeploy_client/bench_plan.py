"""Which cells a run measures and which requests each asks: budgets, options and a workload become a `BenchPlan`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Dtype
from specdeploy.errors import RequestError
from specdeploy.run_contract import Arm, Load
from specdeploy_client.load.arrivals import ArrivalPattern, Arrivals
from specdeploy_client.load.cell import MAX_IN_FLIGHT, Cell, CellRequest, RenderTurns
from specdeploy_client.summary import planned_draft_len
from specdeploy_client.workloads.base import Workload, WorkRequest

# An endpoint without a deployment has no plan; its on arm is what it does by itself and K is only a label of it.
UNPLANNED_DRAFT_LEN = 1
DEFAULT_MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to measure. `num_segments` None means all; `floor_concurrency` adds the off arm at another batch mix;
    `max_tokens` shortens answers that the deployment would let run longer. `repeats_prompts`: every cell asks the same
    prompts, so that answers of two loads can be compared; else cells take fresh ones as long as there are enough."""

    name: str
    num_segments: int | None
    concurrencies: tuple[int, ...]
    request_count: int
    floor_concurrency: int | None = None
    max_tokens: int | None = None
    repeats_prompts: bool = False


# 20 requests support p50, 100 support p90 (metrics.samples_needed). A row is one of several in a table of ratios: 12
# pairs still give an interval, though no percentile.
BUDGETS: dict[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget("quick", num_segments=2, concurrencies=(1, 4), request_count=20, max_tokens=16),
        Budget("full", num_segments=None, concurrencies=(1, 2, 4, 8), request_count=100),
        Budget(
            "row",
            num_segments=2,
            concurrencies=(1,),
            request_count=12,
            floor_concurrency=4,
            max_tokens=16,
            repeats_prompts=True,
        ),
    )
}
VERIFY_BUDGET = Budget("verify", num_segments=None, concurrencies=(1, 4), request_count=8, repeats_prompts=True)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """A budget with what the command line changes in it. `segments` empty means the budget's choice.

    `request_rates` make open loops and `pattern` their arrivals; `ArrivalPattern.TRACE` takes them from the workload.
    `warmup_request_count` None means one request per worker; `max_tokens` None means each request's or segment's own,
    `ignore_eos` that answers go on to it;
    `draft_len` None means the plan's K. `duration_s`: seconds after which a cell begins no further block. `arms` are
    what is measured: without a way to turn speculation off it is the server as it is.
    """

    budget: Budget
    random_seed: int = 0
    segments: tuple[str, ...] = ()
    concurrencies: tuple[int, ...] = ()
    request_rates: tuple[float, ...] = ()
    pattern: ArrivalPattern = ArrivalPattern.POISSON
    smoothness: float = 1.0
    concurrency_ramp_s: float = 0.0
    request_rate_ramp_s: float = 0.0
    max_in_flight: int = MAX_IN_FLIGHT
    request_count: int | None = None
    warmup_request_count: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    draft_len: int | None = None
    duration_s: float | None = None
    stops_when_decided: bool = False
    arms: tuple[Arm, ...] = (Arm.OFF, Arm.ON)

    @property
    def num_requests(self) -> int:
        """Requests per arm and cell."""
        return self.request_count or self.budget.request_count


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The cells of a run and what is worth telling about how they were chosen.

    `expects_reuse`: prompts begin alike on purpose, so what a prefix cache saves is part of the traffic.
    """

    cells: tuple[Cell, ...]
    load_kind: str
    notes: dict[str, str]
    expects_reuse: bool = False

    @property
    def num_requests(self) -> int:
        """Measured requests, warm-up left out."""
        return sum(len(cell.requests) * len(cell.draft_lens) for cell in self.cells)


@dataclass(slots=True)
class _Planner:
    """What the cells of one plan have in common, and what was noted while making them."""

    workload: Workload
    options: BenchOptions
    config: DeploymentConfig | None
    render: RenderTurns
    is_own_workload: bool
    lowered: list[str] = field(default_factory=list)

    def segments(self) -> tuple[str, ...]:
        """Those that were asked for, else the budget's choice of those that there are prompts for."""
        known = self.workload.segments
        if unknown := [name for name in self.options.segments if name not in known]:
            raise RequestError(
                "--segments", f"{self.workload.name} has no segment {', '.join(unknown)}", f"It has {', '.join(known)}"
            )
        return tuple(dict.fromkeys(self.options.segments)) or known[: self.options.budget.num_segments]

    def loads(self, segment: str) -> tuple[Load, ...]:
        """The levels or rates of every segment; a trace has the one rate of its own arrivals."""
        options = self.options
        if options.pattern is ArrivalPattern.TRACE:
            return (self._trace_load(segment),)
        if options.request_rates:
            return tuple(Load(None, rate) for rate in options.request_rates)
        return tuple(Load(level) for level in options.concurrencies or options.budget.concurrencies)

    def cells(self, segment: str) -> Iterator[Cell]:
        """Every cell of one segment, and the floor where answers round."""
        loads, first = self.loads(segment), 0
        has_fresh_prompts = self._has_fresh_prompts(segment, loads)
        for load in loads:
            yield self._cell(segment, load, self._draft_lens(segment, load), first)
            if has_fresh_prompts:
                first += self._num_taken(load)
        if (floor := self._floor_load(loads, has_fresh_prompts)) is not None:
            yield self._cell(segment, floor, {Arm.FLOOR: 0}, 0)

    def _trace_load(self, segment: str) -> Load:
        """The gaps between requests / time between the first and the last of them, to three digits: a name of the
        cell, which nothing is sent by."""
        requests = self.workload.requests(segment, 0, self._num_requests(segment))
        arrivals = [request.arrival_ns for request in requests if request.arrival_ns is not None]
        span_ns = max(arrivals, default=0) - min(arrivals, default=0)
        if span_ns <= 0:
            raise RequestError(
                "--arrival-pattern", f"{self.workload.name} has no arrival times for {segment}", "Give --request-rate"
            )
        return Load(None, float(f"{(len(requests) - 1) / (span_ns / 1e9):.3g}"))

    def _num_requests(self, segment: str) -> int:
        """A trace is replayed once, as far as it goes, where no count is asked for."""
        if self.options.pattern is ArrivalPattern.TRACE and self.options.request_count is None:
            return self.workload.num_distinct(segment)
        return self.options.num_requests

    def _num_warmup(self, load: Load) -> int:
        if self.options.warmup_request_count is not None:
            return self.options.warmup_request_count
        return load.concurrency or 1

    def _num_taken(self, load: Load) -> int:
        return self.options.num_requests + self._num_warmup(load)

    def _has_fresh_prompts(self, segment: str, loads: Sequence[Load]) -> bool:
        """Whether every cell asks prompts that no cell before it asked: a cache may remember those."""
        if self.options.budget.repeats_prompts or self.options.pattern is ArrivalPattern.TRACE:
            return False
        return sum(map(self._num_taken, loads)) <= self.workload.num_distinct(segment)

    def _floor_load(self, loads: Sequence[Load], has_fresh_prompts: bool) -> Load | None:
        """Where the off arm runs once more with the prompts of the first cell: the budget's choice, or, where nothing
        else repeats and rounding lets answers differ by themselves, another level of this run."""
        if Arm.OFF not in self.options.arms or any(load.concurrency is None for load in loads):
            return None
        if self.options.budget.floor_concurrency is not None:
            return Load(self.options.budget.floor_concurrency)
        if not has_fresh_prompts or self.config is None or self.config.dtype is Dtype.FLOAT32:
            return None
        first = loads[0].concurrency
        return next((load for load in loads if load.concurrency != first), None)

    def _draft_lens(self, segment: str, load: Load) -> dict[Arm, int]:
        on = self.options.draft_len
        if on is None:
            on = UNPLANNED_DRAFT_LEN if self.config is None else self._planned(self.config, segment, load)
        return {arm: 0 if arm is Arm.OFF else on for arm in self.options.arms}

    def _planned(self, config: DeploymentConfig, segment: str, load: Load) -> int:
        """What the plan does where it drafts, and what drafting would do where it does not."""
        most = config.speculation.max_draft_len
        found = next((s for s in config.traffic.segments if s.name == segment), None)
        if found is None:
            return most
        level = load.concurrency or config.traffic.expected_concurrency
        planned = planned_draft_len(config, found, level).draft_len or most
        if planned != most:
            self.lowered.append(f"{segment} at {level}: {planned}")
        return planned

    def _cell(self, segment: str, load: Load, draft_lens: dict[Arm, int], first: int) -> Cell:
        options, count = self.options, self._num_requests(segment)
        work = self.workload.requests(segment, first, count + self._num_warmup(load))
        is_open = load.request_rate is not None
        is_trace = options.pattern is ArrivalPattern.TRACE
        return Cell(
            segment=segment,
            load=load,
            draft_lens=draft_lens,
            requests=tuple(self._request(index, request, work) for index, request in enumerate(work[:count])),
            warmup=tuple(self._request(count + i, request, ()) for i, request in enumerate(work[count:])),
            render_turns=self.render,
            arrivals=None
            if is_trace or not is_open
            else Arrivals(options.pattern, options.random_seed, options.smoothness, options.request_rate_ramp_s),
            concurrency_ramp_s=options.concurrency_ramp_s,
            max_in_flight=options.max_in_flight,
        )

    def _request(self, index: int, work: WorkRequest, neighbours: Sequence[WorkRequest]) -> CellRequest:
        """Request `index`. Without `neighbours` (warm-up) it stands alone, whatever session it is of."""
        follows = index - 1 if neighbours and index > 0 and work.follows_previous else None
        turns = work.known_turns
        if work.history is None and follows is None:
            turns = (work.user_turn,)
        return CellRequest(
            index=index,
            prompt_id=work.prompt_id,
            prompt=work.user_turn if work.is_rendered else self.render(turns),
            max_tokens=self._max_tokens(work),
            turns=turns,
            expected_input_tokens=work.expected_input_tokens,
            guide_type=work.guide_type,
            guide=work.guide,
            ignore_eos=work.ignore_eos or self.options.ignore_eos or None,
            due_ns=work.arrival_ns if neighbours else None,
            follows=follows,
            think_ns=work.think_ns,
            is_whole=work.history is not None,
        )

    def _max_tokens(self, work: WorkRequest) -> int:
        if self.options.max_tokens is not None:
            return self.options.max_tokens
        own = work.max_tokens or self._segment_limit(work.segment)
        limit = self.options.budget.max_tokens
        return min(own, limit) if self.is_own_workload and limit is not None else own

    def _segment_limit(self, segment: str) -> int:
        segments = self.config.traffic.segments if self.config else ()
        return next((s.max_tokens for s in segments if s.name == segment), DEFAULT_MAX_TOKENS)


def plan_bench(
    workload: Workload,
    options: BenchOptions,
    render: RenderTurns,
    config: DeploymentConfig | None,
    *,
    is_own_workload: bool = True,
) -> BenchPlan:
    """The cells that `options` ask for. `render` makes a prompt of the turns of a conversation.

    `config` None: an endpoint of another product. `is_own_workload`: the prompts are those of the deployment, whose
    answers a budget may shorten; what a user brings along is asked as it is.
    """
    planner = _Planner(workload, options, config, render, is_own_workload)
    segments = planner.segments()
    cells = tuple(cell for segment in segments for cell in planner.cells(segment))
    return BenchPlan(
        cells=cells,
        load_kind=_load_kind(options),
        notes=_notes(planner, segments),
        expects_reuse=workload.shares_prefixes,
    )


def _load_kind(options: BenchOptions) -> str:
    if options.pattern is ArrivalPattern.TRACE:
        return "open loop, arrivals of a trace"
    if not options.request_rates:
        return "closed loop"
    shape = f" of smoothness {options.smoothness:g}" if options.pattern is ArrivalPattern.GAMMA else ""
    return f"open loop, {options.pattern} arrivals{shape}"


def _notes(planner: _Planner, segments: Sequence[str]) -> dict[str, str]:
    options, workload = planner.options, planner.workload
    notes = {"workload": workload.description}
    for segment in segments:
        distinct, count = workload.num_distinct(segment), options.num_requests
        if options.pattern is not ArrivalPattern.TRACE and distinct < count:
            notes[f"prompts of {segment}"] = f"{distinct} prompts for {count} requests per arm: prompts repeat"
    if planner.lowered:
        notes["K of the on arm, by the plan"] = ", ".join(planner.lowered)
    if planner.is_own_workload and options.max_tokens is None and options.budget.max_tokens is not None:
        notes["answers"] = f"at most {options.budget.max_tokens} tokens in budget {options.budget.name}"
    if planner.config and (unmeasured := [s.name for s in planner.config.traffic.segments if s.name not in segments]):
        notes["segments not measured"] = ", ".join(unmeasured)
    return notes
