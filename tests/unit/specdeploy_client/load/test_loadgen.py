"""A cell from warm-up to its last block, in virtual time, with every kind of ending."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

import pytest

from helpers.virtual_time import Clock, VirtualServer, VirtualTimeLoop, run_virtual
from specdeploy.run_contract import Arm, FailureKind, Load, RequestRecord
from specdeploy_client.load.arms import PerRequestSwitch
from specdeploy_client.load.arrivals import ArrivalPattern, Arrivals
from specdeploy_client.load.loadgen import (
    Cell,
    CellRequest,
    CellRun,
    ServerLostError,
    run_cell,
)
from specdeploy_client.load.warm_up import MAX_WARMUP_ROUNDS
from specdeploy_client.transport import (
    GenerationRequest,
    Message,
    RequestRefusedError,
    RequestTimeoutError,
    ServerUnreachableError,
)

START = VirtualTimeLoop.START_NS
ARMS = {Arm.OFF: 0, Arm.ON: 4}


@dataclass
class Measured:
    """A run of one cell and everything around it."""

    server: VirtualServer
    records: list[RequestRecord] = field(default_factory=list)
    run: CellRun = field(default_factory=CellRun)

    def of(self, arm: Arm) -> list[RequestRecord]:
        return [record for record in self.records if record.arm is arm]

    @property
    def warmup(self) -> list[GenerationRequest]:
        return [request for request in self.server.requests if request.segment == "other"]


def _cell(num_requests: int = 20, load: Load = Load(2), num_warmup: int = 2, max_tokens: int = 6) -> Cell:  # noqa: B008
    requests = tuple(CellRequest(i, f"p{i}", f"prompt {i}", max_tokens) for i in range(num_requests + num_warmup))
    arrivals = None if load.request_rate is None else Arrivals(ArrivalPattern.POISSON, seed=0)
    return Cell("chat", load, ARMS, requests[:num_requests], requests[num_requests:], arrivals=arrivals)


def _run(
    cell: Cell,
    make_server: Callable[[Clock], VirtualServer] = VirtualServer,
    on_block_end: Callable[[int], bool] | None = None,
) -> Measured:
    async def main(clock: Clock) -> Measured:
        measured = Measured(make_server(clock))
        switch = PerRequestSwitch(measured.server)
        measured.run = await run_cell(switch, cell, measured.records.append, clock=clock, on_block_end=on_block_end)
        return measured

    return run_virtual(main)


def test_both_arms_of_a_block_get_the_same_requests() -> None:
    measured = _run(_cell())
    of_block = {
        (record.block, arm): sorted(r.index for r in measured.of(arm) if r.block == record.block)
        for record in measured.records
        for arm in ARMS
    }
    blocks = {record.block for record in measured.records}
    assert len(blocks) > 1
    assert all(of_block[block, Arm.OFF] == of_block[block, Arm.ON] for block in blocks)
    assert len({record.request_id for record in measured.records}) == len(measured.records) == 40
    assert measured.run.num_pairs == 20
    assert not measured.run.is_stopped_early


def test_the_on_arm_asks_for_k_and_the_off_arm_for_zero() -> None:
    measured = _run(_cell())
    asked = {request.request_id: request.num_draft_tokens for request in measured.server.requests}
    assert {asked[record.request_id] for record in measured.of(Arm.ON)} == {4}
    assert {asked[record.request_id] for record in measured.of(Arm.OFF)} == {0}
    assert all(record.num_draft_tokens for record in measured.of(Arm.ON))


def test_what_a_request_asks_for_reaches_the_server_and_its_record() -> None:
    request = CellRequest(0, "p0", "a b", 6, ("a b",), 2, "regex", "x+", ignore_eos=True)
    measured = _run(replace(_cell(num_warmup=0), requests=(request,)), lambda clock: VirtualServer(clock, short_by=2))
    sent = measured.server.requests[0]
    assert (sent.prompt, sent.turns, sent.guide_type, sent.guide) == ("a b", ("a b",), "regex", "x+")
    assert (sent.segment, sent.ignore_eos, sent.max_tokens) == ("chat", True, 6)
    record = measured.records[0]
    assert (record.expected_input_tokens, record.max_tokens, record.ignore_eos) == (2, 6, True)
    assert (record.error, record.output_token_count) == (None, 4)  # short: said by the numbers, not a failure


def test_warm_up_is_one_request_alone_then_rounds_that_agree_and_nothing_counts_them() -> None:
    measured = _run(_cell(num_requests=4, load=Load(3), num_warmup=3, max_tokens=40))
    # Per arm one alone and two rounds of three: without noise two rounds take the same time.
    assert [request.num_draft_tokens for request in measured.warmup] == [0] * 7 + [4] * 7
    assert measured.server.requests[:14] == measured.warmup
    assert {request.max_tokens for request in measured.warmup} == {2 * 5 + 1}
    assert len({request.prompt for request in measured.warmup}) == 3
    assert measured.run.num_warmup_rounds == {Arm.OFF: 2, Arm.ON: 2}
    assert {request.segment for request in measured.server.requests[14:]} == {"chat"}
    assert len(measured.records) == 8
    assert min(record.send_ns for record in measured.records) > START


def test_warm_up_goes_on_while_the_server_gets_faster() -> None:
    class Compiling(VirtualServer):
        async def _work(self, duration_s: float) -> None:
            num_before = len(self.requests)
            await super()._work(duration_s * (10.0 if num_before == 1 else 1.0 + 4.0 / num_before))

    measured = _run(_cell(num_requests=2, load=Load(1), num_warmup=1), Compiling)
    assert measured.run.num_warmup_rounds[Arm.OFF] == MAX_WARMUP_ROUNDS
    assert measured.run.num_warmup_rounds[Arm.ON] == 2
    assert measured.run.cold_ttft_ns[Arm.OFF] == 500_000_000
    assert measured.run.cold_ttft_ns[Arm.ON] < 100_000_000


def test_without_warm_up_requests_there_is_none() -> None:
    measured = _run(_cell(num_warmup=0))
    assert measured.warmup == []
    assert (measured.run.cold_ttft_ns, measured.run.num_warmup_rounds) == ({}, {})


def test_a_server_that_refuses_warm_up_is_measured_all_the_same() -> None:
    failures = {f"other-c2-{arm}-{index}": RequestRefusedError("no") for arm in ARMS for index in range(20, 30)}
    measured = _run(_cell(), lambda clock: VirtualServer(clock, failures=failures))
    assert measured.run.cold_ttft_ns == {}
    assert measured.run.num_warmup_rounds == {Arm.OFF: MAX_WARMUP_ROUNDS, Arm.ON: MAX_WARMUP_ROUNDS}
    assert len(measured.records) == 40


def test_counters_can_be_read_between_warm_up_and_measuring() -> None:
    seen: list[int] = []

    async def main(clock: Clock) -> None:
        server = VirtualServer(clock)

        async def read() -> None:
            seen.append(len(server.requests))

        await run_cell(PerRequestSwitch(server), _cell(), lambda record: None, clock=clock, after_warm_up=read)
        seen.append(len(server.requests))

    run_virtual(main)
    assert seen == [10, 50]


def test_a_refused_request_is_recorded_and_the_run_goes_on() -> None:
    failures = {"chat-c2-on-3": RequestRefusedError("text_input: too long")}
    measured = _run(_cell(), lambda clock: VirtualServer(clock, failures=failures))
    (failed,) = [record for record in measured.records if record.error is not None]
    assert (failed.request_id, failed.index, failed.arm) == ("chat-c2-on-3", 3, Arm.ON)
    assert (failed.error, failed.failure) == ("text_input: too long", FailureKind.REFUSED)
    assert failed.num_draft_tokens is None
    assert len(measured.records) == 40


def test_both_arms_of_an_open_loop_are_due_at_the_same_times() -> None:
    measured = _run(_cell(num_requests=60, load=Load(None, 4.0)))

    def offsets(arm: Arm, block: int) -> list[int]:
        due = sorted(record.scheduled_ns for record in measured.of(arm) if record.block == block)
        return [at - due[0] for at in due]

    blocks = {record.block for record in measured.records}
    assert len(blocks) == 2
    assert all(offsets(Arm.OFF, block) == offsets(Arm.ON, block) for block in blocks)
    assert offsets(Arm.OFF, 0) != offsets(Arm.OFF, 1)
    assert all(record.request_rate == 4.0 and record.concurrency is None for record in measured.records)
    assert all(record.send_ns == record.scheduled_ns for record in measured.records)
    assert measured.records[0].request_id.startswith("chat-r4-off-")


def test_a_trace_keeps_its_distances_within_every_block() -> None:
    requests = tuple(replace(r, due_ns=1_000_000_000 * r.index**2) for r in _cell(num_requests=40).requests)
    cell = replace(_cell(), load=Load(None, 1.0), requests=requests)
    measured = _run(cell)
    for arm in ARMS:
        for block in {record.block for record in measured.records}:
            records = sorted((r for r in measured.of(arm) if r.block == block), key=lambda record: record.index)
            first = records[0]
            assert [r.scheduled_ns - first.scheduled_ns for r in records] == [
                1_000_000_000 * (r.index**2 - first.index**2) for r in records
            ]


def test_sessions_stay_in_one_block_and_continue_each_arms_own_answer() -> None:
    requests = tuple(
        CellRequest(i, f"p{i}", f"q{i}", 6, turns=(f"q{i}",), follows=None if i % 3 == 0 else i - 1, think_ns=10**9)
        for i in range(30)
    )
    cell = replace(_cell(), requests=requests, render_turns=" / ".join, load=Load(1))
    measured = _run(cell)
    block_of = {(record.arm, record.index): record.block for record in measured.records}
    assert len(set(block_of.values())) > 1
    assert all(block_of[arm, i] == block_of[arm, i - i % 3] for arm in ARMS for i in range(30))
    sent = {request.request_id: request.prompt for request in measured.server.requests}
    assert sent["chat-c1-on-2"] == "q0 / xxxxxx / q1 / xxxxxx / q2"


def test_the_cell_stops_where_it_is_decided_with_whole_pairs() -> None:
    asked: list[int] = []

    def is_decided(num_pairs: int) -> bool:
        asked.append(num_pairs)
        return num_pairs >= 8

    measured = _run(_cell(num_requests=20, load=Load(1)), on_block_end=is_decided)
    assert asked == [2, 4, 6, 8]
    assert measured.run.is_stopped_early
    assert measured.run.num_pairs == 8
    assert Counter(record.arm for record in measured.records) == {Arm.OFF: 8, Arm.ON: 8}


def test_a_cell_that_is_decided_at_its_end_was_not_stopped_early() -> None:
    assert not _run(_cell(), on_block_end=lambda num_pairs: num_pairs == 20).run.is_stopped_early


@pytest.mark.parametrize("load", [Load(3), Load(None, 10.0)])
def test_a_dead_server_ends_the_run_and_keeps_what_was_measured(load: Load) -> None:
    cell = _cell(num_requests=100, load=load, num_warmup=0)
    records: list[RequestRecord] = []

    async def main(clock: Clock) -> CellRun:
        server = VirtualServer(clock, dies_at_s=2.01)
        with pytest.raises(ServerLostError, match="no server at virtual:1") as lost:
            await run_cell(PerRequestSwitch(server), cell, records.append, clock=clock)
        assert server.in_flight == 0
        assert len(records) == len(server.requests)
        return lost.value.run

    run = run_virtual(main)
    num_lost = sum(record.failure is FailureKind.UNREACHABLE for record in records)
    assert 1 <= num_lost <= 10
    assert run.num_pairs < len(records) < 200
    assert run.client_cpu_share == max(run.client_cpu_shares.values())
    assert run.wake_up_lag_p99_ns is None  # made-up time


def test_a_server_that_dies_while_warming_up_is_lost_too() -> None:
    records: list[RequestRecord] = []

    async def main(clock: Clock) -> None:
        server = VirtualServer(clock, dies_at_s=0.1)
        with pytest.raises(ServerLostError):
            await run_cell(PerRequestSwitch(server), _cell(), records.append, clock=clock)

    run_virtual(main)
    assert records == []


def test_a_server_that_takes_requests_and_says_nothing_ends_the_run() -> None:
    class Mute(VirtualServer):
        async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
            self.requests.append(request)
            await asyncio.sleep(30.0)
            raise RequestTimeoutError("no answer within 30 s")
            yield Message(0, "", ())

    records: list[RequestRecord] = []

    async def main(clock: Clock) -> int:
        with pytest.raises(ServerLostError, match="3 requests in a row without a single message"):
            await run_cell(PerRequestSwitch(Mute(clock)), _cell(load=Load(1)), records.append, clock=clock)
        return clock()

    assert run_virtual(main) - START < 200e9


def test_a_server_that_goes_while_arms_are_switched_is_lost_too() -> None:
    class Going(PerRequestSwitch):
        async def activate(self, arm: Arm) -> bool:
            if len(self.transport.requests) > 30:  # type: ignore[attr-defined]
                raise ServerUnreachableError("no model control at x:1")
            return False

    async def main(clock: Clock) -> CellRun:
        with pytest.raises(ServerLostError, match="no model control at x:1") as lost:
            await run_cell(Going(VirtualServer(clock)), _cell(), lambda record: None, clock=clock)
        return lost.value.run

    assert 0 < run_virtual(main).num_pairs < 20


def test_a_cancelled_run_has_a_record_of_everything_that_was_sent() -> None:
    records: list[RequestRecord] = []

    async def main(clock: Clock) -> None:
        server = VirtualServer(clock)
        cell = _cell(load=Load(4), num_warmup=0)
        task = asyncio.create_task(run_cell(PerRequestSwitch(server), cell, records.append, clock=clock))
        await asyncio.sleep(0.32)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (server.in_flight, len(server.requests)) == (0, len(records))

    run_virtual(main)
    cancelled = [record for record in records if record.failure is FailureKind.CANCELLED]
    assert (len(cancelled), len(records)) == (2, 10)
    assert all(record.end_ns == START + 320_000_000 for record in cancelled)


def test_a_clock_that_goes_backwards_is_a_failure_of_that_request() -> None:
    class Jumping(VirtualServer):
        async def _work(self, duration_s: float) -> None:
            await super()._work(duration_s)
            if len(self.requests) == 5:
                loop = asyncio.get_running_loop()
                assert isinstance(loop, VirtualTimeLoop)
                loop.advance(-60_000_000)

    measured = _run(_cell(num_requests=6, load=Load(1), num_warmup=0), Jumping)
    failures = [record.failure for record in measured.records]
    assert failures.count(FailureKind.CLOCK) == 1
    assert len(failures) == 12


def test_a_known_difference_between_the_arms_is_in_the_records() -> None:
    measured = _run(
        _cell(num_requests=40, load=Load(1), max_tokens=21),
        lambda clock: VirtualServer(clock, acceptance=0.0, on_factor=1.05, prompt_sigma=0.3),
    )
    latency = {(r.arm, r.index): r.end_ns - r.scheduled_ns for r in measured.records}
    ratios = [latency[Arm.ON, index] / latency[Arm.OFF, index] for index in range(40)]
    assert ratios == pytest.approx([1.05] * 40, rel=1e-6)
