"""Measures one cell: warms up, then runs its blocks, arms interleaved, and sends every record to a sink."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm
from specdeploy_client.load.arms import ArmSwitch
from specdeploy_client.load.arrivals import MAX_BLOCKS, Block, plan_blocks, plan_offsets
from specdeploy_client.load.cell import MAX_IN_FLIGHT, Cell, CellRequest, RenderTurns, inseparable_positions
from specdeploy_client.load.client_load import PROBE_INTERVAL_NS, ClientLoad, frozen_garbage
from specdeploy_client.load.loops import BlockSender
from specdeploy_client.load.precise_timer import SleepUntil, open_timer
from specdeploy_client.load.request_run import Clock, Job, RecordSink, RequestLabel, RequestRun, run_request
from specdeploy_client.load.server_watch import ServerWatch
from specdeploy_client.load.warm_up import WarmUp, WarmUpResult
from specdeploy_client.transport import GenerationRequest, ServerUnreachableError

__all__ = [
    "MAX_IN_FLIGHT",
    "Cell",
    "CellRequest",
    "CellRun",
    "Job",
    "RecordSink",
    "RenderTurns",
    "RequestLabel",
    "RequestRun",
    "ServerLostError",
    "run_cell",
    "run_request",
]


@dataclass(slots=True)
class CellRun:
    """What surrounded the records of a cell. None where there was nothing to measure.

    `cold_ttft_ns`: of the very first warm-up request of each arm, sent alone; `num_warmup_rounds` after it;
    `num_warmup_failed`: warm-up requests without an answer, arms without any left out. `num_pairs` requests were sent
    with every arm, in whole blocks; `is_stopped_early` when `on_block_end` wanted no more.
    `client_cpu_shares`, by arm, and `wake_up_lag_p99_ns` are of the measured blocks alone.
    """

    cold_ttft_ns: dict[Arm, int] = field(default_factory=dict)
    num_warmup_rounds: dict[Arm, int] = field(default_factory=dict)
    num_warmup_failed: dict[Arm, int] = field(default_factory=dict)
    num_pairs: int = 0
    is_stopped_early: bool = False
    client_cpu_shares: dict[Arm, float] = field(default_factory=dict)
    wake_up_lag_p99_ns: int | None = None

    @property
    def client_cpu_share(self) -> float | None:
        """The larger one."""
        return max(self.client_cpu_shares.values(), default=None)


class ServerLostError(ClientError):
    """The server went away while a cell ran. Every request that was under way has its record; `run` says the rest."""

    def __init__(self, message: str, run: CellRun) -> None:
        self.run = run
        super().__init__(message)


async def run_cell(
    arms: ArmSwitch,
    cell: Cell,
    sink: RecordSink,
    *,
    clock: Clock = time.monotonic_ns,
    after_warm_up: Callable[[], Awaitable[None]] | None = None,
    on_block_end: Callable[[int], bool] | None = None,
) -> CellRun:
    """Warm up, then measure every block of `cell`; the record of each request goes to `sink`, whatever became of it.

    `clock` must be the one that stamps the transports' messages. `after_warm_up` is awaited before the first measured
    request. `on_block_end(pairs)` is asked after every block, when `pairs` requests have been sent with each arm;
    true ends the cell. Raises `ServerLostError` when the server is gone, and CancelledError when cancelled: both after
    all that was under way has its record.
    """
    run = CellRun()
    with open_timer(clock) as sleep_until:
        runner = _CellRunner(arms, cell, sink, run, clock=clock, sleep_until=sleep_until)
        await runner.warm_up_all()
        if after_warm_up is not None:
            await after_warm_up()
        with frozen_garbage():
            await runner.run_blocks(on_block_end)
    return run


class _CellRunner:
    """One run of one cell."""

    def __init__(
        self, arms: ArmSwitch, cell: Cell, sink: RecordSink, run: CellRun, *, clock: Clock, sleep_until: SleepUntil
    ) -> None:
        self._arms = arms
        self._cell = cell
        self._sink = sink
        self._run = run
        self._clock = clock
        self._sleep_until = sleep_until
        self._watch = ServerWatch()
        # In made-up time an event loop is never late, and looking would take longer than the run.
        probe_interval_ns = PROBE_INTERVAL_NS if clock is time.monotonic_ns else 0
        self._client = ClientLoad(sleep_until, clock, probe_interval_ns=probe_interval_ns)

    async def warm_up_all(self) -> None:
        arms = tuple(self._cell.draft_lens)
        # Where changing arms is dear, the arm that is measured first comes last.
        for arm in arms if self._arms.max_blocks >= MAX_BLOCKS else reversed(arms):
            await self._activate(arm)
            await self._warm_up(arm)

    async def run_blocks(self, on_block_end: Callable[[int], bool] | None) -> None:
        cell = self._cell
        arms = tuple(cell.draft_lens)
        blocks = plan_blocks(
            len(cell.requests),
            cell.load,
            arms,
            max_blocks=self._arms.max_blocks,
            inseparable=inseparable_positions(cell.requests),
        )
        try:
            for position, block in enumerate(blocks, start=1):
                if await self._activate(block.arm):
                    await self._warm_up(block.arm)
                await self._run_block(block)
                if position % len(arms) == 0:
                    self._run.num_pairs = block.first_index + block.num_requests
                    is_last = position == len(blocks)
                    if on_block_end is not None and on_block_end(self._run.num_pairs) and not is_last:
                        self._run.is_stopped_early = True
                        return
        finally:
            self._run.client_cpu_shares = self._client.cpu_shares
            self._run.wake_up_lag_p99_ns = self._client.wake_up_lag_p99_ns

    async def _activate(self, arm: Arm) -> bool:
        try:
            return await self._arms.activate(arm)
        except ServerUnreachableError as error:
            raise ServerLostError(str(error), self._run) from error

    async def _run_block(self, block: Block) -> None:
        cell = self._cell
        requests = cell.requests[block.first_index : block.first_index + block.num_requests]
        sender = self._sender(cell, block.number, block.arm, self._sink)
        async with self._client.measured(block.arm):
            if cell.load.concurrency is not None:
                await sender.run_closed(requests, cell.load.concurrency)
            else:
                await sender.run_open(requests, _offsets(cell, block, requests), cell.max_in_flight)
        self._require_server()

    async def _warm_up(self, arm: Arm) -> None:
        warm_up = WarmUp(self._cell, arm, self._sender, self._require_server)
        try:
            await warm_up.run()
        finally:
            self._note_warm_up(arm, warm_up.result)

    def _note_warm_up(self, arm: Arm, result: WarmUpResult) -> None:
        if result.cold_ttft_ns is not None:
            self._run.cold_ttft_ns.setdefault(arm, result.cold_ttft_ns)
        if result.num_rounds:
            self._run.num_warmup_rounds[arm] = self._run.num_warmup_rounds.get(arm, 0) + result.num_rounds
        if result.num_failed:
            self._run.num_warmup_failed[arm] = self._run.num_warmup_failed.get(arm, 0) + result.num_failed

    def _sender(self, cell: Cell, block: int, arm: Arm, sink: RecordSink) -> BlockSender:
        def make_job(request: CellRequest, history: tuple[str, ...]) -> Job:
            job = _job(cell, block, arm, request, history)
            return replace(job, request=self._arms.request_for(arm, job.request))

        transport = self._arms.transport_of(arm)
        return BlockSender(transport, make_job, sink, self._watch, clock=self._clock, sleep_until=self._sleep_until)

    def _require_server(self) -> None:
        if self._watch.lost is not None:
            raise ServerLostError(self._watch.lost, self._run)


def _job(cell: Cell, block: int, arm: Arm, request: CellRequest, history: tuple[str, ...]) -> Job:
    """What is sent for `request` after the turns in `history`; those are rendered into its prompt."""
    turns = (*history, *request.turns)
    prompt = cell.render_turns(turns) if history and cell.render_turns is not None else request.prompt
    load = cell.load
    load_name = f"c{load.concurrency}" if load.request_rate is None else f"r{load.request_rate:g}"
    return Job(
        label=RequestLabel(cell.segment, load, arm, block, request.prompt_id, request.index),
        request=GenerationRequest(
            prompt=prompt,
            max_tokens=request.max_tokens,
            num_draft_tokens=cell.draft_lens[arm],
            segment=cell.segment,
            ignore_eos=request.ignore_eos,
            # Unique among what is counted in a run, and readable in a server's log.
            request_id=f"{cell.segment}-{load_name}-{arm}-{request.index}",
            turns=turns,
            guide_type=request.guide_type,
            guide=request.guide,
        ),
        expected_input_tokens=request.expected_input_tokens,
    )


def _offsets(cell: Cell, block: Block, requests: Sequence[CellRequest]) -> dict[int, int]:
    """When the requests of a block that follow no other are due, ns after its start, by index: the same in all arms."""
    first_ones = [request for request in requests if request.follows is None]
    if cell.arrivals is not None:
        offsets = plan_offsets(cell.arrivals, cell.segment, cell.load, block.number, len(first_ones))
        return {request.index: offset for request, offset in zip(first_ones, offsets, strict=True)}
    due = {request.index: request.due_ns for request in first_ones if request.due_ns is not None}
    start = min(due.values(), default=0)
    return {index: due_ns - start for index, due_ns in due.items()}
