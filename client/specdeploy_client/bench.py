"""Orchestrates a measurement: which cells, against which server, into which files."""

import asyncio
import json
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from specdeploy import __version__
from specdeploy.config.load import LoadedDeployment
from specdeploy.config.schema import DeploymentConfig, SegmentConfig
from specdeploy.errors import ClientError, RequestError
from specdeploy.run_contract import Arm, RequestRecord, RunSummary
from specdeploy.units import ns_to_ms
from specdeploy_client.artifacts import (
    INTEGRITY_FILE,
    RECORDS_FILE,
    REPORT_FILE,
    RUN_SUMMARY_FILE,
    SERVER_COUNTERS_FILE,
    VERDICT_FILE,
    write_model,
    write_text,
)
from specdeploy_client.loadgen import Cell, CellRequest, LoopLagProbe, run_cell
from specdeploy_client.records import RecordWriter
from specdeploy_client.server_facts import SegmentCounters, ServerFacts
from specdeploy_client.summary import RunFacts, describe_positions, planned_draft_len, summarise_run
from specdeploy_client.transport import Transport
from specdeploy_client.workload import Prompt, load_prompts, prompt_at

ReadFacts = Callable[[], Awaitable[ServerFacts]]
RenderPrompt = Callable[[str], str]
_SETTLE_INTERVAL_S = 0.2
_MAX_SETTLE_READS = 15


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to measure. `num_segments` None means all; `floor_concurrency` adds the off arm at another batch mix;
    `max_tokens` shortens answers that the deployment would let run longer."""

    name: str
    num_segments: int | None
    concurrencies: tuple[int, ...]
    request_count: int
    floor_concurrency: int | None = None
    max_tokens: int | None = None


# 20 requests support p50, 100 support p90 (metrics.samples_needed). A row is one of several in a table of ratios: 12
# pairs still give an interval, though no percentile.
BUDGETS: dict[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget("quick", num_segments=2, concurrencies=(1, 4), request_count=20, max_tokens=16),
        Budget("full", num_segments=None, concurrencies=(1, 2, 4, 8), request_count=100),
        Budget("row", num_segments=2, concurrencies=(1,), request_count=12, floor_concurrency=4, max_tokens=16),
    )
}
VERIFY_BUDGET = Budget("verify", num_segments=None, concurrencies=(1, 4), request_count=8)


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """A budget with what the command line changes in it. `segments` empty means the budget's choice.

    `warmup_request_count` None means one request per worker; `max_tokens` None means each segment's own.
    """

    budget: Budget
    random_seed: int = 0
    segments: tuple[str, ...] = ()
    concurrencies: tuple[int, ...] = ()
    request_count: int | None = None
    warmup_request_count: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The cells of a run and what is worth telling about how they were chosen."""

    cells: tuple[Cell, ...]
    notes: dict[str, str]

    @property
    def num_requests(self) -> int:
        """Measured requests, warm-up left out."""
        return sum(len(cell.requests) * len(cell.draft_lens) for cell in self.cells)


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What a run measured. `server_counters`: their increase over the measured requests, None when unread."""

    summary: RunSummary
    records: tuple[RequestRecord, ...]
    server_counters: dict[str, SegmentCounters] | None


def plan_bench(deployment: LoadedDeployment, options: BenchOptions, render: RenderPrompt) -> BenchPlan:
    """The cells that `options` ask for, with prompts chosen and rendered."""
    config = deployment.config
    segments = _chosen_segments(config, options)
    prompts = {s.name: load_prompts(deployment.path.parent / s.prompts) for s in segments}
    num_requests = options.request_count or options.budget.request_count
    levels = options.concurrencies or options.budget.concurrencies
    cells: list[Cell] = []
    lowered: list[str] = []
    for segment in segments:
        shape = (segment, prompts[segment.name], num_requests, options, render)
        for level in levels:
            # What the plan does where it drafts, and what drafting would do where it does not.
            draft_len = planned_draft_len(config, segment, level).draft_len or config.speculation.max_draft_len
            cells.append(_cell(level, {Arm.OFF: 0, Arm.ON: draft_len}, *shape))
            if draft_len != config.speculation.max_draft_len:
                lowered.append(f"{segment.name} at {level}: {draft_len}")
        if options.budget.floor_concurrency is not None:
            cells.append(_cell(options.budget.floor_concurrency, {Arm.FLOOR: 0}, *shape))
    notes = {
        f"prompts of {name}": f"{len(texts)} prompts for {num_requests} requests per arm: prompts repeat"
        for name, texts in prompts.items()
        if len(texts) < num_requests
    }
    if lowered:
        notes["K of the on arm, by the plan"] = ", ".join(lowered)
    if options.max_tokens is None and options.budget.max_tokens is not None:
        notes["answers"] = f"at most {options.budget.max_tokens} tokens in budget {options.budget.name}"
    if unmeasured := [s.name for s in config.traffic.segments if s not in segments]:
        notes["segments not measured"] = ", ".join(unmeasured)
    return BenchPlan(cells=tuple(cells), notes=notes)


async def run_bench(
    config: DeploymentConfig,
    plan: BenchPlan,
    options: BenchOptions,
    *,
    transport: Transport,
    read_facts: ReadFacts,
    artifact_dir: Path,
    environment: Mapping[str, str],
    on_record: Callable[[RequestRecord], None],
) -> BenchResult:
    """Measure `plan`; records go to disk one by one, the summary when all are there.

    Raises `ClientError` when the server dies; records.jsonl then holds what was measured.
    """
    before, notice = await _facts_or_notice(read_facts)
    _require_same_deployment(config, before)
    _remove_stale_results(artifact_dir)
    records: list[RequestRecord] = []
    started_at, start_ns = datetime.now(tz=UTC).isoformat(timespec="seconds"), time.monotonic_ns()
    with RecordWriter(artifact_dir / RECORDS_FILE) as writer:

        def sink(record: RequestRecord) -> None:
            writer.write(record)
            records.append(record)
            on_record(record)

        async with LoopLagProbe() as probe:
            await _run_cells(transport, plan.cells, sink, writer.path)
    duration_s = (time.monotonic_ns() - start_ns) / 1e9
    counters = None if notice else (await _settled_facts(read_facts)).counters_since(before)
    run = RunFacts(
        budget=options.budget.name,
        random_seed=options.random_seed,
        started_at=started_at,
        duration_s=round(duration_s, 3),
        environment={**environment, **plan.notes, **notice, **_lag_note(probe), **_position_notes(counters)},
    )
    summary = summarise_run(records, config, before, run)
    write_model(artifact_dir / RUN_SUMMARY_FILE, summary)
    write_counters(artifact_dir / SERVER_COUNTERS_FILE, counters)
    return BenchResult(summary=summary, records=tuple(records), server_counters=counters)


def client_environment(command: str, prompt_format: str) -> dict[str, str]:
    """Versions and machine of the client; no host name, no path."""
    return {
        "command": command,
        "prompt format": prompt_format,
        "client": f"specdeploy {__version__}, tritonclient {version('tritonclient')}",
        "client python": platform.python_version(),
        "client machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
    }


def write_counters(path: Path, counters: Mapping[str, SegmentCounters] | None) -> None:
    """Counters as JSON, by segment; `null` when they were not read."""
    content = None if counters is None else {segment: asdict(value) for segment, value in counters.items()}
    write_text(path, json.dumps(content, indent=2) + "\n")


def load_counters(path: Path) -> dict[str, SegmentCounters] | None:
    """Counters that `write_counters` wrote. Raises `ClientError` for anything else."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        if content is None:
            return None
        return {
            segment: SegmentCounters(**{**value, "accepted_per_pos": tuple(value["accepted_per_pos"])})
            for segment, value in content.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClientError(f"{path}: not a file of server counters ({error}). Measure again") from error


def _chosen_segments(config: DeploymentConfig, options: BenchOptions) -> tuple[SegmentConfig, ...]:
    known = {segment.name: segment for segment in config.traffic.segments}
    if unknown := [name for name in options.segments if name not in known]:
        raise RequestError(
            "--segments", f"{config.name} has no segment {', '.join(unknown)}", f"It has {', '.join(known)}"
        )
    if options.segments:
        return tuple(known[name] for name in dict.fromkeys(options.segments))
    return config.traffic.segments[: options.budget.num_segments]


def _cell(
    concurrency: int,
    draft_lens: dict[Arm, int],
    segment: SegmentConfig,
    prompts: Sequence[Prompt],
    num_requests: int,
    options: BenchOptions,
    render: RenderPrompt,
) -> Cell:
    def request(index: int) -> CellRequest:
        prompt = prompt_at(prompts, options.random_seed, segment.name, index)
        max_tokens = options.max_tokens or prompt.max_tokens or segment.max_tokens
        if options.max_tokens is None and options.budget.max_tokens is not None:
            max_tokens = min(max_tokens, options.budget.max_tokens)
        return CellRequest(index, prompt.prompt_id, render(prompt.text), max_tokens)

    num_warmup = concurrency if options.warmup_request_count is None else options.warmup_request_count
    return Cell(
        segment=segment.name,
        concurrency=concurrency,
        draft_lens=draft_lens,
        requests=tuple(map(request, range(num_requests))),
        warmup=tuple(map(request, range(num_requests, num_requests + num_warmup))),
    )


async def _run_cells(
    transport: Transport, cells: Sequence[Cell], sink: Callable[[RequestRecord], None], records_path: Path
) -> None:
    for cell in cells:
        try:
            await run_cell(transport, cell, sink)
        except ClientError as error:
            raise ClientError(
                f"the run ended at {cell.segment}, concurrency {cell.concurrency}: {error}. "
                f"What was measured before is in {records_path}"
            ) from error


async def _facts_or_notice(read_facts: ReadFacts) -> tuple[ServerFacts, dict[str, str]]:
    """Facts, or none of them with a note why: a run without metrics is poorer, not impossible."""
    try:
        return await read_facts(), {}
    except ClientError as error:
        return ServerFacts(), {"server facts": f"not read: {error}"}


async def _settled_facts(read_facts: ReadFacts) -> ServerFacts:
    """Read until two reads agree: counters may trail the last message a little."""
    facts = await read_facts()
    for _ in range(_MAX_SETTLE_READS):
        await asyncio.sleep(_SETTLE_INTERVAL_S)
        again = await read_facts()
        if again.counters == facts.counters:
            return again
        facts = again
    return facts


def _require_same_deployment(config: DeploymentConfig, facts: ServerFacts) -> None:
    if facts.deployment is not None and facts.deployment != config.name:
        raise ClientError(
            f"the server serves deployment {facts.deployment}, not {config.name}. Give the address of the right one "
            "with --url and --metrics-url, or start it with `make serve`"
        )


def _remove_stale_results(artifact_dir: Path) -> None:
    """Results of an earlier run must not lie beside the records of this one."""
    for name in (RUN_SUMMARY_FILE, SERVER_COUNTERS_FILE, INTEGRITY_FILE, VERDICT_FILE, REPORT_FILE):
        (artifact_dir / name).unlink(missing_ok=True)


def _lag_note(probe: LoopLagProbe) -> dict[str, str]:
    if not probe.lags_ns:
        return {}
    p50, p99 = (ns_to_ms(float(value)) for value in np.quantile(probe.lags_ns, (0.5, 0.99)))
    return {"client wake-up lag": f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"}


def _position_notes(counters: Mapping[str, SegmentCounters] | None) -> dict[str, str]:
    notes = {segment: describe_positions(value) for segment, value in (counters or {}).items()}
    return {f"acceptance by position, {segment}": text for segment, text in notes.items() if text}
