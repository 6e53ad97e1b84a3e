"""An event loop whose time jumps to the next timer, and a server with a known truth that lives in it.

    run_virtual(lambda clock: run_cell(PerRequestSwitch(VirtualServer(clock)), cell, sink, clock=clock))

An hour of load takes seconds, and every time is exact: nothing but the timers moves the clock.
"""

import asyncio
import math
import random
import selectors
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specdeploy_client.transport import (
    Completion,
    GenerationRequest,
    Message,
    RequestRefusedError,
    ServerUnreachableError,
    StreamClosedError,
)

Clock = Callable[[], int]
Result = TypeVar("Result")


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: hands the time it was asked to wait to `on_wait` instead."""

    def __init__(self, on_wait: Callable[[float], None]) -> None:
        super().__init__()
        self._on_wait = on_wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise RuntimeError("every task waits for something that no timer will bring")
        self._on_wait(timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that skips the waiting. Its clock starts at `START_NS` and counts whole nanoseconds."""

    START_NS = 1_000_000_000

    def __init__(self) -> None:
        self._now_ns = self.START_NS
        super().__init__(_JumpingSelector(self._jump))
        # Half a nanosecond is lost at most by rounding a wait; a timer that close is due.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now_ns / 1e9

    def now_ns(self) -> int:
        """The loop's time, to be used as `clock` by everything that runs in it."""
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        """Let time pass while the loop is busy: what a blocking call does. Negative: a clock that goes backwards."""
        self._now_ns += duration_ns

    def _jump(self, timeout_s: float) -> None:
        self._now_ns += round(timeout_s * 1e9)


