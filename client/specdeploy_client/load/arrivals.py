"""When and in which order the requests of a cell are sent.

Order: blocks of one arm each, arms interleaved. A machine that slows down during a run would favour whichever arm went
first; alternating blocks (off on, on off, ...) with the same prompts in both arms of a block let such drift cancel out.

Times of an open loop: fixed before the first request is sent, whatever the server does, so that a server that stalls
cannot make its client wait with it. They are offsets from the start of a block, a pure function of (seed, cell, block):
both arms of a block get the same.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from specdeploy.run_contract import Arm, Load

MAX_BLOCKS = 10
# A block of an open loop begins with an idle server and ends when the last answer is there: both weigh little where it
# sends for a while.
OPEN_LOOP_MIN_BLOCK_S = 5.0
OPEN_LOOP_MIN_BLOCK = 10
OPEN_LOOP_ROUND = OPEN_LOOP_MIN_BLOCK // 2


class ArrivalPattern(StrEnum):
    """Gaps between requests of an open loop: all equal, exponential, gamma distributed, or those of a trace."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Block:
    """Requests `first_index` ... `first_index + num_requests - 1` of a cell, all sent with `arm`."""

    number: int
    arm: Arm
    first_index: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A pattern that is not a trace. `smoothness` is the shape of the gamma distribution of gaps: 1 is Poisson, below 1
    burstier, above 1 more even (AIPerf's `--arrival-smoothness`, vLLM's `--burstiness`).

    The rate comes from the load of the cell. `ramp_s`: how long the warm-up takes to reach it; see `ramps`.
    """

    pattern: ArrivalPattern
    seed: int
    smoothness: float = 1.0
    ramp_s: float = 0.0


def plan_offsets(arrivals: Arrivals, cell: str, load: Load, block: int, num_requests: int) -> tuple[int, ...]:
    """When each of `num_requests` is due, ns after the start of block number `block`; never falling.

    `cell` names the cell for the seed. With a constant rate the first is due at once, otherwise after a first gap.
    Raises ValueError for a load without a rate, a trace (it brings its own times) and a smoothness that is not above 0.
    """
    rate = load.request_rate
    if rate is None or arrivals.pattern is ArrivalPattern.TRACE or not arrivals.smoothness > 0:
        raise ValueError(f"no arrivals for {load} with {arrivals}")
    if arrivals.pattern is ArrivalPattern.CONSTANT:
        expected = np.arange(num_requests, dtype=np.float64)
    else:
        shape = arrivals.smoothness if arrivals.pattern is ArrivalPattern.GAMMA else 1.0
        digest = hashlib.sha256(f"{arrivals.seed}:{cell}:{load}:{block}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        # Gaps of mean 1: the number of requests expected by then, which the rate turns into a time.
        expected = np.cumsum(rng.gamma(shape, 1 / shape, num_requests))
    return tuple(round(float(number) / rate * 1e9) for number in expected)


def min_block_size(num_requests: int, load: Load) -> int:
    """Requests that a block of a cell should at least hold: two rounds of all workers, or a few seconds of arrivals.

    Half of an open loop is enough: in a single block one arm would always go first.
    """
    if load.request_rate is None:
        return 2 * (load.concurrency or 1)
    return max(OPEN_LOOP_MIN_BLOCK, min(round(OPEN_LOOP_MIN_BLOCK_S * load.request_rate), num_requests // 2))


def plan_blocks(
    num_requests: int,
    load: Load,
    arms: tuple[Arm, ...],
    *,
    max_blocks: int = MAX_BLOCKS,
    inseparable: Collection[int] = (),
) -> tuple[Block, ...]:
    """Every index 0 ... num_requests - 1 once per arm, in blocks.

    A block holds at least two rounds of all workers, so that workers that run dry at its end weigh little, or some
    seconds of an open loop; within that limit there are as many blocks as `max_blocks` allows, an even number so that
    each arm goes first equally often. Where all requests are just two rounds, a block of one is better than none that
    the other arm begins. No block begins at an index in `inseparable`: those continue an earlier request.
    """
    fitting = min(max_blocks, num_requests // min_block_size(num_requests, load))
    round_size = OPEN_LOOP_ROUND if load.request_rate is not None else load.concurrency or 1
    num_blocks = max(2 if num_requests >= 2 * round_size else 1, fitting - fitting % 2)
    starts = [index for index in range(num_requests) if index not in inseparable]
    firsts = sorted({_nearest(starts, number * num_requests // num_blocks) for number in range(num_blocks)})
    if len(firsts) % 2 and len(firsts) > 1:
        firsts.pop()
    blocks: list[Block] = []
    for number, (first, end) in enumerate(zip(firsts, [*firsts[1:], num_requests], strict=True)):
        order = arms if number % 2 == 0 else tuple(reversed(arms))
        blocks.extend(Block(number, arm, first, end - first) for arm in order)
    return tuple(blocks)


def _nearest(starts: list[int], index: int) -> int:
    """The member of the rising `starts` that lies nearest to `index`; the lower one of two."""
    place = bisect_left(starts, index)
    return min(starts[max(0, place - 1) : place + 1], key=lambda start: (abs(start - index), start), default=0)
