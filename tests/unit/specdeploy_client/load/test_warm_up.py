"""What an arm goes through before it is measured: long enough, at the cell's load, over a ramp."""

from dataclasses import replace
from itertools import pairwise

import pytest

from helpers.virtual_time import Clock, VirtualServer, run_virtual
from specdeploy.run_contract import Arm, Load, RequestRecord
from specdeploy_client.load.arms import PerRequestSwitch
from specdeploy_client.load.arrivals import ArrivalPattern, Arrivals
from specdeploy_client.load.cell import Cell, CellRequest
from specdeploy_client.load.loadgen import run_cell
from specdeploy_client.load.warm_up import expected_in_flight, warmup_requests
from specdeploy_client.metrics import e2e_ns
from specdeploy_client.transport import GenerationRequest, RequestRefusedError
from unit.specdeploy_client.fabricate import make_record

ARMS = {Arm.OFF: 0, Arm.ON: 4}


def _cell(load: Load, num_warmup: int, num_requests: int = 40, max_tokens: int = 20, draft_len: int = 4) -> Cell:
    requests = tuple(CellRequest(i, f"p{i}", f"prompt {i}", max_tokens) for i in range(num_requests + num_warmup))
    arrivals = None if load.request_rate is None else Arrivals(ArrivalPattern.CONSTANT, seed=0)
    arms = {Arm.OFF: 0, Arm.ON: draft_len}
    return Cell("chat", load, arms, requests[:num_requests], requests[num_requests:], arrivals=arrivals)


class Watched(VirtualServer):
    """Notes how many requests of each kind were under way at once, and that no two of them had the same name."""

    def watch(self) -> None:
        self.most = {"other": 0, "chat": 0}
        self.names: list[str] = []

    async def stream(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
        assert request.request_id not in self.names
        self.names.append(request.request_id)
        segment = request.segment or ""
        self.most[segment] = max(self.most[segment], self.in_flight + 1)
        try:
            async for message in super().stream(request):
                yield message
        finally:
            self.names.remove(request.request_id)


def _run(cell: Cell, **behaviour: object) -> tuple[Watched, list[RequestRecord]]:
    records: list[RequestRecord] = []

    async def main(clock: Clock) -> Watched:
        server = Watched(clock, **behaviour)  # type: ignore[arg-type]
        server.watch()
        await run_cell(PerRequestSwitch(server), cell, records.append, clock=clock)
        return server

    return run_virtual(main), records


@pytest.mark.parametrize("draft_len", [0, 1, 4, 15])
def test_answers_hold_two_steps_even_if_every_draft_token_is_accepted(draft_len: int) -> None:
    cell = _cell(Load(1), 1, max_tokens=2, draft_len=draft_len)
    (request,) = warmup_requests(cell)
    assert request.max_tokens == max(8, 2 * (draft_len + 1) + 1)
    assert request.ignore_eos is True
    steps: list[int] = []

    class Counting(VirtualServer):
        async def stream(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
            async for message in super().stream(request):
                if message.completion is not None and request.segment == "other":
                    steps.append(message.completion.num_steps or 0)
                yield message

    async def main(clock: Clock) -> None:
        server = Counting(clock, acceptance=1.0)
        await run_cell(PerRequestSwitch(server), cell, lambda record: None, clock=clock)

    run_virtual(main)
    assert min(steps) >= 2


def test_a_guide_says_where_its_answer_ends() -> None:
    cell = _cell(Load(1), 1)
    guided = replace(cell.warmup[0], guide_type="regex", guide="x+")
    assert [request.ignore_eos for request in warmup_requests(replace(cell, warmup=(guided,)))] == [None]


def test_a_server_that_drafts_further_than_told_is_asked_for_more() -> None:
    class Deep(VirtualServer):
        def _num_accepted(self, rng: object, draft_len: int) -> int:
            return 19

    sizes: list[int] = []

    async def main(clock: Clock) -> None:
        server = Deep(clock)
        await run_cell(PerRequestSwitch(server), _cell(Load(1), 1, 2), lambda record: None, clock=clock)
        sizes.extend(request.max_tokens for request in server.requests if request.segment == "other")

    run_virtual(main)
    assert sizes == [11, 11, 22, 22] * 2  # 1 + 20 + 1 tokens: two steps


@pytest.mark.parametrize("num_warmup", [1, 3, 8])
def test_rounds_run_at_the_concurrency_of_the_cell_whatever_the_number_of_prompts(num_warmup: int) -> None:
    server, _ = _run(_cell(Load(8), num_warmup))
    assert server.most == {"other": 8, "chat": 8}


def test_rounds_of_an_open_loop_run_at_what_its_rate_will_keep_under_way() -> None:
    cell = _cell(Load(None, 10.0), 1, max_tokens=50)
    server, records = _run(cell)
    # The off arm takes 50 + 49 * 20 ms; ten a second of them are eleven at once.
    assert {e2e_ns(record) for record in records if record.arm is Arm.OFF} == {1_030_000_000}
    assert server.most["other"] == server.most["chat"] == 11


def test_how_many_an_open_loop_keeps_under_way() -> None:
    cell = _cell(Load(None, 4.0), 1, max_tokens=101)
    answers = [make_record((100, 110, 120))]  # 10 ms a token: 1.1 s for 101 of them
    assert expected_in_flight(cell, answers) == 5
    assert expected_in_flight(replace(cell, max_in_flight=3), answers) == 3
    assert expected_in_flight(cell, []) == 1


def test_a_server_that_knows_no_answers_beyond_their_end_is_asked_without() -> None:
    asked: list[bool | None] = []

    class Strict(VirtualServer):
        async def stream(self, request: GenerationRequest):  # type: ignore[no-untyped-def]
            asked.append(request.ignore_eos)
            if request.ignore_eos:
                raise RequestRefusedError("no field ignore_eos")
            async for message in super().stream(request):
                yield message

    async def main(clock: Clock) -> None:
        run = await run_cell(PerRequestSwitch(Strict(clock)), _cell(Load(1), 1, 2), lambda record: None, clock=clock)
        assert run.cold_ttft_ns == {Arm.OFF: 50_000_000, Arm.ON: 50_000_000}

    run_virtual(main)
    assert asked.count(True) == 2


def test_workers_are_ramped_in_while_warming_up_and_what_is_measured_has_them_all() -> None:
    server, records = _run(replace(_cell(Load(8), 8, num_requests=160), concurrency_ramp_s=30.0))
    for record in records:
        at_once = sum(
            other.send_ns <= record.send_ns < other.end_ns
            for other in records
            if (other.block, other.arm) == (record.block, record.arm)
        )
        assert at_once == 8
    assert server.most["other"] == 8
    assert min(record.send_ns for record in records) > 60e9  # both arms went through it


def test_a_rate_is_ramped_in_while_warming_up() -> None:
    cell = _cell(Load(None, 10.0), 1)
    cell = replace(cell, arrivals=Arrivals(ArrivalPattern.CONSTANT, seed=0, ramp_s=30.0))
    server, records = _run(cell)
    plain, _ = _run(_cell(Load(None, 10.0), 1))
    num_warmup = [sum(request.segment == "other" for request in one.requests) for one in (server, plain)]
    assert num_warmup[0] - num_warmup[1] == 2 * 150
    blocks = {(record.arm, record.block) for record in records}
    for arm, block in blocks:
        due = sorted(record.scheduled_ns for record in records if (record.arm, record.block) == (arm, block))
        assert {later - earlier for earlier, later in pairwise(due)} == {100_000_000}
