"""The seam between a source of requests and a run: `Workload` in, `WorkRequest` out."""

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

BLOCK_TOKENS = 512  # what one of `hash_ids` stands for in Mooncake's own traces
GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar")  # as input guided_decoding_guide_type of model `llm`


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """One request before it is rendered and before its arm is known.

    `user_turn` is what the user says; `is_rendered`: it is the whole prompt already, no template goes on it.
    `max_tokens` None: the segment's own limit. `expected_input_tokens`: of a prompt made to a length, counted after
    rendering; None for all others. `guide_type` (one of `GUIDE_TYPES`) and `guide` constrain the answer.
    `arrival_ns`: when to send it, after the first request of the same `Workload.requests` call; None where the source
    has no times. A request with `turn` > 0 and without `arrival_ns` goes out `think_ns` after the answer to the one
    before it in the same session, which is the one before it in the tuple.
    `history`: the turns before `user_turn`, user and assistant alternately, empty for a first turn; None: they are
    those of the request before it with the answer that this arm gave to it. `answer` is the recorded answer, if any.
    """

    prompt_id: str
    segment: str
    user_turn: str
    max_tokens: int | None = None
    expected_input_tokens: int | None = None
    is_rendered: bool = False
    guide_type: str | None = None
    guide: str | None = None
    ignore_eos: bool = False
    arrival_ns: int | None = None
    session_id: str | None = None
    turn: int = 0
    think_ns: int = 0
    answer: str | None = None
    history: tuple[str, ...] | None = ()

    @property
    def follows_previous(self) -> bool:
        """Whether it waits for the answer to the request before it."""
        return self.turn > 0 and self.arrival_ns is None

    @property
    def known_turns(self) -> tuple[str, ...]:
        """The conversation as far as it is known beforehand, the user's turn last; () for a rendered prompt."""
        return () if self.is_rendered else (*(self.history or ()), self.user_turn)


class Workload(Protocol):
    """A source of requests: for each segment an endless sequence, a pure function of the seed it was opened with."""

    @property
    def name(self) -> str:
        """What kind of source, in a word or two."""
        ...

    @property
    def segments(self) -> tuple[str, ...]:
        """Segments that it has requests for."""
        ...

    @property
    def description(self) -> str:
        """For the record of a run: source, size, digest, what was left out."""
        ...

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts begin alike on purpose (conversations, blocks of a trace): a cache may then serve them."""
        ...

    def requests(self, segment: str, first: int, count: int) -> tuple[WorkRequest, ...]:
        """Requests `first` ... `first + count - 1` of `segment`; none repeats before all were used.

        A session that began before `first` goes on as a session of its own, so that no request waits for one outside.
        """
        ...

    def num_distinct(self, segment: str) -> int:
        """How many requests of `segment` there are before prompts repeat; of a trace, those recorded."""
        ...


def derive_rng(*parts: object) -> np.random.Generator:
    """A random generator that is a pure function of `parts` (seed, segment, round, ...)."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
