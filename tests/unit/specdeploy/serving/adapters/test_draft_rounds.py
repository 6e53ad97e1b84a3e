"""Where a round's output ends, what it counts, and which requests are never drafted."""

from typing import Any

import pytest

from helpers.serving_requests import make_request
from specdeploy.contract import Method
from specdeploy.errors import RequestError
from specdeploy.serving.adapters.draft_rounds import (
    DERIVED,
    PLAIN_CHUNK,
    Emission,
    Round,
    check_decoder,
    common_prefix_len,
    needs_one_call,
    off_reason_of,
    plan_round,
)
from specdeploy.serving.adapters.engine_tensors import EngineOutput
from specdeploy.serving.request import Guide

TREE_METHODS = (Method.MEDUSA, Method.EAGLE, Method.REDRAFTER, Method.LOOKAHEAD)
END = 9


def output(*ids: int, counts: tuple[int, int] | None = None) -> EngineOutput:
    drafted, accepted = counts or (None, None)
    return EngineOutput(ids, None, drafted, accepted)


def emission(max_output: int = 20, accept: Any = lambda token: False, **changes: Any) -> Emission:
    changes.setdefault("stop_ids", frozenset({END}))
    return Emission("r", make_request(**changes), max_output, accept)


@pytest.mark.parametrize(
    ("planned", "limit", "max_draft_len", "expected"),
    [
        (4, 100, 8, Round(4, 5)),
        (4, 5, 8, Round(4, 5)),
        (4, 4, 8, Round(3, 4)),  # the round may emit one more than it accepts
        (4, 1, 8, Round(0, 1)),
        (9, 100, 8, Round(8, 9)),
        (4, 100, -2, Round(0, PLAIN_CHUNK)),
        (0, 100, 8, Round(0, PLAIN_CHUNK)),
        (0, 7, 8, Round(0, 7)),
    ],
)
def test_rounds_fit_the_engine_and_the_limit(planned: int, limit: int, max_draft_len: int, expected: Round) -> None:
    assert plan_round(planned, limit, max_draft_len=max_draft_len) == expected


def test_a_whole_call_goes_to_the_end() -> None:
    assert plan_round(0, 300, max_draft_len=8, plain_chunk=None) == Round(0, 300)


def test_common_prefix() -> None:
    assert [common_prefix_len(draft, (1, 2, 3)) for draft in ((1, 2), (1, 9), (9, 2), (), (1, 2, 3, 4))] == [
        2,
        1,
        0,
        0,
        3,
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"guide": Guide("json", "")}, "constrained"),
        ({"wants_log_probs": True}, "log_probs"),
        ({"presence_penalty": 0.5}, "penalties"),
        ({"frequency_penalty": 0.5}, "penalties"),
        ({"temperature": 1.0}, "sampling"),
        ({"repetition_penalty": 1.2}, None),
        ({"bad_words": ((4,),)}, None),
        ({"min_tokens": 3}, None),
        ({"logit_bias": {3: 1.0}}, None),
    ],
)
def test_what_a_draft_model_must_not_draft(changes: dict[str, Any], reason: str | None) -> None:
    assert off_reason_of(make_request(**changes), Method.DRAFT_MODEL) == reason


@pytest.mark.parametrize("method", TREE_METHODS)
def test_what_a_tree_must_not_draft(method: Method) -> None:
    assert off_reason_of(make_request(), method) is None
    is_blind = method in (Method.EAGLE, Method.REDRAFTER)
    assert off_reason_of(make_request(logit_bias={3: 1.0}), method) == ("logit_bias" if is_blind else None)
    assert off_reason_of(make_request(repetition_penalty=1.2), method) == "penalties"
    assert off_reason_of(make_request(bad_words=((4,),)), method) == "bad_words"
    assert off_reason_of(make_request(min_tokens=3), method) == "min_tokens"
    assert off_reason_of(make_request(temperature=1.0), method) == "sampling"
    assert off_reason_of(make_request(temperature=1.0, top_k=1), method) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 1.0}, "^temperature, top_k, top_p: .*likeliest token.*Send temperature 0 or top_k 1"),
        ({"temperature": 0.7, "top_k": 5, "top_p": 0.9}, "^temperature, top_k, top_p: "),
        ({"wants_log_probs": True}, "^return_log_probs: .*lookahead"),
        ({"repetition_penalty": 1.2}, "^repetition_penalty: .*Send 1 or"),
        ({"presence_penalty": 0.5}, "^presence_penalty: .*Send 0 or"),
        ({"frequency_penalty": -0.5}, "^frequency_penalty: "),
        ({"bad_words": ((3, 4),)}, "^bad_words: .*single tokens only"),
        ({"guide": Guide("json", "")}, "^guided_decoding_guide_type: "),
    ],
)
def test_what_a_lookahead_engine_would_pass_over_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_decoder(make_request(**changes), Method.LOOKAHEAD)


