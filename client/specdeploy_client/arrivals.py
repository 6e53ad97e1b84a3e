"""In which order the requests of a cell are sent: blocks of one arm each, arms interleaved, order alternating.

A machine that slows down during a run would favour whichever arm went first; alternating blocks (off on, on off, ...)
with the same prompts in both arms of a block let such drift cancel out.
"""

from dataclasses import dataclass

from specdeploy.run_contract import Arm

MAX_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Block:
    """Requests `first_index` ... `first_index + num_requests - 1` of a cell, all sent with `arm`."""

    number: int
    arm: Arm
    first_index: int
    num_requests: int


def plan_blocks(num_requests: int, concurrency: int, arms: tuple[Arm, ...]) -> tuple[Block, ...]:
    """Every index 0 ... num_requests - 1 once per arm, in blocks.

    A block holds at least two rounds of all workers, so that workers that run dry at its end weigh little; within that
    limit there are as many blocks as `MAX_BLOCKS` allows, an even number so that each arm goes first equally often.
    """
    fitting = min(MAX_BLOCKS, num_requests // (2 * concurrency))
    num_blocks = max(1, fitting - fitting % 2)
    blocks: list[Block] = []
    for number in range(num_blocks):
        first = number * num_requests // num_blocks
        size = (number + 1) * num_requests // num_blocks - first
        order = arms if number % 2 == 0 else tuple(reversed(arms))
        blocks.extend(Block(number, arm, first, size) for arm in order)
    return tuple(blocks)
