"""What a cell sends: its requests before their arm is known, and how they follow one another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdeploy.run_contract import Arm, Load
from specdeploy_client.load.arrivals import Arrivals

MAX_IN_FLIGHT = 512
RenderTurns = Callable[[tuple[str, ...]], str]


@dataclass(frozen=True, slots=True)
class CellRequest:
    """Request number `index` of a cell before its arm is known.

    `turns` is the conversation unrendered, user and assistant in turn, its last one the user's. A request that
    `follows` another (its index) is sent `think_ns` after the answer to that one. If it has a single turn, the
    conversation goes on with the answer that this arm gave: its turns are then those of the other request, the answer,
    its own, and its prompt is rendered from them when they are there. With more turns than one (recorded answers),
    where it `is_whole` by itself, and in all other cases, `prompt` is sent as it stands.
    `due_ns`: when an open loop sends it, after the start of its cell; blocks keep the distances.
    """

    index: int
    prompt_id: str
    prompt: str
    max_tokens: int
    turns: tuple[str, ...] = ()
    expected_input_tokens: int | None = None
    guide_type: str | None = None
    guide: str | None = None
    ignore_eos: bool | None = None
    due_ns: int | None = None
    follows: int | None = None
    think_ns: int = 0
    is_whole: bool = False

    @property
    def continues_own_answer(self) -> bool:
        """Whether its prompt is made from what the arm answered before."""
        return self.follows is not None and len(self.turns) == 1 and not self.is_whole


@dataclass(frozen=True, slots=True)
class Cell:
    """One segment under one load, to be measured with every arm of `draft_lens` (K sent, by arm; 0 = off).

    `requests` are the measured ones, in the order in which they are sent; `warmup` go before them, in rounds that
    nothing counts; none means no warm-up. An open loop takes its times from `arrivals`, or, where that is None (a
    trace), from `due_ns` of the requests; one that follows another needs none. `render_turns` makes a prompt of turns.
    `concurrency_ramp_s`: the workers of a closed loop start one by one over this time, while an arm warms up (an open
    loop's ramp is that of `arrivals`); without warm-up requests there is no ramp. `max_in_flight`:
    an open loop does not have more requests under way; one that has to wait for that is late, and its record shows it.

    Raises ValueError where these do not fit together.
    """

    segment: str
    load: Load
    draft_lens: dict[Arm, int]
    requests: tuple[CellRequest, ...]
    warmup: tuple[CellRequest, ...] = ()
    render_turns: RenderTurns | None = None
    arrivals: Arrivals | None = None
    concurrency_ramp_s: float = 0.0
    max_in_flight: int = MAX_IN_FLIGHT

    def __post_init__(self) -> None:
        if self.load.request_rate is not None and self.arrivals is None:
            missing = [r.index for r in self.requests if r.due_ns is None and r.follows is None]
            if missing:
                raise ValueError(f"an open loop without arrivals needs due_ns; requests {missing[:5]} have none")
        self._require_chains()

    def _require_chains(self) -> None:
        earlier: dict[int, CellRequest] = {}
        followed: set[int] = set()
        for request in self.requests:
            if request.index in earlier:
                raise ValueError(f"two requests have index {request.index}")
            if request.follows is not None:
                if request.follows not in earlier or request.follows in followed:
                    raise ValueError(f"request {request.index} must follow an earlier one that no other follows")
                followed.add(request.follows)
                if request.continues_own_answer and (self.render_turns is None or not earlier[request.follows].turns):
                    raise ValueError(f"request {request.index} needs render_turns, and turns in the one it follows")
            earlier[request.index] = request

    @property
    def name(self) -> str:
        """For messages and seeds."""
        return f"{self.segment}, {self.load}"


def chains_of(requests: Sequence[CellRequest]) -> tuple[tuple[CellRequest, ...], ...]:
    """`requests` as sessions, each a tuple of requests that follow one another, in the order of their first ones.

    A request that follows one that is not among `requests` begins a chain of its own.
    """
    chains: dict[int, list[CellRequest]] = {}  # by the index of the last request so far
    ordered: list[list[CellRequest]] = []
    for request in requests:
        chain = None if request.follows is None else chains.pop(request.follows, None)
        if chain is None:
            chain = []
            ordered.append(chain)
        chain.append(request)
        chains[request.index] = chain
    return tuple(map(tuple, ordered))


def inseparable_positions(requests: Sequence[CellRequest]) -> frozenset[int]:
    """Positions in `requests` at which no block may begin, because a request there or later follows one before."""
    position_of = {request.index: position for position, request in enumerate(requests)}
    last_follower = [position_of[request.index] for request in requests]
    for position, request in enumerate(requests):
        if request.follows is not None:
            last_follower[position_of[request.follows]] = position
    inside: set[int] = set()
    reach = 0
    for position, last in enumerate(last_follower):
        if position <= reach and position > 0:
            inside.add(position)
        reach = max(reach, last)
    return frozenset(inside)
