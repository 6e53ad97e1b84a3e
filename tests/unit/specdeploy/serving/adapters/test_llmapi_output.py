"""Deltas of cumulative outputs, ends, and counts that are only reported where they can be true."""

from types import SimpleNamespace
from typing import Any

import pytest

from specdeploy.errors import SpecDeployError
from specdeploy.runtime.request import RequestStats
from specdeploy.serving.adapters.llmapi_output import EndRule, OutputReader, finish_reason_of, read_stats


def completion(*token_ids: int, logprobs: Any = None) -> Any:
    return SimpleNamespace(token_ids=list(token_ids), logprobs=logprobs, finish_reason=None)


def test_deltas_are_what_is_new() -> None:
    reader = OutputReader()
    outputs = [(5,), (5, 6, 7), (5, 6, 7), (5, 6, 7, 8)]
    deltas = [reader.take(completion(*output))[0] for output in outputs]
    assert deltas == [(5,), (6, 7), (), (8,)]
    assert (reader.num_tokens, reader.num_messages) == (4, 3)


def test_an_output_that_lost_its_stop_token_brings_nothing() -> None:
    reader = OutputReader()
    reader.take(completion(5, 6))
    assert reader.take(completion(5)) == ((), None)
    assert reader.num_tokens == 2


def test_log_probs_are_those_of_the_chosen_tokens() -> None:
    entries = [{5: SimpleNamespace(logprob=-1.0)}, {9: SimpleNamespace(logprob=0.0), 6: SimpleNamespace(logprob=-2.5)}]
    reader = OutputReader(wants_log_probs=True)
    assert reader.take(completion(5, logprobs=entries[:1])) == ((5,), (-1.0,))
    assert reader.take(completion(5, 6, logprobs=entries)) == ((6,), (-2.5,))
    assert reader.take(completion(5, 6, 7, logprobs=[*entries, -0.5])) == ((7,), (-0.5,))


@pytest.mark.parametrize("entries", [None, [], [{}], [{1: SimpleNamespace(logprob=0.0)}]])
def test_a_missing_log_prob_is_an_error(entries: Any) -> None:
    with pytest.raises(SpecDeployError, match="log probabilit"):
        OutputReader(wants_log_probs=True).take(completion(5, logprobs=entries))


@pytest.mark.parametrize(
    ("tokens", "num_before", "expected", "num_accepted"),
    [
        ((1, 2), 0, (2, None), 2),
        ((1, 9, 2), 0, (2, "stop"), 2),  # 9 is a stop id: nothing behind it is looked at
        ((1, 7, 2), 0, (3, None), 3),  # 7 ends a stop string, before min_tokens
        ((1, 7, 2), 2, (2, "stop"), 2),
        ((1, 2, 3), 7, (1, "length"), 1),
        ((9,), 7, (1, "stop"), 1),
        ((), 3, (0, None), 0),
    ],
)
def test_ends(tokens: tuple[int, ...], num_before: int, expected: tuple[int, str | None], num_accepted: int) -> None:
    seen: list[int] = []

    def accept(token: int) -> bool:
        seen.append(token)
        return token == 7

    rule = EndRule(stop_ids=frozenset({9}), min_tokens=4, max_output=8)
    assert rule.apply(tokens, num_before, accept) == expected
    assert seen == list(tokens[:num_accepted])


def message(
    num_tokens: int = 9,
    *,
    drafted: int | None = None,
    accepted: int | None = None,
    finish_reason: str | None = "length",
    finished: bool = True,
    **attributes: Any,
) -> Any:
    metrics = None
    if drafted is not None:
        counters = SimpleNamespace(total_draft_tokens=drafted, total_accepted_draft_tokens=accepted)
        metrics = SimpleNamespace(speculative_decoding=counters)
    output = SimpleNamespace(
        token_ids=list(range(num_tokens)), finish_reason=finish_reason, request_perf_metrics=metrics
    )
    return SimpleNamespace(outputs=[output], finished=finished, **attributes)


@pytest.mark.parametrize(
    ("finished", "there", "here"), [(False, None, None), (True, "stop", "stop"), (True, "length", "length")]
)
def test_reasons_of_tensorrt_llm(finished: bool, there: str | None, here: str | None) -> None:
    assert finish_reason_of(message(finished=finished, finish_reason=there)) == here


