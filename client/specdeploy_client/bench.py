"""Carries out a `BenchPlan` against a server: records stream to disk, then they become a `RunSummary`.

Whatever ends a run early (the server goes away, Ctrl-C), what was measured until then is summarised and says so.
"""

import asyncio
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from specdeploy import __version__
from specdeploy.config.schema import DeploymentConfig
from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm, CellConditions, MetricName, Objective, Percentile, RequestRecord, RunSummary
from specdeploy.units import ns_to_ms
from specdeploy_client.artifacts import (
    RECORDS_FILE,
    RUN_SUMMARY_FILE,
    SERVER_COUNTERS_FILE,
    empty_run_folder,
    write_model,
)
from specdeploy_client.bench_plan import BenchOptions, BenchPlan
from specdeploy_client.comparison.sequential import SequentialStop, final_confidence
from specdeploy_client.comparison.stats import CONFIDENCE
from specdeploy_client.load.arms import ArmSwitch, ModelControlSwitch
from specdeploy_client.load.cell import Cell
from specdeploy_client.load.loadgen import CellRun, ServerLostError, run_cell
from specdeploy_client.reconcile import CounterIncrease, counter_increase
from specdeploy_client.records.files import RecordsLostError, RecordWriter
from specdeploy_client.records.table import CellKey, RecordTable
from specdeploy_client.server_counters import ReadFacts, add_increases, read_settled_facts, write_counters
from specdeploy_client.server_facts import SegmentCounters, ServerFacts
from specdeploy_client.summary import RunFacts, TargetFacts, describe_positions, summarise_run


