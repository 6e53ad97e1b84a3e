"""Records and what is known of the server -> RunSummary."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdeploy.config.schema import DeploymentConfig, SegmentConfig
from specdeploy.contract import Method, SegmentPlan
from specdeploy.run_contract import (
    Acceptance,
    Arm,
    CellConditions,
    CellSummary,
    Comparison,
    MetricName,
    Objective,
    Percentile,
    PlannedDraftLen,
    RunSummary,
    Slo,
)
from specdeploy_client import arm_metrics
from specdeploy_client.comparison.compare import compare_cell
from specdeploy_client.comparison.crossover import find_crossovers
from specdeploy_client.comparison.stats import CONFIDENCE
from specdeploy_client.comparison.voids import VoidFacts
from specdeploy_client.metrics import histogram_percentiles_ms, percentiles_ms
from specdeploy_client.reconcile import CounterIncrease, reconcile
from specdeploy_client.records.columns import NOT_REPORTED
from specdeploy_client.records.table import ArmColumns, CellKey, RecordTable
from specdeploy_client.server_facts import SegmentCounters, ServerFacts

# They draft from earlier answers, so a prompt that was seen before drafts better.
REMEMBERING_METHODS = frozenset({Method.SUFFIX.value, Method.AUTO.value})


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What a run was to show of its target. A foreign endpoint has no deployment and no plan: the defaults.

    `max_draft_len` and `method` are what its owner says; the server's own word goes before them.
    """

    name: str
    expected_concurrency: int
    slos: tuple[Slo, ...] = ()
    planned: tuple[PlannedDraftLen, ...] = ()
    max_draft_len: int | None = None
    method: str | None = None

    @classmethod
    def of(cls, config: DeploymentConfig) -> "TargetFacts":
        """The same of a deployment."""
        return cls(
            name=config.name,
            expected_concurrency=config.traffic.expected_concurrency,
            slos=config.slos,
            planned=planned_draft_lens(config),
            max_draft_len=config.speculation.max_draft_len,
            method=config.speculation.method.value,
        )


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What surrounds the records of one run.

    `conditions`: one per cell, as far as cells ended; `counter_mismatch` is filled in here. `limits`: the on/off ratio
    that a gate asks of a metric, 1 where it asks nothing. `expects_reuse`: the workload shares prefixes on purpose.
    `interrupted` says why the run ended early, `unfinished` which cell was then being measured; None: the last one
    that has records.
    """

    budget: str
    random_seed: int
    started_at: str
    duration_s: float
    environment: Mapping[str, str]
    conditions: tuple[CellConditions, ...] = ()
    objectives: tuple[Objective, ...] = ()
    percentiles: tuple[Percentile, ...] = tuple(Percentile)
    limits: Mapping[MetricName, float] = field(default_factory=dict)
    confidence: float = CONFIDENCE
    max_error_rate: float = 0.0
    expects_reuse: bool = False
    switch: str = "per request"
    load_kind: str = "closed loop"
    interrupted: str | None = None
    unfinished: CellKey | None = None


def summarise_run(
    table: RecordTable, target: DeploymentConfig | TargetFacts, facts: ServerFacts, run: RunFacts
) -> RunSummary:
    """Everything `gate` and `report` need of a run, finished or not."""
    target = TargetFacts.of(target) if isinstance(target, DeploymentConfig) else target
    conditions = _reconciled(run.conditions, table)
    comparisons = _compared(table, target, facts, run, conditions)
    return RunSummary(
        deployment=target.name,
        build_id=facts.build_id,
        lane=facts.lane,
        method=facts.method or target.method,
        max_draft_len=facts.max_draft_len if facts.max_draft_len is not None else target.max_draft_len,
        dtype=facts.dtype,
        server_threads=facts.threads,
        budget=run.budget,
        random_seed=run.random_seed,
        started_at=run.started_at,
        duration_s=run.duration_s,
        expected_concurrency=target.expected_concurrency,
        slos=target.slos,
        objectives=run.objectives,
        planned=target.planned,
        cells=tuple(
            summarise_arm(key, arm, columns, conditions.get(key), run.objectives)
            for key, arms in table.cells.items()
            for arm, columns in arms.items()
        ),
        comparisons=comparisons,
        crossovers=find_crossovers(
            table.cells,
            comparisons,
            seed=run.random_seed,
            confidence=run.confidence,
            limits=run.limits,
            max_concurrency=facts.effective_concurrency,
        ),
        conditions=tuple(conditions.values()),
        environment={**run.environment, **_not_interleaved(table)},
        effective_concurrency=facts.effective_concurrency,
        concurrency_limit=facts.concurrency_limit,
        switch=run.switch,
        load_kind=run.load_kind,
        interrupted=run.interrupted,
    )


def summarise_arm(
    key: CellKey,
    arm: Arm,
    columns: ArmColumns,
    conditions: CellConditions | None = None,
    objectives: tuple[Objective, ...] = (),
) -> CellSummary:
    """Latency percentiles, throughput and acceptance of one arm of one cell.

    Failed requests count as errors only, those that this client gave up as cancelled only.
    """
    segment, load = key
    num_errors = int(columns.is_failed.sum())
    return CellSummary(
        segment=segment,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        arm=arm,
        num_requests=int(columns.is_answered.sum()) + num_errors,
        num_errors=num_errors,
        num_cancelled=int(columns.is_cancelled.sum()),
        num_short=int(columns.is_short.sum()),
        ttft_ms=percentiles_ms(arm_metrics.measured(columns, MetricName.TTFT)),
        tpot_ms=percentiles_ms(arm_metrics.measured(columns, MetricName.TPOT)),
        e2e_ms=percentiles_ms(arm_metrics.measured(columns, MetricName.E2E)),
        icl_ms=histogram_percentiles_ms(columns.icl),
        token_gap_ms=histogram_percentiles_ms(columns.token_gaps),
        send_lag_ms=percentiles_ms(arm_metrics.send_lag_ns(columns)),
        cold_ttft_ms=None if conditions is None else conditions.cold_ttft_ms.get(arm),
        tokens_per_message=arm_metrics.tokens_per_message(columns),
        output_throughput=arm_metrics.output_throughput(columns, load),
        request_throughput=arm_metrics.request_throughput(columns, load),
        goodput=arm_metrics.goodput(columns, objectives, load),
        num_input_tokens=arm_metrics.num_input_tokens(columns),
        num_output_tokens=arm_metrics.num_tokens(columns),
        acceptance=_acceptance(columns, conditions) if arm is Arm.ON else None,
    )


def _acceptance(columns: ArmColumns, conditions: CellConditions | None) -> Acceptance | None:
    """From the answers; from the server's counters where answers carry no counts. Positions only the server knows."""
    counters = CounterIncrease() if conditions is None else CounterIncrease.of(conditions)
    has_counts = bool((columns.num_draft_tokens[columns.is_answered] != NOT_REPORTED).any())
    if has_counts:
        return arm_metrics.with_positions(arm_metrics.acceptance(columns), counters)
    return arm_metrics.with_positions(arm_metrics.counted_acceptance(columns, counters), counters)


