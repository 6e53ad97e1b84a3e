"""The same over sockets and the real clock, against the mock server: the transports and the load generator fit."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from helpers.mock_llm_server import MockBehaviour, MockFailure, MockLlmServer
from specdeploy.run_contract import Arm, FailureKind, Load, RequestRecord
from specdeploy_client.load.arms import PerRequestSwitch
from specdeploy_client.load.arrivals import ArrivalPattern, Arrivals
from specdeploy_client.load.loadgen import Cell, CellRequest, CellRun, ServerLostError, run_cell
from specdeploy_client.transports.endpoint import EndpointKind, open_transport, parse_endpoint

MS = 1_000_000
BEHAVIOUR = MockBehaviour(first_message_s=0.01, step_s=0.005, accepted_per_step=(1,))


def _cell(load: Load) -> Cell:
    requests = tuple(CellRequest(i, f"p{i}", f"prompt {i}", 5) for i in range(22))
    arrivals = None if load.request_rate is None else Arrivals(ArrivalPattern.CONSTANT, seed=0)
    return Cell("chat", load, {Arm.OFF: 0, Arm.ON: 4}, requests[:20], requests[20:], arrivals=arrivals)


def _measure(kind: EndpointKind, load: Load, sink: Callable[[MockLlmServer, RequestRecord], None]) -> CellRun:
    async def main() -> CellRun:
        async with MockLlmServer(BEHAVIOUR) as server:
            url = server.grpc_url if kind is EndpointKind.TRITON_GRPC else server.http_url
            async with open_transport(parse_endpoint(url, kind), 5.0) as transport:
                switch = PerRequestSwitch(transport)
                return await run_cell(switch, _cell(load), lambda record: sink(server, record))

    return asyncio.run(main())


@pytest.mark.parametrize("kind", [EndpointKind.TRITON_GRPC, EndpointKind.TRITON_HTTP])
@pytest.mark.parametrize("load", [Load(4), Load(None, 100.0)])
def test_what_the_server_does_is_what_the_records_say(kind: EndpointKind, load: Load) -> None:
    records: list[RequestRecord] = []
    run = _measure(kind, load, lambda server, record: records.append(record))
    assert len(records) == 40
    assert all(record.error is None and record.output_token_count == 5 for record in records)
    for record in records:
        assert record.scheduled_ns <= record.send_ns
        # Never earlier than the mock sends; how much later is the machine's business.
        assert record.message_ns[0] - record.send_ns >= 10 * MS
        assert record.message_tokens == ((1, 1, 1, 1, 1) if record.arm is Arm.OFF else (2, 2, 1))
    assert (run.num_pairs, set(run.cold_ttft_ns)) == (20, {Arm.OFF, Arm.ON})
    assert run.client_cpu_share is not None
    assert run.wake_up_lag_p99_ns is not None


def test_a_server_that_dies_in_the_middle_leaves_records_of_all_that_was_sent() -> None:
    records: list[RequestRecord] = []

    def sink(server: MockLlmServer, record: RequestRecord) -> None:
        records.append(record)
        if len(records) == 15:
            server.behaviour = replace(server.behaviour, failure=MockFailure.DIE)

    with pytest.raises(ServerLostError):
        _measure(EndpointKind.TRITON_GRPC, Load(4), sink)
    failures = [record.failure for record in records]
    assert 15 < len(records) <= 15 + 8
    assert FailureKind.UNREACHABLE in failures
    assert len({(record.arm, record.index) for record in records}) == len(records)
