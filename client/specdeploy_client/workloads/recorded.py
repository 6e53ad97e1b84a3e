"""Recorded traffic of any format: what loaders return, the part of it that is replayed, and how fast."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from specdeploy.errors import RequestError
from specdeploy.units import NS_PER_S, ns_to_s
from specdeploy_client.workloads.sessions import Session, Turn

_MAX_NAMED = 3


class UnfitPolicy(StrEnum):
    """What becomes of recorded requests that this target cannot be sent: too short for the template, too long."""

    REFUSE = "refuse"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class RecordedTraffic:
    """Sessions of one file in order of arrival. `source`: its format; `notes`: what of it is not replayed."""

    source: str
    sessions: tuple[Session, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_arrivals(self) -> bool:
        """Whether it says when requests came; then every session begins with a time."""
        return bool(self.sessions) and self.sessions[0].turns[0].arrival_ns is not None

    @property
    def has_made_text(self) -> bool:
        """Whether prompts have to be made to recorded lengths."""
        return any(turn.text is None for session in self.sessions for turn in session.turns)

    @property
    def num_requests(self) -> int:
        """Turns of all sessions."""
        return sum(len(session.turns) for session in self.sessions)


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """Which part is replayed, in seconds after the first arrival, and how many times as fast as it was recorded."""

    speedup: float = 1.0
    start_s: float = 0.0
    duration_s: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it changes nothing."""
        return self == WHOLE_TRACE


WHOLE_TRACE = TraceWindow()


def cut_window(traffic: RecordedTraffic, window: TraceWindow) -> RecordedTraffic:
    """Sessions that begin in the window, their times counted from the first of them and divided by the speed-up.

    Think times are divided too. Raises `RequestError` for a window that holds nothing, or traffic without times.
    """
    if not traffic.has_arrivals:
        if window.is_whole:
            return traffic
        raise RequestError(
            "--trace-speedup", f"the file ({traffic.source}) says no arrival times", "Leave out the --trace-... options"
        )
    arrivals = [_arrival_ns(session) for session in traffic.sessions]
    begin_ns = arrivals[0] + round(window.start_s * NS_PER_S)
    end_ns = None if window.duration_s is None else begin_ns + round(window.duration_s * NS_PER_S)
    kept = [
        session
        for session, arrival in zip(traffic.sessions, arrivals, strict=True)
        if arrival >= begin_ns and (end_ns is None or arrival < end_ns)
    ]
    if not kept:
        lasts = ns_to_s(arrivals[-1] - arrivals[0])
        raise RequestError(
            "--trace-start",
            f"no request came in this part of the trace, which lasts {lasts:g} s",
            "Choose another part",
        )
    first_ns = _arrival_ns(kept[0])

    def moved(turn: Turn) -> Turn:
        arrival_ns = None if turn.arrival_ns is None else round((turn.arrival_ns - first_ns) / window.speedup)
        return replace(turn, arrival_ns=arrival_ns, think_ns=round(turn.think_ns / window.speedup))

    notes = list(traffic.notes)
    if left_out := traffic.num_requests - sum(len(session.turns) for session in kept):
        notes.append(f"{left_out} requests outside the chosen time")
    if window.speedup != 1:
        notes.append(f"{window.speedup:g} times as fast")
    return replace(
        traffic,
        sessions=tuple(replace(session, turns=tuple(map(moved, session.turns))) for session in kept),
        notes=tuple(notes),
    )


def fit_target(
    traffic: RecordedTraffic, least_tokens: int, most_tokens: int | None, policy: UnfitPolicy, option: str = "--trace"
) -> RecordedTraffic:
    """Sessions whose made prompts this target can be sent: at least `least_tokens`, with their answers at most
    `most_tokens` (None: unknown). Raises `RequestError` where there are others and `policy` does not leave them out,
    and where nothing is left.
    """

    def problem(turn: Turn) -> str | None:
        if turn.text is not None or turn.input_tokens is None:
            return None
        if turn.input_tokens < least_tokens:
            return f"{turn.input_tokens} input tokens, the shortest prompt has {least_tokens}"
        total = turn.input_tokens + (turn.max_tokens or 1)
        if most_tokens is not None and total > most_tokens:
            return f"{total} tokens with the answer, the server holds {most_tokens}"
        return None

    unfit = {
        session.session_id: found
        for session in traffic.sessions
        if (found := next(filter(None, map(problem, session.turns)), None)) is not None
    }
    if not unfit:
        return traffic
    kept = tuple(session for session in traffic.sessions if session.session_id not in unfit)
    named = "; ".join(f"{name}: {found}" for name, found in list(unfit.items())[:_MAX_NAMED])
    counted = f"{len(unfit)} of {len(traffic.sessions)} recorded requests cannot be sent to this target ({named})"
    if policy is UnfitPolicy.REFUSE:
        raise RequestError(option, counted, "Leave them out with --trace-unfit skip, or choose another trace")
    if not kept:
        raise RequestError(option, counted, "Choose another trace")
    return replace(traffic, sessions=kept, notes=(*traffic.notes, f"{len(unfit)} left out that do not fit"))


def by_arrival(sessions: Sequence[Session]) -> tuple[Session, ...]:
    """Sessions sorted by when they begin, those of one moment as recorded."""
    return tuple(sorted(sessions, key=_arrival_ns))


def _arrival_ns(session: Session) -> int:
    return session.turns[0].arrival_ns or 0
