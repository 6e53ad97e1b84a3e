"""Every tensor that is sent is one the C++ model declares, and says what the request says."""

from typing import Any

import numpy as np
import pytest

from helpers.engine_standins.engine import StandInError, check_tensors, words_of
from helpers.serving_requests import make_request
from specdeploy.errors import RequestError
from specdeploy.serving.adapters.engine_tensors import (
    BAN_BIAS,
    DRAFT_OUTPUTS,
    EngineCall,
    StopRule,
    check_representable,
    draft_tensors,
    is_blank,
    probe_tensors,
    read_output,
    seed_at,
    stop_rule,
    stop_tensors,
    target_outputs,
    target_tensors,
    word_list,
)
from specdeploy.serving.request import Guide
from specdeploy.trtllm.facts import triton_model

VOCAB = 40
RICH = make_request(
    temperature=0.7,
    top_k=50,
    top_p=0.9,
    seed=11,
    repetition_penalty=1.3,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    logit_bias={3: 1.5},
    bad_words=((4,), (5, 6)),
    min_tokens=2,
    stop_ids=frozenset({9}),
    guide=Guide("json_schema", "{}"),
)


def sent(request: Any, call: EngineCall | None = None) -> dict[str, Any]:
    """What a target gets: lists without the batch dimension, scalars bare."""
    tensors = target_tensors(request, call or EngineCall(request.prompt_ids, 0, 8), vocab_size=VOCAB)
    check_tensors(tensors)
    return {name: value[0].item() if value.size == 1 else value[0].tolist() for name, value in tensors.items()}


def test_every_tensor_is_declared_by_the_model_with_that_type_and_shape() -> None:
    calls = [
        EngineCall([1, 2, 3], 0, 8),
        EngineCall([1, 2, 3, 4], 1, 5, draft_ids=(7, 8, 9, 10)),
        EngineCall([1, 2, 3], 0, 8, is_streaming=True, lookahead=(7, 7, 7)),
    ]
    requests = [make_request(), RICH, make_request(stop_ids=frozenset({1, 2}), min_tokens=3, wants_log_probs=True)]
    for request in requests:
        for call in calls:
            check_tensors(target_tensors(request, call, vocab_size=VOCAB))
            check_tensors(draft_tensors(request, call, vocab_size=VOCAB))
            check_tensors(draft_tensors(request, call, vocab_size=None))
    check_tensors(stop_tensors())
    check_tensors(probe_tensors([1, 2]))
    declared = {tensor.name for tensor in triton_model("tensorrt_llm").outputs}
    assert {*target_outputs(requests[2]), *DRAFT_OUTPUTS} <= declared


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_new_tokens", np.array([[1]], dtype=np.int32), "unexpected inference input 'max_new_tokens'"),
        ("end_id", np.array([[1]], dtype=np.int64), "'end_id' is int64"),
        ("end_id", np.array([1], dtype=np.int32), "'end_id' has shape"),
        ("stop_words_list", np.zeros((1, 3, 1), dtype=np.int32), "'stop_words_list' has shape"),
    ],
)
def test_a_planted_wrong_tensor_is_found(name: str, value: Any, message: str) -> None:
    tensors = target_tensors(make_request(), EngineCall([1], 0, 1), vocab_size=VOCAB) | {name: value}
    with pytest.raises(StandInError, match=message):
        check_tensors(tensors)


def test_greedy_requests_say_top_k_1_and_nothing_random() -> None:
    tensors = sent(make_request(temperature=0.0, top_p=0.5))
    assert tensors["runtime_top_k"] == 1
    assert not {"temperature", "seed", "runtime_top_p"} & tensors.keys()
    assert tensors["exclude_input_in_output"] is True
    assert (tensors["input_ids"], tensors["input_lengths"], tensors["request_output_len"]) == ([5, 6, 7], 3, 8)


def test_a_choice_over_everything_says_top_p_1() -> None:
    tensors = sent(make_request(temperature=1.0, seed=5))
    assert (tensors["temperature"], tensors["runtime_top_k"], tensors["runtime_top_p"], tensors["seed"]) == (1, 0, 1, 5)


