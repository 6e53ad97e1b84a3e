"""Conversations of one turn or more, and the workload that sends them: all files of requests become these."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from specdeploy.units import NS_PER_S
from specdeploy_client.workloads.base import BLOCK_TOKENS, WorkRequest, derive_rng
from specdeploy_client.workloads.prompt_writer import PromptWriter
from specdeploy_client.workloads.render import TokenCounter


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user says at one point of a conversation.

    `text` None: it is made to `input_tokens` tokens, in blocks named by `hash_ids` where there are some.
    `history` None: the turns before it in the session with their recorded answers, or the arm's own answers where one
    of them was not recorded. Otherwise as in `WorkRequest`; `arrival_ns` counts from the begin of the file.
    """

    text: str | None
    max_tokens: int | None = None
    input_tokens: int | None = None
    hash_ids: tuple[int, ...] = ()
    answer: str | None = None
    think_ns: int = 0
    arrival_ns: int | None = None
    history: tuple[str, ...] | None = None
    guide_type: str | None = None
    guide: str | None = None
    is_rendered: bool = False
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in order, each sent after the answer to the one before unless it has a time of its own.

    `is_conversation`: its requests belong together in the record; a prompt on its own is none.
    `first_turn`: number of its first turn, for a turn that is replayed apart from those before it.
    """

    session_id: str
    turns: tuple[Turn, ...]
    is_conversation: bool = False
    first_turn: int = 0


class SessionWorkload:
    """Sessions of a file, by segment, round after round; a round uses every session once.

    `order`: shuffled anew for each round, or as recorded (times only make sense in that order). Turns without text are
    written by `writer`. `counter` gives turns without `max_tokens` the length of their recorded answer.
    """

    def __init__(
        self,
        name: str,
        description: str,
        sessions: Mapping[str, Sequence[Session]],
        seed: int,
        *,
        order: Literal["shuffled", "recorded"] = "shuffled",
        writer: PromptWriter | None = None,
        counter: TokenCounter | None = None,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self.name = name
        self.description = description if writer is None else f"{description}; {writer.description}"
        self.segments = tuple(sessions)
        self.shares_prefixes = any(map(_shares_prefix, (each for listed in sessions.values() for each in listed)))
        self._sessions = sessions
        self._seed = seed
        self._order = order
        self._writer = writer
        self._counter = counter
        self._block_tokens = block_tokens
        self._num_before = {
            segment: (0, *accumulate(len(session.turns) for session in listed)) for segment, listed in sessions.items()
        }
        self._round_ns = {segment: _round_duration_ns(listed) for segment, listed in sessions.items()}
        self._ranks = _rank_blocks(sessions)
        self._shuffle = lru_cache(maxsize=16)(self._shuffle_round)

    def num_distinct(self, segment: str) -> int:
        """Requests of the file. Another round of those that are made to a length brings new text."""
        return self._num_before[segment][-1]

    def requests(self, segment: str, first: int, count: int) -> tuple[WorkRequest, ...]:
        """See `Workload.requests`."""
        made: list[WorkRequest] = []
        base_ns: int | None = None
        previous: tuple[int, str] | None = None  # round and session of the request before
        num_cut = 0
        for index in range(first, first + count):
            round_number, session, turn = self._locate(segment, index)
            if (round_number, session.session_id) != previous:
                num_cut = turn
            previous = (round_number, session.session_id)
            # The rest of a session that began earlier comes when the session came.
            arrival_ns = session.turns[0 if turn == num_cut else turn].arrival_ns
            if arrival_ns is not None:
                arrival_ns += round_number * self._round_ns[segment]
                base_ns = arrival_ns if base_ns is None else base_ns
                arrival_ns -= base_ns
            made.append(self._request(segment, index, round_number, session, turn, num_cut, arrival_ns))
        return tuple(made)

    def _locate(self, segment: str, index: int) -> tuple[int, Session, int]:
        """Round, session and position in the session of request `index`."""
        round_number, position = divmod(index, self._num_before[segment][-1])
        listed, num_before = self._sessions[segment], self._num_before[segment]
        if self._order == "shuffled":
            order, num_before = self._shuffle(segment, round_number)
            at = bisect_right(num_before, position) - 1
            return round_number, listed[order[at]], position - num_before[at]
        at = bisect_right(num_before, position) - 1
        return round_number, listed[at], position - num_before[at]

    def _shuffle_round(self, segment: str, round_number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The order of sessions in a round, and how many requests are before each of them."""
        listed = self._sessions[segment]
        order = shuffled_order(len(listed), self._seed, segment, round_number)
        return order, (0, *accumulate(len(listed[number].turns) for number in order))

    def _request(
        self,
        segment: str,
        index: int,
        round_number: int,
        session: Session,
        position: int,
        num_cut: int,
        arrival_ns: int | None,
    ) -> WorkRequest:
        """Turn number `position` of `session`; `num_cut` of its turns are not among the requests asked for."""
        turn = session.turns[position]
        history = turn.history if turn.history is not None else _recorded_history(session.turns[:position])
        is_first = position == num_cut
        if history is None and is_first:
            history = ()  # what went before was not asked of this server
        name = (
            session.session_id if round_number == 0 or turn.text is not None else f"{session.session_id}#{round_number}"
        )
        number = session.first_turn + position
        return WorkRequest(
            prompt_id=f"{name}/{number}" if session.is_conversation else name,
            segment=segment,
            user_turn=self._text(turn, index, round_number, has_template=history == ()),
            max_tokens=turn.max_tokens if turn.max_tokens is not None else self._answer_tokens(turn),
            expected_input_tokens=turn.input_tokens if history == () else None,
            is_rendered=turn.is_rendered,
            guide_type=turn.guide_type,
            guide=turn.guide,
            ignore_eos=turn.ignore_eos,
            arrival_ns=arrival_ns,
            session_id=session.session_id if session.is_conversation else None,
            turn=number if arrival_ns is not None else position - num_cut,
            think_ns=0 if is_first else turn.think_ns,
            answer=turn.answer,
            history=history,
        )

    def _text(self, turn: Turn, index: int, round_number: int, has_template: bool) -> str:
        if turn.text is not None:
            return turn.text
        if self._writer is None or turn.input_tokens is None:
            raise ValueError("a turn without text needs a writer and a length")
        if not has_template:
            return self._writer.write_turn(turn.input_tokens, len(self._ranks) + index)
        if not turn.hash_ids:
            return self._writer.write(turn.input_tokens, len(self._ranks) + index)
        ranks = tuple(self._ranks[block] + round_number * len(self._ranks) for block in turn.hash_ids)
        return self._writer.write_blocks(turn.input_tokens, ranks, self._block_tokens)

    def _answer_tokens(self, turn: Turn) -> int | None:
        if turn.answer is None or self._counter is None:
            return None
        return max(1, len(self._counter.plain_ids(turn.answer)))