def _not_interleaved(table: RecordTable) -> dict[str, str]:
    """A note on cells of which all of one arm went before the other: what changed with time is then in the ratio.

    Enough requests for two rounds of all workers make two blocks, of which each arm begins one.
    """
    alone = [
        f"{segment} at {load}"
        for (segment, load), arms in table.cells.items()
        if Arm.OFF in arms and Arm.ON in arms and _is_one_after_the_other(arms[Arm.OFF], arms[Arm.ON])
    ]
    return {"arms not interleaved": f"one block of each arm, in {', '.join(alone)}"} if alone else {}


def _is_one_after_the_other(off: ArmColumns, on: ArmColumns) -> bool:
    return bool(off.send_ns.max() < on.send_ns.min() or on.send_ns.max() < off.send_ns.min())


def _reconciled(conditions: tuple[CellConditions, ...], table: RecordTable) -> dict[CellKey, CellConditions]:
    keyed = {(cell.segment, cell.load): cell for cell in conditions}
    return {key: reconcile(cell, table.cells.get(key, {})) for key, cell in keyed.items()}


def _compared(
    table: RecordTable,
    target: TargetFacts,
    facts: ServerFacts,
    run: RunFacts,
    conditions: Mapping[CellKey, CellConditions],
) -> tuple[Comparison, ...]:
    """Every cell that has both arms."""
    compared: list[Comparison] = []
    for key, arms in table.cells.items():
        if Arm.OFF in arms and Arm.ON in arms:
            compared += compare_cell(
                key,
                arms[Arm.OFF],
                arms[Arm.ON],
                facts=_void_facts(key, table, facts.method or target.method, facts, run, conditions.get(key)),
                seed=run.random_seed,
                confidence=run.confidence,
                limits=run.limits,
                percentiles=run.percentiles,
            )
    return tuple(compared)


