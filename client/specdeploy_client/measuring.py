"""From the options of a command to a measured run, with a progress display; and the one request of `query`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console

from specdeploy.errors import ClientError, RequestError
from specdeploy.run_contract import Arm, Load, MetricName, Percentile, RequestRecord
from specdeploy.verdict_contract import GateConfig
from specdeploy_client.artifacts import require_writable
from specdeploy_client.bench import BenchResult, JudgingConfig, client_environment, run_bench
from specdeploy_client.bench_plan import BUDGETS, VERIFY_BUDGET, BenchOptions, BenchPlan, plan_bench
from specdeploy_client.commands.option_values import (
    OptionProblems,
    parse_goodput,
    parse_levels,
    parse_percentiles,
    parse_rates,
)
from specdeploy_client.commands.options import (
    DEFAULT_BUDGET,
    LoadOptions,
    ResultOptions,
    SwitchKind,
    UiKind,
    WorkloadOptions,
)
from specdeploy_client.commands.progress import show_progress
from specdeploy_client.load.arrivals import ArrivalPattern
from specdeploy_client.load.cell import MAX_IN_FLIGHT
from specdeploy_client.load.loadgen import Job, RequestLabel, run_request
from specdeploy_client.server_facts import ServerFacts, read_server_facts
from specdeploy_client.session import Session, open_arms, open_endpoint
from specdeploy_client.summary import TargetFacts
from specdeploy_client.transport import GenerationRequest
from specdeploy_client.user_input import as_user_input
from specdeploy_client.workloads.choose import WorkloadChoice, open_workload
from specdeploy_client.workloads.recorded import TraceWindow
from specdeploy_client.workloads.render import load_token_counter

_POISSON = ArrivalPattern.POISSON


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """Everything that is to be measured, decided before the first request is sent."""

    session: Session
    options: BenchOptions
    plan: BenchPlan
    judging: JudgingConfig
    ui: UiKind


def plan_measurement(
    session: Session,
    workload_options: WorkloadOptions,
    load_options: LoadOptions,
    result_options: ResultOptions,
    *,
    gate: GateConfig | None = None,
    budget: str = DEFAULT_BUDGET,
) -> MeasurementPlan:
    """Check all options and choose all prompts. Raises `ConfigError` with everything that is wrong with the options."""
    problems = OptionProblems()
    options = bench_options(session, workload_options, load_options, budget, problems)
    judging = _judging(result_options, gate, problems)
    problems.raise_if_any()
    require_writable(session.artifact_dir)
    choice = _workload_choice(workload_options, options.segments)
    with as_user_input():
        if workload_options.tokenizer is not None:
            counter = load_token_counter(workload_options.tokenizer)
            session = replace(session, rendering=replace(session.rendering, counter=counter))
        workload = open_workload(choice, session.rendering, session.deployment)
    is_own = choice.input_file is None and choice.trace is None and choice.isl is None
    plan = plan_bench(workload, options, session.rendering.turns, session.config, is_own_workload=is_own)
    return MeasurementPlan(session, options, plan, judging, result_options.ui)


def bench_options(
    session: Session, workload: WorkloadOptions, load: LoadOptions, budget: str, problems: OptionProblems
) -> BenchOptions:
    """The load that the options ask for; what contradicts itself goes to `problems`."""
    budgets = {**BUDGETS, VERIFY_BUDGET.name: VERIFY_BUDGET}
    if budget not in budgets:
        problems.add("--budget", f"{budget!r} is not a budget", f"Use one of {', '.join(BUDGETS)}")
    rates = problems.collect(parse_rates, load.request_rate, ())
    if load.request_rate and load.concurrency:
        remedy = "Give one of them; --max-in-flight bounds an open loop"
        problems.add("--request-rate", "is an open loop, --concurrency a closed one", remedy)
    is_foreign = session.config is None
    if is_foreign and session.switch is SwitchKind.PER_REQUEST and workload.draft_len is None:
        problems.add("--draft-len", "is missing: no plan says how many tokens to draft", "Give K of the on arm")
    pattern = _pattern(workload, load, problems)
    _check_loop(load, pattern, problems)
    return BenchOptions(
        budget=budgets.get(budget, BUDGETS["quick"]),
        random_seed=workload.random_seed,
        segments=tuple(name.strip() for name in workload.segments.split(",") if name.strip()),
        concurrencies=problems.collect(parse_levels, load.concurrency, ()),
        request_rates=rates,
        pattern=pattern,
        smoothness=load.arrival_smoothness,
        concurrency_ramp_s=load.concurrency_ramp_duration,
        request_rate_ramp_s=load.request_rate_ramp_duration,
        max_in_flight=load.max_in_flight or MAX_IN_FLIGHT,
        request_count=load.request_count,
        warmup_request_count=load.warmup_request_count,
        max_tokens=workload.max_tokens,
        ignore_eos=workload.ignore_eos,
        draft_len=workload.draft_len,
        duration_s=load.benchmark_duration,
        stops_when_decided=load.stop_when_decided,
        arms=session.arms,
    )


async def measure(
    measurement: MeasurementPlan, command: str, console: Console, on_stopped: Callable[[BenchResult], None]
) -> BenchResult:
    """Run it against the session's server, with a progress display on `console`. What a run measured that is cancelled
    goes to `on_stopped`."""
    session, plan = measurement.session, measurement.plan

    async def read_facts() -> ServerFacts:
        if session.metrics_url is None:
            raise ClientError(
                f"nothing tells where the server at {session.endpoint.url} has its metrics page. Name it with "
                "--metrics-url"
            )
        return await read_server_facts(session.metrics_url)

    async with open_arms(session) as opened:
        with show_progress(plan, measurement.ui, console) as advance:
            return await run_bench(
                plan,
                measurement.options,
                session.config or _foreign_target(session, plan),
                arms=opened.switch,
                read_facts=read_facts,
                artifact_dir=session.artifact_dir,
                environment={**client_environment(command, session.prompt_format), **opened.notes},
                on_record=advance,
                judging=measurement.judging,
                on_stopped=on_stopped,
            )


async def answer(session: Session, request: GenerationRequest, write: Callable[[str], None]) -> RequestRecord:
    """Send one request and hand every piece of its text to `write` as it arrives."""
    async with open_endpoint(session) as transport:
        job = Job(RequestLabel(request.segment or "query", Load(1), Arm.ON, 0, "query"), request)
        record = await run_request(transport, job, on_message=lambda message: write(message.text))
    if record.error is not None:
        raise ClientError(record.error)
    return record


def check_prompt(prompt: str) -> str:
    """`prompt`, or a `RequestError` when nothing could be answered."""
    if not prompt.strip():
        raise RequestError("PROMPT", "is empty", 'Give a question, as in make query PROMPT="What is a prime number?"')
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError("PROMPT", "is not valid UTF-8", "Send UTF-8 text") from error
    return prompt


def _workload_choice(options: WorkloadOptions, segments: tuple[str, ...]) -> WorkloadChoice:
    return WorkloadChoice(
        segments=segments,
        random_seed=options.random_seed,
        input_file=options.input_file,
        isl=options.isl,
        isl_stddev=options.isl_stddev,
        osl=options.osl,
        osl_stddev=options.osl_stddev,
        text=options.text,
        trace=options.trace,
        window=TraceWindow(
            speedup=options.trace_speedup, start_s=options.trace_start, duration_s=options.trace_duration
        ),
        unfit=options.trace_unfit,
        block_tokens=options.trace_block_tokens,
    )


def _pattern(workload: WorkloadOptions, load: LoadOptions, problems: OptionProblems) -> ArrivalPattern:
    """Arrivals of an open loop: those of a trace unless a load is given."""
    pattern = load.arrival_pattern
    if pattern is ArrivalPattern.TRACE and workload.trace is None:
        problems.add("--arrival-pattern", "trace needs recorded arrivals", "Name them with --trace")
    if pattern is ArrivalPattern.TRACE and (load.request_rate or load.concurrency):
        problems.add("--arrival-pattern", "trace has its own rate", "Leave out --request-rate and --concurrency")
    is_open = bool(load.request_rate) or workload.trace is not None
    if pattern is not None and not is_open:
        problems.add("--arrival-pattern", "belongs to an open loop", "Give --request-rate as well")
    if load.arrival_smoothness != 1.0 and pattern is not ArrivalPattern.GAMMA:
        problems.add("--arrival-smoothness", "shapes gamma arrivals only", "Add --arrival-pattern gamma")
    if pattern is not None:
        return pattern
    return ArrivalPattern.TRACE if workload.trace and not load.request_rate and not load.concurrency else _POISSON


def _check_loop(load: LoadOptions, pattern: ArrivalPattern, problems: OptionProblems) -> None:
    """Ramps and limits that belong to the other kind of loop would do nothing."""
    is_trace = pattern is ArrivalPattern.TRACE
    is_open = is_trace or bool(load.request_rate)
    if is_open and load.concurrency_ramp_duration:
        remedy = "Leave it out" if is_trace else "Use --request-rate-ramp-duration"
        problems.add("--concurrency-ramp-duration", "belongs to a closed loop", remedy)
    if not is_open and load.request_rate_ramp_duration:
        problems.add("--request-rate-ramp-duration", "belongs to an open loop", "Use --concurrency-ramp-duration")
    if is_trace and load.request_rate_ramp_duration:
        reason = "has no rate to reach: a trace has its own arrivals"
        problems.add("--request-rate-ramp-duration", reason, "Leave it out, or give --request-rate")
    if not is_open and load.max_in_flight is not None:
        problems.add("--max-in-flight", "belongs to an open loop", "Use --concurrency")


def _judging(options: ResultOptions, gate: GateConfig | None, problems: OptionProblems) -> JudgingConfig:
    percentiles = problems.collect(parse_percentiles, options.metric_percentiles, ())
    objectives = problems.collect(parse_goodput, options.goodput, ())
    if gate is None:
        return JudgingConfig(objectives, percentiles)
    return JudgingConfig(
        objectives,
        tuple(dict.fromkeys((*percentiles, *_judged_percentiles(gate)))),
        limits={**_median_limits(gate), gate.decide_metric: gate.max_ratio},
        decide_metric=gate.decide_metric,
        max_error_rate=gate.max_error_rate,
    )


def _judged_percentiles(gate: GateConfig) -> tuple[Percentile, ...]:
    """Percentiles that the gate limits for any segment: those have to be compared."""
    sources = (gate.max_regression, *(segment.max_regression for segment in gate.segments))
    return tuple(percentile for source in sources for limits in source.values() for percentile in limits)


def _median_limits(gate: GateConfig) -> dict[MetricName, float]:
    return {
        metric: limits[Percentile.P50] for metric, limits in gate.max_regression.items() if Percentile.P50 in limits
    }


def _foreign_target(session: Session, plan: BenchPlan) -> TargetFacts:
    """An endpoint without a deployment is judged at the highest level that was measured."""
    levels = [cell.load.concurrency or 1 for cell in plan.cells]
    return TargetFacts(name=session.name, expected_concurrency=max(levels, default=1))