def shuffled_order(num_items: int, seed: int, segment: str, round_number: int) -> tuple[int, ...]:
    """In which order a round goes through `num_items` prompts: a pure function of (seed, segment, round)."""
    return tuple(int(item) for item in derive_rng(seed, segment, round_number).permutation(num_items))


def _shares_prefix(session: Session) -> bool:
    """Whether a prompt of `session` begins as another one does: as one before it, or with a named block."""
    later = session.turns if session.first_turn else session.turns[1:]
    goes_on = any(turn.history != () or turn.is_rendered for turn in later)
    return goes_on or any(turn.hash_ids for turn in session.turns)


def _recorded_history(earlier: Sequence[Turn]) -> tuple[str, ...] | None:
    """Turns and recorded answers before a turn; None where one is not recorded."""
    history: list[str] = []
    for turn in earlier:
        if turn.text is None or turn.answer is None:
            return None
        history += [turn.text, turn.answer]
    return tuple(history)


def _round_duration_ns(sessions: Sequence[Session]) -> int:
    """From the first request of one round to the first of the next: the times of the file and one mean gap more."""
    times = [turn.arrival_ns for session in sessions for turn in session.turns if turn.arrival_ns is not None]
    if not times:
        return 0
    span_ns = max(times) - min(times)
    return span_ns + (span_ns // (len(times) - 1) if span_ns else NS_PER_S)


def _rank_blocks(sessions: Mapping[str, Sequence[Session]]) -> dict[int, int]:
    """A small number for every block id, in the order in which they first appear."""
    ranks: dict[int, int] = {}
    for listed in sessions.values():
        for session in listed:
            for turn in session.turns:
                for block in turn.hash_ids:
                    ranks.setdefault(block, len(ranks))
    return ranks
