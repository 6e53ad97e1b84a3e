"""Sessions become requests: in order, each once a round, with the history that is known beforehand."""

from collections.abc import Sequence
from itertools import pairwise, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.trained_tokenizers import rendering_of, small_words
from specdeploy_client.workloads.base import WorkRequest
from specdeploy_client.workloads.corpus import TextKind
from specdeploy_client.workloads.prompt_writer import PromptWriter
from specdeploy_client.workloads.sessions import Session, SessionWorkload, Turn

RENDERING = rendering_of("gpt2")
WRITER = PromptWriter(RENDERING, TextKind.PROSE, 0, small_words())
TALK = Session("talk", (Turn("one", think_ns=5), Turn("two", think_ns=7), Turn("three", think_ns=9)), True)
RECORDED = Session("told", (Turn("one", answer="1"), Turn("two", answer="2", think_ns=7), Turn("three")), True)


def _workload(*sessions: Session, timed: bool = False) -> SessionWorkload:
    return SessionWorkload(
        "test",
        "a test",
        {"chat": sessions},
        0,
        order="recorded" if timed else "shuffled",
        writer=WRITER,
        counter=RENDERING.counter,
        block_tokens=32,
    )


def _ids(request: WorkRequest) -> list[int]:
    return RENDERING.require_counter("x").ids(RENDERING.prompt(request.user_turn))


def _single(name: str, arrival_ns: int | None = None) -> Session:
    return Session(name, (Turn(f"text of {name}", 3, arrival_ns=arrival_ns),))


def test_turns_without_recorded_answers_go_on_from_the_arms_own() -> None:
    requests = _workload(TALK).requests("chat", 0, 3)
    assert [request.user_turn for request in requests] == ["one", "two", "three"]
    assert [request.history for request in requests] == [(), None, None]
    assert [request.think_ns for request in requests] == [0, 7, 9]
    assert [request.follows_previous for request in requests] == [False, True, True]
    assert [request.prompt_id for request in requests] == ["talk/0", "talk/1", "talk/2"]
    assert {request.session_id for request in requests} == {"talk"}


def test_recorded_answers_are_the_history_and_give_the_length() -> None:
    requests = _workload(RECORDED).requests("chat", 0, 3)
    assert [request.known_turns for request in requests] == [
        ("one",),
        ("one", "1", "two"),
        ("one", "1", "two", "2", "three"),
    ]
    assert [request.max_tokens for request in requests] == [1, 1, None]
    assert [request.answer for request in requests] == ["1", "2", None]


def test_the_rest_of_a_cut_session_goes_on_as_one_of_its_own() -> None:
    cut = _workload(TALK).requests("chat", 1, 3)
    assert [(request.prompt_id, request.turn, request.think_ns) for request in cut] == [
        ("talk/1", 0, 0),
        ("talk/2", 1, 9),
        ("talk/0", 0, 0),
    ]
    assert [request.history for request in cut] == [(), None, ()]
    told = _workload(RECORDED).requests("chat", 1, 2)
    assert told[0].known_turns == ("one", "1", "two")
    assert not told[0].follows_previous