@pytest.mark.parametrize("reason", ["timeout", "cancelled", None])
def test_an_end_that_nobody_asked_for_is_an_error(reason: str | None) -> None:
    with pytest.raises(SpecDeployError, match=reason or "no reason given"):
        finish_reason_of(message(finish_reason=reason))


def stats(item: Any, num_tokens: int = 9, num_messages: int = 9, **changes: Any) -> RequestStats:
    values: dict[str, Any] = {
        "is_drafting": True,
        "is_plain": False,
        "max_draft_len": 4,
        "may_skip_drafting": False,
    }
    return read_stats(item, OutputReader(False, num_tokens, num_messages), **(values | changes))


def test_counters_that_are_there() -> None:
    result = stats(message(drafted=18, accepted=5, decoding_iter=4))
    assert (result.num_draft_tokens, result.num_accepted_tokens, result.num_steps) == (18, 5, 4)
    assert result.num_drafts == 5  # 18 tokens are at least 5 drafts of at most 4
    assert result.source == "measured"
    assert result.was_allowed_to_draft
    assert result.off_reason is None


def test_tokens_that_were_not_delivered_are_not_accepted_ones() -> None:
    assert stats(message(drafted=8, accepted=5), num_cut=2).num_accepted_tokens == 3
    assert stats(message(drafted=8, accepted=1), num_cut=3).num_accepted_tokens == 0


@pytest.mark.parametrize(
    ("attributes", "num_messages", "ratio"),
    [
        ({"decoding_iter": 3}, 9, "3.00"),
        ({"decoding_iter": 0, "avg_decoded_tokens_per_iter": 1.5}, 9, "1.50"),
        ({"avg_decoded_tokens_per_iter": None}, 6, "1.50"),
        ({}, 3, "3.00"),
    ],
)
@pytest.mark.parametrize("may_skip_drafting", [False, True])
@pytest.mark.parametrize("is_drafting", [False, True])
def test_zero_is_not_believed_when_more_tokens_came(
    attributes: dict[str, Any], num_messages: int, ratio: str, may_skip_drafting: bool, is_drafting: bool
) -> None:
    item = message(drafted=0, accepted=0, **attributes)
    result = stats(item, 9, num_messages, may_skip_drafting=may_skip_drafting, is_drafting=is_drafting)
    assert result.source == f"unavailable:counters are 0 but {ratio} tokens came per iteration"
    assert not result.is_available


def test_zero_is_believed_where_a_step_may_have_no_draft() -> None:
    item = message(drafted=0, accepted=0, decoding_iter=9)
    assert stats(item, may_skip_drafting=True).source == "measured"
    assert stats(item).source == "unavailable:counters are 0 although this method drafts at every step"
    assert stats(message(1, drafted=0, accepted=0, decoding_iter=1), 1, 1).source == "measured"


def test_no_counters_are_no_zero() -> None:
    for item in (message(), message(drafted=3, accepted=None), None):
        result = stats(item)
        assert result.source == "unavailable:TensorRT-LLM reported no counters of this request"
        assert result.was_allowed_to_draft


def test_the_plain_instance_drafts_nothing() -> None:
    result = stats(message(decoding_iter=9), is_plain=True, is_drafting=False, off_reason="load")
    assert result == RequestStats(num_steps=9, off_reason="load")
    assert result.source == "measured"


def test_drafts_of_an_engine_that_decides_by_load_itself() -> None:
    """The plan said no when the request came, the engine's own schedule said yes later."""
    result = stats(message(drafted=4, accepted=1), is_drafting=False, off_reason="load")
    assert result.was_allowed_to_draft
    assert not stats(message(drafted=0, accepted=0), is_drafting=False, off_reason="load").was_allowed_to_draft


@pytest.mark.parametrize(("iterations", "expected"), [(0, None), (4, 4), (9, 9), (10, None), ("4", None)])
def test_steps_are_reported_where_they_can_be_true(iterations: Any, expected: int | None) -> None:
    assert stats(message(drafted=4, accepted=1, decoding_iter=iterations)).num_steps == expected
    assert stats(message(drafted=4, accepted=1)).num_steps is None