def test_sampling_parameters_arrive_under_their_names() -> None:
    tensors = sent(RICH)
    expected = {"temperature": 0.7, "runtime_top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.2}
    assert {name: tensors[name] for name in expected} == pytest.approx(expected)
    assert (tensors["end_id"], tensors["min_tokens"], tensors["runtime_top_k"]) == (9, 2, 50)
    assert tensors["guided_decoding_guide_type"] == b"json_schema"
    assert tensors["guided_decoding_guide"] == b"{}"
    assert "len_penalty" not in tensors
    assert "early_stopping" not in tensors


def test_single_bad_words_are_bias_and_longer_ones_a_list() -> None:
    tensors = target_tensors(RICH, EngineCall([1], 0, 8), vocab_size=VOCAB)
    bias = tensors["embedding_bias"][0]
    assert bias.shape == (VOCAB,)
    assert {int(token): float(bias[token]) for token in np.flatnonzero(bias)} == {3: 1.5, 4: BAN_BIAS}
    assert words_of(tensors["bad_words_list"]) == [(5, 6)]


def test_token_0_as_a_bad_word_is_banned_by_bias() -> None:
    tensors = target_tensors(make_request(bad_words=((0,),)), EngineCall([1], 0, 8), vocab_size=VOCAB)
    assert tensors["embedding_bias"][0, 0] == BAN_BIAS
    assert "bad_words_list" not in tensors


def test_a_guide_without_text_is_a_type_alone() -> None:
    assert "guided_decoding_guide" not in sent(make_request(guide=Guide("json", "")))


def test_word_lists_are_ids_and_ends() -> None:
    assert word_list([(5, 6), (7,)]).tolist() == [[[5, 6, 7], [2, 3, -1]]]
    assert word_list([(9,)]).tolist() == [[[9], [1]]]
    assert word_list([(1, 2, 3)]).dtype == np.int32
    assert words_of(word_list([(5, 6), (7,), (8, 9, 10)])) == [(5, 6), (7,), (8, 9, 10)]


def test_stop_ids_are_an_end_id_and_stop_words() -> None:
    several = make_request(stop_ids=frozenset({9, 4, 7}))
    assert stop_rule(several, 0) == StopRule(4, (7, 9))
    assert stop_rule(make_request(), 0) == StopRule(None)
    tensors = target_tensors(several, EngineCall([1], 0, 8), vocab_size=VOCAB)
    assert tensors["end_id"].tolist() == [[4]]
    assert words_of(tensors["stop_words_list"]) == [(7,), (9,)]


def test_min_tokens_counts_what_was_emitted() -> None:
    one = make_request(stop_ids=frozenset({9}), min_tokens=5)
    assert [stop_rule(one, emitted).min_tokens for emitted in (0, 3, 5, 8)] == [5, 2, 0, 0]


def test_several_stop_ids_are_held_back_by_bias_and_a_bounded_call() -> None:
    several = make_request(stop_ids=frozenset({9, 4}), min_tokens=5)
    assert stop_rule(several, 2) == StopRule(None, banned=(4, 9), max_new_tokens=3)
    assert stop_rule(several, 5) == StopRule(4, (9,))
    tensors = target_tensors(several, EngineCall([1], 2, 3), vocab_size=VOCAB)
    assert np.flatnonzero(tensors["embedding_bias"][0] == BAN_BIAS).tolist() == [4, 9]
    assert not {"end_id", "stop_words_list", "min_tokens"} & tensors.keys()


def test_with_log_probs_every_stop_id_is_part_of_the_output() -> None:
    tensors = target_tensors(
        make_request(stop_ids=frozenset({9}), wants_log_probs=True), EngineCall([1], 0, 8), vocab_size=VOCAB
    )
    assert "end_id" not in tensors
    assert words_of(tensors["stop_words_list"]) == [(9,)]
    assert tensors["return_log_probs"].tolist() == [[True]]


def test_the_draft_has_no_end_and_no_choice() -> None:
    call = EngineCall([1, 2], 0, 4)
    tensors = draft_tensors(RICH, call, vocab_size=VOCAB)
    assert tensors["runtime_top_k"].tolist() == [[1]]
    assert not {"end_id", "stop_words_list", "min_tokens", "seed", "temperature", "draft_input_ids"} & tensors.keys()
    assert tensors["embedding_bias"][0, 9] == BAN_BIAS  # the target cannot choose its end id yet either
    assert words_of(tensors["bad_words_list"]) == [(5, 6)]
    assert not {"embedding_bias", "bad_words_list"} & draft_tensors(RICH, call, vocab_size=None).keys()


def test_calls_have_seeds_of_their_own() -> None:
    assert seed_at(7, 0) == 7
    seeds = {seed_at(seed, emitted) for seed in (7, 8) for emitted in range(0, 64, 16)}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert seed_at(7, 16) == seed_at(7, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"min_p": 0.1, "temperature": 1.0}, "^min_p: .* no input for it"),
        ({"top_k": 2000, "temperature": 1.0}, "^top_k: 2000 exceeds the 1024"),
        ({"bad_words": ((3, 0),)}, "^bad_words: .*token 0"),
        ({"guide": Guide("json", ""), "min_tokens": 2, "stop_ids": frozenset({1, 2})}, "^min_tokens: .*guided"),
    ],
)
def test_what_the_backend_cannot_do_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_representable(make_request(**changes))