def _void_facts(
    key: CellKey,
    table: RecordTable,
    method: str | None,
    facts: ServerFacts,
    run: RunFacts,
    conditions: CellConditions | None,
) -> VoidFacts:
    unfinished = run.unfinished if run.unfinished is not None else list(table.cells)[-1]
    return VoidFacts(
        concurrency=key[1].concurrency,
        prefix_cache="unknown" if facts.prefix_cache is None else "on" if facts.prefix_cache else "off",
        expects_reuse=run.expects_reuse,
        remembers_outputs=method in REMEMBERING_METHODS,
        client_cpu_share=None if conditions is None else conditions.client_cpu_share,
        wake_up_lag_p99_ms=None if conditions is None else conditions.wake_up_lag_p99_ms,
        cached_share=None if conditions is None else conditions.cached_share,
        max_error_rate=run.max_error_rate,
        interrupted=run.interrupted if key == unfinished else None,
    )


def planned_draft_lens(config: DeploymentConfig) -> tuple[PlannedDraftLen, ...]:
    """K of every segment at the expected concurrency, as the config asks for it."""
    expected = config.traffic.expected_concurrency
    return tuple(planned_draft_len(config, segment, expected) for segment in config.traffic.segments)


def planned_draft_len(config: DeploymentConfig, segment: SegmentConfig, concurrency: int) -> PlannedDraftLen:
    """K of one segment at `concurrency` requests in flight, as the config asks for it."""
    if not segment.speculate:
        return PlannedDraftLen(segment=segment.name, draft_len=0, off_reason=segment.off_reason)
    ranges = segment.draft_len_by_in_flight or config.speculation.draft_len_by_in_flight
    if not ranges:
        return PlannedDraftLen(segment=segment.name, draft_len=config.speculation.max_draft_len)
    draft_len = SegmentPlan(segment=segment.name, ranges=ranges).draft_len(concurrency)
    off_reason = None if draft_len else f"the config gives K = 0 at {concurrency} requests in flight"
    return PlannedDraftLen(segment=segment.name, draft_len=draft_len, off_reason=off_reason)


def describe_positions(counters: SegmentCounters) -> str | None:
    """Acceptance per draft position, marginal and conditional; None before the first draft.

    Marginal at position i: accepted up to i / drafts. Conditional: accepted up to i / accepted up to i - 1.
    """
    if not counters.num_drafts or not counters.accepted_per_pos:
        return None
    marginal = [accepted / counters.num_drafts for accepted in counters.accepted_per_pos]
    before = (counters.num_drafts, *counters.accepted_per_pos)
    conditional = [
        f"{accepted / previous:.2f}" if previous else "-"
        for accepted, previous in zip(counters.accepted_per_pos, before, strict=False)
    ]
    return f"marginal {' '.join(f'{rate:.2f}' for rate in marginal)}; conditional {' '.join(conditional)}"
