"""What happens before an arm of a cell is measured, so that nothing lazy is left for a measured request."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from statistics import median

from specdeploy.contract import OTHER_SEGMENT
from specdeploy.run_contract import Arm, RequestRecord
from specdeploy_client.load.cell import Cell, CellRequest
from specdeploy_client.load.loops import BlockSender
from specdeploy_client.load.ramps import ramp_offsets_ns
from specdeploy_client.load.request_run import RecordSink
from specdeploy_client.metrics import e2e_ns, is_answered, tpot_ns, ttft_ns

MIN_WARMUP_TOKENS = 8
MIN_WARMUP_STEPS = 2
MIN_WARMUP_ROUNDS = 2
MAX_WARMUP_ROUNDS = 3
WARM_TOLERANCE = 0.2  # two rounds whose median latencies differ by less agree

MakeSender = Callable[[Cell, int, Arm, RecordSink], BlockSender]


@dataclass(slots=True)
class WarmUpResult:
    """`cold_ttft_ns`: of the very first request, sent alone; None without an answer. `num_rounds` after it.

    `num_failed` requests have no answer, one that a plainer one replaced left out.
    """

    cold_ttft_ns: int | None = None
    num_rounds: int = 0
    num_failed: int = 0


class WarmUp:
    """Warm-up of one arm: one request alone, the ramp, then rounds at the cell's load until two agree.

    Whatever a server does at its first step (compile, allocate) must not fall on a measured request; a round that
    takes another time than the one before says that it is not done, and so does one without `MIN_WARMUP_STEPS` verify
    steps each. The server counts all of it as segment `other`. `make_sender(cell, round, arm, sink)` makes what sends;
    `check` is asked after everything that was sent and raises where the server is lost.
    """

    def __init__(self, cell: Cell, arm: Arm, make_sender: MakeSender, check: Callable[[], None]) -> None:
        self.result = WarmUpResult()
        self._cell = replace(cell, segment=OTHER_SEGMENT)
        self._arm = arm
        self._make_sender = make_sender
        self._check = check
        self._requests = warmup_requests(cell)

    async def run(self) -> None:
        """All of it, noted in `result`; nothing without warm-up requests."""
        if self._requests:
            concurrency = await self._begin()
            await self._ramp(concurrency)
            await self._rounds(concurrency)

    async def _begin(self) -> int:
        """The request alone; how many are to be under way at once from then on."""
        answers = await self._round(0, 1, 1)
        if not answers:
            # A server may refuse what the workload never asks it for: to go on after the end of text.
            plain = zip(self._requests, self._cell.warmup, strict=True)
            self._requests = tuple(replace(request, ignore_eos=own.ignore_eos) for request, own in plain)
            self.result.num_failed = 0
            answers = await self._round(0, 1, 1)
        if answers:
            self.result.cold_ttft_ns = ttft_ns(answers[0])
        if self._cell.load.concurrency is not None:
            return self._cell.load.concurrency
        # Once more: how long the first one took says nothing of how long later ones will.
        return expected_in_flight(self._cell, await self._round(0, 1, 1))

    async def _ramp(self, concurrency: int) -> None:
        cell = self._cell
        sender = self._make_sender(cell, 0, self._arm, self._count)
        if cell.load.request_rate is None and cell.concurrency_ramp_s > 0:
            await sender.run_ramp(self._endless(), concurrency, round(cell.concurrency_ramp_s * 1e9))
        elif cell.load.request_rate is not None and cell.arrivals is not None and cell.arrivals.ramp_s > 0:
            offsets = ramp_offsets_ns(cell.load.request_rate, cell.arrivals.ramp_s)
            requests = tuple(islice(self._endless(), len(offsets)))
            due = {request.index: offset for request, offset in zip(requests, offsets, strict=True)}
            await sender.run_open(requests, due, cell.max_in_flight)
        self._check()

    async def _rounds(self, concurrency: int) -> None:
        before: float | None = None
        for number in range(1, MAX_WARMUP_ROUNDS + 1):
            answers = await self._round(number, max(concurrency, len(self._requests)), concurrency)
            self.result.num_rounds += 1
            latency = median(e2e_ns(record) or 0 for record in answers) if answers else None
            if not all(_has_stepped(record) for record in answers):
                # It drafts further than it was told to: ask for more.
                self._requests = tuple(replace(r, max_tokens=2 * r.max_tokens) for r in self._requests)
            elif number >= MIN_WARMUP_ROUNDS and _agree(before, latency):
                return
            before = latency

    async def _round(self, number: int, num_requests: int, concurrency: int) -> list[RequestRecord]:
        """The answers; failed ones are only counted."""
        records: list[RequestRecord] = []
        sender = self._make_sender(self._cell, number, self._arm, records.append)
        await sender.run_closed(tuple(islice(self._endless(), num_requests)), concurrency)
        for record in records:
            self._count(record)
        self._check()
        return list(filter(is_answered, records))

    def _count(self, record: RequestRecord) -> None:
        self.result.num_failed += not is_answered(record)

    def _endless(self) -> Iterator[CellRequest]:
        """The requests again and again, each with an index of its own: no two under way have the same name."""
        first = self._requests[0].index
        return (replace(request, index=index) for request, index in zip(cycle(self._requests), count(first)))


def warmup_requests(cell: Cell) -> tuple[CellRequest, ...]:
    """The warm-up requests of `cell` as long as they need to be: the prompt's token and two steps of K + 1 tokens, all
    of them accepted. They go on after the end of text, unless a guide says where the answer ends."""
    longest_step = 1 + max(cell.draft_lens.values())
    max_tokens = max(MIN_WARMUP_TOKENS, MIN_WARMUP_STEPS * longest_step + 1)
    return tuple(
        replace(
            request,
            max_tokens=max_tokens,
            ignore_eos=True if request.guide is None and request.guide_type is None else request.ignore_eos,
            follows=None,
        )
        for request in cell.warmup
    )


def expected_in_flight(cell: Cell, answers: Sequence[RequestRecord]) -> int:
    """Requests of an open loop that will be under way at once: rate * latency, the latter of a measured request's
    length (ttft + tpot * (tokens - 1)) by what `answers` took; at least 1, at most `max_in_flight`."""
    rate, tokens = cell.load.request_rate or 0.0, median(request.max_tokens for request in cell.requests)
    latencies = [(ttft_ns(record) or 0) + (tpot_ns(record) or 0.0) * (tokens - 1) for record in answers]
    expected = math.ceil(rate * median(latencies) / 1e9) if latencies else 1
    return min(max(1, expected), cell.max_in_flight)


def _has_stepped(record: RequestRecord) -> bool:
    return record.num_steps is None or record.num_steps >= MIN_WARMUP_STEPS


def _agree(before: float | None, latency: float | None) -> bool:
    """Whether two rounds took about as long; one without answers agrees with nothing."""
    if before is None or latency is None:
        return False
    return abs(before - latency) <= WARM_TOLERANCE * max(before, latency)