@dataclass(frozen=True, slots=True)
class JudgingConfig:
    """What is made of the records. `limits`: on/off ratios that a gate asks of a metric, 1 where it asks nothing."""

    objectives: tuple[Objective, ...] = ()
    percentiles: tuple[Percentile, ...] = (Percentile.P50, Percentile.P99)
    limits: Mapping[MetricName, float] = field(default_factory=dict)
    decide_metric: MetricName = MetricName.E2E
    max_error_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a run measured. `server_counters`: their increase over the measured requests, None when unread."""

    summary: RunSummary
    server_counters: dict[str, SegmentCounters] | None

    @property
    def shortcomings(self) -> tuple[str, ...]:
        """Requests without an answer, and answers that are too short, by cell and arm."""
        found: list[str] = []
        for cell in self.summary.cells:
            name = f"{cell.segment} at {cell.load}, {cell.arm}"
            if cell.num_errors:
                found.append(f"{name}: {cell.num_errors} of {cell.num_requests} requests failed")
            if cell.num_short:
                found.append(f"{name}: {cell.num_short} of {cell.num_requests} answers are shorter than asked")
        return tuple(found)

    @property
    def warm_up_failures(self) -> tuple[str, ...]:
        """Arms whose warm-up the server did not answer whole: they may have been measured cold."""
        return tuple(
            f"{cell.segment} at {cell.load}, {arm}: {number} warm-up requests were not answered"
            for cell in self.summary.conditions
            for arm, number in cell.num_warmup_failed.items()
        )

    @property
    def is_whole(self) -> bool:
        """Whether everything that was asked for was measured."""
        return self.summary.interrupted is None and not self.shortcomings

    @property
    def is_comparable(self) -> bool:
        """Whether any of it can be compared; with one arm alone, whether any request was answered."""
        if self.summary.comparisons:
            return not all(comparison.void_reasons for comparison in self.summary.comparisons)
        return any(cell.num_requests > cell.num_errors for cell in self.summary.cells)


async def run_bench(
    plan: BenchPlan,
    options: BenchOptions,
    target: DeploymentConfig | TargetFacts,
    *,
    arms: ArmSwitch,
    read_facts: ReadFacts,
    artifact_dir: Path,
    environment: Mapping[str, str],
    on_record: Callable[[RequestRecord], None],
    judging: JudgingConfig | None = None,
    on_stopped: Callable[[BenchResult], None] | None = None,
) -> BenchResult:
    """Measure `plan`; records go to disk one by one, the summary when all are there or nothing more can come.

    A run that ended early returns too, with `summary.interrupted`; cancelled, it writes its summary, hands it to
    `on_stopped` and raises CancelledError. Raises `ClientError` where the server is not the one to measure; nothing is
    written then.
    """
    before, notice = await _facts_or_notice(read_facts)
    if isinstance(target, DeploymentConfig):
        _require_same_deployment(target.name, before)
    empty_run_folder(artifact_dir)
    run = _Run(
        plan=plan,
        options=options,
        target=target,
        judging=judging or JudgingConfig(),
        arms=arms,
        read_facts=read_facts,
        artifact_dir=artifact_dir,
        facts=before,
        environment={**environment, **plan.notes, **notice},
    )
    try:
        await run.measure(on_record)
    except RecordsLostError as error:
        run.interrupted = run.interrupted or str(error)
    except asyncio.CancelledError:
        run.interrupted = "stopped by its user"
        stopped = run.finish()
        if on_stopped is not None:
            on_stopped(stopped)
        raise
    return run.finish()


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run under way: what it measures, and what is known so far."""

    plan: BenchPlan
    options: BenchOptions
    target: DeploymentConfig | TargetFacts
    judging: JudgingConfig
    arms: ArmSwitch
    read_facts: ReadFacts
    artifact_dir: Path
    facts: ServerFacts
    environment: dict[str, str]
    interrupted: str | None = None
    _conditions: list[CellConditions] = field(default_factory=list)
    _increases: dict[str, list[CounterIncrease]] = field(default_factory=dict)
    _unfinished: CellKey | None = None
    _confidence: float = CONFIDENCE
    _started_at: str = field(default_factory=lambda: datetime.now(tz=UTC).isoformat(timespec="seconds"))
    _start_ns: int = field(default_factory=time.monotonic_ns)

    async def measure(self, on_record: Callable[[RequestRecord], None]) -> None:
        """Every cell, until the server is gone."""
        # A model that is loaded again begins to count again.
        counts_last = not isinstance(self.arms, ModelControlSwitch)
        with RecordWriter(self.artifact_dir / RECORDS_FILE) as writer:
            for cell in self.plan.cells:
                self._unfinished = (cell.segment, cell.load)
                watch = _CellWatch(cell, self.options, self.judging, self.read_facts, counts_last)

                def sink(record: RequestRecord, watch: _CellWatch = watch) -> None:
                    writer.write(record)
                    watch.add(record)
                    on_record(record)

                def is_enough(num_pairs: int, watch: _CellWatch = watch) -> bool:
                    writer.flush()
                    return watch.is_enough(num_pairs)

                try:
                    cell_run = await run_cell(self.arms, cell, sink, after_warm_up=watch.begin, on_block_end=is_enough)
                except ClientError as error:
                    self.interrupted = f"{cell.segment} at {cell.load}: {_reason_of(error)}"
                    if isinstance(error, ServerLostError):
                        self._note(cell, error.run, watch, CounterIncrease())
                    return
                self._note(cell, cell_run, watch, await watch.increase())
            self._unfinished = None

    def _note(self, cell: Cell, run: CellRun, watch: "_CellWatch", increase: CounterIncrease) -> None:
        """Keep what surrounded one cell. What the server is, it said when the last arm, the on arm, was warm."""
        self.facts = watch.before or self.facts
        self._confidence = max(self._confidence, watch.confidence)
        self._increases.setdefault(cell.segment, []).append(increase)
        if Arm.FLOOR in cell.draft_lens:
            return  # it is compared by its answers alone
        lag = run.wake_up_lag_p99_ns
        self._conditions.append(
            CellConditions(
                segment=cell.segment,
                concurrency=cell.load.concurrency,
                request_rate=cell.load.request_rate,
                client_cpu_share=run.client_cpu_share,
                client_cpu_share_by_arm=run.client_cpu_shares,
                wake_up_lag_p99_ms=None if lag is None else ns_to_ms(lag),
                cold_ttft_ms={arm: ns_to_ms(value) for arm, value in run.cold_ttft_ns.items()},
                stopped_after=run.num_pairs or None if run.is_stopped_early else None,
                num_warmup_failed=run.num_warmup_failed,
                **asdict(increase),
            )
        )

    def finish(self) -> BenchResult:
        """Summarise what is on disk and write it beside."""
        table = RecordTable.load(self.artifact_dir / RECORDS_FILE)
        counters = self._server_counters()
        self.environment.update({f"records {number}": note for number, note in enumerate(table.notes, start=1)})
        for segment, value in (counters or {}).items():
            if text := describe_positions(value):
                self.environment[f"acceptance by position, {segment}"] = text
        judging = self.judging
        facts = RunFacts(
            budget=self.options.budget.name,
            random_seed=self.options.random_seed,
            started_at=self._started_at,
            duration_s=round((time.monotonic_ns() - self._start_ns) / 1e9, 3),
            environment=self.environment,
            conditions=tuple(self._conditions),
            objectives=judging.objectives,
            percentiles=judging.percentiles,
            limits=judging.limits,
            confidence=self._confidence,
            max_error_rate=judging.max_error_rate,
            expects_reuse=self.plan.expects_reuse,
            switch=self.arms.describe(),
            load_kind=self.plan.load_kind,
            interrupted=self.interrupted,
            unfinished=self._unfinished,
        )
        summary = summarise_run(table, self.target, self.facts, facts)
        write_model(self.artifact_dir / RUN_SUMMARY_FILE, summary)
        write_counters(self.artifact_dir / SERVER_COUNTERS_FILE, counters)
        return BenchResult(summary, counters)

    def _server_counters(self) -> dict[str, SegmentCounters] | None:
        """By segment, over all its cells; None where a counter of one of them was not read."""
        totals = {segment: add_increases(cells) for segment, cells in self._increases.items()}
        known = {segment: total for segment, total in totals.items() if total is not None}
        return known if known and len(known) == len(totals) else None


