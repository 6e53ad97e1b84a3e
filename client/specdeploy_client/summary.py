"""Records and what is known of the server -> RunSummary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdeploy.config.schema import DeploymentConfig, SegmentConfig
from specdeploy.contract import SegmentPlan
from specdeploy.run_contract import Arm, MetricName, PlannedDraftLen, RequestRecord, RunSummary
from specdeploy_client.compare import compare_arms, group_cells, summarise_arm
from specdeploy_client.server_facts import SegmentCounters, ServerFacts


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What surrounds the records of one run."""

    budget: str
    random_seed: int
    started_at: str
    duration_s: float
    environment: Mapping[str, str]


def summarise_run(
    records: Sequence[RequestRecord], config: DeploymentConfig, facts: ServerFacts, run: RunFacts
) -> RunSummary:
    """Everything `gate` and `report` need of a run."""
    cells = group_cells(records)
    return RunSummary(
        deployment=config.name,
        build_id=facts.build_id,
        lane=facts.lane,
        method=facts.method,
        max_draft_len=facts.max_draft_len if facts.max_draft_len is not None else config.speculation.max_draft_len,
        dtype=facts.dtype,
        server_threads=facts.threads,
        budget=run.budget,
        random_seed=run.random_seed,
        started_at=run.started_at,
        duration_s=run.duration_s,
        expected_concurrency=config.traffic.expected_concurrency,
        slos=config.slos,
        planned=planned_draft_lens(config),
        cells=tuple(
            summarise_arm(segment, load, arm, arms[arm])
            for (segment, load), arms in cells.items()
            for arm in Arm
            if arm in arms
        ),
        comparisons=tuple(
            compare_arms(key, arms[Arm.OFF], arms[Arm.ON], metric, run.random_seed)
            for key, arms in cells.items()
            if Arm.OFF in arms and Arm.ON in arms
            for metric in MetricName
        ),
        environment=dict(run.environment),
        effective_concurrency=facts.effective_concurrency,
        concurrency_limit=facts.concurrency_limit,
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