def test_ordinary_requests_are_representable() -> None:
    for request in (make_request(), RICH, make_request(top_k=2000), make_request(stop_ids=frozenset({1, 2}))):
        check_representable(request)


def response(ids: list[int], **more: Any) -> dict[str, Any]:
    tensors = {"output_ids": np.array([[ids]], dtype=np.int32), "sequence_length": np.array([[len(ids)]])}
    return tensors | {name: np.array([[value]]) for name, value in more.items()}


def test_outputs_are_read_with_their_counts() -> None:
    output = read_output(response([4, 5], total_draft_tokens=3, total_accepted_draft_tokens=1))
    assert (output.token_ids, output.num_draft_tokens, output.num_accepted_tokens) == ((4, 5), 3, 1)
    assert read_output(response([4])).num_draft_tokens is None
    assert read_output(response([])).token_ids == ()


def test_an_answer_that_says_nothing_of_tokens_is_none() -> None:
    whole = response([4, 5])
    assert is_blank({})
    assert not is_blank(whole)
    with pytest.raises(ValueError, match="without output_ids and sequence_length"):
        read_output({})
    for name in ("output_ids", "sequence_length"):
        part = {key: value for key, value in whole.items() if key != name}
        assert not is_blank(part)
        with pytest.raises(ValueError, match=f"without {name}$"):
            read_output(part)
    with pytest.raises(ValueError, match=r"sequence_length is \[\]"):
        read_output(whole | {"sequence_length": np.zeros((1, 0), dtype=np.int32)})
    with pytest.raises(ValueError, match=r"sequence_length is \[2\] for a prompt of 3"):
        read_output(whole, num_prompt=3)


def test_padding_and_a_repeated_prompt_are_cut() -> None:
    padded = response([1, 2, 3, -1]) | {"sequence_length": np.array([[3]])}
    assert read_output(padded).token_ids == (1, 2, 3)
    assert read_output(padded, num_prompt=2).token_ids == (3,)


def test_log_probs_are_the_last_ones() -> None:
    whole = read_output(response([4, 5], output_log_probs=[-1.0, -2.0]), wants_log_probs=True)
    assert whole.log_probs == (-1.0, -2.0)
    so_far = read_output(response([5], output_log_probs=[-1.0, -2.0]), wants_log_probs=True)
    assert so_far.log_probs == (-2.0,)
    certain = read_output(response([4, 5], output_log_probs=[0.0, 0.0]), wants_log_probs=True)
    assert certain.log_probs == (0.0, 0.0)  # probability 1 in float32
    with pytest.raises(ValueError, match="0 values for 2 tokens"):
        read_output(response([4, 5]), wants_log_probs=True)
