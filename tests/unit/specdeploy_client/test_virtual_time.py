"""The event loop in virtual time and its server tell the truth they were set to."""

import asyncio
import itertools
import time

import numpy as np
import pytest

from helpers.virtual_time import Clock, VirtualServer, VirtualTimeLoop, run_virtual
from specdeploy_client.transport import GenerationRequest, Message

START = VirtualTimeLoop.START_NS


def _ask(server: VirtualServer, request: GenerationRequest) -> asyncio.Task[list[Message]]:
    async def read() -> list[Message]:
        return [message async for message in server.stream(request)]

    return asyncio.create_task(read())


def test_time_jumps_to_the_next_timer_and_is_exact() -> None:
    async def main(clock: Clock) -> list[int]:
        begin = time.monotonic()
        times = [clock()]
        for _ in range(1000):
            await asyncio.sleep(3.6001)
            times.append(clock())
        assert time.monotonic() - begin < 1.0
        return times

    times = run_virtual(main)
    assert times == [START + number * 3_600_100_000 for number in range(1001)]


def test_waiting_for_what_never_comes_is_an_error() -> None:
    async def main(clock: Clock) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="no timer will bring"):
        run_virtual(main)


def test_a_set_acceptance_and_step_time_come_out() -> None:
    async def main(clock: Clock) -> list[Message]:
        server = VirtualServer(clock, acceptance=0.6, verify_cost=1.25, seed=1)
        return await _ask(server, GenerationRequest("p", 20_000, 4, request_id="r"))

    messages = run_virtual(main)
    sizes = [message.num_tokens or 0 for message in messages[1:-1]]
    assert np.mean(sizes) == pytest.approx(VirtualServer(lambda: 0).tokens_per_step(4), rel=0.02)
    assert {later.recv_ns - earlier.recv_ns for earlier, later in itertools.pairwise(messages)} == {25_000_000}
    completion = messages[-1].completion
    assert completion is not None
    assert completion.num_steps == len(messages) - 1
    assert completion.total_accepted_draft_tokens == 20_000 - len(messages)


def test_steps_of_many_rows_cost_more() -> None:
    async def main(clock: Clock) -> list[float]:
        server = VirtualServer(clock, row_cost=0.1, verify_cost=1.0, verify_cost_per_row=0.2, acceptance=0.0)
        ends: list[float] = []
        for draft_len, rows in ((0, 1), (0, 3), (4, 1), (4, 3)):
            begin = clock()
            await asyncio.gather(*(_ask(server, GenerationRequest(f"p{r}", 2, draft_len)) for r in range(rows)))
            ends.append((clock() - begin) / 1e6 - 50)
        return ends

    assert run_virtual(main) == pytest.approx([20, 20 * 1.2, 20, 20 * 1.2 * 1.4])


def test_noise_is_a_function_of_seed_prompt_and_request() -> None:
    def times(seed: int, prompts: tuple[str, ...], request_sigma: float) -> list[int]:
        async def main(clock: Clock) -> list[int]:
            server = VirtualServer(clock, prompt_sigma=0.3, request_sigma=request_sigma, seed=seed)
            begin = clock()
            tasks = [_ask(server, GenerationRequest(p, 4, 0, request_id=f"{p}{i}")) for i, p in enumerate(prompts)]
            return [messages[-1].recv_ns - begin for messages in await asyncio.gather(*tasks)]

        return run_virtual(main)

    assert times(1, ("a", "b"), 0.1) == times(1, ("a", "b"), 0.1)
    assert times(1, ("a", "b"), 0.1) != times(2, ("a", "b"), 0.1)
    one, same, other = times(1, ("a", "a", "b"), 0.0)
    assert one == same != other
    one, same, _ = times(1, ("a", "a", "b"), 0.1)
    assert one != same


def test_a_request_that_gives_up_waiting_leaves_its_row_to_the_next() -> None:
    async def main(clock: Clock) -> list[int]:
        server = VirtualServer(clock, max_rows=1)
        first, second, third = (_ask(server, GenerationRequest("p", 1)) for _ in range(3))
        await asyncio.sleep(0.02)
        second.cancel()
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert server.in_flight == 0
        return [third.result()[0].recv_ns]

    assert run_virtual(main) == [START + 100_000_000]
