"""The part of recorded traffic that is replayed, and how fast."""

import pytest

from specdeploy.errors import RequestError
from specdeploy.units import NS_PER_S
from specdeploy_client.workloads.recorded import (
    WHOLE_TRACE,
    RecordedTraffic,
    TraceWindow,
    UnfitPolicy,
    by_arrival,
    cut_window,
    fit_target,
)
from specdeploy_client.workloads.sessions import Session, Turn


def _timed(name: str, arrival_s: float, *later: Turn) -> Session:
    return Session(name, (Turn(name, arrival_ns=round(arrival_s * NS_PER_S)), *later), bool(later))


TRAFFIC = RecordedTraffic(
    "test", (_timed("a", 10), _timed("b", 12, Turn("b2", think_ns=600)), _timed("c", 13), _timed("d", 20)), ("noted",)
)


def _arrivals(traffic: RecordedTraffic) -> list[tuple[str, int | None]]:
    return [(session.session_id, session.turns[0].arrival_ns) for session in traffic.sessions]


def test_the_whole_trace_begins_at_nought() -> None:
    cut = cut_window(TRAFFIC, WHOLE_TRACE)
    assert _arrivals(cut) == [("a", 0), ("b", 2 * NS_PER_S), ("c", 3 * NS_PER_S), ("d", 10 * NS_PER_S)]
    assert cut.notes == ("noted",)


def test_a_window_counts_from_the_first_arrival() -> None:
    cut = cut_window(TRAFFIC, TraceWindow(start_s=2, duration_s=1))
    assert _arrivals(cut) == [("b", 0)]
    assert cut.notes == ("noted", "3 requests outside the chosen time")
    assert _arrivals(cut_window(TRAFFIC, TraceWindow(start_s=2.001))) == [("c", 0), ("d", 7 * NS_PER_S)]


def test_speed_up_divides_gaps_and_think_times() -> None:
    cut = cut_window(TRAFFIC, TraceWindow(speedup=4.0))
    assert _arrivals(cut)[-1] == ("d", 2_500_000_000)
    assert cut.sessions[1].turns[1].think_ns == 150
    assert cut.notes[-1] == "4 times as fast"


def test_windows_that_hold_nothing_and_files_without_times() -> None:
    with pytest.raises(RequestError, match=r"--trace-start: no request came.*lasts 10 s"):
        cut_window(TRAFFIC, TraceWindow(start_s=11))
    untimed = RecordedTraffic("lengths", (Session("a", (Turn("a"),)),))
    assert cut_window(untimed, WHOLE_TRACE) is untimed
    with pytest.raises(RequestError, match=r"--trace-speedup: the file \(lengths\) says no arrival times"):
        cut_window(untimed, TraceWindow(speedup=2.0))


def _made(name: str, num_input: int, num_output: int | None = None) -> Session:
    return Session(name, (Turn(None, num_output, num_input),))


MADE = RecordedTraffic("test", (_made("a", 5), _made("b", 50, 50), _made("c", 50, 51), Session("d", (Turn("x"),))))


def test_what_does_not_fit_is_refused_or_left_out() -> None:
    with pytest.raises(RequestError) as caught:
        fit_target(MADE, 10, 100, UnfitPolicy.REFUSE)
    message = str(caught.value)
    assert "2 of 4 recorded requests" in message
    assert "a: 5 input tokens, the shortest prompt has 10" in message
    assert "c: 101 tokens with the answer, the server holds 100" in message
    assert "--trace-unfit skip" in message
    kept = fit_target(MADE, 10, 100, UnfitPolicy.SKIP)
    assert [session.session_id for session in kept.sessions] == ["b", "d"]
    assert kept.notes == ("2 left out that do not fit",)
    assert fit_target(MADE, 1, None, UnfitPolicy.REFUSE) is MADE


def test_a_trace_of_which_nothing_fits() -> None:
    only = RecordedTraffic("test", (_made("a", 5),))
    with pytest.raises(RequestError, match=r"--input-file: 1 of 1.*Choose another"):
        fit_target(only, 10, 100, UnfitPolicy.SKIP, "--input-file")


def test_sessions_of_one_moment_keep_their_order() -> None:
    sessions = (_timed("x", 2), _timed("y", 1), _timed("z", 1))
    assert [session.session_id for session in by_arrival(sessions)] == ["y", "z", "x"]
