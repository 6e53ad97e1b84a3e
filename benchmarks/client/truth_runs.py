"""Runs whose truth is known: in virtual time against a model of a server, in real time against a mock server."""

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from truth_model import Scenario

from specdeploy.run_contract import Arm, Comparison, Load, Percentile, PlannedDraftLen, RequestRecord, RunSummary
from specdeploy.verdict_contract import GateConfig
from specdeploy_client.comparison.sequential import SequentialStop, final_confidence
from specdeploy_client.comparison.stats import CONFIDENCE
from specdeploy_client.judging.gate import judge
from specdeploy_client.load.arms import PerRequestSwitch
from specdeploy_client.load.cell import Cell, CellRequest
from specdeploy_client.load.loadgen import Clock, run_cell
from specdeploy_client.records.table import RecordTable
from specdeploy_client.server_facts import ServerFacts
from specdeploy_client.summary import RunFacts, TargetFacts, summarise_run
from specdeploy_client.transport import Transport
from specdeploy_client.transports.endpoint import open_transport, parse_endpoint

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "tests")]
from helpers.mock_llm_answers import MockRequest, plan_answer  # noqa: E402 - found through the line above
from helpers.mock_llm_server import MockBehaviour, MockLlmServer  # noqa: E402
from helpers.virtual_time import VirtualServer, VirtualTimeLoop, run_virtual  # noqa: E402

SEGMENT = "chat"
DRAFT_LEN = 4
GATE = GateConfig(name="known truth", require_integrity=False)
REAL_CONCURRENCY, REAL_PAIRS, REAL_TOKENS = 8, 200, 32


@dataclass
class MachineWithSpells(VirtualServer):
    """A virtual server on a machine that is now a little faster, now a little slower, for `spell_s` at a time."""

    spell_sigma: float = 0.0
    spell_s: float = 5.0
    factors: dict[int, float] = field(default_factory=dict)

    async def _work(self, duration_s: float) -> None:
        spell = int((self.clock() - VirtualTimeLoop.START_NS) / 1e9 / self.spell_s)
        if spell not in self.factors:
            noise = np.random.default_rng([self.seed, spell]).normal(0.0, self.spell_sigma)
            self.factors[spell] = math.exp(noise)
        await super()._work(duration_s * self.factors[spell])


@dataclass(frozen=True)
class Run:
    """What one run said. `action` by the gate for the one segment; `pairs` it took."""

    action: str
    comparisons: tuple[Comparison, ...]
    pairs: int
    voids: tuple[str, ...]

    @property
    def has_alarm(self) -> bool:
        """Whether any of the medians compared is said to differ."""
        medians = [c for c in self.comparisons if c.percentile is Percentile.P50]
        return any(comparison.outcome in ("faster", "slower") for comparison in medians)


def measure_virtual(scenario: Scenario, num_pairs: int, seed: int, *, stops_early: bool = False) -> Run:
    """One run in virtual time, judged by the gate."""
    stop = SequentialStop(num_pairs, seed=seed) if stops_early else None
    records = record_virtual(scenario, num_pairs, seed, stop)
    return _judged(records, final_confidence() if stops_early else CONFIDENCE, scenario.concurrency)


def record_virtual(
    scenario: Scenario, num_pairs: int, seed: int, stop: SequentialStop | None = None
) -> list[RequestRecord]:
    """The records of one run in virtual time."""

    def server_of(clock: Clock) -> Transport:
        return MachineWithSpells(
            clock,
            ttft_s=scenario.ttft_s,
            step_s=scenario.step_s,
            acceptance=scenario.acceptance,
            verify_cost=scenario.verify_cost,
            on_factor=scenario.effect,
            prompt_sigma=scenario.prompt_sigma,
            request_sigma=scenario.request_sigma,
            step_sigma=scenario.step_sigma,
            spell_sigma=scenario.spell_sigma,
            spell_s=scenario.spell_s,
            seed=seed,
        )

    cell = _cell(num_pairs, scenario.concurrency, scenario.num_tokens, scenario.draft_len)
    return run_virtual(lambda clock: _record_cell(server_of(clock), cell, clock, stop))