def test_other_methods_have_an_engine_for_such_requests() -> None:
    rich = make_request(temperature=1.0, repetition_penalty=1.2, bad_words=((3, 4),), guide=Guide("json", ""))
    for method in (Method.DRAFT_MODEL, Method.MEDUSA, Method.EAGLE, Method.REDRAFTER):
        check_decoder(rich, method)
    for method in (Method.MEDUSA, Method.EAGLE, Method.REDRAFTER):
        check_decoder(make_request(wants_log_probs=True), method)
    with pytest.raises(RequestError, match=r"^return_log_probs: .*draft_model"):
        check_decoder(make_request(wants_log_probs=True), Method.DRAFT_MODEL)
    check_decoder(make_request(logit_bias={3: 1.0}, bad_words=((3,),), min_tokens=2), Method.LOOKAHEAD)


def test_a_grammar_needs_one_call() -> None:
    assert needs_one_call(make_request(guide=Guide("json", "")))
    rich = make_request(repetition_penalty=1.5, presence_penalty=0.1, frequency_penalty=0.1, temperature=1.0)
    assert not needs_one_call(rich)


def test_a_round_emits_what_was_accepted_and_the_targets_own_token() -> None:
    state = emission()
    update = state.add_round(output(1, 2, 7, counts=(4, 2)), (1, 2, 3, 4), 5)
    assert (update.token_ids, update.finish_reason) == ((1, 2, 7), None)
    stats = state.stats
    assert (stats.num_steps, stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 1, 4, 2)
    assert stats.num_accepted_tokens_per_pos == [1, 1]
    assert stats.source == "measured"
    assert state.text_ids == [5, 6, 7, 1, 2, 7]


def test_counts_add_up_over_rounds_and_never_twice() -> None:
    state = emission()
    state.add_round(output(1, 2, 3, counts=(2, 2)), (1, 2), 3)
    state.add_round(output(8, counts=(2, 0)), (4, 5), 3)
    state.add_round(output(*range(10, 14), counts=(0, 0)), (), 4)
    stats = state.stats
    assert (stats.num_steps, stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (6, 2, 4, 2)
    assert stats.source == "measured"


@pytest.mark.parametrize("counts", [None, (4, 1), (3, 2), (8, 4)])
def test_counts_the_backend_does_not_confirm_are_derived(counts: tuple[int, int] | None) -> None:
    state = emission()
    state.add_round(output(1, 2, 7, counts=counts), (1, 2, 3, 4), 5)
    state.add_round(output(1, 2, counts=(1, 1)), (1,), 2)
    stats = state.stats
    assert stats.source == DERIVED
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (5, 3)


def test_a_missing_end_id_is_put_back() -> None:
    """All that came out is draft, so the target's own token is the end id it does not show."""
    for ids in ((1, 2, 3), (1, 2), (1,), ()):
        state = emission()
        update = state.add_round(output(*ids, counts=(3, max(0, len(ids) - 1))), (1, 2, 3), 4)
        assert (update.token_ids, update.finish_reason) == ((*ids, END), "stop")
        assert state.stats.num_accepted_tokens == len(ids)
        assert (state.stats.num_steps, state.stats.source) == (1, "measured")


def test_a_drafted_end_id_that_was_accepted_counts() -> None:
    state = emission()
    update = state.add_round(output(1, counts=(3, 0)), (1, END, 3), 4)
    assert (update.token_ids, update.finish_reason) == ((1, END), "stop")
    assert (state.stats.num_accepted_tokens, state.stats.num_accepted_tokens_per_pos) == (2, [1, 1])


def test_a_short_plain_call_ended_at_the_end_id() -> None:
    state = emission()
    update = state.add_round(output(1, 2), (), 16)
    assert (update.token_ids, update.finish_reason) == ((1, 2, END), "stop")
    assert state.stats.num_steps == 3
    whole = emission()
    assert whole.add_round(output(1, 2), (), 2).finish_reason is None


def test_an_end_id_that_is_shown_is_not_put_there_twice() -> None:
    assert emission().add_round(output(1, END), (), 16).token_ids == (1, END)
    assert emission().add_round(output(1, END), (1, END, 4), 4).token_ids == (1, END)


def test_tokens_behind_a_stop_id_are_dropped() -> None:
    """Only the smallest stop id is an end id for the backend; the others are cut here as well."""
    state = emission(stop_ids=frozenset({END, 30}))
    update = state.add_round(output(1, 30, 2, 3), (), 4)
    assert (update.token_ids, update.finish_reason, state.stats.num_steps) == ((1, 30), "stop", 2)


def test_a_stop_string_ends_a_round_inside_its_draft() -> None:
    seen: list[int] = []

    def accept(token: int) -> bool:
        seen.append(token)
        return seen[-2:] == [1, 2]

    state = emission(accept=accept)
    update = state.add_round(output(1, 2, 3, 4, counts=(3, 3)), (1, 2, 3), 4)
    assert (update.token_ids, update.finish_reason) == ((1, 2), "stop")
    stats = state.stats
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.num_steps) == (3, 2, 1)
    assert seen == [1, 2]


