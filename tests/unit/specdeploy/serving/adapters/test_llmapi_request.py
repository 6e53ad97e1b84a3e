"""What a request becomes in TensorRT-LLM's words, and what is refused by name."""

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from helpers import fake_llm, serving_requests
from specdeploy.errors import RequestError
from specdeploy.runtime.request import SamplingParams
from specdeploy.serving.adapters.llmapi_request import (
    guide_arguments,
    output_limit,
    refuse_unknown_fields,
    sampling_arguments,
)
from specdeploy.serving.request import Guide, ServingRequest

VOCAB_SIZE = 50
ALWAYS = {
    "max_tokens": 10,
    "detokenize": False,
    "include_stop_str_in_output": True,
    "return_perf_metrics": True,
}


def make_request(**changes: Any) -> ServingRequest:
    """A streaming request; `sampling` are fields of SamplingParams."""
    sampling = SamplingParams(**changes.pop("sampling", {}))
    values: dict[str, Any] = {"prompt": "abc", "stream": True, "sampling": sampling}
    return replace(serving_requests.make_request((1, 2, 3), 10), **(values | changes))


def arguments_of(**changes: Any) -> dict[str, Any]:
    arguments = sampling_arguments(make_request(**changes), max_output=10, vocab_size=VOCAB_SIZE)
    assert arguments.items() >= ALWAYS.items()
    return {name: value for name, value in arguments.items() if name not in ALWAYS}


NO_STOP = {"ignore_eos": True, "end_id": -1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"top_k": 1} | NO_STOP),
        ({"sampling": {"temperature": 0.7, "top_k": 1}}, {"top_k": 1} | NO_STOP),
        ({"sampling": {"temperature": 0.7, "seed": 5}}, {"temperature": 0.7, "seed": 5} | NO_STOP),
        (
            {"sampling": {"temperature": 1.0, "top_k": 4, "top_p": 0.5, "min_p": 0.1, "seed": 0}},
            {"temperature": 1.0, "seed": 0, "top_k": 4, "top_p": 0.5, "min_p": 0.1} | NO_STOP,
        ),
        ({"stop_ids": frozenset({7})}, {"top_k": 1, "end_id": 7}),
        ({"stop_ids": frozenset({9, 7, 8})}, {"top_k": 1, "end_id": 7, "stop_token_ids": [8, 9]}),
        (
            {"stop_ids": frozenset({7}), "sampling": {"min_tokens": 3}},
            {"top_k": 1, "end_id": 7, "min_tokens": 3},
        ),
        ({"sampling": {"min_tokens": 3}}, {"top_k": 1} | NO_STOP),
        ({"sampling": {"repetition_penalty": 1.2}}, {"top_k": 1, "repetition_penalty": 1.2} | NO_STOP),
        (
            {"sampling": {"presence_penalty": 0.5, "frequency_penalty": -0.5}},
            {"top_k": 1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "prompt_ignore_length": 3} | NO_STOP,
        ),
        ({"sampling": {"bad_words": ((4,), (5,))}}, {"top_k": 1, "bad_token_ids": [4, 5]} | NO_STOP),
        ({"wants_log_probs": True}, {"top_k": 1, "logprobs": 1} | NO_STOP),
        ({"guide": Guide("regex", "a+")}, {"top_k": 1, "guided_decoding": {"regex": "a+"}} | NO_STOP),
    ],
)
def test_every_field_by_its_name(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    arguments = arguments_of(**changes)
    assert arguments == expected
    refuse_unknown_fields(arguments, fake_llm.SamplingParams)


def test_the_bias_is_one_weight_per_row_of_the_vocabulary() -> None:
    bias = arguments_of(sampling={"logit_bias": {3: 2.0, 49: -1.5}})["embedding_bias"]
    assert bias.dtype == np.float32
    assert bias.shape == (VOCAB_SIZE,)
    assert bias[3] == 2.0
    assert bias[49] == -1.5
    assert np.count_nonzero(bias) == 2


@pytest.mark.parametrize(
    ("guide", "expected"),
    [
        (Guide("json", ""), {"json_object": True}),
        (Guide("json", "  "), {"json_object": True}),
        (Guide("json", '{"type": "object"}'), {"json": '{"type": "object"}'}),
        (Guide("json_schema", '{"type": "object"}'), {"json": '{"type": "object"}'}),
        (Guide("regex", "[0-9]+"), {"regex": "[0-9]+"}),
        (Guide("ebnf_grammar", 'root ::= "a"'), {"grammar": 'root ::= "a"'}),
    ],
)
def test_guides(guide: Guide, expected: dict[str, Any]) -> None:
    assert guide_arguments(guide) == expected
    fake_llm.GuidedDecodingParams(**expected)


@pytest.mark.parametrize(
    ("guide", "field"),
    [
        (Guide("json_schema", "{"), "guided_decoding_guide: is not JSON"),
        (Guide("json_schema", "[1]"), "guided_decoding_guide: is no JSON object"),
        (Guide("choice", "a|b"), "guided_decoding_guide_type: 'choice'"),
    ],
)
def test_a_broken_guide_is_refused(guide: Guide, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        guide_arguments(guide)
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": {"bad_words": ((4,), (5, 6))}}, "bad_words: a word of 2 tokens"),
        ({"sampling": {"min_tokens": 2}, "stop_ids": frozenset({1, 2, 3})}, "min_tokens: 3 stop tokens"),
    ],
)
def test_what_has_no_field_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        arguments_of(**changes)
    assert str(caught.value).startswith(message)


def test_a_field_that_the_installed_class_lacks_is_refused_by_its_input() -> None:
    older = dataclasses.make_dataclass(
        "SamplingParams",
        [(item.name, Any, None) for item in dataclasses.fields(fake_llm.SamplingParams) if item.name != "min_p"],
    )
    refuse_unknown_fields({"top_k": 1}, older)
    with pytest.raises(RequestError, match=r"^min_p: SamplingParams of this TensorRT-LLM has no min_p"):
        refuse_unknown_fields({"top_k": 1, "min_p": 0.1}, older)


def test_the_limit_is_the_smaller_of_request_and_context() -> None:
    assert output_limit(make_request(), max_seq_len=100, vocab_size=VOCAB_SIZE) == 10
    assert output_limit(make_request(), max_seq_len=8, vocab_size=VOCAB_SIZE) == 5


@pytest.mark.parametrize(
    ("prompt_ids", "reason"),
    [((), "no tokens"), ((1,) * 20, "20 tokens leave no room"), ((1, VOCAB_SIZE), "has no row in a vocabulary of 50")],
)
def test_prompts_that_cannot_run(prompt_ids: tuple[int, ...], reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        output_limit(make_request(prompt_ids=prompt_ids), max_seq_len=20, vocab_size=VOCAB_SIZE)
    assert caught.value.field == "text_input"