def measure_real(effect: float) -> Run:
    """One run in real time against a mock in a process of its own, judged by the gate."""
    command = [sys.executable, __file__, str(effect)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as mock:
        if mock.stdout is None or mock.stdin is None:
            raise RuntimeError("the mock server has no pipes")
        url = mock.stdout.readline().strip()
        try:
            records = asyncio.run(_record_real(url))
        finally:
            mock.stdin.close()
            mock.wait(timeout=10)
    return _judged(records, CONFIDENCE, REAL_CONCURRENCY)


def summarise(records: Sequence[RequestRecord], confidence: float = CONFIDENCE, concurrency: int = 8) -> RunSummary:
    """The summary as the bench makes it."""
    planned = (PlannedDraftLen(segment=SEGMENT, draft_len=DRAFT_LEN),)
    run = RunFacts(budget="full", random_seed=0, started_at="", duration_s=0.0, environment={}, confidence=confidence)
    return summarise_run(
        RecordTable.from_records(records),
        TargetFacts("known-truth", concurrency, planned=planned),
        ServerFacts(prefix_cache=False),
        run,
    )


def _cell(num_pairs: int, concurrency: int, num_tokens: int, draft_len: int) -> Cell:
    """Off and on, every prompt another one; the last ones are for warming up."""
    requests = tuple(
        CellRequest(number, f"p{number}", f"prompt {number}", num_tokens) for number in range(num_pairs + concurrency)
    )
    arms = {Arm.OFF: 0, Arm.ON: draft_len}
    return Cell(SEGMENT, Load(concurrency), arms, requests[:num_pairs], requests[num_pairs:])


async def _record_cell(
    transport: Transport, cell: Cell, clock: Clock, stop: SequentialStop | None
) -> list[RequestRecord]:
    records: list[RequestRecord] = []

    def sink(record: RequestRecord) -> None:
        records.append(record)
        if stop is not None:
            stop.add(record)

    on_block_end: Callable[[int], bool] | None = None if stop is None else stop.is_decided
    await run_cell(PerRequestSwitch(transport), cell, sink, clock=clock, on_block_end=on_block_end)
    return records


async def _record_real(url: str) -> list[RequestRecord]:
    async with open_transport(parse_endpoint(url), 30.0) as transport:
        cell = _cell(REAL_PAIRS, REAL_CONCURRENCY, REAL_TOKENS, DRAFT_LEN)
        return await _record_cell(transport, cell, time.monotonic_ns, None)


def _judged(records: Sequence[RequestRecord], confidence: float, concurrency: int) -> Run:
    summary = summarise(records, confidence, concurrency)
    (decision,) = judge(summary, None, GATE).decisions
    voids = {str(reason) for comparison in summary.comparisons for reason in comparison.void_reasons}
    pairs = max(comparison.num_pairs for comparison in summary.comparisons)
    return Run(decision.action, summary.comparisons, pairs, tuple(sorted(voids)))


def _behaviour(effect: float) -> MockBehaviour:
    """A mock whose on arm ends after `effect` times the time of its off arm."""
    first_s, step_s = 0.030, 0.005

    def end_s(draft_len: int) -> float:
        request = MockRequest(0, "", "llm", "prompt", REAL_TOKENS, draft_len, SEGMENT, {}, {})
        plan = plan_answer(MockBehaviour(first_message_s=first_s, step_s=step_s, plain_step_s=step_s), request)
        return plan[-1].due_s

    drafting_step_s = step_s * (effect * end_s(0) - first_s) / (end_s(DRAFT_LEN) - first_s)
    return MockBehaviour(first_message_s=first_s, step_s=drafting_step_s, plain_step_s=step_s)


async def _serve(effect: float) -> None:
    """Print the address and serve until standard input closes."""
    async with MockLlmServer(_behaviour(effect)) as server:
        print(server.grpc_url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1])))