def run_virtual(main: Callable[[Clock], Coroutine[Any, Any, Result]]) -> Result:
    """Run `main(clock)` to its end in a loop of its own; `clock` is that loop's time in nanoseconds."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        return runner.run(main(loop.now_ns))


@dataclass
class VirtualServer:
    """A `Transport` that answers from a model of a server. A request is in the on arm where it drafts.

    The first message, one token, comes `ttft_s` after a row is free; each further one takes a step of `step_s` and
    carries one token, in the on arm one more for every accepted draft token. Of `rows` at work:

        plain step  = step_s * (1 + row_cost * (rows - 1))
        verify step = plain step * (verify_cost + verify_cost_per_row * (rows - 1))

    `on_factor` multiplies every time of the on arm: a planted slowdown (1.05) or gain (0.9).
    `acceptance`: chance that a draft token is accepted given that those before it were.
    `max_rows`: requests beyond it wait in a queue, first come first served.
    Noise is lognormal with median 1: `prompt_sigma` the same in both arms, `request_sigma` of each request and
    `step_sigma` of each step on its own. It is a pure function of `seed`, prompt, request id: the order of events and
    the other requests do not matter.
    `stalls`: (start_s, duration_s) after `VirtualTimeLoop.START_NS` during which nothing moves.
    `failures`: by request id, what happens to it: refused at once, or the stream closed or the server unreachable after
    the first message. `dies_at_s`: from then on the server is gone for everybody. `short_by`: tokens an answer lacks.
    """

    clock: Clock
    ttft_s: float = 0.050
    step_s: float = 0.020
    acceptance: float = 0.6
    verify_cost: float = 1.0
    verify_cost_per_row: float = 0.0
    row_cost: float = 0.0
    on_factor: float = 1.0
    prompt_sigma: float = 0.0
    request_sigma: float = 0.0
    step_sigma: float = 0.0
    seed: int = 0
    max_rows: int | None = None
    default_draft_len: int = 0
    stalls: tuple[tuple[float, float], ...] = ()
    failures: Mapping[str, Exception] = field(default_factory=dict)
    dies_at_s: float | None = None
    short_by: int = 0
    cached_tokens: int | None = None
    requests: list[GenerationRequest] = field(default_factory=list)
    in_flight: int = 0
    max_in_flight: int = 0
    num_cancelled: int = 0
    _rows: int = 0
    _queue: deque[asyncio.Future[None]] = field(default_factory=deque)

    @property
    def url(self) -> str:
        """What a message about this server names."""
        return "virtual:1"

    async def is_ready(self) -> bool:
        """Whether it has not died."""
        return not self._is_dead()

    def tokens_per_step(self, draft_len: int) -> float:
        """Expected tokens of a step that drafts `draft_len`: sum of acceptance^i for i = 0 ... draft_len."""
        return float(sum(self.acceptance**position for position in range(draft_len + 1)))

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Message, None]:
        """The messages of the answer to `request`."""
        self.requests.append(request)
        self._require_life()
        failure = self.failures.get(request.request_id)
        if isinstance(failure, RequestRefusedError):
            raise failure
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        is_finished = False
        try:
            await self._take_row()
            try:
                async for message in self._answer(request, failure):
                    yield message
            finally:
                self._free_row()
            is_finished = True
        finally:
            self.in_flight -= 1
            self.num_cancelled += not is_finished

    async def _answer(self, request: GenerationRequest, failure: Exception | None) -> AsyncGenerator[Message, None]:
        draft_len = self.default_draft_len if request.num_draft_tokens is None else request.num_draft_tokens
        prompt_noise = random.Random(f"{self.seed}:{request.prompt}").gauss(0.0, self.prompt_sigma)
        rng = random.Random(f"{self.seed}:{request.request_id}:{request.prompt}")
        factor = math.exp(prompt_noise + rng.gauss(0.0, self.request_sigma)) * (self.on_factor if draft_len else 1.0)
        num_tokens = max(1, request.max_tokens - self.short_by)
        sent, steps, accepted = 0, 0, 0
        while sent < num_tokens:
            size = 1
            if sent == 0:
                await self._work(self.ttft_s * factor)
            else:
                await self._work(self._step_s(draft_len) * factor * math.exp(rng.gauss(0.0, self.step_sigma)))
                size = min(1 + self._num_accepted(rng, draft_len), num_tokens - sent)
                steps, accepted = steps + 1, accepted + size - 1
            self._require_life()
            ids = tuple(range(sent, sent + size))
            sent += size
            is_last = sent == num_tokens
            completion = self._completion(request, num_tokens, steps, draft_len, accepted) if is_last else None
            yield Message(self.clock(), "x" * size, ids, completion)
            if failure is not None:
                raise failure

    def _completion(
        self, request: GenerationRequest, num_tokens: int, steps: int, draft_len: int, accepted: int
    ) -> Completion:
        return Completion(
            finish_reason="length" if num_tokens == request.max_tokens else "stop",
            input_token_count=len(request.prompt.split()),
            output_token_count=num_tokens,
            num_steps=steps,
            total_draft_tokens=draft_len * steps,
            total_accepted_draft_tokens=accepted,
            speculation="on" if draft_len else "off:request",
            speculation_stats="measured",
            cached_token_count=self.cached_tokens,
            connect_ns=0,
        )

    def _num_accepted(self, rng: random.Random, draft_len: int) -> int:
        count = 0
        while count < draft_len and rng.random() < self.acceptance:
            count += 1
        return count

    def _step_s(self, draft_len: int) -> float:
        others = self._rows - 1
        plain = self.step_s * (1.0 + self.row_cost * others)
        return plain * (self.verify_cost + self.verify_cost_per_row * others) if draft_len else plain

    async def _work(self, duration_s: float) -> None:
        """Sleep for `duration_s` of work; a stall that begins before it is done adds what is left of the stall."""
        begin = self.clock()
        end = begin + round(duration_s * 1e9)
        for start_s, stall_s in sorted(self.stalls):
            start = VirtualTimeLoop.START_NS + round(start_s * 1e9)
            if begin < start + round(stall_s * 1e9) and end > start:
                end += start + round(stall_s * 1e9) - max(begin, start)
        await asyncio.sleep((end - begin) / 1e9)

    async def _take_row(self) -> None:
        if self.max_rows is not None and self._rows >= self.max_rows:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(place)
            try:
                await place  # the row is handed over by whoever frees it
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._free_row()  # handed over to a request that has just gone away
                raise
        else:
            self._rows += 1

    def _free_row(self) -> None:
        while self._queue:
            place = self._queue.popleft()
            if not place.done():  # a cancelled request no longer waits
                place.set_result(None)
                return
        self._rows -= 1

    def _is_dead(self) -> bool:
        return self.dies_at_s is not None and self.clock() >= VirtualTimeLoop.START_NS + round(self.dies_at_s * 1e9)

    def _require_life(self) -> None:
        if self._is_dead():
            raise ServerUnreachableError(f"no server at {self.url}")


def closed_stream() -> StreamClosedError:
    """What a stream that ends early raises; for `VirtualServer.failures`."""
    return StreamClosedError("the stream ended before its last message")
