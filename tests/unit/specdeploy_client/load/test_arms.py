"""How arms are told apart, alone and in a run."""

import httpx

from helpers.fake_model_repository import FakeTriton
from helpers.virtual_time import Clock, VirtualServer, run_virtual
from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm, Load, RequestRecord
from specdeploy_client.load.arms import ArmSwitch, ModelControlSwitch, PerRequestSwitch, TwoEndpoints
from specdeploy_client.load.arrivals import MAX_BLOCKS
from specdeploy_client.load.loadgen import Cell, CellRequest, run_cell
from specdeploy_client.transport import GenerationRequest

REQUEST = GenerationRequest("p", 5, num_draft_tokens=4)


def _cell() -> Cell:
    requests = tuple(CellRequest(i, f"p{i}", f"prompt {i}", 6) for i in range(42))
    arms = {Arm.OFF: 0, Arm.ON: 4}
    return Cell("chat", Load(1), arms, requests[:40], requests[40:])


def test_one_server_is_told_with_every_request() -> None:
    server = VirtualServer(lambda: 0)
    switch = PerRequestSwitch(server)
    assert all(switch.transport_of(arm) is server for arm in Arm)
    assert switch.request_for(Arm.ON, REQUEST) == REQUEST
    assert switch.describe() == "per request"
    assert switch.max_blocks == MAX_BLOCKS


def test_two_endpoints_are_not_told_how_much_to_draft() -> None:
    off, on = VirtualServer(lambda: 0), VirtualServer(lambda: 0)
    switch = TwoEndpoints(off, on, "http://a:1", "http://b:1")
    assert [switch.transport_of(arm) for arm in (Arm.OFF, Arm.ON, Arm.FLOOR)] == [off, on, off]
    assert switch.request_for(Arm.ON, REQUEST).num_draft_tokens is None
    assert switch.describe() == "two endpoints: off http://a:1, on http://b:1"


def test_both_endpoints_get_the_same_prompts_in_turn() -> None:
    async def main(clock: Clock) -> tuple[list[RequestRecord], VirtualServer, VirtualServer]:
        records: list[RequestRecord] = []
        off, on = VirtualServer(clock), VirtualServer(clock, default_draft_len=3)
        switch: ArmSwitch = TwoEndpoints(off, on, "a", "b")
        await run_cell(switch, _cell(), records.append, clock=clock)
        return records, off, on

    records, off, on = run_virtual(main)
    assert [request.prompt for request in off.requests] == [request.prompt for request in on.requests]
    assert {record.speculation for record in records if record.arm is Arm.ON} == {"on"}
    assert {record.num_draft_tokens for record in records if record.arm is Arm.OFF} == {0}


def test_models_are_swapped_between_blocks_warmed_up_and_never_while_measuring() -> None:
    triton = FakeTriton({"llm": "READY", "draft": "READY", "llm_plain": None, "target": "READY"})

    async def main(clock: Clock) -> tuple[list[RequestRecord], list[VirtualServer]]:
        records: list[RequestRecord] = []
        off, on = VirtualServer(clock), VirtualServer(clock, default_draft_len=3)
        models = {Arm.OFF: ("target", "llm_plain"), Arm.ON: ("target", "draft", "llm")}
        async with httpx.AsyncClient(transport=httpx.MockTransport(triton.answer)) as http:
            switch: ArmSwitch = ModelControlSwitch({Arm.OFF: off, Arm.ON: on}, models, "http://triton:8000", http=http)
            assert switch.transport_of(Arm.FLOOR) is off
            assert switch.describe() == "model control: off target, llm_plain; on target, draft, llm"
            await run_cell(switch, _cell(), records.append, clock=clock)
        return records, [off, on]

    records, servers = run_virtual(main)
    # Blocks: off on | on off | off on | on off, after a warm-up of on and then of off. `target` belongs to both.
    to_off = ["unload llm", "unload draft", "load llm_plain"]
    to_on = ["unload llm_plain", "load draft", "load llm"]
    assert triton.calls == [*to_off, *to_on, *to_off, *to_on, *to_off]
    assert len({record.block for record in records}) == 4
    assert len(records) == 80
    assert {request.num_draft_tokens for server in servers for request in server.requests} == {None}
    for server in servers:
        # After every swap to it a server is warmed up: one request alone, and two rounds of two.
        assert [request.segment for request in server.requests].count("other") == 3 * 5


def test_a_swap_that_failed_is_tried_again() -> None:
    triton = FakeTriton({"a": None, "b": None}, broken=frozenset({"b"}))

    async def main(clock: Clock) -> list[bool | str]:
        server = VirtualServer(clock)
        fresh: list[bool | str] = []
        async with httpx.AsyncClient(transport=httpx.MockTransport(triton.answer)) as http:
            models = {Arm.OFF: ("a",), Arm.ON: ("b",)}
            switch = ModelControlSwitch({Arm.OFF: server, Arm.ON: server}, models, "http://triton:8000", http=http)
            for arm in (Arm.OFF, Arm.FLOOR, Arm.ON, Arm.OFF):
                try:
                    fresh.append(await switch.activate(arm))
                except ClientError as error:
                    fresh.append(str(error)[:28])
        return fresh

    assert run_virtual(main) == [True, False, "http://triton:8000: model b:", True]
    assert triton.calls == ["load a", "unload a", "load b", "load a"]
