"""Closed and open loops in virtual time: when requests leave, and what happens when the server or the client goes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from helpers.virtual_time import Clock, VirtualServer, VirtualTimeLoop, closed_stream, run_virtual
from specdeploy.run_contract import Arm, FailureKind, Load, RequestRecord
from specdeploy_client.load.cell import CellRequest
from specdeploy_client.load.loops import LOSS_GRACE_S, BlockSender
from specdeploy_client.load.precise_timer import open_timer
from specdeploy_client.load.request_run import Job, RequestLabel
from specdeploy_client.load.server_watch import ServerWatch
from specdeploy_client.transport import GenerationRequest, RequestRefusedError, ServerUnreachableError

START = VirtualTimeLoop.START_NS
MS = 1_000_000
ANSWER_MS = 50 + 9 * 20  # ten tokens from a VirtualServer without noise


@dataclass
class Rig:
    """A server, the sender in front of it, and the records that came out."""

    server: VirtualServer
    sender: BlockSender
    watch: ServerWatch
    records: list[RequestRecord] = field(default_factory=list)

    @property
    def sent_ms(self) -> list[float]:
        return sorted((record.send_ns - START) / MS for record in self.records)

    def of(self, index: int) -> RequestRecord:
        (record,) = (record for record in self.records if record.index == index)
        return record


def _requests(number: int) -> tuple[CellRequest, ...]:
    return tuple(CellRequest(index, f"p{index}", f"prompt {index}", 10) for index in range(number))


def _job(request: CellRequest, history: tuple[str, ...]) -> Job:
    turns = (*history, *request.turns)
    prompt = "|".join(turns) if history else request.prompt
    sent = GenerationRequest(prompt, request.max_tokens, 0, request_id=f"r{request.index}", turns=turns)
    return Job(RequestLabel("chat", Load(1), Arm.OFF, 0, request.prompt_id, request.index), sent)


def _run(main: Callable[[Rig], Awaitable[None]], make_server: Callable[[Clock], VirtualServer] = VirtualServer) -> Rig:
    async def start(clock: Clock) -> Rig:
        server = make_server(clock)
        records: list[RequestRecord] = []
        with open_timer(clock) as sleep_until:
            watch = ServerWatch()
            sender = BlockSender(server, _job, records.append, watch, clock=clock, sleep_until=sleep_until)
            rig = Rig(server, sender, watch, records)
            await main(rig)
        return rig

    return run_virtual(start)


def test_a_worker_sends_when_its_last_answer_is_there() -> None:
    rig = _run(lambda rig: rig.sender.run_closed(_requests(6), 2))
    assert rig.sent_ms == [0, 0, ANSWER_MS, ANSWER_MS, 2 * ANSWER_MS, 2 * ANSWER_MS]
    assert all(record.scheduled_ns == record.send_ns for record in rig.records)
    assert rig.server.max_in_flight == 2
    assert (rig.watch.lost, rig.server.in_flight) == (None, 0)


def test_workers_start_one_by_one_over_the_ramp() -> None:
    rig = _run(lambda rig: rig.sender.run_ramp(iter(_requests(99)), 3, 400 * MS))
    # Each goes on until the ramp is over; then all are at work and nothing more is begun.
    assert rig.sent_ms == [0, 200, 230, 400]


def test_workers_that_fail_on_the_ramp_stop() -> None:
    failures = {f"r{index}": RequestRefusedError("no") for index in range(99)}
    rig = _run(
        lambda rig: rig.sender.run_ramp(iter(_requests(99)), 3, 400 * MS),
        lambda clock: VirtualServer(clock, failures=failures),
    )
    assert rig.sent_ms == [0, 200, 400]


def test_workers_for_whom_nothing_is_left_end() -> None:
    ended: list[int] = []

    async def main(rig: Rig) -> None:
        await rig.sender.run_closed(_requests(1), 8)
        ended.append(rig.server.clock())

    _run(main)
    assert ended == [START + ANSWER_MS * MS]


@pytest.mark.parametrize("is_lost", [False, True])
def test_requests_that_were_due_and_never_got_a_place_have_their_record(is_lost: bool) -> None:
    failures = {"r0": ServerUnreachableError("gone")} if is_lost else {}

    async def main(rig: Rig) -> None:
        offsets = {index: index * 12 * MS for index in range(30)}
        task = asyncio.create_task(rig.sender.run_open(_requests(30), offsets, 2))
        if not is_lost:
            await asyncio.sleep(0.105)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    rig = _run(main, lambda clock: VirtualServer(clock, failures=failures))
    # Due until 50 ms (the server goes with the first token) or 105 ms, and two of them sent.
    num_due = 5 if is_lost else 9
    waited = [record for record in rig.records if record.error is not None and record.error.startswith("not sent: ")]
    assert sorted(record.index for record in rig.records) == list(range(num_due))
    assert sorted(record.index for record in waited) == list(range(2, num_due))
    assert {record.failure for record in waited} == {FailureKind.UNREACHABLE if is_lost else FailureKind.CANCELLED}
    assert all(record.scheduled_ns == START + record.index * 12 * MS for record in waited)
    assert len(rig.server.requests) == 2


def test_an_open_loop_sends_on_time_whatever_the_server_does() -> None:
    offsets = {index: index * 100 * MS for index in range(10)}

    def stalling(clock: Clock) -> VirtualServer:
        return VirtualServer(clock, stalls=((0.25, 1.0),))

    rig = _run(lambda rig: rig.sender.run_open(_requests(10), offsets, 64), stalling)
    assert rig.sent_ms == [index * 100 for index in range(10)]
    assert all(record.send_ns == record.scheduled_ns for record in rig.records)
    # Those sent during the second in which nothing moved show what was left of it: no coordinated omission.
    waits = [(rig.of(index).message_ns[0] - rig.of(index).scheduled_ns) / MS for index in range(10)]
    assert waits == [50, 50, 50, 1000, 900, 800, 700, 600, 500, 400]
    assert rig.of(2).end_ns - rig.of(2).scheduled_ns == (ANSWER_MS + 1000) * MS


def test_a_closed_loop_hides_the_same_stall_behind_one_request() -> None:
    rig = _run(
        lambda rig: rig.sender.run_closed(_requests(10), 1), lambda clock: VirtualServer(clock, stalls=((0.25, 1.0),))
    )
    late = [record for record in rig.records if record.end_ns - record.scheduled_ns > ANSWER_MS * MS]
    assert len(late) == 1


def test_requests_beyond_the_limit_are_late_and_say_so() -> None:
    offsets = {index: index * 10 * MS for index in range(6)}
    rig = _run(lambda rig: rig.sender.run_open(_requests(6), offsets, 2))
    assert rig.server.max_in_flight == 2
    lags = [(rig.of(index).send_ns - rig.of(index).scheduled_ns) / MS for index in range(6)]
    assert lags == [0, 0, 210, 210, 420, 420]
    assert [(rig.of(index).scheduled_ns - START) / MS for index in range(6)] == [0, 10, 20, 30, 40, 50]


def test_an_open_loop_sorts_requests_by_their_time() -> None:
    rig = _run(lambda rig: rig.sender.run_open(_requests(3), {0: 30 * MS, 1: 0, 2: 10 * MS}, 9))
    assert [request.request_id for request in rig.server.requests] == ["r1", "r2", "r0"]


def _session(think_ns: int, turns: int = 3) -> tuple[CellRequest, ...]:
    return tuple(
        CellRequest(
            index,
            f"s{index}",
            "q0",
            2,
            turns=(f"q{index}",),
            follows=index - 1 if index else None,
            think_ns=think_ns if index else 0,
        )
        for index in range(turns)
    )


def test_the_next_turn_is_sent_after_the_user_thought_and_continues_the_own_answer() -> None:
    rig = _run(lambda rig: rig.sender.run_closed(_session(500 * MS), 1))
    answer_ms = 50 + 20
    assert rig.sent_ms == [0, answer_ms + 500, 2 * (answer_ms + 500)]
    assert [request.prompt for request in rig.server.requests] == ["q0", "q0|xx|q1", "q0|xx|q1|xx|q2"]
    assert rig.server.requests[2].turns == ("q0", "xx", "q1", "xx", "q2")
    assert rig.of(1).scheduled_ns == rig.of(0).end_ns + 500 * MS


def test_a_user_who_does_not_think_goes_on_at_once() -> None:
    rig = _run(lambda rig: rig.sender.run_open(_session(0), {0: 5 * MS}, 9))
    assert rig.sent_ms == [5, 75, 145]


def test_another_session_is_sent_while_a_user_of_an_open_loop_thinks() -> None:
    other = CellRequest(9, "p9", "alone", 2)
    rig = _run(lambda rig: rig.sender.run_open((*_session(500 * MS, 2), other), {0: 0, 9: 100 * MS}, 1))
    assert [request.request_id for request in rig.server.requests] == ["r0", "r9", "r1"]
    assert all(record.send_ns == record.scheduled_ns for record in rig.records)


def test_a_turn_whose_predecessor_has_no_answer_is_recorded_unsent() -> None:
    failures = {"r1": RequestRefusedError("too long")}
    rig = _run(
        lambda rig: rig.sender.run_closed(_session(MS, 4), 1), lambda clock: VirtualServer(clock, failures=failures)
    )
    assert [record.failure for record in rig.records] == [None, *[FailureKind.REFUSED] * 3]
    assert rig.of(2).error == "not sent: request 1, which it continues, has no answer (too long)"
    assert len(rig.server.requests) == 2
    recorded = (_requests(1)[0], CellRequest(1, "p1", "whole", 2, turns=("q", "a", "q"), follows=0))
    rig = _run(
        lambda rig: rig.sender.run_closed(recorded, 1),
        lambda clock: VirtualServer(clock, failures={"r0": RequestRefusedError("too long")}),
    )
    assert rig.of(1).error is None  # its history is not what this arm answered
    assert rig.server.requests[1].prompt == "whole"


def test_failed_requests_do_not_end_the_others() -> None:
    failures = {"r1": RequestRefusedError("too long"), "r2": closed_stream()}
    rig = _run(
        lambda rig: rig.sender.run_closed(_requests(6), 2), lambda clock: VirtualServer(clock, failures=failures)
    )
    assert len(rig.records) == 6
    assert [rig.of(index).failure for index in (1, 2)] == [FailureKind.REFUSED, FailureKind.STREAM_CLOSED]
    assert rig.watch.lost is None


@pytest.mark.parametrize("is_open", [False, True])
def test_a_dead_server_ends_the_sending_and_everything_under_way_has_its_record(is_open: bool) -> None:
    def main(rig: Rig) -> Awaitable[None]:
        if is_open:
            return rig.sender.run_open(_requests(100), {index: index * 40 * MS for index in range(100)}, 64)
        return rig.sender.run_closed(_requests(100), 5)

    rig = _run(main, lambda clock: VirtualServer(clock, dies_at_s=0.5))
    assert rig.watch.lost == "no server at virtual:1"
    assert len(rig.records) == len(rig.server.requests) < 20
    assert {record.failure for record in rig.records} == {None, FailureKind.UNREACHABLE}
    assert all(record.send_ns < START + 560 * MS for record in rig.records)
    assert rig.server.in_flight == 0


def test_what_is_under_way_when_one_connection_breaks_may_finish_within_the_grace() -> None:
    failures = {"r0": ServerUnreachableError("connection reset")}
    requests = tuple(CellRequest(i, f"p{i}", f"prompt {i}", (10, 10, 1000)[i % 3]) for i in range(30))
    rig = _run(lambda rig: rig.sender.run_closed(requests, 3), lambda clock: VirtualServer(clock, failures=failures))
    assert [rig.of(index).failure for index in range(3)] == [FailureKind.UNREACHABLE, None, FailureKind.UNREACHABLE]
    assert rig.of(2).error == "ended with the server: connection reset"
    assert rig.of(2).end_ns == START + round((0.05 + LOSS_GRACE_S) * 1e9)
    assert (len(rig.records), rig.server.num_cancelled, rig.server.in_flight) == (3, 2, 0)


def test_waiting_users_do_not_hold_up_the_end() -> None:
    failures = {"r1": ServerUnreachableError("gone")}
    hour_ns = 3600 * 1000 * MS
    first = CellRequest(0, "s0", "q0", 2, turns=("q0",))
    after_an_hour = CellRequest(2, "s2", "q0", 2, turns=("q2",), follows=0, think_ns=hour_ns)
    requests = (first, CellRequest(1, "p1", "x", 2), after_an_hour, CellRequest(5, "p5", "p", 3))
    ended: list[int] = []

    async def main(rig: Rig) -> None:
        await rig.sender.run_open(requests, {0: 0, 1: 100 * MS, 5: hour_ns}, 9)
        ended.append(rig.server.clock())

    rig = _run(main, lambda clock: VirtualServer(clock, failures=failures))
    assert ended == [START + 150 * MS]
    assert sorted(record.index for record in rig.records) == [0, 1]


@pytest.mark.parametrize("is_open", [False, True])
def test_a_cancelled_run_closes_its_streams_and_records_them(is_open: bool) -> None:
    async def main(rig: Rig) -> None:
        offsets = {index: index * MS for index in range(50)}
        sending = (
            rig.sender.run_open(_requests(50), offsets, 64) if is_open else rig.sender.run_closed(_requests(50), 4)
        )
        task = asyncio.create_task(sending)
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    rig = _run(main)
    cancelled = [record for record in rig.records if record.failure is FailureKind.CANCELLED]
    assert len(rig.records) == len(rig.server.requests)
    assert (len(cancelled), rig.server.in_flight) == (50 if is_open else 4, 0)
    assert {record.failure for record in rig.records} <= {None, FailureKind.CANCELLED}


def test_a_bug_in_one_task_ends_all_and_is_raised() -> None:
    async def main(rig: Rig) -> None:
        def full_disk(record: RequestRecord) -> None:
            raise OSError(28, "No space left on device")

        rig.sender._sink = full_disk
        with pytest.raises(OSError, match="No space left"):
            await rig.sender.run_closed(_requests(50), 4)

    rig = _run(main)
    assert (len(rig.server.requests), rig.server.in_flight) == (4, 0)


def test_queueing_for_a_row_shows_in_the_first_message() -> None:
    rig = _run(lambda rig: rig.sender.run_closed(_requests(4), 2), lambda clock: VirtualServer(clock, max_rows=1))
    firsts = sorted((record.message_ns[0] - START) / MS for record in rig.records)
    assert firsts == [50 + number * ANSWER_MS for number in range(4)]
    assert all(later > earlier for earlier, later in pairwise(firsts))