def test_a_stop_string_before_min_tokens_is_passed_over() -> None:
    state = emission(accept=lambda token: token == 2, min_tokens=3)
    assert state.add_round(output(2, 5, 2), (), 3).token_ids == (2, 5, 2)
    assert state.finish_reason == "stop"


def test_the_length_limit_ends_the_output() -> None:
    state = emission(max_output=3)
    assert state.limit == 3
    update = state.add_round(output(1, 2, 3), (1, 2), 3)
    assert (update.finish_reason, state.limit) == ("length", 0)


def test_stop_ids_held_back_bound_the_calls() -> None:
    state = emission(stop_ids=frozenset({END, 30}), min_tokens=5)
    assert state.limit == 5
    state.add_round(output(1, 2, 3), (), 3)
    assert state.limit == 2
    state.add_round(output(4, 5), (), 2)
    assert state.limit == 15


def test_an_answer_without_tokens_cannot_go_on_for_ever() -> None:
    with pytest.raises(ValueError, match="without a token"):
        emission(stop_ids=frozenset()).add_round(output(), (), 16)


def test_log_probs_go_with_the_tokens_that_are_emitted() -> None:
    state = emission(stop_ids=frozenset({END}), wants_log_probs=True)
    update = state.add_round(EngineOutput((1, END, 3), (-1.0, -2.0, -3.0), None, None), (), 16)
    assert (update.token_ids, update.log_probs) == ((1, END), (-1.0, -2.0))


def test_streamed_messages_are_steps() -> None:
    state = emission()
    assert state.add_streamed(output(1)).token_ids == (1,)
    assert state.add_streamed(output(2, 3, 4)).token_ids == (2, 3, 4)
    assert state.add_streamed(output()).token_ids == ()
    assert state.stats.num_steps == 2
    last = state.end_stream(4, 20)
    assert last is not None
    assert (last.token_ids, last.finish_reason, state.stats.num_steps) == ((END,), "stop", 3)


@pytest.mark.parametrize(
    ("is_drafting", "has_bare_end", "num_steps"), [(True, False, 2), (True, True, 3), (False, False, 3)]
)
def test_an_end_id_behind_drafts_came_out_of_their_step(is_drafting: bool, has_bare_end: bool, num_steps: int) -> None:
    state = emission()
    state.add_streamed(output(1))
    state.add_streamed(output(2, 3))
    if has_bare_end:
        state.add_streamed(output())
    last = state.end_stream(3, 20, is_drafting=is_drafting)
    assert last is not None
    assert (last.token_ids, last.finish_reason, state.stats.num_steps) == ((END,), "stop", num_steps)


def test_a_stream_that_went_as_far_as_asked_goes_on() -> None:
    state = emission()
    state.add_streamed(output(1, 2))
    assert state.end_stream(2, 2) is None
    with pytest.raises(ValueError, match="after 2 of 5 tokens"):
        emission(stop_ids=frozenset()).end_stream(2, 5)