@given(first=st.integers(0, 40), count=st.integers(0, 40), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_slices_tile_the_sequence(first: int, count: int, sizes: Sequence[int]) -> None:
    sessions = [Session(f"s{n}", tuple(Turn(f"{n}.{t}") for t in range(size)), True) for n, size in enumerate(sizes)]
    workload = _workload(*sessions)
    whole = [request.prompt_id for request in workload.requests("chat", 0, first + count)]
    requests = workload.requests("chat", first, count)
    assert [request.prompt_id for request in requests] == whole[first:]
    assert not requests or not requests[0].follows_previous
    total = workload.num_distinct("chat")
    assert total == sum(sizes)
    rounds = [request.prompt_id for request in workload.requests("chat", 0, 3 * total)]
    for begin in range(0, 3 * total, total):
        assert len(set(rounds[begin : begin + total])) == total
    for earlier, later in pairwise(requests):
        if later.follows_previous:
            assert (later.session_id, later.turn) == (earlier.session_id, earlier.turn + 1)


def _prompt_ids(seed: int, segment: str) -> list[str]:
    sessions = {name: [_single(f"p{n}") for n in range(7)] for name in ("chat", "code_edit")}
    workload = SessionWorkload("test", "a test", sessions, seed)
    assert workload.requests(segment, 0, 1)[0].session_id is None
    return [request.prompt_id for request in workload.requests(segment, 0, 21)]


def test_prompts_are_shuffled_by_seed_and_segment_anew_in_every_round() -> None:
    chosen = _prompt_ids(0, "chat")
    assert chosen == _prompt_ids(0, "chat")
    assert chosen != _prompt_ids(1, "chat")
    assert chosen != _prompt_ids(0, "code_edit")
    rounds = [chosen[begin : begin + 7] for begin in (0, 7, 14)]
    assert {tuple(sorted(ids)) for ids in rounds} == {tuple(f"p{n}" for n in range(7))}
    assert rounds[0] != rounds[1] != rounds[2]


def test_arrivals_count_from_the_first_request_and_go_on_in_the_next_round() -> None:
    workload = _workload(_single("a", 100), _single("b", 130), _single("c", 200), timed=True)
    assert [request.arrival_ns for request in workload.requests("chat", 0, 7)] == [0, 30, 100, 150, 180, 250, 300]
    assert [request.arrival_ns for request in workload.requests("chat", 1, 3)] == [0, 70, 120]
    assert [request.prompt_id for request in workload.requests("chat", 0, 4)] == ["a", "b", "c", "a"]


def test_a_timed_session_has_one_time() -> None:
    timed = Session("talk", (Turn("one", arrival_ns=50), Turn("two", think_ns=7)), True)
    workload = _workload(timed, _single("z", 80), timed=True)
    requests = workload.requests("chat", 0, 3)
    assert [(request.arrival_ns, request.follows_previous) for request in requests] == [
        (0, False),
        (None, True),
        (30, False),
    ]
    rest = workload.requests("chat", 1, 2)
    assert [(request.prompt_id, request.arrival_ns) for request in rest] == [("talk/1", 0), ("z", 30)]


def test_texts_are_made_to_length_and_new_in_each_round() -> None:
    made = Session("m", (Turn(None, 4, input_tokens=50, ignore_eos=True),))
    first, second = _workload(made).requests("chat", 0, 2)
    assert len(_ids(first)) == len(_ids(second)) == first.expected_input_tokens == 50
    assert (first.prompt_id, second.prompt_id) == ("m", "m#1")
    assert first.user_turn != second.user_turn
    assert first.ignore_eos


def test_blocks_of_one_name_are_shared_within_a_round() -> None:
    sessions = [
        Session("a", (Turn(None, input_tokens=80, hash_ids=(900, 901, 902)),)),
        Session("b", (Turn(None, input_tokens=90, hash_ids=(900, 901, 7)),)),
        Session("c", (Turn(None, input_tokens=90, hash_ids=(11, 12, 13)),)),
        Session("d", (Turn(None, input_tokens=90),)),
    ]
    requests = _workload(*sessions, timed=True).requests("chat", 0, 8)
    ids = [_ids(request) for request in requests]
    assert [len(listed) for listed in ids] == [80, 90, 90, 90] * 2
    num_head = RENDERING.frame.num_head_tokens

    def shared(one: int, other: int) -> int:
        pairs = zip(ids[one], ids[other], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    assert shared(0, 1) == shared(4, 5) == 64
    assert shared(0, 2) == shared(0, 3) == shared(0, 4) == shared(2, 3) == num_head


def test_a_made_turn_after_own_answers_has_its_length_without_a_template() -> None:
    session = Session("m", (Turn(None, input_tokens=50), Turn(None, input_tokens=20)), True)
    _, second = _workload(session).requests("chat", 0, 2)
    assert second.history is None
    assert second.expected_input_tokens is None
    assert len(RENDERING.require_counter("x").plain_ids(second.user_turn)) == 20


def test_what_shares_prefixes_on_purpose() -> None:
    assert not _workload(_single("a"), _single("b")).shares_prefixes
    assert _workload(_single("a"), TALK).shares_prefixes
    assert _workload(Session("m", (Turn(None, input_tokens=20, hash_ids=(3,)),))).shares_prefixes
    assert _workload(Session("s@1", (Turn("x", history=("a", "b")),), True, first_turn=1)).shares_prefixes
    assert not _workload(Session("s", (Turn("x", history=()), Turn("y", history=())), True)).shares_prefixes


def test_made_turns_need_a_writer() -> None:
    workload = SessionWorkload("test", "a test", {"chat": [Session("m", (Turn(None, input_tokens=50),))]}, 0)
    with pytest.raises(ValueError, match="needs a writer"):
        workload.requests("chat", 0, 1)
