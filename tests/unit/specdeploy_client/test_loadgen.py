"""The load generator against a transport with settable latencies."""

import asyncio
import time
from itertools import pairwise

import pytest

from specdeploy.errors import ClientError
from specdeploy.run_contract import Arm, RequestRecord
from specdeploy_client.arrivals import plan_blocks
from specdeploy_client.loadgen import WARMUP_MAX_TOKENS, Cell, CellRequest, LoopLagProbe, run_cell
from specdeploy_client.transport import ServerUnreachableError
from unit.specdeploy_client.fabricate import MockTransport

OFF_AND_ON = (Arm.OFF, Arm.ON)


def _cell(num_requests: int = 20, concurrency: int = 2, num_warmup: int = 2) -> Cell:
    requests = tuple(CellRequest(i, f"p{i}", f"prompt {i}", 6) for i in range(num_requests + num_warmup))
    return Cell("chat", concurrency, {Arm.OFF: 0, Arm.ON: 4}, requests[:num_requests], requests[num_requests:])


def _run(transport: MockTransport, cell: Cell) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    asyncio.run(run_cell(transport, cell, records.append))
    return records


@pytest.mark.parametrize(("num_requests", "concurrency"), [(20, 1), (20, 4), (100, 8), (7, 3), (1, 1), (33, 2)])
def test_blocks_hold_every_request_once_per_arm_and_alternate(num_requests: int, concurrency: int) -> None:
    blocks = plan_blocks(num_requests, concurrency, OFF_AND_ON)
    for arm in OFF_AND_ON:
        indices = [
            block.first_index + offset for block in blocks if block.arm is arm for offset in range(block.num_requests)
        ]
        assert indices == list(range(num_requests))
    firsts = [blocks[position].arm for position in range(0, len(blocks), 2)]
    assert all(earlier is not later for earlier, later in pairwise(firsts))
    assert len(firsts) % 2 == 0 or len(firsts) == 1
    if len(firsts) > 1:
        assert min(block.num_requests for block in blocks) >= 2 * concurrency


def test_both_arms_of_a_block_get_the_same_prompts() -> None:
    records = _run(MockTransport(), _cell())
    prompts = {
        (record.block, arm): sorted(r.prompt_id for r in records if r.block == record.block and r.arm is arm)
        for record in records
        for arm in OFF_AND_ON
    }
    blocks = {record.block for record in records}
    assert len(blocks) > 1
    assert all(prompts[block, Arm.OFF] == prompts[block, Arm.ON] for block in blocks)
    assert len(records) == len({record.request_id for record in records}) == 40


def test_the_on_arm_asks_for_k_and_the_off_arm_for_zero() -> None:
    transport = MockTransport()
    records = _run(transport, _cell(num_warmup=0))
    asked = {request.request_id: request.num_draft_tokens for request in transport.requests}
    assert {asked[r.request_id] for r in records if r.arm is Arm.ON} == {4}
    assert {asked[r.request_id] for r in records if r.arm is Arm.OFF} == {0}


def test_warm_up_is_short_first_labelled_other_and_not_counted() -> None:
    transport = MockTransport()
    records = _run(transport, _cell(num_requests=4, concurrency=1, num_warmup=3))
    warmup = transport.requests[:6]
    assert {request.segment for request in warmup} == {"other"}
    assert [request.num_draft_tokens for request in warmup] == [0, 0, 0, 4, 4, 4]
    assert all(request.max_tokens <= WARMUP_MAX_TOKENS for request in warmup)
    assert {request.segment for request in transport.requests[6:]} == {"chat"}
    assert len(records) == 8


def test_concurrency_is_reached_and_never_exceeded() -> None:
    transport = MockTransport()
    _run(transport, _cell(concurrency=3))
    assert transport.max_in_flight == 3
    assert transport.in_flight == 0


def test_records_keep_what_arrived() -> None:
    transport = MockTransport(ttft_s=0.01, gap_s=0.002, num_tokens=5, tokens_on=2)
    on = next(r for r in _run(transport, _cell(num_requests=2, concurrency=1)) if r.arm is Arm.ON)
    assert on.message_tokens == (2, 2, 1)
    assert on.output_ids == (0, 1, 2, 3, 4)
    assert on.text == "xxxxx"
    assert (on.num_steps, on.num_draft_tokens, on.num_accepted_tokens, on.output_token_count) == (3, 12, 2, 5)
    assert on.message_ns[0] - on.send_ns >= 10_000_000
    assert on.end_ns == on.message_ns[-1]


def test_a_refused_request_is_recorded_and_the_run_goes_on() -> None:
    transport = MockTransport(refuse=frozenset({"chat-c2-on-3"}))
    records = _run(transport, _cell())
    (failed,) = [record for record in records if record.error is not None]
    assert (failed.request_id, failed.error) == ("chat-c2-on-3", "text_input: too long")
    assert failed.num_draft_tokens is None
    assert len(records) == 40


def test_a_dead_server_ends_the_run_and_keeps_what_was_measured() -> None:
    transport = MockTransport(die_after=15, death=ServerUnreachableError("no server at x:1"))
    records: list[RequestRecord] = []
    with pytest.raises(ClientError, match="no server at x:1"):
        asyncio.run(run_cell(transport, _cell(concurrency=3, num_warmup=0), records.append))
    assert 10 <= len(records) <= 15
    assert transport.in_flight == 0  # the other workers' streams were closed


def test_the_lag_probe_sees_a_blocked_loop() -> None:
    async def block() -> LoopLagProbe:
        async with LoopLagProbe() as probe:
            await asyncio.sleep(0.001)
            time.sleep(0.08)  # blocking the loop is the point
            await asyncio.sleep(0.001)
        return probe

    probe = asyncio.run(block())
    assert max(probe.lags_ns) > 40_000_000
