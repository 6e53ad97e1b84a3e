"""One streaming call: when it has ended, and what the backend's counts say of the output that is kept."""

from typing import Any

import numpy as np
import pytest

from helpers.engine_standins.caller import Call, StandInCaller
from helpers.engine_standins.scripted import Answers, ScriptedCaller, response
from helpers.serving_requests import RecordingSink, make_request
from specdeploy.contract import EngineModel
from specdeploy.serving.adapters.draft_rounds import Emission
from specdeploy.serving.adapters.engine_stream import CUT, UNCOUNTED, EngineStream, StreamRoute
from specdeploy.serving.adapters.request_pool import Job
from specdeploy.serving.bls import ModelCallError
from specdeploy.serving.request import ServingRequest

END = 2


def counted(ids: list[int], drafted: int, accepted: int) -> dict[str, Any]:
    return response(ids, total_draft_tokens=drafted, total_accepted_draft_tokens=accepted)


# The prompt's own step, then steps of a tree of 7 that accept 2, 0 and 1; counts are those of the call so far.
TREE = [
    counted([20], 0, 0),
    counted([21, 22, 23], 7, 2),
    counted([24], 14, 2),
    counted([25, 26], 21, 3),
]


def stream(
    messages: Answers, request: ServingRequest, *, is_on: bool = True, stop_text: tuple[int, ...] = ()
) -> tuple[RecordingSink, list[Call]]:
    stops: list[Call] = []

    def answer(call: Call) -> Answers:
        if "stop" in call.tensors:
            stops.append(call)
            return [{}]
        return [*messages, {}]

    sink = RecordingSink(stop_text)
    runner = EngineStream(
        ScriptedCaller(StandInCaller({}), answer),
        vocab_size=60,
        deliver=lambda job, update: job.sink.deliver(update),
    )
    route = StreamRoute(EngineModel.TARGET, is_on=is_on, off_reason=None)
    runner.run(Job("r", request, sink), Emission("r", request, request.max_tokens, sink.accept), route)
    return sink, stops


def counts(sink: RecordingSink) -> tuple[int | None, int, int, int, str]:
    stats = sink.last.stats
    return stats.num_steps, stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens, stats.source


def test_the_counts_of_the_last_message_are_those_of_the_request() -> None:
    sink, stops = stream(TREE, make_request(max_tokens=7))
    assert sink.token_ids == list(range(20, 27))
    assert counts(sink) == (4, 3, 21, 3, "measured")
    assert stops == []


@pytest.mark.parametrize(
    ("stop_text", "num_output", "expected"),
    [
        ((23,), 4, (2, 1, 7, 2, "measured")),  # at the end of a step: its counts are true
        ((22,), 3, (2, 1, 7, 1, CUT)),  # the second draft token was accepted behind the output
        ((21,), 2, (2, 1, 7, 0, CUT)),
        ((24,), 5, (3, 2, 14, 2, "measured")),
        ((20,), 1, (1, 0, 0, 0, "measured")),
    ],
)
def test_after_a_stop_string_nothing_is_counted(
    stop_text: tuple[int, ...], num_output: int, expected: tuple[int, int, int, int, str]
) -> None:
    sink, stops = stream(TREE, make_request(max_tokens=7), stop_text=stop_text)
    assert len(sink.token_ids) == num_output
    assert counts(sink) == expected
    assert len(stops) == 1


def test_an_output_cut_at_its_limit_has_no_more_accepted_tokens_than_it_shows() -> None:
    sink, _ = stream(TREE, make_request(max_tokens=3))
    assert sink.token_ids == [20, 21, 22]
    assert counts(sink)[2:] == (21, 1, CUT)


def test_an_end_id_out_of_a_drafted_step_is_no_step_of_its_own() -> None:
    request = make_request(max_tokens=20, stop_ids=frozenset({END}))
    sink, _ = stream(TREE, request)
    assert sink.token_ids[-1] == END
    assert counts(sink) == (4, 3, 21, 3, "measured")
    sink, _ = stream([*TREE, counted([], 28, 3)], request)
    assert counts(sink) == (5, 4, 28, 3, "measured")


def test_messages_without_counts_leave_them_unavailable() -> None:
    sink, _ = stream([response([20]), response([21, 22])], make_request(max_tokens=3))
    assert sink.last.stats.source == UNCOUNTED


@pytest.mark.parametrize("stop_ids", [frozenset(), frozenset({END})])
@pytest.mark.parametrize("messages", [[], [{}], [{}, {}]])
def test_a_stream_without_an_answer_did_not_choose_the_end_id(
    messages: list[dict[str, Any]], stop_ids: frozenset[int]
) -> None:
    with pytest.raises(ModelCallError, match="'target' failed: it ended without an answer"):
        stream(messages, make_request(max_tokens=5, stop_ids=stop_ids))


def test_an_answer_of_no_tokens_may_be_the_end_id() -> None:
    sink, _ = stream([counted([], 0, 0)], make_request(max_tokens=5, stop_ids=frozenset({END})))
    assert (sink.token_ids, sink.last.finish_reason) == ([END], "stop")


@pytest.mark.parametrize(
    "broken",
    [
        {"output_ids": np.array([[[20]]], dtype=np.int32)},
        response([20]) | {"sequence_length": np.zeros((1, 0), dtype=np.int32)},
    ],
)
def test_a_message_that_says_half_is_an_error(broken: dict[str, Any]) -> None:
    with pytest.raises(ModelCallError, match=r"'target' failed: (it answered without|sequence_length is)"):
        stream([broken], make_request(max_tokens=5, stop_ids=frozenset({END})))