class _CellWatch:
    """Looks at one cell while it is measured: counters before and after, whether more is needed."""

    def __init__(
        self, cell: Cell, options: BenchOptions, judging: JudgingConfig, read_facts: ReadFacts, counts_last: bool
    ) -> None:
        self.before: ServerFacts | None = None
        self.confidence = CONFIDENCE
        self._counts_last = counts_last
        self._segment = cell.segment
        self._read_facts = read_facts
        self._duration_s = options.duration_s
        self._num_blocks = 0
        self._begun_ns = time.monotonic_ns()
        self._stop: SequentialStop | None = None
        if options.stops_when_decided and {Arm.OFF, Arm.ON} <= set(cell.draft_lens):
            limit = judging.limits.get(judging.decide_metric, 1.0)
            self._stop = SequentialStop(
                len(cell.requests), metrics=(judging.decide_metric,), seed=options.random_seed, limit=limit
            )
            self.confidence = final_confidence()

    async def begin(self) -> None:
        """The counters as they are when only measured requests are still to come."""
        self.before = await read_settled_facts(self._read_facts)
        self._begun_ns = time.monotonic_ns()

    def add(self, record: RequestRecord) -> None:
        """A measured request."""
        if self._stop is not None:
            self._stop.add(record)

    def is_enough(self, num_pairs: int) -> bool:
        """Whether no further block is to be begun. Time ends a cell when each arm has gone first equally often."""
        self._num_blocks += 1
        is_over = self._duration_s is not None and time.monotonic_ns() - self._begun_ns >= self._duration_s * 1e9
        if is_over and self._num_blocks % 2 == 0:
            return True
        return self._stop is not None and self._stop.is_decided(num_pairs)

    async def increase(self) -> CounterIncrease:
        """What the server counted since `begin`."""
        after = await read_settled_facts(self._read_facts) if self._counts_last else None
        if self.before is None or after is None:
            return CounterIncrease()
        return counter_increase(self.before, after, self._segment)


def client_environment(command: str, prompt_format: str) -> dict[str, str]:
    """Versions and machine of the client; no host name, no path."""
    return {
        "command": command,
        "prompt format": prompt_format,
        "client": f"specdeploy {__version__}",
        "client python": platform.python_version(),
        "client machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }


async def _facts_or_notice(read_facts: ReadFacts) -> tuple[ServerFacts, dict[str, str]]:
    """Facts, or none of them with a note why: a run without metrics is poorer, not impossible."""
    try:
        return await read_facts(), {}
    except ClientError as error:
        return ServerFacts(), {"server facts": f"not read: {error}"}


def _reason_of(error: ClientError) -> str:
    """Why a cell ended, for people."""
    return f"the server went away during the run ({error})" if isinstance(error, ServerLostError) else str(error)


def _require_same_deployment(name: str, facts: ServerFacts) -> None:
    if facts.deployment is not None and facts.deployment != name:
        raise ClientError(
            f"the server serves deployment {facts.deployment}, not {name}. Give the address of the right one "
            "with --url and --metrics-url, or start it with `make serve`"
        )
