"""Every input of `llm`: what is honoured, what is refused, and by which name."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from helpers.tiny_checkpoint import EOS_ID, make_tokenizer
from specdeploy.errors import RequestError
from specdeploy.serving.request import Guide, ServingLimits, ServingRequest, parse_request

TOKENIZER = make_tokenizer()
LIMITS = ServingLimits(max_seq_len=64, num_token_ids=TOKENIZER.get_vocab_size(), longest_token_bytes=8)


def strings(*values: str | bytes) -> np.ndarray[Any, Any]:
    return np.array([value if isinstance(value, bytes) else value.encode() for value in values], dtype=object)


def parse(tokenizer: Tokenizer = TOKENIZER, **tensors: Any) -> ServingRequest:
    inputs: dict[str, object] = {"text_input": strings("hello"), "max_tokens": np.array([5], dtype=np.int32)} | tensors
    arrays = {
        name: value if isinstance(value, np.ndarray) else np.array([value])
        for name, value in inputs.items()
        if value is not None
    }
    return parse_request(arrays, tokenizer, LIMITS, frozenset({EOS_ID}))


def test_defaults() -> None:
    request = parse()
    assert request.prompt_ids == tuple(TOKENIZER.encode("hello").ids)
    assert request.sampling.is_greedy
    assert not request.sampling.changes_logits
    assert request.stop_ids == {EOS_ID}
    assert (request.num_draft_tokens, request.stream, request.exclude_input) == (None, False, True)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"text_input": strings("")}, "text_input: is empty"),
        ({"text_input": None}, "text_input: is missing"),
        ({"text_input": strings(b"ab\xff")}, "text_input: not valid UTF-8 at byte 2"),
        ({"text_input": strings("x" * 10_000_000)}, "text_input: 10000000 bytes are at least 1250000 tokens"),
        ({"text_input": strings("a", "b")}, "text_input: 2 values where one belongs"),
        ({"max_tokens": None}, "max_tokens: is missing"),
        ({"max_tokens": 0}, "max_tokens: 0 is below 1"),
        ({"max_tokens": -3}, "max_tokens: -3 is below 1"),
        ({"temperature": -0.5}, "temperature: -0.5 is below 0"),
        ({"temperature": float("nan")}, "temperature: nan is not a finite number"),
        ({"temperature": float("inf")}, "temperature: inf is not a finite number"),
        ({"top_k": -1}, "top_k: -1 is below 0"),
        ({"top_p": 1.5}, "top_p: 1.5 is above 1"),
        ({"min_p": -0.1}, "min_p: -0.1 is below 0"),
        ({"min_tokens": 6}, "min_tokens: 6 exceeds max_tokens 5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: must be above 0"),
        ({"num_draft_tokens": -1}, "num_draft_tokens: -1 is below 0"),
        ({"end_id": 100000}, "end_id: 100000 is outside the vocabulary"),
        ({"beam_width": 2}, "beam_width: 2 - beam search is not supported"),
        ({"num_return_sequences": 3}, "num_return_sequences: 3 - one sequence per request"),
        ({"length_penalty": 0.5}, "length_penalty: 0.5 - it only acts on beams"),
        ({"return_context_logits": True}, "return_context_logits: logits are not returned"),
        ({"return_generation_logits": True}, "return_generation_logits: logits are not returned"),
        ({"use_draft_logits": True}, "use_draft_logits: drafts are verified"),
        ({"lora_task_id": 7}, "lora_task_id: LoRA adapters are not supported"),
        ({"image_url_input": strings("file.png")}, "image_url_input: multimodal input is not supported"),
        ({"decoder_text_input": strings("x")}, "decoder_text_input: encoder-decoder"),
        ({"prompt_embedding_table": np.ones((1, 1, 4))}, "prompt_embedding_table: prompt tuning"),
        ({"guided_decoding_guide_type": strings("yaml")}, "guided_decoding_guide_type: unknown type 'yaml'"),
        (
            {"guided_decoding_guide_type": strings("json"), "guided_decoding_guide": strings("{}")},
            "guided_decoding_guide_type: nothing in this deployment enforces it",
        ),
        ({"guided_decoding_guide": strings("{}")}, "guided_decoding_guide_type: unknown type None"),
        (
            {"embedding_bias_words": strings("a", "b"), "embedding_bias_weights": np.array([1.0], dtype=np.float32)},
            "embedding_bias_weights: 1 weights for 2",
        ),
        (
            {"embedding_bias_words": strings("a"), "embedding_bias_weights": np.array([np.inf], dtype=np.float32)},
            "embedding_bias_weights: the weight of 'a' is inf",
        ),
        ({"end_id": TOKENIZER.get_vocab_size()}, "end_id: "),
        ({"stop_words": strings(b"\xfe")}, "stop_words: not valid UTF-8"),
    ],
)
def test_refusals_name_the_field(tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse(**tensors)
    assert str(caught.value).startswith(message)


def test_a_huge_prompt_is_refused_before_it_is_tokenised() -> None:
    class NeverEncodes:
        def encode(self, *_: object) -> object:
            raise AssertionError("tokenised a prompt that cannot fit")

    with pytest.raises(RequestError, match="bytes are at least"):
        parse(NeverEncodes(), text_input=strings("x" * 600))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tensors", "is_greedy"),
    [
        ({}, True),
        ({"temperature": 0.0, "top_p": 0.5}, True),
        ({"temperature": 1.0, "top_k": 1, "top_p": 0.0}, True),  # what NVIDIA's clients send by default
        ({"temperature": 0.7}, False),
        ({"top_k": 40}, False),
        ({"top_p": 0.9}, False),
        ({"top_p": 0.0}, True),
    ],
)
def test_greedy_or_sampled(tensors: dict[str, Any], is_greedy: bool) -> None:
    assert parse(**tensors).sampling.is_greedy is is_greedy


def test_seed_zero_and_the_largest_seed_are_seeds() -> None:
    assert parse(seed=np.array([0], dtype=np.uint64)).sampling.seed == 0
    assert parse(seed=np.array([2**64 - 1], dtype=np.uint64)).sampling.seed == 2**64 - 1
    assert parse().sampling.seed != parse().sampling.seed


def test_end_id_and_ignore_eos() -> None:
    assert parse(end_id=7).stop_ids == {7}
    assert parse(end_id=-1).stop_ids == frozenset()
    assert parse(ignore_eos=True).stop_ids == frozenset()


def test_bias_and_bans_become_token_ids() -> None:
    request = parse(
        embedding_bias_words=strings("a", "a"),
        embedding_bias_weights=np.array([1.5, 2.0], dtype=np.float32),
        bad_words=strings("a", ""),
    )
    (token,) = TOKENIZER.encode("a").ids
    assert request.sampling.logit_bias == {token: 3.5}
    assert (token,) in request.sampling.bad_words
    assert tuple(TOKENIZER.encode(" a").ids) in request.sampling.bad_words


def test_a_begin_token_is_added_once() -> None:
    tokenizer = make_tokenizer()
    begin = tokenizer.token_to_id("<|user|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", begin)])
    plain = parse(tokenizer, text_input=strings("hi")).prompt_ids
    spelled = parse(tokenizer, text_input=strings("<|user|>hi")).prompt_ids
    assert plain == spelled
    assert plain.count(begin) == 1


def test_neutral_values_of_stock_clients_are_accepted() -> None:
    request = parse(
        beam_width=1,
        length_penalty=1.0,
        repetition_penalty=1.0,
        top_k=1,
        top_p=0.0,
        temperature=1.0,
        return_log_probs=False,
        return_context_logits=False,
        bad_words=strings(""),
        stop_words=strings(""),
        pad_id=0,
        decoder_text_input=strings(""),
    )
    assert request.stop_strings == ()
    assert request.sampling.bad_words == ()


def test_ids_that_cannot_be_emitted_reach_no_logits() -> None:
    """A padded vocabulary or a short embedding: such an id would index beyond the logits of the whole batch."""
    limits = ServingLimits(max_seq_len=64, num_token_ids=100, longest_token_bytes=8)
    arrays = {"text_input": strings("a"), "max_tokens": np.array([4]), "min_tokens": np.array([1])}
    arrays |= {
        "bad_words": strings("z", "~"),
        "embedding_bias_words": strings("~"),
        "embedding_bias_weights": np.ones(1, np.float32),
    }
    request = parse_request(arrays, TOKENIZER, limits, frozenset({EOS_ID, 250}))
    assert request.stop_ids == {EOS_ID}
    assert all(max(word) < 100 for word in request.sampling.bad_words)
    assert all(token < 100 for token in request.sampling.logit_bias)


def test_a_special_token_as_stop_word_is_a_stop_id() -> None:
    request = parse(stop_words=strings("<|bot|>", "the"), ignore_eos=True)
    assert request.stop_ids == {TOKENIZER.token_to_id("<|bot|>")}
    assert request.stop_strings == ("the",)


def test_a_special_token_without_a_row_in_the_checkpoint_is_nothing_to_stop_at() -> None:
    first_without_row = TOKENIZER.token_to_id("<|bot|>")
    assert first_without_row is not None
    limits = replace(LIMITS, num_token_ids=first_without_row)
    tensors = {
        "text_input": strings("the"),
        "max_tokens": np.array([5], dtype=np.int32),
        "min_tokens": np.array([1], dtype=np.int32),
        "stop_words": strings("<|bot|>"),
    }
    request = parse_request(tensors, TOKENIZER, limits, frozenset())
    assert (request.stop_ids, request.stop_strings) == (frozenset(), ())


def test_a_seed_of_the_clients_own_is_told_apart() -> None:
    assert parse(seed=np.array([0], dtype=np.uint64)).sampling.has_own_seed
    assert not parse().sampling.has_own_seed


@pytest.mark.parametrize(
    ("kind", "text", "guide"),
    [
        ("json", None, Guide("json", "")),
        ("json_schema", "{}", Guide("json_schema", "{}")),
        ("regex", "a+", Guide("regex", "a+")),
        ("ebnf_grammar", 'root ::= "a"', Guide("ebnf_grammar", 'root ::= "a"')),
    ],
)
def test_a_guide_is_read_where_it_is_enforced(kind: str, text: str | None, guide: Guide) -> None:
    tensors: dict[str, Any] = {"text_input": strings("a"), "max_tokens": np.array([4])}
    tensors |= {"guided_decoding_guide_type": strings(kind)}
    tensors |= {} if text is None else {"guided_decoding_guide": strings(text)}
    request = parse_request(tensors, TOKENIZER, replace(LIMITS, serves_guides=True), frozenset({EOS_ID}))
    assert request.guide == guide


def test_where_guides_are_not_enforced_the_reason_is_told() -> None:
    limits = replace(LIMITS, no_guides_reason="the package xgrammar is not installed here")
    tensors = {"text_input": strings("a"), "max_tokens": np.array([4]), "guided_decoding_guide_type": strings("json")}
    with pytest.raises(RequestError, match="guided_decoding_guide_type: the package xgrammar is not installed here"):
        parse_request(tensors, TOKENIZER, limits, frozenset({EOS_ID}))


def test_a_guide_without_its_text_is_refused() -> None:
    tensors = {"text_input": strings("a"), "max_tokens": np.array([4]), "guided_decoding_guide_type": strings("regex")}
    with pytest.raises(RequestError, match="guided_decoding_guide: is missing for type regex"):
        parse_request(tensors, TOKENIZER, replace(LIMITS, serves_guides=True), frozenset({EOS_ID}))
